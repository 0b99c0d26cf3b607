"""A file that somebody else writes: what is new in it, also when it is replaced or begins anew."""

import os
from pathlib import Path
from typing import BinaryIO


class Tail:
    """`offset` is where `read` goes on in the file that is being read now, the `number`-th under this path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 1
        self.offset = 0
        self._file: BinaryIO | None = None

    def read(self, most: int) -> bytes:
        """The next bytes, none while there are none. Never of two files: see `is_over`."""
        if self._file is None:
            try:
                self._file = self.path.open("rb")
            except FileNotFoundError:
                return b""
        self._file.seek(self.offset)
        return self._file.read(most)

    def is_over(self) -> bool:
        """Whether this file will not go on: another one has its name, or it was cut and written anew."""
        if self._file is None:
            return False
        now = os.fstat(self._file.fileno())
        if now.st_size < self.offset:
            return True
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False  # moved away, and its writer may still hold it
        return now.st_size == self.offset and not os.path.samestat(now, named)

    def next_file(self) -> None:
        self.close()
        self.offset = 0
        self.number += 1

    @property
    def name(self) -> str:
        """Of this file in the run: another one is another log."""
        return self.path.name if self.number == 1 else f"{self.path.name}.{self.number}"

    @property
    def identity(self) -> str:
        """The same for the same file, whoever looks; empty while there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return ""
        return f"{found.st_dev}:{found.st_ino}"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
