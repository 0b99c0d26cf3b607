"""`threewalls check-rules`: a team's rule files, checked before a service reads them. For CI; uses no database."""

import sys
from pathlib import Path

from app.domain.numbers import plural
from app.domain.rules.load import SOURCES, TeamRules, built_in_rules, with_team
from app.errors import InvalidMetadata, Unavailable
from app.settings import Settings
from app.storage.rules import read_folder

FINE, WRONG = 0, 2
"""1 always means a regression, in every command."""


def check_rules(folder: Path | None, settings: Settings) -> int:
    """Print every mistake with file, line and what to do. Return 2 when there is one, else 0.

    Raises InvalidMetadata without a folder, Unavailable when it holds no rule file or cannot be read.
    """
    if folder is None and not settings.rules_dir:
        raise InvalidMetadata("Name the folder of the rule files, or set THREEWALLS_RULES_DIR.")
    folder = Path(settings.rules_dir) if folder is None else folder
    if not folder.is_dir():
        raise InvalidMetadata(f"{folder} is not a folder.")
    try:
        texts = read_folder(folder)
    except OSError as error:
        raise Unavailable(f"{error.filename} cannot be read: {error.strerror}.") from error
    if not texts.keys() - {SOURCES}:
        raise Unavailable(f"{folder} contains no rule file: names end in .yaml (docs/rules.md).")
    book = with_team(built_in_rules(), texts)
    for mistake in book.mistakes:
        print(f"{folder / mistake.file}:{str(mistake).removeprefix(mistake.file + ':')}")
    if book.mistakes:
        files = plural(len(book.files_left_out), "file")
        print(f"{plural(len(book.mistakes), 'mistake')} in {files}, which the service would ignore.", file=sys.stderr)
        return WRONG
    print(_summary(book, len(texts.keys() - {SOURCES})))
    return FINE


def _summary(rules: TeamRules, files: int) -> str:
    team = sum(rule.origin == "team" for rule in rules.book.rules.values())
    replaced = f", {len(rules.replaced)} replacing built-in rules" if rules.replaced else ""
    return f"{plural(team, 'rule')} in {plural(files, 'file')}, no mistakes{replaced}."
