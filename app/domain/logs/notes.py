"""Collects what was skipped or is strange while a log is read, so that nothing is dropped in silence."""

from dataclasses import replace

from app.domain.run import UNKNOWN_STEP, LineExample, Problem
from app.domain.text import clean

MAX_A_KIND = 5
"""Problems of one kind kept with their line; of the others only the number is told."""

MAX_KINDS = 50
"""Kinds of lines that were not understood; a trainer's lines have few."""

MAX_EXAMPLE = 200
"""Characters of a line that are quoted."""


class Notes:
    """`unread`: lines with the key of a line we know that could not be read. `cut`: the log ends inside a line."""

    def __init__(self) -> None:
        self.unread = 0
        self.cut = False
        self._kept: list[Problem] = []
        self._counts: dict[str, int] = {}
        self._last_unread = 0
        self._examples: dict[str, LineExample] = {}
        self._steps: list[LineExample] = []

    def problem(self, kind: str, message: str, line: int = 0, example: bytes | str = b"") -> None:
        """Remember that something is strange. `kind` groups equal problems, `message` is a sentence for people."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count <= MAX_A_KIND:
            self._kept.append(Problem(kind, message, line, quote(example)))

    def unreadable(self, what: str, line: int, example: bytes) -> None:
        """Count a line that looks like a known one but could not be read."""
        if line != self._last_unread:
            self.unread += 1
            self._last_unread = line
            self.not_understood(what, line, example)
        self.problem("unreadable line", f"This looks like {what}, but it could not be read.", line, example)

    def torn(self, line: int, example: bytes) -> None:
        """Another process printed into this iteration line; the rest of it may be anywhere."""
        self.not_understood("half of an iteration line", line, example)

    def not_understood(self, kind: str, line: int, example: bytes | str, count: int = 1) -> None:
        """Count lines of a kind that a person may want to report; the first one is the example."""
        known = self._examples.get(kind)
        if known is not None:
            self._examples[kind] = replace(known, count=known.count + count)
        elif len(self._examples) < MAX_KINDS:
            self._examples[kind] = LineExample(kind, count, quote(example), line)

    def like_a_step(self, line: int, example: bytes) -> None:
        """Remember a line that looks like a step of an unknown trainer: each is an example of its own."""
        self._steps.append(LineExample(UNKNOWN_STEP, 1, quote(example), line))

    def examples(self) -> tuple[LineExample, ...]:
        """What was not understood, the most frequent kind first."""
        return (*self._steps, *sorted(self._examples.values(), key=lambda one: (-one.count, one.line)))

    def cut_off(self, line: int, example: bytes) -> None:
        """The log ends in the middle of this line."""
        self.cut = True
        self.problem(
            "cut off", "The log ends in the middle of this line; fields that were cut are left out.", line, example
        )

    def problems(self) -> tuple[Problem, ...]:
        """All problems in the order in which they were met, with a line for those that were only counted."""
        more = (
            Problem(kind, f"{count - MAX_A_KIND} more of this kind are not listed.")
            for kind, count in self._counts.items()
            if count > MAX_A_KIND
        )
        return (*self._kept, *more)


def quote(line: bytes | str) -> str:
    """The start of a line, fit for a page and a database."""
    text = line[: 4 * MAX_EXAMPLE].decode("utf-8", "replace") if isinstance(line, bytes) else line
    return clean(text).strip()[:MAX_EXAMPLE]
