"""A team's own rule files: checked, left out by the file, and never in place of a rule by accident."""

import pytest

from app.domain.rules.load import SOURCES as SOURCES_FILE
from app.domain.rules.load import TeamRules, built_in_rules, with_team
from tests.domain.rules.builders import GOOD

OURS = GOOD.replace("scale-vpp-small", "ours-vpp-small").replace("M-arg", "wiki-12")
WIKI = 'wiki-12: {title: "Pipeline notes", where: "https://wiki.example/12", date: "2026-09"}\n'


def team(texts: dict[str, str], sources: str = WIKI) -> TeamRules:
    return with_team(built_in_rules(), {**texts, SOURCES_FILE: sources})


def test_a_teams_rules_stand_beside_the_services_own() -> None:
    found = team({"ours.yaml": OURS})

    assert found.mistakes == ()
    assert len(found.book.rules) == len(built_in_rules().rules) + 1
    assert (found.book.rules["ours-vpp-small"].origin, found.book.rules["ours-vpp-small"].line) == ("team", 2)
    assert found.book.sources["wiki-12"].title == "Pipeline notes"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OURS.replace("pp == 1", "stages == 1"), "ours.yaml:2: ours-vpp-small: `vpp != null && vpp > 1 && stages"),
        (OURS.replace("[wiki-12]", "[wiki-13]"), "wiki-13 is not in sources.yaml: add it there with title, where and"),
        (OURS.replace("[wiki-12]", "[]"), "has no source: list at least one key"),
        (OURS.replace("fires: {vpp: 2, pp: 1}, ", ""), "has no example in which it fires: add facts under"),
        (OURS.replace("phase: scale", "phase: later"), "phase must be one of contract, fit"),
        (OURS.replace("ours-vpp-small", "scale-sp-needs-tp"), "or replace the rule with `overrides: reason`"),
        (OURS + "  overrides: We know better.\n", "overrides a built-in rule that does not exist"),
        (OURS + OURS, "ours.yaml:16: ours-vpp-small: is already defined in ours.yaml"),
        (OURS.replace('"2026-08"', "2026-02-30"), "ours.yaml:1: is not valid YAML: day is out of range"),
        ("rules:\n  - id: x\n", "ours.yaml:1: must be a list of rules"),
        ("- id: [\n", "ours.yaml:2: is not valid YAML"),
        ("# " + "x" * 1_000_000, "is longer than 1,000,000 characters"),
    ],
)  # fmt: skip
def test_a_file_with_a_mistake_is_left_out_and_says_where_and_why(text: str, said: str) -> None:
    other = OURS.replace("ours-vpp-small", "ours-other")

    found = team({"ours.yaml": text, "other.yaml": other})

    assert said in "\n".join(map(str, found.mistakes))
    assert found.files_left_out == ("ours.yaml",)
    assert {one.id for one in found.book.rules.values() if one.origin == "team"} == {"ours-other"}
    assert found.book.rules["scale-sp-needs-tp"].origin == "built-in"


def test_what_rests_on_a_file_that_is_left_out_is_left_out_too() -> None:
    leading = OURS.replace("ours-vpp-small", "ours-first") + "  unlocks: [ours-vpp-small]\n"

    found = team({"a.yaml": leading, "b.yaml": OURS.replace("phase: scale", "phase: later")})

    assert sorted(found.files_left_out) == ["a.yaml", "b.yaml"]


def test_a_rule_of_the_service_is_replaced_only_with_a_reason() -> None:
    text = OURS.replace("ours-vpp-small", "scale-sp-needs-tp") + "  overrides: Our trainer allows it.\n"

    found = team({"ours.yaml": text})

    assert found.mistakes == ()
    assert (found.book.rules["scale-sp-needs-tp"].origin, found.book.rules["scale-sp-needs-tp"].overrides) == (
        "team",
        "Our trainer allows it.",
    )
    assert found.replaced["scale-sp-needs-tp"].origin == "built-in"
    assert len(found.book.rules) == len(built_in_rules().rules)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (WIKI.replace(', date: "2026-09"', ""), "sources.yaml:1: wiki-12: lacks date"),
        (WIKI + 'M-arg: {title: "x", where: "y", date: "z"}', "M-arg: is already a built-in source"),
        ("- wiki", "sources.yaml:1: must map the key of a source"),
        ("{", "sources.yaml:2: is not valid YAML"),
    ],
)
def test_a_wrong_source_is_named_and_the_services_own_are_never_replaced(sources: str, said: str) -> None:
    found = team({"ours.yaml": OURS}, sources)

    assert said in "\n".join(map(str, found.mistakes))
    assert found.book.sources["M-arg"] == built_in_rules().sources["M-arg"]
