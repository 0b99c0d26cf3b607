"""The JSON that both commands print, by the names of the API where it has them. Described in `docs/cli.md`.

Values are plain; NaN and infinity become null.
"""

import json

from app.analysis.reading import Analysis
from app.domain.report.values import storable

ANALYSIS_SCHEMA = "threewalls.analysis/1"
_OF_THE_WINDOW = ("first_iteration", "last_iteration", "n", "method", "is_steady", "reasons", "short")


def as_json(document: object) -> str:
    return json.dumps(storable(document), indent=2, ensure_ascii=False, allow_nan=False)


def analysis_document(run: Analysis) -> dict[str, object]:
    summary, steady = run.summary, run.summary.steady_state
    return {
        "schema": ANALYSIS_SCHEMA,
        "name": run.metadata.name or run.name,
        "files": summary.files,
        "status": summary.status,
        "error": summary.error,
        "trainer": summary.trainer,
        "project": run.metadata.project,
        "purpose": run.metadata.purpose,
        "branch": run.metadata.branch,
        "commit": run.metadata.commit,
        "steady_state": None if steady is None else {name: getattr(steady, name) for name in _OF_THE_WINDOW},
        "metrics": summary.metrics,
        "contract": {
            name: {"value": fact.value, "source": fact.source, "detail": fact.detail}
            for name, fact in summary.contract.items()
        },
        "unknown": summary.unknown,
        "provisional": summary.provisional,
        "stack_key": summary.stack_key,
        "config_key": summary.config_key,
        "warnings": summary.warnings,
        "failures": summary.failures,
        "health": summary.health,
        "evidence_level": summary.evidence_level,
        "semantic_class": summary.semantic_class,
        "activity": summary.activity,
        "availability": summary.availability,
        "timers": summary.timers,
        "slices": summary.slices,
        "fair_for_timing": summary.fair_for_timing,
        "definition_version": summary.definition_version,
        "definitions": summary.definitions,
    }
