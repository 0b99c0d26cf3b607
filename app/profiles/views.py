"""Profiles as pages show them: the bar of a step, the three walls, tables and the timeline."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from app.domain.numbers import plural, round_step, share_text
from app.domain.profiles.difference import IDLE_LABELS, ProfileDifference, change_of_step, contributions, label_of
from app.domain.profiles.kernels import group_of, label_of_class
from app.domain.rules.derive import rated
from app.domain.rules.engine import Evaluation
from app.pipeline.suggest import RunSuggestions
from app.profiles.queries import Profile, ProfiledRun, file_address
from app.storage.profiles import StoredProfile
from app.storage.setbacks import REGRESSION_RULES
from app.web.charts import STEP_BAR_WIDTH, BarSegment, bar_segments

GAP_LABELS = {
    "wait_comm": "exposed communication",
    "wait_copy": "exposed copies",
    **{name.removeprefix("idle."): label for name, label in IDLE_LABELS.items()},
}
STARVED_LABELS = {
    "data_loader": "in the data loader",
    "allocation": "allocating memory",
    "graph_launch": "launching a graph",
    "other": "in Python and elsewhere",
}
_WALLS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("memory", "Memory", ("memory",)),
    ("communication", "Communication", ("communication",)),
    ("compute", "Compute and host", ("compute", "host")),
)
_LANES = (("compute", "Computation"), ("communication", "Communication"), ("copy", "Copies"))
_LANE_HEIGHT = 22


@dataclass(frozen=True, slots=True)
class Number:
    """A figure of a wall with its threshold. `share` None: unknown."""

    label: str
    share: float | None
    threshold: float | None

    @property
    def rating(self) -> str:
        """Return `wall`, `borderline` or empty."""
        return rated(self.share, self.threshold)

    @property
    def is_wall(self) -> bool:
        return self.rating == "wall"


@dataclass(frozen=True, slots=True)
class Wall:
    """A card with its numbers and suggestions as (rule, title). `by_exclusion`: no figure reaches a threshold."""

    name: str
    label: str
    numbers: tuple[Number, ...]
    suggestions: tuple[tuple[str, str], ...]
    by_exclusion: bool = False

    @property
    def is_wall(self) -> bool:
        return self.by_exclusion or any(number.is_wall for number in self.numbers)

    @property
    def borderline(self) -> Number | None:
        """Return the figure that is just below its threshold; None for a wall."""
        near = (number for number in self.numbers if number.rating == "borderline")
        return None if self.is_wall else next(near, None)

    @property
    def measure(self) -> Number:
        """Return the figure that decides whether it is a wall."""
        return next((number for number in self.numbers if number.threshold is not None), self.numbers[0])

    @property
    def shown(self) -> tuple[Number, ...]:
        """Return the figures of the card: the leading one, and the others that are known and above zero."""
        return self.leading, *(number for number in self.numbers if number.share and number is not self.leading)

    @property
    def leading(self) -> Number:
        """Return the figure that makes it a wall, else the first."""
        return next((number for number in self.numbers if number.is_wall), self.numbers[0])


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the timeline. Each rectangle: x and width in thousandths of the step, class, times in ms."""

    group: str
    label: str
    y: int
    rectangles: tuple[tuple[float, float, str, float, float], ...]


def segments(view: Mapping[str, Any]) -> tuple[BarSegment, ...]:
    """Return the bar of the typical step: computation, exposed parts, and idle time by reason."""
    window = view["window"]
    exposed = window["exposed_comm_ms"]
    if exposed is None:  # graphs that were traced as a whole hide the rest
        exposed = window.get("exposed_comm_outside_graphs_ms") or 0.0
    parts = [
        ("compute", "computation", window["compute_ms"]),
        ("communication", "exposed communication", exposed),
        ("copy", "exposed copies", window["exposed_copy_ms"]),
    ]
    parts += [(name.replace(".", "-").replace("_", "-"), label_of(name), ms) for name, ms in _idle_times(view).items()]
    return bar_segments(parts, float(window["window_ms"]))


def _idle_times(view: Mapping[str, Any]) -> dict[str, float]:
    """Return the idle time of the typical step by reason.

    Profiles that an earlier version read have the reasons only as credited over all steps.
    """
    if (split := view["window"].get("idle_split_ms")) is not None:
        return {f"idle.{name}": ms for name, ms in split.items()}
    idle = float(view["window"]["idle_ms"])
    times = {name: view["credited_ms"].get(name, 0.0) for name in IDLE_LABELS}
    if not (total := sum(times.values())):
        return {"idle.unresolved": idle}
    return {name: idle * time / total for name, time in times.items()}


_MOST_TICKS, _MOST_NARROW_TICKS = 10, 4
_SECONDS_FROM_MS = 1_000


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """`ticks`: place in percent, time since the start of the step, and whether a narrow page has room for the text."""

    unit: str
    ticks: tuple[tuple[float, str, bool], ...]


def time_axis(window_ms: float) -> TimeAxis:
    if window_ms <= 0:
        return TimeAxis("ms", ())
    unit, total = ("s", window_ms / 1000) if window_ms >= _SECONDS_FROM_MS else ("ms", window_ms)
    step = round_step(total, _MOST_TICKS)
    count = int(total / step) + 1
    every = math.ceil(count / _MOST_NARROW_TICKS)
    return TimeAxis(unit, tuple((100 * k * step / total, f"{k * step:,.6g}", k % every == 0) for k in range(count)))


_EXPOSED = "k-communication exposed"
_TIMELINE_KEY = {
    "k-compute": "other computation",
    "k-compute grouped": "expert GEMM",
    "k-communication": "other communication",
    "k-communication expert": "expert dispatch and combine",
    "k-copy": "copies",
    _EXPOSED: "exposed: communication without computation",
}


def timeline_kind(name: str) -> str:
    """Return the style of a kernel class on the timeline."""
    if name.startswith("copy.") or name == "memset":
        return "k-copy"
    if name.startswith("comm."):
        return "k-communication expert" if name == "comm.ep" else "k-communication"
    return "k-compute grouped" if name == "gemm.grouped" else "k-compute"


def timeline(document: Mapping[str, Any]) -> tuple[Lane, ...]:
    """Return the rows that contain activities."""
    drawn = document["view"]["timeline"]
    total = float(drawn["window_ms"]) or 1.0
    lanes: list[Lane] = []
    for group, label in _LANES:
        rectangles = tuple(
            (start / total * STEP_BAR_WIDTH, max(length / total * STEP_BAR_WIDTH, 0.3), name, start, length)
            for name, spans in drawn["lanes"].items()
            if group_of(name) == group
            for start, length in spans
        )
        if rectangles:
            lanes.append(Lane(group, label, len(lanes) * (_LANE_HEIGHT + 6), rectangles))
    return tuple(lanes)


class ProfilePage:
    """`continued`: the run in which the tuning of this one continued."""

    def __init__(
        self,
        profile: Profile,
        evaluation: Evaluation | None,
        others: Sequence[StoredProfile],
        continued: int | None = None,
    ) -> None:
        self.profile = profile
        self.continued = continued
        self.run: ProfiledRun = profile.run
        self.stored = profile.stored
        self.document = profile.document
        self._evaluation = evaluation
        self.has_siblings = len(others) > 1
        self.others = [other for other in others if other.id != profile.stored.id and other.status == "ready"]

    label = staticmethod(label_of_class)
    timeline_kind = staticmethod(timeline_kind)
    gap_label = staticmethod(GAP_LABELS.__getitem__)

    @property
    def address(self) -> str:
        return self.profile.address

    @property
    def is_settled(self) -> bool:
        return self.stored.status in ("ready", "failed")

    @property
    def percent(self) -> int:
        """Return how much of the profile was read."""
        return round(100 * self.stored.progress)

    @property
    def progress(self) -> str:
        """Return the state that a waiting page shows: `received`, `processing-42`."""
        status = self.stored.status
        return f"{status}-{self.percent}" if status == "processing" else status

    @property
    def traces(self) -> tuple[tuple[str, str], ...]:
        """Return name and address of the traces that can be downloaded."""
        return tuple((file.name, file_address(self.stored.id, file)) for file in self.stored.files if file.key)

    @property
    def answer(self) -> str:
        """Return the wall and its number in one sentence."""
        if self.stored.status == "failed":
            return self.stored.error or "The profile could not be read."
        if self.document is None:
            return "The profile is being read."
        if not self.document["facts"]:
            return "The trace is incomplete, so the rules do not use it."
        if self.document["view"] is None:
            return "The table contains only sums of kernel times, which do not show a wall. Export the whole report."
        return self._named_wall

    @property
    def _named_wall(self) -> str:
        walls = [wall for wall in self.walls if wall.is_wall]
        numbers = [(number, wall) for wall in walls for number in wall.numbers if number.is_wall]
        if not walls:
            unknown = [wall.label.lower() for wall in self.walls if wall.measure.share is None]
            return f"No wall is measured: {' and '.join(unknown)} unknown, the rest below the thresholds."
        if not numbers:
            near = next((wall.borderline for wall in self.walls if wall.borderline), None)
            if near is None:
                return "Compute is the wall: exposed communication and idle time are below their thresholds."
            figure, threshold = share_text(near.share or 0.0), share_text(near.threshold or 0.0)
            return f"Compute is the wall; {near.label} is borderline at {figure} (threshold {threshold})."
        number, wall = max(numbers, key=lambda item: _excess(item[0]))
        figure, threshold = (
            share_text(share) if share is not None else "" for share in (number.share, number.threshold)
        )
        return f"{wall.label} is the wall: {number.label} is {figure} of the step (threshold {threshold})."

    @property
    def walls(self) -> tuple[Wall, ...]:
        facts: Mapping[str, Any] = self.document["facts"] if self.document is not None else {}
        evaluated: Mapping[str, Any] = self._evaluation.facts if self._evaluation is not None else {}
        communication, idle, memory = (evaluated.get(name) for name in ("T_comm", "T_idle", "T_headroom"))
        view = self.document["view"] if self.document is not None else None
        window: Mapping[str, Any] = view["window"] if view is not None else {}
        numbers = {
            "memory": (
                Number(
                    "of the GPU's memory",
                    _rest(evaluated.get("headroom_frac")),
                    _rest(memory),
                ),
                Number("exposed copies", facts.get("exposed_copy_frac"), None),
            ),
            "communication": (
                Number("exposed communication", facts.get("exposed_comm_frac"), communication),
                Number("exposed, waiting for other ranks", facts.get("exposed_wait_frac"), None),
                Number("total", _share_of_window(window, "comm_ms"), None),
                Number("hidden", _share_of_window(window, "hidden_comm_ms"), None),
                Number(
                    f"others waiting for rank {facts.get('straggler_rank')}, the straggler",
                    facts.get("straggler_frac"),
                    None,
                ),
                Number("dispatch and permutation", facts.get("dispatcher_share"), None),
            ),
            "compute": (
                Number("computation", _share_of_window(window, "compute_ms"), None),
                Number("idle", facts.get("gpu_idle_frac"), idle),
                Number("launch-starved", facts.get("launch_starved_frac"), idle),
                Number("host synchronization", facts.get("host_sync_frac"), idle),
                Number("expert GEMM", facts.get("expert_gemm_share"), None),
            ),
        }
        cards = [Wall(name, label, numbers[name], self._suggestions(walls)) for name, label, walls in _WALLS]
        if not any(wall.is_wall or wall.measure.share is None for wall in cards):
            cards[-1] = replace(cards[-1], by_exclusion=True)
        return tuple(cards)

    def _suggestions(self, walls: Sequence[str]) -> tuple[tuple[str, str], ...]:
        if self._evaluation is None or not self.stored.counts:
            return ()
        return tuple(
            (suggestion.rule.id, suggestion.title)
            for suggestion in self._evaluation.suggestions
            if suggestion.rule.wall in walls
        )[:2]

    @property
    def next(self) -> tuple[str, str] | None:
        """Return rule and title of the first suggestion about the wall."""
        return next((wall.suggestions[0] for wall in self.walls if wall.is_wall and wall.suggestions), None)

    @property
    def window(self) -> Mapping[str, Any]:
        assert self.document is not None  # noqa: S101  the template uses it only for profiles that were read
        window: Mapping[str, Any] = self.document["view"]["window"]
        return window

    @property
    def segments(self) -> tuple[BarSegment, ...]:
        assert self.document is not None  # noqa: S101  the template asks for a read profile only
        return segments(self.document["view"])

    @property
    def rank_bars(self) -> tuple[tuple[Mapping[str, Any], tuple[BarSegment, ...]], ...]:
        """Return each rank with its bar; all bars have the scale of the longest step."""
        assert self.document is not None  # noqa: S101  the template asks for a read profile only
        rows = self.document["ranks"]["rows"]
        longest = max((row["step_ms"] for row in rows), default=0.0)
        parts = (
            ("compute", "compute_ms"),
            ("communication", "exposed_comm_ms"),
            ("copy", "exposed_copy_ms"),
            ("idle-issued-other", "idle_ms"),
        )
        return tuple((row, bar_segments([(kind, kind, row[name]) for kind, name in parts], longest)) for row in rows)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return timeline(self.document) if self.document is not None else ()

    @property
    def exposed(self) -> tuple[tuple[float, float, float, float], ...]:
        """Return where communication runs and nothing computes: x and width on the timeline, times in ms."""
        drawn = self.document["view"]["timeline"] if self.document is not None else {}
        total = float(drawn.get("window_ms") or 1.0) / STEP_BAR_WIDTH
        spans = drawn.get("exposed_comm") or ()  # profiles that an earlier version read have none
        return tuple((start / total, length / total, start, length) for start, length in spans)

    @property
    def timeline_key(self) -> tuple[tuple[str, str], ...]:
        """Return the colours of the timeline that occur, each with its label."""
        drawn = {name for lane in self.lanes for _, _, name, _, _ in lane.rectangles}
        kinds = {timeline_kind(name) for name in drawn}
        kinds |= {_EXPOSED} if self.exposed else set()
        return tuple((kind, label) for kind, label in _TIMELINE_KEY.items() if kind in kinds)

    @property
    def time_axis(self) -> TimeAxis:
        return time_axis(float(self.document["view"]["timeline"]["window_ms"]) if self.document is not None else 0.0)

    @property
    def starved(self) -> tuple[tuple[str, float], ...]:
        """Return what the host did while the idle GPU waited for a launch, in ms."""
        if self.document is None or "idle_split_ms" not in self.window:  # an earlier version split all late launches
            return ()
        causes = self.document["view"].get("starved_split_ms", {})
        return tuple((STARVED_LABELS[cause], ms) for cause, ms in causes.items() if ms)

    @property
    def slowdown(self) -> float | None:
        """Return the slowdown by the profiler: profiled over unprofiled step time, minus 1."""
        step = self.stored.facts.get("profiled_step_s")
        if not isinstance(step, float) or not self.run.step_time_ms:
            return None
        return step * 1e3 / self.run.step_time_ms - 1

    @property
    def quality(self) -> tuple[str, ...]:
        """Return what limits the accuracy of the numbers, one sentence each."""
        if self.document is None:
            return ()
        quality = self.document["quality"]
        texts = [*_captured(quality), *_trusted(quality)]
        if self.document["view"] is not None and quality["copies_hide_ms"] > 0.01 * float(self.window["window_ms"]):
            texts.append(f"{quality['copies_hide_ms']:.1f} ms of the exposed communication overlap a copy.")
        if self.slowdown is not None and self.slowdown > self.noise:
            texts.append(
                f"The profiler slowed the step by {share_text(self.slowdown)}: trust shares more than absolute times."
            )
        return (*texts, *quality["incomplete"], *quality["warnings"])

    @property
    def noise(self) -> float:
        """Return the difference of step times that counts as noise."""
        noise = None if self._evaluation is None else self._evaluation.facts.get("T_noise")
        return noise if isinstance(noise, float) else 0.01

    @property
    def collectives(self) -> Sequence[Mapping[str, Any]]:
        rows: Sequence[Mapping[str, Any]] = self.document["view"]["collectives"] if self.document is not None else ()
        return rows


@dataclass(frozen=True, slots=True)
class RunWall(Number):
    """A wall on the page of its run."""

    name: str
    title: str

    HEIGHT: ClassVar[int] = 100

    @property
    def height(self) -> float:
        return self.HEIGHT * min(max(self.share or 0.0, 0.0), 1.0)


class RunWalls:
    """The three walls of a run, as far as its log and its newest usable profile show them.

    `continued`: the run in which the tuning of this one continued.
    """

    def __init__(self, advice: RunSuggestions | None, profile: ProfilePage | None, continued: int | None) -> None:
        self._advice = advice
        self.profile = profile
        self.continued = continued

    @property
    def next(self) -> tuple[tuple[str, str], ...]:
        """Return rule and title of the first suggestions.

        Where tuning continued in another run, only the test of the regression of this one.
        """
        leading = self._advice.leading if self._advice is not None else ()
        titles = tuple((suggestion.rule.id, suggestion.title) for suggestion in leading)
        return titles if self.continued is None else tuple(item for item in titles if item[0] in REGRESSION_RULES)

    @property
    def walls(self) -> tuple[RunWall, ...]:
        """Return all walls if a profile or the log shows one."""
        return self._all if self.profile is not None or any(wall.share is not None for wall in self._all) else ()

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Return the names of the walls that the log of a run without a profile does not show."""
        return () if self.profile is not None else tuple(wall.name for wall in self._all if wall.share is None)

    @property
    def needs_gpu(self) -> bool:
        """Return whether the log shows the peak memory, but nothing the size of the GPU's memory."""
        facts = self._facts
        return facts.get("mem_alloc_peak_gb") is not None and facts.get("hbm_gb") is None

    @property
    def presumed(self) -> str:
        """Return the wall to expect on the GPU of a run that was not profiled; empty without one."""
        reading = self._advice.evaluation.wall if self._advice is not None else None
        return reading.wall if reading is not None and reading.certainty == "expected" else ""

    @property
    def limit(self) -> str:
        """Return what limits the step, as the page of the next step says it; empty if nothing shows it."""
        reading = self._advice.evaluation.wall if self._advice is not None else None
        return reading.limit if reading is not None and reading.certainty in ("measured", "inferred") else ""

    @property
    def _facts(self) -> Mapping[str, Any]:
        return self._advice.evaluation.facts if self._advice is not None else {}

    @property
    def _all(self) -> tuple[RunWall, ...]:
        facts = self._facts
        exposed, idle = facts.get("exposed_comm_frac"), facts.get("gpu_idle_frac")
        used, most = _rest(facts.get("headroom_frac")), _rest(facts.get("T_headroom"))
        return (
            RunWall("of the GPU's memory, by the log", used, most, "memory", "Memory"),
            RunWall("exposed communication", exposed, facts.get("T_comm"), "communication", "Comm"),
            RunWall("idle GPU", idle, facts.get("T_idle"), "host", "Host"),
        )


def _captured(quality: Mapping[str, Any]) -> Iterator[str]:
    """Yield the captured ranks and steps."""
    ranks, world = quality["ranks"], quality["world_size"]
    captured = f"{ranks} of {world} ranks" if world else f"{plural(ranks, 'rank')}, world size unknown"
    steps = plural(quality["steps"], "step") if quality["steps"] else "the whole trace as one window"
    yield f"{captured}, {steps}."
    yield f"Format: {', '.join(quality['formats'])}. Results apply to the captured ranks only."
    if quality["steps"]:
        yield f"Steps are split by {quality['step_source']}; values are medians."
    elif ranks:
        yield "No step markers were found."


def _trusted(quality: Mapping[str, Any]) -> Iterator[str]:
    """Yield the limits of what the trace shows."""
    if quality["launch_correlated"] is not None and quality["launch_correlated"] < 0.99:
        yield f"{share_text(quality['launch_correlated'])} of the GPU activities have a known launch."
    if quality["unresolved_frac"] > 0.01:
        yield f"{share_text(quality['unresolved_frac'])} of the time without computation has no known reason."
    if quality["graphs"] == "whole":
        yield "CUDA graphs were traced as a whole, without their kernels. Record with --cuda-graph-trace=node."
    elif quality["graphs"] == "node":
        yield f"{plural(quality['graph_launches'], 'CUDA graph launch', 'CUDA graph launches')}, traced by kernel."
    if dependencies := quality.get("dependencies"):
        yield (
            f"Dependencies are recorded for {dependencies['resolved']:,} of {dependencies['gaps']:,} gaps during "
            f"communication; it blocked the computation for {dependencies['blocking_comm_ms']:.1f} ms of them."
        )
    if quality["rounded"]:
        yield "Times are whole microseconds; kernels shorter than 20 µs are rounded noticeably."
    if quality["unclassified"]["work_frac"] > 0.01:
        yield f"{share_text(quality['unclassified']['work_frac'])} of the kernel time is unclassified."
    if quality["skipped_events"]:
        yield f"{quality['skipped_events']:,} events without a valid time were skipped."
    if quality["clock_disorder"]:
        yield f"{quality['clock_disorder']:,} activities begin before their launch: the clocks of host and GPU differ."


def _rest(share: float | None) -> float | None:
    return None if share is None else 1 - share


def _share_of_window(window: Mapping[str, Any], name: str) -> float | None:
    """Return a time of the typical step over its length."""
    time = window.get(name)
    return None if time is None or not window["window_ms"] else time / window["window_ms"]


def _excess(number: Number) -> float:
    share, threshold = number.share or 0.0, number.threshold or 1.0
    return share / threshold


@dataclass(frozen=True, slots=True)
class DifferencePage:
    """Data of the comparison of two profiles."""

    before: Profile
    after: Profile
    difference: ProfileDifference

    @property
    def answer(self) -> str:
        return f"{change_of_step(self.difference)}."

    @property
    def contributions(self) -> str:
        parts = contributions(self.difference)
        return f"{', '.join(parts)}." if parts else ""

    @property
    def rows(self) -> list[tuple[str, Any]]:
        return [(label_of(row.name), row) for row in self.difference.rows if max(row.before_ms, row.after_ms) >= 0.0005]

    @property
    def largest(self) -> float:
        """Return the largest difference of a row, the scale of the bars."""
        return max((abs(row.difference_ms) for row in self.difference.rows), default=0.0) or 1.0

    @property
    def decimals(self) -> int:
        """Return the decimals of milliseconds in the table."""
        return 1 if self.difference.before_ms >= 1000 else 3

    @property
    def unprofiled_ms(self) -> float | None:
        """Return the difference of the unprofiled step times. None if it is one run, or a step time is unknown."""
        before, after = self.before.run.step_time_ms, self.after.run.step_time_ms
        return None if before is None or after is None or self.before.run.id == self.after.run.id else after - before

    @property
    def explained(self) -> float | None:
        """Return the share of the unprofiled difference that the profiles show. None without steps to compare."""
        unprofiled = self.unprofiled_ms
        if not unprofiled or not self.difference.per_step:
            return None
        share = self.difference.difference_ms / unprofiled
        return share if share > 0 else None
