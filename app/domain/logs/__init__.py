"""Reads training logs: `parse_log` for bytes in any pieces, `parse_text` for a text at hand.

One pass finds the lines that matter (`scanner.py`); each kind of line has its reader, each trainer family its file.
A new family adds its reader in `reading.py` and an excerpt to the tests; `docs/log-formats.md` tells how.
"""

from collections.abc import Iterable

from app.domain.logs.lines import WithoutHoles, whole_lines
from app.domain.logs.read import KNOWN_FORMATS, Reading
from app.domain.logs.scanner import blocks
from app.domain.run import ParsedLog

__all__ = ["KNOWN_FORMATS", "parse_log", "parse_text"]


def parse_log(chunks: Iterable[bytes]) -> ParsedLog:
    """What one decompressed log says, whatever the sizes of its chunks are.

    Never raises on what the bytes hold: what could not be read is in `problems`. Needs about 10 MB of memory besides
    the result. Chunks of 256 KiB to 1 MiB are read fastest.
    """
    reading, text = Reading(), WithoutHoles(chunks)
    for block in whole_lines(blocks(text), reading.lost_part):
        reading.read(block)
    reading.damaged(skipped=text.skipped, invalid=text.invalid)
    return reading.result()


def parse_text(text: str | bytes) -> ParsedLog:
    """What a log says that is in memory already."""
    return parse_log([text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text])
