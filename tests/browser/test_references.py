"""Published figures and scaling in a browser: filters, figures that teams add, the claim check, phone, no script."""

import re

import pytest
from playwright.sync_api import Page, expect

from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage, sign
from tests.browser.looks import PHONE, assert_looks_well
from tests.builders import make_stack
from tests.cases import sized
from tests.leaderboards.test_scaling import KNOWN, NOISE

PROJECT = "scaling-house"
SCALING = f"/scaling?project={PROJECT}&hardware=h100&family=qwen3-30b-a3b"
ADDRESSES = (
    "/references?model=Qwen3-30B-A3B&gpu=H100",
    "/references/new",
    "/references/{own}",
    "/references/nearest?run={run}",
    SCALING,
    "/scaling",
    *sized((), ("/references?q=nothing-like-it",)),
)


@pytest.fixture(scope="module")
def ids(house: House) -> dict[str, str]:
    """Two series of weak scaling, and a figure that a team added and corrected."""
    with transaction(house.engine) as session:
        for overlap, slower in ((False, 0.03), (True, 0.01)):
            for gpus in (16, 32, 64):
                ms = 30_000.0 * (1 + slower * gpus / 16)
                fields = KNOWN | {"gpus": gpus, "gbs": 64 * gpus, "ep_overlap": overlap}
                times = [ms * (1 + change / 1000) for change in NOISE]
                run = make_stack(session, times, project=PROJECT, fields=fields)[-1]
    return {"run": str(run)}


@pytest.fixture
def own(ids: dict[str, str], open_page: OpenPage) -> str:
    """Its number; it is added by the form, once."""
    if "own" not in ids:
        page = open_page("/references/new?model=Mixtral-8x7B&gpu=A100", script=False)
        for label, text in (
            ("TFLOP/s/GPU", "141.5"),
            ("Measured by", "Lab"),
            ("Source", "A paper <b>"),
            ("Date", "2026-09"),
            ("Number of GPUs", "64"),
            ("Your name", "Ada"),
        ):
            page.get_by_label(label, exact=True).fill(text)
        page.get_by_label("Precision", exact=True).select_option("bf16")
        page.get_by_role("button", name="Add figure").click()
        expect(page.locator("main .notice")).to_contain_text("Added. No stack of this model on this GPU")
        match = re.search(r"/references/(\d+)", page.url)
        assert match
        ids["own"] = match[1]
    return ids["own"]


def drawn(page: Page) -> Page:
    expect(page.locator("[id^=scaling-chart][hx-trigger]")).to_have_count(0, timeout=90_000)
    expect(page.locator("[data-chart]:not([data-ready])")).to_have_count(0, timeout=90_000)
    return page


def test_filters_narrow_the_list_and_stay_in_the_address(open_page: OpenPage) -> None:
    page = open_page("/references")
    for label, value in (("Model", "Qwen3-30B-A3B"), ("GPU", "H100"), ("Routing", "dropless")):
        page.get_by_text("+ Filter").click()
        page.get_by_label(label, exact=True).select_option(value)
        expect(page).to_have_url(re.compile(f"{label.lower()}={value}"))
    expect(page.locator(".reference-table tbody tr")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "references.csv"
    page.get_by_role("link", name="Qwen3-30B-A3B", exact=True).click()
    expect(page.locator(".answer")).to_contain_text("measured by NVIDIA")


def test_a_figure_is_corrected_and_withdrawn_without_script(open_page: OpenPage, own: str) -> None:
    page = open_page(f"/references/{own}", script=False)
    expect(page.locator("dd").first).to_contain_text("A paper <b>")
    page.get_by_text("Correct it", exact=True).click()
    change = page.locator("#change")
    change.get_by_label("TFLOP/s/GPU", exact=True).fill("fast")
    change.get_by_label("Your name", exact=True).fill("Grace")
    change.get_by_role("button", name="Save").click()
    expect(page.locator("#change .error")).to_have_text("must be a number above 0")
    change.get_by_label("TFLOP/s/GPU", exact=True).fill("143")
    change.get_by_role("button", name="Save").click()
    expect(page.locator(".answer")).to_contain_text("143 TFLOP/s/GPU")
    expect(page.locator("#record .list")).to_contain_text("Grace changed it")
    expect(page.get_by_role("button", name="Withdraw")).to_be_hidden()


def test_a_withdrawn_figure_keeps_its_address_and_says_why(open_page: OpenPage) -> None:
    page = open_page("/references")
    contract = {"model": "Mixtral-8x7B", "gpu": "A100", "gpus": 32, "precision": "bf16"}
    form = {"author": "Ada", "measured_by": "Lab", "source": "A table", "date": "2026-09", "tflops_per_gpu": 99.5}
    number = page.request.post("/api/v1/references", data=form | {"contract": contract}).json()["id"]
    page.goto(f"/references/{number}")
    page.get_by_text("Withdraw it…", exact=True).click()
    withdraw = page.locator(".withdraw")
    withdraw.get_by_label("Reason", exact=True).fill("of another model")
    withdraw.get_by_role("button", name="Withdraw").click()
    sign(page, "Grace")
    expect(page.get_by_text("Withdrawn by Grace")).to_contain_text("of another model")
    listed = page.request.get("/api/v1/references?kind=own").json()["items"]
    assert number not in [item["id"] for item in listed]


@pytest.mark.parametrize("width", [1440, 390])
def test_the_caption_of_a_table_is_inside_it(open_page: OpenPage, ids: dict[str, str], width: int) -> None:
    page = open_page("/references", width=width)
    dates = page.locator(".reference-table tbody td:last-child")
    edge = page.locator(".reference-table").bounding_box()
    date = dates.first.bounding_box()
    assert edge
    assert date
    assert date["x"] + date["width"] <= edge["x"] + edge["width"] + 1
    page.goto(f"/references/nearest?run={ids['run']}")
    fields = page.get_by_role("region", name="Fields that differ")
    assert fields.evaluate("table => table.scrollWidth <= table.clientWidth")


def test_the_claim_check_comes_when_the_run_page_shows_it(open_page: OpenPage, ids: dict[str, str]) -> None:
    page = open_page(f"/runs/{ids['run']}")
    page.get_by_role("link", name="Record").click()
    page.locator("#reference").scroll_into_view_if_needed()
    expect(page.locator("#reference .badge")).to_have_text("another lab's measurement")
    page.locator("#reference summary").get_by_text("Figures and fields").click()
    expect(page.locator("#reference .causes li").first).to_be_visible()
    plain = open_page(f"/runs/{ids['run']}?tab=record", script=False)
    plain.get_by_role("link", name="Compare with published figure").click()
    expect(plain.locator(".claim")).to_be_visible()


def test_scaling_draws_each_kind_and_names_its_series(open_page: OpenPage, ids: dict[str, str]) -> None:
    page = drawn(open_page(SCALING))
    expect(page.locator(".answer")).to_contain_text(re.compile("[Ww]eak.* 92.0"))
    expect(page.locator(".scaling-chart canvas").first).to_be_visible()
    expect(page.locator(".scaling-sentences li")).to_have_count(2)
    page.get_by_label("Kind").select_option("strong")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="No series")).to_be_visible()


@pytest.mark.parametrize("address", ADDRESSES)
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(
    open_page: OpenPage, ids: dict[str, str], own: str, address: str
) -> None:
    page = drawn(open_page(address.format(**ids), width=PHONE))
    assert_looks_well(page, unfold=True)
