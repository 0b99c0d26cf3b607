"""Reads the versions that libraries print of themselves.

`NCCL version 2.27.3+cuda12.9` is what NCCL prints with NCCL_DEBUG=VERSION or more, `PyTorch Version 2.9.0a0+145a3a7` is
in the banner of NVIDIA's containers. A version is for the record: no key of a comparison holds it.
"""

import re
from collections.abc import Sequence

from app.domain.run import Stated

_VERSION = re.compile(rb"(NCCL version|PyTorch Version) (\d[\w.]{0,30})(?:\+(cuda(\d[\d.]{0,10})|\w{1,40}))?")
_FIELDS = {b"NCCL version": "nccl_version", b"PyTorch Version": "pytorch_version"}
_REACH = 100
"""Bytes behind the key in which the version ends."""


class VersionReader:
    """The first version told of each library counts: other ranks only repeat it."""

    keys: Sequence[bytes] = (b"NCCL version ", b"PyTorch Version ")

    def __init__(self) -> None:
        self.stated: dict[str, Stated] = {}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        stop = min(end, hit + _REACH)
        if found := _VERSION.search(data, max(start, hit - len(b"PyTorch Version ")), stop):
            detail = f"line {line}: {found[0].decode('ascii', 'replace')}"
            build = b"" if found[4] or not found[3] else b"+" + found[3]
            self._keep(_FIELDS[found[1]], found[2] + build, detail)
            if found[4]:
                self._keep("cuda_version", found[4], detail)
        return hit

    def _keep(self, field: str, version: bytes, detail: str) -> None:
        self.stated.setdefault(field, Stated(version.decode("ascii", "replace"), "log line", detail))
