"""How many example runs the demo has loaded, while it does.

The demo uploads from a thread of the process that answers requests, so this process remembers how many it will upload.
The number that can be read comes from the database, which also has the runs of an earlier start.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlmodel import Session, col

from app.storage.runs import count_up_to
from app.storage.tables import RunRow

WAITING = ("received", "processing")
"""Statuses of uploads that no worker has read yet."""

_totals: list[int] = []


@dataclass(frozen=True, slots=True)
class ExampleRuns:
    """`processed` of `total` runs have their figures, or failed."""

    processed: int
    total: int


@contextmanager
def loading_examples(total: int) -> Iterator[None]:
    """Make `example_runs` report the progress of these uploads until the block ends."""
    _totals.append(total)
    try:
        yield
    finally:
        _totals.remove(total)


def example_runs(session: Session) -> ExampleRuns | None:
    """Return the progress; None while nothing loads, and once all runs are processed."""
    if not _totals:
        return None
    waiting = sum(count_up_to(session, col(RunRow.status) == name) for name in WAITING)
    processed = count_up_to(session) - waiting
    return ExampleRuns(processed, sum(_totals)) if processed < sum(_totals) else None
