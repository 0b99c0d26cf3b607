"""Two sides in a real browser: no winner across containers, choosing, series, the keyboard, both themes, a phone."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage
from tests.browser.looks import PHONE, assert_looks_well
from tests.compare.runs import make_compared, timers

PROJECT = "side-by-side"
HOSTILE = "<img src=x onerror=alert(1)>" * 4


@pytest.fixture(scope="module")
def runs(house: House) -> dict[str, int]:
    with transaction(house.engine) as session:

        def make(fields: dict[str, Any] | None = None, **columns: Any) -> int:
            return make_compared(session, fields, project=PROJECT, **columns)

        return {
            "off": make(name="overlap off", timers=timers()),
            "on": make({"ep_overlap": True}, name="overlap on", step_time_ms=23_800.0, timers=timers(0.7)),
            "container": make({"container": "nvcr.io/nvidia/nemo:26.08"}, name=HOSTILE, step_time_ms=40_000.0),
            "other": make({"gpu": "GB200", "gpus": 64, "cluster": ...}, name="other", step_time_ms=9_000.0),
            "short": make({"ep_overlap": True}, name="short", iterations=10),
            "again": make({"ep_overlap": True}, name="overlap on again", step_time_ms=23_900.0),
        }


def settled(page: Page) -> Page:
    expect(page.locator("#compare-series[hx-trigger], #compare-distributions[hx-trigger]")).to_have_count(0)
    expect(page.locator("[data-chart]:not([data-ready])")).to_have_count(0)
    return page


def test_two_containers_have_no_winner(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = settled(open_page(f"/compare?a={runs['off']}&b={runs['container']}"))
    expect(page.locator(".answer")).to_contain_text("Likely cause: container; not ranked")
    expect(page.get_by_role("region", name="Fields that differ")).to_contain_text("nvcr.io/nvidia/nemo:26.08")
    result = page.locator("#result")
    expect(result).to_contain_text("single-field contrast")
    expect(result).to_contain_text("container differs, but must be equal to name a winner.")
    figures = page.get_by_role("region", name="Figures of both sides")
    expect(figures).to_contain_text("not ranked")
    words = f"{result.inner_text()} {figures.locator('tbody').inner_text()}"  # the head names the axis
    assert not re.search(r"is better|\bbetter\b|(?<!no )\bworse\b|improvement|regression", words), words


def test_a_matched_ab_names_the_better_side_and_swaps(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = settled(open_page(f"/compare?a={runs['off']}&b={runs['on']}"))
    expect(page.locator("#result")).to_contain_text("B is faster")
    page.get_by_role("link", name="Swap sides").click()
    expect(page).to_have_url(re.compile(rf"\?a={runs['on']}&b={runs['off']}$"))
    expect(page.locator("#result")).to_contain_text("A is faster")


def test_series_are_chosen_without_a_reload_and_stand_in_the_address(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = settled(open_page(f"/compare?a={runs['off']}&b={runs['on']}"))
    expect(page.locator("[data-chart] canvas")).to_have_count(2)
    page.evaluate("window.sameDocument = true")
    page.get_by_label("Series").select_option("lm_loss")
    expect(page).to_have_url(re.compile("series=lm_loss"))
    settled(page)
    page.locator("#compare-series").get_by_role("link", name="table").click()
    table = page.get_by_role("region", name="Both sides as a table")
    expect(table).to_contain_text("12.10")
    assert page.evaluate("window.sameDocument")
    page.reload()
    expect(table).to_contain_text("12.10")


def test_a_run_is_found_and_added_by_keyboard(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = settled(open_page(f"/compare?a={runs['off']}&b={runs['on']}"))
    page.locator(".side-b summary").focus()
    page.keyboard.press("Enter")
    page.locator(".side-b").get_by_role("link", name="List runs to change or add to B").focus()
    page.keyboard.press("Enter")
    search = page.get_by_label("Name, branch, commit, #number")
    expect(page.locator("#compare-picker")).to_contain_text("same stack")
    search.focus()
    page.keyboard.type("again side-by-side")
    expect(page.locator(".offered li")).to_have_count(1)
    page.get_by_role("link", name=f"Add #{runs['again']} to B").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"b={runs['on']},{runs['again']}$"))
    expect(page.locator(".side-b")).to_contain_text("candidate, 2 runs")
    page.get_by_role("link", name=f"Remove #{runs['on']} from B").click()
    expect(page.locator(".side-b")).to_contain_text("overlap on again")


def test_a_point_leads_to_its_run(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = settled(open_page(f"/compare?a={runs['off']}&b={runs['on']}"))
    canvas = page.locator("#compare-series canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#chart-tooltip")).to_contain_text("iteration")
    number = re.search(r"[AB] #(\d+)", page.locator("#chart-tooltip").inner_text())
    assert number
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page).to_have_url(re.compile(rf"/runs/{number[1]}$"))


def test_the_iterations_zoom_by_a_drag(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = settled(open_page(f"/compare?a={runs['off']}&b={runs['on']}"))
    canvas = page.locator("#compare-series canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 120)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 130, steps=6)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"first=\d+&last=\d+"))
    settled(page).get_by_role("link", name="All iterations").click()
    expect(page).not_to_have_url(re.compile("first="))
    page.goto(f"/compare?a={runs['off']}&b={runs['on']}")
    expect(settled(page)).to_have_url(re.compile(rf"/compare\?a={runs['off']}&b={runs['on']}$"))


def test_a_row_shows_the_steps_of_its_run_wherever_it_is_pointed_at(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = open_page(f"/runs?project={PROJECT}")
    card = page.locator(".spark-card")
    for cell in ("td", ".run-name a"):
        page.locator("#run-table tbody tr", has_text=f"#{runs['on']}").locator(cell).last.hover()
        expect(card.locator("svg")).to_be_visible()
        row = page.locator("#run-table tbody tr", has_text=f"#{runs['on']}").bounding_box()
        name = page.locator("#run-table tbody tr", has_text=f"#{runs['on']}").locator(".run-name .id").bounding_box()
        shown = card.bounding_box()
        assert row is not None
        assert name is not None
        assert shown is not None
        assert shown["y"] > row["y"] - 2, "the row above stays free"
        assert shown["y"] + shown["height"] < row["y"] + row["height"] + 2, "the row below stays free"
        assert shown["x"] > name["x"] + name["width"], "the name stays free"
        page.locator("h1").hover()
        expect(card).to_be_hidden()


def test_runs_that_are_ticked_in_the_list_are_compared(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = open_page(f"/runs?project={PROJECT}")
    for name in ("on", "off"):
        page.get_by_role("checkbox", name=f"Select #{runs[name]}", exact=True).check()
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(re.compile(rf"/compare\?a={runs['off']}&b={runs['on']}$"))


def test_it_works_without_script(open_page: OpenPage, runs: dict[str, int]) -> None:
    page = open_page(f"/compare?b={runs['on']}", script=False)
    page.get_by_label("Baseline A", exact=True).fill("overlap off side-by-side")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("link", name=f"Choose #{runs['off']} for A").click()
    expect(page.locator("#result")).to_contain_text("matched A/B")
    page.get_by_role("link", name="Show the table").click()
    expect(page.get_by_role("region", name="Both sides as a table")).to_be_visible()


@pytest.fixture(params=["/compare", "/compare?a={off}&b={on}", "/compare?a={off},{on}&b={container},{short}&pick=a"])
def address(request: pytest.FixtureRequest, runs: dict[str, int]) -> str:
    return str(request.param).format(**runs)


def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(open_page: OpenPage, address: str) -> None:
    page = settled(open_page(address, width=PHONE))
    assert_looks_well(page, unfold=True)


def test_errors_are_shown_on_the_page(open_page: OpenPage, runs: dict[str, int], house: House) -> None:
    waiting = house.make_run(project=PROJECT, name="waiting", status="processing")
    page = open_page(f"/compare?a={runs['off']}&b={waiting}")
    expect(page.get_by_role("alert").first).to_contain_text(f"#{waiting} is not processed yet")
    page.goto(f"/compare?a={runs['off']}&b={runs['off']}")
    expect(page.get_by_role("alert").first).to_contain_text("a run cannot be compared with itself")
