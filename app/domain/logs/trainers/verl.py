"""Reads veRL's steps: `(TaskRunner pid=16292) step:2 - actor/grad_norm:0.069 - perf/mfu/actor:1.018 -
perf/max_memory_allocated_gb:25.921 - timing_s/gen:74.020 - timing_s/step:96.551 - ...`.

The parts of a step (`timing_s/...`) become timers. GB are 2^30 bytes, and `perf/throughput` is in tokens/s/GPU
(`verl/trainer/ppo/metric_utils.py`). Newer versions print `np.float64(0.069)` for some values.
"""

import re
from collections.abc import Sequence

from app.domain.logs.iterations import IterationRows
from app.domain.logs.lines import Notes
from app.domain.logs.steps import Steps, fields_of, renamed, text_around

TRAINER = "veRL"

MAX_RECORD = 1 << 13
"""Bytes of one line; real ones have up to 5,000."""

_STEP = re.compile(rb"\bstep:(\d{1,12}) - ")
_FIELD = re.compile(rb" - ([a-z][\w/@.-]{0,80}):(?:np\.\w{3,10}\()?([-+.0-9a-z]{1,30})(?=\)? - |\)?\s*\Z)")
_NAMES = {
    "timing_s/step": ("step_time_ms", 1000.0),
    "perf/throughput": ("tokens_per_s_per_gpu", 1.0),
    "perf/max_memory_allocated_gb": ("peak_memory_bytes", 2.0**30),
    "perf/max_memory_reserved_gb": ("reserved_memory_bytes", 2.0**30),
    "actor/grad_norm": ("grad_norm", 1.0),
    "actor/lr": ("learning_rate", 1.0),
}
_PART = "timing_s/"
_MOST_FIELDS = 120


class VerlReader:
    keys: Sequence[bytes] = (b" - timing_s/step:",)

    def __init__(self, notes: Notes) -> None:
        self._steps = Steps(TRAINER, notes)

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=MAX_RECORD // 2, after=MAX_RECORD // 2)
        step = _STEP.search(text)
        if step is None:
            return hit
        values = fields_of(text[step.end() - 3 :], _FIELD, _MOST_FIELDS)
        parts = {name: (f"timer_{name.removeprefix(_PART)}_ms", 1000.0) for name in values if name.startswith(_PART)}
        columns = renamed(values, _NAMES | {name: part for name, part in parts.items() if name not in _NAMES})
        if "step_time_ms" in columns:
            self._steps.add({"iteration": float(step[1])} | columns, line)
        return end

    def collect(self) -> IterationRows:
        return self._steps.rows
