"""Reads NeMo's steps.

NeMo 2: `Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_step: 28 | train_step_timing in s: 0.189 | ...`. It
counts from 0, and the number after the slash is the last iteration; both are stored as printed.
NeMo 1: `train_step_timing in s: [9.9, 5.1, ...]`, all steps in one list at the end, without iteration numbers.
"""

import re

from app.domain.logs.iterations import MAX_ROWS, IterationRows, RecordReader, Shape, Table, number
from app.domain.logs.lines import Notes

NEMO_2 = "NeMo 2"
NEMO_1 = "NeMo 1"

TIMING = b"train_step_timing in s:"

NAMES: dict[bytes, tuple[str, float]] = {
    b"train_step_timing in s": ("step_time_ms", 1000.0),
    b"lr": ("learning_rate", 1.0),
    b"reduced_train_loss": ("lm_loss", 1.0),
    b"TFLOPS_per_GPU": ("tflops_per_gpu", 1.0),
    b"tokens_per_sec_per_gpu": ("tokens_per_s_per_gpu", 1.0),
    b"peak_memory_usage": ("peak_memory_bytes", 1.0),
    b"memory_allocated": ("memory_allocated_bytes", 1.0),
}
SHAPE = Shape(keys=(TIMING,), first_keys=(), names=NAMES, trainer=lambda _prefix, _names: NEMO_2)

MAX_LIST = 1 << 20
"""Bytes of a list of steps; 1,000 steps take about 6,000."""

_ITEMS = re.compile(rb" ?\[([-+0-9., eE]{1,1048576})(\])?")


class NemoReader(RecordReader):
    def __init__(self, rows: IterationRows, notes: Notes) -> None:
        super().__init__(SHAPE, rows, notes)

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        items = _ITEMS.match(data, hit, min(end, hit + MAX_LIST))
        if items is None:
            return super().read(data, start, end, hit, line)
        self._read_list(items, line)
        return items.end()

    def _read_list(self, items: re.Match[bytes], line: int) -> None:
        """Store one row per entry. The last number of a truncated list is dropped because it may be truncated too."""
        texts = items[1].split(b",", MAX_ROWS)
        if not items[2]:
            texts.pop()
            self._notes.cut_off(line, items[0])
        table = Table(NEMO_1, ("iteration", "step_time_ms"), (1.0, 1000.0))
        self._rows.tables.append(table)
        for place, text in enumerate(texts):
            seconds = number(text.strip())
            if seconds is not None:
                table.add((float(place), seconds))
                self._rows.place(table, b"", 0, line)
        self._notes.problem(
            "list of step times",
            "The steps have no numbers, so they are counted from 0, as NeMo does. The first ones can be running means.",
            line,
        )
