"""What was ticked in the list of runs becomes two sides."""

from collections.abc import Sequence

from sqlmodel import Session

from app.compare.queries import in_order
from app.compare.selection import MOST_RUNS, Selection
from app.errors import FieldError, InvalidQuery


def chosen_runs(session: Session, numbers: Sequence[str]) -> Selection:
    """The earlier run is the baseline. Of more than two, reruns of one job stand together if that makes two sides;
    else the earliest is compared with all the others. One alone becomes the candidate.

    Raises InvalidQuery for what is no number of a run, and NotFound.
    """
    runs = [int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) <= 9]
    if len(runs) != len(numbers) or len(runs) > 2 * MOST_RUNS:
        error = FieldError("run", f"must be at most {2 * MOST_RUNS} numbers of runs")
        raise InvalidQuery("The address of this comparison asks for what there is not.", (error,))
    ordered = in_order(session, list(dict.fromkeys(runs)))
    if len(ordered) == 1:
        return Selection(b=(ordered[0][0],))
    jobs: dict[tuple[str, str], list[int]] = {}
    for number, config_key, commit in ordered:
        jobs.setdefault((config_key, commit), []).append(number)
    if len(jobs) == 2:
        a, b = jobs.values()
    else:
        a, b = [ordered[0][0]], [number for number, _, _ in ordered[1:]]
    return Selection(a=tuple(a[:MOST_RUNS]), b=tuple(b[:MOST_RUNS]))
