"""Requested beside active, and the availability that follows: proof by lines and by iterations, never by speed."""

from dataclasses import replace

import pytest

from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_text
from app.domain.performance.summary import summarise
from app.domain.run import LogEvent, ParsedLog, RunSummary, Value
from tests.domain.builders import OVERLAP_CASE, make_log, make_metadata

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
    asked: dict[str, Value] = OVERLAP_CASE | {"graph_impl": "none"}
    summary = summary_of(log_of(asked, LogEvent("graph_captured", 90, text)))
    assert summary.activity["graph_impl"].agrees is False
    assert summary.contract["graph_impl"].value == impl
    assert f"The CUDA-graph implementation none was requested, but {impl} was active (line 90: {text})." in " ".join(
        summary.warnings
    )


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
