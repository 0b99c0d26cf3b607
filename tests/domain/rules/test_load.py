"""Rule files become rules, and every mistake of their form is named by file, rule and key."""

import pytest

from app.domain.rules.expression import Expression, RuleError
from app.domain.rules.load import load_texts
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
        (("when: vpp != null", "when: vpp != "), "is not a valid expression"),
        (("verify:", "proof: x\n  verify:"), "has unknown keys: proof"),
        (("text: Raise PP or drop VPP., set", "texts: x, set"), "change has unknown keys: texts"),
    ],
)
def test_a_mistake_of_the_form_names_the_file_and_the_rule(change: tuple[str, str], said: str) -> None:
    with pytest.raises(RuleError, match=r"scale\.yaml:2: scale-vpp-small: .*" + said):
        scale_book(GOOD.replace(*change))


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(RuleError) as told:
        scale_book(GOOD.replace("phase: scale", "phase: later") + GOOD.replace("kind: blocker", "kind: idea"))

    assert len(str(told.value).splitlines()) == 2


def test_a_rule_stands_once() -> None:
    with pytest.raises(RuleError, match=r"is already defined in more\.yaml"):
        load_texts({"more": GOOD, "scale": GOOD}, SOURCES)


def test_a_file_that_is_no_yaml_is_named() -> None:
    with pytest.raises(RuleError, match=r"scale\.yaml:2: is not valid YAML"):
        scale_book("- id: [\n")
