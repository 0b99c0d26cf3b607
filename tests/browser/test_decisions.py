"""What people decide on the page of a run, and what the first page leads to."""

import re

from playwright.sync_api import expect

from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage
from tests.judged import judge, make_baseline, make_stack_run


def make_slow_run(house: House, project: str) -> int:
    with transaction(house.engine) as session:
        stack = make_baseline(session, 6, project=project)
        run = make_stack_run(session, 9, project=project, name=f"slow of {project}", slower=0.05)
        judge(session, run, stack)
    return run


def test_a_run_is_quarantined_and_released_and_the_name_is_remembered(open_page: OpenPage, house: House) -> None:
    run = make_slow_run(house, "decided")
    page = open_page(f"/runs/{run}")
    expect(page.locator(".answer")).to_contain_text("5.1\u202f% slower than the last 6 runs of this stack")
    page.get_by_text("Quarantine this run").click()
    form = page.locator("#quarantine")
    form.get_by_label("Your name").fill("Ada Lovelace")
    form.get_by_role("button", name="Quarantine").click()
    reason = page.locator("#quarantine").get_by_label("Reason")
    expect(reason).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#quarantine").get_by_label("Your name")).to_have_value("Ada Lovelace")
    reason.fill("node 17 was <b>throttled</b>")
    page.locator("#quarantine").get_by_role("button", name="Quarantine").click()
    page.wait_for_url(re.compile(rf"/runs/{run}#decisions$"))
    expect(page.locator("#run-top")).to_contain_text("Quarantined by Ada Lovelace")
    expect(page.locator("#run-top")).to_contain_text("node 17 was <b>throttled</b>")

    page.get_by_text("Release from quarantine").click()
    expect(page.locator("#release").get_by_label("Your name")).to_have_value("Ada Lovelace")
    page.locator("#release").get_by_role("button", name="Release").click()
    expect(page.locator("#run-top")).not_to_contain_text("Quarantined by")
    expect(page.locator("#decisions")).to_contain_text("Ada Lovelace released the run")


def test_a_pin_works_without_script(open_page: OpenPage, house: House) -> None:
    run = make_slow_run(house, "pinned")
    page = open_page(f"/runs/{run}", script=False)
    page.get_by_text("Pin as golden baseline").click()
    page.locator("#pin").get_by_label("Your name").fill("Ada")
    page.locator("#pin").get_by_role("button", name="Pin").click()
    expect(page.locator("#decisions")).to_contain_text("Golden baseline of this stack, pinned by Ada")
    expect(page.locator("#run-top")).to_contain_text("golden baseline")


def test_the_first_page_keeps_period_and_branch_in_its_address(open_page: OpenPage, house: House) -> None:
    make_slow_run(house, "overviewed")
    page = open_page("/")
    expect(page.locator("#verdicts").locator("xpath=../..")).to_contain_text("slow of overviewed")
    page.get_by_label("Period", exact=True).select_option("30")
    page.wait_for_url(re.compile(r"/\?days=30$"))
    expect(page.get_by_label("Period", exact=True)).to_have_value("30")
    page.get_by_role("link", name="slow of overviewed").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("slow of overviewed")
