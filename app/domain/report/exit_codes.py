"""Exit codes of verdicts. They are a stable interface: codes may be added but not changed."""

import hashlib
import json
from collections.abc import Mapping, Sequence

from app.domain.contract.fields import FIELDS, SOFTWARE
from app.domain.text import one_line
from app.domain.verdict.step_time import Outcome

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
