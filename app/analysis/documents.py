"""The JSON of `analyze` and `compare` (docs/cli.md), with the names of the API. NaN and infinity become null."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.analysis.reading import LogAnalysis
from app.domain.contract.values import explained
from app.domain.report.exit_codes import exit_code
from app.domain.report.values import storable, verdict_json
from app.domain.verdict.assess import Assessment
from app.domain.verdict.baseline import LeftOut
from app.domain.verdict.document import VerdictDocument, verdict_document

ANALYSIS_SCHEMA = "threewalls.analysis/1"
_OF_THE_WINDOW = ("first_iteration", "last_iteration", "n", "method", "is_steady", "reasons", "short", "profiled")


def as_json(document: object) -> str:
    return json.dumps(storable(document), indent=2, ensure_ascii=False, allow_nan=False)


def analysis_document(run: LogAnalysis) -> dict[str, object]:
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
            name: {"value": fact.value, "source": fact.source, "detail": explained(fact)}
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


@dataclass(frozen=True, slots=True)
class LocalComparison:
    """The result of `compare`. `document` is the stored verdict of a service, with file names instead of run numbers.

    `candidates` are the run and its reruns, `earlier` the named baseline runs, oldest first.
    """

    document: VerdictDocument
    candidates: tuple[LogAnalysis, ...]
    earlier: tuple[LogAnalysis, ...]

    @property
    def exit_code(self) -> int:
        return exit_code(self.document.decision, raises_regression=self.document.raises_regression)


def make_comparison(
    assessment: Assessment,
    candidates: Sequence[LogAnalysis],
    earlier: Sequence[LogAnalysis],
    of_other_stacks: Sequence[LeftOut],
) -> LocalComparison:
    """Build the comparison. `of_other_stacks` are named baseline runs that are not comparable, with reasons."""
    metrics = {run.name: run.summary.metrics for run in (*candidates, *earlier)}
    names = tuple(run.name for run in candidates)
    document = verdict_document(assessment, names, metrics, candidates[-1].summary.definition_version)
    document = replace(document, left_out=(*document.left_out, *of_other_stacks))
    return LocalComparison(document, tuple(candidates), tuple(earlier))


SCHEMA = "threewalls.comparison/1"


def comparison_document(comparison: LocalComparison) -> dict[str, object]:
    warnings = {run.name: run.summary.warnings for run in (*comparison.earlier, *comparison.candidates)}
    return {"schema": SCHEMA, **verdict_json(comparison.document), "warnings": warnings}
