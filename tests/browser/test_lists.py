"""The run list: filters in the address, paging, the back button, the phone."""

import re

from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import House, OpenPage


def names(page: Page) -> Locator:
    return page.locator("#run-table .run-name a")


def test_filters_paging_and_the_back_button(open_page: OpenPage, house: House) -> None:
    for number in range(60):
        house.make_run(
            project="many", name=f"run-{number:02d}", status="received", dispatcher=["deepep", None][number % 2]
        )
    page = open_page("/runs?project=many")
    page.evaluate("window.sameDocument = true")
    expect(page.locator("#run-table")).to_contain_text("60 runs match")

    page.get_by_role("link", name="Next").click()
    expect(page).to_have_url(re.compile(r"/runs\?project=many&after=\d+&page=2$"))
    expect(names(page)).to_have_count(10)

    page.get_by_label("Dispatcher", exact=True).select_option("deepep")
    expect(page).to_have_url(re.compile(r"/runs\?project=many&dispatcher=deepep$"))
    expect(page.locator("#run-table")).to_contain_text("30 runs match")

    page.get_by_label("Text").fill("run-0")
    expect(page.locator("#run-table")).to_contain_text("5 runs match")
    expect(page.locator("#announce")).to_have_text("5 runs")

    page.get_by_role("link", name="Run", exact=True).click()
    expect(page).to_have_url(re.compile(r"sort=name"))
    expect(names(page)).to_have_text(["run-00", "run-02", "run-04", "run-06", "run-08"])
    assert page.evaluate("window.sameDocument"), "the list was loaded as a page, not by htmx"

    page.get_by_role("link", name="Remove the filter dispatcher: deepep").click()
    expect(page.locator("#run-table")).to_contain_text("10 runs match")
    expect(page.get_by_label("Dispatcher", exact=True)).to_have_value("")

    page.go_back()
    expect(page.locator("#run-table")).to_contain_text("5 runs match")
    expect(page.get_by_label("Dispatcher", exact=True)).to_have_value("deepep")
    page.get_by_role("link", name="run-04").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("run-04")
    page.go_back()
    expect(page.get_by_label("Text")).to_have_value("run-0")
    expect(page.locator(".bar")).to_have_count(1)


def test_filters_work_without_script(open_page: OpenPage, house: House) -> None:
    house.make_run(project="scriptless", name="only", status="received")
    page = open_page("/runs", script=False)
    page.get_by_label("Project").select_option("scriptless")
    page.get_by_role("button", name="Apply").click()
    expect(names(page)).to_have_text(["only"])
