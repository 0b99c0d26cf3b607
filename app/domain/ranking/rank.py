"""Runs in, standings out: a pure function of the runs and the family's prior, whatever order they arrive in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from app.domain.definitions import DEFINITION_VERSION
from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.ranking.board import Measured, board, empty_board
from app.domain.ranking.eligibility import MEASURED, Refusal, fallbacks, other_shapes, refusal
from app.domain.ranking.loss_guard import LossGuard, LossReader, no_losses
from app.domain.ranking.pooling import Pools
from app.domain.ranking.ranked_run import LEVELS, RankedRun
from app.domain.ranking.result_level import Contracts
from app.domain.ranking.standings import Board, Glimpse, MissingDispatcher, StackStandings
from app.domain.ranking.stretches import Stretches

MOST_NAMED = 50
"""Refused runs that standings name; a stack of a thousand failures is told by their number."""

Class = tuple[str, str]
"""Routing mode and semantic class."""

Priors = Prior | Mapping[str, Prior]
"""One for all runs, or one for each semantic class; the default for a class that is left out."""


def rank_stack(
    runs: Sequence[RankedRun],
    prior: Priors = DEFAULT_PRIOR,
    contracts: Contracts | None = None,
    *,
    losses: LossReader = no_losses,
    definition_version: int = DEFINITION_VERSION,
) -> StackStandings:
    """The standings of one stack from all of its processed runs, at least one.

    `contracts`: one for each config key, by which matched A/Bs are recognised. `losses` is asked for those of results
    that meet on a board. Raises ValueError for runs of several stack keys: nothing may ever rank those together.
    """
    ordered = _with_ep(sorted({run.name: run for run in runs}.values(), key=lambda run: run.place_in_time))
    keys = {run.facts.stack_key for run in ordered}
    if len(keys) != 1:
        raise ValueError(f"standings are of one stack key, these runs have {len(keys)}")
    refused = _refused(ordered, definition_version)
    eligible = [run for run in ordered if run.name not in refused]
    missing = _missing(ordered)
    newest = ordered[-1]
    return StackStandings(
        stack_key=newest.facts.stack_key,
        hardware=newest.hardware,
        family=newest.family,
        precision=newest.precision,
        boards=tuple(_boards(ordered, refused, missing, prior, contracts or {}, losses=losses)),
        missing=missing,
        refused=tuple([refused[run.name] for run in reversed(ordered) if run.name in refused][:MOST_NAMED]),
        refused_count=len(refused),
        fallbacks=fallbacks(reversed(eligible))[:MOST_NAMED],
        partial=any(one.why == "other_definitions" for one in refused.values()),
    )


def rank_runs(
    runs: Iterable[RankedRun],
    prior: Priors = DEFAULT_PRIOR,
    contracts: Contracts | None = None,
    *,
    definition_version: int = DEFINITION_VERSION,
) -> dict[str, StackStandings]:
    """Standings by stack key, of runs of any stacks."""
    stacks: dict[str, list[RankedRun]] = {}
    for run in runs:
        stacks.setdefault(run.facts.stack_key, []).append(run)
    return {
        key: rank_stack(stacks[key], prior, contracts, definition_version=definition_version) for key in sorted(stacks)
    }


def class_of(run: RankedRun) -> Class:
    """Runs of different classes never meet: forced and natural routing, and benchmarks and training."""
    return run.routing_mode, run.facts.semantic_class


def _with_ep(ordered: Sequence[RankedRun]) -> list[RankedRun]:
    """A run that failed early states no expert parallelism; where all that state one agree, it is that of the stack."""
    stated = {run.ep for run in ordered if run.ep is not None}
    if len(stated) != 1:
        return list(ordered)
    (ep,) = stated
    return [run if run.ep is not None else replace(run, ep=ep) for run in ordered]


def _refused(ordered: Sequence[RankedRun], definition_version: int) -> dict[str, Refusal]:
    refused = {run.name: why for run in ordered if (why := refusal(run, definition_version))}
    shapes = other_shapes([run for run in ordered if run.name not in refused])
    return refused | {one.run: one for one in shapes}


def _missing(ordered: Sequence[RankedRun]) -> tuple[MissingDispatcher, ...]:
    """Dispatchers that the stack's container does not have, unless one of its runs shows that it ran."""
    runs: dict[str, list[RankedRun]] = {}
    for run in reversed(ordered):
        for name in run.missing:
            runs.setdefault(name, []).append(run)
    ran = {run.active for run in ordered}
    return tuple(
        MissingDispatcher(name, tuple(run.name for run in runs[name][:MOST_NAMED]), runs[name][0].ep)
        for name in sorted(runs)
        if name not in ran
    )


def _boards(
    ordered: Sequence[RankedRun],
    refused: dict[str, Refusal],
    missing: Sequence[MissingDispatcher],
    prior: Priors,
    contracts: Contracts,
    *,
    losses: LossReader,
) -> Iterable[Board]:
    """At each floor one for each class that has something to show, at least one: a stack of failures is a stack."""
    made: list[Board] = []
    for wanted in sorted({class_of(run) for run in ordered}):
        mine = [run for run in ordered if class_of(run) == wanted and run.name not in refused]
        seen = [refused[run.name] for run in ordered if class_of(run) == wanted and run.name in refused]
        known = prior if isinstance(prior, Prior) else prior.get(wanted[1], DEFAULT_PRIOR)
        measured = Measured(*wanted, mine, Stretches(mine, known), Pools(known), contracts, LossGuard(losses))
        found = (board(measured, _glimpses(seen), missing, floor, seen) for floor in LEVELS)
        made += [one for one in found if one is not None]
    shown = {one.floor for one in made}
    newest = refused.get(ordered[-1].name)
    why = newest.sentence if newest else "below the evidence level asked for"
    made += [empty_board(*class_of(ordered[-1]), floor, why) for floor in LEVELS if floor not in shown]
    return sorted(made, key=lambda one: (one.routing_mode, one.semantic_class, LEVELS.index(one.floor)))


def _glimpses(refused: Sequence[Refusal]) -> tuple[Glimpse, ...]:
    """The newest of each dispatcher."""
    newest: dict[str, Glimpse] = {}
    for one in refused:
        if one.why in MEASURED and one.dispatcher and one.step_time_ms is not None:
            newest[one.dispatcher] = Glimpse(one.dispatcher, one.run, one.step_time_ms, one.sentence)
    return tuple(newest[name] for name in sorted(newest))
