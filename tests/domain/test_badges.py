"""A badge is a picture that stands alone, and its key opens one stack's badges."""

import xml.etree.ElementTree as ET

import pytest

from app.domain.badges import Badge, badge_key, new_badge_secret, opens, svg

STACK, OTHER = "1a" * 32, "2b" * 32
SVG = "{http://www.w3.org/2000/svg}"


def test_it_says_in_words_what_it_shows() -> None:
    picture = ET.fromstring(svg(Badge("threewalls", "regression +9.4 %", "regression")))  # noqa: S314  our own text
    assert (picture.get("role"), picture.get("aria-label")) == ("img", "threewalls: regression +9.4 %")
    assert picture.findtext(f"{SVG}title") == "threewalls: regression +9.4 %"
    assert [text.text for text in picture.iter(f"{SVG}text")] == ["threewalls", "regression +9.4 %"]


@pytest.mark.parametrize(
    "evil", ["<script>alert(1)</script>", '"/><image href="x"/>', "a&b]]>", "x\n\x00\ufffe<", "'\" onload='x"]
)
def test_whatever_it_says_stays_text(evil: str) -> None:
    picture = ET.fromstring(svg(Badge(evil, evil, evil)))  # noqa: S314
    tags = {element.tag.removeprefix(SVG) for element in picture.iter()}
    assert tags == {"svg", "title", "path", "rect", "g", "text"}
    assert not any(name.startswith("on") or name in ("href", "style") for e in picture.iter() for name in e.attrib)


def test_it_stays_small() -> None:
    assert float(ET.fromstring(svg(Badge("l" * 500, "W" * 500))).get("width", "")) < 1000  # noqa: S314


def test_a_key_opens_its_stack_until_the_secret_is_made_anew() -> None:
    secret = new_badge_secret()
    key = badge_key(secret, STACK)
    assert opens(key, secret, STACK)
    assert not opens(key, secret, OTHER)
    assert not opens(key, new_badge_secret(), STACK)
    assert not opens("", secret, STACK)
    assert not opens("ключ", secret, STACK)
    assert not opens(badge_key("", STACK), "", STACK)
