"""Every built-in rule is sound: its facts exist, its sources stand in the list, its examples do what they say."""

import pytest

from app.domain.rules.load import FOLDER, built_in_rules, mistakes, mistakes_of
from app.domain.rules.stated import contradictions
from tests.cases import every_case
from tests.domain.rules.builders import GOOD, scale_book


def test_a_rule_is_sound_and_its_examples_do_what_they_say() -> None:
    with every_case() as case:
        for name in list(built_in_rules().rules):
            with case(name):
                known = built_in_rules()

                assert mistakes_of(known.rules[name], known) == []


def test_a_rule_file_holds_at_most_300_lines() -> None:
    assert [path.name for path in FOLDER.glob("*.yaml") if len(path.read_text().splitlines()) > 300] == []


def test_contradictions_name_rules_and_sources_that_exist() -> None:
    book = built_in_rules()

    assert len(contradictions()) == 34
    for one in contradictions():
        assert set(one.rules) <= book.rules.keys(), one
        assert {*one.older_sources, *one.newer_sources} <= book.sources.keys(), one
        assert one.older
        assert one.newer
        assert one.kept


def test_a_good_rule_has_no_mistakes() -> None:
    assert mistakes(scale_book(GOOD)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("sources: [M-arg]", "sources: []"), "has no source"),
        (("sources: [M-arg]", "sources: [M-none]"), "M-none is not in sources.yaml"),
        (('valid: "2026-08"', 'valid: "August"'), "`valid` must be a month or a day"),
        (("fires: {vpp: 2, pp: 1}, ", ""), "has no example in which it fires"),
        (("silent: {vpp: null, pp: 1}, ", ""), "has no example in which it stays silent"),
        (("fires: {vpp: 2, pp: 1}", "fires: {vpp: 2, pp: 2}"), "expected fires, but got silent"),
        (("asks: {vpp: 2}", "asks: {vpp: null}"), "expected asks, but got silent"),
        (("pp == 1", "stages == 1"), "names stages, which is not a known fact"),
        (("pp == 1", "has(env.PATH)"), "uses has()"),
        (("when: vpp != null && vpp > 1", "when: vpp > 1.5"), ""),
        (("when: vpp != null && vpp > 1 && pp == 1", "when: vpp * pp"), "instead of true or false"),
        (("PP {pp}", "PP {ppp}"), "uses ppp, which is not a known fact"),
        (("PP {pp}", "TP {tp}"), "`why` uses tp, which is unknown in this example"),
        (("set: {vpp: null}", "set: {vpps: 1}"), "changes vpps, which is not a contract field"),
        (("set: {vpp: null}", "set: {vpp: many}"), "which it does not take"),
        (("title: A virtual pipeline needs stages", "title: Ends with a stop."), "without a full stop"),
        (("id: scale-vpp-small", "id: Small"), "its id must be words with hyphens"),
        (("examples: {fires: {vpp: 2", "examples: {fires: {vppp: 2"), "vppp is not a known fact"),
    ],
)
def test_each_mistake_is_said(change: tuple[str, str], said: str) -> None:
    text = GOOD.replace(*change)

    assert text != GOOD
    found = mistakes(scale_book(text))
    assert said in "\n".join(map(str, found))
    assert found
