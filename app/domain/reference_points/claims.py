"""The claim check: what a gap between our figure and a published one may be made of, most telling first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.values import shown
from app.domain.numbers import significant
from app.domain.reference_points.point import ReferencePoint
from app.domain.run import Value

SAME_FLOPS = 0.005
"""FLOPs per token are a constant of model and sequence length: who counts alike agrees to within 0.5 %."""
_FORCED = frozenset({"forced-balance", "forced-biased"})
_DROPPING = frozenset({"drop-and-pad", "capacity-drop"})
_LAYOUT = ("tp", "pp", "vpp", "cp", "ep", "etp")


@dataclass(frozen=True, slots=True)
class ReferenceDifference:
    """A contract field that differs, or may: `is_known` false where a side does not state it."""

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
    """A likely part of the gap. `field`: the contract field it rests on, or what it is about."""

    field: str
    sentence: str


def likely_causes(
    point: ReferencePoint, differences: Sequence[ReferenceDifference], our_gflops_per_token: float | None
) -> tuple[Cause, ...]:
    """`differences`: ours against the point's."""
    known = {one.field: one for one in differences if one.is_known}
    return (
        *_flops(point, our_gflops_per_token),
        *_routing(known),
        *_work(known),
        *_setting(known),
        *_publication(point, differences),
    )


def _flops(point: ReferencePoint, ours: float | None) -> Iterator[Cause]:
    theirs = point.gflops_per_token
    if ours is None or theirs is None or abs(ours / theirs - 1) <= SAME_FLOPS + _rounding(point):
        return
    twice = any(abs(ratio - 2) <= 0.02 for ratio in (ours / theirs, theirs / ours))
    yield Cause(
        "flops",
        f"The two count other FLOPs for a token: {significant(ours)} here, {significant(theirs)} there, in GFLOP"
        f"{' (a factor of two)' if twice else ''}. Multi-token prediction, vocabulary padding, windowed attention or"
        f" the sequence length explain it, not speed: compare tokens/s/GPU.",
    )


def _rounding(point: ReferencePoint) -> float:
    """What whole numbers in a table may hide of their ratio."""
    figures = (point.tokens_per_s_per_gpu, point.tflops_per_gpu)
    return sum(0.5 / value for value in figures if value and value == int(value))


def _routing(known: Mapping[str, ReferenceDifference]) -> Iterator[Cause]:
    routing = known.get("routing_mode")
    if routing is None:
        return
    if (routing.theirs in _FORCED) != (routing.ours in _FORCED):
        forced, natural = ("It", "this stack") if routing.theirs in _FORCED else ("This stack", "it")
        yield Cause(
            "routing_mode",
            f"{forced} forces balanced routing, {natural} does not. Forced balance is a ceiling: with natural routing"
            f" the same job was 8 to 20 % slower in the one published series that has both.",
        )
    if (routing.theirs in _DROPPING) != (routing.ours in _DROPPING):
        dropping = "It" if routing.theirs in _DROPPING else "This stack"
        yield Cause(
            "routing_mode",
            f"{dropping} drops tokens over capacity: they cost no expert any time, and FLOPs count them all the same.",
        )


def _work(known: Mapping[str, ReferenceDifference]) -> Iterator[Cause]:
    if "mtp" in known:
        ours, theirs = (_count(value) for value in (known["mtp"].ours, known["mtp"].theirs))
        more = "It" if theirs > ours else "This stack"
        yield Cause(
            "mtp", f"{more} has more layers of multi-token prediction: on DeepSeek-V3 one adds 4.1 % FLOPs to a token."
        )
    if "seq_len" in known:
        yield Cause(
            "seq_len",
            f"{_both(known['seq_len'])} tokens a sequence: attention costs more for each token of a longer one.",
        )
    if "precision" in known:
        yield Cause("precision", f"{_both(known['precision'])}: another peak, and other kernels.")
    if "data_mode" in known:
        yield Cause("data_mode", f"{_both(known['data_mode'])} data: made-up tokens load and route more evenly.")
    if "task" in known:
        yield Cause("task", f"{_both(known['task'])} is other work.")


def _setting(known: Mapping[str, ReferenceDifference]) -> Iterator[Cause]:
    for name, why in (
        ("gpus", "GPUs: communication crosses other links."),
        ("dispatcher", "carries the tokens."),
        ("gbs", "sequences a step: more micro-batches hide more of the pipeline's bubbles."),
        ("mbs", "sequences at once: larger micro-batches make larger matrices."),
        ("ep_overlap", "for overlapped expert-parallel communication."),
    ):
        if name in known:
            yield Cause(name, f"{_both(known[name])} {why}")
    layout = [name for name in _LAYOUT if name in known]
    if layout:
        told = ", ".join(f"{name} {_both(known[name])}" for name in layout)
        yield Cause(layout[0], f"Another parallel layout: {told}.")
    if "container" in known:
        yield Cause("container", f"{_both(known['container'])}: figures of one recipe move from release to release.")


def _publication(point: ReferencePoint, differences: Sequence[ReferenceDifference]) -> Iterator[Cause]:
    if point.note:
        yield Cause("note", point.note)
    if point.rounded:
        yield Cause("rounded", "The publisher writes it as about so much: a few percent are nothing.")
    if point.window:
        yield Cause(
            "window",
            f"It is a mean over iterations {point.window}; ours is a median, which slow iterations do not move.",
        )
    vague = [one for one in differences if not one.theirs_known and one.theirs is not None]
    if vague:
        yield Cause("precision", f"It says {shown(vague[0].theirs).upper()}, and not which recipe.")
    unknown = [one.field for one in differences if not one.theirs_known and one not in vague]
    if unknown:
        yield Cause("unknown", f"It does not state {', '.join(f'`{name}`' for name in unknown)}.")


def _count(value: Value) -> int:
    return value if isinstance(value, int) else 0


def _both(one: ReferenceDifference) -> str:
    return f"{shown(one.ours)} here, {shown(one.theirs)} there"
