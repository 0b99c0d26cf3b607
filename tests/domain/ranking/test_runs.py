"""Which runs may be ranked, and what is said of the others."""

import pytest

from app.domain.definitions import DEFINITION_VERSION
from app.domain.ranking.rank import rank_stack
from app.domain.ranking.runs import (
    UNKNOWN_FAMILY,
    UNKNOWN_HARDWARE,
    fallbacks,
    family_of,
    hardware_of,
    other_shapes,
    refusal,
    routing_class,
    slug,
)
from app.domain.run import Value
from tests.domain.ranking.runs import make_run, make_runs


@pytest.mark.parametrize(
    ("fields", "why", "sentence"),
    [
        ({"quarantined": "bad node"}, "quarantined", "quarantined: bad node"),
        ({"outcome": "failed"}, "ended_badly", "the job failed"),
        ({"outcome": "out_of_memory"}, "ended_badly", "the job ran out of memory"),
        ({"outcome": "not_finite"}, "ended_badly", "the loss or the gradient was not finite"),
        ({"outcome": "truncated"}, "ended_badly", "its log ends before the training does"),
        ({"outcome": "stopped"}, "ended_badly", "it was stopped by a time limit or a signal"),
        ({"outcome": "running"}, "ended_badly", "it is still running"),
        ({"not_finite": 2}, "not_finite", "its loss was not finite in 2 iterations"),
        ({"fair": False}, "slowed_by_timers", "timer barriers slowed it down"),
        (
            {"definition_version": DEFINITION_VERSION - 1},
            "other_definitions",
            "its figures use another version of the definitions",
        ),
        (
            {"dispatcher": None, "requested": None},
            "dispatcher_unknown",
            "its dispatcher is neither stated nor shown by its log",
        ),
        (
            {"dispatcher": None, "requested": "hybridep"},
            "not_active",
            "hybridep was requested, but its log does not show that it ran",
        ),
        ({"window": 4}, "too_short", "only 4 steady iterations, 5 are needed"),
        ({"step_time_ms": 0.0, "window": 0}, "too_short", "only 0 steady iterations, 5 are needed"),
        ({"is_steady": False}, "not_steady", "not steady"),
        (
            {"dispatcher": None, "requested": "deepep", "missing": ("deepep",), "outcome": "failed"},
            "import_failed",
            "the deepep package is not in its container",
        ),
        # The strongest reason is named.
        ({"quarantined": "bad node", "outcome": "failed", "window": 4}, "quarantined", "quarantined: bad node"),
    ],
)
def test_a_run_that_may_not_be_ranked(fields: dict[str, object], why: str, sentence: str) -> None:
    result = refusal(make_run(**fields))
    assert result is not None
    assert (result.why, result.sentence) == (why, sentence)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"outcome": ""},  # documents only: nobody says how it ended
        {"short": True, "window": 8, "evidence_level": "screen"},
        {"dispatcher": None, "requested": "alltoall"},  # needs no package, and nothing else is run in its name
        {"dispatcher": "alltoall", "requested": "deepep"},  # counts for what ran
        {"dispatcher": "alltoall", "requested": None},
    ],
)
def test_a_run_that_may(fields: dict[str, object]) -> None:
    assert refusal(make_run(**fields)) is None


def test_a_fallback_counts_for_what_ran_and_not_for_what_was_asked_for() -> None:
    run = make_run("7", "alltoall", requested="deepep")
    sentences = fallbacks([run])
    assert [(item.run, item.dispatcher, item.sentence) for item in sentences] == [
        ("7", "deepep", "deepep was requested, but alltoall ran")
    ]
    standings = rank_stack([run, *make_runs("hybridep", [300])])
    assert standings.fallbacks == sentences
    assert {entry.dispatcher for entry in standings.boards_at("screen")[0].entries} == {"alltoall", "hybridep"}


def test_a_dispatcher_that_ran_in_the_stack_is_not_missing() -> None:
    failed = make_run("1", None, 0.0, requested="deepep", missing=("deepep",), outcome="failed", window=0)
    assert rank_stack([failed, make_run("2", "deepep", hour=1)]).missing == ()


def test_a_model_of_another_shape_is_left_out_whatever_its_name_is() -> None:
    runs = [
        make_run("1", shape=("24", "2048", ""), hour=0),
        make_run("2", shape=("48", "2048", ""), hour=1),
        make_run("3", shape=(), hour=2),
        make_run("4", shape=("", "", "32"), hour=3),
    ]
    assert [shape.run for shape in other_shapes(runs)] == ["1"]
    standings = rank_stack(runs)
    assert [(item.run, item.why) for item in standings.refused] == [("1", "other_shape")]


def test_standings_wait_for_figures_of_other_definitions() -> None:
    old = make_run("1", definition_version=DEFINITION_VERSION - 1)
    assert rank_stack([old, make_run("2", hour=1)]).partial
    assert not rank_stack([make_run("2", hour=1)]).partial


def test_a_thousand_refused_runs_are_told_by_their_number() -> None:
    standings = rank_stack([make_run(str(i), outcome="failed", hour=i) for i in range(60)])
    assert (standings.refused_count, len(standings.refused), standings.refused[0].run) == (60, 50, "59")
    board = standings.board("screen", "dropless", "training_equivalent")
    assert board is not None
    assert (board.reading, board.entries, board.is_ranking) == ("nothing_ranked", (), False)
    assert board.sentence.endswith("Newest run: the job failed.")


# --- One family for all spellings of a model, one address for each.


QWEN: dict[str, Value] = {
    "num_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_experts": 128,
    "topk": 8,
}


@pytest.mark.parametrize(
    ("model", "shape", "name", "address"),
    [
        ("Qwen/Qwen3_30B-a3b", {}, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen3_30B_a3B", QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        (None, QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("", QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("DSV3", {}, "DeepSeek-V3", "deepseek-v3"),
        ("DeepSeekV3", {}, "DeepSeek-V3", "deepseek-v3"),
        ("DeepSeek-V3", {"num_layers": 16}, "DeepSeek-V3 (other shape)", "deepseek-v3-other-shape"),
        ("our model", {}, "our model", "our-model"),
        ("24L-h1024-8e-top2", {}, "24L-h1024-8e-top2", "24l-h1024-8e-top2"),
        (None, {}, "unknown model", "unknown-model"),
        ("  ", {}, "unknown model", "unknown-model"),
    ],
)
def test_families(model: str | None, shape: dict[str, Value], name: str, address: str) -> None:
    assert (family_of(model, shape).name, family_of(model, shape).slug) == (name, address)


@pytest.mark.parametrize(
    ("gpu", "address"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("GB200", "gb200"), ("our ASIC", "our-asic"), (None, "unknown-gpu")],
)
def test_hardware(gpu: str | None, address: str) -> None:
    assert hardware_of(gpu).slug == address


def test_an_address_is_safe_and_loses_no_difference() -> None:
    names = ["模型-7B", "模型-8B", "a" * 200, "a" * 201, "../../etc", "<script>"]
    slugs = [slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(0 < len(item) <= 60 and set(item) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for item in slugs)
    assert slug("...") != ""
    assert (UNKNOWN_FAMILY.slug, UNKNOWN_HARDWARE.slug) == ("unknown-model", "unknown-gpu")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("forced-balance", "forced"),
        ("forced-biased", "forced"),
        ("dropless", "natural"),
        ("capacity-drop", "natural"),
        ("drop-and-pad", "natural"),
        ("", "unknown"),
    ],
)
def test_classes_of_routing(mode: str, expected: str) -> None:
    assert routing_class(mode) == expected
