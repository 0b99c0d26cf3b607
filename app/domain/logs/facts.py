"""Reads what a trainer computes of its model before it trains: parameter counts and its estimate of the memory.

`Number of parameters in transformer block in billions:  0.08`, `Theoretical memory footprints: weight and
optimizer=2121.85 MB, activation=2785.59 MB, total=29485.06 MB`. MB are 2^20 bytes, and an estimate is no measurement.
Megatron-LM `megatron/training/theoretical_memory_usage.py`.
"""

import re
from collections.abc import Sequence

from app.domain.logs.fields import number
from app.domain.run import Value

_COUNT = re.compile(rb"((?:Number|Total number) of [a-z ]{1,80} in billions): {0,4}(\d[.0-9]{0,20})")
_MEMORY = re.compile(rb" ?([a-z ]{1,40})=(\d[.0-9]{0,20}) MB")
_REACH = 300


class FactReader:
    keys: Sequence[bytes] = (b" in billions:", b"cal memory footprints:")

    def __init__(self) -> None:
        self.facts: dict[str, Value] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:  # noqa: ARG002 - as LineReader has it
        stop = min(end, hit + _REACH)
        if count := _COUNT.search(data[max(start, hit - 120) : stop]):
            self._keep(count[1].decode().lower(), count[2])
        elif data.startswith(b"footprints:", hit - 11):
            for memory in _MEMORY.finditer(data, hit, stop):
                self._keep(f"theoretical memory: {memory[1].decode().strip()} (MB)", memory[2])
        return stop

    def _keep(self, name: str, text: bytes) -> None:
        value = number(text)
        if value is not None:
            self.facts[name] = value
