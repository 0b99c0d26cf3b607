"""Find the reference point closest to a stack, the differences, and the gap between the figures.

It is always another lab's measurement: shown next to a ranking, never in it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.values import same_value, shown
from app.domain.numbers import THIN, change_text, percent, plural, significant
from app.domain.ranking.runs import family_of
from app.domain.references.point import FP8_OF_SOME_KIND, ReferencePoint
from app.domain.run import FORCED_ROUTING, Stated, Value
from app.domain.text import coded_names, some_of

# --- The claim check: likely parts of the gap between our figure and a published one, most specific first.

SAME_FLOPS = 0.005
"""FLOPs per token are a constant of model and sequence length: equal conventions agree to within 0.5 %."""
_DROPPING = frozenset({"drop-and-pad", "capacity-drop"})
_LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "etp")


@dataclass(frozen=True, slots=True)
class ReferenceDifference:
    """A contract field that differs, or may differ: `is_known` is False when one side does not state it."""

    field: str
    ours: Value
    theirs: Value
    ours_known: bool
    theirs_known: bool

    @property
    def is_known(self) -> bool:
        return self.ours_known and self.theirs_known


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely part of the gap. `field`: the contract field behind it, or its topic."""

    field: str
    sentence: str


def likely_causes(
    point: ReferencePoint, differences: Sequence[ReferenceDifference], our_gflops_per_token: float | None
) -> tuple[Cause, ...]:
    """Return the likely causes of the gap. `differences`: ours against the point's."""
    certain = {difference.field: difference for difference in differences if difference.is_known}
    return (
        *_flops(point, our_gflops_per_token),
        *_routing(certain),
        *_work(certain),
        *_setting(certain),
        *_publication(point, differences),
    )


def _flops(point: ReferencePoint, ours: float | None) -> Iterator[Cause]:
    theirs = point.gflops_per_token
    if ours is None or theirs is None:
        return
    rounding = sum(point.rounding_pct[name] for name in ("tokens_per_s_per_gpu", "tflops_per_gpu")) / 100
    if abs(ours / theirs - 1) <= SAME_FLOPS + rounding:
        return
    twice = any(abs(ratio - 2) <= 0.02 for ratio in (ours / theirs, theirs / ours))
    yield Cause(
        "flops",
        f"The FLOP counts per token differ: {significant(ours)} here, {significant(theirs)} there, in GFLOP"
        f"{' (a factor of two)' if twice else ''}. Multi-token prediction, vocabulary padding, windowed attention or"
        f" the sequence length explain this, not speed: compare tokens/s/GPU.",
    )


def _routing(certain: Mapping[str, ReferenceDifference]) -> Iterator[Cause]:
    routing = certain.get("routing_mode")
    if routing is None:
        return
    if (routing.theirs in FORCED_ROUTING) != (routing.ours in FORCED_ROUTING):
        forced, natural = ("It", "yours") if routing.theirs in FORCED_ROUTING else ("Yours", "it")
        yield Cause(
            "routing_mode",
            f"{forced} forces balanced routing, {natural} does not. Forced balance is a ceiling: with natural routing"
            f" the same job was 8 to 20 % slower in the one published series that has both.",
        )
    if (routing.theirs in _DROPPING) != (routing.ours in _DROPPING):
        dropping = "It" if routing.theirs in _DROPPING else "Yours"
        yield Cause(
            "routing_mode",
            f"{dropping} drops tokens over capacity: they take no expert time but still count as FLOPs.",
        )


def _work(certain: Mapping[str, ReferenceDifference]) -> Iterator[Cause]:
    if "mtp" in certain:
        ours, theirs = (
            layers if isinstance(layers, int) else 0 for layers in (certain["mtp"].ours, certain["mtp"].theirs)
        )
        more = "It" if theirs > ours else "Yours"
        yield Cause(
            "mtp", f"{more} has more layers of multi-token prediction: on DeepSeek-V3 one adds 4.1 % FLOPs to a token."
        )
    if "seq_len" in certain:
        yield Cause(
            "seq_len",
            f"{_both(certain['seq_len'])} tokens per sequence: attention costs more per token in longer sequences.",
        )
    if "precision" in certain:
        yield Cause("precision", f"{_both(certain['precision'])}: different peak and kernels.")
    if "data_mode" in certain:
        yield Cause("data_mode", f"{_both(certain['data_mode'])} data: synthetic tokens load and route more evenly.")
    if "task" in certain:
        yield Cause("task", f"{_both(certain['task'])} is different work.")


def _setting(certain: Mapping[str, ReferenceDifference]) -> Iterator[Cause]:
    for name, why in (
        ("gpus", "GPUs: communication uses different links."),
        ("dispatcher", "dispatches the tokens."),
        ("gbs", "sequences per step: more micro-batches hide more of the pipeline's bubbles."),
        ("mbs", "sequences at once: larger micro-batches make larger matrices."),
        ("ep_overlap", "for overlapped expert-parallel communication."),
    ):
        if name in certain:
            yield Cause(name, f"{_both(certain[name])} {why}")
    layout = [name for name in _LAYOUT if name in certain]
    if layout:
        degrees = ", ".join(f"{name} {_both(certain[name])}" for name in layout)
        yield Cause(layout[0], f"Different parallel layout: {degrees}.")
    if "container" in certain:
        yield Cause("container", f"{_both(certain['container'])}: figures for one recipe change between releases.")


def _publication(point: ReferencePoint, differences: Sequence[ReferenceDifference]) -> Iterator[Cause]:
    if point.note and (point.untuned or point.kind != "verification_card"):  # that of a tuned card names its recipe
        yield Cause("note", point.note)
    if point.rounded:
        most = percent(max(point.rounding_pct.values()))
        yield Cause("rounded", f"The published figure is rounded: a difference of up to {most} means nothing.")
    if point.window:
        yield Cause(
            "window",
            f"The published figure is a mean over iterations {point.window}; yours is a median.",
        )
    vague = [difference for difference in differences if not difference.theirs_known and difference.theirs is not None]
    if vague:
        yield Cause("precision", f"The publisher states {shown(vague[0].theirs).upper()} without the recipe.")
    unknown = [
        difference.field for difference in differences if not difference.theirs_known and difference not in vague
    ]
    if unknown:
        yield Cause("unknown", f"The publisher does not state {', '.join(f'`{name}`' for name in unknown)}.")


def _both(difference: ReferenceDifference) -> str:
    return f"{shown(difference.ours)} here, {shown(difference.theirs)} there"


WEIGHTS: Mapping[str, float] = {
    "task": 8,
    "routing_mode": 8,
    "precision": 6,
    "seq_len": 6,
    "gpus": 4,
    "dispatcher": 3,
    "mtp": 3,
    "data_mode": 2,
    "ep": 2,
    "pp": 2,
    "tp": 2,
    "cp": 2,
    "vpp": 1,
    "etp": 1,
    "gbs": 2,
    "mbs": 2,
    "ep_overlap": 2,
    "delay_wgrad": 1,
    "permute_fusion": 1,
    "container": 1,
}
"""Compared fields with their weights: higher for fields that change a figure more. Our judgement."""


@dataclass(frozen=True, slots=True)
class OurFigures:
    """Figures of a stack's leader, or of a run. None: unknown."""

    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    step_time_ms: float | None = None

    @property
    def gflops_per_token(self) -> float | None:
        if not self.tokens_per_s_per_gpu or not self.tflops_per_gpu:
            return None
        return 1000 * self.tflops_per_gpu / self.tokens_per_s_per_gpu


@dataclass(frozen=True, slots=True)
class Nearest:
    """A point compared with our figures.

    `more_pct`: by figure, how much higher ours is. Figures that are not comparable are missing: step time of other
    work, tokens/s of another sequence length. `faster`: the fastest point of the same step, if `point` is not.
    """

    point: ReferencePoint
    differences: tuple[ReferenceDifference, ...]
    more_pct: Mapping[str, float]
    causes: tuple[Cause, ...]
    faster: ReferencePoint | None = None

    @property
    def differs_in(self) -> tuple[str, ...]:
        """Return the fields that are known to differ."""
        return tuple(difference.field for difference in self.differences if difference.is_known)

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the comparable figures, step time first."""
        return tuple(sorted(self.more_pct, key=lambda name: name != "step_time_ms"))

    @property
    def measure(self) -> str:
        """Return the figure that states the gap; empty without a comparable one."""
        return next(iter(self.measures), "")

    def gap(self, measure: str) -> str:
        """Return `4.1 % slower`, `3.9 % less TFLOP/s/GPU` or `equal within rounding`, for a comparable figure."""
        if self.is_equal(measure):
            return "equal within rounding"
        more = self.more_pct[measure]
        if measure == "step_time_ms":
            return change_text(more).figure
        fewer = "fewer" if measure == "tokens_per_s_per_gpu" else "less"
        return f"{percent(abs(more))} {'more' if more >= 0 else fewer} {_UNITS[measure]}"

    def is_equal(self, measure: str) -> bool:
        """Return whether the rounding of the published figure may hide the whole gap."""
        return abs(self.more_pct[measure]) <= self.point.rounding_pct[measure]

    @property
    def sentence(self) -> str:
        """Summarise: `4.1 % slower than NVIDIA's 20.15 s step; container differs, 4 fields not stated.`"""
        return f"{self.against}; {self.differing}."

    @property
    def differing(self) -> str:
        """Return `container differs, 4 fields not stated`, or `no known field differs`."""
        left_open = len(self.differences) - len(self.differs_in)
        return self.known_to_differ + (f", {plural(left_open, 'field')} not stated" if left_open else "")

    @property
    def known_to_differ(self) -> str:
        """Return `container differs`, `precision and 2 more differ` or `no known field differs`."""
        fields = [f"`{name}`" for name in self.differs_in]
        named = some_of(fields, 2 if len(fields) == 2 else 1) if fields else "no known field"
        return f"{named} {'differ' if len(fields) > 1 else 'differs'}"

    @property
    def against(self) -> str:
        """Return `4.1 % slower than NVIDIA's 20.15 s step`, or `equal within rounding to NVIDIA's about 370`."""
        if not self.measure:
            return f"No figure is comparable with {self.point.measured_by}'s"
        theirs = f"{self.point.measured_by}'s {self.point.texts[self.measure]}"
        step = " step" if self.measure == "step_time_ms" else ""
        if self.is_equal(self.measure):
            return f"Equal within rounding to {theirs}{step or THIN + _UNITS[self.measure]}"
        if step:
            return f"{change_text(self.more_pct[self.measure]).than} {theirs}{step}"
        return f"{self.gap(self.measure)} than {theirs}"


_UNITS = {"tokens_per_s_per_gpu": "tokens/s/GPU", "tflops_per_gpu": "TFLOP/s/GPU"}


def nearest_reference(
    contract: Mapping[str, Stated], figures: OurFigures, points: Iterable[ReferencePoint]
) -> Nearest | None:
    """Return the closest point of the same model and GPU; None without one, even if another model is similar.

    The smallest distance (`nearness`) decides; among equals the newest wins.
    """
    ours = {name: stated.value for name, stated in contract.items()}
    model, gpu = ours.get("model"), ours.get("gpu")
    if not isinstance(model, str) or not isinstance(gpu, str):
        return None
    family = family_of(model, ours)
    same = [point for point in points if point.family == family and same_value("gpu", point.contract["gpu"], gpu)]
    if not same:
        return None
    newest_first = sorted(same, key=lambda candidate: (candidate.date, candidate.key), reverse=True)
    point = min(newest_first, key=lambda candidate: nearness(candidate, compare(ours, candidate)))
    differences = compare(ours, point)
    causes = likely_causes(point, differences, figures.gflops_per_token)
    fastest = next(iter(same_work(ours, same)), None)
    is_faster = fastest is not None and _step_ms(fastest) < (_step_ms(point) or math.inf)
    return Nearest(point, differences, _more(ours, figures, point), causes, fastest if is_faster else None)


def same_work(ours: Mapping[str, Value], points: Iterable[ReferencePoint]) -> list[ReferencePoint]:
    """Return the points of the same step with a step time, stated or implied, the fastest first."""

    def is_same(point: ReferencePoint) -> bool:
        theirs = point.contract
        stated = all(name in theirs and ours.get(name) == theirs[name] for name in STEP_FIELDS)
        return stated and all(
            name not in theirs or ours.get(name) is None or ours[name] == theirs[name] for name in _COST_FIELDS
        )

    return sorted((point for point in points if point.implied_step_ms and is_same(point)), key=_step_ms)


STEP_FIELDS = ("gpus", "seq_len", "gbs", "precision")
"""Fields that a published step time must state with our values to be of the same step."""
_COST_FIELDS = ("routing_mode", "mtp", "task")
"""Fields that may not be known to differ: they change what a step computes."""


def _step_ms(point: ReferencePoint) -> float:
    return point.implied_step_ms or 0.0


def compare(ours: Mapping[str, Value], point: ReferencePoint) -> tuple[ReferenceDifference, ...]:
    """Return fields that differ, or that one side leaves open, in order of their usual effect."""
    differences = []
    for name in WEIGHTS:
        we, they = name in ours, name in point.contract
        mine, theirs = ours.get(name), point.contract.get(name)
        if not they and mine is None:  # unknown to both, or unset here and not stated there
            continue
        if we and they and _same(name, mine, theirs):
            continue
        some_fp8 = name == "precision" and theirs == FP8_OF_SOME_KIND and str(mine).startswith(FP8_OF_SOME_KIND)
        differences.append(ReferenceDifference(name, mine, theirs, we, they and not some_fp8))
    return tuple(differences)


OPEN_SHARE = 0.5
"""Share of its weight that an open field counts: it may differ, so that a vague point is not near. Our judgement."""


def nearness(point: ReferencePoint, differences: Sequence[ReferenceDifference]) -> tuple[bool, float]:
    """Return the sort key, nearest first: the weight of known differences and a share of that of open fields.

    A team's own figure without known differences comes before those of others, because it was entered for this job.
    """
    return (
        point.kind != "own" or any(difference.is_known for difference in differences),
        sum(WEIGHTS[difference.field] * (1 if difference.is_known else OPEN_SHARE) for difference in differences),
    )


def why_farther(ours: Mapping[str, Value], point: ReferencePoint, nearer: ReferencePoint) -> str:
    """Return why `nearer` was compared with ours instead of `point`, as a clause about `point`."""
    mine, theirs = compare(ours, point), compare(ours, nearer)
    (not_own, distance), (other_not_own, less) = nearness(point, mine), nearness(nearer, theirs)
    differing, nearer_differing = (
        sum(WEIGHTS[difference.field] for difference in side if difference.is_known) for side in (mine, theirs)
    )
    if differing > nearer_differing:
        return f"it differs in {_fields(mine, are_known=True)}, the nearest in {_fields(theirs, are_known=True)}"
    if not_own and not other_not_own:
        return "the nearest figure was added by a team and has no known difference"
    if distance <= less:
        return "the nearest figure is equally close and newer"
    return (
        f"it does not state {_fields(mine, are_known=False)}, "
        f"the nearest leaves open {_fields(theirs, are_known=False)}"
    )


def _fields(differences: Sequence[ReferenceDifference], *, are_known: bool) -> str:
    return coded_names(difference.field for difference in differences if difference.is_known == are_known) or "nothing"


def _same(name: str, mine: Value, theirs: Value) -> bool:
    if name == "container":
        return _image(mine) == _image(theirs)
    if mine is None or theirs is None:
        return mine is theirs
    return same_value(name, mine, theirs)


def _image(value: Value) -> str:
    """Return the image without registry and digest: the same image has many addresses."""
    return str(value).partition("@")[0].rpartition("/")[2]


def _more(ours: Mapping[str, Value], figures: OurFigures, point: ReferencePoint) -> dict[str, float]:
    same_length = ours.get("seq_len") is not None and ours.get("seq_len") == point.contract.get("seq_len")
    same_work = same_length and all(
        ours.get(name) is not None and ours.get(name) == point.contract.get(name) for name in ("gbs", "gpus")
    )
    pairs = {
        "tokens_per_s_per_gpu": (figures.tokens_per_s_per_gpu, point.tokens_per_s_per_gpu, same_length),
        "tflops_per_gpu": (figures.tflops_per_gpu, point.tflops_per_gpu, True),
        "step_time_ms": (figures.step_time_ms, point.step_time_ms, same_work),
    }
    return {name: 100 * (mine / theirs - 1) for name, (mine, theirs, may) in pairs.items() if mine and theirs and may}
