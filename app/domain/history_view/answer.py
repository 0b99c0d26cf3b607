"""What a history comes to, in a sentence or three: where the stack stands, since when, and what it is measured by."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from app.domain.changes import change_text
from app.domain.history.change_points import FEWEST_RUNS
from app.domain.history_view.configurations import Configuration, LevelChange
from app.domain.history_view.pins import Pin
from app.domain.history_view.standing import STANDINGS, HistoryRun, Standing
from app.domain.numbers import counted, step_time


def answer(
    runs: Sequence[HistoryRun],
    standings: Sequence[Standing],
    shown: Configuration,
    configurations: Sequence[Configuration],
    pins: Sequence[Pin],
) -> str:
    """`20.99 s a step now, 6.5 % slower since 21 September; 2 change points in 48 runs. Golden run #12, ...`

    `shown`: the configuration that is spoken of. At least one run.
    """
    sentences = [_level(runs, standings, shown)]
    if len(configurations) > 1:
        others = counted(len(configurations), "configuration")
        which = "the one that ran last" if shown.is_last else "chosen above the chart"
        sentences.append(f"This is configuration {shown.letter} of {others}, {which}.")
    sentences += _golden(pins, runs[-1].ordered_at)
    return " ".join(sentences)


def day(time: datetime, near: datetime) -> str:
    """`21 September`, with the year when it is not that of `near`."""
    time = time.astimezone(UTC)
    year = f" {time.year}" if time.year != near.astimezone(UTC).year else ""
    return f"{time.day} {time:%B}{year}"


def _level(runs: Sequence[HistoryRun], standings: Sequence[Standing], shown: Configuration) -> str:
    newest = runs[-1].ordered_at
    now = shown.now
    if now is None:
        return f"No run of this stack counts yet: {_why_none(standings[place] for place in shown.runs)}."
    stands = f"{step_time(now.step_time_ms)} a step now"
    if len(shown.counted) < FEWEST_RUNS:
        over = f"over {counted(len(shown.counted), 'run')} that count" + ("s" if len(shown.counted) == 1 else "")
        return f"{stands}, {over}. Levels are told apart from {FEWEST_RUNS} such runs on."
    if not shown.changes:
        since = day(runs[shown.counted[0]].ordered_at, newest)
        return f"{stands}, at one level since {since}; no change point in {counted(len(shown.counted), 'run')}."
    last = shown.changes[-1]
    points = f"{counted(len(shown.changes), 'change point')} in {counted(len(shown.counted), 'run')}"
    return f"{stands}, {_moved(last)} since {day(runs[last.run].ordered_at, newest)}; {points}."


def _moved(change: LevelChange) -> str:
    text = change_text(change.delta_pct)
    return f"{text.size} {text.word}"


def _why_none(standings: Iterable[Standing]) -> str:
    counts = Counter(standings)
    return ", ".join(f"{n:,} {STANDINGS[why]}" for why, n in counts.most_common())


def _golden(pins: Sequence[Pin], near: datetime) -> list[str]:
    in_force = sorted((pin for pin in pins if pin.in_force), key=lambda pin: (pin.pinned_at, pin.id))
    if not in_force:
        return []
    newest = in_force[-1]
    return [f"Golden run #{newest.run_id}, pinned on {day(newest.pinned_at, near)} by {newest.pinned_by}."]
