"""Next steps of a run in a browser: from the list to a step, its flags, phone, no script."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage
from tests.recommendations.advised import PROFILED, make_advised

ADDRESSES = (
    "/runs/{run}/next",
    "/runs/{run}/next/eo-enable",
    "/runs/{blocked}/next",
    "/runs/{run}/next/fit-expandable",
)


@pytest.fixture(scope="module")
def ids(house: House) -> dict[str, int]:
    with transaction(house.engine) as session:
        run = make_advised(session, metadata_stated=PROFILED, name="overlap-off")
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0, purpose="experiment")
        blocked = make_advised(session, fields={"ep": 3}, name="a-long-name-" * 20)
    return {"run": run, "blocked": blocked}


def test_a_person_clicks_through_to_a_step_and_its_flags(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['run']}")
    page.get_by_role("link", name="Next step", exact=True).click()
    expect(page.locator(".phase[aria-current=step] strong")).to_have_text("contract")
    expect(page.locator("#wall h2")).to_have_text("The evidence points at: communication")
    page.get_by_role("link", name="Overlap expert communication with computation").first.click()
    expect(page.locator("#measured-here")).to_contain_text("+25.2 % throughput")
    expect(page.get_by_label("Flags for Megatron-LM")).to_have_text("--overlap-moe-expert-parallel-comm")
    page.get_by_text("The whole command").first.click()
    expect(page.get_by_label("Command for Megatron-LM")).to_contain_text("--moe-token-dispatcher-type alltoall")
    page.locator("#facts").get_by_role("link", name="expert_model_parallel_size").click()
    expect(page.locator("#contract-ep")).to_be_in_viewport()


def test_what_is_missing_is_filled_in_on_the_page_of_the_run(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['run']}/next", script=False)
    page.locator("#missing").get_by_role("link", name="Fill it in").first.click()
    expect(page.locator("#supply")).to_be_visible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_axe_finds_nothing(open_page: OpenPage, ids: dict[str, int], address: str, dark: bool) -> None:
    page = open_page(address.format(**ids), dark=dark)
    page.evaluate("for (const folded of document.querySelectorAll('main details')) folded.open = true")
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_phone_scrolls_in_one_direction_only(open_page: OpenPage, ids: dict[str, int], address: str) -> None:
    page = open_page(address.format(**ids), width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
