"""Find what differs between two contracts, and decide from it how their runs may be compared (`docs/verdicts.md`)."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, PREFIX, STACK_FIELDS, Role
from app.domain.contract.values import OUTLINE, same_value, shown
from app.domain.numbers import plural
from app.domain.run import Stated
from app.domain.verdict.record import RunFacts

# --- Differences, field by field, each on an axis. Compared are the members of the
# keys; versions, driver and commit, because they are suspects; and the model's shape, which identifies the model
# where its name does not.

Axis = Literal["workload", "container", "recipe", "code", "place"]
AXES: tuple[Axis, ...] = ("workload", "container", "recipe", "code", "place")
"""`workload` is what was trained. Differences there are not attributed, because such runs are different tasks."""

PROJECT = "project"
COMMIT = "commit"
JOB = "job"
ENVIRONMENT = "env"
"""Name under which all environment variables are supplied together."""

_AXIS_OF_GROUP: Mapping[str, Axis] = {
    "Workload": "workload",
    "Model shape": "workload",
    "Hardware": "place",
    "Software": "container",
}
_AXIS: Mapping[str, Axis] = {
    PROJECT: "workload",
    COMMIT: "code",
    JOB: "workload",
    "bridge_commit": "code",
    "mcore_commit": "code",
    "gbs": "recipe",
    "mbs": "recipe",
}
_AXIS_OF: Mapping[str, Axis] = {
    **{name: _AXIS_OF_GROUP.get(field.group, "recipe") for name, field in FIELDS.items()},
    **_AXIS,
}
_OUTSIDE_KEYS = (
    *(name for name, field in FIELDS.items() if field.group == "Software" and field.role == "info"),
    "driver",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs, or may differ: a side is None where it is not stated.

    `follows`: the field that causes this difference; empty when it follows no other field.
    """

    field: str
    role: Role
    axis: Axis
    a: Stated | None
    b: Stated | None
    follows: str = ""

    @property
    def is_certain(self) -> bool:
        """Return whether both sides are stated; otherwise the two may be equal."""
        return self.a is not None and self.b is not None

    @property
    def to_supply(self) -> str:
        """Name of the field to state to make it certain; empty when it is."""
        return "" if self.is_certain else supplied_as(self.field)

    def turned(self) -> "Difference":
        """Exchange the sides."""
        return replace(self, a=self.b, b=self.a)


def axis_of(field: str) -> Axis:
    """Return the axis of a contract field, of `project`, `job` or `commit`; knobs belong to the recipe."""
    return _AXIS_OF[field]


def supplied_as(field: str) -> str:
    """Return the name under which a field is supplied: `env` for all environment variables."""
    return ENVIRONMENT if field.startswith(PREFIX) else field


def differing(names: Iterable[str], a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """Yield fields of `names` that differ or are stated on one side only."""
    for name in names:
        left, right = a.get(name), b.get(name)
        if left is None and right is None:
            continue
        # Equal values are the same fact; `same_value`, which is slower, finds the same fact in other values.
        if (
            left is None
            or right is None
            or (left.value != right.value and not same_value(name, left.value, right.value))
        ):
            yield Difference(name, FIELDS[name].role, axis_of(name), left, right)


def differing_project(a: str, b: str) -> Iterator[Difference]:
    """Yield the project when the names differ, ignoring case."""
    if a.casefold() != b.casefold():
        yield Difference(PROJECT, "stack", axis_of(PROJECT), Stated(a, "metadata"), Stated(b, "metadata"))


def differing_shape(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """Yield `model` if both shapes are known and differ, regardless of their names."""
    names = [name for name in OUTLINE if name in a and name in b and not same_value(name, a[name].value, b[name].value)]
    if names:
        yield Difference("model", "stack", axis_of("model"), _shape(names, a), _shape(names, b))


def _shape(names: Iterable[str], contract: Mapping[str, Stated]) -> Stated:
    return Stated(tuple(f"{name} {shown(contract[name].value)}" for name in names), "derived", "the model's shape")


def differing_outside_keys(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> Iterator[Difference]:
    """Return versions, digest and driver that are stated on both sides and differ; no key holds them."""
    return (difference for difference in differing(_OUTSIDE_KEYS, a, b) if difference.is_certain)


def differing_commit(a: str, b: str) -> Iterator[Difference]:
    """Yield the commit when both sides state it and neither is the short form of the other."""
    if a and b and not (a.startswith(b) or b.startswith(a)):
        yield Difference(COMMIT, "info", "code", Stated(a, "metadata"), Stated(b, "metadata"))


def differing_job(a: str, b: str) -> Iterator[Difference]:
    """Yield the job when both sides state it and the names differ."""
    if a and b and a != b:
        yield Difference(JOB, "info", axis_of(JOB), Stated(a, "metadata"), Stated(b, "metadata"))


# --- Knobs that differ only because another one does: an A/B of dispatchers is one knob, although one side has no SM
# count. The fields are those that `unused_knobs` unsets when their switch disables them.

_FOLLOWERS: Mapping[str, tuple[str, ...]] = {
    "dispatcher": ("dispatch_sms", "hybridep_preproc_sms", "hybridep_permute_fused"),
    "tp": ("sp", "tp_overlap", "etp"),
    "cp": ("cp_comm", "hcp_sizes"),
    "pp": ("vpp", "pp_layout", "pp_account", "pp_overlap"),
    "recompute_granularity": ("recompute_modules", "recompute_method", "recompute_layers"),
    "graph_impl": ("graph_modules", "graph_warmup"),
    "precision": ("param_gather_lp",),
    "opt_offload": ("opt_offload_fraction",),
    "act_offload": ("act_offload_layers",),
    "manual_gc": ("manual_gc_interval",),
}
FOLLOWS = {follower: switch for switch, followers in _FOLLOWERS.items() for follower in followers}
"""Field -> the field that it follows."""


def marked(differences: Sequence[Difference]) -> list[Difference]:
    """Set `follows` of each difference that another one in the list explains."""
    certain = {difference.field for difference in differences if difference.is_certain}
    return [
        replace(difference, follows=FOLLOWS[difference.field])
        if FOLLOWS.get(difference.field) in certain and _is_without_choice(difference)
        else difference
        for difference in differences
    ]


def _is_without_choice(difference: Difference) -> bool:
    """Return whether it has no effect on one side, or is derived from the other field on both (`etp` from `tp`)."""
    stated = [side for side in (difference.a, difference.b) if side is not None]
    return any(side.value is None for side in stated) or all(side.source == "derived" for side in stated)


# --- How two runs may be compared.

OTHER_TASK = ("gbs", "mbs", "gpus", "gpu")
"""Fields outside the workload that change the work of a step or its hardware."""

TASK_FIELDS = tuple(name for name in STACK_FIELDS if axis_of(name) == "workload" or name in OTHER_TASK)
"""Members of the stack key that make a different task."""

Kind = Literal["verdict", "matched_ab", "side_by_side", "contrast", "incomparable"]


class Comparable(Protocol):
    """The attributes of a run that matching reads."""

    @property
    def project(self) -> str: ...
    @property
    def contract(self) -> Mapping[str, Stated]: ...
    @property
    def commit(self) -> str: ...
    @property
    def semantic_class(self) -> str: ...
    @property
    def job(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Comparability:
    """What a comparison of two runs, a and b, can show.

    verdict        same config key: the difference is code, environment or noise
    matched_ab     same stack key and exactly one knob differs: evidence about that knob
    side_by_side   same stack key and several knobs differ, or one may: not attributed to any of them
    contrast       stack keys differ in exactly one field: attributed to it when no knob differs; never a verdict
    incomparable   more differs, or may differ

    `stack`, `knobs`: members of the keys that differ or are stated on one side only. `following`: members that differ
    only because one of those does, such as the SM count of another dispatcher; they count as part of it. `beside`:
    versions, driver, commit and job that differ but belong to no key. `unknown`: fields to state, `env` for all
    environment variables. `provisional`: at least one member is not stated on both sides, so it may differ; or
    versions, digest, driver or commit of a matched A/B are known to differ.
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
        """Return the one field that the contracts attribute the difference to; None without one."""
        if self.two_jobs:
            return None
        if self.kind == "matched_ab":
            return self.knobs[0].field
        return self.stack[0].field if self.kind == "contrast" and not self.knobs else None

    @property
    def two_jobs(self) -> bool:
        """Return whether both sides state their job, and the jobs differ."""
        return any(difference.field == JOB for difference in self.beside)

    @property
    def is_clean(self) -> bool:
        """Return whether one cause can explain a difference: the same job, and nothing or a single field differs.

        A different workload or batch size is a different task, regardless of its step time.
        """
        if self.two_jobs:
            return False
        if self.kind == "verdict":
            return True
        members = self.knobs if self.kind == "matched_ab" else self.stack
        return self.attributed_to is not None and not is_other_task(members[0])

    @property
    def other_software(self) -> tuple[Difference, ...]:
        """Versions, digest and driver that both sides state and that differ; a knob is not all that changed then."""
        return tuple(difference for difference in self.beside if difference.axis in ("container", "place"))

    @property
    def other_code(self) -> tuple[Difference, ...]:
        """Commits that differ; the code may then explain any measured difference."""
        return tuple(difference for difference in self.beside if difference.axis == "code")

    @property
    def differences(self) -> tuple[Difference, ...]:
        return (*self.stack, *self.knobs, *self.following, *self.beside)

    def by_axis(self) -> dict[Axis, tuple[Difference, ...]]:
        """Group all differences by axis, without the axes on which nothing differs."""
        groups = {
            axis: tuple(difference for difference in self.differences if difference.axis == axis) for axis in AXES
        }
        return {axis: group for axis, group in groups.items() if group}


def is_other_task(difference: Difference) -> bool:
    """Return whether the two sides do different work, or do it on different hardware."""
    return difference.axis == "workload" or difference.field in OTHER_TASK


def compare_contracts(a: Comparable, b: Comparable) -> Comparability:
    """Compare the contracts of `a` and `b`. Symmetric, with the sides of each difference exchanged.

    The kind is never `verdict`, `matched_ab` or `side_by_side` when the stack keys differ, and never `verdict` when the
    config keys differ. Equal keys do not imply `verdict`: unnamed models of different shape make a contrast.
    """
    members = marked([*_stack(a, b), *differing(CONFIG_FIELDS, a.contract, b.contract)])
    stack = tuple(member for member in members if member.role == "stack" and not member.follows)
    knobs = tuple(member for member in members if member.role == "config" and not member.follows)
    unstated = _FROM_LOGS.difference(a.contract, b.contract)
    kind = _kind(stack, knobs)
    beside = (
        *differing_outside_keys(a.contract, b.contract),
        *differing_commit(a.commit, b.commit),
        *differing_job(a.job, b.job),
    )
    mixed = kind == "matched_ab" and any(difference.axis in ("container", "place", "code") for difference in beside)
    return Comparability(
        kind=kind,
        stack=stack,
        knobs=knobs,
        following=tuple(member for member in members if member.follows),
        beside=beside,
        unknown=_to_supply(members, unstated),
        provisional=bool(unstated) or mixed or not all(member.is_certain for member in members),
        one_is_benchmark_only=(a.semantic_class == "benchmark_only") != (b.semantic_class == "benchmark_only"),
    )


def differing_stack(a: Comparable, b: Comparable) -> tuple[Difference, ...]:
    """Return the `stack` of a comparison; most runs of a project differ there, and their knobs need no comparison.

    No member of the stack key follows a knob (`_FOLLOWERS`).
    """
    return tuple(member for member in marked(_stack(a, b)) if not member.follows)


def _stack(a: Comparable, b: Comparable) -> list[Difference]:
    """Return differing members of the stack key. Models of different shape differ, regardless of their names."""
    stack = [*differing_project(a.project, b.project), *differing(STACK_FIELDS, a.contract, b.contract)]
    if any(difference.field == "model" and difference.is_certain for difference in stack):
        return stack
    shapes = list(differing_shape(a.contract, b.contract))
    return [*(difference for difference in stack if not (shapes and difference.field == "model")), *shapes]


def _kind(stack: Sequence[Difference], knobs: Sequence[Difference]) -> Kind:
    if len(stack) == 1 and stack[0].is_certain:
        return "contrast"
    if stack:
        return "incomparable"
    if len(knobs) == 1 and knobs[0].is_certain:
        return "matched_ab"
    return "side_by_side" if knobs else "verdict"


IDENTITY = ("model", "gpu")
"""Fields without which a difference from another run means nothing."""
_SUPPLIED: Mapping[str, int] = {
    name: place
    for place, name in enumerate(dict.fromkeys((*IDENTITY, *map(supplied_as, (*STACK_FIELDS, *CONFIG_FIELDS)))))
}
"""Name under which members of the keys are supplied -> its place: identity, then stack members, as registered."""
_FROM_LOGS = frozenset(_SUPPLIED) - {ENVIRONMENT}
"""Members without environment variables, which few logs show."""


def _to_supply(members: Iterable[Difference], unstated: Collection[str]) -> tuple[str, ...]:
    """Return the fields to state: those that a headline names first, then stack members."""
    missing = {member.to_supply for member in members}.union(unstated)
    return tuple(sorted(missing & _SUPPLIED.keys(), key=_SUPPLIED.__getitem__))


# --- Suspects: what may have caused a difference between a run and its baseline, likeliest first.
#
# Knobs come first, because they were changed on purpose; then the container, the code and the place.


@dataclass(frozen=True, slots=True)
class Suspect:
    """A possible cause. `field`: a contract field or `commit`; empty, without `difference`, when no field differs."""

    axis: Axis
    field: str
    reason: str
    difference: Difference | None = None


def suspects(run: RunFacts, baseline: Sequence[RunFacts], comparability: Comparability) -> tuple[Suspect, ...]:
    """List suspects for `run` against `baseline` (oldest first, not empty); `comparability` with its newest run."""
    candidates = [
        *_members(comparability),
        *(_beside(difference) for difference in comparability.beside if difference.axis == "container"),
        *(_beside(difference) for difference in comparability.beside if difference.axis == "code"),
        *_unstated_commits(run, baseline[-1]),
        *(_beside(difference) for difference in comparability.beside if difference.axis == "place"),
    ]
    return tuple(candidates) or (Suspect("place", "", _NOTHING_DIFFERS),)


ALL_CHANGES = "All changes between the two commits."
_NOTHING_DIFFERS = "No known difference, not even the commit: suspect the nodes or chance, and rerun the job."


def _members(comparability: Comparability) -> Iterator[Suspect]:
    stack, knobs = comparability.stack, comparability.knobs
    certain = sum(difference.is_certain for difference in (*stack, *knobs))
    for differences in (stack, knobs):
        for difference in sorted(differences, key=lambda difference: not difference.is_certain):
            if difference.is_certain:
                reason = suspect_reason(certain, comparability)
            else:
                side = "baseline" if difference.a is None else "run"
                reason = f"Not stated for the {side}, so it may have changed."
            yield Suspect(difference.axis, difference.field, reason, difference)


def suspect_reason(fields: int, comparability: Comparability) -> str:
    """Return why a contract field that is known to differ is a suspect. `fields`: how many are known to differ."""
    dependent = len(comparability.following)
    if fields > 1:
        reason = f"One of {fields} contract fields that differ"
    elif dependent:
        reason = f"Only this field and {plural(dependent, 'dependent setting')} are known to differ"
    else:
        reason = "The only contract field known to differ"
    return f"{reason}; the code differs as well." if comparability.other_code else f"{reason}."


def _beside(difference: Difference) -> Suspect:
    reasons = {
        "container_digest": "Same container name, different content.",
        "commit": ALL_CHANGES,
        "driver": "Different driver on the nodes.",
    }
    fallback = ALL_CHANGES if difference.axis == "code" else "Different version in the container."
    return Suspect(difference.axis, difference.field, reasons.get(difference.field, fallback), difference)


def _unstated_commits(run: RunFacts, newest: RunFacts) -> Iterator[Suspect]:
    if not (run.commit and newest.commit):
        states = "This run does not state"
        if not newest.commit:
            states = "The baseline does not state" if run.commit else "Neither run states"
        yield Suspect("code", "commit", f"{states} its commit, so the code may have changed.")
