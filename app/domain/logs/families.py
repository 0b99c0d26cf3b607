"""Names the trainer of a log: the family whose iteration lines are most of it, told finer by words that only it has."""

from collections.abc import Sequence

from app.domain.logs import megatron_bridge, megatron_lm
from app.domain.logs.rows import Rows

FLAGSCALE = "FlagScale"
MINDSPEED = "MindSpeed"

_WORDS = {
    b"flagscale/": FLAGSCALE,
    b"mindspeed": MINDSPEED,
    b"ModelLink/": MINDSPEED,
}
"""Parts of module names and paths in warnings and tracebacks. These trainers print Megatron-LM's own lines, so nothing
else tells them; where no such word is printed the log is Megatron-LM's."""


KNOWN_FORMATS = (
    "Megatron-LM",
    "Megatron-Bridge",
    "Megatron-DeepSpeed",
    "NeMo",
    "Primus",
    "FlagScale",
    "MindSpeed",
    "pith-train",
)
"""Trainers whose logs are read, as people call them."""


class FamilyReader:
    """Remembers which families' words a log has."""

    keys: Sequence[bytes] = tuple(_WORDS)

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:  # noqa: ARG002 - as LineReader has it
        self.seen.update(family for word, family in _WORDS.items() if data.startswith(word, hit - len(word)))
        return hit


def name_trainer(rows: Rows, *, is_bridge: bool, is_megatron: bool, words: set[str]) -> str:
    """The family of most iteration lines, of the last ones among equals; "" when nothing tells one."""
    counts: dict[str, tuple[int, int]] = {}
    for table in rows.tables:
        if table.rows:
            count, last = counts.get(table.trainer, (0, 0))
            counts[table.trainer] = (count + len(table.rows), max(last, table.rows[-1]))
    trainer = max(counts, key=lambda name: counts[name], default=megatron_lm.TRAINER if is_megatron else "")
    if is_bridge and trainer in ("", megatron_lm.TRAINER):
        return megatron_bridge.TRAINER
    return min(words) if trainer == megatron_lm.TRAINER and words else trainer
