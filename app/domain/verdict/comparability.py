"""What may be said about two runs: the table "Comparability" of `docs/verdicts.md`, from their contracts alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from app.domain.contract.fields import CONFIG_FIELDS, PREFIX, STACK_FIELDS
from app.domain.run import Stated
from app.domain.verdict.differences import (
    AXES,
    Axis,
    Difference,
    differing,
    differing_beside,
    differing_commit,
    differing_project,
    differing_shape,
    marked,
    supplied_as,
)
from app.domain.verdict.record import RunFacts

Kind = Literal["verdict", "matched_ab", "side_by_side", "contrast", "incomparable"]


class Comparable(Protocol):
    """What matching needs to know of a run. Any frozen value with these attributes will do."""

    @property
    def project(self) -> str: ...
    @property
    def contract(self) -> Mapping[str, Stated]: ...
    @property
    def commit(self) -> str: ...
    @property
    def semantic_class(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Comparability:
    """What two runs, a and b, may be used for together.

    verdict        same config key: the difference is code, environment or noise
    matched_ab     same stack key and exactly one knob differs: evidence about that knob
    side_by_side   same stack key and several knobs differ, or one may: attributed to none of them
    contrast       stack keys differ in exactly one field: attributed to it when no knob differs; never a verdict
    incomparable   more differs, or it is unknown whether it does

    `stack`, `knobs`: members of the keys that differ, or are known on one side only. `following`: members that differ
    only because one of these does, such as the SM count of the other dispatcher; they count as part of it. `beside`:
    versions, driver and commit that differ, which no key holds. `unknown`: what to state, `env` for all variables of
    the environment. `provisional`: it rests on a member that somebody left unknown, which is not known to be equal.
    """

    kind: Kind
    stack: tuple[Difference, ...]
    knobs: tuple[Difference, ...]
    following: tuple[Difference, ...]
    beside: tuple[Difference, ...]
    unknown: tuple[str, ...]
    provisional: bool
    one_is_benchmark_only: bool

    @property
    def attributed_to(self) -> str | None:
        """The one field that explains the difference, as far as contracts can tell; None where none may be named."""
        if self.kind == "matched_ab":
            return self.knobs[0].field
        return self.stack[0].field if self.kind == "contrast" and not self.knobs else None

    @property
    def other_code(self) -> tuple[Difference, ...]:
        """Commits that differ: what is measured may be the code's in any case."""
        return tuple(one for one in self.beside if one.axis == "code")

    @property
    def differences(self) -> tuple[Difference, ...]:
        return (*self.stack, *self.knobs, *self.following, *self.beside)

    def by_axis(self) -> dict[Axis, tuple[Difference, ...]]:
        """All differences, grouped; axes on which nothing differs are left out."""
        groups = {axis: tuple(one for one in self.differences if one.axis == axis) for axis in AXES}
        return {axis: found for axis, found in groups.items() if found}


def compare_contracts(a: Comparable, b: Comparable) -> Comparability:
    """What may be said about `a` and `b`. The same for `b` and `a`, with the sides of each difference exchanged.

    Never `verdict`, `matched_ab` or `side_by_side` when the stack keys differ, and never `verdict` when the config keys
    do. The opposite does not hold: equal keys of models that are unnamed, but differ in shape, are a contrast.
    """
    members = marked([*_stack(a, b), *differing(CONFIG_FIELDS, a.contract, b.contract)])
    stack = tuple(one for one in members if one.role == "stack" and not one.follows)
    knobs = tuple(one for one in members if one.role == "config" and not one.follows)
    nobody_states = _nobody_states(a.contract, b.contract)
    return Comparability(
        kind=_kind(stack, knobs),
        stack=stack,
        knobs=knobs,
        following=tuple(one for one in members if one.follows),
        beside=(*differing_beside(a.contract, b.contract), *differing_commit(a.commit, b.commit)),
        unknown=_to_supply(members, nobody_states),
        provisional=bool(nobody_states) or not all(one.is_certain for one in members),
        one_is_benchmark_only=(a.semantic_class == "benchmark_only") != (b.semantic_class == "benchmark_only"),
    )


def _stack(a: Comparable, b: Comparable) -> list[Difference]:
    """Members of the stack key that differ. A model whose shape differs is another one, whatever its name is."""
    stack = [*differing_project(a.project, b.project), *differing(STACK_FIELDS, a.contract, b.contract)]
    if any(one.field == "model" and one.is_certain for one in stack):
        return stack
    shapes = list(differing_shape(a.contract, b.contract))
    return [*(one for one in stack if not (shapes and one.field == "model")), *shapes]


def _kind(stack: Sequence[Difference], knobs: Sequence[Difference]) -> Kind:
    if len(stack) == 1 and stack[0].is_certain:
        return "contrast"
    if stack:
        return "incomparable"
    if len(knobs) == 1 and knobs[0].is_certain:
        return "matched_ab"
    return "side_by_side" if knobs else "verdict"


def _nobody_states(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> list[str]:
    """Members that are unknown on both sides. The environment aside, which hardly any log shows."""
    names = (*STACK_FIELDS, *CONFIG_FIELDS)
    return [name for name in names if name not in a and name not in b and not name.startswith(PREFIX)]


def _to_supply(members: Iterable[Difference], nobody_states: Iterable[str]) -> tuple[str, ...]:
    """In the registry's order, members of the stack first."""
    missing = {one.to_supply for one in members} | set(nobody_states)
    names = dict.fromkeys(supplied_as(field) for field in (*STACK_FIELDS, *CONFIG_FIELDS))
    return tuple(name for name in names if name in missing)


# --- What may have caused a difference between a run and its baseline, the likeliest first, each with its reason.
#
# Knobs come first, because somebody turned them; then what the container holds; then the code; then the place.


@dataclass(frozen=True, slots=True)
class Suspect:
    """`field` is a contract field, `commit`, or empty for what no field tells; `difference` then is None."""

    axis: Axis
    field: str
    reason: str
    difference: Difference | None = None


def suspects(run: RunFacts, baseline: Sequence[RunFacts], comparability: Comparability) -> tuple[Suspect, ...]:
    """Suspects for `run` against `baseline` (oldest first, at least one run); `comparability` with the newest of it."""
    found = [
        *_members(comparability.stack),
        *_members(comparability.knobs),
        *(_beside(one) for one in comparability.beside if one.axis == "container"),
        *(_beside(one) for one in comparability.beside if one.axis == "code"),
        *_unstated_commits(run, baseline[-1]),
        *(_beside(one) for one in comparability.beside if one.axis == "place"),
    ]
    return tuple(found) or (Suspect("place", "", _NOTHING_DIFFERS),)


_NOTHING_DIFFERS = "Nothing that is known differs, the commit included: suspect the nodes, or chance, and run it again."


def _members(differences: Sequence[Difference]) -> Iterator[Suspect]:
    certain = sum(one.is_certain for one in differences)
    for one in sorted(differences, key=lambda one: not one.is_certain):
        if not one.is_certain:
            side = "baseline" if one.a is None else "run"
            reason = f"Nobody states it for the {side}, so it may have changed."
        elif certain == 1:
            reason = "The only field of the contract that is known to differ."
        else:
            reason = f"One of {certain} fields of the contract that differ."
        yield Suspect(one.axis, one.field, reason, one)


def _beside(one: Difference) -> Suspect:
    reasons = {
        "container_digest": "The container has the same name and another content.",
        "commit": "All code between the two commits.",
        "driver": "Another driver on the nodes.",
    }
    fallback = "All code between the two commits." if one.axis == "code" else "Another version in the container."
    return Suspect(one.axis, one.field, reasons.get(one.field, fallback), one)


def _unstated_commits(run: RunFacts, newest: RunFacts) -> Iterator[Suspect]:
    if not (run.commit and newest.commit):
        side = "either run" if not run.commit and not newest.commit else "the baseline" if run.commit else "this run"
        yield Suspect("code", "commit", f"Nobody states the commit of {side}, so the code may have changed.")
