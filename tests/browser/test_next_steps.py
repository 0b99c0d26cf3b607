"""Next steps of a run in a browser: from the list to a step, its flags, phone, no script."""

import re

import pytest
from playwright.sync_api import Page, expect

from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage, count_clicks, sign
from tests.browser.looks import PHONE, assert_looks_well
from tests.suggestions.advised import PROFILED, make_advised
from tests.suggestions.test_suggestions import BAD

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
        unprofiled = make_advised(session, project="unprofiled", fields={"ep_overlap": True, "ep": 8})
        other = make_advised(session, project="three-clicks", metadata_stated=PROFILED)
    return {"run": run, "blocked": blocked, "unprofiled": unprofiled, "other": other}


def unfold(page: Page) -> None:
    page.evaluate("for (const folded of document.querySelectorAll('main details')) folded.open = true")


def test_a_suggestion_becomes_an_experiment_in_three_clicks(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['other']}")
    page.evaluate("document.cookie = 'threewalls_name=Ada; path=/'")  # asked for once a browser
    clicks = count_clicks(page)
    page.get_by_role("link", name="Next step", exact=True).click()
    page.locator("#s-eo-enable").get_by_role("link", name="Plan A/B").click()
    page.get_by_role("button", name="Plan this").click()
    expect(page).to_have_url(re.compile(r"/experiments/\d+$"))
    assert clicks() == 3


def test_a_suggestion_shows_its_effect_flags_and_command_before_it_is_planned(
    open_page: OpenPage, ids: dict[str, int]
) -> None:
    page = open_page(f"/runs/{ids['run']}")
    page.get_by_role("link", name="Next step", exact=True).click()
    expect(page.locator(".phase[aria-current=step] > a")).to_have_text("contract")
    expect(page.locator(".leading")).to_have_count(2)
    expect(page.locator("#missing")).not_to_have_attribute("open", "")
    assert page.locator("main .leading, main .steps").last.bounding_box()["y"] < 700
    overlap = page.locator("#s-eo-enable")
    expect(overlap.locator(".effect-dot.gain circle")).to_be_visible()
    overlap.get_by_role("link", name="Plan A/B").click()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy flags").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == "--overlap-moe-expert-parallel-comm"
    page.get_by_text("Complete command").first.click()
    expect(page.get_by_label("Command for Megatron-LM")).to_contain_text("--moe-token-dispatcher-type alltoall")
    plan = page.get_by_role("button", name="Plan this")
    expect(plan).to_be_in_viewport()
    plan.click()
    sign(page, "Ada")
    expect(page).to_have_url(re.compile(r"/experiments/\d+$"))


def test_the_evidence_of_a_step_unfolds_and_leads_to_its_sources(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['run']}/next/eo-enable")
    page.locator(".expected").get_by_role("link").click()
    expect(page.locator("#measured-here")).to_contain_text("20.")
    unfold(page)
    page.locator("#facts").get_by_role("link", name="expert_model_parallel_size").click()
    expect(page.locator("#contract-ep")).to_be_in_viewport()


def test_the_command_of_a_profile_is_copied_from_the_list(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['unprofiled']}/next")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator("#s-profile-required .copy-recipe")
    button.click()
    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()").startswith("nsys profile")
    expect(button).to_have_text("Copy command")


def test_missing_fields_are_filled_in_on_the_run_page(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['run']}/next", script=False)
    page.locator("#missing > summary").click()
    page.locator("#more-missing summary").click()
    page.locator("#missing").get_by_role("link", name="Add", exact=True).first.click()
    expect(page.locator("#supply")).to_be_visible()


def test_a_missing_fact_can_be_stated_and_is_shown_with_its_author(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['blocked']}/next", script=False)
    page.locator("#missing > summary").click()
    field = page.get_by_label("exposed_comm_frac", exact=True)
    field.fill("lots")
    page.get_by_label("Your name").fill("Ada")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#missing")).to_contain_text("must be a number")
    page.get_by_label("exposed_comm_frac", exact=True).fill("30 %")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#stated")).to_contain_text("Ada")
    expect(page.locator("#limit > summary")).to_have_text(re.compile(r"Limited by: communication \(measured\)"))
    page.locator("#limit > summary").click()
    expect(page.locator("#wall")).to_contain_text("stated by Ada on")


@pytest.mark.parametrize("address", ADDRESSES)
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(
    open_page: OpenPage, ids: dict[str, int], address: str
) -> None:
    page = open_page(address.format(**ids), width=PHONE)
    assert_looks_well(page, unfold=True)


UNSOURCED = """() => {
  const found = []
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement
    if (!/(?<![\\w.#-])\\d/.test(node.textContent)) continue
    if (parent.closest('a, code, pre, h1, h2, h3, summary, label, #plan, #source')) continue
    const near = parent.closest('li, tr, dd, header, .notice') || parent.closest('p, div')
    if (!near.querySelector('a[href]')) found.push(node.textContent.trim())
  }
  return found
}"""
"""Numbers of a page beside which nothing leads to where they come from; names, commands and conditions are
none, and the plan works its own out."""


def test_every_number_of_a_step_leads_to_its_source(open_page: OpenPage, ids: dict[str, int]) -> None:
    steps = ("eo-enable", "fit-expandable", "val-50-steps", "contract-fields", "scale-pp-multinode")
    for address in (f"/runs/{ids['run']}/next/{rule}" for rule in steps):
        page = open_page(address)
        page.evaluate("for (const folded of document.querySelectorAll('main details')) folded.open = true")
        unsourced = page.evaluate(UNSOURCED)
        assert not unsourced, f"{address}: {unsourced}"
        for link in page.locator("main p.answer a.fact, main #suggestions a.fact").all()[:8]:
            assert (link.get_attribute("href") or "").startswith(("/runs/", "/playbook", "/compare", "/api/"))


def test_a_chosen_launch_script_is_checked(open_page: OpenPage) -> None:
    page = open_page("/check")
    page.get_by_text("GPU, number of GPUs, version").click()
    page.get_by_label("GPU", exact=True).fill("H100")
    page.get_by_label("Choose a file").set_input_files(
        {"name": "launch.sh", "mimeType": "text/x-shellscript", "buffer": BAD.encode()}
    )
    expect(page.locator("#blockers")).to_be_visible()
    page.get_by_label("Choose a file").set_input_files(
        {"name": "train.bin", "mimeType": "application/octet-stream", "buffer": bytes(2**20)}
    )
    expect(page.get_by_role("alert")).to_contain_text("256 kB")
