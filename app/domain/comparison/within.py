"""What the runs of one set do not share. Only reruns of one job are one sample of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.domain.matching import RunRecord, compare_contracts


@dataclass(frozen=True, slots=True)
class Within:
    """`stack` and `knobs`: members of the keys that differ between runs of the set, or may.

    `commits`: how many different ones are stated; `commit_unknown`: a run of several states none.
    """

    stack: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()
    commits: int = 1
    commit_unknown: bool = False

    @property
    def one_configuration(self) -> bool:
        """All runs could have one config key, so that their mean is of something."""
        return not self.stack and not self.knobs

    @property
    def reruns(self) -> bool:
        """Nothing differs that is known, and all of one commit."""
        return self.one_configuration and self.commits <= 1 and not self.commit_unknown

    @property
    def fields(self) -> tuple[str, ...]:
        """What keeps them from being reruns of each other; `commit` for the code."""
        code = ("commit",) if self.commits > 1 or self.commit_unknown else ()
        return (*self.stack, *self.knobs, *code)


def within(runs: Sequence[RunRecord]) -> Within:
    """The runs of one set, at least one. Each is compared with the first."""
    first, *others = runs
    found = [compare_contracts(first, other) for other in others]
    commits = [run.commit for run in runs]
    return Within(
        stack=_fields(one.field for each in found for one in each.stack),
        knobs=_fields(one.field for each in found for one in each.knobs),
        commits=len(_distinct(commits)),
        commit_unknown=len(runs) > 1 and not all(commits),
    )


def _fields(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _distinct(commits: Sequence[str]) -> list[str]:
    """Stated commits, where one may be the short form of another."""
    found: list[str] = []
    for commit in sorted(filter(None, commits), key=len, reverse=True):
        if not any(longer.startswith(commit) for longer in found):
            found.append(commit)
    return found
