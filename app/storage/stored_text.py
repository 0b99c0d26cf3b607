"""A text that several stored objects hold, one after another, read as one: where each of its frames lies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.domain.run import IntArray
from app.storage.frames import FrameIndex


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a frame's compressed bytes are."""

    key: str
    start: int
    end: int


class StoredText:
    """The frames of all objects in order. `text_offsets` and `newlines` are those of FrameIndex, for the whole text."""

    def __init__(self, keys: Sequence[str], indexes: Sequence[FrameIndex]) -> None:
        self._frames = [
            Frame(key, start, end)
            for key, index in zip(keys, indexes, strict=True)
            for start, end in zip(index.offsets, index.offsets[1:], strict=False)
        ]
        self.text_offsets = _joined([index.text_offsets for index in indexes])
        self.newlines = _joined([index.newlines for index in indexes])

    @property
    def frames(self) -> int:
        return len(self._frames)

    @property
    def size_bytes(self) -> int:
        return int(self.text_offsets[-1])

    def __getitem__(self, frame: int) -> Frame:
        return self._frames[frame]

    def frame_of_line(self, line: int) -> int:
        """The frame in which `line` (from 1) begins, or the one before when it begins with a frame."""
        if line <= 1:
            return 0
        # The newline that ends the line before is number line - 1, and lies where the count first reaches it.
        return int(np.searchsorted(self.newlines[1:], line - 1, side="left"))

    def frame_of_byte(self, offset: int) -> int:
        """The frame that holds the byte at `offset`, from 0."""
        return int(np.searchsorted(self.text_offsets, offset, side="right")) - 1


def _joined(totals: Sequence[Sequence[int]]) -> IntArray:
    """Running totals that each begin at 0, as one."""
    steps = [np.diff(np.asarray(total, dtype=np.int64)) for total in totals]
    return np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *steps]))
