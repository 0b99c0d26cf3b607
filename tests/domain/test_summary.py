"""Whole summaries of logs built by hand: figures with intervals, or the reason why there are none."""

import numpy as np
import pytest

from app.domain.contract_fields import METRICS
from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS
from app.domain.run import LogEvent, MemoryReport, Problem, RunSummary, Value, Window
from app.domain.summary import summarise
from tests.domain.builders import OVERLAP_CASE, make_log, make_metadata

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
    assert metric.note.startswith("peak 989 TFLOP/s (H100, BF16 dense; NVIDIA/dgxc-benchmarking")


def test_printed_flops_are_shown_when_they_agree() -> None:
    summary = summary_of_overlap_case(tflops_per_gpu=[10.0, 192.1, *([192.6] * 20)])
    metric = summary.metrics["tflops_per_gpu"]
    assert metric is not None
    assert (metric.value, metric.note) == (192.6, "printed by the trainer")
    assert not any("FLOPs formula" in warning for warning in summary.warnings)


def test_printed_flops_that_disagree_name_the_input_that_explains_it() -> None:
    summary = summary_of_overlap_case(tflops_per_gpu=[10.0, *([385.2] * 21)])
    assert value(summary, "tflops_per_gpu") == 385.2
    assert (
        "The log prints 385.2 TFLOP/s/GPU, the FLOPs formula gives 192.6 (-50.0 %). They agree if `gpus` is half, or "
        "`gbs` double. The printed figure is shown."
    ) in summary.warnings


@pytest.mark.parametrize(
    ("without", "metric", "words"),
    [
        ("seq_len", "tokens_per_s_per_gpu", "Tokens per second needs `seq_len`. State it in the metadata."),
        ("gpus", "tflops_per_gpu", "needs `gpus`. State it"),
        ("num_attention_heads", "tflops_per_gpu", "which the log does not print, needs `num_attention_heads`. State"),
        ("precision", "mfu_pct", "MFU needs `precision`. State it in the metadata."),
    ],
)
def test_a_missing_figure_says_what_it_needs(without: str, metric: str, words: str) -> None:
    stated = {name: one for name, one in OVERLAP_CASE.items() if name != without}
    summary = summarise(make_log(TIMES, stated=stated), make_metadata(PLACE))
    assert summary.metrics[metric] is None
    assert words in " ".join(summary.warnings)


def test_a_gpu_without_a_published_peak_gets_no_mfu() -> None:
    summary = summarise(make_log(TIMES, stated=OVERLAP_CASE), make_metadata(PLACE | {"gpu": "A100"}))
    assert summary.metrics["mfu_pct"] is None
    assert "MFU is not computed: no source we know states a dense peak of A100 at bf16." in summary.warnings


def test_printed_tokens_stand_in_where_the_batch_is_unknown() -> None:
    log = make_log([100.0] * 10, columns={"tokens_per_s_per_gpu": [5000.0] * 10})
    metric = summarise(log, make_metadata()).metrics["tokens_per_s_per_gpu"]
    assert metric is not None
    assert (metric.value, metric.note) == (5000.0, "printed by the trainer")


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
    assert metric.note == "most allocated on 2 ranks that reported it"


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
    assert "Fewer than 4 step times can be used, so there is no steady step time. Run it longer." in summary.warnings
    assert summary.evidence_level == "smoke"


def test_without_an_iteration_the_recognised_failure_is_the_error() -> None:
    event = LogEvent("deepep_missing", 12, "ImportError: DeepEP is not installed.")
    summary = summarise(make_log(events=[event]), make_metadata())
    assert summary.error == (
        "No iteration line was read. The job failed first, on line 12: ImportError: DeepEP is not installed."
    )
    assert all(metric is None for metric in summary.metrics.values())
    assert summary.health["outcome"] == "failed"


def test_without_an_iteration_or_failure_the_first_and_last_lines_are_the_error() -> None:
    assert summarise(make_log(), make_metadata()).error == (
        'No iteration line was read. The log begins with "first line" and ends with "last line". Upload the output of '
        "the rank that prints iterations, usually the last one."
    )


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


def test_short_and_unsteady_windows_are_told_in_words() -> None:
    short = summarise(make_log([9000.0] + [100.0] * 9), make_metadata())
    assert any(w.startswith("The window holds 9 iterations; under 15 nobody can tell") for w in short.warnings)
    drifting = summarise(make_log([9000.0, *np.linspace(100, 120, 40)]), make_metadata())
    assert any(w.startswith("The window is not steady: ") for w in drifting.warnings)


def test_unknown_stack_fields_are_listed_in_one_sentence() -> None:
    summary = summarise(make_log(TIMES, stated=OVERLAP_CASE), make_metadata({"gpu": "H100"}))
    assert summary.provisional
    assert (
        "Comparisons with this run are provisional: nobody states `cluster`, `container`. Add them to the metadata."
    ) in summary.warnings


def test_the_readers_remarks_are_passed_on_with_their_lines() -> None:
    log = make_log([100.0] * 5)
    remarks = tuple(Problem("x", f"Remark {i}.", i) for i in range(1, 13))
    object.__setattr__(log, "problems", remarks)
    warnings = summarise(log, make_metadata()).warnings
    assert "Line 1: Remark 1." in warnings
    assert "2 more remarks on the log are not listed." in warnings
    assert not any("Remark 11" in warning for warning in warnings)
