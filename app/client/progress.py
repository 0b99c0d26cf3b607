"""How far an upload is: a bar on a terminal, now and then a line in the log of a job."""

import time
from collections.abc import Callable
from typing import TextIO

_BAR = 30
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 30.0


class Progress:
    """Called with bytes that are there and bytes in all. On a terminal it draws over its own line."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._began = self._said = clock()
        self._is_terminal = out.isatty()
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now, share = self._clock(), done / total if total else 1.0
        if now - self._said < (_REDRAW_SECONDS if self._is_terminal else _LINE_SECONDS):
            return
        self._said = now
        rate = done / (now - self._began) / 1e6
        text = f"{share:4.0%} of {total / 1e6:,.1f} MB, {rate:,.1f} MB/s"
        if self._is_terminal:
            full = round(_BAR * share)
            self._out.write(f"\r[{'#' * full}{'.' * (_BAR - full)}] {text}\x1b[K")
            self._drawn = True
        else:
            self._out.write(f"threewalls: {text}\n")
        self._out.flush()

    def line(self, text: str) -> None:
        """Say something, over the bar."""
        self.clear()
        self._out.write(f"threewalls: {text}\n")
        self._out.flush()

    def clear(self) -> None:
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._drawn = False
