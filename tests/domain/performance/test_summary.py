"""The summary of a run: figures, timers, failures."""

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.contract.fields import METRICS
from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS
from app.domain.documents.document import Document
from app.domain.documents.read import read_document
from app.domain.logs import parse_text
from app.domain.logs.steps import STATE_NO_END
from app.domain.performance.health import explain_failures, outcome_of, read_health
from app.domain.performance.summary import summarise
from app.domain.performance.timers import step_parts
from app.domain.run import (
    LogEvent,
    LogProblem,
    MemoryReport,
    Metric,
    ParsedLog,
    RunSummary,
    Timer,
    Value,
    Window,
    lacking_for_full_length,
)
from tests.domain.builders import OVERLAP_CASE, make_log, make_metadata, make_stated
from tests.shared_papers import shared_folder

TIMES = [600_000.0, 31_400.0, *([31_310.0] * 20)]
PLACE: dict[str, Value] = {"gpu": "H100", "cluster": "eos", "container": "nemo:26.06"}


def summary_of_overlap_case(**columns: list[float]) -> RunSummary:
    return summarise(make_log(TIMES, stated=OVERLAP_CASE, columns=columns), make_metadata(PLACE))


def value(summary: RunSummary, name: str) -> float:
    metric = summary.metrics[name]
    assert metric is not None
    return metric.value


def test_figures_of_the_overlap_case() -> None:
    # 1024 x 4096 tokens on 16 GPUs in 31.31 s: 8372.5 tokens/s/GPU; x 23.006 GFLOP = 192.62 TFLOP/s; of 989: 19.48 %
    summary = summary_of_overlap_case()
    assert value(summary, "step_time_ms") == pytest.approx(31_310)
    assert value(summary, "tokens_per_s_per_gpu") == pytest.approx(8372.53, abs=0.005)
    assert value(summary, "tflops_per_gpu") == pytest.approx(192.62, abs=0.005)
    assert value(summary, "mfu_pct") == pytest.approx(19.48, abs=0.005)
    assert summary.error is None
    assert (summary.definition_version, summary.definitions) == (DEFINITION_VERSION, DEFINITIONS)
    assert list(summary.metrics) == list(METRICS)


def test_throughput_has_the_interval_of_the_time_flipped() -> None:
    summary = summary_of_overlap_case()
    time, tokens, mfu = (summary.metrics[name] for name in ("step_time_ms", "tokens_per_s_per_gpu", "mfu_pct"))
    assert time is not None
    assert tokens is not None
    assert mfu is not None
    assert tokens.ci_low / tokens.value == pytest.approx(time.value / time.ci_high)
    assert tokens.ci_high / tokens.value == pytest.approx(time.value / time.ci_low)
    assert mfu.ci_high / mfu.value == pytest.approx(time.value / time.ci_low)
    assert time.n == tokens.n == 21


def test_computed_flops_are_marked_so() -> None:
    metric = summary_of_overlap_case().metrics["tflops_per_gpu"]
    assert metric is not None
    assert metric.note.startswith("computed: FLOPs formula")


def test_the_peak_that_mfu_is_of_is_kept_with_its_source() -> None:
    metric = summary_of_overlap_case().metrics["mfu_pct"]
    assert metric is not None
    assert [part in metric.note for part in ("989 TFLOP/s", "H100", "NVIDIA/dgxc-benchmarking")] == [True] * 3


@pytest.mark.parametrize(
    ("printed", "shown", "note", "warned"),
    [
        # The formula gives 192.62
        (192.6, 192.62, "computed: FLOPs formula of Megatron-LM, 2026-08; the trainer prints 192.6, which is the same, "
         "rounded", False),
        (192.5, 192.5, "printed by the trainer", False),  # within half a per cent, but not by rounding
        (190.0, 190.0, "printed by the trainer", True),
    ],
)  # fmt: skip
def test_printed_flops_give_way_to_the_formula_that_they_are_rounded_from(
    printed: float, shown: float, note: str, warned: bool
) -> None:
    summary = summary_of_overlap_case(tflops_per_gpu=[10.0, 192.1, *([printed] * 20)])
    metric = summary.metrics["tflops_per_gpu"]
    assert metric is not None
    assert metric.value == pytest.approx(shown, abs=0.005)
    assert metric.note == note
    assert any("FLOPs formula" in warning for warning in summary.warnings) is warned


@pytest.mark.parametrize(
    ("printed", "share"),
    [
        (1.6, 0.05 / 1.6),  # one decimal is 3 % of a small figure
        (192.6, 0.05 / 192.6),
        (1.625, 0.0),  # documents have more decimals
        (0.05, 0.0),
    ],
)
def test_a_printed_figure_is_as_precise_as_its_last_digit(printed: float, share: float) -> None:
    summary = summarise(make_log(TIMES, columns={"tflops_per_gpu": [printed] * 22}), make_metadata())
    time, metric = summary.metrics["step_time_ms"], summary.metrics["tflops_per_gpu"]
    assert time is not None
    assert metric is not None
    assert metric.value == printed
    assert metric.ci_low / printed == pytest.approx(time.value / time.ci_high * (1 - share))
    assert metric.ci_high / printed == pytest.approx(time.value / time.ci_low * (1 + share))


def test_printed_flops_that_disagree_name_the_input_that_explains_it() -> None:
    summary = summary_of_overlap_case(tflops_per_gpu=[10.0, *([385.2] * 21)])
    assert value(summary, "tflops_per_gpu") == 385.2
    (warning,) = (text for text in summary.warnings if "385.2 TFLOP/s/GPU" in text)
    assert all(part in warning for part in ("192.6 (−50.0\u202f%)", "`gpus` is half", "`gbs` double"))


@pytest.mark.parametrize(
    ("without", "metric", "words"),
    [
        ("seq_len", "tokens_per_s_per_gpu", "Tokens per second needs `seq_len`. State it in the metadata."),
        ("gpus", "tflops_per_gpu", "needs `gpus`. State it"),
        ("num_attention_heads", "tflops_per_gpu", "which the log does not print, needs `num_attention_heads`. State"),
        ("precision", "mfu_pct", "MFU needs `precision`. State it in the metadata."),
    ],
)
def test_a_missing_figure_names_the_fields_that_it_needs(without: str, metric: str, words: str) -> None:
    stated = {name: item for name, item in OVERLAP_CASE.items() if name != without}
    summary = summarise(make_log(TIMES, stated=stated), make_metadata(PLACE))
    assert summary.metrics[metric] is None
    assert words in " ".join(summary.warnings)


def test_a_gpu_without_a_published_peak_gets_no_mfu() -> None:
    summary = summarise(make_log(TIMES, stated=OVERLAP_CASE), make_metadata(PLACE | {"gpu": "A100"}))
    assert summary.metrics["mfu_pct"] is None
    assert any("A100 at bf16" in warning for warning in summary.warnings)


def test_an_absurd_number_of_layers_is_refused_before_they_are_listed() -> None:
    summary = summarise(make_log(TIMES, stated=OVERLAP_CASE | {"num_layers": 10**12}), make_metadata(PLACE))
    assert summary.metrics["tflops_per_gpu"] is None
    assert any("num_layers" in warning and "10000" in warning for warning in summary.warnings)


@pytest.mark.parametrize(("printed", "gpu", "words"), [
    (988.0, "H100", ""),
    (1200.0, "B200", ""),
    (1200.0, "H100", "MFU is left out: 1200 TFLOP/s/GPU exceeds the peak of a H100 in BF16 (989). One of `gpu`, "
     "`precision` and `gpus` is wrong, or `gbs`, `seq_len` or the model's shape."),
])  # fmt: skip
def test_more_than_the_peak_is_not_an_mfu(printed: float, gpu: str, words: str) -> None:
    stated: dict[str, Value] = {"precision": "bf16"}
    log = make_log(TIMES, stated=stated, columns={"tflops_per_gpu": [printed] * 22})
    summary = summarise(log, make_metadata(PLACE | {"gpu": gpu}))
    assert (summary.metrics["mfu_pct"] is None) is bool(words)
    assert value(summary, "tflops_per_gpu") == printed
    assert [warning for warning in summary.warnings if "MFU" in warning] == ([words] if words else [])


def test_printed_tokens_stand_in_where_the_batch_is_unknown() -> None:
    log = make_log([100.0] * 10, columns={"tokens_per_s_per_gpu": [5000.0] * 10})
    metric = summarise(log, make_metadata()).metrics["tokens_per_s_per_gpu"]
    assert metric is not None
    assert (metric.value, metric.note) == (5000.0, "printed by the trainer")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [([6144.0] * 10, 6144 * 10 / 8), ([4096.0 * step for step in range(1, 11)], None), ([0.0] * 10, None)],
)
def test_the_tokens_of_a_step_give_the_throughput_and_a_total_does_not(
    tokens: list[float], expected: float | None
) -> None:
    log = make_log([100.0] * 10, columns={"tokens": tokens})
    metric = summarise(log, make_metadata({"gpus": 8})).metrics["tokens_per_s_per_gpu"]
    assert (metric and metric.value) == (expected and pytest.approx(expected))


def test_peak_memory_is_the_most_of_all_ranks_up_to_the_windows_end() -> None:
    gib = 2.0**30
    memory = [
        MemoryReport(1, 0, 1, 60 * gib),
        MemoryReport(2, 8, 1, 62.5 * gib),
        MemoryReport(3, 0, 99, 70 * gib),
    ]
    log = make_log([100.0] * 20, memory=memory)
    metric = summarise(log, make_metadata()).metrics["peak_memory_gib"]
    assert metric is not None
    assert (metric.value, metric.ci_low, metric.ci_high, metric.n) == (62.5, 62.5, 62.5, 2)
    assert "2 ranks" in metric.note


@pytest.mark.parametrize(("gpu", "used_gib", "wrong"), [("H100", 79, False), ("H100", 90, True), ("X1", 90, False)])
def test_a_peak_above_the_memory_of_the_stated_gpu_is_a_warning(gpu: str, used_gib: int, wrong: bool) -> None:
    log = make_log([100.0] * 20, memory=[MemoryReport(1, 0, 1, used_gib * 2.0**30)])
    warnings = summarise(log, make_metadata({"gpu": gpu})).warnings
    assert any("The stated GPU cannot be right" in warning for warning in warnings) is wrong


def test_peak_memory_of_a_column() -> None:
    log = make_log([100.0] * 5, columns={"peak_memory_bytes": [2.0**30, 2.0**31, np.nan, 2.0**30, 2.0**30]})
    assert value(summarise(log, make_metadata()), "peak_memory_gib") == 2


def test_artefacts_of_the_first_lines_do_not_count() -> None:
    printed = [9000.0, 5000.0, *([100.0] * 6)]
    log = make_log(printed, true_times_ms=[9000.0, np.nan, *([100.0] * 6)])
    summary = summarise(log, make_metadata())
    assert summary.steady_state is not None
    assert summary.steady_state.first_iteration == 3
    assert value(summary, "step_time_ms") == pytest.approx(100)


def test_a_declared_window_is_used() -> None:
    times = [9000.0] + [100.0] * 39 + [90.0] * 10
    summary = summarise(make_log(times), make_metadata(window=Window(41, 50)))
    assert summary.steady_state is not None
    assert summary.steady_state.method == "declared"
    assert value(summary, "step_time_ms") == pytest.approx(90)


def test_too_few_step_times_leave_all_speed_figures_out() -> None:
    summary = summarise(make_log([100.0, 100.0], stated=OVERLAP_CASE), make_metadata())
    assert summary.steady_state is None
    assert summary.metrics["step_time_ms"] is summary.metrics["tflops_per_gpu"] is None
    assert any("4 step times" in warning for warning in summary.warnings)
    assert summary.evidence_level == "smoke"


def test_without_an_iteration_the_recognised_failure_is_the_error() -> None:
    event = LogEvent("deepep_missing", 12, "ImportError: DeepEP is not installed.")
    summary = summarise(make_log(events=[event]), make_metadata())
    assert summary.error is not None
    assert "DeepEP is not installed (line 12)" in summary.error
    assert all(metric is None for metric in summary.metrics.values())
    assert summary.health["outcome"] == "failed"


def test_without_an_iteration_or_failure_the_first_and_last_lines_are_the_error() -> None:
    error = summarise(make_log(), make_metadata()).error
    assert error is not None
    assert [line in error for line in ('"first line"', '"last line"')] == [True, True]


@pytest.mark.parametrize(
    ("stated", "semantic_class"),
    [
        ({"data_mode": "real", "routing_mode": "dropless"}, "training_equivalent"),
        ({"data_mode": "real", "routing_mode": "drop-and-pad"}, "training_equivalent"),
        ({"data_mode": "real", "routing_mode": "forced-balance"}, "benchmark_only"),
        ({"data_mode": "mock", "routing_mode": "dropless"}, "benchmark_only"),
        ({"data_mode": "real", "routing_mode": "dropless", "nan_checks": False}, "benchmark_only"),
        ({"data_mode": "real"}, "unknown"),
        ({"routing_mode": "dropless"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_semantic_class(stated: dict[str, Value], semantic_class: str) -> None:
    assert summarise(make_log([100.0] * 10, stated=stated), make_metadata()).semantic_class == semantic_class


@pytest.mark.parametrize(
    ("n", "losses", "level"),
    [
        (5, [1.0] * 5, "smoke"),
        (8, [1.0] * 8, "screen"),
        (49, [1.0] * 49, "screen"),
        (60, [1.0] * 60, "validated"),
        (60, [1.0] * 59 + [np.nan], "screen"),
    ],
)
def test_evidence_level(n: int, losses: list[float], level: str) -> None:
    log = make_log([9000.0] + [100.0] * (n - 1), columns={"lm_loss": losses}, total_iterations=n)
    assert summarise(log, make_metadata()).evidence_level == level


@pytest.mark.parametrize(
    ("outcome", "loss_finite", "skipped", "n", "lacking"),
    [
        ("completed", True, 0, 60, 0),
        ("", True, None, 60, 1),
        ("failed", False, 2, 60, 3),
        ("completed", True, 0, 20, 1),
    ],
)
def test_a_run_names_what_it_lacks_for_full_length(
    outcome: str, n: int, skipped: int | None, lacking: int, *, loss_finite: bool
) -> None:
    log = make_log([9000.0] + [100.0] * (n - 1), columns={"lm_loss": [1.0] * n}, total_iterations=n)
    summary = summarise(log, make_metadata())
    health = {"outcome": outcome, "loss_finite": loss_finite, "skipped_iterations": skipped, "nan_iterations": None}
    assert summary.steady_state is not None
    assert len(lacking_for_full_length(summary.steady_state, health)) == lacking


MLM_LINE = (
    " [2026-06-01 00:00:00] iteration {i:8d}/      60 | consumed samples: 8 | elapsed time per iteration (ms): {time} |"
    " throughput per GPU (TFLOP/s/GPU): {tflops} | learning rate: 1.0E-05 | global batch size: {batch} |"
    " lm loss: {loss} | grad norm: {loss} | number of skipped iterations: {count} | number of nan iterations: 0 |\n"
)


@pytest.mark.parametrize(
    ("field", "value", "missing", "words"),
    [
        ("time", "1e308", "step_time_ms", "60 of 60 iterations have an implausible step time"),
        ("time", "1e-308", "step_time_ms", "The first is 1e-308 ms in iteration 1."),
        ("time", "inf", "step_time_ms", "The first is inf ms in iteration 1."),
        ("time", "9.9e9", "step_time_ms", "over 1e+09 ms"),
        ("time", "9e-4", "step_time_ms", "under 0.001 ms"),
        ("time", "nan", "step_time_ms", "Fewer than 4 step times are usable"),
        ("tflops", "1e308", "tflops_per_gpu", "The log prints `tflops_per_gpu` as 1e+308 in 59 of 59 iterations"),
        ("tflops", "123456.0", "tflops_per_gpu", "which is not plausible"),
        ("tflops", "1e-300", "tflops_per_gpu", "which the log does not print"),
        ("tflops", "inf", "tflops_per_gpu", "which the log does not print"),
        ("batch", "1" + "0" * 300, "tokens_per_s_per_gpu", "needs `gbs`"),
        ("loss", "1e308", "mfu_pct", "MFU needs"),
        ("count", "9" * 300, "mfu_pct", "MFU needs"),
    ],
)
def test_absurd_numbers_of_a_log_make_no_figures(field: str, value: str, missing: str, words: str) -> None:
    """No stored value may be infinite: one such row would break every list that contains it."""
    usual = {"time": "100.0", "tflops": "100.0", "batch": "8", "loss": "1.0", "count": "0"}
    text = "".join(MLM_LINE.format(i=i, **usual | {field: value}) for i in range(1, 61))
    summary = summarise(parse_text(text), make_metadata())
    assert summary.metrics[missing] is None
    assert words in " ".join(summary.warnings)
    stored = [*summary.health.values(), *(asdict(summary.steady_state).values() if summary.steady_state else ())]
    stored += [end for metric in summary.metrics.values() if metric for end in (metric.value, *interval(metric))]
    assert all(math.isfinite(number) for number in stored if isinstance(number, float))
    assert all(abs(number) <= 10**12 for number in stored if isinstance(number, int))


def interval(metric: Metric) -> tuple[float, float]:
    return metric.ci_low, metric.ci_high


@given(st.lists(st.floats(1e-3, 1e9) | st.floats(), min_size=5, max_size=40))
@settings(deadline=None)
def test_any_step_times_give_finite_positive_figures_or_none(times: list[float]) -> None:
    columns = {"tflops_per_gpu": times, "tokens_per_s_per_gpu": times, "peak_memory_bytes": times}
    summary = summarise(make_log(times, columns=columns), make_metadata(PLACE))
    for metric in summary.metrics.values():
        assert metric is None or all(0 < end < math.inf for end in (metric.value, *interval(metric)))
    steady = asdict(summary.steady_state) if summary.steady_state else {}
    assert all(math.isfinite(number) for number in steady.values() if isinstance(number, float))


@pytest.mark.parametrize(
    ("times", "printed", "words"),
    [
        (
            [100.0] * 40 + [-196.0, 100.0, -196.0, 0.0] + [100.0] * 20,
            None,
            "3 of 64 iterations have an implausible step time (under 0.001 ms or over 1e+09 ms); they are left "
            "out. The first is -196 ms in iteration 41.",
        ),
        (
            [100.0] * 40 + [np.nan] + [100.0] * 20,
            None,
            "1 of 61 iterations has no step time; it is left out. The first is iteration 41.",
        ),
        ([9000.0, np.nan, *([100.0] * 20)], [9000.0, 5000.0, *([100.0] * 20)], ""),  # the reader reported the artefact
        ([100.0] * 40, None, ""),
    ],
)
def test_step_times_that_are_left_out_are_counted(times: list[float], printed: list[float] | None, words: str) -> None:
    log = make_log(printed or times, true_times_ms=times)
    warnings = [warning for warning in summarise(log, make_metadata()).warnings if "left out" in warning]
    assert warnings == ([words] if words else [])


def test_short_and_unsteady_windows_are_explained_in_words() -> None:
    short = summarise(make_log([9000.0] + [100.0] * 9), make_metadata())
    assert any("9 iterations" in w and "15" in w for w in short.warnings)
    drifting = summarise(make_log([9000.0, *np.linspace(100, 120, 40)]), make_metadata())
    assert any("not steady" in w for w in drifting.warnings)


def test_unknown_stack_fields_are_listed_in_one_sentence() -> None:
    summary = summarise(make_log(TIMES, stated=OVERLAP_CASE), make_metadata({"gpu": "H100"}))
    assert summary.provisional
    assert any("`cluster` and `container`" in warning for warning in summary.warnings)
    bare = summarise(make_log(TIMES), make_metadata())
    (warning,) = (warning for warning in bare.warnings if "are not stated" in warning)
    assert warning.count("`") == 2 * (6 + 1)
    assert "`--set model=VALUE`" in warning
    assert "and 12 more are not stated" in warning


def test_the_readers_remarks_are_passed_on_with_their_lines() -> None:
    log = make_log([100.0] * 5)
    remarks = tuple(LogProblem("x", f"Remark {i}.", i) for i in range(1, 13))
    object.__setattr__(log, "problems", remarks)
    warnings = summarise(log, make_metadata()).warnings
    assert "Line 1: Remark 1." in warnings
    assert any(warning.startswith("2 more") for warning in warnings)
    assert not any("Remark 11" in warning for warning in warnings)


# --- Documents with a log and without one; which source takes precedence; what a project's defaults fill.


def document(kind: str, **fields: Value) -> Document:
    return Document(kind, stated=make_stated(fields, "metadata"))


def test_the_stronger_document_counts_and_both_are_named() -> None:
    log = make_log([100.0] * 10, stated=OVERLAP_CASE)
    documents = [document("launch command", tp=2), document("bridge configuration", tp=4, mbs=2)]
    summary = summarise(log, make_metadata(), documents)
    assert summary.contract["tp"].value == 2
    assert summary.contract["mbs"].value == 2
    differing = [re.findall(r"`\w+`|\d+", warning)[:3] for warning in summary.warnings if " but " in warning]
    assert [["`tp`", "2", "4"] in differing, ["`mbs`", "2", "1"] in differing] == [True, True]


def test_the_metadata_win_over_every_document() -> None:
    summary = summarise(make_log([100.0] * 10), make_metadata({"gbs": 64}), [document("launch command", gbs=512)])
    assert summary.contract["gbs"].value == 64
    assert any("64 in the metadata" in warning for warning in summary.warnings)


def test_series_of_a_document_are_added_to_those_of_the_log() -> None:
    log = make_log([100.0] * 5, columns={"lm_loss": [5.0, 4.0, 3.0, 2.0, 1.0]})
    columns = {"iteration": np.array([4.0, 2.0]), "lm_loss": np.array([9.0, 9.0]), "entropy": np.array([0.4, 0.2])}
    series = summarise(log, make_metadata(), [Document("tensorboard", columns=columns)]).series
    assert series["lm_loss"].tolist() == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert np.array_equal(series["entropy"], [np.nan, 0.2, np.nan, 0.4, np.nan], equal_nan=True)


@pytest.mark.parametrize("index", range(0, 688, 43))
def test_golden_values_alone_are_a_run_with_the_same_step_times(index: int) -> None:
    folder = shared_folder("corpus")
    lines = (folder / "golden" / "index.jsonl").read_text().splitlines()
    data = Path(folder / json.loads(lines[index])["file"]).read_bytes()
    golden = read_document("golden values", [data])
    summary = summarise(parse_text(""), make_metadata(), [golden])
    if not len(golden.columns.get("iteration", ())):
        assert summary.error is not None
        return
    assert summary.error is None
    assert summary.failures == () or {failure.kind for failure in summary.failures} <= {"loss_not_finite"}
    assert np.array_equal(summary.series["step_time_ms"], golden.columns["step_time_ms"], equal_nan=True)
    assert summary.contract["num_experts"].value is not None or "num_experts" not in golden.stated


def test_project_defaults_fill_unstated_fields() -> None:
    log = make_log([100.0] * 10, stated=OVERLAP_CASE | {"gpus": 8})
    defaults: dict[str, Value] = {"gpu": "H100", "cluster": "eos", "gbs": 1, "nonsense": 1, "cp": "many"}
    summary = summarise(log, make_metadata({"cluster": "csw"}), project_defaults=defaults)
    assert (summary.contract["gpu"].value, summary.contract["gpu"].source) == ("H100", "default")
    assert summary.contract["gpu"].detail == "project default"
    assert summary.contract["cluster"].value == "csw"
    assert summary.contract["gbs"].value == 1024
    assert summary.contract["gpus_per_node"].value == 8


def log_with_timers(arguments: dict[str, Value] | None = None, **columns: list[float]) -> ParsedLog:
    series = {f"timer_{name}_ms": values for name, values in columns.items()}
    return make_log([9000.0] + [100.0] * 19, columns=series, arguments=arguments)


def test_the_share_of_the_step_and_the_spread_over_ranks() -> None:
    summary = summarise(
        log_with_timers(
            forward_backward=[8000.0] + [80.0] * 19,
            forward_backward_min=[7000.0] + [64.0] * 19,
            optimizer=[900.0] + [15.0] * 19,
            interval_time=[9000.0] + [100.0] * 19,
        ),
        make_metadata(),
    )
    first, second = summary.timers
    assert (first.name, first.median_ms, first.max_over_min) == ("forward-backward", 80.0, 1.25)
    assert first.share_of_step == pytest.approx(0.8)
    assert (second.name, second.max_over_min) == ("optimizer", None)
    assert summary.units["timer_optimizer_ms"] == "ms"


@pytest.mark.parametrize(
    ("arguments", "timers", "fair"),
    [
        ({}, [], True),
        ({"timing_log_level": 0}, [], True),
        ({"timing_log_level": 0}, ["interval_time"], True),
        ({"timing_log_level": 1}, [], False),
        ({"timing_log_level": 2}, ["forward_compute"], False),
        ({}, ["forward_compute"], False),
        ({"timing_log_level": 1, "barrier_with_L1_time": False}, ["forward_backward"], True),
    ],
)
def test_barriers_of_timers_make_a_run_unfair(arguments: dict[str, Value], timers: list[str], fair: bool) -> None:
    log = log_with_timers(arguments, **{name: [50.0] * 20 for name in timers})
    summary = summarise(log, make_metadata())
    assert summary.fair_for_timing is fair
    assert any("not fair" in warning for warning in summary.warnings) is not fair
    assert summary.metrics["step_time_ms"] is not None


def parts_of(**timers: float) -> dict[str, float]:
    named = [Timer(name.replace("_", "-"), ms / 100, ms) for name, ms in timers.items()]
    return {part.label: part.ms for part in step_parts(named, 100.0)}


def test_the_step_by_timers_counts_nested_timers_once() -> None:
    parts = parts_of(
        forward_backward=80.0,
        forward_compute=25.0,
        backward_compute=40.0,
        backward_send_forward_recv=5.0,
        batch_generator=1.0,
        all_grads_sync=4.0,
        embedding_grads_all_reduce=3.0,
        optimizer=15.0,
        optimizer_inner_step=9.0,
    )
    assert parts == {
        "forward": 25.0,
        "backward": 40.0,
        "between pipeline stages": 5.0,
        "gradients": 4.0,
        "rest of forward and backward": 6.0,
        "optimizer": 15.0,
        "not timed": 5.0,
    }


def test_parts_of_slowest_ranks_may_exceed_the_step() -> None:
    parts = parts_of(forward_compute=60.0, backward_compute=70.0)
    assert parts == {"forward": 60.0, "backward": 70.0}
    assert parts_of(optimizer=10.0) == {}


PROFILE: dict[str, Value] = {"profile": True, "profile_step_start": 10, "profile_step_end": 12}


@pytest.mark.parametrize(
    ("arguments", "profiled"),
    [
        ({"use_pytorch_profiler": True}, (9, 12)),
        ({"use_pytorch_profiler": False}, (11, 13)),
        ({"profile": False, "use_pytorch_profiler": True}, None),
        ({"profile_step_end": None}, None),
    ],
)
def test_profiled_iterations_never_count(arguments: dict[str, Value], profiled: tuple[int, int] | None) -> None:
    slow = range(profiled[0] - 1, profiled[1]) if profiled else range(0)
    times = [5000.0 if at in slow else 100.0 for at in range(30)]
    steady = summarise(make_log(times, arguments=PROFILE | arguments), make_metadata()).steady_state
    assert steady is not None
    assert steady.profiled == profiled
    assert (steady.step_time_ms, steady.mean_step_time_ms) == pytest.approx((100, 100))
    assert steady.n == 29 - len(slow)
    assert any("profiled" in note for note in steady.notes) is (profiled is not None)


@pytest.mark.parametrize(
    "launch",
    [
        "python pretrain_gpt.py --profile --use-pytorch-profiler --profile-step-start 10 --profile-step-end 12",
        "train.py profiling.use_pytorch_profiler=true profiling.profile_step_start=10 profiling.profile_step_end=12",
        {"--profile": None, "use_pytorch_profiler": True, "profile_step_start": 10, "profile_step_end": 12},
    ],
)
def test_iterations_that_the_stated_launch_profiles_never_count(launch: object) -> None:
    times = [5000.0 if 8 <= at < 12 else 100.0 for at in range(30)]
    metadata = replace(make_metadata(), extra={"launch_args": launch})
    stated = summarise(make_log(times), metadata).steady_state
    assert stated is not None
    assert (stated.profiled, stated.mean_step_time_ms) == ((9, 12), pytest.approx(100))
    by_log = summarise(make_log(times, arguments={"profile": False}), metadata).steady_state
    assert by_log is not None
    assert by_log.profiled is None


def test_a_run_of_profiled_iterations_alone_is_measured_and_says_so() -> None:
    times = [900.0, 500.0, 500.0, 500.0, 500.0, 500.0]
    arguments = PROFILE | {"profile_step_start": 1, "profile_step_end": 5}
    summary = summarise(make_log(times, arguments=arguments), make_metadata())
    assert summary.steady_state is not None
    assert summary.steady_state.profiled is None
    assert any("They count" in text for text in summary.warnings)


def test_the_trace_of_a_real_run_does_not_slow_its_step() -> None:
    log = parse_text((shared_folder("corpus") / "logs/real-full/dense-1b-plangraph-baseline.log").read_text())
    steady = summarise(log, make_metadata()).steady_state
    assert steady is not None
    assert steady.profiled == (4, 6)
    assert log.columns["step_time_true_ms"][5] > 1.3 * steady.step_time_ms


# --- How runs end, derived from events and columns.

NAN = math.nan


def event(kind: str, line: int, text: str = "") -> LogEvent:
    return LogEvent(kind, line, text or kind)


# Iterations are on lines 101 to 110
@pytest.mark.parametrize(
    ("events", "total", "outcome"),
    [
        ([], 10, "completed"),
        ([], 20, "truncated"),
        ([], None, "truncated"),
        ([event("training_done", 120)], 20, "completed"),
        ([event("exit_iteration", 120)], 20, "completed"),
        ([event("exit_duration", 120)], 20, "stopped"),
        ([event("exit_signal", 120)], 20, "stopped"),
        ([event("scheduler", 120, "slurmstepd: error: *** STEP 1.0 CANCELLED AT X DUE TO TIME LIMIT ***")], 20,
         "stopped"),
        ([event("scheduler", 120, "slurmstepd: error: *** STEP 1.0 CANCELLED AT X DUE TO NODE FAILURE ***")], 20,
         "failed"),
        ([event("out_of_memory", 120), event("nccl_error", 118), event("process_failed", 130)], 20, "out_of_memory"),
        ([event("not_finite", 120), event("process_failed", 130)], 20, "not_finite"),
        ([event("nccl_timeout", 120)], 20, "failed"),
        ([event("error", 120, "ValueError: x")], 20, "failed"),
        ([event("error", 120, "BrokenPipeError: x")], 10, "completed"),
        ([event("error", 50), event("training_started", 90)], 10, "completed"),
        ([event("nccl_error", 104), event("training_started", 105), event("training_done", 120)], 20, "completed"),
        ([event("exit_code", 120, "exitcode  : 1 (pid: 7)"), event("process_failed", 111)], 20, "failed"),
        ([event("exit_code", 120, "exitcode  : -15 (pid: 7)")], 20, "truncated"),
        ([event("exit_duration", 120), event("training_done", 121)], 20, "stopped"),
        ([event("exit_duration", 120), event("training_done", 121)], 10, "completed"),
        ([event("error", 50, "ImportError: an optional package")], 20, "truncated"),
        ([event("error", 105, "ConnectionError: tried again")], 20, "truncated"),
        ([event("training_done", 120), event("nccl_error", 125)], 20, "completed"),
        ([event("training_done", 50), event("training_started", 60), event("out_of_memory", 120)], 20, "out_of_memory"),
    ],
)  # fmt: skip
def test_outcomes(events: list[LogEvent], total: int | None, outcome: str) -> None:
    assert outcome_of(make_log([100.0] * 10, events=events, total_iterations=total))[0] == outcome


@pytest.mark.parametrize(
    ("events", "truncated", "outcome"),
    [([], False, ""), ([], True, "truncated"), ([event("out_of_memory", 120)], False, "out_of_memory")],
)
def test_a_trainer_that_states_no_end_is_not_truncated(events: list[LogEvent], truncated: bool, outcome: str) -> None:
    for trainer in STATE_NO_END:
        log = make_log([100.0] * 10, events=events, trainer=trainer, truncated=truncated)
        assert outcome_of(log)[0] == outcome
        assert bool(explain_failures(log)) == bool(outcome)


def test_the_most_telling_failure_is_the_evidence() -> None:
    events = [
        event("nccl_error", 115),
        event("out_of_memory", 117, "torch.OutOfMemoryError: CUDA out of memory."),
        event("exit_code", 130, "exitcode  : -15 (pid: 7)"),
        event("process_failed", 129),
    ]
    health = read_health(make_log([100.0] * 10, events=events))
    assert (health["outcome"], health["evidence_line"]) == ("out_of_memory", 117)
    assert health["evidence"] == "torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    ("columns", "finite", "outcome"),
    [
        ({"lm_loss": [3.0, 2.0, 1.0, 0.9]}, True, "completed"),
        ({"lm_loss": [3.0, NAN, 1.0, 0.9]}, False, "completed"),
        ({"lm_loss": [3.0, 2.0, NAN, NAN]}, False, "not_finite"),
        ({"lm_loss": [3.0, 2.0, 1.0, math.inf]}, False, "not_finite"),
        ({"lm_loss": [NAN, NAN, 2.0, 1.0], "skipped_iterations": [1.0, 1.0, 0.0, 0.0]}, True, "completed"),
        ({"grad_norm": [NAN, NAN, NAN, NAN]}, False, "not_finite"),
        ({"grad_norm": [1.0, 1.0, 1.0, 1.0]}, True, "completed"),
        ({}, None, "completed"),
    ],
)
def test_losses_that_are_not_finite(columns: dict[str, list[float]], finite: bool | None, outcome: str) -> None:
    health = read_health(make_log([100.0] * 4, columns=columns, total_iterations=4))
    assert health["loss_finite"] is finite
    assert health["outcome"] == outcome


def test_a_cut_last_line_is_not_a_lost_loss() -> None:
    log = make_log([100.0] * 4, columns={"lm_loss": [3.0, 2.0, 1.0, NAN]}, total_iterations=9, truncated=True)
    health = read_health(log)
    assert health["loss_finite"] is True
    assert health["outcome"] == "truncated"


def test_numbers_of_a_run() -> None:
    log = make_log(
        [100.0] * 3,
        columns={
            "lm_loss": [3.0, 2.0, 1.5],
            "grad_norm": [9.0, 8.0, 7.0],
            "skipped_iterations": [0.0, 1.0, 0.0],
            "nan_iterations": [0.0, 0.0, 0.0],
        },
        memory=[MemoryReport(1, 0, 1, 2.0**30, 2.0**31, alloc_retries=2), MemoryReport(2, 1, 1, 2.0**31)],
        segment_starts=(0, 2),
        total_iterations=3,
    )
    health = read_health(log)
    expected = {
        "iterations": 3,
        "last_iteration": 3,
        "total_iterations": 3,
        "restarts": 1,
        "first_loss": 3.0,
        "last_loss": 1.5,
        "skipped_iterations": 1,
        "nan_iterations": 0,
        "last_grad_norm": 7.0,
        "largest_grad_norm": 9.0,
        "peak_allocated_gib": 2.0,
        "peak_reserved_gib": 2.0,
        "alloc_retries": 2,
    }
    assert {name: health[name] for name in expected} == expected


def test_a_log_without_iterations_failed() -> None:
    health = read_health(make_log())
    assert (health["outcome"], health["evidence"]) == ("failed", "No iteration line was read.")
    assert health["last_iteration"] is health["first_loss"] is health["loss_finite"] is None
