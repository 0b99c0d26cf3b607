"""A verdict as plain values: the JSON of the API, the report and `compare`, described in `docs/cli.md`."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from app.domain.contract.fields import FIELDS, SOFTWARE
from app.domain.report.what_changed import WhatChanged
from app.domain.run import Stated
from app.domain.text import one_line
from app.domain.verdict.comparability import Comparability, Difference
from app.domain.verdict.document import MeasuredContrast, VerdictDocument
from app.domain.verdict.evidence import MOVES, RankedSuspect
from app.domain.verdict.step_time import Outcome, StepTimeChange, Verdict
from app.domain.verdict.words import left_out_runs

# --- Exit codes of verdicts. They are a stable interface: codes may be added but not changed.

FINE, REGRESSION, FAILED, NO_BASELINE, INCONCLUSIVE, UNREAD = 0, 1, 3, 4, 5, 6

_OF_DECISION: Mapping[Outcome, int] = {
    "regression": REGRESSION,
    "improvement": FINE,
    "no_change": FINE,
    "inconclusive": INCONCLUSIVE,
    "no_baseline": NO_BASELINE,
    "failed": FAILED,
}


def exit_code(decision: Outcome, *, raises_regression: bool) -> int:
    """Return the exit code; a slower experiment is not a regression and exits with 0."""
    code = _OF_DECISION[decision]
    return FINE if code == REGRESSION and not raises_regression else code


# --- The name under which runs of a CI job are reported on a change. It is known before a run is processed.
#
# It identifies the comment from push to push. Two runs that state the same get different names; otherwise one would
# hide the regression of the other.

_MOST_JOB = 80
_STACK_CHARACTERS = 12


def report_key(stated: Mapping[str, object], earlier: Sequence[Mapping[str, object]], stack: str) -> str:
    """Return `nightly/perf`, `nightly/perf 3fa9c1` or `nightly/perf 3fa9c1 #2`: job, hash of stated fields, number.

    `stated`: the metadata of the upload; `earlier`: that of previous runs with the same job address. Without a job it
    is the stack, or empty while that is unknown.
    """
    job = _job(stated)
    if not job or not stated.get("ci_url"):
        return stack[:_STACK_CHARACTERS]
    before = sum(_job(run) == job for run in earlier)
    return job if not before else f"{job} #{before + 1}"


def _job(stated: Mapping[str, object]) -> str:
    """Return the job with a hash of the stated fields, without versions, which change with the reviewed code."""
    job = one_line(str(stated.get("job") or ""))[:_MOST_JOB]
    apart = {name: stated[name] for name in sorted(FIELDS) if name in stated and FIELDS[name].group != SOFTWARE}
    if not job or not apart:
        return job
    return f"{job} {hashlib.sha256(json.dumps(apart, default=str).encode()).hexdigest()[:6]}"


# --- Verdicts as plain values.


def verdict_json(document: VerdictDocument, suspects: Sequence[RankedSuspect] | None = None) -> dict[str, Any]:
    """Return the JSON of a verdict, without `schema`, which callers add. `suspects`: with evidence, in the service."""
    verdict, time = document.verdict, document.verdict.step_time
    undecided = verdict.decision == "inconclusive"
    values: dict[str, object] = {
        "verdict": verdict.decision,
        "exit_code": exit_code(verdict.decision, raises_regression=document.alarms),
        "reason": verdict.reason,
        "notes": verdict.notes,
        "raises_regression": document.raises_regression,
        "provisional": document.provisional,
        "fields_to_supply": document.to_supply,
        "metrics": document.metrics,
        "loss": verdict.loss,
        "need_runs": time.need_runs if undecided and time else None,
        "would_decide": time.alternative if undecided and time else None,
        "reruns_apart_pct": None if time is None else time.reruns_apart_pct,
        "smallest_callable_pct": None if time is None else time.smallest_callable_pct,
        "test": None if time is None else _test(verdict, time),
        "needs_confirmation": document.needs_confirmation,
        "looks": verdict.looks,
        "rests_on_iterations": document.rests_on,
        "quarantined": document.quarantined or None,
        "limits_broken": [breach.text() for breach in document.breaches],
        "reference_job": document.reference,
        "candidate": {"runs": document.candidates, "used": verdict.candidates_used},
        "baseline": {
            "kind": document.baseline_kind,
            "runs": verdict.baseline_used,
            "left_out": [{"run": run, "why": why} for run, why in left_out_runs(document)],
            "more_left_out": document.more_left_out,
            "prior": verdict.prior,
            "other_branch": document.other_branch,
        },
        "branch_point": document.branch_point or None,
        "comparability": None if document.comparability is None else comparability_json(document.comparability),
        "suspects": [
            {"axis": suspect.axis, "field": suspect.field or None, "reason": suspect.reason}
            for suspect in document.suspects
        ]
        if suspects is None
        else [suspect_json(suspect) for suspect in suspects],
        "contrast": None if document.contrast is None else _contrast(document.contrast),
        "since_upgrade": None if document.since_upgrade is None else _contrast(document.since_upgrade),
        "nearest_misses": [
            {
                "run": miss.run,
                "fields": miss.fields,
                "comparability": comparability_json(miss.comparability),
                "runs_alike": miss.alike,
                "never_a_baseline_because": miss.never_a_baseline_because or None,
            }
            for miss in document.misses
        ],
    }
    plain: dict[str, Any] = storable(values)
    return plain


def _test(verdict: Verdict, time: StepTimeChange) -> dict[str, object]:
    """Return the figures of the test of step time, in ln, from which the decision can be computed again."""
    return {
        "shift": time.shift,
        "standard_error": time.standard_error,
        "degrees_of_freedom": time.degrees_of_freedom,
        "run_to_run_sd": time.run_to_run_sd,
        "candidate_runs": len(verdict.candidates_used),
        "baseline_runs": len(verdict.baseline_used),
        "looks": time.planned_looks,
        "relevant_pct": time.relevant_pct,
        "equal_pct": time.equal_pct,
    }


def comparability_json(comparability: Comparability) -> dict[str, object]:
    return {
        "kind": comparability.kind,
        "attributed_to": comparability.attributed_to,
        "differences": [difference_json(difference) for difference in comparability.differences],
        "unknown": comparability.unknown,
        "one_is_benchmark_only": comparability.one_is_benchmark_only,
    }


def what_changed_json(changed: WhatChanged) -> dict[str, object]:
    """Return changes by axis, without axes on which nothing differs."""
    return {"axes": dict(changed.axes), "commit_range": changed.commit_range}


def suspect_json(ranked: RankedSuspect) -> dict[str, object]:
    suspect = ranked.suspect
    return {
        "axis": suspect.axis,
        "field": suspect.field or None,
        "reason": suspect.reason,
        "support": ranked.support,
        "is_likely": ranked.is_likely,
        "label": ranked.label,
        "evidence": ranked.evidence,
        "past_results": ranked.past,
        "other_stacks": ranked.elsewhere
        and {move: ranked.elsewhere.of(move) for move in MOVES} | {"alternating": ranked.elsewhere.alternating},
    }


def storable(value: object) -> Any:
    """Convert a domain value to JSON types; NaN and infinity become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return storable(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): storable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [storable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def difference_json(difference: Difference) -> dict[str, object]:
    """Return a difference: `a` is the baseline's value, `b` the candidate's; `known` tells unknown from null."""
    return {
        "field": difference.field,
        "role": difference.role,
        "axis": difference.axis,
        "follows": difference.follows or None,
        "a": _value(difference.a),
        "b": _value(difference.b),
        "known": [difference.a is not None, difference.b is not None],
    }


def _value(stated: Stated | None) -> object:
    return None if stated is None else stated.value


def _contrast(contrast: MeasuredContrast) -> dict[str, object]:
    return {
        "runs": contrast.runs,
        "comparability": comparability_json(contrast.comparability),
        "decision": contrast.measured.decision,
        "metrics": contrast.metrics,
    }
