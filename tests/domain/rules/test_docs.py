"""The documentation of the rules names every threshold with its default, and every key of a rule."""

import re
from pathlib import Path

from app.domain.rules.facts import FACTS, SETTINGS
from app.domain.rules.load import KEYS, built_in_rules

DOCS = Path(__file__).resolve().parents[3] / "docs" / "rules.md"


def test_every_threshold_is_documented_with_its_default() -> None:
    text = DOCS.read_text()

    for name, value in SETTINGS.items():
        assert f"| `{name}` | {value:.2f} | {FACTS[name].meaning} |" in text


def test_every_key_of_a_rule_is_documented() -> None:
    text = DOCS.read_text()

    assert [key for key in sorted(KEYS) if f"{key}:" not in text] == []


def test_the_conditions_that_are_shown_are_those_of_the_rules() -> None:
    shown = re.findall(r"^([a-z][\w-]+)\n  CEL     (.*)$", DOCS.read_text(), re.MULTILINE)

    assert len(shown) == 10
    assert {name: built_in_rules().rules[name].when.source for name, _ in shown} == dict(shown)
