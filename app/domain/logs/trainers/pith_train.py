"""Reads pith-train's steps, whose format is unrelated to Megatron's.

`2026-04-01 14:27:31 | INFO | step 00000001/00000015 | step-time 43.142 sec | cross-entropy-loss 2.4934 | ... |
tokens-per-second 48,611 | peak-gpu-memory 57.26 GB`. Tokens per second refer to the whole job.
"""

import re
from collections.abc import Sequence

from app.domain.logs.iterations import IterationRows, Table, number, word
from app.domain.logs.lines import Notes, without_colours

TRAINER = "pith-train"

MAX_RECORD = 1 << 12
"""Bytes of one line; real ones have 250."""

MAX_TABLES = 50
"""Maximum number of kinds of lines."""

_REACH = 60
_HEAD = re.compile(rb"step (\d{1,12})/(\d{1,12}) \|")
_FIELD = re.compile(rb" ([a-z][a-z0-9-]{0,60}) ([-+.,0-9a-z]{1,40})(?: ([A-Za-z/]{1,10}))? *\Z")

NAMES: dict[str, tuple[str, float]] = {
    "step-time sec": ("step_time_ms", 1000.0),
    "cross-entropy-loss": ("lm_loss", 1.0),
    "gradient-norm": ("grad_norm", 1.0),
    "peak-gpu-memory GB": ("peak_memory_bytes", 2.0**30),
}
"""Printed names, with their unit if there is one. The memory is the maximum over all ranks. The load-balance loss keeps
its printed name: early versions print it with its coefficient, so it differs from Megatron-LM's."""


class PithTrainReader:
    keys: Sequence[bytes] = (b"| step-t",)

    def __init__(self, rows: IterationRows, notes: Notes) -> None:
        self._rows = rows
        self._notes = notes
        self._tables: dict[tuple[str, ...], Table] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        begin = data.rfind(b"step ", max(start, hit - _REACH), hit)
        head = _HEAD.match(data, begin, end) if begin >= 0 else None
        if head is None:
            self._notes.unreadable("a step of pith-train", line, data[max(start, hit - 100) : min(end, hit + 200)])
            return hit
        stop = min(end, begin + MAX_RECORD)
        parts = without_colours(data[head.end() : stop]).rstrip(b"\r").split(b"|")
        if stop == len(data):
            self._notes.cut_off(line, parts.pop())
        names, scales, values = ["iteration", "total_iterations"], [1.0, 1.0], [float(head[1]), float(head[2])]
        for part in parts:
            field = _FIELD.match(part)
            value = number(field[2].replace(b",", b"")) if field else None
            if field is None or value is None:
                continue
            printed, unit = field[1].decode(), (field[3] or b"").decode()
            name, scale = NAMES.get(f"{printed} {unit}".strip()) or (word(f"{printed} {unit}"), 1.0)
            if name not in names:
                names.append(name)
                scales.append(scale)
                values.append(value)
        if "step_time_ms" not in names:
            self._notes.unreadable("a step of pith-train", line, data[begin:stop])
            return stop
        self._place(tuple(names), tuple(scales), values, line)
        return stop

    def _place(self, names: tuple[str, ...], scales: tuple[float, ...], values: Sequence[float], line: int) -> None:
        table = self._tables.get(names)
        if table is None:
            if len(self._tables) >= MAX_TABLES:
                self._notes.problem("many kinds of lines", "The fields of pith-train's steps vary too much.", line)
                return
            table = self._tables[names] = Table(TRAINER, names, scales)
            self._rows.tables.append(table)
        table.add(values)
        self._rows.place(table, b"", 0, line)
