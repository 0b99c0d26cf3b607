"""Runs for the tables: eligible, steady and of one stack unless a test says otherwise."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from app.domain.definitions import DEFINITION_VERSION
from app.domain.ranking.across import ClassSummary, board_results, summaries
from app.domain.ranking.rank import Priors, rank_stack
from app.domain.ranking.runs import RankedRun
from app.domain.ranking.standings import StackStandings
from app.domain.verdict.record import RunFacts
from app.domain.verdict.step_time import DEFAULT_PRIOR, RunEstimate

GIB = 2.0**30
START = datetime(2026, 8, 1, tzinfo=UTC)


def make_run(
    name: str = "1",
    dispatcher: str | None = "alltoall",
    step_time_ms: float = 400.0,
    *,
    stack: str = "stack",
    config: str | None = None,
    semantic_class: str = "training_equivalent",
    outcome: str = "completed",
    quarantined: str = "",
    window: int = 50,
    is_steady: bool = True,
    short: bool = False,
    memory_gib: float | None = 60.0,
    definition_version: int = DEFINITION_VERSION,
    hour: float = 0,
    requested: str | None = "as active",
    evidence_level: str = "validated",
    routing_mode: str = "dropless",
    shape: tuple[str, ...] = (),
    not_finite: int = 0,
    fair: bool = True,
    se: float = 0.001,
    **other: object,
) -> RankedRun:
    """`dispatcher` is the active one, None if the log shows none; `requested` defaults to the same."""
    estimate = RunEstimate(
        run=name,
        log_step_time=math.log(step_time_ms) if step_time_ms > 0 else math.nan,
        se=se,
        window_length=window,
        is_steady=is_steady,
        short=short,
        peak_memory_bytes=None if memory_gib is None else memory_gib * GIB,
        not_finite_iterations=not_finite,
    )
    facts = RunFacts(
        run=name,
        purpose="ci",
        branch="main",
        commit="",
        stack_key=stack,
        config_key=config or f"{stack} {dispatcher}",
        semantic_class=semantic_class,
        outcome=outcome,
        estimate=estimate,
        definition_version=definition_version,
        shape=shape,
        quarantined=quarantined,
        fair_for_timing=fair,
    )
    fields: dict[str, object] = {
        "hardware": "H100",
        "family": "qwen3-30b-a3b",
        "precision": "bf16",
        "ep": 16,
        "gpus": 16,
        "tokens_per_s_per_gpu": 1024 * 4096 * 1000 / 16 / step_time_ms if step_time_ms > 0 else None,
        **other,
    }
    return RankedRun(
        facts=facts,
        ordered_at=START + timedelta(hours=hour),
        requested=dispatcher if requested == "as active" else requested,
        active=dispatcher,
        evidence_level=evidence_level,
        routing_mode=routing_mode,
        **fields,
    )


def make_runs(dispatcher: str, step_times_ms: Sequence[float], **other: object) -> list[RankedRun]:
    """Runs of one configuration, an hour apart."""
    return [make_run(f"{dispatcher}-{i}", dispatcher, ms, hour=i, **other) for i, ms in enumerate(step_times_ms)]


def rank_runs(runs: Iterable[RankedRun], prior: Priors = DEFAULT_PRIOR) -> dict[str, StackStandings]:
    """Rank each stack of the runs."""
    stacks: dict[str, list[RankedRun]] = {}
    for run in runs:
        stacks.setdefault(run.facts.stack_key, []).append(run)
    return {key: rank_stack(stacks[key], prior) for key in sorted(stacks)}


def across(standings: Iterable[StackStandings]) -> tuple[ClassSummary, ...]:
    """Return the summaries of stacks at the lowest evidence level."""
    return summaries(board_results(stack, board) for stack in standings for board in stack.boards_at("screen"))
