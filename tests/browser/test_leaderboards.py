"""Leaderboards in a browser: filters, ties, badges, availability, exports, both themes, a phone, and no script."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage, count_clicks
from tests.browser.looks import PHONE, assert_looks_well
from tests.builders import make_leaderboard
from tests.cases import sized

PROJECT = "boards"
BOARD = "/leaderboards/h100/qwen3-30b-a3b"
ADDRESS = f"{BOARD}?project={PROJECT}"


@pytest.fixture(scope="module", autouse=True)
def stacks(house: House) -> dict[str, str]:
    with transaction(house.engine) as session:
        return make_leaderboard(session, PROJECT)


def drawn(page: Page) -> Page:
    expect(page.locator(":is(#gain-chart, #leader-chart)[hx-trigger]")).to_have_count(0, timeout=90_000)
    expect(page.locator("[data-chart]:not([data-ready])")).to_have_count(0, timeout=90_000)
    return page


def card(page: Page, key: str) -> Locator:
    return page.locator(f"#stack-{key[:12]}")


def test_from_the_list_to_a_leaderboard_and_its_exports(open_page: OpenPage) -> None:
    page = open_page("/")
    clicks = count_clicks(page)
    page.get_by_role("link", name="Leaderboards", exact=True).click()
    expect(page.locator(".answer")).to_contain_text("hybridep leads")
    page.get_by_role("link", name="Qwen3-30B-A3B on H100").click()
    expect(page).to_have_url(re.compile(re.escape(BOARD)))
    assert clicks() == 2
    expect(page.locator(".board-answer")).to_contain_text("hybridep clearly leads in 1")
    expect(drawn(page).locator(":is(#gain-chart, #leader-chart) canvas")).to_have_count(2)

    for heading, name in (("stacks", "standings.csv"), ("gains", "gains.csv"), ("leaders", "leaders.csv")):
        section = page.locator(f"section[aria-labelledby={heading}]")
        if not section.get_by_role("link", name="CSV").is_visible():
            section.locator("summary").first.click()
        with page.expect_download() as download:
            section.get_by_role("link", name="CSV").click()
        assert download.value.suggested_filename == name
    for heading in ("stacks", "gains", "leaders"):
        link = page.locator(f"section[aria-labelledby={heading}]").get_by_role("link", name="JSON")
        answer = page.request.get(link.get_attribute("href") or "")
        assert answer.ok, answer.text()
        assert answer.json()["items"]


def test_filters_change_the_board_and_the_address(open_page: OpenPage, stacks: dict[str, str]) -> None:
    page = open_page(ADDRESS)
    page.get_by_text("+ Filter").click()
    page.get_by_label("Precision").select_option("fp8")
    expect(page.locator(".stack-card")).to_have_count(1)
    expect(card(page, stacks["leader"])).to_have_count(1)
    expect(page).to_have_url(re.compile("precision=fp8"))
    page.get_by_text("+ Filter").click()
    page.get_by_label("Rank by").select_option("memory headroom")
    expect(card(page, stacks["leader"]).locator(".standings .dispatcher")).to_have_text(
        ["alltoall", "hybridep", "deepep"]
    )
    page.get_by_role("link", name="Remove the filter precision: fp8").click()
    expect(page.locator(".stack-card")).to_have_count(2)
    expect(page.locator("#alone-stacks [data-reading]")).to_have_count(2)
    expect(page.get_by_label("Precision")).to_have_value("")
    expect(page.get_by_label("Rank by")).to_have_value("memory_headroom")
    page.go_back()
    expect(page.locator(".stack-card")).to_have_count(1)


def test_a_board_explains_shared_places_badges_and_single_results(open_page: OpenPage, stacks: dict[str, str]) -> None:
    page = drawn(open_page(ADDRESS))  # a chart that comes later would move the page under the link
    page.locator(".ranking-cards > summary").click()
    tied = card(page, stacks["tie"])
    expect(tied.locator("td.place")).to_have_text(["1–2", "1–2", "3", "–"])
    expect(tied.locator(".tie").first).to_contain_text("is as fast as deepep, within 2")
    tied.get_by_text("How the order was determined").click()
    expect(tied.locator(".tests li")).to_have_count(3)
    expect(tied.get_by_role("img", name=re.compile(r"^339\.7.ms, 95 % interval"))).to_be_visible()

    badge = card(page, stacks["tie"]).get_by_role("link", name="training equivalent")
    assert "Equivalent to real training" in (badge.locator(".badge").get_attribute("title") or "")
    badge.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#means-training_equivalent")).to_be_in_viewport()

    page.locator("#alone-stacks > summary").click()
    line = page.locator(f"tr#stack-{stacks['only'][:12]}")
    expect(line).to_contain_text("deepep and hybridep not available in the container")
    line.get_by_role("link").first.click()
    expect(card(page, stacks["only"])).to_contain_text("This is not a ranking.")


def test_on_a_phone_availability_is_cards(open_page: OpenPage) -> None:
    page = open_page(ADDRESS, width=390)
    page.locator("#availability > summary").click()
    table = page.locator(".availability-table")
    expect(table.get_by_text("not available")).to_have_count(2)
    for badge in table.locator(".badge").all():
        box = badge.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390


def test_what_could_not_run_is_named_with_its_run(open_page: OpenPage, stacks: dict[str, str]) -> None:
    page = open_page(f"{ADDRESS}&stack={stacks['only'][:12]}")
    expect(page.locator(".board-answer")).to_contain_text("is the only measured fallback of this stack")
    rows = card(page, stacks["only"]).locator("tr.not-ranked")
    expect(rows).to_have_count(2)
    page.locator("#availability > summary").click()
    table = page.get_by_role("region", name="Dispatchers by container")
    expect(table.get_by_text("not available")).to_have_count(2)
    page.locator(".ranking-cards > summary").click()
    rows.first.get_by_role("link", name=re.compile("^run #")).click()
    expect(page).to_have_url(re.compile(r"/runs/\d+$"))


def test_it_works_without_script(open_page: OpenPage, stacks: dict[str, str]) -> None:
    page = open_page(ADDRESS, script=False)
    page.get_by_text("+ Filter").click()
    page.get_by_label("Evidence at least").select_option("smoke")
    page.get_by_role("button", name="Apply").click()
    page.locator(".ranking-cards > summary").click()
    expect(card(page, stacks["directional"])).to_contain_text("Direction only")
    expect(page.locator(".dot-plot").first).to_be_visible()
    expect(page.get_by_role("link", name="Nearest published figure").first).to_be_visible()
    page.locator("section[aria-labelledby=gains] summary").click()
    expect(page.get_by_role("region", name="Gain over alltoall as a table").locator("tbody tr")).to_have_count(4)


PAGES = (
    "/leaderboards",
    ADDRESS,
    f"{ADDRESS}&evidence=smoke&rank=memory_headroom",
    *sized((), (f"{BOARD}?routing=natural&semantic_class=benchmark_only",)),
)
OTHER_VIEWS = (f"{BOARD}/matrix", f"{BOARD}/graphs")


@pytest.mark.parametrize("address", PAGES)
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(open_page: OpenPage, address: str) -> None:
    page = drawn(open_page(address, width=PHONE))
    assert_looks_well(page, unfold=True)


@pytest.mark.parametrize("address", OTHER_VIEWS)
def test_the_matrix_and_the_ledger_look_well_on_a_phone_to_axe_and_in_the_dark(
    open_page: OpenPage, stacks: dict[str, str], address: str
) -> None:
    assert_looks_well(open_page(address, width=PHONE), unfold=True)


def test_tables_and_charts_use_a_wide_screen(open_page: OpenPage) -> None:
    for path in ("/", "/leaderboards", ADDRESS, f"{BOARD}/matrix"):
        page = open_page(path, width=1920)
        frame = page.locator("main").bounding_box()
        assert frame is not None
        assert frame["width"] == 1920
