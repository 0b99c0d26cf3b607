"""Nothing that the founding documents say is missing from the rules, nor any rule of the fact base."""

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from app.domain.rules.load import built_in_rules
from app.domain.rules.rule import Kind
from tests.cases import every_case
from tests.shared_papers import shared_file

COVERAGE: Mapping[str, Mapping[str, list[str]]] = yaml.safe_load(
    (Path(__file__).parent / "coverage.yaml").read_text(encoding="utf-8")
)
_ID = re.compile(
    r"\b(?:contract|fit|scale|disp|eo|ov|cg|prec|comp|host|profile|val|nsys|vlm)(?:-[a-z0-9]+)*-(?:[a-z0-9]+|\*)"
)
_ROW = re.compile(r"\| (?P<id>[a-z0-9-]+) \| (?P<phase>\w+) \| (?P<wall>\w+) \| (?P<next>[^|]*) \|")
_ENTRY = re.compile(r"\*\*(?P<id>[a-z0-9-]+)\*\* \| (?P<phase>\w+) \| (?P<wall>\w+) \|")
LEAST = 114
"""Rules that trace to the founding documents."""


def _named(words: list[str]) -> set[str]:
    """The rules that a list of names and patterns stands for; a name without a rule stands for itself."""
    rules = built_in_rules().rules
    found: set[str] = set()
    for word in words:
        matches = {name for name, rule in rules.items() if rule.kind == "candidate" and fnmatch(name, word)}
        found |= matches or {word}
    return found


def test_a_statement_of_the_founding_documents_has_its_rules() -> None:
    with every_case() as case:
        for document, statement in [(name, said) for name, rows in COVERAGE.items() for said in rows]:
            with case((document, statement)):
                missing = _named(COVERAGE[document][statement]) - set(built_in_rules().rules)

                assert missing == set()


def test_all_rules_that_trace_to_the_founding_documents_are_there() -> None:
    traced = _named([word for rows in COVERAGE.values() for words in rows.values() for word in words])

    assert len(traced & set(built_in_rules().rules)) >= LEAST


def _section(start: str, end: str) -> str:
    text = shared_file("KNOWLEDGE.md").read_text(encoding="utf-8")
    return text.split(start)[1].split(end)[0]


def test_every_rule_that_the_fact_base_traces_is_traced_here() -> None:
    told = set(_ID.findall(_section("# G. Coverage", "# H. ")))
    ours = {word for rows in COVERAGE.values() for words in rows.values() for word in words}

    assert {word for word in told - ours if "*" not in word} == set()
    assert {word for word in told - ours if _named([word]) - _named(list(ours))} == set()


@pytest.mark.parametrize(
    ("start", "end", "kind"),
    [
        ("## C.1", "## C.2", "blocker"),
        ("## C.2", "## C.3", "warning"),
        ("## C.3", "## C.4", None),
        ("## C.4", "# D. ", "candidate"),
    ],
)
def test_every_rule_of_the_fact_base_is_built_in_with_its_phase_wall_and_kind(
    start: str, end: str, kind: Kind | None
) -> None:
    rules = built_in_rules().rules
    wanted = {}
    for line in _section(start, end).splitlines():
        if (row := _ROW.match(line) or _ENTRY.match(line)) and row["id"] != "id":
            wanted[row["id"]] = (row["phase"], row["wall"], kind or row["next"])
    got = {name: (rules[name].phase, rules[name].wall, rules[name].kind) for name in wanted if name in rules}

    assert len(wanted) > 20
    assert got == wanted
