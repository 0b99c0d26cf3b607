"""What a history comes to, in a sentence or three: where the stack stands, since when, and what it is measured by."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Generic, Literal, Protocol, TypeVar

from app.domain.contract.fields import FIELDS
from app.domain.numbers import change_text, counted, step_time
from app.domain.run import Stated
from app.domain.verdict.differences import Difference, differing_beside
from app.domain.verdict.history import FEWEST_RUNS, History, find_changes
from app.domain.verdict.record import FAILED
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior

# --- Whether a run is part of the levels of its history, and if not, why (`docs/verdicts.md`).

Standing = Literal[
    "counts", "failed", "cut_off", "quarantined", "not_steady", "short", "no_figure", "purpose", "branch", "definitions"
]

STANDINGS: Mapping[Standing, str] = {
    "counts": "counts",
    "failed": "failed",
    "cut_off": "ended early",
    "quarantined": "quarantined",
    "not_steady": "not steady",
    "short": "short",
    "no_figure": "no figure",
    "purpose": "no ci run",
    "branch": "another branch",
    "definitions": "older definitions",
}
"""In the words of pages."""

_CUT_OFF = frozenset({"truncated", "stopped", "running"})
ANY_BRANCH = "*"


class HistoryRun(Protocol):
    """What a history needs to know of a run. Any frozen value with these attributes will do.

    `log_step_time` is NaN where there is no estimate.
    """

    @property
    def id(self) -> int: ...
    @property
    def commit(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def purpose(self) -> str: ...
    @property
    def ordered_at(self) -> datetime: ...
    @property
    def config_key(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def quarantine(self) -> str: ...
    @property
    def log_step_time(self) -> float: ...
    @property
    def is_steady(self) -> bool: ...
    @property
    def short(self) -> bool: ...
    @property
    def definition_version(self) -> int: ...


def standing(run: HistoryRun, baseline_branch: str, definition_version: int) -> Standing:
    """The first reason that holds; `counts` when there is none. `baseline_branch`: `*` for any.

    `definition_version`: that of the stack's newest figures. Figures of two versions are never put in one level.
    """
    reasons: tuple[tuple[bool, Standing], ...] = (
        (bool(run.quarantine), "quarantined"),
        (run.outcome in FAILED, "failed"),
        (not has_figure(run), "no_figure"),
        (run.outcome in _CUT_OFF, "cut_off"),
        (not run.is_steady, "not_steady"),
        (run.short, "short"),
        (run.purpose != "ci", "purpose"),
        (baseline_branch not in (ANY_BRANCH, run.branch), "branch"),
        (run.definition_version != definition_version, "definitions"),
    )
    return next((why for holds, why in reasons if holds), "counts")


def has_figure(run: HistoryRun) -> bool:
    return math.isfinite(run.log_step_time)


# --- The configurations of a stack in one history: letters to name them by, their levels, where levels change.


@dataclass(frozen=True, slots=True)
class Level:
    """Runs `first` to `last` (places in the stack's runs) stand at `step_time_ms`; `n` of them count."""

    first: int
    last: int
    step_time_ms: float
    n: int


@dataclass(frozen=True, slots=True)
class LevelChange:
    """`run`: place of the first run of the new level; `before`: of the last one of the old. Positive is slower."""

    run: int
    before: int
    delta_pct: float
    p_value: float
    from_ms: float
    to_ms: float


@dataclass(frozen=True, slots=True)
class Configuration:
    """One config key. `letter`: A is the one that came first. `runs`, `counted`: places in the stack's runs.

    `levels` is empty while no run counts; `is_last`: the counted run that came last is of this configuration.
    """

    letter: str
    config_key: str
    runs: tuple[int, ...]
    counted: tuple[int, ...]
    levels: tuple[Level, ...]
    changes: tuple[LevelChange, ...]
    is_last: bool = False

    @property
    def now(self) -> Level | None:
        return self.levels[-1] if self.levels else None


def configurations(
    runs: Sequence[HistoryRun], standings: Sequence[Standing], priors: Mapping[str, Prior] | None = None
) -> tuple[Configuration, ...]:
    """One for each config key, in the order of their first runs.

    `runs`: all of a stack, in order; `standings` of each. `priors`: by config key, what verdicts assumed of the
    run-to-run variation; without one the default.
    """
    places: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        places.setdefault(run.config_key, []).append(place)
    counted = {key: [place for place in of_key if standings[place] == "counts"] for key, of_key in places.items()}
    last = max((place for of_key in counted.values() for place in of_key), default=len(runs) - 1)
    result = []
    for index, (key, of_key) in enumerate(places.items()):
        history = _history([runs[place] for place in counted[key]], (priors or {}).get(key, DEFAULT_PRIOR))
        result.append(
            Configuration(
                letter=letter(index),
                config_key=key,
                runs=tuple(of_key),
                counted=tuple(counted[key]),
                levels=_levels(history, counted[key]),
                changes=_changes(history, counted[key]),
                is_last=runs[last].config_key == key,
            )
        )
    return tuple(result)


def letter(index: int) -> str:
    """A to Z, then AA, AB, ..."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def _history(counted: Sequence[HistoryRun], prior: Prior) -> History | None:
    return find_changes([run.log_step_time for run in counted], prior) if counted else None


def _levels(history: History | None, places: Sequence[int]) -> tuple[Level, ...]:
    return tuple(
        Level(places[segment.start], places[segment.stop - 1], math.exp(segment.level), segment.stop - segment.start)
        for segment in (history.segments if history else ())
    )


def _changes(history: History | None, places: Sequence[int]) -> tuple[LevelChange, ...]:
    if history is None:
        return ()
    return tuple(
        LevelChange(
            run=places[point.run],
            before=places[point.run - 1],
            delta_pct=point.delta_pct,
            p_value=point.p_value,
            from_ms=math.exp(old.level),
            to_ms=math.exp(new.level),
        )
        for point, (old, new) in zip(history.change_points, pairwise(history.segments), strict=True)
    )


# --- Which regression and which verdict a change point belongs to.

AROUND = 2
"""A change point may be found this many runs beside the run that its verdict called."""


@dataclass(frozen=True, slots=True)
class PlacedAlarm:
    """A regression of the configuration: places of its slow run and, where it ended, of the run that ended it."""

    regression_id: int
    slow_run: int
    fixed_by: int | None = None


def alarm_of(change: LevelChange, end: int, alarms: Sequence[PlacedAlarm]) -> int | None:
    """The regression that the change opened, or that it ended. `end`: place of the last run of the new level."""
    slower = change.delta_pct > 0
    places = [(alarm.slow_run if slower else alarm.fixed_by, alarm.regression_id) for alarm in alarms]
    near = [
        (abs(place - change.run), number)
        for place, number in places
        if place is not None and change.before - AROUND < place <= end
    ]
    return min(near)[1] if near else None


def called_at(change: LevelChange, verdicts: Sequence[tuple[int, str]]) -> int | None:
    """Place of the first run whose verdict said it. `verdicts`: (place, decision) of the configuration, in order."""
    decision = "regression" if change.delta_pct > 0 else "improvement"
    near = range(change.before + 1 - AROUND, change.run + AROUND + 1)
    return next((place for place, verdict in verdicts if verdict == decision and place in near), None)


# --- Golden runs of a stack, and how far they are apart: a re-pinned baseline must not hide a slow drift.

P = TypeVar("P", bound="Pin")


class Pin(Protocol):
    """A run that a person made golden; `in_force` until it was unpinned. Any frozen value with these will do."""

    @property
    def id(self) -> int: ...
    @property
    def run_id(self) -> int: ...
    @property
    def pinned_by(self) -> str: ...
    @property
    def pinned_at(self) -> datetime: ...
    @property
    def in_force(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Drift:
    """Step time of `run_id` against `against_id` in percent: positive is slower.

    `other_configuration`: knobs differ between the two, so it is not drift alone.
    """

    run_id: int
    against_id: int
    delta_pct: float
    other_configuration: bool


@dataclass(frozen=True, slots=True)
class PinDrift(Generic[P]):
    """`since_last`: against the run that was pinned before; `since_release`: against the newest release before the
    run; `now`: the level on which its configuration stands today, against the run. None: no such run.
    """

    pin: P
    since_last: Drift | None
    since_release: Drift | None
    now: Drift | None


def drifts(
    pins: Sequence[P], runs: Sequence[HistoryRun], configurations: Sequence[Configuration]
) -> tuple[PinDrift[P], ...]:
    """Of each pin, newest first."""
    by_id = {run.id: run for run in runs}
    places = {run.id: place for place, run in enumerate(runs)}
    ordered = sorted((pin for pin in pins if pin.run_id in by_id), key=lambda pin: (pin.pinned_at, pin.id))
    result = []
    for number, pin in enumerate(ordered):
        run = by_id[pin.run_id]
        earlier = next((by_id[other.run_id] for other in reversed(ordered[:number]) if other.run_id != run.id), None)
        before = (
            other for other in reversed(runs[: places[run.id]]) if other.purpose == "release" and has_figure(other)
        )
        result.append(
            PinDrift(pin, drift(run, earlier), drift(run, next(before, None)), _now(run, runs, configurations))
        )
    return tuple(reversed(result))


def _now(run: HistoryRun, runs: Sequence[HistoryRun], configurations: Sequence[Configuration]) -> Drift | None:
    own = next(configuration for configuration in configurations if configuration.config_key == run.config_key)
    return drift(runs[own.counted[-1]], run, own.now.step_time_ms) if own.now else None


def drift(run: HistoryRun | None, against: HistoryRun | None, run_ms: float | None = None) -> Drift | None:
    """`run_ms`: the step time of `run` where it is known better than by the run alone."""
    if run is None or against is None or not (has_figure(run) and has_figure(against)):
        return None
    value = run.log_step_time if run_ms is None else math.log(run_ms)
    delta = 100 * math.expm1(value - against.log_step_time)
    return Drift(run.id, against.id, delta, run.config_key != against.config_key)


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


# --- Where what no key holds changed along a history: versions of libraries, the digest of the container, the driver.

WATCHED = tuple(name for name, field in FIELDS.items() if field.group == "Software" or name == "driver")
"""Fields of the contract among which versions stand; those of the keys cannot change within a stack."""


@dataclass(frozen=True, slots=True)
class VersionProbe:
    """The contract of the run at `place`, as far as versions go."""

    place: int
    contract: Mapping[str, Stated]


@dataclass(frozen=True, slots=True)
class VersionChange:
    """Between the runs at `before` and `run`, which are neighbours unless `before + 1 < run`."""

    run: int
    before: int
    differences: tuple[Difference, ...]


def changed_versions(probes: Sequence[VersionProbe]) -> tuple[VersionChange, ...]:
    """`probes` in the order of their places. A field that a run does not state is as it was last stated."""
    changes = []
    last_stated: dict[str, Stated] = {}
    for number, probe in enumerate(probes):
        differences = tuple(differing_beside(last_stated, probe.contract))
        if differences:
            changes.append(VersionChange(probe.place, probes[number - 1].place, differences))
        last_stated |= probe.contract
    return tuple(changes)
