"""Reads the steps of DeepSpeed's engines, when no trainer around them prints iterations.

The pipeline engine prints step times: `steps: 200 loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706`. The other
engine prints rates, so its times are the differences of its timestamps:
`[2022-12-20 08:26:26,101] [INFO] [timer.py:197:stop] 0/17, RunningAvgSamplesPerSec=158.31, CurrSamplesPerSec=159.62,
MemAllocated=1.75GB, MaxMemAllocated=2.6GB`. GB are 2^30 bytes (`deepspeed/utils/timer.py`).
"""

import re
from collections.abc import Sequence

from app.domain.logs.iterations import IterationRows
from app.domain.logs.lines import Notes
from app.domain.logs.steps import StampedSteps, Steps, fields_of, renamed, text_around

TRAINER = "DeepSpeed"

_PIPELINE = re.compile(rb"\bsteps?: {1,6}(\d{1,12})(?: / {0,6}\d{1,12})? (loss: .{0,400})\Z", re.DOTALL)
_PIPELINE_FIELD = re.compile(rb"([a-z][a-z _]{0,40}(?: \(s\)|/sec)?): {0,4}([-+.0-9a-z]{1,30})(?=\s|,|\Z)")
_PIPELINE_NAMES = {
    "iter time (s)": ("step_time_ms", 1000.0),
    "loss": ("loss", 1.0),
    "samples/sec": ("samples_per_s", 1.0),
}
_ENGINE = re.compile(rb"(?:\bglobal_step=|\] \d{1,12}/)(\d{1,12}), ")
_ENGINE_FIELD = re.compile(rb"([A-Z][A-Za-z]{2,40})=([-+.0-9a-z]{1,30}?)(?=GB|,|\s|\Z)")
_ENGINE_NAMES = {
    "CurrSamplesPerSec": ("samples_per_s", 1.0),
    "RunningAvgSamplesPerSec": ("samples_per_s_running_avg", 1.0),
    "SamplesPerSec": ("samples_per_s_running_avg", 1.0),
    "MaxMemAllocated": ("peak_memory_bytes", 2.0**30),
    "MemAllocated": ("allocated_memory_bytes", 2.0**30),
}
_MOST_FIELDS = 20


class DeepSpeedReader:
    keys: Sequence[bytes] = (b"iter time (s): ", b"SamplesPerSec=")

    def __init__(self, notes: Notes) -> None:
        self._pipeline = Steps(TRAINER, notes)
        self._engine = Steps(TRAINER, notes)
        self._stamps = StampedSteps()

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=500, after=300)
        if data.startswith(self.keys[0], hit - len(self.keys[0])):
            return self._read_pipeline(text, end, hit, line)
        step = _ENGINE.search(text)
        if step is None:
            return hit
        iteration = float(step[1])
        if not self._stamps.is_copy(text, iteration):
            fields = renamed(fields_of(text[step.end() :], _ENGINE_FIELD, _MOST_FIELDS), _ENGINE_NAMES)
            values = {"iteration": iteration, "step_time_ms": self._stamps.time_ms(text, iteration)}
            self._engine.add(values | fields, line)
        return end

    def _read_pipeline(self, text: bytes, end: int, hit: int, line: int) -> int:
        step = _PIPELINE.search(text)
        fields = renamed(fields_of(step[2], _PIPELINE_FIELD, _MOST_FIELDS), _PIPELINE_NAMES) if step else {}
        if step is None or "step_time_ms" not in fields:
            return hit
        self._pipeline.add({"iteration": float(step[1])} | fields, line)
        return end

    def collect(self) -> IterationRows:
        if self._pipeline.rows.lines or not self._engine.rows.lines:
            return self._pipeline.rows
        self._engine.notes.problem(
            "times between lines",
            "DeepSpeed's engine prints no step times. They are the times between its lines, which include saving and "
            "evaluation. The first line of a process has none.",
        )
        return self._engine.rows
