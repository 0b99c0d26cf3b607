"""Contracts resolved from logs and metadata: values with their sources, warnings, and the two keys."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.contract.derive import DEFAULTS, MOE_FIELDS, WITHOUT_DEFAULT
from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.resolve import Contract, config_key, is_provisional, resolve, stack_key
from app.domain.contract.values import read_value, shown
from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_text
from app.domain.performance.summary import summarise
from app.domain.run import LogEvent, LogProblem, ParsedLog, RunSummary, Stated, Value
from tests.cases import every_case
from tests.domain.builders import OVERLAP_CASE, QWEN3_30B, make_log, make_metadata, make_stated


def resolved(
    stated: dict[str, Value] | None = None,
    fields: dict[str, Value] | None = None,
    arguments: dict[str, Value] | None = None,
    events: tuple[LogEvent, ...] = (),
) -> Contract:
    return resolve(make_log([100.0] * 10, stated=stated, arguments=arguments, events=events), make_metadata(fields))


@pytest.mark.parametrize(
    ("stated", "field", "value", "source"),
    [
        ({}, "model", "Qwen3-30B-A3B", "derived"),
        ({}, "dp", 16, "derived"),
        ({}, "edp", 1, "derived"),
        ({}, "ga", 64, "derived"),
        ({}, "dispatcher", "alltoall", "derived"),
        ({}, "routing_mode", "dropless", "derived"),
        ({"force_balance": True}, "routing_mode", "forced-balance", "derived"),
        ({"capacity": 1.5}, "routing_mode", "capacity-drop", "derived"),
        ({"capacity": 1.5, "pad_to_capacity": True}, "routing_mode", "drop-and-pad", "derived"),
        ({"capacity": -1.0}, "routing_mode", "dropless", "derived"),
        ({"rank_capacity": 1.1, "dispatcher_type": "flex", "flex_backend": "hybridep"}, "routing_mode",
         "capacity-drop", "derived"),
        ({"dispatcher_type": "flex", "flex_backend": "hybridep"}, "dispatcher", "hybridep", "derived"),
        ({"dispatcher_type": "flex"}, "dispatcher", "deepep", "derived"),
        ({}, "task", "pretrain", "default"),
        ({}, "attention", "auto", "default"),
        ({}, "ep_overlap", True, "arguments"),
        ({"pp": 2, "gpus": 32, "vpp": 1}, "vpp", None, "derived"),
        ({"pp": 2, "gpus": 32, "pp_layout": "Et*12|t*12|t*12|t*12L"}, "vpp", 2, "derived"),
        ({"tp": 2, "gpus": 32, "etp": None}, "etp", 2, "derived"),
        ({"gbs": None}, "gbs", 16, "derived"),
        ({"recompute_granularity": "selective"}, "recompute_modules", ("core_attn",), "derived"),
        ({"recompute_granularity": "full", "recompute_modules": ("moe",)}, "recompute_modules", None, "derived"),
        ({"graph_modules": ("attn",)}, "graph_modules", None, "derived"),
        ({"graph_impl": "local", "graph_modules": ("full_iteration",)}, "graph_impl", "full_iteration", "arguments"),
        ({"graph_impl": "transformer_engine", "graph_modules": ("full",)}, "graph_modules", (), "arguments"),
        ({"gpu": "NVIDIA H100 80GB HBM3"}, "gpu", "H100", "arguments"),
        ({"gpu": "NVIDIA GB200"}, "gpus_per_node", 4, "derived"),
        ({"num_layers": 16}, "model", "16L-h2048-128e-top8", "derived"),
        ({"container": "nvcr.io#nvidia/nemo:26.06@sha256:12ab"}, "container", "nvcr.io/nvidia/nemo:26.06", "arguments"),
        ({"container": "nvcr.io/nvidia/nemo:26.06@sha256:12ab"}, "container_digest", "sha256:12ab", "arguments"),
        ({"container": "nvcr.io/nvidia/nemo@sha256:12ab"}, "container", "nvcr.io/nvidia/nemo@sha256:12ab", "arguments"),
        ({"num_experts": None}, "dispatcher", None, "derived"),
    ],
)  # fmt: skip
def test_values_and_their_sources(stated: dict[str, Value], field: str, value: Value, source: str) -> None:
    fact = resolved(OVERLAP_CASE | stated).fields[field]
    assert (fact.value, fact.source) == (value, source)


def test_a_derived_value_names_its_inputs() -> None:
    assert resolved(OVERLAP_CASE).fields["dp"].detail == "gpus / (tp x pp x cp) = 16 / 1"


def test_an_unused_knob_shows_its_stated_value() -> None:
    fact = resolved(OVERLAP_CASE | {"cp_comm": "p2p"}).fields["cp_comm"]
    assert (fact.value, fact.in_use, fact.stated_value, fact.detail) == (None, False, "p2p", "not in use: cp is 1")


def test_the_metadata_win_and_the_contradiction_names_both() -> None:
    contract = resolved(OVERLAP_CASE, {"mbs": 2, "dispatcher": "deepep"})
    assert contract.fields["mbs"].value == 2
    assert contract.fields["dispatcher"].value == "deepep"
    batch, dispatcher = contract.warnings[:2]
    assert [part in batch for part in ("`mbs` is 2", "1 in the log")] == [True, True]
    assert [part in dispatcher for part in ("`dispatcher` is deepep", "alltoall in the log")] == [True, True]


def test_the_printed_world_size_wins_over_the_metadata() -> None:
    log = make_log([100.0] * 30, stated=OVERLAP_CASE)
    stated, right = (summarise(log, make_metadata({"gpus": gpus})) for gpus in (2, 16))
    gpus = stated.activity["gpus"]
    assert gpus.requested is not None
    assert gpus.active is not None
    assert (gpus.requested.value, gpus.active.value, gpus.agrees) == (2, 16, False)
    assert (stated.contract["gpus"].value, stated.contract["dp"].value) == (16, 16)
    assert stated.metrics["tokens_per_s_per_gpu"].value == right.metrics["tokens_per_s_per_gpu"].value
    assert stated.stack_key == right.stack_key
    assert ("gpus" in right.activity, len(stated.warnings) - len(right.warnings)) == (False, 1)


@pytest.mark.parametrize(("name", "wrong"), [("gbs", 512), ("seq_len", 1024)])
def test_the_printed_size_of_a_step_wins_over_the_metadata(name: str, wrong: int) -> None:
    log = make_log([100.0] * 30, stated=OVERLAP_CASE)
    right, stated = (summarise(log, make_metadata({name: value})) for value in (OVERLAP_CASE[name], wrong))
    assert (stated.activity[name].agrees, name in right.activity) == (False, False)
    assert stated.contract[name].value == OVERLAP_CASE[name]
    assert stated.metrics["tokens_per_s_per_gpu"].value == right.metrics["tokens_per_s_per_gpu"].value
    assert (stated.stack_key, len(stated.warnings) - len(right.warnings)) == (right.stack_key, 1)


def test_the_length_of_an_encoder_is_not_that_of_the_model() -> None:
    log = make_log([100.0] * 30, stated=OVERLAP_CASE, arguments={"decoder_seq_length": 1024})
    assert resolve(log, make_metadata({"seq_len": 1024})).fields["seq_len"].value == 1024


@pytest.mark.parametrize(
    ("stated", "fields"),
    [
        ({"sp": True}, {"sp": True}),  # without effect at tp = 1, but stated equally
        ({"pp": 2, "ep": 8, "vpp": None}, {"vpp": 1}),  # the same value
        ({"cp_comm": "p2p"}, {"cp_comm": "a2a"}),  # without effect at cp = 1
    ],
)
def test_what_has_no_effect_contradicts_nothing(stated: dict[str, Value], fields: dict[str, Value]) -> None:
    assert resolved(OVERLAP_CASE | stated, fields).warnings == ()


@pytest.mark.parametrize(
    ("name", "value", "default"),
    [
        ("attention", "flash", "auto"),
        ("opt_offload", True, "false"),
        ("manual_gc", True, "false"),
        ("nan_checks", False, "true"),
        ("ep_overlap", True, "false"),
        ("fine_offload", ("moe_act",), "empty"),
    ],
)
def test_metadata_that_override_a_default_of_the_dump_get_a_warning(name: str, value: Value, default: str) -> None:
    dump: dict[str, Value] = {field: stated for field, stated in OVERLAP_CASE.items() if field != name}
    contract = resolved(dump, {name: value})
    assert contract.fields[name].value == value
    assert contract.fields[name].source == "metadata"
    (warning,) = contract.warnings
    assert f"`{name}` is {shown(value)} " in warning
    assert f"default is {default}." in warning


@pytest.mark.parametrize(
    ("dump", "fields"),
    [
        ({"num_layers": 48}, {"attention": "auto"}),  # the same value
        ({"num_layers": 48, "cp": 1}, {"cp_comm": "a2a"}),  # without effect at cp = 1
        ({"gbs": 8}, {"attention": "flash"}),  # no dump of a model: nothing has a default
    ],
)
def test_no_default_is_overruled(dump: dict[str, Value], fields: dict[str, Value]) -> None:
    assert not any("default" in warning for warning in resolved(dump, fields).warnings)


def test_metadata_change_the_derived_fields() -> None:
    log = make_log([100.0] * 10, stated=OVERLAP_CASE | {"dispatcher": "alltoall", "dp": 16})
    contract = resolve(log, make_metadata({"dispatcher_type": "flex", "flex_backend": "hybridep", "tp": 2}))
    assert contract.fields["dispatcher"].value == "hybridep"
    assert contract.fields["dp"].value == 8


def test_agreeing_statements_warn_of_nothing() -> None:
    assert resolved(OVERLAP_CASE, {"gpus": 16, "model": "Qwen3-30B-A3B", "routing_mode": "dropless"}).warnings == ()


def test_the_dispatcher_that_ran_counts() -> None:
    event = LogEvent("dispatcher_fallback", 7, "Current GPU: X. Falling back to alltoall.")
    stated = OVERLAP_CASE | {"dispatcher_type": "flex", "flex_backend": "deepep"}
    contract = resolved(stated, events=(event,))
    assert contract.fields["dispatcher"].value == "alltoall"
    (warning,) = contract.warnings
    assert [part in warning for part in ("deepep was requested", "alltoall was active", "line 7")] == [True] * 3


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"gpus": 24, "tp": 16}, "`gpus` = 24 cannot be divided by tp x pp x cp = 16 x 1 x 1 = 16"),
        ({"gpus": 24}, "`gpus` = 24 cannot be divided by pp x ep x etp = 1 x 16 x 1 = 16"),
        ({"gbs": 1000}, "`gbs` = 1000 cannot be divided by mbs x dp = 1 x 16 = 16"),
        ({"num_experts": 120}, "`num_experts` = 120 cannot be divided by ep = 16."),
        ({"dp": 8}, "tp x pp x cp x dp = 8, but `gpus` = 16."),
        ({"num_experts": None}, "`ep` = 16, but the model has no experts."),
        ({"cp": 4, "seq_len": 4100}, "`seq_len` = 4100 cannot be divided by 2 x cp = 8"),
        ({"pp": 4, "vpp": 2, "ep": 4, "gbs": 8}, "needs at least pp = 4 micro-batches per step; this run has 2."),
        ({"pp": 2, "ep": 8, "pp_layout": "Et*24|t*23L"}, "The pipeline layout Et*24|t*23L has 47 layers, but the model "
         "has 48."),
        ({"pp": 2, "ep": 8, "pp_layout": "t*48|L"}, "must start with E and end with L"),
        ({"model": "DeepSeek-V3"}, "`model` is DeepSeek-V3, but num_layers is 48, DeepSeek-V3 has 61"),
    ],
)  # fmt: skip
def test_impossible_values_get_a_warning(stated: dict[str, Value], words: str) -> None:
    assert words in " ".join(resolved(OVERLAP_CASE | stated).warnings)


def test_an_invalid_value_is_omitted_with_a_warning() -> None:
    contract = resolved(OVERLAP_CASE | {"attention": "magic"})
    assert contract.fields["attention"].source == "default"
    assert "attention" in contract.warnings[0]


def test_the_batch_of_the_iteration_lines_is_used_if_none_is_stated() -> None:
    sizes = [512.0] * 10
    log = make_log([100.0] * 10, columns={"global_batch_size": sizes})
    batch = resolve(log, make_metadata()).fields["gbs"]
    assert (batch.value, batch.source) == (512, "log line")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([512.0] * 10, "but the iterations print 512"),
        ([256.0] * 5 + [1024.0] * 5, "The batch size changes during the run, from 256 to 1024"),
        ([np.nan] * 10, ""),
    ],
)
def test_the_iteration_lines_check_the_batch(sizes: list[float], words: str) -> None:
    log = make_log([100.0] * 10, stated=OVERLAP_CASE, columns={"global_batch_size": sizes})
    assert words in " ".join(resolve(log, make_metadata()).warnings)


def test_a_vocabulary_is_padded_as_the_trainer_pads_it() -> None:
    contract = resolved(OVERLAP_CASE | {"vocab_size": 151643}, arguments={"make_vocab_size_divisible_by": 128})
    assert contract.fields["vocab_size"].value == 151680


def test_nothing_known_is_all_unknown() -> None:
    contract = resolved()
    assert contract.provisional
    assert contract.fields == {}
    assert contract.unknown == tuple(name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if not name.startswith("env."))


def test_a_run_with_a_whole_stack_is_not_provisional() -> None:
    stack = {"gpu": "H100", "cluster": "eos", "container": "nemo:26.06"}
    contract = resolved(OVERLAP_CASE, stack)
    assert not contract.provisional
    assert [name for name in contract.unknown if FIELDS[name].role == "stack"] == []


def test_keys_are_stable_digests() -> None:
    contract = resolved(OVERLAP_CASE)
    assert len(contract.stack_key) == len(contract.config_key) == 64
    assert contract.stack_key != contract.config_key
    assert resolved(OVERLAP_CASE).stack_key == contract.stack_key


def test_the_project_is_part_of_the_keys() -> None:
    fields = make_stated(OVERLAP_CASE)
    assert stack_key("a", fields) != stack_key("b", fields)
    assert stack_key("a", fields) == stack_key("A", fields)


def test_unknown_is_equal_to_no_stated_value() -> None:
    unset = make_stated({"pp_layout": None})
    assert stack_key("p", unset) != stack_key("p", {})
    assert is_provisional(unset)


EXAMPLES: dict[str, list[object]] = {
    "count": [1, 8, 64],
    "whole": [0, 1, 3],
    "number": [0.5, 1, 1.25],
    "flag": [True, False],
    "words": [["core_attn"], ["moe_act", "layernorm"]],
    "counts": [[2, 2], [4]],
    "text": ["a", "b:1"],
    "name": ["a", "H100"],
    "layers": [1, 2],
}
OWN_EXAMPLES = {
    "pp_account": [["embedding"], ["embedding", "loss"]],
    "dp_overlap": [["grad_reduce"], ["grad_reduce", "param_gather"]],
    "lb_type": [["aux_loss"], ["seq_aux_loss"]],
    "graph_modules": [["attn"], ["moe_router", "attn"]],
}


def examples(name: str) -> list[object]:
    field = FIELDS[name]
    return OWN_EXAMPLES.get(name) or list(field.choices) or EXAMPLES[field.kind]


@st.composite
def contracts(draw: st.DrawFn) -> dict[str, object]:
    names = draw(st.sets(st.sampled_from((*STACK_FIELDS, *CONFIG_FIELDS)), min_size=1))
    return {name: draw(st.sampled_from(examples(name))) for name in sorted(names)}


def canonical(values: dict[str, object], source: str = "arguments") -> dict[str, Stated]:
    return {name: Stated(read_value(name, raw), source) for name, raw in values.items()}


def spelled_otherwise(raw: object) -> object:
    """The same fact as another tool writes it."""
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, int):
        return float(raw)
    if isinstance(raw, float):
        return str(raw)
    return ",".join(map(str, reversed(raw))) if isinstance(raw, list) and isinstance(raw[0], str) else raw


@settings(max_examples=100, deadline=None)
@given(contracts(), st.randoms())
def test_keys_see_facts_only(values: dict[str, object], random: object) -> None:
    """Order, source and spelling do not change a key."""
    names = list(values)
    random.shuffle(names)
    other = canonical({name: spelled_otherwise(values[name]) for name in names}, "metadata")
    first = canonical(values)
    assert stack_key("p", other) == stack_key("p", first)
    assert config_key("p", other) == config_key("p", first)


@settings(max_examples=100, deadline=None)
@given(contracts(), st.data())
def test_a_changed_member_changes_only_its_own_keys(values: dict[str, object], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(values)))
    before = canonical(values)
    options = [value for value in examples(name) if read_value(name, value) != before[name].value]
    after = before | canonical({name: data.draw(st.sampled_from(options))})
    assert config_key("p", after) != config_key("p", before)
    assert (stack_key("p", after) != stack_key("p", before)) == (FIELDS[name].role == "stack")


@settings(max_examples=50, deadline=None)
@given(st.sets(st.sampled_from(sorted(OVERLAP_CASE))))
def test_metadata_and_log_give_the_same_keys(names: set[str]) -> None:
    """The source of a field does not matter if there is a dump."""
    from_log = resolved(OVERLAP_CASE)
    requested = {name: OVERLAP_CASE[name] for name in names if name not in QWEN3_30B}
    rest = {name: value for name, value in OVERLAP_CASE.items() if name not in requested}
    split = resolved(rest, requested)
    assert (split.stack_key, split.config_key) == (from_log.stack_key, from_log.config_key)
    assert all("the trainer's default is" in warning for warning in split.warnings)


# --- The meaning of a field that a dump omits, and of a truncated dump.


CUT = LogProblem("unfinished dump", "This configuration dump has no end.", 7)
ARGUMENTS = {
    "expert_model_parallel_size": "8",
    "hidden_size": "2048",
    "moe_router_topk": "8",
    "num_attention_heads": "32",
    "num_experts": "128",
    "num_layers": "48",
    "pipeline_model_parallel_size": "4",
    "tensor_model_parallel_size": "2",
    "world_size": "64",
}
START, END = "------- arguments -------\n", "------- end of arguments -------\n"
SUMMARY = """\
------------------------------------------------------------
Configuration Summary (Non-Default Values vs Mcore)
======================================================================
[model] Non-default values (vs Mcore TransformerConfig):
  hidden_size: 2048  (Mcore default: 0)
  num_layers: 48  (Mcore default: 0)
  num_moe_experts: 128  (Mcore default: None)
[train]:
  global_batch_size: 512
======================================================================
"""
LINES = "".join(
    f" iteration {i:8d}/      10 | elapsed time per iteration (ms): 100.0 | global batch size: 8 | lm loss: 1.0 |\n"
    for i in range(1, 11)
)


def dump(upto: str) -> str:
    """Megatron-LM's block, printed up to the argument `upto`."""
    names = list(ARGUMENTS)
    shown = names[: names.index(upto) + 1]
    return START + "".join(f"  {name} {'.' * (47 - len(name))} {ARGUMENTS[name]}\n" for name in shown)


@pytest.mark.parametrize(
    ("text", "has_defaults"),
    [
        (dump("world_size") + END, True),
        (dump("world_size"), True),  # only the line that ends it is missing
        (dump("tensor_model_parallel_size"), False),
        (dump("hidden_size"), False),
        (dump("world_size") + END + dump("hidden_size"), True),  # only the dump of the restart is truncated
        (SUMMARY, True),
        (SUMMARY.partition("  num_moe")[0], False),
    ],
)
def test_only_a_dump_with_an_end_has_defaults(text: str, has_defaults: bool) -> None:
    summary = summarise(parse_text(text + LINES), make_metadata())
    assert ("attention" in summary.contract) is has_defaults
    assert ("routing_mode" in summary.contract) is has_defaults
    assert ("routing_mode" in summary.unknown) is not has_defaults
    experts = summary.contract.get("num_experts")
    assert experts is None or experts.value == 128
    assert not str(summary.contract["model"].value if "model" in summary.contract else "").endswith("dense")
    assert summary.provisional


def test_a_finished_section_of_a_cut_summary_keeps_its_defaults() -> None:
    stated = parse_text(SUMMARY.partition("  global_batch")[0] + LINES).stated
    assert stated["num_experts"].value == 128
    assert (stated["attention"].value, stated["attention"].source) == ("auto", "default")


@pytest.mark.parametrize(("problems", "has_defaults"), [((), True), ((CUT,), False)])
def test_the_readers_remark_decides(problems: tuple[LogProblem, ...], has_defaults: bool) -> None:
    log = make_log([100.0] * 5, stated={"num_layers": 2}, problems=problems)
    assert ("attention" in summarise(log, make_metadata()).contract) is has_defaults


def test_each_field_of_the_keys_has_a_default_or_is_known_to_have_none() -> None:
    with every_case() as case:
        for name in [name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if not name.startswith(PREFIX)]:
            with case(name):
                assert (name in DEFAULTS) is not (name in WITHOUT_DEFAULT)


def test_a_dense_model_has_no_knob_of_experts() -> None:
    with every_case() as case:
        for name in [name for name, field in FIELDS.items() if field.group == "Experts and routing"]:
            with case(name):
                assert name in MOE_FIELDS


def test_defaults_are_canonical() -> None:
    with every_case() as case:
        for name in DEFAULTS:
            with case(name):
                assert read_value(name, DEFAULTS[name]) == DEFAULTS[name]


def test_no_field_without_default_is_a_stranger() -> None:
    assert set(FIELDS) >= WITHOUT_DEFAULT


# --- Requested and active values, and the resulting availability: proven by lines and iterations, never by speed.


DEEPEP: dict[str, Value] = OVERLAP_CASE | {"dispatcher_type": "flex", "flex_backend": "deepep"}
FALLBACK = LogEvent(
    "dispatcher_fallback", 7, "DeepEP is only applicable to Ampere, Hopper. Current GPU: X. Falling back to alltoall."
)
MISSING = LogEvent("deepep_missing", 50, "ImportError: DeepEP is not installed. Please install DeepEP package from x.")


def log_of(
    stated: dict[str, Value], *events: LogEvent, arguments: dict[str, Value] | None = None, steps: int = 10
) -> ParsedLog:
    return make_log([100.0] * steps, stated=stated, events=events, arguments=arguments)


def summary_of(log: ParsedLog, **fields: Value) -> RunSummary:
    return summarise(log, make_metadata({"container": "nemo:26.06", **fields}))


@pytest.mark.parametrize(
    ("stated", "events", "arguments", "requested", "active"),
    [
        (DEEPEP, [FALLBACK], {}, "deepep", ("alltoall", "log line")),
        (OVERLAP_CASE, [], {"use_turbo_deepep": True}, "alltoall", ("deepep", "arguments")),
        (OVERLAP_CASE, [], {"use_turbo_deepep": True, "enable_primus_turbo": False}, "alltoall",
         ("alltoall", "derived")),
        (DEEPEP, [], {}, "deepep", ("deepep", "derived")),
        (DEEPEP, [LogEvent("deepep_timeout", 120, "RuntimeError: DeepEP error: timeout (dispatch CPU)")], {}, "deepep",
         ("deepep", "log line")),
    ],
)  # fmt: skip
def test_the_dispatcher_that_ran(
    stated: dict[str, Value],
    events: list[LogEvent],
    arguments: dict[str, Value],
    requested: str,
    active: tuple[str, str],
) -> None:
    agrees = requested == active[0]
    summary = summary_of(log_of(stated, *events, arguments=arguments))
    dispatcher = summary.activity["dispatcher"]
    assert dispatcher.requested is not None
    assert dispatcher.active is not None
    assert (dispatcher.requested.value, dispatcher.active.value, dispatcher.active.source) == (requested, *active)
    assert dispatcher.agrees is agrees
    assert summary.contract["dispatcher"].value == active[0]
    assert any("was requested, but" in warning for warning in summary.warnings) is not agrees


def test_a_run_that_stopped_before_its_first_iteration_shows_no_active_dispatcher() -> None:
    dispatcher = summary_of(log_of(DEEPEP, MISSING, steps=0)).activity["dispatcher"]
    assert (dispatcher.active, dispatcher.agrees) == (None, None)


@pytest.mark.parametrize(
    ("text", "impl"),
    [
        ("CUDA graph capture done for training!!!", "full_iteration"),
        ("INFO:megatron.core.transformer.cuda_graphs:> built 4 cuda graph(s) in 0.25 sec, with total memory", "local"),
        ("Time spent in CUDA Graphs capture on rank 0: 1.25s", "transformer_engine"),
    ],
)
def test_captured_graphs_are_those_that_count(text: str, impl: str) -> None:
    fields: dict[str, Value] = OVERLAP_CASE | {"graph_impl": "none"}
    summary = summary_of(log_of(fields, LogEvent("graph_captured", 90, text)))
    assert summary.activity["graph_impl"].agrees is False
    assert summary.contract["graph_impl"].value == impl
    assert any(f"{impl} was active (line 90: {text})" in warning for warning in summary.warnings)


def test_graphs_that_no_line_shows_are_not_known_to_be_active() -> None:
    graphs = summary_of(log_of(OVERLAP_CASE | {"graph_impl": "transformer_engine"})).activity["graph_impl"]
    assert (graphs.active, graphs.agrees) == (None, None)
    assert "graph_impl" not in summary_of(log_of(OVERLAP_CASE)).activity


def test_hybridep_without_its_fused_permutation() -> None:
    stated: dict[str, Value] = OVERLAP_CASE | {
        "dispatcher_type": "flex", "flex_backend": "hybridep", "hybridep_permute_fused": True}  # fmt: skip
    event = LogEvent("permute_fallback", 60, "... Falling back to unfused HybridEP dispatch.")
    summary = summary_of(log_of(stated, event))
    assert summary.activity["hybridep_permute_fused"].agrees is False
    assert summary.contract["hybridep_permute_fused"].value is False


def test_an_overlap_that_the_trainer_accepted_ran() -> None:
    overlap = summary_of(log_of(OVERLAP_CASE)).activity["ep_overlap"]
    assert overlap.active is not None
    assert (overlap.active.value, overlap.agrees) == (True, True)


def test_the_precision_of_the_trainers_settings_is_the_active_one() -> None:
    precision = summary_of(log_of(OVERLAP_CASE), precision="fp8_mx").activity["precision"]
    assert precision.requested is not None
    assert precision.active is not None
    assert (precision.requested.value, precision.active.value, precision.agrees) == ("fp8_mx", "bf16", False)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (log_of(DEEPEP), [("deepep", True)]),
        (log_of(OVERLAP_CASE), [("alltoall", True)]),
        (log_of(DEEPEP, MISSING, steps=0), [("deepep", False)]),
        (log_of(DEEPEP, MISSING, LogEvent("training_started", 90, "x")), [("deepep", True)]),
        (log_of(OVERLAP_CASE, MISSING, LogEvent("training_started", 90, "x")),
         [("deepep", False), ("alltoall", True)]),
        (log_of({}), []),
        (make_log([9e9] * 10, stated=DEEPEP), [("deepep", True)]),
    ],
)  # fmt: skip
def test_availability_of_dispatchers(log: ParsedLog, expected: list[tuple[str, bool]]) -> None:
    facts = summary_of(log).availability
    assert [(fact.dispatcher, fact.available) for fact in facts] == expected
    assert all(fact.container == "nemo:26.06" and fact.evidence for fact in facts)


def test_megatron_bridge_resets_a_flex_dispatcher_without_a_backend() -> None:
    rule = "=" * 70
    text = (
        f"\n{rule}\nConfiguration Summary (Non-Default Values vs Megatron Core)\n{rule}\n\n"
        "[model] Non-default values (vs Mcore TransformerConfig):\n"
        "  num_layers: 4  (Mcore default: 0)\n"
        "  num_moe_experts: 8  (Mcore default: None)\n"
        "  moe_token_dispatcher_type: 'flex'  (Mcore default: 'allgather')\n"
        "  moe_flex_dispatcher_backend: None  (Mcore default: 'deepep')\n"
        f"{rule}\n"
    )
    contract = summarise(parse_text(text), read_metadata({})).contract
    assert contract["dispatcher"].value == "alltoall"
    assert contract["flex_backend"].value is None


@pytest.mark.parametrize(
    ("trainer", "active"),
    [("Megatron-LM", "deepep"), ("Megatron-Bridge", "deepep"), ("NeMo 2", "deepep"), ("Primus", "deepep"),
     ("FlagScale", None), ("MindSpeed", None), ("Megatron-DeepSpeed", None), ("", None)],
)  # fmt: skip
def test_what_ran_is_inferred_of_trainers_that_refuse_to_start_without_it(trainer: str, active: str | None) -> None:
    summary = summary_of(replace(log_of(DEEPEP), trainer=trainer))
    dispatcher = summary.activity["dispatcher"].active
    assert (dispatcher and dispatcher.value) == active
    evidence = [line for fact in summary.availability for line in fact.evidence]
    assert [line.inferred for line in evidence] == ([True] if active else [])
    assert all(line.text.startswith(f"inferred: 10 iterations ran, and {trainer} does not start") for line in evidence)


def test_a_line_that_proves_what_ran_is_not_inferred() -> None:
    facts = summary_of(log_of(DEEPEP, FALLBACK)).availability
    assert [[line.inferred for line in fact.evidence] for fact in facts] == [[False]]
