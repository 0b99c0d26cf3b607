"""Sentences about positions, ties and gains of a leaderboard."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from app.domain.numbers import TimeUnit, gain_change, level_text, plural, step_time, time_unit_of
from app.domain.ranking.pairwise import PairwiseComparison
from app.domain.ranking.runs import Why
from app.domain.ranking.standings import Board, BoardSegment, within, would_decide
from app.domain.run import evidence_label
from app.domain.verdict.step_time import IMPROVEMENT_P, two_sided_pct

EVIDENCE = {
    "smoke": "Fewer than six iterations after warm-up: a first impression only.",
    "screen": "At least six iterations after warm-up: enough to reject a candidate.",
    "matched_ab": "One side of a matched A/B: two results that differ only in the dispatcher, both long enough.",
    "validated": "Healthy, steady runs of 50 steps: at least half of the runs of a result.",
}
LABELS = {level: evidence_label(level) for level in EVIDENCE} | {"from_prior": "estimated interval"}
"""Labels that differ from the name with spaces."""
SEMANTIC_CLASSES = {
    "training_equivalent": "Equivalent to real training: real data, real routing, all checks on.",
    "benchmark_only": "Forced routing, synthetic data or checks off: not comparable with real training.",
    "unknown": "Routing mode or data source unknown, so counted in neither class.",
}
READINGS = {
    "leader": "One dispatcher is faster than all others, beyond launch-to-launch variation.",
    "contested": "One dispatcher leads by all runs, but the A/B of the first two did not find it faster.",
    "tie": "No dispatcher is significantly faster than all others. Ties are not transitive: each dispatcher shows the "
    "range of possible positions.",
    "directional": "A leading result is based on runs too short to show a warm-up. Confirm with a full run.",
    "not_compared": "One dispatcher was measured only before or after a speed change, not with the others.",
    "only_measurement": "Only one dispatcher was measured, so there is no ranking.",
    "nothing_ranked": "Several dispatchers appear, but none in a rankable run.",
}
LEFT_OUT: dict[Why, str] = {
    "quarantined": "quarantined",
    "import_failed": "not available",
    "ended_badly": "failed",
    "not_finite": "loss not finite",
    "slowed_by_timers": "slowed by timers",
    "other_definitions": "computed with older definitions",
    "dispatcher_unknown": "dispatcher unknown",
    "not_active": "requested, not active",
    "too_short": "too short",
    "not_steady": "not steady",
    "other_shape": "of another shape",
    "below_level": "below the evidence level",
}
EP_SIZES = {"small": "small (up to 8)", "medium": "medium", "large": "large (from 32)", "unknown": "unknown"}
INFERRED = "The log does not name the active dispatcher, but iterations ran, and the trainer does not start without it."
WORSE_LOSS = "Significantly worse loss over common iterations. A faster run with worse loss is not an improvement."
GAIN_LEVEL = level_text(two_sided_pct(IMPROVEMENT_P))
"""Of the interval of a gain, which excludes zero where one dispatcher is ranked before another."""
FROM_PRIOR = "One run shows no launch-to-launch variation. The interval is estimated from the model family."
UNPROVEN = "No log shows the active dispatcher. It needs no package, and nothing else runs under its name."


def meanings_of(boards: Sequence[Board]) -> dict[str, str]:
    """Return the meanings of the badges shown on these boards, by name."""
    entries = [entry for board in boards for entry in board.entries]
    shown = {board.reading for board in boards} | {board.semantic_class for board in boards}
    shown |= {"directional"} if any(entry.directional for entry in entries) else set()
    shown |= {"not_compared"} if any(board.outside for board in boards) else set()
    meanings = {
        name: text
        for group in (READINGS, EVIDENCE, SEMANTIC_CLASSES)
        for name, text in group.items()
        if name in shown or group is EVIDENCE
    }
    marks = {
        "unproven": (UNPROVEN, any(entry.unproven for entry in entries)),
        "inferred": (INFERRED, any(entry.inferred for entry in entries)),
        "worse_loss": (WORSE_LOSS, any(entry.worse_loss_than for entry in entries)),
        "from_prior": (FROM_PRIOR, any(entry.from_prior for entry in entries)),
    }
    return meanings | {name: text for name, (text, is_shown) in marks.items() if is_shown}


def label(name: str) -> str:
    """Return the label of an evidence level or class: `matched A/B`, `benchmark only`."""
    return LABELS.get(name, name.replace("_", " "))


def routing_words(routing_mode: str) -> str:
    return routing_mode.replace("-", " ").replace("_", " ") or "routing unknown"


def stretch_sentence(stretch: BoardSegment) -> str:
    """Return which code a board is based on; empty when it is the newest code."""
    if not stretch.changes_since:
        return ""
    changed = f", first on {day_text(stretch.changed_at)}" if stretch.changed_at else ""
    times = "once" if stretch.changes_since == 1 else f"{stretch.changes_since} times"
    runs = plural(stretch.runs, "run")
    return (
        f"Based on {runs} at the same code speed, {day_text(stretch.first_at)} to {day_text(stretch.last_at)}. "
        f"The speed changed {times} since{changed}; newer runs lack some dispatchers."
    )


def tie_sentence(comparison: PairwiseComparison, interval: str = "") -> str:
    """Return why the first dispatcher ties with the second."""
    if comparison.outcome == "equal":
        return f"is as fast as {comparison.second}, {within(comparison)}"
    if comparison.worse_loss:
        return f"is not ordered relative to {comparison.second}{interval}: {comparison.tie_because}"
    decide = f"; {would_decide(comparison.more_runs)}" if comparison.more_runs else ""
    because = f": {comparison.tie_because}" if comparison.tie_because else ""
    return f"is not significantly different from {comparison.second}{interval}{because}{decide}"


def comparison_sentence(comparison: PairwiseComparison) -> str:
    """Return one pairwise comparison, from the winner's side."""
    seen = comparison.turned() if comparison.outcome == "second" else comparison
    short = ". Direction only: one side is too short." if seen.directional else "."
    change = gain_change(seen.gain_pct, seen.low_pct, seen.high_pct)
    interval = f" ({change.interval})" if change.interval else ""
    if seen.tie:
        return f"{seen.first} {tie_sentence(seen, interval)}{short}"
    return f"{seen.first} is {change.than} {seen.second}{interval}{short}"


def ties_of(dispatcher: str, comparisons: Sequence[PairwiseComparison]) -> tuple[str, ...]:
    """Return why this dispatcher ties with each other one."""
    own = (
        comparison if comparison.first == dispatcher else comparison.turned()
        for comparison in comparisons
        if dispatcher in (comparison.first, comparison.second)
    )
    return tuple(tie_sentence(comparison) for comparison in own if comparison.tie)


def board_unit(milliseconds: Iterable[float]) -> TimeUnit:
    """Return the unit of step times on boards and matrices: seconds from 1,000 ms on."""
    return time_unit_of(milliseconds, seconds_from=1_000)


def board_time(milliseconds: float) -> str:
    return step_time(milliseconds, board_unit((milliseconds,)))


def day_text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d")
