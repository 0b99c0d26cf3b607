"""A file that somebody else writes: what is new in it, also when it is replaced or begins anew."""

import os
from io import FileIO
from pathlib import Path

_REMEMBERED_BYTES = 64 * 1024
"""Of what stands before `offset`: a file that was written anew, and is longer already, differs there."""


class Tail:
    """`offset` is where `read` goes on in the file that is being read now, the `number`-th under this path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 1
        self.offset = 0
        self._file: FileIO | None = None
        self._before: tuple[int, bytes] | None = None

    def read(self, most: int) -> bytes:
        """The next bytes, none while there are none. Never of two files: see `is_over`."""
        if self._file is None:
            try:
                self._file = self.path.open("rb", buffering=0)  # what was read once is to be seen as it is now
            except FileNotFoundError:
                return b""
        known = self._remembered()
        self._file.seek(self.offset - len(known))
        found = self._file.read(len(known) + most)
        if not found.startswith(known):
            return b""
        self._before = self.offset + len(found) - len(known), found
        return found[len(known) :]

    def _remembered(self) -> bytes:
        """The end of what was read before `offset`, which a service that is away has not moved on."""
        if self._before is None:
            return b""
        end, found = self._before
        behind = end - self.offset
        return found[: len(found) - behind][-_REMEMBERED_BYTES:] if 0 <= behind <= len(found) else b""

    def is_over(self) -> bool:
        """Whether this file will not go on: another one has its name, or it was cut and written anew."""
        if self._file is None:
            return False
        now = os.fstat(self._file.fileno())
        if now.st_size < self.offset or self._is_written_anew():
            return True
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False  # moved away, and its writer may still hold it
        return now.st_size == self.offset and not os.path.samestat(now, named)

    def _is_written_anew(self) -> bool:
        known = self._remembered()
        if self._file is None or not known:
            return False
        self._file.seek(self.offset - len(known))
        return self._file.read(len(known)) != known

    def next_file(self) -> None:
        self.close()
        self.offset, self._before = 0, None
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
