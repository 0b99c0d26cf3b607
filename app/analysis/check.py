"""`threewalls check`: what the rules object to in a launch script, a command or a configuration, without a server."""

import argparse
from collections.abc import Iterable

from app.analysis.documents import as_json
from app.analysis.options import FINE
from app.analysis.reading import read_statements
from app.domain.rules.engine import Suggestion
from app.domain.rules.launch_check import LaunchCheck, check_document, check_launch
from app.domain.text import some_of
from app.errors import Unavailable, UsageError
from app.settings import Settings
from app.storage.rules import rules_in_force

BLOCKED = 1
SHOWN = 8
"""Maximum number of unknown facts in the text; the JSON has all of them."""


def check(options: argparse.Namespace, settings: Settings) -> int:
    """Print blockers and warnings. Return 1 if a blocker fires in any file.

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
            results.append((path, check_launch(text, rules.book, metadata, settings=rules.thresholds)))
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from error
    if options.json:
        documents = [{"file": str(path), **check_document(result)} for path, result in results]
        print(as_json(documents[0] if len(documents) == 1 else documents))
    else:
        print("\n\n".join(check_text(str(path), result) for path, result in results))
    return BLOCKED if any(result.blockers for _, result in results) else FINE


def check_text(name: str, result: LaunchCheck) -> str:
    """Return the result for a terminal."""
    lines = [f"{name}: {result.answer}", *_rows("blocker", result.blockers), *_rows("warning", result.warnings)]
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
