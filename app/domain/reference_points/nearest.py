"""The published figure that is closest to a stack, what differs, and how far our figure is from it.

It is always another lab's measurement: shown beside a ranking, never in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.values import same_value
from app.domain.numbers import percent
from app.domain.ranking.families import family_of
from app.domain.reference_points.claims import Cause, ReferenceDifference, likely_causes
from app.domain.reference_points.point import FP8_OF_SOME_KIND, ReferencePoint
from app.domain.run import Stated, Value

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
"""What is compared, and how much a difference counts for nearness: more for what moves a figure more. Our judgement."""


@dataclass(frozen=True, slots=True)
class OurFigures:
    """Of a stack's leader, or of a run. None: unknown."""

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
    """A point and where we stand to it. `more_pct`: our figure is that much more than theirs, by name of the figure.

    A figure is left out where it is not comparable: step time of other work, tokens/s of another sequence length.
    """

    point: ReferencePoint
    differences: tuple[ReferenceDifference, ...]
    more_pct: Mapping[str, float]
    causes: tuple[Cause, ...]

    @property
    def differs_in(self) -> tuple[str, ...]:
        """Fields that are known to differ."""
        return tuple(one.field for one in self.differences if one.is_known)

    @property
    def sentence(self) -> str:
        """`12.3 % less tokens/s/GPU than another lab's measurement (..., 2026-07-27); it differs in nothing known.`"""
        fields = ", ".join(f"`{name}`" for name in self.differs_in) or "nothing known"
        whose = f"{self.point.label} ({self.point.measured_by}, {self.point.source}, {self.point.date})"
        return f"{self._gap()} {whose}; it differs in {fields}."

    def _gap(self) -> str:
        names = {"tokens_per_s_per_gpu": "tokens/s/GPU", "tflops_per_gpu": "TFLOP/s/GPU", "step_time_ms": "step time"}
        for name, words in names.items():
            if name in self.more_pct:
                more = self.more_pct[name]
                return f"{percent(abs(more))} {'more' if more >= 0 else 'less'} {words} than"
        return "No figure that can be held against"


def nearest_reference(
    contract: Mapping[str, Stated], figures: OurFigures, points: Iterable[ReferencePoint]
) -> Nearest | None:
    """The closest of the points of the same model and GPU; None when there is none, however near another model is.

    Known differences decide first, however much another figure leaves open (`nearness`); of equals the newest.
    """
    ours = {name: stated.value for name, stated in contract.items()}
    model, gpu = ours.get("model"), ours.get("gpu")
    if not isinstance(model, str) or not isinstance(gpu, str):
        return None
    family = family_of(model, ours)
    same = [one for one in points if one.family == family and same_value("gpu", one.contract["gpu"], gpu)]
    if not same:
        return None
    newest_first = sorted(same, key=lambda one: (one.date, one.key), reverse=True)
    point = min(newest_first, key=lambda one: nearness(one, compare(ours, one)))
    differences = compare(ours, point)
    causes = likely_causes(point, differences, figures.gflops_per_token)
    return Nearest(point, differences, _more(ours, figures, point), causes)


def compare(ours: Mapping[str, Value], point: ReferencePoint) -> tuple[ReferenceDifference, ...]:
    """Fields that differ, or that one side leaves open; in the order of what they move."""
    found = []
    for name in WEIGHTS:
        we, they = name in ours, name in point.contract
        mine, theirs = ours.get(name), point.contract.get(name)
        if not they and mine is None:  # unknown to both, or unset here and not worth a word there
            continue
        if we and they and _same(name, mine, theirs):
            continue
        some_fp8 = name == "precision" and theirs == FP8_OF_SOME_KIND and str(mine).startswith(FP8_OF_SOME_KIND)
        found.append(ReferenceDifference(name, mine, theirs, we, they and not some_fp8))
    return tuple(found)


def nearness(point: ReferencePoint, differences: Sequence[ReferenceDifference]) -> tuple[float, bool, float]:
    """The least is the nearest: what is known to differ, then what is left open.

    A team's own figure in which nothing is known to differ stands before those of others: it was entered for this job.
    """
    known = sum(WEIGHTS[one.field] for one in differences if one.is_known)
    left_open = sum(WEIGHTS[one.field] for one in differences if not one.is_known)
    return known, known > 0 or point.kind != "own", left_open


def why_farther(ours: Mapping[str, Value], point: ReferencePoint, nearer: ReferencePoint) -> str:
    """Why `nearer` is held against ours and `point` is not, said of `point`."""
    mine, theirs = compare(ours, point), compare(ours, nearer)
    (known, not_own, left_open), (less, other_not_own, less_open) = nearness(point, mine), nearness(nearer, theirs)
    if known > less:
        return f"it differs in {_fields(mine, known=True)}, the nearest in {_fields(theirs, known=True)}"
    if not_own and not other_not_own:
        return "a team entered the nearest, and nothing is known to differ in it"
    if left_open > less_open:
        return f"it does not state {_fields(mine, known=False)}, the nearest leaves open {_fields(theirs, known=False)}"
    return "the nearest is as near, and newer"


def _fields(differences: Sequence[ReferenceDifference], *, known: bool) -> str:
    return ", ".join(f"`{one.field}`" for one in differences if one.is_known == known) or "nothing"


def _same(name: str, mine: Value, theirs: Value) -> bool:
    if name == "container":
        return _image(mine) == _image(theirs)
    if mine is None or theirs is None:
        return mine is theirs
    return same_value(name, mine, theirs)


def _image(value: Value) -> str:
    """Without registry and digest: the same image has many addresses."""
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
