"""Results that differ in one axis only: dispatchers at each EP degree, scopes of CUDA graphs.

Best against best shows what a team gets; equal knobs show the effect of the axis itself. Both compare runs of one
segment of the stack's history, so that a change of the code is never mistaken for a difference.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.numbers import gain_change
from app.domain.ranking.pairwise import (
    DISPATCHER_AXIS,
    PairwiseComparison,
    at_equal_knobs,
    best_first,
    compare_pair,
    knobs_without,
)
from app.domain.ranking.pools import merged, number_of
from app.domain.ranking.runs import DISPATCHERS
from app.domain.ranking.scaling import ScalingPool, ScalingRuns
from app.domain.ranking.standings import REFERENCE, Interval
from app.domain.verdict.comparability import FOLLOWS

# --- The results along one axis.


@dataclass(frozen=True, slots=True)
class Contender:
    """The result of one name on the axis, by the configuration that represents it (`best_first`).

    `all_runs`: runs of every configuration of that name. `compared`: it was measured in the segment that the others
    are compared in. `at_equal_knobs`, `best_against_best`: against the reference; None for the reference itself, and
    without such a pair. `equal`: the side of `at_equal_knobs` that is another configuration of this name, else of
    the reference.
    """

    name: str
    config_key: str
    runs: tuple[str, ...]
    all_runs: int
    step_time_ms: Interval
    directional: bool
    compared: bool
    at_equal_knobs: PairwiseComparison | None = None
    best_against_best: PairwiseComparison | None = None
    equal: "EqualSide | None" = None

    @property
    def equal_runs(self) -> tuple[str, ...]:
        """Return the runs of this name that `at_equal_knobs` compares."""
        return self.equal.runs if self.equal and self.equal.name == self.name else self.runs


@dataclass(frozen=True, slots=True)
class EqualSide:
    """A configuration that is compared at equal knobs and is not the best of `name`."""

    name: str
    config_key: str
    runs: tuple[str, ...]
    step_time_ms: Interval


def contenders(
    runs: Sequence[ScalingRuns], name_of: Callable[[ScalingRuns], str], axis: frozenset[str], order: Sequence[str]
) -> tuple[Contender, ...]:
    """Return a result per name, in `order`, whose first measured name is the reference.

    `runs`: of one stack, routing mode and semantic class, at least one. The segment with the most names is compared,
    the newest of several; a name that was not measured in it has a figure but no comparison.
    """
    pools = _by_segment(runs, name_of)
    here = max(pools, key=lambda number: (len(pools[number]), number))
    ranks = {name: place for place, name in enumerate(order)}
    names = sorted({name_of(item) for item in runs}, key=lambda name: (ranks.get(name, len(ranks)), name))
    reference = next(name for name in names if name in pools[here])
    against = pools[here][reference]
    rival = best_first(against)[0]
    cells = []
    for name in names:
        compared = name in pools[here]
        own = pools[here if compared else max(number for number in pools if name in pools[number])][name]
        best = best_first(own)[0]
        is_rival = compared and name != reference
        pair = _equal_knobs(own, against, axis) if is_rival else None
        cells.append(
            Contender(
                name=name,
                config_key=best.of.config_key,
                runs=best.runs,
                all_runs=sum(len(item.runs) for item in runs if name_of(item) == name),
                step_time_ms=_interval(best),
                directional=best.directional,
                compared=compared,
                at_equal_knobs=compare_pair(*pair, (name, reference)) if pair else None,
                best_against_best=compare_pair(best, rival, (name, reference)) if is_rival else None,
                equal=_other_side(pair, (best, rival), (name, reference)) if pair else None,
            )
        )
    return tuple(cells)


def _other_side(
    pair: tuple[ScalingPool, ScalingPool], best: tuple[ScalingPool, ScalingPool], names: tuple[str, str]
) -> EqualSide | None:
    """Return the first side of the pair that is not the best configuration of its name; None if both are."""
    sides = (
        EqualSide(name, side.of.config_key, side.runs, _interval(side))
        for side, first, name in zip(pair, best, names, strict=True)
        if side != first
    )
    return next(sides, None)


def _interval(pool: ScalingPool) -> Interval:
    return Interval.of_logarithms(pool.log_step_time, pool.half_width)


def _by_segment(
    runs: Sequence[ScalingRuns], name_of: Callable[[ScalingRuns], str]
) -> dict[int, dict[str, list[ScalingPool]]]:
    changes = merged(dated.change for dated in {change for item in runs for change in item.changes})
    pools: dict[int, dict[str, list[ScalingPool]]] = {}
    for item in runs:
        chosen: dict[int, list[int]] = {}
        for index in range(len(item.runs)):
            chosen.setdefault(number_of(item.position(index), changes), []).append(index)
        for number, indices in chosen.items():
            pools.setdefault(number, {}).setdefault(name_of(item), []).append(ScalingPool(item, indices))
    return pools


def _equal_knobs(
    own: Sequence[ScalingPool], against: Sequence[ScalingPool], axis: frozenset[str]
) -> tuple[ScalingPool, ScalingPool] | None:
    first, second = ([(knobs_without(axis, pool.of.known), pool) for pool in side] for side in (own, against))
    return at_equal_knobs(first, second)


# --- Dispatchers against EP degrees, for one stack and class of runs.

Why = Literal["not_run", "not_in_container"]


@dataclass(frozen=True, slots=True)
class EmptyCell:
    """A dispatcher without a result at an EP degree. `from_run`: the run to start from, the fastest one there."""

    dispatcher: str
    ep: int
    why: Why
    from_run: str

    @property
    def sentence(self) -> str:
        if self.why == "not_in_container":
            return f"{self.dispatcher} is not in the container"
        return f"Run {self.dispatcher} at EP{self.ep}"


@dataclass(frozen=True, slots=True)
class EpMatrix:
    """`columns`: by EP degree, the dispatchers that were measured there; `empty`: the cells without a result."""

    routing_mode: str
    semantic_class: str
    dispatchers: tuple[str, ...]
    columns: Mapping[int, tuple[Contender, ...]]
    empty: tuple[EmptyCell, ...]

    @property
    def is_single(self) -> bool:
        return sum(map(len, self.columns.values())) == 1

    @property
    def eps(self) -> tuple[int, ...]:
        return tuple(self.columns)

    def cell(self, dispatcher: str, ep: int) -> Contender | None:
        return next((item for item in self.columns[ep] if item.name == dispatcher), None)

    def gap(self, dispatcher: str, ep: int) -> EmptyCell | None:
        return next((cell for cell in self.empty if (cell.dispatcher, cell.ep) == (dispatcher, ep)), None)

    @property
    def sentence(self) -> str:
        """Return `EP8: deepep and alltoall equal; EP16: hybridep +17.7 % over alltoall`, at equal knobs."""
        parts = [f"EP{ep}: {text}" for ep, column in self.columns.items() if (text := _column_text(column))]
        return f"At equal knobs: {'; '.join(parts)}." if parts else "No two dispatchers ran at equal knobs yet."

    @property
    def best_sentence(self) -> str:
        parts = [
            f"EP{ep}: {text}"
            for ep, column in self.columns.items()
            if (text := _column_text(column, of=lambda item: item.best_against_best))
        ]
        return f"Best against best: {'; '.join(parts)}." if parts else ""


def ep_matrices(runs: Iterable[ScalingRuns], missing: Iterable[str]) -> tuple[EpMatrix, ...]:
    """Return a matrix per class of the runs of one stack. One with a single cell compares nothing (`is_single`).

    `missing`: dispatchers that its container lacks.
    """
    classes: dict[tuple[str, str], list[ScalingRuns]] = {}
    for item in runs:
        if item.dispatcher and isinstance(item.known.get("ep"), int):
            classes.setdefault((item.routing_mode, item.semantic_class), []).append(item)
    return tuple(_matrix(*wanted, own, frozenset(missing)) for wanted, own in sorted(classes.items()))


def _matrix(routing: str, semantic_class: str, runs: Sequence[ScalingRuns], missing: frozenset[str]) -> EpMatrix:
    by_ep: dict[int, list[ScalingRuns]] = {}
    for item in runs:
        by_ep.setdefault(int(str(item.known["ep"])), []).append(item)
    order = (REFERENCE, *(name for name in DISPATCHERS if name != REFERENCE))
    columns = {ep: contenders(by_ep[ep], lambda runs: runs.dispatcher, DISPATCHER_AXIS, order) for ep in sorted(by_ep)}
    # Every container has alltoall, so it is a row even where it never ran.
    measured = {item.dispatcher for item in runs} | {REFERENCE}
    rows = tuple(name for name in order if name in measured)
    empty = tuple(_empty(name, ep, column, missing) for name in rows for ep, column in columns.items() if
                  name not in {item.name for item in column})  # fmt: skip
    return EpMatrix(routing, semantic_class, rows, columns, empty)


def _empty(name: str, ep: int, column: Sequence[Contender], missing: frozenset[str]) -> EmptyCell:
    fastest = min(column, key=lambda item: (item.directional, item.step_time_ms.value))
    return EmptyCell(name, ep, "not_in_container" if name in missing else "not_run", fastest.runs[-1])


def _column_text(
    column: Sequence[Contender],
    of: Callable[[Contender], PairwiseComparison | None] = lambda item: item.at_equal_knobs,
) -> str:
    comparisons = [comparison for item in column if (comparison := of(item)) is not None]
    return ", ".join(comparison_text(comparison) for comparison in comparisons)


def comparison_text(comparison: PairwiseComparison) -> str:
    """Return `hybridep 15.1 % faster than alltoall`, `deepep and alltoall equal`, or `... undecided`."""
    if comparison.tie:
        return f"{comparison.first} and {comparison.second} {comparison.outcome}"
    return f"{comparison.first} {gain_change(comparison.gain_pct).than} {comparison.second}"


# --- Scopes of CUDA graphs.

GRAPH_AXIS = frozenset({"graph_impl"}) | {follower for follower, switch in FOLLOWS.items() if switch == "graph_impl"}
NO_GRAPHS = "none"
WHOLE_LAYER = "whole layers"


def graph_scope(implementation: object, modules: object) -> str:
    """Name a scope: `none`, `transformer_engine: attn, moe_router`, `full_iteration`; "" where it is unknown."""
    if implementation is None:
        return ""
    if implementation in (NO_GRAPHS, "full_iteration"):
        return str(implementation)
    if not isinstance(modules, tuple | list):
        return f"{implementation}: unknown scope"
    return f"{implementation}: {', '.join(sorted(map(str, modules))) or WHOLE_LAYER}"


def scope_of(runs: ScalingRuns) -> str:
    return graph_scope(runs.known.get("graph_impl"), runs.known.get("graph_modules"))


def graph_gains(runs: Iterable[ScalingRuns]) -> tuple[tuple[Contender, ...], ...]:
    """Return the scopes of each group of configurations that differ in nothing but the graphs, no graphs first.

    Scopes are part of the stack key, so `runs` belong to several stacks of one project.
    """
    groups: dict[object, list[ScalingRuns]] = {}
    for item in runs:
        if scope_of(item):
            knobs = knobs_without(GRAPH_AXIS, item.known)
            groups.setdefault((item.routing_mode, item.semantic_class, knobs), []).append(item)
    compared = (contenders(own, scope_of, GRAPH_AXIS, (NO_GRAPHS,)) for own in groups.values())
    return tuple(scopes for scopes in compared if scopes[0].name == NO_GRAPHS)
