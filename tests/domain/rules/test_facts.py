"""Facts of a run: read from its log and metadata, derived from each other, and stated by people."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from app.domain.contract.resolve import resolve
from app.domain.contract.statements import TAKE_BACK
from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_log, parse_text
from app.domain.numbers import THIN
from app.domain.performance.steady_state import steady_state
from app.domain.performance.summary import summarise
from app.domain.rules.change import change_of
from app.domain.rules.derive import derive
from app.domain.rules.engine import Evaluation, evaluate
from app.domain.rules.evidence import OwnResult
from app.domain.rules.facts import FACTS
from app.domain.rules.load import built_in_rules, places
from app.domain.rules.phases import tuning_phases
from app.domain.rules.run_facts import RunReading, facts_of, facts_of_pair, memory_kinds
from app.domain.rules.stated import (
    STATEABLE,
    Contradiction,
    contradictions,
    overruling,
    read_facts,
    source_level,
)
from app.domain.run import LogEvent, MemoryReport, ParsedLog, Value
from tests.domain.builders import OVERLAP_CASE, make_log, make_metadata
from tests.domain.rules.builders import reading_of
from tests.shared_papers import shared_folder

# --- Commands for the trainer of a run and its version.


@pytest.mark.parametrize(
    ("trainer", "arguments", "titles"),
    [
        ("Megatron-LM", {"use_pytorch_profiler": False}, {"Nsight Systems with Megatron-LM", "before February 2026"}),
        (
            "Megatron-LM",
            {"use_pytorch_profiler": False, "pytorch_profiler_collect_callstack": False},
            {"Nsight Systems with Megatron-LM", "since February 2026"},
        ),
        ("Megatron-Bridge", {}, {"Nsight Systems with Megatron-Bridge", "PyTorch profiler with Megatron-Bridge"}),
        ("torchtitan", {}, {"PyTorch profiler with torchtitan"}),
        ("Primus", {}, {"PyTorch profiler with Primus"}),
        ("NeMo 2", {}, {"Nsight Systems with NeMo 2"}),
        ("DeepSpeed", {}, {"PyTorch profiler in your own training loop", "Nsight Systems around any trainer"}),
    ],
)
def test_a_run_gets_the_profiler_commands_of_its_trainer_and_version(
    trainer: str, arguments: dict[str, Value], titles: set[str]
) -> None:
    facts = facts_of(RunReading({}, trainer=trainer, arguments=arguments)) | {"steps_done": 50, "gpu": "H100"}
    profile_rule = evaluate(derive(facts), built_in_rules()).find("profile-required")
    assert profile_rule is not None
    shown = {recipe.title for recipe in profile_rule.recipes}
    assert len(shown) == len(titles)
    assert all(any(recipe.endswith(title) for recipe in shown) for title in titles), shown


# --- A run's summary becomes facts; unstated values stay absent, and stated values of unused knobs are kept.

PLACE: dict[str, Value] = {"gpu": "H100", "cluster": "eos", "container": "nemo:26.06"}


def stated(**meta: object) -> RunReading:
    metadata = read_metadata(meta)
    contract = resolve(parse_text(""), metadata)
    return RunReading(
        contract.fields, unknown=contract.unknown, extra=metadata.extra, launch=metadata.extra.get("launch_args")
    )


def test_what_metadata_state_is_known_and_the_rest_is_not() -> None:
    facts = derive(facts_of(stated(gpus=16, tp=2, pp=1, cp=1, gpu="H100", exposed_comm_frac=0.3)))

    assert (facts["dp"], facts["arch"], facts["exposed_comm_frac"]) == (8, "sm90", 0.3)
    assert "ep" not in facts
    assert "oom" not in facts
    assert "etp_unset" not in facts


def test_an_unused_knob_keeps_its_requested_value() -> None:
    by_name = facts_of(stated(dispatcher_type="alltoall", flex_backend="deepep"))
    by_flags = facts_of(stated(launch_args="--moe-token-dispatcher-type alltoall --moe-flex-dispatcher-backend deepep"))

    assert (by_name["flex_backend"], by_name["dispatcher"]) == ("deepep", "alltoall")
    assert (by_flags["flex_backend"], by_flags["dispatcher"]) == ("deepep", "alltoall")


def test_a_log_yields_steps_memory_and_figures() -> None:
    log = make_log([31_310.0] * 20, stated=OVERLAP_CASE, memory=(MemoryReport(3, 0, 2, 62e9, 66e9),))
    facts = facts_of(reading_of(summarise(log, make_metadata(PLACE)), arguments={"nccl_ub": True, "nothing": 1}))

    assert (facts["steps_done"], facts["oom"], facts["fits"], facts["import_error"]) == (20, False, True, None)
    assert facts["step_s"] == pytest.approx(31.31)
    assert (facts["mem_alloc_peak_gb"], facts["mem_reserved_peak_gb"]) == pytest.approx((62.0, 66.0))
    assert facts["nccl_ub"] is True
    assert "exposed_comm_frac" not in facts
    derived = derive(facts)
    assert (derived["fragmentation_gb"], derived["profiled"], derived["dp"]) == (pytest.approx(4.0), False, 16)
    assert evaluate(facts, built_in_rules()).broken == ()


def test_a_stated_peak_in_gb_leaves_the_same_headroom_as_the_same_peak_of_a_log() -> None:
    log = make_log([31_310.0] * 20, stated=OVERLAP_CASE, memory=(MemoryReport(3, 0, 2, 72.4e9, 74e9),))
    measured = derive(facts_of(reading_of(summarise(log, make_metadata(PLACE)))))
    stated = derive({"gpu": measured["gpu"], "mem_alloc_peak_gb": 72.4})

    assert (measured["gpu"], measured["headroom_frac"]) == ("H100", pytest.approx(0.157, abs=0.0005))
    assert stated["headroom_frac"] == pytest.approx(measured["headroom_frac"])


def test_a_failed_import_and_lack_of_memory_are_facts() -> None:
    missing = make_log([], events=(LogEvent("deepep_missing", 7, "ImportError: DeepEP is not installed"),))
    oom = make_log([31_310.0] * 3, events=(LogEvent("out_of_memory", 9, "CUDA out of memory", rank=3, iteration=4),))

    first = facts_of(reading_of(summarise(missing, make_metadata(PLACE))))
    second = facts_of(reading_of(summarise(oom, make_metadata(PLACE))))

    assert (first["import_error"], first["steps_done"]) == ("deep_ep", 0)
    assert (second["oom"], second["oom_phase"], second["oom_ranks"], second["fits"]) == (True, "warmup", [3], False)


def test_a_failure_in_the_fused_permutation_is_a_fact_and_the_next_step_starts_without_it() -> None:
    text = "ValueError: fused_permute_with_probs is not available. Please install TE >= 2.1.0."
    log = make_log([], stated=OVERLAP_CASE | {"permute_fusion": True}, events=(LogEvent("error", 7, text),))
    facts = facts_of(reading_of(summarise(log, make_metadata(PLACE))))
    evaluation = evaluate(facts, built_in_rules())
    assert facts["permute_fusion_failed"] is True
    assert (evaluation.suggestions[0].rule.id, dict(evaluation.suggestions[0].set)) == (
        "comp-permute-fallback",
        {"permute_fusion": False},
    )


def test_each_warning_about_a_pair_names_only_its_own_fields() -> None:
    facts = derive(
        facts_of_pair(["seq_len", "gbs", "container", "gpus", "env.NCCL_ALGO"], beside=["commit", "te_version"])
    )
    groups = {name: facts[f"{name}_differs"] for name in ("software", "hardware", "work")}
    assert groups == {
        "software": ["container", "te_version"],
        "hardware": ["gpus", "env.NCCL_ALGO"],
        "work": ["seq_len", "gbs"],
    }


def test_a_pair_is_known_by_what_differs_its_gain_and_its_windows() -> None:
    others = [facts_of_pair(differing)["other_run"] for differing in (["container", "tp"], ["tp"], [])]
    assert [("container" in str(other)) for other in others] == [True, False, False]
    pair_facts = facts_of_pair(["dispatcher"], step_time_pct=25.0, windows=((11, 50), (12, 50)))
    assert pair_facts == {
        "compared": True,
        "differs": ["dispatcher"],
        "differs_beside": [],
        "other_run": "the other run",
        "step_time_change_pct": 25.0,
        "throughput_gain": pytest.approx(-0.2),
        "windows_differ": False,
    }
    assert facts_of_pair([], windows=((1, 10), (8, 40)))["windows_differ"] is True
    allocated, reserved = (memory_kinds({name: 61.2}) for name in ("peak_allocated_gib", "peak_reserved_gib"))
    assert facts_of_pair([], memory=(allocated, reserved))["memory_kinds_differ"] is True
    assert facts_of_pair([], memory=(allocated, allocated | reserved))["memory_kinds_differ"] is False
    assert "memory_kinds_differ" not in facts_of_pair([], memory=(allocated, memory_kinds({})))
    assert facts_of_pair([], windows=(None, (8, 40))) == facts_of_pair([])


# --- Facts of the preflight checks, and the checks on jobs that ran: a job that passed a check was not stopped by it.

UNSET = {"pp_layout": None, "first_stage_layers": None, "last_stage_layers": None, "hybrid_layer_pattern": None}
LAYOUT = "Et*3|(tt|)*29m|L"


@pytest.mark.parametrize(
    ("facts", "name", "value"),
    [
        ({"num_layers": 94, "pp_account": ["embedding", "loss"]}, "split_layers", 96),
        ({"num_layers": 94, "pp_account": None}, "split_layers", 94),
        ({"num_layers": 94}, "split_layers", None),
        (UNSET, "even_split", True),
        ({**UNSET, "last_stage_layers": 7}, "even_split", False),
        ({**UNSET, "hybrid_layer_pattern": "M*|M*"}, "even_split", False),
        ({**UNSET, "hybrid_layer_pattern": "M*M*"}, "even_split", True),
        ({"pp_layout": LAYOUT}, "even_split", False),
        ({"pp_layout": None}, "even_split", None),
        ({"pp_layout": LAYOUT, "pp": 8, "num_layers": 61, "mtp": 1}, "layout_problem", ""),
        ({"pp_layout": LAYOUT, "pp": 8, "num_layers": 61, "mtp": 1}, "vpp_or_1", 4),
        ({"pp_layout": LAYOUT, "pp": 8}, "layout_problem", None),
        ({"pp_layout": LAYOUT, "pp": 5}, "layout_problem", "has 32 stages, not divisible by pp = 5"),
        ({"pp_layout": None}, "layout_problem", ""),
        ({"pp": 4, "vpp": None}, "vpp_or_1", 1),
        ({"microbatch_group_size": None, "pp": 4}, "microbatch_group", 4),
        ({"microbatch_group_size": 8, "pp": 4}, "microbatch_group", 8),
        ({"pp": 4}, "microbatch_group", None),
        ({"hcp_sizes": [2, 4]}, "hcp_product", 8),
        ({"hcp_sizes": None}, "hcp_product", 0),
        ({"num_query_groups": 4, "num_attention_heads": 32}, "kv_heads", 4),
        ({"num_query_groups": None, "num_attention_heads": 32}, "kv_heads", 32),
        ({"num_attention_heads": 32}, "kv_heads", None),
        ({"model": "DeepSeek-V3"}, "kv_heads", 128),
        ({"capacity": -1.0}, "capacity_on", False),
        ({"capacity": None}, "capacity_on", False),
        ({"capacity": 1.25}, "capacity_on", True),
        ({"num_experts": None}, "ep", 1),
        ({"num_experts": None, "ep": 4}, "ep", 4),
        ({"nan_checks": False}, "check_for_nan_in_loss", False),
        ({"framework": "megatron_lm", "seq_len": 4096}, "dataset_seq_len", 4096),
        ({"framework": "megatron_bridge", "seq_len": 4096}, "dataset_seq_len", None),
        ({"task": "pretrain"}, "offline_packing", False),
        ({"task": "pretrain"}, "in_batch_packing", None),
        ({"task": "pretrain", "framework": "megatron_lm"}, "in_batch_packing", False),
    ],
)
def test_a_fact_follows_or_stays_unknown(facts: dict[str, object], name: str, value: object) -> None:
    assert derive(facts).get(name) == value


def _told(path: Path) -> Evaluation:
    log = parse_log([path.read_bytes()])
    return evaluate(facts_of(reading_of(summarise(log, read_metadata({})), arguments=log.arguments)), built_in_rules())


def test_no_check_stops_a_real_job_that_ran() -> None:
    logs = shared_folder("corpus") / "logs"
    evaluations = {
        path.name: _told(path)
        for folder in ("real-full", "real-excerpts")
        for path in sorted((logs / folder).iterdir())
        if path.suffix in (".log", ".txt", ".out")
    }
    ran = {name: evaluation for name, evaluation in evaluations.items() if evaluation.facts.get("steps_done")}

    assert len(ran) > 10
    assert {
        name: [b.rule.id for b in evaluation.blockers] for name, evaluation in ran.items() if evaluation.blockers
    } == {}
    assert {name: evaluation.broken for name, evaluation in evaluations.items() if evaluation.broken} == {}


# --- The built-in rules over the shared logs: real contracts break none of them, and every phase has a reason.

LOGS = 20
FULL = {
    "dense-1b-plangraph-baseline.log": "comp-more-work",
    "dsv2lite-fp8-mi355x-baseline.log": "profile-upload",
    "dsv2lite-fp8-mi355x-smoke.log": "profile-upload",
    "dsv4-p22-eager-pp2-ep4.log": "val-little-work",
    "dsv4-p22-turbo-crash.log": "fit-crash",
    "dsv4-p35-triton-off-lines.log": "contract-complete",
    "dsv4-p35-triton-on-lines.log": "contract-complete",
    "dsv4-p36-triton-off-tail.log": "contract-complete",
    "dsv4-p36-triton-on-tail.log": "contract-complete",
    "dense-llama3.1-8b-50iter.log": "contract-gpu",
    "dsv4-smoke-ep8-pp1.log": "val-little-work",
    "ut-deepseek-v3-mi300x.log": "val-few-steps",
}
"""First suggestion of real full logs, as uploaded without metadata."""


def test_the_contract_is_requested_first_only_if_the_log_shows_little() -> None:
    folder = shared_folder("corpus") / "logs" / "real-full"
    for name, first in FULL.items():
        log = parse_log([(folder / name).read_bytes()])
        summary = summarise(log, read_metadata({}))
        evaluation = evaluate(facts_of(reading_of(summary, arguments=log.arguments)), built_in_rules())
        assert (*evaluation.blockers, *evaluation.suggestions)[0].rule.id == first, name
        if log.arguments and "mi355x" in name:
            assert log.stated["gpu"].value == "MI355X"


def test_the_gpu_is_recognised_by_its_memory_where_only_one_has_that_much() -> None:
    line = b"iteration 2/ 3 | elapsed time per iteration (ms): 9.1/9.2 | hip mem usage/free/total/usage_ratio: 1GB/2GB/"
    for total, gpu in ((b"191.98", "MI300X"), (b"255.98", "MI325X"), (b"287.98", None), (b"64.0", None)):
        stated = parse_log([line + total + b"GB/9.0% |\n"]).stated
        assert (stated["gpu"].value if "gpu" in stated else None) == gpu


def test_a_low_share_of_the_peak_is_a_reason_for_the_profile() -> None:
    run = {"gpu": "MI355X", "precision": "fp8_cs", "profiler_on": True}
    low, usual, unknown = (
        evaluate({**run, **figures}, built_in_rules()).find("profile-upload")
        for figures in ({"tflops_gpu": 240.0}, {"tflops_gpu": 1200.0}, {})
    )
    assert low is not None
    assert usual is not None
    assert unknown is not None
    assert "peak of MI355X in fp8_cs" in low.why
    assert usual.why == unknown.why != low.why
    assert low.why.startswith(f"With 240 TFLOP/s/GPU the run reaches 5{THIN}% of the peak")


def test_a_low_share_of_the_peak_takes_the_profile_out_of_what_suits_every_run() -> None:
    job = {"gpu": "H100", "precision": "bf16", "steps_done": 50, "window": 20}
    tiers = {}
    for tflops in (90.0, 300.0):
        evaluation = evaluate({**job, "tflops_gpu": tflops}, built_in_rules())
        profile = evaluation.find("profile-required")
        assert profile is not None
        tiers[tflops] = profile.place.tier
        assert [other.rule.id for other in profile.also] == ["profile-platform-prior"]
    assert tiers == {90.0: "workflow", 300.0: "other"}


def test_the_dispatchers_of_published_records_are_those_on_this_kind_of_gpu() -> None:
    hopper, nvl72 = (
        derive({"model": "Qwen3-235B-A22B", "gpu": gpu})["recorded_dispatchers"] for gpu in ("H200", "GB300")
    )

    assert set(hopper) == {"deepep", "alltoall"}
    assert set(nvl72) == {"hybridep"}
    assert derive({"model": "Mixtral-8x7B", "gpu": "H100"})["recorded_dispatchers"] == []
    assert "recorded_dispatchers" not in derive({"model": "Qwen3-235B-A22B", "gpu": None})


def test_an_unknown_gpu_is_requested_and_hides_nothing_else() -> None:
    facts = {"steps_done": 50, "window": 20, "unknown_fields": 4, "unknown_names": "gpu", "data_mode": "mock"}
    evaluation = evaluate({**facts, "step_s": 15.0, "routing_mode": "dropless"}, built_in_rules())
    offered = [item.rule.id for item in evaluation.suggestions]
    assert offered[0] == "contract-gpu"
    assert {"profile-required", "val-real-data"} <= set(offered)
    assert "val-50-steps" not in offered


SPIKES = [
    # Slow iterations, arguments, and the expected explanation.
    ([21], {}, ["Iteration 21 took 2.4 times", "profiler"]),
    ([21], {"profile": False}, ["took 2.4 times the median."]),
    ([21, 31, 41], {}, ["Iterations 21, 31 and 41", "10 iterations apart."]),
    ([21, 27, 36], {}, ["Iterations 21, 27 and 36", "6 to 9 iterations apart, no fixed interval."]),
    ([21, 31], {"save_interval": 10}, ["`save_interval` is 10"]),
    ([20, 40], {"save_interval": 7, "manual_gc_interval": 20}, ["`manual_gc_interval` is 20"]),
    ([21], {"save_interval": 1}, []),
    ([8], {"profile": True, "use_pytorch_profiler": True, "profile_step_start": 6, "profile_step_end": 8},
     ["profiler was on in iterations 5 to 8"]),
]  # fmt: skip


@pytest.mark.parametrize(("slow", "arguments", "parts"), SPIKES)
def test_slow_iterations_are_named_with_what_explains_them(
    slow: list[int], arguments: dict[str, Value], parts: list[str]
) -> None:
    times = np.full(50, 1000.0)
    times[np.array(slow) - 1] = 2400.0
    steady = steady_state(np.arange(1.0, 51.0), times)
    facts = facts_of(RunReading(contract={}, steady=steady, arguments=arguments))
    text = str(facts["slow_text"])
    assert facts["slow_iterations"] == len(slow)
    start, end = facts["slow_start"], facts["slow_end"]
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert start <= slow[0] - 1 < end, "steps count from 0"
    assert max((after - before for before, after in pairwise(slow)), default=1) <= end - start <= 22
    assert all(part in text for part in parts), text
    assert text.count("`") == (2 if any("`" in part for part in parts) else 0)
    assert ("profiler" in text) is (len(slow) == 1 and arguments.get("profile") is not False and "`" not in text)


def logs() -> Iterator[ParsedLog]:
    paths = sorted((shared_folder("corpus") / "logs").rglob("*.log"), key=lambda path: path.name[::-1])
    for path in paths[:LOGS]:
        yield parse_log([path.read_bytes()])


def test_no_rule_is_broken_by_a_real_contract() -> None:
    for log in logs():
        summary = summarise(log, read_metadata({}))
        evaluation = evaluate(facts_of(reading_of(summary, arguments=log.arguments)), built_in_rules())

        assert evaluation.broken == ()
        assert all(blocker.doubt for blocker in evaluation.blockers if log.n)
        for suggestion in evaluation.fired:
            assert set(places(suggestion.rule.why)) <= evaluation.facts.keys(), suggestion.rule.id
        assert all(step.because.endswith(".") for step in tuning_phases(evaluation).steps)
        for suggestion in evaluation.fired:
            assert change_of(suggestion, evaluation.facts).megatron_lm.command == ""


# --- Facts that users state: parsed by kind, or refused with advice.


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("exposed_comm_frac", "18 %", 0.18),
        ("exposed_comm_frac", 0.18, 0.18),
        ("gpu_idle_frac", "0", 0.0),
        ("stage_spread_frac", "1.5", 1.5),
        ("replay_proof", "yes", True),
        ("replay_proof", False, False),
        ("installed_flex_backends", "deepep, hybridep", ["deepep", "hybridep"]),
        ("installed_flex_backends", "none", []),
        ("oom_ranks", "0, 7", [0, 7]),
        ("oom_phase", "warmup", "warmup"),
        ("budget_residual_ms", "-3.5", -3.5),
        ("sharp", TAKE_BACK, None),
    ],
)
def test_a_value_is_read_by_its_kind(name: str, raw: object, value: object) -> None:
    assert read_facts({name: raw}, "facts") == ({name: value}, [])


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("exposed_comm_frac", "18", "between 0 and 1"),
        ("exposed_comm_frac", "-0.1", "not be negative"),
        ("exposed_comm_frac", "nan", "finite"),
        ("exposed_comm_frac", "much", "a number"),
        ("replay_proof", "perhaps", "yes or no"),
        ("installed_flex_backends", "deepseek", "must be one or more of deepep"),
        ("profile_rank", "1.5", "whole number"),
        ("replay_proof", None, "must have a value"),
        ("steps_done", 4, "computed by this service"),
        ("pp", 4, "contract field"),
        ("dense_layers", 4, "is derived"),
        ("exposed_com_frac", 0.1, "(did you mean `exposed_comm_frac`?)"),
        ("oom_phase", "x" * 600, "at most 500"),
    ],
)
def test_problems_are_reported(name: str, raw: object, message: str) -> None:
    accepted, (error,) = read_facts({name: raw}, "facts")
    assert (accepted, error.field) == ({}, f"facts.{name}")
    assert message in error.message


def test_no_field_of_the_contract_no_threshold_and_nothing_of_two_runs_is_stated() -> None:
    assert {FACTS[name].section for name in STATEABLE} == {"log", "profile", "stated", "asked"}


# --- Contradicting sources: own A/Bs outrank published evidence, which outranks the founding documents.

SOURCES = built_in_rules().sources
GAIN = OwnResult("x", 3, 18.2, 12.0, 21.0)
LOSS = OwnResult("x", 2, -6.0, -8.0, -4.0)
UNSETTLED = OwnResult("x", 2, 1.0, -1.0, 3.0)


def dispute(older: str, newer: str, *, measurable: bool = True) -> Contradiction:
    return Contradiction(("x",), "old", (older,), "new", (newer,), "kept", measurable)


@pytest.mark.parametrize(
    ("older", "newer", "own", "side", "message"),
    [
        ("S4", "U-disp", (), "newer", "published evidence outranks the first edition of a guide"),
        ("U-off", "M-arg", (), "newer", "what is enforced in code outranks published evidence"),
        ("C-co", "U-eo", (), "older", "The older statement applies: what is enforced in code"),
        (
            "U-eo",
            "X-deepep",
            (),
            "both",
            "Neither outranks the other: both are published evidence. The newer one is dated 2026-07-14",
        ),
        ("U-co", "U-eo", (), "both", "Both are dated 2026-07-25"),
        ("S4", "U-disp", (GAIN,), "here", "Our own A/B measured 15.4\u202f% faster (n = 3), which outranks both"),
        ("S4", "U-disp", (LOSS,), "here", "Our own A/B measured 6.4\u202f% slower"),
        ("S4", "U-disp", (UNSETTLED,), "newer", "published evidence"),
        ("S4", "M-tc", (GAIN,), "newer", "enforced in code"),
    ],
)
def test_the_stronger_statement_counts(
    older: str, newer: str, own: tuple[OwnResult, ...], side: str, message: str
) -> None:
    decision = overruling(dispute(older, newer), SOURCES, own)

    assert decision.side == side
    assert message in decision.because


def test_an_ab_says_nothing_about_what_it_does_not_measure() -> None:
    assert overruling(dispute("S4", "U-disp", measurable=False), SOURCES, (GAIN,)).side == "newer"


def test_a_readme_and_recipes_enforce_nothing() -> None:
    assert [source_level(key) for key in ("M-arg", "C-co", "M-readme", "C-rec", "U-wf", "S0")] == [1, 1, 4, 4, 4, 5]


def test_every_contradiction_has_a_ruling_and_some_can_be_measured() -> None:
    assert all(overruling(contradiction, SOURCES, ()).because for contradiction in contradictions())
    assert sum(contradiction.measurable for contradiction in contradictions()) == 9


def test_step_times_of_profiled_iterations_are_a_fact_only_where_they_count() -> None:
    arguments: dict[str, Value] = {"profile": True, "profile_step_start": 1, "profile_step_end": 5}
    few, many = make_log([500.0] * 6, arguments=arguments), make_log([500.0] * 30, arguments=arguments)
    facts = [facts_of(reading_of(summarise(log, make_metadata(PLACE)), arguments=arguments)) for log in (few, many)]
    assert [fact["time_from_profile"] for fact in facts] == [True, False]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"tp": 1, "ep": 16}, "The expert group of 16 ranks exceeds an NVLink domain of 8 GPUs"),
        ({"tp": 16, "ep": 8}, "TP 16 exceeds a node of 8 GPUs"),
        (
            {"tp": 16, "ep": 16},
            "TP 16 exceeds a node of 8 GPUs and the expert group of 16 ranks exceeds an NVLink domain of 8 GPUs",
        ),
        ({"tp": 1, "ep": 8}, ""),
    ],
)
def test_only_the_group_that_exceeds_its_node_or_domain_is_named(facts: dict[str, Value], text: str) -> None:
    assert derive({"gpu": "H100", "gpus": 64, "etp": 1, **facts})["too_wide"] == text


@pytest.mark.parametrize(
    ("window", "start"),
    [((), 20), ((5, 100), 20), ((26, 100), 26), ((41, 50), 41), ((8, 15), 12), ((12, 13), 20)],
)
def test_the_profiler_starts_after_warm_up(window: tuple[int, ...], start: int) -> None:
    values = dict(zip(("window_first", "window_last"), window, strict=False))
    command = evaluate({"framework": "megatron_lm", "steps_done": 50, **values}, built_in_rules()).find(
        "profile-required"
    )
    assert command is not None
    assert f"--profile-step-start {start} --profile-step-end {start + 3} " in command.recipes[0].run


def of_failed_allocation(idle: str, **stated: object) -> tuple[list[str], list[str]]:
    """Return the rules about fragmentation that fire when an allocation fails: suggestions, and warnings."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 "
        f"GiB of which 1.02 GiB is free. Of the allocated memory 60.61 GiB is allocated by PyTorch, and {idle} is "
        "reserved by PyTorch but unallocated."
    )
    event = LogEvent("out_of_memory", 9, text, rank=3, iteration=4)
    log = make_log([31_310.0] * 3, stated=OVERLAP_CASE | stated, events=(event,))
    evaluation = evaluate(facts_of(reading_of(summarise(log, make_metadata(PLACE)))), built_in_rules())
    names = ("fit-expandable", "fit-fragmentation")
    return (
        [item.rule.id for item in evaluation.suggestions if item.rule.id in names],
        [item.rule.id for item in evaluation.warnings if item.rule.id in names],
    )


def test_expandable_segments_are_a_remedy_only_where_the_failed_allocation_shows_fragmentation() -> None:
    assert of_failed_allocation("15.20 GiB") == (["fit-expandable"], ["fit-fragmentation"])
    assert of_failed_allocation("1.57 GiB") == ([], [])
    assert of_failed_allocation("15.20 GiB", **{"env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}) == ([], [])
