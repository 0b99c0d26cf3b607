"""The upgrade report in a browser: from the offer to the report, its chart, a phone, both themes, and no script."""

import re

import pytest
from playwright.sync_api import Page, expect

from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage
from tests.browser.looks import PHONE, assert_looks_well
from tests.browser.test_history import drag
from tests.builders import make_stack
from tests.upgrade.test_upgrade import KNOWN, LATER, NEW, NOISE, OLD

PROJECT = "upgrading"
ADDRESS = f"/upgrade?project={PROJECT}&field=container&from={OLD}&to={NEW}"


@pytest.fixture(scope="module", autouse=True)
def moved(house: House) -> None:
    """Three stacks that were upgraded, two of them slower; one that was not."""
    with transaction(house.engine) as session:
        for length, factor in ((2048, 1.0), (4096, 1.04), (8192, 1.09)):
            times = [0.1 * length * (1 + change / 1000) for change in NOISE]
            fields = KNOWN | {"seq_len": length}
            make_stack(session, times, project=PROJECT, fields=fields | {"container": OLD})
            slower = [time * factor for time in times]
            make_stack(session, slower, project=PROJECT, fields=fields | {"container": NEW}, started=LATER)
        make_stack(session, [900.0, 901.0], project=PROJECT, fields=KNOWN | {"container": OLD, "model": "Mixtral-8x7B"})


def drawn(page: Page) -> Page:
    expect(page.locator("#upgrade-chart[hx-trigger]")).to_have_count(0, timeout=90_000)
    expect(page.locator("[data-chart]:not([data-ready])")).to_have_count(0, timeout=90_000)
    return page


def test_from_the_offer_to_the_report(open_page: OpenPage) -> None:
    page = open_page(f"/upgrade?project={PROJECT}&field=container")
    page.get_by_title(f"{OLD} → {NEW}").click()
    expect(page.locator(".answer")).to_contain_text("2 of 3 jobs slower by 4.0 to 9.0")
    expect(page.locator(".upgrade-regression").get_by_role("link")).to_have_count(1)
    expect(drawn(page).locator("#upgrade-chart canvas")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "upgrade.csv"


def test_the_choice_works_without_script(open_page: OpenPage) -> None:
    page = open_page(f"/upgrade?project={PROJECT}&field=container", script=False)
    page.get_by_label("From", exact=True).select_option(OLD)
    page.get_by_label("To", exact=True).select_option(NEW)
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".upgrade-table tbody tr")).to_have_count(3)


@pytest.mark.parametrize("address", [ADDRESS, f"/upgrade?project={PROJECT}", "/upgrade?project=upgrading&field=driver"])
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(open_page: OpenPage, address: str) -> None:
    page = drawn(open_page(address, width=PHONE))
    assert_looks_well(page)


def test_a_row_of_the_chart_leads_to_the_history_of_its_stack(open_page: OpenPage) -> None:
    page = drawn(open_page(ADDRESS))
    page.locator("[data-chart]").focus()
    page.keyboard.press("Home")
    expect(page.locator("#announce")).to_contain_text("decision: ")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/history/[0-9a-f]{64}$"))


def test_a_drag_zooms_to_some_stacks(open_page: OpenPage) -> None:
    page = drawn(open_page(ADDRESS))
    changes = "JSON.parse(document.querySelector('#upgrade-chart script').textContent).datasets.points"
    whole = page.evaluate(f"{changes}.map((point) => point.at)")
    drag(page, 0.3, 0.98)
    back = page.get_by_role("button", name="All jobs")
    expect(back).to_be_visible()
    drawn(page)
    assert page.evaluate(f"{changes}.map((point) => point.at)") == whole[:2]
    back.click()
    expect(back).to_have_count(0)
    assert page.evaluate(f"{changes}.map((point) => point.at)") == whole
