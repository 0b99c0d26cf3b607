"""The chart and the log of one run: they lead to each other, and the address remembers what is shown."""

import re

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import House, OpenPage
from tests.builders import FIRST_LINE
from tests.explained import explained
from tests.shared_papers import shared_folder


@pytest.fixture(scope="module")
def run(house: House) -> int:
    return house.make_run(project="charts", name="charted", iterations=300)


def drawn(page: Page) -> None:
    expect(page.locator("[data-chart][data-ready] canvas")).to_be_visible()


def test_a_point_leads_to_its_line_and_a_line_to_its_point(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}")
    drawn(page)
    box = page.locator("[data-chart] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 150)
    tip = page.locator("#vg-tooltip-element")
    expect(tip).to_contain_text("log line")
    expect(tip).to_contain_text(re.compile(r"counts as:?\s*(window|spike)"))
    iteration = int(re.search(r"iteration:?\s*(\d+)", tip.inner_text()).group(1))  # type: ignore[union-attr]
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 150)
    line = page.locator(f"#L{FIRST_LINE + iteration}")
    expect(line).to_have_class(re.compile("chosen"))
    expect(line).to_be_in_viewport()
    expect(page).to_have_url(re.compile(rf"line={FIRST_LINE + iteration}#L"))

    line.get_by_role("link", name=f"it. {iteration}").click()
    drawn(page)
    expect(page.locator("#chart")).to_be_in_viewport()
    shown = page.locator("#run-chart-data script").text_content() or ""
    assert f'"pointed": [{{"iteration": {iteration}}}]' in shown


def test_dragging_zooms_and_the_address_says_so(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}")
    drawn(page)
    box = page.locator("[data-chart] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 120, steps=5)
    page.mouse.up()
    expect(page.get_by_label("From iteration")).not_to_have_value("")
    expect(page).to_have_url(re.compile(r"first=\d+&last=\d+"))
    first = page.get_by_label("From iteration").input_value()
    page.reload()
    drawn(page)
    expect(page.get_by_label("From iteration")).to_have_value(first)
    page.get_by_role("link", name="Whole run").click()
    expect(page.get_by_label("From iteration")).to_have_value("")


def test_series_scale_and_table_switch_without_a_reload(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}")
    drawn(page)
    page.evaluate("window.sameDocument = true")
    page.get_by_label("Series").select_option("lm_loss")
    expect(page).to_have_url(re.compile("series=lm_loss"))
    drawn(page)
    page.get_by_role("link", name="log", exact=True).click()
    expect(page.get_by_role("link", name="log", exact=True)).to_have_attribute("aria-current", "true")
    page.get_by_role("link", name="table").click()
    expect(page.get_by_role("columnheader", name="lm loss")).to_be_visible()
    page.locator("#run-chart").get_by_role("link", name="Next").click()
    expect(page.locator("#run-chart")).to_contain_text("101–200 of 300")
    assert page.evaluate("window.sameDocument")


def test_a_table_is_there_without_script(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}", script=False)
    page.get_by_role("link", name="Show the table").click()
    expect(page.get_by_role("region", name="Iterations as a table")).to_contain_text("warm-up")


def test_a_failure_leads_to_the_line_that_shows_it(open_page: OpenPage, house: House) -> None:
    folder = shared_folder("corpus") / "logs" / "real-full"
    log = (folder / "dsv4-p22-turbo-crash.log").read_bytes()
    answer = httpx2.post(
        f"{house.address}/api/v1/runs",
        params={"wait": "30"},
        files={"log": ("crash.log", log)},
        data={"meta": "{}"},
        timeout=300,
    )
    page = open_page(f"/runs/{answer.json()['id']}")
    card = page.locator("#failure-1")
    expect(card.get_by_text("What to do:")).to_be_visible()
    link = card.locator(".evidence a").first
    number = int(re.sub(r"\D", "", link.inner_text()))
    evidence = card.locator(".evidence code").first.inner_text()
    link.click()
    line = page.locator(f"#L{number}")
    expect(line).to_be_in_viewport()
    expect(line).to_have_class(re.compile("event chosen"))
    expect(line).to_contain_text(evidence.split()[-1])
    line.get_by_role("link", name="failure").click()
    expect(card).to_be_in_viewport()


def test_timers_are_drawn_beside_their_table(open_page: OpenPage, house: House) -> None:
    page = open_page(f"/runs/{house.make_run(project='charts', name='timed', **explained())}")
    expect(page.locator(".bars-area[data-ready] canvas")).to_be_visible()
    expect(page.get_by_role("region", name="Timers as a table")).to_contain_text("forward backward")
    assert '"restarts": [{"iteration": 21' in (page.locator("#run-chart-data script").text_content() or "")
