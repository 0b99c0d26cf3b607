"""Trainers whose lines are unlike Megatron-LM's. Expected values are computed by hand from the excerpts."""

import pytest

from app.domain.logs import parse_text
from app.domain.logs.line_template import read_template, suggest_template
from app.domain.logs.steps import RUNNING_MEANS, STATE_NO_END
from app.domain.performance.health import outcome_of
from tests.domain.logs.lines import column, iteration

# pytorch/torchtitan pull request 2389 (all ranks print) and 3393, shortened
TITAN_ALL_RANKS = """\
[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%
[titan] 2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250  memory: 66.91GiB(37.51%)  tps: 10,049  tflops: 314.68  mfu: 13.99%
[titan] 2026-02-24 19:46:19,145 - root - INFO - step:  5  loss:  7.07623  grad_norm: 46.5000  memory: 66.91GiB(37.51%)  tps: 10,007  tflops: 313.36  mfu: 13.93%
"""  # noqa: E501
TITAN = """\
[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%
[rank0]:[titan] 2026-05-18 16:04:47,456 - root - INFO - step: 15  loss:  3.10680  grad_norm:  0.8587  memory:  9.46GiB(64.99%)  tps: 7,334  tflops: 0.53  mfu: 0.17%
[rank0]:[titan] 2026-05-18 16:04:49,702 - root - INFO - step: 17  loss:  3.14459  grad_norm:  0.5303  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%
"""  # noqa: E501
# AI-Hypercomputer/maxtext pull request 4847 and issue 8
MAXTEXT = """\
I0811 21:54:55.531340 138304841739136 metric_logger.py:226] completed step: 1, seconds: 0.631, TFLOP/s/device: 5688.282, Tokens/s/device: 311629.521, total_weights: 1572864, loss: 12.979, lm_loss: 12.979, perplexity: 433358.281
I0811 21:55:06.119312 138304841739136 metric_logger.py:226] completed step: 2, seconds: 10.228, TFLOP/s/device: 350.869, Tokens/s/device: 19222.175, total_weights: 1572864, loss: 12.980, lm_loss: 12.980, perplexity: 433463.719
"""  # noqa: E501
MAXTEXT_2023 = """\
completed step: 15107, seconds: 2.167, TFLOP/s: 36.722, loss: 2.191
completed step: 15108, seconds: 2.164, TFLOP/s: 36.771, loss: 2.173
"""
# deepspeedai/DeepSpeed issues 2629, 3742 and 1825
DEEPSPEED = """\
stdout: [2022-12-20 08:26:26,101] [INFO] [timer.py:197:stop] 0/17, RunningAvgSamplesPerSec=158.31157878546472, CurrSamplesPerSec=159.628891629629, MemAllocated=1.75GB, MaxMemAllocated=2.6GB
stdout: [2022-12-20 08:26:26,325] [INFO] [timer.py:197:stop] 0/18, RunningAvgSamplesPerSec=157.41495682912333, CurrSamplesPerSec=145.0889530760849, MemAllocated=1.75GB, MaxMemAllocated=2.6GB
"""  # noqa: E501
DEEPSPEED_GLOBAL = """\
[2023-07-25 21:03:17,269] [INFO] [timer.py:215:stop] epoch=0/micro_step=34/global_step=34, RunningAvgSamplesPerSec=7.864669709950182, CurrSamplesPerSec=8.00912418308922, MemAllocated=59.65GB, MaxMemAllocated=63.31GB
"""  # noqa: E501
DEEPSPEED_EVERY_TENTH = """\
[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.48609168106144, MemAllocated=0.26GB, MaxMemAllocated=9.02GB
[2022-03-11 02:07:14,130] [INFO] [timer.py:189:stop] 0/50, SamplesPerSec=83.73838805358588, MemAllocated=0.26GB, MaxMemAllocated=9.02GB
"""  # noqa: E501
# The comment in tests/model/Megatron_GPT2 of deepspeedai/DeepSpeed's GPT-NeoX tests
DEEPSPEED_PIPELINE = (
    "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706\n"
)
# verl-project/verl issue 1208, shortened
VERL = """\
(TaskRunner pid=16292) step:2 - global_seqlen/mean:547190.500 - actor/entropy_loss:0.554 - actor/grad_norm:0.069 - perf/mfu/actor:1.018 - perf/max_memory_allocated_gb:25.921 - actor/lr:0.000 - timing_s/gen:74.020 - timing_s/old_log_prob:3.566 - timing_s/ref:3.420 - timing_s/adv:1.167 - timing_s/update_actor:14.302 - timing_s/step:96.551 - timing_per_token_ms/adv:0.001
"""  # noqa: E501
# THUDM/slime pull request 1102, without the typing errors of its picture
SLIME = """\
(MegatronTrainRayActor pid=38610) [2026-01-05 12:20:29] train_metric_utils.py:44 - perf 2: {'perf/sleep_time': 4.035936594009399, 'perf/train_wait_time': 11.3338740110397339, 'perf/actor_train_time': 1.02477359777172852, 'perf/actor_train_tflops': 3.7153212981452874, 'perf/step_time': 14.182998418807983, 'perf/wait_time_ratio': 0.7994600137133985}
"""  # noqa: E501
# WindyLee0822/Process_Q_Model issue 7, h2oai/h2ogpt pull request 86, and ms-swift on Qwen3 (losses as text)
HUGGING_FACE = """\
Loading checkpoint shards: 100%|██████████| 3/3 [00:05<00:00,  1.70s/it]
 90%|████████▉ | 478/532 [2:03:07<13:48, 15.34s/it]

{'loss': 6.12, 'grad_norm': 24.29961280262384, 'learning_rate': 2.3012552301255228e-07, 'epoch': 1.8}

 90%|████████▉ | 478/532 [2:03:07<13:48, 15.34s/it]
 90%|█████████ | 479/532 [2:03:22<13:31, 15.31s/it]

{'loss': 5.8071, 'grad_norm': 72.6920984186302, 'learning_rate': 2.2594142259414225e-07, 'epoch': 1.8}
"""
HUGGING_FACE_FAST = (
    "\r  4%|▎         | 1317/36234 [11:37<5:10:26,  1.87it/s]\r  4%|▎         | 1318/36234 [11:37<5:12:34,  1.86it/s]"
    "\r                              \r{'loss': 1.5545, 'learning_rate': 0.00028994575745834946, 'epoch': 0.22}\n"
)
HUGGING_FACE_TEXTS = (
    "Train:   2%|▏         | 1/60 [00:42<41:47, 42.51s/it]{'loss': '0.3713', 'grad_norm': '0.8901', "
    "'learning_rate': '3.333e-05', 'token_acc': '0.921', 'epoch': '0.08602', 'global_step/max_steps': '1/60'}\n"
)
# NVIDIA DGX Cloud benchmarking of NeMo 1 (57 and 116 of 4900), and NVIDIA/NeMo-Framework-Launcher issue 55
NEMO_1 = """\
Epoch 0: :   1%|▏                 | 57/4900 [10:58<15:32:28, v_num=qhyq, reduced_train_loss=6.830, global_step=56.00, consumed_samples=7296.0, train_step_timing in s=11.30]
Epoch 0: :   2%|▍               | 116/4900 [21:47<14:58:56, v_num=qhyq, reduced_train_loss=5.340, global_step=115.0, consumed_samples=14848.0, train_step_timing in s=11.20]
"""  # noqa: E501
LIGHTNING = """\
Epoch 0:   1%|          | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=, reduced_train_loss=3.090, global_step=794.0, consumed_samples=1.63e+6]
Epoch 0:   1%|          | 797/77225 [9:09:20<878:01:48, 41.36s/it, loss=3.0, v_num=, reduced_train_loss=3.080, global_step=796.0, consumed_samples=1.63e+6]
"""  # noqa: E501

GIB = 2**30
CASES = [
    # 19.145 - 17.508 s; the second line of step 4 is from another rank
    (
        TITAN_ALL_RANKS,
        "torchtitan",
        [4, 5],
        [None, 1637],
        {"tokens_per_s_per_gpu": [10050, 10007], "mfu_pct": [13.99, 13.93]},
    ),
    # 47.456 - 46.338 s for one step, 49.702 - 47.456 s for two
    (
        TITAN,
        "torchtitan",
        [14, 15, 17],
        [None, 1118, 1123],
        {"loss": [3.24405, 3.1068, 3.14459], "reserved_memory_bytes": [9.46 * GIB] * 3},
    ),
    (
        MAXTEXT,
        "MaxText",
        [1, 2],
        [631, 10228],
        {
            "tflops_per_gpu": [5688.282, 350.869],
            "tokens_per_s_per_gpu": [311629.521, 19222.175],
            "lm_loss": [12.979, 12.98],
        },
    ),
    (
        MAXTEXT_2023,
        "MaxText",
        [15107, 15108],
        [2167, 2164],
        {"tflops_per_gpu": [36.722, 36.771], "loss": [2.191, 2.173]},
    ),
    (
        DEEPSPEED,
        "DeepSpeed",
        [17, 18],
        [None, 224],
        {"samples_per_s": [159.628891629629, 145.0889530760849], "peak_memory_bytes": [2.6 * GIB] * 2},
    ),
    (DEEPSPEED_GLOBAL, "DeepSpeed", [34], [None], {"peak_memory_bytes": [63.31 * GIB]}),
    # 15.145 s for ten steps
    (DEEPSPEED_EVERY_TENTH, "DeepSpeed", [40, 50], [None, 1514.5], {}),
    (
        DEEPSPEED_PIPELINE,
        "DeepSpeed",
        [200],
        [936],
        {"lm_loss": [5.5103], "moe_loss": [0.0405], "samples_per_s": [136.706]},
    ),
    (DEEPSPEED + DEEPSPEED_PIPELINE, "DeepSpeed", [200], [936], {}),
    (
        VERL,
        "veRL",
        [2],
        [96551],
        {
            "timer_gen_ms": [74020],
            "timer_update_actor_ms": [14302],
            "peak_memory_bytes": [25.921 * GIB],
            "actor_entropy_loss": [0.554],
        },
    ),
    (VERL.replace("grad_norm:0.069", "grad_norm:np.float64(0.069)"), "veRL", [2], [96551], {"grad_norm": [0.069]}),
    (
        SLIME,
        "slime",
        [2],
        [14182.998418807983],
        {"timer_train_wait_ms": [11333.874011039734], "wait_time_ratio": [0.7994600137133985]},
    ),
    (
        HUGGING_FACE,
        "Hugging Face Trainer",
        [478, 479],
        [15340, 15310],
        {"loss": [6.12, 5.8071], "grad_norm": [24.29961280262384, 72.6920984186302]},
    ),
    (HUGGING_FACE_FAST, "Hugging Face Trainer", [1317, 1318], [1000 / 1.87, 1000 / 1.86], {"loss": [None, 1.5545]}),
    (HUGGING_FACE_TEXTS, "Hugging Face Trainer", [1], [42510], {"loss": [0.3713], "token_acc": [0.921]}),
    (NEMO_1, "NeMo 1", [57, 116], [11300, 11200], {"lm_loss": [6.83, 5.34], "consumed_samples": [7296, 14848]}),
    # 82 s for two batches; the printed 41.36 s are the mean since the start
    (LIGHTNING, "Lightning", [797], [41000], {"lm_loss": [3.08]}),
]


@pytest.mark.parametrize(("text", "trainer", "iterations", "times", "columns"), CASES)
def test_steps_are_read_with_their_values(
    text: str, trainer: str, iterations: list[int], times: list[float | None], columns: dict[str, list[float | None]]
) -> None:
    log = parse_text(text)
    assert (log.trainer, column(log, "iteration")) == (trainer, iterations)
    assert column(log, "step_time_ms") == pytest.approx(times)
    assert {name: column(log, name) for name in columns} == {name: pytest.approx(columns[name]) for name in columns}
    assert (log.unrecognised_lines, log.not_understood) == (0, ())
    assert (log.total_iterations is None) == (trainer in STATE_NO_END)


def test_colours_and_other_ranks_do_not_disturb_torchtitan() -> None:
    coloured = TITAN.replace("  tps:", "  \x1b[34mtps:").replace("  tflops", "  \x1b[36mtflops")
    other = TITAN.replace("[rank0]", "[rank3]").replace("16:04:4", "16:04:5")
    mixed = "".join(a + b for a, b in zip(coloured.splitlines(True), other.splitlines(True), strict=True))
    log = parse_text(mixed)
    assert column(log, "step_time_ms") == [None, 1118, 1123]
    assert column(log, "tokens_per_s_per_gpu") == [7282, 7334, 7282]


def test_a_restart_and_midnight_keep_the_times_between_stamps_right() -> None:
    night = TITAN.replace("16:04:46", "23:59:59").replace("16:04:47", "00:00:00").replace("16:04:49", "00:00:02")
    assert column(parse_text(night), "step_time_ms") == [None, 1118, 1123]
    assert column(parse_text(TITAN + TITAN.replace("16:04", "16:09")), "step_time_ms") == [None, 1118, 1123]


def test_megatron_iteration_lines_win_over_lines_of_libraries() -> None:
    log = parse_text(DEEPSPEED + iteration(35, 4103.1) + HUGGING_FACE)
    assert (log.trainer, column(log, "iteration"), column(log, "step_time_ms")) == ("Megatron-LM", [35], [4103.1])
    assert log.problems == ()


def test_bars_without_losses_are_not_steps() -> None:
    bars = "".join(f"\r{n}%|    | {n}/100 [00:{n:02d}<01:00,  1.00s/it]" for n in range(1, 60))
    assert parse_text(bars).n == 0
    assert parse_text("{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n").n == 0


def test_lightnings_epochs_go_on_counting() -> None:
    text = "".join(
        f"Epoch {epoch}: {batch}%|#  | {batch}/100 [{batch:02d}:00<10:00, 0.02it/s, v_num=0, train_loss={loss}]\r"
        for epoch in (0, 1)
        for batch, loss in ((1, 3.5), (2, 3.0), (3, 2.5))
    )
    log = parse_text(text)
    assert (column(log, "iteration"), column(log, "step_time_ms")) == ([2, 3, 5, 6], [60_000] * 4)
    assert column(log, "train_loss") == [3.0, 2.5, 3.0, 2.5]


def test_lightning_ends_normally_at_its_limit() -> None:
    """The first ending is from Lightning's issue 14428. Others follow a bar, as in the logs of two other programs."""
    bars = "GPU available: True (cuda), used: True\n" + "".join(
        f"\rEpoch 0: {batch}%|#  | {batch}/100 [{batch:02d}:00<10:00, 0.02it/s, v_num=0, train_loss=3.1]"
        for batch in range(1, 40)
    )
    for end, outcome in (
        ("\n\n`Trainer.fit` stopped: `max_epochs=1` reached.\n\n", "completed"),
        ("`Trainer.fit` stopped: `max_steps=10` reached.\n", "completed"),
        ("[INFO] `Trainer.fit` stopped: `max_steps=10000` reached.\n", "completed"),
        ("\n`Trainer.fit` stopped: No training batches.\n", ""),
        ("\n", ""),
    ):
        log = parse_text(bars + end)
        assert (column(log, "iteration"), outcome_of(log)[0]) == (list(range(2, 40)), outcome), end


def test_running_means_are_reported_and_are_not_a_fair_sample() -> None:
    with_means = [
        text for text, *_ in CASES if RUNNING_MEANS in {problem.kind for problem in parse_text(text).problems}
    ]
    assert with_means == [HUGGING_FACE, HUGGING_FACE_FAST, HUGGING_FACE_TEXTS, LIGHTNING]


# --- A description of step lines makes unknown logs readable.

TENSORFLOW = "".join(
    f"INFO:tensorflow:global step {step}: loss = {79 - step}.5 ({seconds} sec/step)\n"
    for step, seconds in ((1, 57.126), (2, 17.053), (3, 16.534))
)
"""As in tensorflow/models issue 2980."""


@pytest.mark.parametrize(
    ("line", "draft", "values"),
    [
        (
            TENSORFLOW.splitlines()[2],
            "step {iteration}: loss = {loss} ({step_time_sec} sec/step",
            {"iteration": 3, "loss": 76.5, "step_time_ms": 16534},
        ),
        (
            "2026-01-02 10:00:00 | step 5/100 | loss 2.5 | 312.5 ms | 4,000 tok/s",
            "step {iteration}/{} | loss {loss} | {step_time_ms} ms",
            {"iteration": 5, "loss": 2.5, "step_time_ms": 312.5},
        ),
        (
            "iter 250: loss 3.1234, time 135.02ms, mfu 21.5%",
            "iter {iteration}: loss {loss}, time {step_time_ms}ms",
            {"iteration": 250, "loss": 3.1234, "step_time_ms": 135.02},
        ),
        (
            "step 1,500 | 0.5 it/s",
            "step {iteration} | {iterations_per_s} it/s",
            {"iteration": 1500, "step_time_ms": 2000},
        ),
        ("2026 step 5 loss 2.5 time 0.3", "step {iteration} loss {loss} time {}", None),
        ("Training starts soon.", "", None),
    ],
)
def test_a_draft_describes_what_a_line_shows(line: str, draft: str, values: dict[str, float] | None) -> None:
    assert suggest_template(line).endswith(draft) if draft else suggest_template(line) == ""
    if values is not None:
        assert read_template(suggest_template(line)).read(line.encode()) == pytest.approx(values)
    elif draft:  # the meaning of the last number is not shown
        with pytest.raises(ValueError, match="needs the step time"):
            read_template(suggest_template(line))


def test_described_lines_are_the_steps_of_a_log() -> None:
    template = read_template("global step {iteration}:   loss = {loss} ({step_time_s} sec/step)")
    log = parse_text("".join((iteration(9, 1.0), TENSORFLOW, "global step 4: loss = nothing\n")), template)
    assert (log.trainer, column(log, "iteration"), column(log, "loss")) == (
        "described lines",
        [1, 2, 3],
        [78.5, 77.5, 76.5],
    )
    assert column(log, "step_time_ms") == pytest.approx([57126, 17053, 16534])
    assert list(log.line_numbers) == [2, 3, 4]
    uncounted = parse_text(TENSORFLOW, read_template("({step_time_s} sec/step)"))
    assert column(uncounted, "iteration") == [1, 2, 3]
    other = parse_text(TENSORFLOW, read_template("epoch {iteration} {step_time_s} s"))
    assert (other.n, [problem.kind for problem in other.problems]) == (0, ["no described line"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("step {iteration} {loss}", "needs the step time"),
        ("step {iteration} {step_time} s", "no unit of time"),
        ("step {iteration}{step_time_s}", "without text between"),
        ("step {iteration} s {step_time_s} s {step_time_ms}", "twice"),
        ("{iteration}: {step_time_s}", "only in step lines"),
        ("step {iteration} {step_time_s", "brace"),
        ("x {step_time_s}" + " {}." * 20, "at most 20"),
        ("x" * 501, "at most 500"),
        ("step {step_time_true_ms}", "cannot be the name"),
    ],
)
def test_a_description_that_cannot_work_is_refused_with_what_to_change(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_template(text)


def test_a_described_step_is_found_behind_its_words_in_a_long_or_overwritten_line() -> None:
    template = read_template("aa {} took {step_time_s}")
    words = "it took a while " * 400  # `took` is the key of the template
    log = parse_text(f"{words}aa x took 2 \naa so far\raa x took 3 \n{words}\raa x took 4 \n", template)
    assert column(log, "step_time_ms") == pytest.approx([2000, 3000, 4000])


def test_a_description_cannot_make_a_log_expensive() -> None:
    template = read_template("aa" + " {} aa" * 10 + " {step_time_s}")
    log = parse_text(b"aa " * 400_000 + b"\n" + b"aa {} aa 1\n" * 10_000, template)
    assert log.n == 0
