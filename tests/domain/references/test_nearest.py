"""The nearest published figure, what differs, and what the gap may be made of."""

from typing import Any

import pytest

from app.domain.references.nearest import Nearest, OurFigures, nearest_reference
from app.domain.references.point import ReferencePoint, read_reference
from app.domain.references.published import published
from app.domain.run import Stated

QWEN: dict[str, Any] = {
    "task": "pretrain",
    "model": "Qwen3-30B-A3B",
    "gpu": "H100",
    "gpus": 16,
    "precision": "bf16",
    "seq_len": 4096,
    "gbs": 1024,
    "mbs": 1,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 16,
    "dispatcher": "hybridep",
    "routing_mode": "forced-balance",
    "data_mode": "mock",
    "container": "nvcr.io/nvidia/nemo:26.06",
}


def nearest(
    figures: OurFigures | None = None, points: tuple[ReferencePoint, ...] | None = None, **other: Any
) -> Nearest:
    contract = {name: Stated(value, "metadata") for name, value in (QWEN | other).items() if value != "unknown"}
    result = nearest_reference(contract, figures or OurFigures(), published() if points is None else points)
    assert result is not None
    return result


def make_point(**fields: Any) -> ReferencePoint:
    stated = {**QWEN, "measured_by": "a lab", "source": "a paper", "date": "2026-08", "tflops_per_gpu": 200.0, **fields}
    return read_reference({name: value for name, value in stated.items() if value != "unknown"})


def test_the_stack_of_the_record_finds_the_record() -> None:
    """20.147 s, another lab, 2026-07-27, differs in nothing known."""
    result = nearest(OurFigures(12_000.0, 276.0, 21_846.0))
    assert (result.point.step_time_ms, result.point.date) == (20147.29, "2026-07-27")
    assert result.differs_in == ()
    assert result.more_pct["step_time_ms"] == pytest.approx(8.43, abs=0.01)
    text = result.sentence.replace("\u202f", " ")
    assert [part in text for part in ("8.4 % slower", "NVIDIA", "20.15 s")] == [True] * 3


def test_natural_routing_finds_the_natural_record() -> None:
    result = nearest(routing_mode="dropless", data_mode="real")
    assert (result.point.step_time_ms, result.differs_in) == (30289.55, ())


def test_another_model_or_gpu_is_never_near() -> None:
    unknown = {name: Stated(value, "metadata") for name, value in QWEN.items()}
    for field in ("model", "gpu"):
        other = unknown | {field: Stated("something else", "metadata")}
        assert nearest_reference(other, OurFigures(), published()) is None
        del other[field]
        assert nearest_reference(other, OurFigures(), published()) is None


def test_of_equals_the_newest_is_taken_whatever_their_order() -> None:
    old, new = make_point(date="2026-05"), make_point(date="2026-07-01")
    assert nearest(points=(old, new)).point is nearest(points=(new, old)).point is new


def test_a_field_that_nobody_states_is_unknown_and_not_equal() -> None:
    result = nearest(points=(make_point(dispatcher="unknown", gbs=512),))
    assert {difference.field: difference.is_known for difference in result.differences} == {
        "dispatcher": False,
        "gbs": True,
    }
    assert result.differs_in == ("gbs",)
    assert result.causes[-1].sentence.endswith("not state `dispatcher`.")


def test_a_known_difference_is_farther_than_an_unknown_one() -> None:
    silent, other = make_point(dispatcher="unknown"), make_point(dispatcher="alltoall")
    assert nearest(points=(other, silent)).point is silent


def test_figures_that_are_not_comparable_have_no_distance() -> None:
    point = make_point(tokens_per_s_per_gpu=10_000.0, step_time_ms=26_000.0)
    ours = OurFigures(11_000.0, 220.0, 25_000.0)
    assert set(nearest(ours, (point,)).more_pct) == {"tokens_per_s_per_gpu", "tflops_per_gpu", "step_time_ms"}
    assert set(nearest(ours, (point,), gbs=512).more_pct) == {"tokens_per_s_per_gpu", "tflops_per_gpu"}
    assert set(nearest(ours, (point,), seq_len=8192).more_pct) == {"tflops_per_gpu"}
    assert nearest(ours, (point,)).measure == "step_time_ms"
    assert nearest(ours, (point,), gbs=512).measure == "tokens_per_s_per_gpu"
    assert nearest(points=(point,)).measure == ""


@pytest.mark.parametrize(
    ("theirs", "ours", "field", "words"),
    [
        ({}, {"routing_mode": "dropless"}, "routing_mode", "It forces balanced routing, this stack does not."),
        ({"routing_mode": "dropless"}, {}, "routing_mode", "This stack forces balanced routing, it does not."),
        (
            {"routing_mode": "capacity-drop"},
            {"routing_mode": "dropless"},
            "routing_mode",
            "It drops tokens over capacity",
        ),
        ({"mtp": 1}, {"mtp": 0}, "mtp", "It has more layers of multi-token prediction"),
        ({"mtp": 0}, {"mtp": 1}, "mtp", "This stack has more layers"),
        (
            {"container": "nemo:26.04"},
            {},
            "container",
            "26.04 there: figures for one recipe change between releases.",
        ),
        ({"precision": "fp8_sc"}, {}, "precision", "bf16 here, fp8_sc there: different peak"),
        ({"precision": "fp8"}, {"precision": "fp8_sc"}, "precision", "The publisher states FP8 without the recipe."),
        ({"gpus": 32}, {}, "gpus", "16 here, 32 there GPUs"),
        ({"ep": 8, "tp": 2}, {}, "tp", "Different parallel layout: tp 1 here, 2 there, ep 16 here, 8 there."),
        ({"rounded": True}, {}, "rounded", "rounded"),
        ({"window": "41 to 50 of 50"}, {}, "window", "a mean over iterations 41 to 50 of 50"),
        ({"note": "Known regression."}, {}, "note", "Known regression."),
    ],
)
def test_likely_causes(theirs: dict[str, Any], ours: dict[str, Any], field: str, words: str) -> None:
    result = nearest(points=(make_point(**theirs),), **ours)
    assert any(cause.field == field and words in cause.sentence for cause in result.causes), result.causes


@pytest.mark.parametrize(
    ("ours", "sentence"), [(23.0, ""), (23.1, ""), (23.3, "FLOP counts per token differ"), (46.0, "a factor of two")]
)
def test_another_convention_of_flops_is_told_before_all_else(ours: float, sentence: str) -> None:
    point = make_point(tokens_per_s_per_gpu=10_000.0, tflops_per_gpu=230.0)
    causes = nearest(OurFigures(10_000.0, ours * 10), (point,)).causes
    assert [cause.field for cause in causes][:1] == (["flops"] if sentence else [])
    assert not sentence or sentence in causes[0].sentence


def test_a_container_is_the_same_by_any_address() -> None:
    result = nearest(container="registry.example/mirror/nvidia/nemo:26.06@sha256:abc")
    assert "container" not in {difference.field for difference in result.differences}
