"""Many cases in one test that reports every failing case, and the number of cases in a test run."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")
Case = Callable[[object], AbstractContextManager[None]]


@contextmanager
def every_case() -> Iterator[Case]:
    """Yield `case(name)`, which records failures inside it and continues. Fail at the end with all of them.

    A parametrised test costs 3 ms of processor time per case, mostly for reports between processes.
    """
    failures: list[str] = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # for any error: the other cases must still run
            failures.append(f"{name}: {type(error).__name__}: {error}")

    yield case
    assert not failures, f"{len(failures)} cases failed\n" + "\n".join(failures)


def sized(sample: T, campaign: T) -> T:
    """Return the size of a sample, or of the whole campaign under `make soak`."""
    return campaign if os.environ.get("SOAK") else sample
