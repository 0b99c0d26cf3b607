"""Rule files become rules, and every mistake of their form is named by file, rule and key."""

from pathlib import Path

import pytest

from app.domain.rules.expression import Expression, RuleError
from app.domain.rules.load import built_in_rules, joined, load_folder, load_texts, with_team_rules
from tests.domain.rules.builders import GOOD, SOURCES, scale_book


def test_a_rule_is_read_with_its_condition_and_change() -> None:
    rule = scale_book(GOOD.replace("vpp: null}}", 'vpp: "= pp * 2"}}')).rules["scale-vpp-small"]

    assert (rule.kind, rule.topic, rule.origin) == ("blocker", "scale", "built-in")
    assert rule.when.names == ("pp", "vpp")
    assert isinstance(rule.change.set["vpp"], Expression)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("phase: scale", "phase: later"), "phase must be one of contract, fit"),
        (("kind: blocker", "kind: idea"), "kind must be one of blocker"),
        (("  verify: The launch passes validation.\n", ""), "lacks verify"),
        (("when: vpp != null", "when: vpp != "), "is no expression"),
        (("verify:", "proof: x\n  verify:"), "has no key proof"),
        (("text: Raise PP or drop VPP., set", "texts: x, set"), "change has no key texts"),
    ],
)
def test_a_mistake_of_the_form_names_the_file_and_the_rule(change: tuple[str, str], said: str) -> None:
    with pytest.raises(RuleError, match="scale.yaml: scale-vpp-small: .*" + said):
        scale_book(GOOD.replace(*change))


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(RuleError) as told:
        scale_book(GOOD.replace("phase: scale", "phase: later") + GOOD.replace("kind: blocker", "kind: idea"))

    assert len(str(told.value).splitlines()) == 2


def test_a_rule_stands_once() -> None:
    with pytest.raises(RuleError, match=r"stands in more\.yaml, too"):
        load_texts({"more": GOOD, "scale": GOOD}, SOURCES)


def test_a_file_that_is_no_yaml_is_named() -> None:
    with pytest.raises(RuleError, match=r"scale\.yaml: is no YAML"):
        scale_book("- id: [")


def test_a_teams_folder_joins_the_built_in_rules_but_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text(GOOD.replace("scale-vpp-small", "ours-vpp-small"))
    (tmp_path / "sources.yaml").write_text(SOURCES)
    team = load_folder(tmp_path, origin="team")

    both = joined(scale_book(GOOD), team)

    assert [rule.origin for rule in both.rules.values()] == ["built-in", "team"]
    with pytest.raises(RuleError, match="ours-vpp-small: a rule of that name is built in"):
        joined(team, team)


def test_a_teams_rules_are_linted_before_they_are_used(tmp_path: Path) -> None:
    good = GOOD.replace("scale-vpp-small", "ours-vpp-small")
    (tmp_path / "ours.yaml").write_text(good)

    both = with_team_rules(tmp_path)

    assert (len(both.rules), both.rules["ours-vpp-small"].origin) == (len(built_in_rules().rules) + 1, "team")
    (tmp_path / "ours.yaml").write_text(good.replace("pp == 1", "stages == 1"))
    with pytest.raises(RuleError, match=r"ours\.yaml: ours-vpp-small: `vpp .*` names stages"):
        with_team_rules(tmp_path)
