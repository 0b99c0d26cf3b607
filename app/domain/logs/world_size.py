"""Reads the line in which Megatron-LM tells how it spread the job over its GPUs, before it prints its arguments."""

import re
from collections.abc import Sequence

from app.domain.run import Stated

_SIZES = re.compile(r"([a-z][a-z -]{0,40}?) size: {1,4}(\d{1,7})(?=,|\s|\Z)")
_FIELDS = {
    "using world": "gpus",
    "data-parallel": "dp",
    "context-parallel": "cp",
    "tensor-model-parallel": "tp",
    "pipeline-model-parallel": "pp",
}
_REACH = 600
"""Bytes behind the key in which the line ends."""


class WorldSizeReader:
    keys: Sequence[bytes] = (b"using world size:",)

    def __init__(self) -> None:
        self.stated: dict[str, Stated] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = data[max(start, hit - len(self.keys[0])) : min(end, hit + _REACH)].decode("utf-8", "replace")
        for name, size in _SIZES.findall(text):
            field = _FIELDS.get(name.strip(" ,"))
            if field and int(size) > 0:
                self.stated[field] = Stated(int(size), "log line", f"line {line}: {name.strip()} size: {size}")
        return end
