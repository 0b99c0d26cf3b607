"""Reads training logs: `parse_log` for a stream of bytes, `parse_text` for a text in memory.

One pass finds the relevant lines (`scanner.py`). Each kind of line has a reader, those of the trainers are in
`trainers.py`. A new family adds its reader in `read.py` and an excerpt to the tests; see `docs/log-formats.md`.
"""

from collections.abc import Iterable

from app.domain.logs.line_template import LineTemplate
from app.domain.logs.lines import WithoutHoles, whole_lines
from app.domain.logs.read import KNOWN_FORMATS, Reading
from app.domain.logs.scanner import blocks
from app.domain.run import ParsedLog

__all__ = ["KNOWN_FORMATS", "parse_log", "parse_text"]


def parse_log(chunks: Iterable[bytes], template: LineTemplate | None = None) -> ParsedLog:
    """Parse one decompressed log. The result does not depend on the sizes of its chunks.

    `template` describes the step lines; they count instead of those that a reader finds.
    Never raises for any content: `problems` lists what could not be read. Needs about 10 MB of memory in addition to
    the result. Chunks of 256 KiB to 1 MiB are fastest.
    """
    reading, text = Reading(template), WithoutHoles(chunks)
    for block in whole_lines(blocks(text), reading.lost_part):
        reading.read(block)
    reading.damaged(skipped=text.skipped, invalid=text.invalid)
    return reading.result()


def parse_text(text: str | bytes, template: LineTemplate | None = None) -> ParsedLog:
    """Parse a log that is already in memory."""
    return parse_log([text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text], template)
