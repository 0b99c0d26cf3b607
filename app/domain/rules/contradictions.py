"""Where the sources disagree, and what the rules do then: `contradictions.yaml`, shown beside the rules it concerns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import yaml

PATH = Path(__file__).resolve().parent / "contradictions.yaml"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two statements with their sources (keys of sources.yaml), and which of them counts how.

    `measurable`: they disagree about what is faster, which a matched A/B settles.
    """

    rules: tuple[str, ...]
    older: str
    older_sources: tuple[str, ...]
    newer: str
    newer_sources: tuple[str, ...]
    kept: str
    measurable: bool = False


@lru_cache(maxsize=1)
def contradictions() -> tuple[Contradiction, ...]:
    """All of them, in the order of the file."""
    rows = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return tuple(
        Contradiction(
            rules=tuple(row["rules"]),
            older=row["older"],
            older_sources=tuple(row["older_sources"]),
            newer=row["newer"],
            newer_sources=tuple(row["newer_sources"]),
            kept=row["kept"],
            measurable=row.get("measurable") is True,
        )
        for row in rows
    )


@lru_cache(maxsize=1)
def _by_rule() -> Mapping[str, tuple[Contradiction, ...]]:
    found: dict[str, tuple[Contradiction, ...]] = {}
    for one in contradictions():
        for rule in one.rules:
            found[rule] = (*found.get(rule, ()), one)
    return found


def contradictions_of(rule: str) -> tuple[Contradiction, ...]:
    """Those that concern the rule of that id."""
    return _by_rule().get(rule, ())
