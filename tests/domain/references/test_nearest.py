"""The nearest published figure, the differences, and the likely causes of the gap."""

import csv
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from app.domain.references.nearest import Nearest, OurFigures, likely_causes, nearest_reference
from app.domain.references.point import (
    FIGURES,
    LABEL,
    InvalidReference,
    ReferencePoint,
    published,
    read_reference,
    read_rows,
)
from app.domain.run import Stated
from tests.cases import every_case
from tests.shared_papers import shared_folder

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
    """20.147 s, another lab, 2026-07-27, no known difference."""
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


def test_the_newest_of_equals_is_chosen_in_any_order() -> None:
    old, new = make_point(date="2026-05"), make_point(date="2026-07-01")
    assert nearest(points=(old, new)).point is nearest(points=(new, old)).point is new


def test_an_unstated_field_is_unknown_and_not_equal() -> None:
    result = nearest(points=(make_point(dispatcher="unknown", gbs=512),))
    assert {difference.field: difference.is_known for difference in result.differences} == {
        "dispatcher": False,
        "gbs": True,
    }
    assert result.differs_in == ("gbs",)
    assert result.causes[-1].sentence.endswith("not state `dispatcher`.")


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({}, "no known field differs"),
        ({"dispatcher": "unknown", "gbs": "unknown"}, "no known field differs, 2 fields not stated"),
        ({"dispatcher": "unknown", "gbs": 512}, "`gbs` differs, 1 field not stated"),
        ({"precision": "fp8_sc", "gbs": 512}, "`precision` and `gbs` differ"),
        ({"precision": "fp8_sc", "gbs": 512, "mbs": 2}, "`precision` and 2 more differ"),
    ],
)
def test_the_open_fields_are_counted_next_to_those_that_differ(theirs: dict[str, Any], words: str) -> None:
    assert nearest(points=(make_point(**theirs),)).differing == words


@pytest.mark.parametrize(
    ("theirs", "rounded", "least_pct"),
    [
        (370.0, True, 1.351),
        (1000.0, True, 5.0),
        (800.0, True, 0.625),
        (1640.0, False, 0.0305),
        (299.4, False, 0.0167),
    ],
)
def test_a_gap_below_the_rounding_of_the_source_is_none(theirs: float, rounded: bool, least_pct: float) -> None:
    """Zeros at the end of `about 370` are no digits; the second digit of `about 800` is one."""
    point = make_point(tflops_per_gpu=theirs, rounded=rounded)
    equal, more = (
        nearest(OurFigures(tflops_per_gpu=theirs * (1 + factor * least_pct / 100)), (point,)) for factor in (0.9, 1.1)
    )
    assert equal.is_equal("tflops_per_gpu")
    assert not more.is_equal("tflops_per_gpu")
    assert "%" not in equal.sentence + equal.gap("tflops_per_gpu")
    assert "%" in more.gap("tflops_per_gpu")
    assert point.texts["tflops_per_gpu"] in equal.sentence


def test_a_known_difference_is_farther_than_an_unknown_one() -> None:
    silent, other = make_point(dispatcher="unknown"), make_point(dispatcher="alltoall")
    assert nearest(points=(other, silent)).point is silent


def test_a_vague_figure_is_farther_than_one_that_states_the_job_in_another_container() -> None:
    """Of equals the newest is the nearest, and the fastest of the same step is named as well."""
    vague = make_point(
        **dict.fromkeys(("seq_len", "gbs", "mbs", "cp", "routing_mode", "data_mode"), "unknown"), kind="guide"
    )
    speeds = {"2026-06": 13_500.0, "2026-07": 13_000.0, "2026-05": 12_000.0}
    stated = {
        date: make_point(kind="release_table", container="other", date=date, tokens_per_s_per_gpu=speed)
        for date, speed in speeds.items()
    }
    result = nearest(OurFigures(13_200.0), (vague, *stated.values()))
    assert (result.point, result.faster) == (stated["2026-07"], stated["2026-06"])
    assert stated["2026-06"].implied_step_ms == pytest.approx(1000 * 1024 * 4096 / (13_500 * 16))
    natural = make_point(routing_mode="dropless", tokens_per_s_per_gpu=14_000.0)
    assert nearest(points=(stated["2026-07"], natural)).faster is None


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
        ({}, {"routing_mode": "dropless"}, "routing_mode", "It forces balanced routing, yours does not."),
        ({"routing_mode": "dropless"}, {}, "routing_mode", "Yours forces balanced routing, it does not."),
        (
            {"routing_mode": "capacity-drop"},
            {"routing_mode": "dropless"},
            "routing_mode",
            "It drops tokens over capacity",
        ),
        ({"mtp": 1}, {"mtp": 0}, "mtp", "It has more layers of multi-token prediction"),
        ({"mtp": 0}, {"mtp": 1}, "mtp", "Yours has more layers"),
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
def test_another_flops_convention_is_named_first(ours: float, sentence: str) -> None:
    point = make_point(tokens_per_s_per_gpu=10_000.0, tflops_per_gpu=230.0)
    causes = nearest(OurFigures(10_000.0, ours * 10), (point,)).causes
    assert [cause.field for cause in causes][:1] == (["flops"] if sentence else [])
    assert not sentence or sentence in causes[0].sentence


def test_a_container_is_the_same_by_any_address() -> None:
    result = nearest(container="registry.example/mirror/nvidia/nemo:26.06@sha256:abc")
    assert "container" not in {difference.field for difference in result.differences}


# --- The built-in figures.

NAMES = {
    "DeepSeekV3": "DeepSeek-V3",
    "Qwen3_30B_a3B": "Qwen3-30B-A3B",
    "Qwen3_235B_a22B": "Qwen3-235B-A22B",
    "GPT OSS 120B": "GPT-OSS-120B",
    "Nemotron_3_Super": "Nemotron-3-Super-120B-A12B",
    "Nemotron_3_Nano": "Nemotron-3-Nano-30B-A3B",
    "Kimi_K2": "Kimi-K2",
}


def test_each_point_has_its_source_and_its_own_url() -> None:
    points = published()
    assert len(points) == 222
    assert len({point.key for point in points}) == len(points)
    for point in points:
        assert point.source
        assert point.measured_by
        assert point.label == LABEL
        assert point.url.startswith("https://") or point.kind == "founding_document"
        assert any(point.figures.values())
        assert set(point.key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert [point.date for point in points] == sorted((point.date for point in points), reverse=True)


def test_the_release_tables_are_restated_without_a_slip() -> None:
    text = (shared_folder("corpus") / "published/bridge-performance-archive.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    expected = sorted(
        (row["release"], NAMES[row["model"]], row["gpu"], int(row["gpus"]), float(row["tokens_per_sec_per_gpu"]))
        for row in rows
        if row["moe"] == "1" and row["precision"]
    )
    points = [point for point in published() if point.kind == "release_table"]
    restated = sorted(
        (
            str(point.contract["container"]).rpartition(":")[2],
            str(point.contract["model"]),
            str(point.contract["gpu"]),
            int(str(point.contract["gpus"])),
            point.tokens_per_s_per_gpu or 0.0,
        )
        for point in points
    )
    assert restated == expected


def test_other_conventions_of_flops_show_in_the_published_tables() -> None:
    """GPT-OSS-120B on GB300: 27 GFLOP a token up to release 26.04.01, 33 from 26.06 on. That is no speed-up."""
    gflops = {
        str(point.contract["container"]).rpartition(":")[2]: round(point.gflops_per_token)
        for point in published()
        if point.contract["model"] == "GPT-OSS-120B" and point.contract["gpu"] == "GB300" and point.gflops_per_token
    }
    assert gflops["26.04.01"] == 27
    assert gflops["26.06.01"] == 33


def test_the_recipe_of_a_tuned_card_does_not_explain_a_gap() -> None:
    cards = [point for point in published() if point.kind == "verification_card" and point.note]
    causes = {point.note: [cause.field for cause in likely_causes(point, (), None)] for point in cards}
    assert "note" not in causes["Performance recipe, 50 steps."]
    assert "note" in causes["A functional recipe: safety checks stay on."]


def test_checks_and_short_runs_are_the_figures_that_are_not_tuned() -> None:
    untuned = [point for point in published() if point.untuned]
    assert Counter(point.kind for point in untuned) == {"verification_card": 5, "founding_document": 4}
    assert all(point.note for point in untuned)


@pytest.mark.parametrize(
    ("fields", "mfu_pct"),
    [
        ({"tflops_per_gpu": 494.5}, 50.0),
        ({"precision": "fp8", "tflops_per_gpu": 494.75}, 25.0),
        ({"gpu": "A100"}, None),
        ({"tflops_per_gpu": 990.0}, None),
        ({"tflops_per_gpu": "unknown", "step_time_ms": 20_000.0}, None),
    ],
)
def test_the_mfu_follows_from_the_stated_gpu_and_precision(fields: dict[str, Any], mfu_pct: float | None) -> None:
    """None: without a source of the peak, above the peak, or without TFLOP/s."""
    assert make_point(**fields).mfu_pct == (None if mfu_pct is None else pytest.approx(mfu_pct))


def card_items() -> Iterator[dict[str, Any]]:
    for path in sorted((shared_folder("corpus") / "cards").glob("*.json")):
        yield from json.loads(path.read_text())["items"]


def test_the_verification_cards_are_restated_without_a_slip() -> None:
    measured = {
        (item["hardware"], item["precision"], item["step_time_ms"], item["tokens_per_sec_per_gpu"])
        for item in card_items()
        if item["item"].startswith("pretrain")
    }
    points = [point for point in published() if point.kind == "verification_card"]
    assert len(points) == 20
    for point in points:
        row = (point.contract["gpu"], point.contract["precision"], point.step_time_ms, point.tokens_per_s_per_gpu)
        assert row in measured, point


def test_figures_of_one_point_agree_with_each_other() -> None:
    with every_case() as case:
        for point in [item for item in published() if item.step_time_ms and item.tokens_per_s_per_gpu]:
            with case(point.key):
                gbs, seq_len, gpus = (point.contract.get(name) for name in ("gbs", "seq_len", "gpus"))
                if isinstance(gbs, int) and isinstance(seq_len, int) and isinstance(gpus, int):
                    assert gbs * seq_len / gpus / (point.step_time_ms or 1) * 1000 == pytest.approx(
                        point.tokens_per_s_per_gpu, rel=0.002
                    )


@pytest.mark.parametrize(
    ("model", "seq_len", "gflops"),
    [("Qwen3-30B-A3B", 4096, 23.006), ("Qwen3-235B-A22B", 4096, 148.035)],
)
def test_the_throughputs_of_a_model_imply_one_number_of_flops(model: str, seq_len: int, gflops: float) -> None:
    per_token = [
        point.gflops_per_token
        for point in published()
        if (point.contract["model"], point.contract.get("seq_len")) == (model, seq_len) and point.gflops_per_token
    ]
    close = [value for value in per_token if abs(value / gflops - 1) < 0.03]
    assert len(close) >= 0.9 * len(per_token) > 0


VALID: dict[str, Any] = {
    "model": "Qwen/Qwen3-30B-A3B",
    "gpu": "H100",
    "gpus": 16,
    "precision": "bf16",
    "tokens_per_s_per_gpu": 13000,
    "measured_by": "our lab",
    "source": "internal note 12",
    "date": "2026-08-15",
}


def test_a_team_s_own_reference_is_read_and_labelled() -> None:
    point = read_reference(VALID)
    assert (point.kind, point.label) == ("own", "another lab's measurement, entered by hand")
    assert point.contract["model"] == "Qwen3-30B-A3B"
    assert point.family.slug == "qwen3-30b-a3b"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": None}, "model"),
        ({"gpus": "many"}, "gpus"),
        ({"gpus": 0}, "gpus"),
        ({"precision": "float12"}, "precision"),
        ({"dispatcher": "pigeon"}, "dispatcher"),
        ({"tokens_per_s_per_gpu": -1}, "tokens_per_s_per_gpu"),
        ({"tokens_per_s_per_gpu": float("nan")}, "tokens_per_s_per_gpu"),
        ({"tokens_per_s_per_gpu": True}, "tokens_per_s_per_gpu"),
        ({"tokens_per_s_per_gpu": None}, "tokens_per_s_per_gpu"),
        ({"source": " "}, "source"),
        ({"source": "x" * 501}, "source"),
        ({"url": "javascript:alert(1)"}, "url"),
        ({"url": "https://[broken"}, "url"),
        ({"date": "yesterday"}, "date"),
        ({"date": None}, "date"),
        ({"kind": "rumour"}, "kind"),
        ({"rounded": "yes"}, "rounded"),
        ({"untuned": 1}, "untuned"),
        ({"speed": 3}, "speed"),
    ],
)
def test_problems_are_reported_by_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidReference) as caught:
        read_reference(VALID | change)
    assert list(caught.value.fields) == [field]


def test_all_invalid_fields_are_reported_together() -> None:
    with pytest.raises(InvalidReference) as caught:
        read_reference({})
    assert set(caught.value.fields) == {
        "model",
        "gpu",
        "gpus",
        "precision",
        FIGURES[0],
        "measured_by",
        "source",
        "date",
    }


@pytest.mark.parametrize("row", ["Qwen3-30B-A3B H100 16", "Qwen3-30B-A3B H100 16 bf16 200 x y", "M H100 x bf16 200"])
def test_a_row_that_is_not_of_the_table_is_refused_with_its_line(row: str) -> None:
    with pytest.raises(ValueError, match="H100"):
        list(read_rows(row, "model gpu gpus precision tflops_per_gpu", measured_by="a", source="b", date="2026-08"))
