"""What an exit code says of a verdict. They are a promise: additions are welcome, changes are not."""

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
    """An experiment is slower without being a regression."""
    code = _OF_DECISION[decision]
    return FINE if code == REGRESSION and not raises_regression else code


# --- Under which name the runs of one CI job are reported on a change: known before a run is read, and the same then.
#
# A comment is found again by it, from push to push. Two runs that state the same have two names, or the one would
# hide the other's regression.

_MOST_JOB = 80
_STACK_CHARACTERS = 12


def report_key(stated: Mapping[str, object], earlier: Sequence[Mapping[str, object]], stack: str) -> str:
    """`nightly/perf`, `nightly/perf 3fa9c1`, or `nightly/perf 3fa9c1 #2`: the job, what is stated, which one of those.

    `stated`: the metadata of the upload; `earlier`: of the runs before it with the same address of a job. Of no known
    job it is the stack, and empty as long as that is not known either.
    """
    job = _job(stated)
    if not job or not stated.get("ci_url"):
        return stack[:_STACK_CHARACTERS]
    before = sum(_job(run) == job for run in earlier)
    return job if not before else f"{job} #{before + 1}"


def _job(stated: Mapping[str, object]) -> str:
    """Versions of software change with the code that is reviewed; what tells the legs of a matrix apart does not."""
    job = one_line(str(stated.get("job") or ""))[:_MOST_JOB]
    apart = {name: stated[name] for name in sorted(FIELDS) if name in stated and FIELDS[name].group != SOFTWARE}
    if not job or not apart:
        return job
    return f"{job} {hashlib.sha256(json.dumps(apart, default=str).encode()).hexdigest()[:6]}"
