"""Names of the contract fields in Megatron-LM and Megatron-Bridge, for their readers and for the writer of suggestions.

The table is `flags.toml`; its head explains the columns. TOML, because the client has no package that reads YAML.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PATH = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class TrainerNames:
    """One row of the table: what the trainers call a contract field, or one of its words."""

    flags: tuple[str, ...] = ()
    other_flags: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    bridge: tuple[str, ...] = ()
    bridge_reads: tuple[str, ...] = ()
    harness: tuple[str, ...] = ()
    together: bool = False
    megatron_note: str = ""
    bridge_note: str = ""
    words: Mapping[str, "TrainerNames"] = field(default_factory=dict)

    @property
    def all_paths(self) -> Iterator[str]:
        """Yield every path of Megatron-Bridge's configuration that is read."""
        for row in (self, *self.words.values()):
            yield from (*row.bridge, *row.bridge_reads)

    @property
    def megatron_text(self) -> str:
        """Return the flags and the argument for users: `--seq-length (seq_length)`; empty without a name."""
        flags = [flag for row in (self, *self.words.values()) for flag in row.flags]
        text = ", ".join(flags) or self.megatron_note
        if self.arguments and len(flags) <= 1:
            text = f"{text} ({self.arguments[0]})" if text else self.arguments[0]
        return f"{text}; also {', '.join(self.other_flags)}" if self.other_flags else text

    @property
    def bridge_text(self) -> str:
        """Return the configuration paths for users; empty without one."""
        paths = [path for row in (self, *self.words.values()) for path in row.bridge]
        return ", ".join(paths) or self.bridge_note


def _row(columns: Mapping[str, object]) -> TrainerNames:
    """Return one row. Raises TypeError for an unknown column."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in columns.items()
    }
    words = columns.get("words")
    if isinstance(words, Mapping):
        values["words"] = {word: _row(row) for word, row in words.items()}
    return TrainerNames(**values)


def _load() -> dict[str, TrainerNames]:
    rows = tomllib.loads(_PATH.read_text(encoding="utf-8"))
    return {name: _row(columns) for name, columns in rows.items()}


FLAGS: Mapping[str, TrainerNames] = _load()
"""Rows by contract field. Fields without any name of a trainer are missing."""

NO_NAMES = TrainerNames()
"""The row of a field that is not in the table."""
