"""Many cases in one test, which names every case that fails; and how many cases a run of the tests takes."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")
Case = Callable[[object], AbstractContextManager[None]]


@contextmanager
def every_case() -> Iterator[Case]:
    """Give `case(name)`, which notes what fails inside it and goes on. Fails at the end with all of it.

    A parametrised test costs 3 ms of the processor for each case, most of it for reports between processes.
    """
    failures: list[str] = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, the other cases are checked too
            failures.append(f"{name}: {type(error).__name__}: {error}")

    yield case
    assert not failures, f"{len(failures)} cases failed\n" + "\n".join(failures)


def sized(sample: T, campaign: T) -> T:
    """Return the size of a sample, or of the whole campaign under `make soak`."""
    return campaign if os.environ.get("SOAK") else sample
