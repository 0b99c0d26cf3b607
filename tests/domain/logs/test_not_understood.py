"""What a log holds that no reader understood: counted, with an example that a person can report."""

import pytest

from app.domain.logs import parse_text
from app.domain.run import UNKNOWN_STEP, LineExample
from tests.domain.logs.lines import column, iteration


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("iteration 5/ 10 | elapsed time per iteration (ms): fast |\n", "an iteration line", 1),
        ("x\nStep Time : soon GPU utilization: 5MODEL_TFLOP/s/GPU\n", "a step line", 2),
        ("[Rank 3] (after 2 iterations) memory (MB) | max allocated: much |\n", "a memory line", 1),
        (" iteration 5/ 10 | consumed samples: 40 | elap[rank1]: warn\n", "half of an iteration line", 1),
        ("INFO | step x | step-time soon |\n", "a step of pith-train", 1),
    ],
)
def test_kinds_are_counted_with_the_first_example(text: str, kind: str, line: int) -> None:
    (example,) = parse_text(text * 2).not_understood
    assert (example.kind, example.count, example.line) == (kind, 2, line)
    assert example.example


STEPS = {
    "torchtitan": "[rank0]:[titan] 2026-11-01 10:00:19,123 - root - INFO - step: 10  loss: 10.7069  memory: 30.99GiB"
    "  tps: 7,034  tflops: 407.35  mfu: 41.19%",
    "DeepSpeed": "[2026-11-01 10:00:17,936] [INFO] [timer.py:215:stop] epoch=0/micro_step=10/global_step=10, "
    "RunningAvgSamplesPerSec=220.695, CurrSamplesPerSec=222.887, MemAllocated=0.07GB, MaxMemAllocated=1.36GB",
    "Hugging Face": "{'loss': 2.5523, 'grad_norm': 8.93, 'learning_rate': 4.99e-05, 'epoch': 0.01}",
    "progress bar": "  5%|5    | 1499/9000 [05:00<2:55:00, 5.00s/it]\r  5%|5    | 1500/9000 [05:05<2:54:55, 5.00s/it]",
    "MaxText": "completed step: 2, seconds: 10.106, TFLOP/s/device: 717.6, Tokens/s/device: 4974.2, loss: 13.008",
    "Lightning": "Epoch 0:  12%|#         | 12/100 [00:05<00:40,  2.20it/s, v_num=0]",
    "own": "2026 step 5 loss 2.5 time 0.3",
}
OTHER_LINES = (
    "Training starts at step 1.", "Loading shards:  50%", "INFO 2026-11-01 10:00:00 epoch", "loss function: mse",
    "NCCL INFO Channel 00/32 :    0   1", "took 5 seconds to build the model", "using 8 processes",
)  # fmt: skip


def test_lines_of_unknown_trainers_that_look_like_steps_are_shown_with_their_place() -> None:
    wrong = []
    for trainer, step in STEPS.items():
        for noise in (3, 9000):  # the beginning and the end of a long log are looked at apart
            lines = [*OTHER_LINES, step, step, *["noise"] * noise, *OTHER_LINES, step, step, "the end"]
            places = [at for at, line in enumerate(lines, 1) if line == step]
            examples = parse_text("\n".join(lines) + "\n").not_understood
            wanted = [(UNKNOWN_STEP, line, 1) for line in (places[0], places[1], places[-1])]
            others = {example.example for example in examples} - {step.rpartition("\r")[2].strip()}
            if [(example.kind, example.line, example.count) for example in examples] != wanted or others:
                wrong.append((trainer, noise, examples))
    assert wrong == []


def test_fields_without_a_number_are_told_once_a_name() -> None:
    log = parse_text(iteration(1, 10.0, tail="mood: good | eta: 1:00:00") + iteration(2, 10.0, tail="mood: bad"))
    assert log.not_understood == (LineExample("the field mood of an iteration line", 2, "mood: good", 1),)


def test_half_a_line_of_one_rank_does_not_spoil_the_line_of_another() -> None:
    half = iteration(5, 99.0)[:60]
    log = parse_text(half + iteration(6, 10.0) + iteration(7, 11.0))
    assert (column(log, "iteration"), column(log, "step_time_ms")) == ([6, 7], [10.0, 11.0])
    assert [example.kind for example in log.not_understood] == ["half of an iteration line"]


def test_a_log_that_was_understood_says_so() -> None:
    assert parse_text("noise\n" + iteration(1, 10.0)).not_understood == ()
