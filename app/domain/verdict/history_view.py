"""The history of a stack for its page: eligible runs, segments, changes, pins, versions, and a summary."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean
from typing import Literal, Protocol

from app.domain.contract.fields import FIELDS
from app.domain.numbers import ChangeText, figure, plural, step_change, step_time
from app.domain.run import Metric, Stated
from app.domain.verdict.comparability import Difference, differing_outside_keys
from app.domain.verdict.history import FEWEST_RUNS, SHORTEST_SEGMENT, History, Segment, find_changes
from app.domain.verdict.policy import ANY_BRANCH
from app.domain.verdict.record import FAILED
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior

# --- Eligibility: whether a run is part of the segments of its history, and if not, why (`docs/verdicts.md`).

Eligibility = Literal[
    "counts",
    "failed",
    "cut_off",
    "quarantined",
    "not_steady",
    "short",
    "no_figure",
    "purpose",
    "branch",
    "definitions",
    "outlier",
]

ELIGIBILITY_LABELS: Mapping[Eligibility, str] = {
    "counts": "counts",
    "failed": "failed",
    "cut_off": "ended early",
    "quarantined": "quarantined",
    "not_steady": "not steady",
    "short": "short",
    "no_figure": "no figure",
    "purpose": "not a ci run",
    "branch": "different branch",
    "definitions": "older definitions",
    "outlier": "outlier",
}
"""Labels of pages."""

_CUT_OFF = frozenset({"truncated", "stopped", "running"})


class HistoryRun(Protocol):
    """The attributes of a run that a history reads. `log_step_time` is NaN without an estimate."""

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
    def job(self) -> str: ...
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


def eligibility(run: HistoryRun, baseline_branch: str, definition_version: int) -> Eligibility:
    """Return the first reason why a run does not count, else `counts`. `baseline_branch`: `*` for any.

    `definition_version`: that of the stack's newest figures; figures of different versions never share a segment.
    """
    reasons: tuple[tuple[bool, Eligibility], ...] = (
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
    """Return whether the run has a step time."""
    return math.isfinite(run.log_step_time)


# --- The configurations of a stack in one history, with their letters, segments and changes.


@dataclass(frozen=True, slots=True)
class StackSegment:
    """A segment from run `first` to `last` (indexes into the stack's runs) at `step_time_ms`; `n` of the runs count.

    `holds`: it has at least three commits, or they agree. Else its level is a mean that no run is near.
    """

    first: int
    last: int
    step_time_ms: float
    n: int
    holds: bool = True


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """A change of level. `run`: index of the first run after it, `before`: of the last before; positive is slower."""

    run: int
    before: int
    delta_pct: float
    p_value: float
    from_ms: float
    to_ms: float


@dataclass(frozen=True, slots=True)
class ConfigurationHistory:
    """One history: one config key of one job. `letter`: A for the oldest. `runs`, `counted`: indexes into the runs.

    `job` is empty unless several jobs of the stack share the config key. `levels`: its segments, empty while no run
    counts; `is_last`: the newest counted run is in this history.
    """

    letter: str
    config_key: str
    job: str
    runs: tuple[int, ...]
    counted: tuple[int, ...]
    levels: tuple[StackSegment, ...]
    changes: tuple[SegmentChange, ...]
    is_last: bool = False

    @property
    def now(self) -> StackSegment | None:
        return self.levels[-1] if self.levels else None

    @property
    def address(self) -> str:
        """Return what names the history in an address: the first digits of the config key, and the job."""
        return f"{self.config_key[:12]}:{self.job}" if self.job else self.config_key[:12]

    def is_named_by(self, text: str) -> bool:
        """Return whether `text` is such an address, or the beginning of the config key."""
        key, _, job = text.partition(":")
        return self.config_key.startswith(key) and job in ("", self.job)


def configurations(
    runs: Sequence[HistoryRun], eligibilities: Sequence[Eligibility], priors: Mapping[str, Prior] | None = None
) -> tuple[ConfigurationHistory, ...]:
    """Return one configuration per config key and job, in the order of their first runs.

    `runs`: all runs of a stack, in order, with their `eligibilities`. `priors`: run-to-run variation by config key, as
    verdicts assumed it; else the default.
    """
    positions: dict[tuple[str, str], list[int]] = {}
    for position, key in enumerate(_histories(runs)):
        positions.setdefault(key, []).append(position)
    counted = {
        key: [position for position in own if eligibilities[position] == "counts"] for key, own in positions.items()
    }
    last = max((position for own in counted.values() for position in own), default=len(runs) - 1)
    result = []
    for index, (key, own) in enumerate(positions.items()):
        commits = _commits(runs, counted[key])
        history = _history(runs, commits, (priors or {}).get(key[0], DEFAULT_PRIOR))
        result.append(
            ConfigurationHistory(
                letter=letter(index),
                config_key=key[0],
                job=key[1],
                runs=tuple(own),
                counted=tuple(counted[key]),
                levels=_levels(history, commits, (priors or {}).get(key[0], DEFAULT_PRIOR)),
                changes=_changes(history, commits),
                is_last=last in own,
            )
        )
    return tuple(result)


def _histories(runs: Sequence[HistoryRun]) -> Iterator[tuple[str, str]]:
    """Yield config key and job of each run. The job counts where several jobs share the key; else it is empty."""
    jobs: dict[str, set[str]] = {}
    for run in runs:
        jobs.setdefault(run.config_key, set()).update(filter(None, (run.job,)))
    for run in runs:
        yield run.config_key, run.job if len(jobs[run.config_key]) > 1 else ""


def _commits(runs: Sequence[HistoryRun], positions: Sequence[int]) -> list[list[int]]:
    """Group the positions of reruns: a commit counts once for its level, regardless of its number of runs."""
    commits: dict[tuple[str, int], list[int]] = {}
    for position in positions:
        commit = runs[position].commit
        commits.setdefault((commit, 0 if commit else position + 1), []).append(position)
    return list(commits.values())


_OUTLIER_SPREADS = 5
_LEAST_OUTLIER = 0.05
"""As in baselines: an outlier is five spreads of launches from its segment, and 5 %, such as a night on a slow node."""


def with_outliers(
    runs: Sequence[HistoryRun], eligibilities: Sequence[Eligibility], priors: Mapping[str, Prior] | None = None
) -> tuple[Eligibility, ...]:
    """Return the eligibilities, with runs marked as outliers that are far from the segments on both sides.

    The last two commits are never marked: they may be the beginning of a new segment.
    """
    marked = list(eligibilities)
    for own in configurations(runs, eligibilities, priors):
        commits = _commits(runs, own.counted)
        history = _history(runs, commits, (priors or {}).get(own.config_key, DEFAULT_PRIOR))
        for segment in history.segments if history else ():
            reach = max(_OUTLIER_SPREADS * (history.spread if history else 0.0), _LEAST_OUTLIER)
            for index in range(segment.start, min(segment.stop, len(commits) - 2)):
                if history is not None and abs(float(history.observed[index]) - segment.level) > reach:
                    for position in commits[index]:
                        marked[position] = "outlier"
    return tuple(marked)


def letter(index: int) -> str:
    """Return A to Z, then AA, AB, ..."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def _history(runs: Sequence[HistoryRun], commits: Sequence[Sequence[int]], prior: Prior) -> History | None:
    times = [fmean(runs[position].log_step_time for position in launches) for launches in commits]
    return find_changes(times, prior) if times else None


def _levels(history: History | None, commits: Sequence[Sequence[int]], prior: Prior) -> tuple[StackSegment, ...]:
    if history is None:
        return ()
    return tuple(
        StackSegment(
            commits[segment.start][0],
            commits[segment.stop - 1][-1],
            math.exp(segment.level),
            sum(len(launches) for launches in commits[segment.start : segment.stop]),
            holds=segment.stop - segment.start >= SHORTEST_SEGMENT or _agree(history, segment, prior),
        )
        for segment in history.segments
    )


def _agree(history: History, segment: Segment, prior: Prior) -> bool:
    """Return whether all commits are near the level, by the prior: two that differ would widen the spread."""
    observed = history.observed[segment.start : segment.stop]
    return float(abs(observed - segment.level).max()) <= max(2 * math.sqrt(prior.variance), _LEAST_OUTLIER)


def _changes(history: History | None, commits: Sequence[Sequence[int]]) -> tuple[SegmentChange, ...]:
    if history is None:
        return ()
    return tuple(
        SegmentChange(
            run=commits[point.run][0],
            before=commits[point.run - 1][-1],
            delta_pct=point.delta_pct,
            p_value=point.p_value,
            from_ms=math.exp(old.level),
            to_ms=math.exp(new.level),
        )
        for point, (old, new) in zip(history.change_points, pairwise(history.segments), strict=True)
    )


# --- Which regression and which verdict a change point belongs to.

AROUND = 2
"""Most runs between a change point and the run whose verdict called it."""


@dataclass(frozen=True, slots=True)
class PlacedAlarm:
    """A regression of the configuration: indexes of its slow run and, once fixed, of the run that fixed it."""

    regression_id: int
    slow_run: int
    fixed_by: int | None = None


def alarm_of(change: SegmentChange, end: int, alarms: Sequence[PlacedAlarm]) -> int | None:
    """Return the regression that the change opened or ended. `end`: index of the last run of the new segment."""
    slower = change.delta_pct > 0
    positions = [(alarm.slow_run if slower else alarm.fixed_by, alarm.regression_id) for alarm in alarms]
    near = [
        (abs(position - change.run), number)
        for position, number in positions
        if position is not None and change.before - AROUND < position <= end
    ]
    return min(near)[1] if near else None


def called_at(change: SegmentChange, runs: Sequence[int], verdict_of: Callable[[int], str]) -> int | None:
    """Return the position of the first run whose verdict called the change. `runs`: positions, in order."""
    decision = "regression" if change.delta_pct > 0 else "improvement"
    first, last = change.before + 1 - AROUND, change.run + AROUND
    near = runs[bisect_left(runs, first) : bisect_right(runs, last)]
    return next((position for position in near if verdict_of(position) == decision), None)


# --- Drift between golden runs: a re-pinned baseline must not hide a slow drift.


@dataclass(frozen=True, slots=True)
class Pin:
    """A run pinned as golden baseline. `unpinned_at` is None while the pin is in force."""

    id: int
    run_id: int
    run_name: str
    pinned_by: str
    pinned_at: datetime
    note: str
    unpinned_by: str
    unpinned_at: datetime | None

    @property
    def in_force(self) -> bool:
        return self.unpinned_at is None


@dataclass(frozen=True, slots=True)
class Drift:
    """Step time of `run_id` against `against_id` in percent: positive is slower.

    `other_configuration`: knobs differ between the two, so the change is not only drift.
    """

    run_id: int
    against_id: int
    delta_pct: float
    other_configuration: bool


@dataclass(frozen=True, slots=True)
class PinDrift:
    """Drift of a pin. `since_last`: against the previously pinned run; `since_release`: against the newest release
    before the run; `now`: the current level of its configuration against the run. None: no such run.
    """

    pin: Pin
    since_last: Drift | None
    since_release: Drift | None
    now: Drift | None


def drifts(
    pins: Sequence[Pin], runs: Sequence[HistoryRun], configurations: Sequence[ConfigurationHistory]
) -> tuple[PinDrift, ...]:
    """Return the drift of each pin, newest first."""
    by_id = {run.id: run for run in runs}
    positions = {run.id: position for position, run in enumerate(runs)}
    ordered = sorted((pin for pin in pins if pin.run_id in by_id), key=lambda pin: (pin.pinned_at, pin.id))
    result = []
    for number, pin in enumerate(ordered):
        run = by_id[pin.run_id]
        earlier = next((by_id[other.run_id] for other in reversed(ordered[:number]) if other.run_id != run.id), None)
        before = (
            other for other in reversed(runs[: positions[run.id]]) if other.purpose == "release" and has_figure(other)
        )
        result.append(
            PinDrift(pin, drift(run, earlier), drift(run, next(before, None)), _now(run, runs, configurations))
        )
    return tuple(reversed(result))


def _now(run: HistoryRun, runs: Sequence[HistoryRun], configurations: Sequence[ConfigurationHistory]) -> Drift | None:
    position = next(position for position, other in enumerate(runs) if other.id == run.id)
    own = next(configuration for configuration in configurations if position in configuration.runs)
    return drift(runs[own.counted[-1]], run, own.now.step_time_ms) if own.now else None


def drift(run: HistoryRun | None, against: HistoryRun | None, run_ms: float | None = None) -> Drift | None:
    """Return the change from `against` to `run`; None without figures. `run_ms`: a better estimate of `run`'s time."""
    if run is None or against is None or not (has_figure(run) and has_figure(against)):
        return None
    value = run.log_step_time if run_ms is None else math.log(run_ms)
    delta = 100 * math.expm1(value - against.log_step_time)
    return Drift(run.id, against.id, delta, run.config_key != against.config_key)


@dataclass(frozen=True, slots=True)
class LevelText:
    """The texts of levels and changes in a metric that step time determines. `convert`: step times (ms) to the metric.

    `label`: that follows a figure, empty for step time.
    """

    metric: str = "step_time_ms"
    convert: Callable[[float], float] = float
    label: str = ""

    def figure(self, step_time_ms: float) -> str:
        """Return `20.99 s` or `11,645 tokens/s/GPU`."""
        value = self.convert(step_time_ms)
        return f"{figure(Metric(value, value, value, 0), self.metric).text} {self.label}".rstrip()

    def level(self, step_time_ms: float) -> str:
        """Return `20.99 s per step` or `11,645 tokens/s/GPU`."""
        return self.figure(step_time_ms) + ("" if self.label else " per step")

    def change(self, delta_pct: float) -> ChangeText:
        """Return the text of a change of step time: `6.5 % slower` or `6.1 % lower`."""
        return step_change(self.metric, delta_pct)


_OF_STEP_TIME = LevelText()


def answer(
    runs: Sequence[HistoryRun],
    eligibilities: Sequence[Eligibility],
    shown: ConfigurationHistory,
    configurations: Sequence[ConfigurationHistory],
    pins: Sequence[Pin],
    *,
    chosen: str = "chosen above the chart",
) -> str:
    """Return `20.99 s per step now, 6.5 % slower since 21 September; 2 change points in 48 runs. Golden run ...`

    `runs`: at least one. `shown`: the configuration to describe. `chosen`: why, unless it is the most recent one.
    """
    sentences = [level_text(runs, eligibilities, shown)]
    if len(configurations) > 1:
        others = plural(len(configurations), "configuration")
        which = "the most recent one" if shown.is_last else chosen
        sentences.append(f"This is configuration {shown.letter} of {others}, {which}.")
    sentences += golden_text(pins, runs[-1].ordered_at)
    return " ".join(sentences)


def day(time: datetime, near: datetime) -> str:
    """Return `21 September`, with the year when it differs from that of `near`."""
    time = time.astimezone(UTC)
    year = f" {time.year}" if time.year != near.astimezone(UTC).year else ""
    return f"{time.day} {time:%B}{year}"


CHANGE_POINTS_NEED = f"Change points need {FEWEST_RUNS} runs"


def level_text(
    runs: Sequence[HistoryRun],
    eligibilities: Sequence[Eligibility],
    shown: ConfigurationHistory,
    text: LevelText = _OF_STEP_TIME,
) -> str:
    """Return `20.99 s per step now, 6.5 % slower since 21 September; 2 change points in 48 runs.`

    If the runs differ too much for a level, the newest run.
    """
    newest = runs[-1].ordered_at
    now = shown.now
    if now is None:
        return _without_level(runs, eligibilities)
    if not now.holds:
        last_run = runs[shown.counted[-1]]
        level = f"{text.figure(math.exp(last_run.log_step_time))} in #{last_run.id}"
        return f"{level}; {plural(now.n, 'run')} differ too much for one level."
    stands = f"{text.level(now.step_time_ms)} now"
    if len(shown.counted) < FEWEST_RUNS:
        over = f"over {plural(len(shown.counted), 'eligible run')}"
        return f"{stands}, {over}. {CHANGE_POINTS_NEED}."
    if not shown.changes:
        since = day(runs[shown.counted[0]].ordered_at, newest)
        return f"{stands}, unchanged since {since}; no change point in {plural(len(shown.counted), 'run')}."
    last = shown.changes[-1]
    points = f"{plural(len(shown.changes), 'change point')} in {plural(len(shown.counted), 'run')}"
    moved = text.change(last.delta_pct).figure
    return f"{stands}, {moved} since {day(runs[last.run].ordered_at, newest)}; {points}."


def _without_level(runs: Sequence[HistoryRun], eligibilities: Sequence[Eligibility]) -> str:
    """Return `16 experiment runs, no CI run: 23.73 s at first, 16.83 s at best.`, or why no run counts."""
    times = [run.log_step_time for run in runs if run.purpose == "experiment" and has_figure(run)]
    if times and all(run.purpose == "experiment" for run in runs):
        best = f", {step_time(math.exp(min(times)))} at best" if min(times) < times[0] else ""
        return f"{plural(len(runs), 'experiment run')}, no CI run: {step_time(math.exp(times[0]))} at first{best}."
    why_none = Counter(eligibilities).most_common()
    return f"No run of this stack counts yet: {', '.join(f'{n:,} {ELIGIBILITY_LABELS[why]}' for why, n in why_none)}."


def golden_text(pins: Sequence[Pin], near: datetime) -> list[str]:
    """Return the newest pinned run as a sentence: `Golden run #121, pinned on 23 November by Ada.`"""
    in_force = sorted((pin for pin in pins if pin.in_force), key=lambda pin: (pin.pinned_at, pin.id))
    if not in_force:
        return []
    newest = in_force[-1]
    return [f"Golden run #{newest.run_id}, pinned on {day(newest.pinned_at, near)} by {newest.pinned_by}."]


# --- Changes outside the keys along a history: library versions, container digest, driver.

WATCHED = tuple(name for name, field in FIELDS.items() if field.group == "Software" or name == "driver")
"""Contract fields that hold versions; members of the keys cannot change within a stack."""


@dataclass(frozen=True, slots=True)
class VersionProbe:
    """The versions in the contract of the run at index `position`."""

    position: int
    contract: Mapping[str, Stated]


@dataclass(frozen=True, slots=True)
class VersionChange:
    """Versions that changed between the runs at indexes `before` and `run`; neighbours unless `before + 1 < run`."""

    run: int
    before: int
    differences: tuple[Difference, ...]


def changed_versions(probes: Sequence[VersionProbe]) -> tuple[VersionChange, ...]:
    """Return version changes along `probes`, which are in order. An unstated field keeps its last stated value."""
    changes = []
    last_stated: dict[str, Stated] = {}
    for number, probe in enumerate(probes):
        differences = tuple(differing_outside_keys(last_stated, probe.contract))
        if differences:
            changes.append(VersionChange(probe.position, probes[number - 1].position, differences))
        last_stated |= probe.contract
    return tuple(changes)
