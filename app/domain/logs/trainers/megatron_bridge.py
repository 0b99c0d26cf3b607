"""Reads Megatron-Bridge's own step line; its iteration line is Megatron-LM's.

`Step Time : 2.26s GPU utilization: 1156.2MODEL_TFLOP/s/GPU` comes from rank 0 while the iteration line comes from the
last rank, so either may come first. Its seconds are rounded to 10 ms: the iteration line's time is better.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.domain.logs.iterations import MAX_ROWS
from app.domain.logs.lines import Notes, without_colours

TRAINER = "Megatron-Bridge"

_STEP = re.compile(
    rb"Step Time ?: ?(\d{1,12}\.?\d{0,9}) ?s {1,4}GPU utilization: ?([-+.0-9a-z]{1,20}?) ?MODEL_TFLOP/s/GPU"
)
_REACH = 200
"""Bytes on either side of the key that contain the whole line."""


@dataclass(slots=True)
class BridgeSteps:
    """Holds the step lines in the order of the log."""

    lines: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    tflops: "array[float]" = field(default_factory=lambda: array("d"))


class BridgeStepReader:
    keys: Sequence[bytes] = (b"MODEL_TF",)

    def __init__(self, notes: Notes) -> None:
        self.steps = BridgeSteps()
        self._notes = notes

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = without_colours(data[max(start, hit - _REACH) : min(end, hit + _REACH)])
        step = _STEP.search(text)
        if not step:
            if b"Step Time" in text:
                self._refuse(text, line, cut=end == len(data))
            return hit
        if len(self.steps.lines) < MAX_ROWS:
            self.steps.lines.append(line)
            self.steps.seconds.append(float(step[1]))
            self.steps.tflops.append(_figure(step[2]))
        return hit

    def _refuse(self, text: bytes, line: int, *, cut: bool) -> None:
        if cut:
            self._notes.cut_off(line, text)
        else:
            self._notes.unreadable("a step line", line, text)


def _figure(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
