"""The iteration line that Megatron-LM and Megatron-Bridge share, and the clock that runs along it."""

from datetime import datetime, timedelta

from app.demo.job import Job
from app.demo.workload import tflops_per_gpu

PEAK_LEARNING_RATE = 1.2e-4
WARM_UP_ITERATIONS = 40


def iteration_line(job: Job, index: int, stamp: str, *, elapsed_ms: float, lm_loss: float) -> str:
    """The line of iteration `index + 1`; `elapsed_ms` and `lm_loss` as this trainer averages them."""
    recording, number = job.recording, index + 1
    batch = job.workload.global_batch_size
    fields = (
        f" [{stamp}] iteration {number:8d}/{job.workload.iterations:8d}",
        f" consumed samples: {number * batch:12d}",
        f" elapsed time per iteration (ms): {elapsed_ms:.1f}",
        f" throughput per GPU (TFLOP/s/GPU): {tflops_per_gpu(elapsed_ms, job.workload):.1f}",
        f" learning rate: {PEAK_LEARNING_RATE * min(number / WARM_UP_ITERATIONS, 1):.6E}",
        f" global batch size: {batch:5d}",
        f" lm loss: {lm_loss:.6E}",
        f" load_balancing_loss: {recording.load_balancing_loss[index]:.6E}",
        " loss scale: 1.0",
        f" grad norm: {recording.grad_norm[index]:.3f}",
        f" number of skipped iterations: {0:3d}",
        f" number of nan iterations: {0:3d}",
    )
    return " |".join(fields) + " |"


def clock(job: Job, index: int) -> datetime:
    """When iteration `index + 1` ended, by true step times; index -1 is the start of training."""
    return job.started + timedelta(seconds=95, milliseconds=float(job.recording.step_time_ms[: index + 1].sum()))
