"""A history in the browser: zoom and share the link, without a mouse, without script; its golden run."""

import re
import struct
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlmodel import Session

from app.storage.database import transaction
from app.storage.tables import RunRow, utc_now
from tests.browser.conftest import House, OpenPage, count_clicks, sign
from tests.browser.looks import PHONE, assert_looks_well
from tests.builders import FIRST_PLACE, make_stack
from tests.cases import sized
from tests.history.test_history import series
from tests.leaderboards.test_scaling import weak

PROJECT = "histories"


@pytest.fixture(scope="module")
def runs(house: House) -> list[int]:
    """40 runs that became slower at the 25th, with experiments of another configuration among them."""
    with transaction(house.engine) as session:
        stack = make_stack(session, series((24, 400.0), (16, 424.0)), project=PROJECT)
        knob = {"dispatcher": "hybridep", "dispatcher_type": "flex"}
        later = FIRST_PLACE + timedelta(days=30, hours=2)
        make_stack(session, series((5, 350.0)), project=PROJECT, fields=knob, purpose="experiment", started=later)
    return stack


@pytest.fixture(scope="module")
def address(house: House, runs: list[int]) -> str:
    with transaction(house.engine) as session:
        return f"/history/{session.get_one(RunRow, runs[0]).stack_key}"


def drawn(page: Page) -> None:
    expect(page.locator("[data-chart][data-ready] canvas")).to_be_visible()


def unfold(page: Page, part: str) -> None:
    page.locator("details", has=page.locator(f"#{part}")).locator("summary").first.click()


def drag(page: Page, start: float, end: float) -> None:
    """Over the chart, in shares of its width."""
    box = page.locator("[data-chart] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * start, box["y"] + 120)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + 140, steps=6)
    page.mouse.up()


def test_a_zoom_is_a_link_that_shows_another_person_the_same(
    open_page: OpenPage, runs: list[int], address: str
) -> None:
    page = open_page(address)
    drawn(page)
    page.evaluate("window.sameDocument = true")
    clicks = count_clicks(page)
    drag(page, 0.4, 0.7)
    expect(page).to_have_url(re.compile(r"\?first=\d+&last=\d+$"))
    first, last = (page.get_by_label(label, exact=True).input_value() for label in ("From run", "to run"))
    inside = runs[runs.index(int(first)) : runs.index(int(last)) + 1]
    assert 5 < len(inside) < 25
    expect(page.locator("#history-runs tbody tr").last).to_contain_text(f"#{first}")
    assert page.evaluate("window.sameDocument")
    assert clicks() <= 1  # the browser reports the drag as one

    other = open_page(page.url.removeprefix(page.evaluate("location.origin")), dark=True)
    drawn(other)
    expect(other.get_by_label("From run", exact=True)).to_have_value(first)
    expect(other.get_by_label("to run", exact=True)).to_have_value(last)
    data = "JSON.parse(document.querySelector('#history-chart-data script').textContent).datasets"
    points = f"[...{data}.points, ...({data}.lane ?? []), ...({data}.low_lane ?? [])]"
    assert other.evaluate(f"{points}.map((point) => point.id)") == page.evaluate(f"{points}.map((point) => point.id)")
    other.get_by_role("link", name="Whole history").click()
    expect(other.get_by_label("From run", exact=True)).to_have_value("")
    drawn(other)
    assert other.evaluate(f"{points}.length") == 45


def test_the_trend_of_the_overview_zooms_by_a_drag(open_page: OpenPage, runs: list[int]) -> None:
    page = open_page(f"/?project={PROJECT}")
    drawn(page)
    points = "JSON.parse(document.querySelector('#trend [data-spec] script').textContent).datasets.points"
    whole = page.evaluate(f"{points}.length")
    drag(page, 0.3, 0.6)
    back = page.get_by_role("button", name="Whole period")
    expect(back).to_be_visible()
    drawn(page)
    inside = page.evaluate(f"{points}.map((point) => point.id)")
    assert inside == runs[runs.index(inside[0]) : runs.index(inside[-1]) + 1]
    assert 1 < len(inside) < whole
    back.click()
    expect(back).to_have_count(0)
    drawn(page)
    assert page.evaluate(f"{points}.length") == whole


def test_efficiency_zooms_to_some_sizes_by_a_drag(open_page: OpenPage, house: House) -> None:
    with Session(house.engine) as session:
        weak(session, 1.0, 0.98, 0.9, 0.8)
    page = open_page("/scaling?kind=weak")
    drawn(page)
    sizes = "JSON.parse(document.querySelector('.scaling-chart [data-spec] script').textContent).datasets.points"
    whole = page.evaluate(f"{sizes}.map((point) => point.at)")
    drag(page, 0.3, 0.8)
    back = page.get_by_role("button", name="All sizes")
    expect(back).to_be_visible()
    drawn(page)
    assert page.evaluate(f"{sizes}.map((point) => point.at)") == whole[1:3]
    back.click()
    expect(back).to_have_count(0)
    drawn(page)
    assert page.evaluate(f"{sizes}.map((point) => point.at)") == whole


def test_a_point_shows_its_run_and_links_only_to_it(open_page: OpenPage, address: str) -> None:
    page = open_page(address)
    drawn(page)
    own = """async (hrefs) => {
      const { ownAddress } = await import(document.querySelector('script[src*="charts"]').src);
      return hrefs.filter((href) => ownAddress(href) !== null);
    }"""
    elsewhere = ["//evil.example/runs/1", "/\\evil.example", "/\t/evil.example", "https://evil.example", "javascript:1"]
    assert page.evaluate(own, ["/runs/1", *elsewhere, "/history/a?b=//c"]) == ["/runs/1", "/history/a?b=//c"]

    box = page.locator("[data-chart] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 180)
    tip = page.locator("#chart-tooltip")
    for label in ("run", "commit", "95 % interval", "iterations", "verdict", "in levels"):
        expect(tip).to_contain_text(label)
    number = re.search(r"#(\d+)", tip.inner_text())
    assert number is not None
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + 180)
    expect(page).to_have_url(re.compile(rf"/runs/{number[1]}$"))


def test_the_keyboard_zooms_too(open_page: OpenPage, runs: list[int], address: str) -> None:
    page = open_page(address)
    drawn(page)
    page.get_by_label("From run", exact=True).focus()
    page.keyboard.type(str(runs[10]))
    page.keyboard.press("Tab")
    page.keyboard.type(str(runs[20]))
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"\?first={runs[10]}&last={runs[20]}$"))
    expect(page.locator("#history-runs tbody tr")).to_have_count(11)
    drawn(page)
    page.get_by_label("Metric").select_option("peak_memory_gib")
    expect(page).to_have_url(re.compile("metric=peak_memory_gib"))
    expect(page.locator("#history-chart")).to_contain_text("segments exist for step time only")
    page.go_back()
    expect(page.get_by_label("Metric")).to_have_value("step_time_ms")


def test_without_script_there_is_the_table(open_page: OpenPage, runs: list[int], address: str) -> None:
    page = open_page(address, script=False)
    unfold(page, "runs")
    expect(page.get_by_role("region", name="Runs, newest first").locator("tbody tr")).to_have_count(25)
    expect(page.get_by_role("region", name="Changes").get_by_role("row", name="in configuration A")).to_contain_text(
        "slower"
    )
    page.get_by_label("From run", exact=True).fill(str(runs[-3]))
    page.get_by_role("button", name="Zoom").click()
    expect(page.get_by_role("region", name="Runs, newest first").locator("tbody tr")).to_have_count(3)
    page.get_by_role("link", name="Whole history").click()
    unfold(page, "runs")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("#history-runs")).to_contain_text("26–45 of 45")


def test_a_golden_run_is_pinned_with_its_drift(open_page: OpenPage, runs: list[int], address: str) -> None:
    page = open_page(address)
    unfold(page, "golden")
    for run in (runs[3], runs[-1]):
        form = page.locator("form").filter(has=page.get_by_role("heading", name="Pin a golden run"))
        form.get_by_label("Run number").fill(str(run))
        form.get_by_role("button", name="Pin").click()
        if run == runs[3]:
            sign(page, "Ada")
        expect(page.locator("#golden")).to_contain_text(f"Unpin #{run}")
    expect(page.locator("#golden tbody tr").first).to_contain_text(re.compile(r"slower\s+than #\d+"))
    drawn(page)
    page.get_by_role("button", name="Unpin").click()  # the browser remembers the user's name
    expect(page.locator("#golden")).not_to_contain_text("in force")
    page.get_by_label("Run number").fill("no number")
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_label("Run number")).to_be_focused()
    expect(page.locator("#golden")).to_contain_text("must be the number of a run")


def test_the_list_leads_to_the_history(open_page: OpenPage, runs: list[int], address: str) -> None:
    page = open_page("/history")
    page.get_by_text("+ Filter").click()
    page.get_by_label("Project").select_option(PROJECT)
    expect(page).to_have_url(re.compile(f"project={PROJECT}"))
    page.get_by_text("+ Filter").click()
    page.get_by_role("region", name="Workloads").get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(f"{address}$"))
    drawn(page)


@pytest.mark.parametrize("path", ["/history", "{address}", *sized((), ("/history?q=nothing", "/history/abcdef0123"))])
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(open_page: OpenPage, address: str, path: str) -> None:
    page = open_page(path.format(address=address), width=PHONE)
    expect(page.locator("#history-chart[hx-trigger], [data-chart]:not([data-ready])")).to_have_count(0)
    assert_looks_well(page)


COPIED = """async () => {
  const [item] = await navigator.clipboard.read()
  return [...new Uint8Array(await (await item.getType("image/png")).arrayBuffer())]
}"""


def test_a_chart_has_a_keyboard_path_and_is_saved_as_a_picture(
    open_page: OpenPage, runs: list[int], address: str, tmp_path: Path
) -> None:
    page = open_page(address)
    drawn(page)
    chart = page.locator("[data-chart][data-ready]")
    for kind in ("PNG", "SVG"):
        chart.hover()
        with page.expect_download() as download:
            chart.get_by_role("button", name=kind).click()
        download.value.save_as(tmp_path / kind)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chart.hover()
    chart.get_by_role("button", name="Copy picture").click()
    expect(page.locator("#announce")).to_have_text("Picture copied")
    for png in ((tmp_path / "PNG").read_bytes(), bytes(page.evaluate(COPIED))):
        assert struct.unpack(">II", png[16:24]) == (1600, 900)
    slide = (tmp_path / "SVG").read_text()
    title = " ".join(page.locator("main h1").inner_text().split())
    for text in (address, title, f"{utc_now():%Y-%m-%d}"):
        assert text in slide
    drawing = re.search(r'<svg[^>]* x="64"[^>]* viewBox="0 0 ([\d.]+) ([\d.]+)"', slide)
    assert drawing
    assert float(drawing[1]) / float(drawing[2]) == pytest.approx((1600 - 2 * 64) / (900 - 220), rel=0.05)
    chart.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#announce")).to_contain_text(f"#{runs[-2]} ")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/runs/{runs[-2]}$"))
