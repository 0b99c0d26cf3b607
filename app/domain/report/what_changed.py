"""Changes between a run and its baseline, by axis, with commit range, packages and environment."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.contract.fields import FIELDS, PREFIX, VARIABLES
from app.domain.documents.document import is_secret
from app.domain.numbers import short_commit
from app.domain.run import Stated
from app.domain.text import commit_address, range_address
from app.domain.verdict.comparability import COMMIT, Axis, Comparability, Difference
from app.domain.verdict.words import side_text

AXIS_TITLES: Mapping[Axis, str] = {
    "workload": "Workload",
    "container": "Container",
    "recipe": "Recipe",
    "code": "Code",
    "place": "Place",
}
Kind = Literal["field", "package", "environment"]


@dataclass(frozen=True, slots=True)
class TextChange:
    """One difference as text. `follows`: the field that causes the difference. `known`: both sides are stated."""

    field: str
    axis: Axis
    kind: Kind
    before: str
    after: str
    follows: str = ""
    known: bool = True


@dataclass(frozen=True, slots=True)
class CommitRange:
    """Commits since the last good run, else since the newest baseline run. Addresses are empty without a template."""

    first: str
    last: str
    address: str
    first_address: str
    last_address: str

    @property
    def text(self) -> str:
        return f"{short_commit(self.first)}..{short_commit(self.last)}"


@dataclass(frozen=True, slots=True)
class WhatChanged:
    """`axes`: those with differences, in fixed order; `commit_range` belongs to the axis `code`."""

    axes: tuple[tuple[Axis, tuple[TextChange, ...]], ...]
    commit_range: CommitRange | None = None

    @property
    def packages(self) -> tuple[TextChange, ...]:
        return self._of("package")

    @property
    def environment(self) -> tuple[TextChange, ...]:
        return self._of("environment")

    def _of(self, kind: Kind) -> tuple[TextChange, ...]:
        return tuple(change for _, changes in self.axes for change in changes if change.kind == kind)


def what_changed(
    comparability: Comparability | None,
    *,
    commit_url: str,
    compare_url: str,
    environment: tuple[Mapping[str, object], Mapping[str, object]] = ({}, {}),
) -> WhatChanged:
    """Collect the differences of a comparison; the address templates are the project's.

    `environment`: all environment variables stated for the baseline and for the run; the contract holds some of them.
    """
    by_axis = {} if comparability is None else comparability.by_axis()
    changes = {axis: [_change(difference) for difference in group] for axis, group in by_axis.items()}
    changes.setdefault("recipe", []).extend(_other_variables(*environment))
    commits = _commits(by_axis.get("code", ()))
    return WhatChanged(
        axes=tuple((axis, tuple(changes[axis])) for axis in AXIS_TITLES if changes.get(axis)),
        commit_range=commits and _linked(commits, commit_url, compare_url),
    )


def _change(difference: Difference) -> TextChange:
    before, after = side_text(difference.field, difference.a), side_text(difference.field, difference.b)
    return TextChange(
        difference.field, difference.axis, _kind(difference), before, after, difference.follows, difference.is_certain
    )


def _kind(difference: Difference) -> Kind:
    if difference.field.startswith(PREFIX):
        return "environment"
    field = FIELDS.get(difference.field)
    return "package" if field is not None and field.group == "Software" and field.role == "info" else "field"


def _other_variables(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[TextChange]:
    """Yield differing variables outside the contract. A variable stated on one side may be unset on the other."""
    for name in sorted({*before, *after} - set(VARIABLES)):
        a, b = before.get(name), after.get(name)
        if before and after and a != b and not is_secret(name, f"{a or ''}") and not is_secret(name, f"{b or ''}"):
            on_both_sides = a is not None and b is not None
            sides = (_variable(a), _variable(b))
            yield TextChange(PREFIX + name, "recipe", "environment", *sides, known=on_both_sides)


def _variable(value: object) -> str:
    return side_text("env", None if value is None else Stated(str(value), "metadata"))


def _commits(code: Iterable[Difference]) -> CommitRange | None:
    for difference in code:
        if difference.field == COMMIT and difference.a is not None and difference.b is not None:
            return CommitRange(str(difference.a.value), str(difference.b.value), "", "", "")
    return None


def _linked(commits: CommitRange, commit_url: str, compare_url: str) -> CommitRange:
    first, last = commits.first, commits.last
    return replace(
        commits,
        address=range_address(compare_url, first, last),
        first_address=commit_address(commit_url, first),
        last_address=commit_address(commit_url, last),
    )
