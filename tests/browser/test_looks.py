"""What judges the looks of all pages finds what is wrong with them, also after it judged a page that was fine."""

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.looks import PHONE, assert_looks_well

FADE = "([colour, selector]) => { document.querySelector(selector).style.color = colour }"


@pytest.mark.parametrize("selector", ["main h1", "main p", "header a"])
@pytest.mark.parametrize("colour", ["#c4c4c4", "#4a4a4a"], ids=["in the light theme", "in the dark theme"])
def test_a_contrast_that_is_too_low_is_found(open_page: OpenPage, colour: str, selector: str) -> None:
    assert_looks_well(open_page("/glossary", width=PHONE))
    page = open_page("/glossary", width=PHONE)
    page.evaluate(FADE, [colour, selector])
    with pytest.raises(AssertionError, match="color-contrast"):
        assert_looks_well(page)


def test_an_input_without_a_name_is_found(open_page: OpenPage) -> None:
    page = open_page("/glossary", width=PHONE)
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    with pytest.raises(AssertionError, match="label"):
        assert_looks_well(page)
