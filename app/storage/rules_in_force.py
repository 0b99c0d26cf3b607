"""The rules that count now: the service's own, a team's files, and the thresholds that are set.

The team's folder is looked at each time, and its files are read again when one of them changed: nobody has to restart.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import structlog

from app.domain.rules.facts import SETTINGS
from app.domain.rules.facts.tables import FOLDER as FACTS_FOLDER
from app.domain.rules.load import FOLDER, built_in_rules
from app.domain.rules.rule import RuleBook
from app.domain.rules.team import TeamRules, with_team
from app.settings import Settings

log = structlog.get_logger(__name__)

READING_VERSION = 1
"""Raised when the code that reads facts from a run (`domain/rules/run_facts.py`, `derive.py`) answers otherwise."""

Seen = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class RulesInForce:
    """`folder`: of the team, "" for none. `version` changes with everything that may let other rules fire."""

    team: TeamRules
    thresholds: Mapping[str, float]
    folder: str
    version: str

    @property
    def book(self) -> RuleBook:
        return self.team.book


def rules_in_force(settings: Settings) -> RulesInForce:
    """Quick: files are read only when the folder changed."""
    thresholds = tuple(getattr(settings, name.lower()) for name in SETTINGS)
    return _rules(settings.rules_dir, _seen(settings.rules_dir), thresholds)


def read_folder(folder: Path) -> dict[str, str]:
    """The rule files of a team by name; a byte that is no UTF-8 becomes a mark, which the check finds."""
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.yaml"))}


def _seen(folder: str) -> Seen:
    """The files of the folder as they stand now; none where it is gone."""
    if not folder:
        return ()
    found = ((path, path.stat()) for path in sorted(Path(folder).glob("*.yaml")))
    return tuple((path.name, state.st_mtime_ns, state.st_size) for path, state in found)


@lru_cache(maxsize=4)
def _rules(folder: str, seen: Seen, thresholds: tuple[float, ...]) -> RulesInForce:
    texts = read_folder(Path(folder)) if seen else {}
    team = with_team(built_in_rules(), texts)
    for mistake in team.mistakes:
        log.warning("team_rules_left_out", file=mistake.file, line=mistake.line, rule=mistake.rule, said=mistake.said)
    values = dict(zip(SETTINGS, thresholds, strict=True))
    told = json.dumps([READING_VERSION, _own_files(), texts, values], sort_keys=True)
    return RulesInForce(team, values, folder, hashlib.sha256(told.encode()).hexdigest()[:16])


@lru_cache(maxsize=1)
def _own_files() -> str:
    """A mark of the service's own rules and facts."""
    files = [*sorted(FOLDER.glob("*.yaml")), *sorted(FACTS_FOLDER.glob("*.yaml"))]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
