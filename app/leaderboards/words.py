"""How places, ties and gains of a board are told: who is better than whom, and why two of them tie."""

from collections.abc import Sequence
from datetime import UTC, datetime

from app.domain.numbers import THIN, counted, grouped, percent
from app.domain.ranking.pairwise import Duel
from app.domain.ranking.runs import Why
from app.domain.ranking.standings import Board, Stretch, within
from app.domain.run import evidence_label

EVIDENCE = {
    "smoke": "It ran: fewer than six iterations after warm-up. Its speed is a first impression.",
    "screen": "Enough to reject a candidate: at least six iterations after warm-up.",
    "matched_ab": "One side of a matched A/B: two results that differ in the dispatcher alone, neither of them short.",
    "validated": "At least half of its runs are healthy and steady over 50 steps.",
}
LABELS = {level: evidence_label(level) for level in EVIDENCE} | {"from_prior": "the family’s prior"}
"""Of what is not called by its name with spaces."""
SEMANTIC_CLASSES = {
    "training_equivalent": "The work is that of real training: real data, real routing, all checks on.",
    "benchmark_only": "Forced routing, made-up data or checks off: its speed says nothing about real training.",
    "unknown": "Nobody says how tokens were routed or where they came from, so it counts with neither.",
}
READINGS = {
    "leader": "One dispatcher is clearly faster than every other one, beyond what launches of the same job vary.",
    "tie": "Nobody is clearly faster than all others. A tie does not pass on: each dispatcher has the range of places "
    "that the tests leave open.",
    "directional": "A result at the head rests on runs that are too short to tell whether they were warm. A full run "
    "must confirm it.",
    "not_compared": "One of them was measured only before or after a change of the stack's speed, never beside the "
    "others.",
    "only_measurement": "A single dispatcher was measured. This is not a ranking, however many others failed to start.",
    "nothing_ranked": "Several dispatchers were seen, none of them in a run that may be ranked.",
}
LEFT_OUT: dict[Why, str] = {
    "quarantined": "quarantined",
    "import_failed": "not available",
    "ended_badly": "ended badly",
    "not_finite": "loss not finite",
    "slowed_by_timers": "slowed by timers",
    "other_definitions": "of other definitions",
    "dispatcher_unknown": "dispatcher unknown",
    "not_active": "requested, not active",
    "too_short": "too short",
    "not_steady": "not steady",
    "other_shape": "of another shape",
    "below_level": "below the evidence level",
}
EP_SIZES = {"small": "small (up to 8)", "medium": "medium", "large": "large (from 32)", "unknown": "unknown"}
INFERRED = "No line of the log names the dispatcher at work. Iterations ran, and the trainer does not start without it."
WORSE_LOSS = (
    "Its loss is clearly worse over iterations that both have. A faster run with a worse loss is no improvement."
)
FROM_PRIOR = "One run does not show how its launches vary. The interval is how much launches of the family do."
UNPROVEN = "No log shows which dispatcher ran. It needs no package, and nothing else runs in its name."


def meanings_of(boards: Sequence[Board]) -> dict[str, str]:
    """What the badges mean that stand on these boards, by the name under which they are explained."""
    entries = [entry for board in boards for entry in board.entries]
    shown = {board.reading for board in boards} | {board.semantic_class for board in boards}
    shown |= {"directional"} if any(entry.directional for entry in entries) else set()
    shown |= {"not_compared"} if any(board.outside for board in boards) else set()
    found = {
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
    return found | {name: text for name, (text, is_shown) in marks.items() if is_shown}


def label(name: str) -> str:
    """`matched A/B`, `benchmark only`."""
    return LABELS.get(name, name.replace("_", " "))


def routing_words(routing_mode: str) -> str:
    return routing_mode.replace("-", " ").replace("_", " ") or "routing unknown"


def range_text(low_pct: float | None, high_pct: float | None) -> str:
    """`−0.4 to 3.1`, in percent; empty without an interval."""
    return "" if low_pct is None or high_pct is None else f"{_signed(low_pct)} to {_signed(high_pct)}"


def stretch_sentence(stretch: Stretch) -> str:
    """Which code a board is of; empty where nothing changed since, because then it is simply the newest."""
    if not stretch.changes_since:
        return ""
    changed = f", first on {_day(stretch.changed_at)}" if stretch.changed_at else ""
    times = "once" if stretch.changes_since == 1 else f"{stretch.changes_since} times"
    runs = counted(stretch.runs, "run")
    return (
        f"All places are of the same stretch of code: {runs} from {_day(stretch.first_at)} to {_day(stretch.last_at)}. "
        f"The speed of the stack changed {times} since{changed}; newer runs were not made with every dispatcher."
    )


def tie_sentence(duel: Duel, interval: str = "") -> str:
    """Why the first of the duel ties with the second, said of the first."""
    if duel.outcome == "equal":
        return f"is as fast as {duel.second}, {within(duel)}"
    if duel.worse_loss:
        return f"is not placed before or after {duel.second}{interval}: {duel.tie_because}"
    decide = f"; {counted(duel.more_runs, 'more run')} of each would decide" if duel.more_runs else ""
    because = f": {duel.tie_because}" if duel.tie_because else ""
    return f"cannot be told apart from {duel.second} yet{interval}{because}{decide}"


def duel_sentence(duel: Duel) -> str:
    """One test of a board, seen from its winner."""
    seen = duel.turned() if duel.outcome == "second" else duel
    short = ". Directional only: one side is too short." if seen.directional else "."
    interval = range_text(seen.low_pct, seen.high_pct)
    told = f" ({interval}{THIN}%)" if interval else ""
    if seen.tie:
        return f"{seen.first} {tie_sentence(seen, told)}{short}"
    return f"{seen.first} is faster than {seen.second}: {percent(seen.gain_pct)} more throughput{told}{short}"


def ties_of(dispatcher: str, duels: Sequence[Duel]) -> tuple[str, ...]:
    """Why this dispatcher ties with each of those that it ties with."""
    own = (one if one.first == dispatcher else one.turned() for one in duels if dispatcher in (one.first, one.second))
    return tuple(tie_sentence(one) for one in own if one.tie)


def _day(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d")


def _signed(pct: float) -> str:
    decimals = 2 if abs(pct) < 0.995 else 1
    return grouped(round(pct, decimals) + 0.0, decimals)
