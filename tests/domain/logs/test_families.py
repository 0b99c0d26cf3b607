"""Lines of trainers that are no relatives of Megatron-LM, or cousins; and which family a log is called."""

import pytest

from app.domain.logs import parse_text
from tests.domain.logs.lines import column, iteration

# NeMo 2 guide, 2025-08-19
NEMO_2 = (
    "retraining/0 [default0]:Training epoch 0, iteration 0/99 | lr: 9.804e-08 | global_batch_size: 4 | "
    "global_step: 0 | reduced_train_loss: 14.66 | train_step_timing in s: 5.276\n"
    "retraining/0 [default0]:Training epoch 0, iteration 1/99 | lr: 1.961e-07 | global_batch_size: 4 | "
    "global_step: 1 | reduced_train_loss: 15.07 | train_step_timing in s: 2.008 | consumed_samples: 8\n"
)
# mlc-ai/pith-train issue 7, 2026-04-01
PITH_TRAIN = (
    "2026-04-01 14:27:31 | INFO | step 00000001/00000015 | step-time 43.142 sec | cross-entropy-loss 2.4934 | "
    "tokens-per-second 48,611 | peak-gpu-memory 57.26 GB\n"
)
PRIMUS = (
    "[20251023 12:39:12][rank-63/64][INFO ] [--------trainer.py:2382] :  iteration      424/   40000 | "
    "consumed samples:        27136 | elapsed time per iteration (ms): 16601.3/17219.3 | lm loss: 4.447942E+00 |\n"
)
DEEPSPEED = (
    "[default3]: iteration       10/ 3125000 | consumed samples:          960 | elapsed time per iteration (s): "
    "7.2310 | samples per second: 13.276 | TFLOPs: 101.54 |\n"
)


def test_nemo_2_counts_from_0_and_names_the_last_index() -> None:
    log = parse_text(NEMO_2)
    assert (log.trainer, log.total_iterations, log.n) == ("NeMo 2", 99, 2)
    assert column(log, "iteration") == [0, 1]
    assert column(log, "step_time_ms") == column(log, "step_time_true_ms") == [5276.0, 2008.0]
    assert column(log, "lm_loss") == [14.66, 15.07]
    assert column(log, "consumed_samples") == [None, 8]
    assert log.stated["gbs"].value == 4


def test_nemo_1_prints_one_list_at_the_end() -> None:
    log = parse_text("[NeMo I 2025-03-10 16:24:43 perf_metrics_utils:42] train_step_timing in s: [9.9, 7.12, 7.13]\n")
    assert (log.trainer, column(log, "iteration")) == ("NeMo 1", [0, 1, 2])
    assert column(log, "step_time_ms") == [9900.0, 7120.0, 7130.0]
    assert [problem.kind for problem in log.problems] == ["list of step times"]


def test_a_list_that_was_cut_loses_its_last_number() -> None:
    log = parse_text("train_step_timing in s: [9.9, 7.12, 7.")
    assert (column(log, "step_time_ms"), log.truncated) == ([9900.0, 7120.0], True)


def test_pith_train_gives_the_tokens_of_the_job_and_memory_in_bytes() -> None:
    log = parse_text(PITH_TRAIN)
    assert (log.trainer, log.total_iterations) == ("pith-train", 15)
    assert column(log, "step_time_ms") == [43142.0]
    assert column(log, "tokens_per_second") == [48611.0]
    assert column(log, "peak_memory_bytes") == [57.26 * 2**30]


def test_mindspeeds_line_without_a_last_iteration_is_read() -> None:
    log = parse_text(
        "iteration: 7 | consumed samples: 56 | elapsed time per iteration (ms): 12.5 | lm loss: 2.5 |\n" * 2
    )
    assert (column(log, "iteration"), column(log, "step_time_ms"), log.total_iterations) == ([7], [12.5], None)


def test_a_fork_that_drops_a_blank_is_read() -> None:
    log = parse_text("[2024-02-27 15:45:08] iteration 13 / 118 | elapsed time per iteration(ms): 17658.3 |\n")
    assert (column(log, "step_time_ms"), log.total_iterations) == ([17658.3], 118)


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        (PRIMUS, "Primus"),
        (DEEPSPEED, "Megatron-DeepSpeed"),
        (iteration(1, 1.0, tail="mem usages: 0.75"), "ROCm Megatron-LM"),
        (iteration(1, 1.0), "Megatron-LM"),
        ("/w/FlagScale/flagscale/train/train.py:12: UserWarning: x\n" + iteration(1, 1.0), "FlagScale"),
        ("/w/mindspeed_llm/training/training.py:1: UserWarning: x\n" + iteration(1, 1.0), "MindSpeed"),
        ("/w/mindspeed_llm/training/training.py:1: UserWarning: x\n" + DEEPSPEED, "Megatron-DeepSpeed"),
        (NEMO_2 + iteration(2, 1.0), "NeMo 2"),
        (NEMO_2 + iteration(2, 1.0) + iteration(3, 1.0), "Megatron-LM"),
        ("Step Time : 2.26s GPU utilization: 1156.2MODEL_TFLOP/s/GPU\n" + iteration(1, 2260.0), "Megatron-Bridge"),
        ("no trainer at all\n", ""),
    ],
)
def test_most_lines_decide_the_family_and_the_last_ones_among_equals(text: str, trainer: str) -> None:
    assert parse_text(text).trainer == trainer


def test_all_lines_of_a_mixed_log_are_read() -> None:
    log = parse_text(NEMO_2 + iteration(2, 10.0) + PITH_TRAIN.replace("00000001/", "00000003/"))
    assert column(log, "iteration") == [0, 1, 2, 3]
    assert column(log, "step_time_ms") == [5276.0, 2008.0, 10.0, 43142.0]


def test_what_the_trainer_counts_before_it_trains_is_kept_as_stated() -> None:
    log = parse_text(
        "Number of parameters in transformer block in billions:  0.08\nTotal number of parameters in billions: 0.12\n"
        "Theoretical memory footprints: weight and optimizer=2121.85 MB, activation=2785.59 MB, total=4907.44 MB\n"
    )
    assert log.arguments == {
        "number of parameters in transformer block in billions": 0.08,
        "total number of parameters in billions": 0.12,
        "theoretical memory: weight and optimizer (MB)": 2121.85,
        "theoretical memory: activation (MB)": 2785.59,
        "theoretical memory: total (MB)": 4907.44,
    }
