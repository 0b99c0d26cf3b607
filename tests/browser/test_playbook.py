"""The playbook in a browser: from the list to a rule and to the run in which it fired, phone, both themes."""

import re

import pytest
from playwright.sync_api import expect

from app.pipeline.suggest import evaluate_next_runs
from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage
from tests.browser.looks import PHONE, assert_looks_well
from tests.cases import sized
from tests.suggestions.advised import PROFILED, make_advised

ADDRESSES = (
    "/playbook",
    "/playbook?q=no-rule-says-this",
    "/playbook/eo-enable",
    *sized((), ("/playbook?only=paid_off", "/playbook/scale-long-seeds")),
)


@pytest.fixture(scope="module")
def run(house: House) -> int:
    with transaction(house.engine) as session:
        run = make_advised(session, metadata_stated=PROFILED, name="overlap-off", project="playbook")
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0, purpose="experiment", project="playbook")
    while evaluate_next_runs(house.engine, house.settings):
        pass
    return run


def test_a_person_searches_a_flag_and_reads_what_became_of_the_rule(open_page: OpenPage, run: int) -> None:
    page = open_page("/playbook")
    page.get_by_role("searchbox", name="Text").fill("--overlap-moe-expert-parallel-comm")
    expect(page).to_have_url(re.compile(r"q=--overlap"))
    page.get_by_text("+ Filter").click()
    page.get_by_label("Counted in").select_option("playbook")
    expect(page).to_have_url(re.compile("project=playbook"))
    page.get_by_text("+ Filter").click()
    page.get_by_label("Only").select_option("paid off here")
    expect(page).to_have_url(re.compile("only=paid_off"))
    expect(page.locator(".rule-table tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Overlap expert communication with computation").click()
    expect(page.locator(".page-head")).to_contain_text("1 of 1 try paid off")
    expect(page.locator("#condition")).to_contain_text("our default; no published value")
    expect(page.locator(".measured-table")).to_contain_text("20.2\u202f% faster")
    page.get_by_role("link", name="1 run", exact=True).click()
    page.locator("#fired").get_by_role("link", name="overlap-off").click()
    expect(page).to_have_url(re.compile(rf"/runs/{run}/next/eo-enable$"))
    page.locator("details:has(#source) > summary").click()
    page.locator("#source").get_by_role("link", name="eo-enable in the playbook").click()
    expect(page.locator("h1")).to_have_text("Overlap expert communication with computation")


def test_the_list_pages_and_filters_without_script(open_page: OpenPage, run: int) -> None:
    page = open_page("/playbook?sort=fired", script=False)
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".pager")).to_contain_text("26–50 of")
    page.get_by_text("+ Filter").click()
    page.get_by_label("Phase").select_option("validate")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("link", name="Remove the filter phase: validate")).to_be_visible()


@pytest.mark.parametrize("address", ADDRESSES)
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(open_page: OpenPage, run: int, address: str) -> None:
    page = open_page(address, width=PHONE)
    assert_looks_well(page)
