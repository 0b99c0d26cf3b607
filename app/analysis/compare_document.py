"""The JSON of `compare`. Described in `docs/cli.md`."""

from collections.abc import Iterable

from app.analysis.comparison import Comparison
from app.domain.detection import Verdict
from app.domain.matching import Comparability, Contrast, Difference, NearMiss
from app.domain.run import Stated

SCHEMA = "threewalls.comparison/1"


def comparison_document(comparison: Comparison) -> dict[str, object]:
    assessment = comparison.assessment
    verdict, choice, time = assessment.verdict, assessment.choice, assessment.verdict.step_time
    return {
        "schema": SCHEMA,
        "verdict": verdict.decision,
        "exit_code": comparison.exit_code,
        "reason": verdict.reason,
        "notes": verdict.notes,
        "raises_regression": assessment.raises_regression,
        "provisional": comparison.provisional,
        "fields_to_supply": comparison.to_supply,
        "metrics": comparison.changes(verdict),
        "loss": verdict.loss,
        "need_runs": None if time is None else time.need_runs,
        "would_decide": None if time is None else time.alternative,
        "smallest_callable_pct": None if time is None else time.smallest_callable_pct,
        "needs_confirmation": time is not None and time.needs_confirmation,
        "looks": verdict.looks,
        "candidate": {"runs": [run.name for run in comparison.candidates], "used": verdict.candidates_used},
        "baseline": {
            "kind": choice.kind,
            "runs": verdict.baseline_used,
            "left_out": [{"run": run, "why": why} for run, why in comparison.left_out],
            "prior": verdict.prior,
        },
        "comparability": None if choice.comparability is None else _comparability(choice.comparability),
        "suspects": [
            {"axis": one.axis, "field": one.field or None, "reason": one.reason} for one in assessment.suspects
        ],
        "contrast": None if assessment.contrast is None else _contrast(comparison, assessment.contrast),
        "nearest_misses": [_miss(miss) for miss in assessment.misses],
        "warnings": {run.name: run.summary.warnings for run in (*comparison.earlier, *comparison.candidates)},
    }


def _comparability(found: Comparability) -> dict[str, object]:
    return {
        "kind": found.kind,
        "attributed_to": found.attributed_to,
        "differences": _differences(found.differences),
        "unknown": found.unknown,
        "one_is_benchmark_only": found.one_is_benchmark_only,
    }


def _differences(found: Iterable[Difference]) -> list[dict[str, object]]:
    """`a` is the baseline's value, `b` the candidate's; null where it is unknown, `known` then says that it is."""
    return [
        {
            "field": one.field,
            "role": one.role,
            "axis": one.axis,
            "follows": one.follows or None,
            "a": _value(one.a),
            "b": _value(one.b),
            "known": [one.a is not None, one.b is not None],
        }
        for one in found
    ]


def _value(stated: Stated | None) -> object:
    return None if stated is None else stated.value


def _contrast(comparison: Comparison, contrast: Contrast) -> dict[str, object]:
    measured: Verdict = contrast.measured
    return {
        "runs": [run.run for run in contrast.runs],
        "comparability": _comparability(contrast.comparability),
        "decision": measured.decision,
        "metrics": comparison.changes(measured),
    }


def _miss(miss: NearMiss) -> dict[str, object]:
    return {
        "run": miss.run,
        "fields": miss.fields,
        "comparability": _comparability(miss.comparability),
        "runs_alike": miss.alike,
        "never_a_baseline_because": miss.never_a_baseline_because or None,
    }
