"""Reads MaxText's steps: `completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, Tokens/s/device: 8672.758,
total_weights: 196608, loss: 10.374`. It counts from 0. Early versions print `TFLOP/s: ` for the same figure."""

import re
from collections.abc import Sequence

from app.domain.logs.iterations import IterationRows
from app.domain.logs.lines import Notes
from app.domain.logs.steps import Steps, fields_of, renamed, text_around

TRAINER = "MaxText"

_STEP = re.compile(rb"completed step: (\d{1,12}),")
_FIELD = re.compile(rb"[ ,]([A-Za-z][\w/. -]{0,40}): {0,4}([-+.0-9a-z]{1,30})(?=,|\s|\Z)")
_NAMES = {
    "seconds": ("step_time_ms", 1000.0),
    "loss": ("loss", 1.0),
    "TFLOP/s/device": ("tflops_per_gpu", 1.0),
    "TFLOP/s": ("tflops_per_gpu", 1.0),
    "Tokens/s/device": ("tokens_per_s_per_gpu", 1.0),
}
_MOST_FIELDS = 30


class MaxTextReader:
    keys: Sequence[bytes] = (b"completed step: ",)

    def __init__(self, notes: Notes) -> None:
        self._steps = Steps(TRAINER, notes)

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=len(self.keys[0]), after=1000)
        step = _STEP.match(text)
        if step is None:
            return hit
        fields = renamed(fields_of(text[step.end() - 1 :], _FIELD, _MOST_FIELDS), _NAMES, without=("iteration",))
        if "step_time_ms" in fields:
            self._steps.add({"iteration": float(step[1])} | fields, line)
        return hit + len(text) - len(self.keys[0])

    def collect(self) -> IterationRows:
        return self._steps.rows
