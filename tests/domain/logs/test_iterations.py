"""Iterations and their step times."""

import pytest

from app.domain.logs import parse_text
from tests.domain.logs.lines import STARTED, column, iteration

# FlagScale on PPU, 2026-09-14, cut to its essentials
FULL = (
    "[default7]: [2026-09-14 15:08:27.273656] iteration       44/  102400 | consumed samples:          352 | "
    "elapsed time per iteration (ms): 6922.3 | throughput per GPU (TFLOP/s/GPU): 62.0 | learning rate: 1.289062E-04 | "
    "global batch size:     8 | lm loss: 6.457796E+00 | loss scale: 1.0 | grad norm: 4.096 | num zeros: 760881152.0 | "
    "params norm: 2241.466 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def test_every_field_of_a_line_is_a_column() -> None:
    log = parse_text("noise\n" + FULL)
    values = {name: column(log, name)[0] for name in log.columns}
    assert values == {
        "iteration": 44,
        "consumed_samples": 352,
        "step_time_ms": 6922.3,
        "step_time_true_ms": 6922.3,
        "tflops_per_gpu": 62.0,
        "learning_rate": 1.289062e-04,
        "global_batch_size": 8,
        "lm_loss": 6.457796,
        "loss_scale": 1.0,
        "grad_norm": 4.096,
        "num_zeros": 760881152.0,
        "params_norm": 2241.466,
        "skipped_iterations": 0,
        "nan_iterations": 0,
    }
    assert (log.total_iterations, list(log.line_numbers), log.trainer) == (102400, [2], "Megatron-LM")


@pytest.mark.parametrize(
    ("field", "name", "value"),
    [
        ("energy per GPU (J/iter/GPU): 4020.5", "energy_j_per_gpu", 4020.5),
        ("power per GPU (W/GPU): 650.1", "power_w_per_gpu", 650.1),
        ("z_loss: 1.0E-03", "z_loss", 1e-3),
        ("global_load_balancing_loss: 1.01", "global_load_balancing_loss", 1.01),
        ("mtp_2 loss: 7.5", "mtp_2_loss", 7.5),
        ("loss: 3.25", "loss", 3.25),
        ("max attention logit: 12.500", "max_attention_logit", 12.5),
        ("tokens/sec/gpu: 8000.5", "tokens_per_s_per_gpu", 8000.5),
        ("tokens per gpu per second(tgs): 633.832", "tokens_per_s_per_gpu", 633.832),
        ("throughput per GPU (TFLOP/s/GPU): 11.9/11.5", "tflops_per_gpu", 11.9),
        ("grad norm: inf", "grad_norm", float("inf")),
        ("num zeros: 71", "num_zeros", 71.0),
        ("total grad norm: 2.773", "grad_norm", 2.773),
        ("consumed tokens: 1.258B", "consumed_tokens", 1.258e9),
        ("mem: 253.38GB/2.60GB", "mem_gb", 253.38),
        ("hip mem usage/free/total/usage_ratio: 253.38GB/2.60GB/255.98GB/98.98%", "hip_mem_used_bytes", 253.38 * 2**30),
        ("rank-17 rocm max mem usage/usage_ratio: 1.00GB/59.95%", "rocm_max_mem_used_bytes", 2.0**30),
        ("mem usages: 0.7494", "mem_usages", 0.7494),
        ("compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1)", "tflops_per_gpu", 496.3),
        ("compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1)", "tflops_per_gpu_running_avg", 496.1),
        ("tokens/s/GPU inst/harmonic mean: 9640.7/9629.8", "tokens_per_s_per_gpu", 9640.7),
        ("tokens/s/GPU inst/harmonic mean: 9640.7/9629.8", "tokens_per_s_per_gpu_running_avg", 9629.8),
        ("expert load max/mean: 1.25", "expert_load_max_mean", 1.25),
        ("lm loss: 6.4577964568734512", "lm_loss", 6.4577964568734512),
        ("My Own Metric (x/y): 5", "my_own_metric_x_y", 5.0),
    ],
)
def test_fields_are_known_by_their_names(field: str, name: str, value: float) -> None:
    log = parse_text(iteration(1, 10.0, tail=field) + iteration(2, 10.0, tail=field))
    assert column(log, name) == [value, value]


@pytest.mark.parametrize("field", ["eta: 0:00:00", "mood: 1.258Q", "mem: GB/2.60GB", ": 5", "free text"])
def test_values_that_are_not_numbers_are_left_out(field: str) -> None:
    log = parse_text(iteration(1, 10.0, tail=f"{field} | lm loss: 2.5") * 2)
    assert set(log.columns) == {
        "iteration", "consumed_samples", "step_time_ms", "step_time_true_ms", "global_batch_size", "lm_loss"
    }  # fmt: skip


def test_a_line_without_loss_leaves_a_gap_in_its_column() -> None:
    lines = [
        iteration(n, 10.0, tail=tail) for n, tail in enumerate(("lm loss: 2.5", "grad norm: nan", "lm loss: 2"), 1)
    ]
    log = parse_text("".join(lines))
    assert column(log, "lm_loss") == [2.5, None, 2.0]
    assert log.problems == ()


def test_the_loss_scale_is_not_a_loss_and_a_validation_line_is_not_an_iteration() -> None:
    validation = " validation loss at iteration 2 | lm loss value: 4.583530E+00 | lm loss PPL: 9.785927E+01 | \n"
    log = parse_text(iteration(1, 10.0) + validation)
    assert log.n == 1
    assert "lm_loss" not in log.columns
    assert [(event.kind, event.line, event.iteration) for event in log.events] == [("validation", 2, 2)]


def test_seconds_are_milliseconds_in_the_column() -> None:
    line = iteration(10, 7.2).replace("(ms)", "(s)")
    assert column(parse_text(line), "step_time_ms") == [7200.0]


def test_the_average_behind_a_slash_is_not_the_value() -> None:
    line = iteration(3, 1.0).replace("(ms): 1.0", "(ms): 16601.3/17219.3")
    assert column(parse_text(line + line.replace(" 3/", " 4/")), "step_time_ms") == [16601.3, 16601.3]


def test_two_sinks_that_print_a_line_twice_are_one_line() -> None:
    first, second = (iteration(n, 10.0 + n) for n in (1, 2))
    log = parse_text(f"a: {first}b: {first}b: {second}a: {second}")
    assert column(log, "iteration") == [1, 2]
    assert list(log.line_numbers) == [1, 3]
    assert log.segment_starts == (0,)


def test_text_joined_to_a_line_does_not_belong_to_it() -> None:
    glued = iteration(1, 10.0).rstrip("\n") + "Number of parameters in transformer layers in billions:  6.98\n"
    log = parse_text(glued)
    assert "number_of_parameters_in_transformer_layers_in_billions" not in log.columns


def test_two_lines_glued_together_are_two_lines() -> None:
    lines = [iteration(n, 10.0 * n, stamp="2026-01-02 03:04:05", tail="lm loss: 2.0") for n in (1, 2, 3)]
    log = parse_text(lines[0] + lines[1].rstrip("\n") + lines[2])
    assert column(log, "step_time_ms") == [10.0, 20.0, 30.0]
    assert list(log.line_numbers) == [1, 2, 2]


def test_a_line_without_a_closing_bar_is_whole_when_it_has_a_line_break() -> None:
    line = " iteration 50/ 5000 | elapsed time per iteration (ms): 61674.3 | throughput per GPU (TFLOP/s/GPU): 68.2\n"
    log = parse_text(line + line.replace(" 50/", " 55/"))
    assert column(log, "tflops_per_gpu") == [68.2, 68.2]
    assert log.log_interval == 5


@pytest.mark.parametrize(
    ("cut_after", "times", "losses"),
    [
        ("elapsed time per iteration (ms): 20.0 | lm loss: 2.", [10.0, 20.0], [2.5, None]),
        ("elapsed time per iteration (ms): 20.0 |", [10.0, 20.0], [2.5, None]),
        ("elapsed time per iteration (ms): 2", [10.0], [2.5]),
        ("consumed samples:    ", [10.0], [2.5]),
        ("", [10.0], [2.5]),
    ],
)
def test_a_value_that_was_cut_is_not_a_value(cut_after: str, times: list[float], losses: list[float | None]) -> None:
    first = iteration(1, 10.0, tail="lm loss: 2.5")
    log = parse_text(first + " iteration        2/     100 | " + cut_after)
    assert column(log, "step_time_ms") == times
    assert column(log, "lm_loss") == losses
    assert log.truncated
    assert log.unrecognised_lines == 0


def test_a_line_that_cannot_be_read_is_counted_and_quoted() -> None:
    torn = " iteration        2/     100 | consumed sam[default3]: elapsed time per iteration (ms): oops |\n"
    log = parse_text(iteration(1, 10.0) + torn + iteration(3, 10.0))
    assert log.unrecognised_lines == 1
    (problem,) = log.problems
    assert (problem.kind, problem.line) == ("unreadable line", 2)
    assert "oops" in problem.example


def test_a_summary_of_an_author_is_not_an_iteration_line() -> None:
    log = parse_text("elapsed time per iteration: 10250.49\nthroughput per GPU: 589.3\n")
    assert (log.n, log.unrecognised_lines, log.problems) == (0, 0, ())


@pytest.mark.parametrize(
    ("iterations", "stated", "interval"),
    [([1, 2, 3], "", 1), ([1, 5, 10, 15], "", 5), ([10, 20], "", 10), ([7], "", None), ([7], "25", 25)],
)
def test_the_log_interval_is_what_the_lines_show(iterations: list[int], stated: str, interval: int | None) -> None:
    dump = f" arguments ---\n  log_interval .................................... {stated}\n end of arguments ---\n"
    log = parse_text((dump if stated else "") + "".join(iteration(n, 10.0) for n in iterations))
    assert log.log_interval == interval


def test_a_restart_replaces_repeated_iterations() -> None:
    first = "".join(iteration(n, 10.0 + n) for n in range(1, 6))
    second = "".join(iteration(n, 20.0 + n) for n in range(4, 8))
    log = parse_text(first + STARTED + second)
    assert column(log, "iteration") == [1, 2, 3, 4, 5, 6, 7]
    assert column(log, "step_time_ms") == [11, 12, 13, 24, 25, 26, 27]
    assert log.segment_starts == (0, 3)
    assert list(log.line_numbers) == [1, 2, 3, 7, 8, 9, 10]


def test_a_restart_that_repeats_nothing_still_starts_a_segment() -> None:
    log = parse_text(iteration(1, 10) + iteration(2, 10) + STARTED + iteration(3, 10))
    assert log.segment_starts == (0, 2)


def test_a_restart_is_seen_without_any_word_about_it() -> None:
    log = parse_text("".join(iteration(n, 10.0) for n in (1, 2, 3, 2, 3, 4)))
    assert column(log, "iteration") == [1, 2, 3, 4]
    assert log.segment_starts == (0, 1)


def test_a_restart_at_the_same_line_is_not_a_doubled_line() -> None:
    log = parse_text(iteration(1, 10.0) + iteration(2, 10.0) + STARTED + iteration(2, 10.0))
    assert column(log, "iteration") == [1, 2]
    assert list(log.line_numbers) == [1, 4]
    assert log.segment_starts == (0, 1)


@pytest.mark.parametrize(
    ("end", "truncated"),
    [
        ("[after training is done] datetime: 2025-04-13 23:41:00 \n", False),
        ("[exiting program after 690.01 minutes] datetime: 2025-04-13 23:41:00 \n", False),
        ("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.\n", False),
        ("something else\n", True),
        ("", True),
    ],
)
def test_a_log_is_truncated_when_it_stops_without_a_word(end: str, truncated: bool) -> None:
    assert parse_text(iteration(1, 10.0) + end).truncated is truncated
    assert not parse_text(iteration(100, 10.0)).truncated


def test_a_line_that_several_ranks_print_is_one_line_and_no_restart() -> None:
    log = parse_text("".join(f"{rank}: " + iteration(n, 10.0 * n + rank) for n in (1, 2, 3) for rank in (0, 1)))
    assert column(log, "step_time_ms") == [11.0, 21.0, 31.0]
    assert log.segment_starts == (0,)


def test_a_restart_from_before_the_log_begins_leaves_one_segment() -> None:
    log = parse_text("".join(iteration(n, 10.0 * n) for n in (5, 6, 2, 3)))
    assert column(log, "iteration") == [2, 3]
    assert log.segment_starts == (0,)


LOADED = "  successfully loaded checkpoint from /checkpoints [ t 1/2, p 1/2 ] at iteration {}\n"


def fine(number: int, time_ms: float, second: float = 0.0) -> str:
    """A line with microseconds in its stamp, `second` seconds after noon."""
    return iteration(number, time_ms, stamp=f"2026-05-11 12:{int(second // 60):02d}:{second % 60:09.6f}")


def test_real_example_of_a_primus_log() -> None:
    # dsv2lite-fp8-mi355x-baseline, 2026-05-11
    log = parse_text(fine(1, 78258.5, 22.912300) + fine(2, 55245.7, 55.145289) + fine(3, 32208.7, 87.354))
    assert column(log, "step_time_ms") == [78258.5, 55245.7, 32208.7]
    assert column(log, "step_time_true_ms") == pytest.approx([78258.5, 32232.9, 32208.7])


@pytest.mark.parametrize("stamp", ["", "2025-05-11 12:00:01"])
def test_older_versions_print_true_times(stamp: str) -> None:
    log = parse_text("".join(iteration(n, time, stamp=stamp) for n, time in ((1, 100.0), (2, 60.0))))
    assert column(log, "step_time_true_ms") == [100.0, 60.0]


def test_with_a_longer_interval_the_rest_of_the_window_is_averaged() -> None:
    # Iterations 1 to 5 took 100 + 4 x 20 ms; the line for 5 prints their mean, 36
    log = parse_text(fine(1, 100.0) + fine(5, 36.0) + fine(10, 20.0))
    assert column(log, "step_time_true_ms") == [100.0, 20.0, 20.0]


def test_the_result_is_the_same_after_each_restart() -> None:
    first = fine(1, 100.0) + fine(2, 60.0) + fine(3, 20.0)
    second = LOADED.format(2) + STARTED + fine(3, 200.0) + fine(4, 110.0) + fine(5, 20.0)
    log = parse_text(STARTED + first + second)
    assert column(log, "iteration") == [1, 2, 3, 4, 5]
    assert column(log, "step_time_true_ms") == [100.0, 20.0, 200.0, 20.0, 20.0]
    assert log.segment_starts == (0, 2)


@pytest.mark.parametrize(
    "text",
    [
        STARTED + fine(2, 60.0) + fine(3, 20.0),
        fine(2, 60.0) + fine(3, 20.0),
        LOADED.format(40) + STARTED + fine(45, 60.0) + fine(50, 20.0),
        STARTED + fine(5, 60.0) + fine(10, 20.0),
    ],
)
def test_without_the_first_line_the_first_time_is_unknown(text: str) -> None:
    log = parse_text(text)
    assert column(log, "step_time_ms") == [60.0, 20.0]
    assert column(log, "step_time_true_ms") == [None, 20.0]
    assert [problem.kind for problem in log.problems] == ["unknown step time"]


def test_an_excerpt_from_the_middle_of_a_run_is_left_alone() -> None:
    log = parse_text(fine(44, 6922.3) + fine(45, 6928.0))
    assert column(log, "step_time_true_ms") == [6922.3, 6928.0]
    assert log.problems == ()


def test_doubled_lines_do_not_hide_the_second_iteration() -> None:
    log = parse_text(fine(1, 100.0) * 2 + fine(2, 60.0) * 2 + fine(3, 20.0) * 2)
    assert column(log, "step_time_true_ms") == [100.0, 20.0, 20.0]


def test_a_correction_that_needs_more_time_than_there_was_is_refused() -> None:
    # The timestamps are 1.2 s apart: 2 x 1200 - 600 = 1800 ms cannot have passed, 1200 ms can
    log = parse_text(fine(1, 600.0, 10.0) + fine(2, 1200.0, 11.2))
    assert column(log, "step_time_true_ms") == [600.0, 1200.0]


def test_a_time_too_short_to_hold_the_first_iteration_is_unknown() -> None:
    log = parse_text(fine(1, 1000.0, 10.0) + fine(2, 400.0, 10.1))
    assert column(log, "step_time_true_ms") == [1000.0, None]
    assert [problem.kind for problem in log.problems] == ["unknown step time"]


def test_time_stamps_may_cross_midnight() -> None:
    first = iteration(1, 5000.0, stamp="2026-05-11 23:59:59.000000")
    log = parse_text(first + iteration(2, 3000.0, stamp="2026-05-12 00:00:00.000000"))
    assert column(log, "step_time_true_ms") == [5000.0, 1000.0]


def test_a_pretrained_checkpoint_does_not_make_iteration_1_any_other() -> None:
    log = parse_text(LOADED.format(5000) + STARTED + fine(1, 100.0) + fine(2, 60.0))
    assert column(log, "step_time_true_ms") == [100.0, 20.0]


def test_lines_of_several_ranks_do_not_disturb() -> None:
    log = parse_text(fine(1, 100.0) + fine(1, 100.2) + fine(2, 60.1) + fine(2, 60.0))
    assert column(log, "step_time_true_ms") == pytest.approx([100.2, 19.8])
