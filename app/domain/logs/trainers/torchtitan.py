"""Reads torchtitan's steps, which have no step time: it is the time between the stamps of two lines.

`[rank0]:[titan] 2026-02-24 19:46:19,145 - root - INFO - step:  5  loss:  7.07623  grad_norm: 46.5000
memory: 66.91GiB(37.51%)  tps: 10,007  tflops: 313.36  mfu: 13.93%`. The rate `tps` is per GPU, over the same interval
(`torchtitan/components/metrics.py`). The memory is the maximum that PyTorch reserved, not allocated.
"""

import re
from collections.abc import Sequence

from app.domain.logs.iterations import IterationRows
from app.domain.logs.lines import Notes
from app.domain.logs.steps import StampedSteps, Steps, fields_of, renamed, text_around

TRAINER = "torchtitan"

_STEP = re.compile(rb"\bstep: {1,4}(\d{1,12}) {1,4}loss:")
_FIELD = re.compile(rb" ([a-z][a-z_ ]{0,40}?): {0,8}([-+.,0-9a-z]{1,30}?)(?=GiB|%|\s|\Z)")
_NAMES = {
    "loss": ("loss", 1.0),
    "tps": ("tokens_per_s_per_gpu", 1.0),
    "tflops": ("tflops_per_gpu", 1.0),
    "mfu": ("mfu_pct", 1.0),
    "memory": ("reserved_memory_bytes", 2.0**30),
}
_MOST_FIELDS = 30


class TorchtitanReader:
    keys: Sequence[bytes] = (b"  tps: ", b"mtps: ")  # the second one where a colour precedes the name

    def __init__(self, notes: Notes) -> None:
        self._steps = Steps(TRAINER, notes)
        self._stamps = StampedSteps()

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=800, after=400)
        step = _STEP.search(text)
        if step is None:
            return hit
        iteration = float(step[1])
        if not self._stamps.is_copy(text, iteration):
            fields = fields_of(text[step.start() :], _FIELD, _MOST_FIELDS)
            time_ms = self._stamps.time_ms(text, iteration)
            values = {"iteration": iteration, "step_time_ms": time_ms}
            self._steps.add(values | renamed(fields, _NAMES, without=("step", *values)), line)
        return end

    def collect(self) -> IterationRows:
        if self._steps.rows.lines:
            self._steps.notes.problem(
                "times between lines",
                "torchtitan prints no step times. They are the times between its lines, which include saving and "
                "evaluation. The first line of a process has none.",
            )
        return self._steps.rows
