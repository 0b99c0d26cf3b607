"""Runs in, standings out: a pure function of the runs and the family's prior, whatever order they arrive in."""

from collections.abc import Iterable, Mapping, Sequence

from app.domain.definitions import DEFINITION_VERSION
from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.ranking.board import board
from app.domain.ranking.eligibility import MEASURED, Refusal, fallbacks, other_shapes, refusal
from app.domain.ranking.pooling import Pools
from app.domain.ranking.ranked_run import LEVELS, RankedRun
from app.domain.ranking.result_level import Contracts
from app.domain.ranking.standings import Board, Glimpse, MissingDispatcher, StackStandings

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
    definition_version: int = DEFINITION_VERSION,
) -> StackStandings:
    """The standings of one stack from all of its processed runs, at least one.

    `contracts`: one for each config key, by which matched A/Bs are recognised. Raises ValueError for runs of several
    stack keys: nothing may ever rank those together.
    """
    ordered = sorted({run.name: run for run in runs}.values(), key=lambda run: run.place_in_time)
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
        boards=tuple(_boards(ordered, refused, missing, prior, contracts or {})),
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


def _refused(ordered: Sequence[RankedRun], definition_version: int) -> dict[str, Refusal]:
    refused = {run.name: why for run in ordered if (why := refusal(run, definition_version))}
    shapes = other_shapes([run for run in ordered if run.name not in refused])
    return refused | {one.run: one for one in shapes}


def _missing(ordered: Sequence[RankedRun]) -> tuple[MissingDispatcher, ...]:
    """Dispatchers that the stack's container does not have, unless one of its runs shows that it ran."""
    runs: dict[str, list[str]] = {}
    for run in reversed(ordered):
        for name in run.missing:
            runs.setdefault(name, []).append(run.name)
    ran = {run.active for run in ordered}
    return tuple(MissingDispatcher(name, tuple(runs[name])[:MOST_NAMED]) for name in sorted(runs) if name not in ran)


def _boards(
    ordered: Sequence[RankedRun],
    refused: dict[str, Refusal],
    missing: Sequence[MissingDispatcher],
    prior: Priors,
    contracts: Contracts,
) -> Iterable[Board]:
    for wanted in sorted({class_of(run) for run in ordered}):
        mine = [run for run in ordered if class_of(run) == wanted and run.name not in refused]
        seen = [refused[run.name] for run in ordered if class_of(run) == wanted and run.name in refused]
        glimpses = _glimpses(seen)
        pools = Pools(prior if isinstance(prior, Prior) else prior.get(wanted[1], DEFAULT_PRIOR))
        for floor in LEVELS:
            made = board(mine, glimpses, missing, wanted, floor=floor, pools=pools, contracts=contracts)
            if made is not None:
                yield made


def _glimpses(refused: Sequence[Refusal]) -> tuple[Glimpse, ...]:
    """The newest of each dispatcher."""
    newest: dict[str, Glimpse] = {}
    for one in refused:
        if one.why in MEASURED and one.dispatcher and one.step_time_ms is not None:
            newest[one.dispatcher] = Glimpse(one.dispatcher, one.run, one.step_time_ms, one.sentence)
    return tuple(newest[name] for name in sorted(newest))
