"""`threewalls check` and `check-rules`: check a launch against the rules, and rule files, without a server."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from app.analysis.documents import as_json
from app.analysis.options import FINE, USAGE
from app.analysis.reading import read_statements
from app.domain.numbers import plural
from app.domain.planning.launch import CheckedLaunch, check_document
from app.domain.rules.engine import Suggestion
from app.domain.rules.launch_check import check_launch
from app.domain.rules.load import SOURCES, TeamRules, built_in_rules, with_team
from app.domain.text import some_of
from app.errors import InvalidMetadata, Unavailable, UsageError
from app.settings import Settings
from app.storage.rules import read_folder, rules_in_force

BLOCKED = 1
SHOWN = 8
"""Maximum number of unknown facts in the text; the JSON has all of them."""


def check(options: argparse.Namespace, settings: Settings) -> int:
    """Print blockers and warnings. Return 1 if a blocker fires in any file, or one does not fit in memory.

    Raises UsageError, InvalidMetadata and Unavailable.
    """
    rules = rules_in_force(settings)
    metadata = read_statements([], options.set)
    results = []
    for path in options.files:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise Unavailable(f"{path} cannot be read: {error.strerror}.") from error
        try:
            launch = check_launch(text, rules.book, metadata, settings=rules.thresholds)
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from error
        results.append((path, CheckedLaunch(launch)))
    if options.json:
        documents = [{"file": str(path), **check_document(launch)} for path, launch in results]
        print(as_json(documents[0] if len(documents) == 1 else documents))
    else:
        print("\n\n".join(check_text(str(path), launch) for path, launch in results))
    return BLOCKED if any(launch.is_blocked for _, launch in results) else FINE


def check_text(name: str, launch: CheckedLaunch) -> str:
    """Return the result for a terminal."""
    result = launch.check
    lines = [f"{name}: {launch.answer}", f"Read: {launch.job}", f"Memory: {launch.memory}"]
    lines += [f"  {launch.remedy}"] if launch.remedy else []
    lines += [*_rows("blocker", result.blockers), *_rows("warning", result.warnings)]
    lines += [f"note: {problem}" for problem in (*result.problems, *result.contradictions, result.defaults)]
    if result.unknown:
        lines.append(f"Unknown: {some_of(result.unknown, SHOWN)}. State them with --set NAME=VALUE.")
    return "\n".join(lines)


def _rows(kind: str, suggestions: Iterable[Suggestion]) -> list[str]:
    return [
        line
        for item in suggestions
        for line in (f"{kind}: {item.title} ({item.rule.id})", f"  {item.why}", f"  {item.change_text}")
    ]


# --- `threewalls check-rules`: a team's rule files, checked in CI before a service reads them.

WRONG = USAGE
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
