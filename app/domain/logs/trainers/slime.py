"""Reads the step times of slime and its forks: `train_metric_utils.py:44 - perf 2: {'perf/train_wait_time': 11.33,
'perf/actor_train_time': 1.02, 'perf/step_time': 14.18, ...}`. Steps are rollouts, counted from 0.

A step is the time to train and to wait for the rollout. Its parts (`perf/..._time`) become timers. Versions before
October 2025 call it `perf/total_train_time`.
"""

import re
from collections.abc import Sequence

from app.domain.logs.iterations import IterationRows
from app.domain.logs.lines import Notes
from app.domain.logs.steps import Steps, fields_of, renamed, text_around

TRAINER = "slime"

_STEP = re.compile(rb"\bperf (\d{1,12}): \{")
_FIELD = re.compile(rb"'perf/(\w{1,80})': {1,2}(?:np\.\w{3,10}\()?([-+.0-9a-z]{1,30})(?=\)?[,}])")
_STEP_TIMES = ("step_time", "total_train_time")
_MOST_FIELDS = 60


class SlimeReader:
    keys: Sequence[bytes] = (b"'perf/step_time': ", b"'perf/total_train_time': ")

    def __init__(self, notes: Notes) -> None:
        self._steps = Steps(TRAINER, notes)

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=3000, after=1500)
        step = _STEP.search(text)
        if step is None:
            return hit
        values = fields_of(text[step.end() - 1 :], _FIELD, _MOST_FIELDS)
        names = {name: ("step_time_ms", 1000.0) for name in _STEP_TIMES if name in values}
        parts = [name for name in values if name.endswith("_time") and name not in _STEP_TIMES]
        names |= {name: (f"timer_{name.removesuffix('_time')}_ms", 1000.0) for name in parts}
        columns = renamed(values, names)
        if "step_time_ms" in columns:
            self._steps.add({"iteration": float(step[1])} | columns, line)
        return end

    def collect(self) -> IterationRows:
        return self._steps.rows
