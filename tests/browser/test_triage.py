"""Triage in a browser: from the list to fixed, by keyboard only, on a phone, in bulk, and by two users concurrently."""

import re

import pytest
from playwright.sync_api import Page, expect
from sqlmodel import col

from app.storage.database import read_session, transaction
from app.storage.tables import AuditEventRow, RegressionRow, select_any
from tests.browser.conftest import House, OpenPage, count_clicks, sign
from tests.browser.looks import PHONE, assert_looks_well
from tests.cases import sized
from tests.regressions.triaged import SlowStack, make_regression, make_slow_stack


def slow_stack(house: House, project: str, **other: object) -> SlowStack:
    with transaction(house.engine) as session:
        return make_slow_stack(session, project=project, **other)


def regression(house: House, stacks: SlowStack | list[SlowStack], **columns: object) -> int:
    with transaction(house.engine) as session:
        return make_regression(session, stacks, **columns)


def settled(page: Page) -> Page:
    """The chart is requested after the page, and drawn."""
    expect(page.locator(".member-chart[hx-trigger]")).to_have_count(0)
    expect(page.locator("[data-chart]:not([data-ready])")).to_have_count(0)
    return page


def test_a_regression_is_triaged_from_the_list_to_fixed(open_page: OpenPage, house: House) -> None:
    stack = slow_stack(house, "worked-off", back=4)
    number = regression(house, stack, proposal="fixed", proposal_run_id=stack.runs[17], gpu_hours_per_day=62.0)
    page = open_page("/regressions?project=worked-off")
    row = page.get_by_role("row", name=re.compile("5.0"))
    expect(row).to_contain_text("62\u202fGPU-h/day")
    expect(row.locator("[data-proposal=fixed]")).to_be_visible()
    clicks = count_clicks(page)
    row.get_by_role("link", name=re.compile("slower")).click()

    expect(page.locator(".answer")).to_contain_text(f"recovered since #{stack.runs[17]}")
    settled(page)
    expect(page.locator(".member-chart canvas")).to_be_visible()
    page.evaluate("window.sameDocument = true")
    page.get_by_role("button", name="Take it").click()
    sign(page, "Ada Lovelace")
    toast = page.locator("#toasts")
    expect(toast).to_contain_text("Taken by Ada Lovelace.")
    assert clicks() == 3  # the last one gives the name that this browser remembers
    page.keyboard.press("u")
    expect(toast).to_have_text("Undone.")
    page.get_by_text("Assign or comment…").click()
    form = page.locator(".decision[open]")
    form.get_by_label("Assignee").fill("Grace Hopper")
    form.get_by_label("Issue link").fill("no link")
    form.get_by_label("Note", exact=True).fill("NCCL changed a default.\nAsked the vendor.")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_label("Issue link")).to_have_attribute("aria-invalid", "true")
    expect(form.get_by_label("Note", exact=True)).to_have_value("NCCL changed a default.\nAsked the vendor.")
    form.get_by_label("Issue link").fill("https://tracker.example/issues/42")
    form.get_by_role("button", name="Save").click()

    entry = page.locator(".timeline > li").last
    expect(entry).to_contain_text("Ada Lovelace changed the regression")
    expect(entry.locator("blockquote")).to_have_text("NCCL changed a default.\nAsked the vendor.")
    expect(page.locator(".measured").first).to_contain_text("Grace Hopper")

    page.keyboard.press("a")
    expect(toast).to_contain_text("Taken by Ada Lovelace.")
    expect(page.locator("#decisions :focus")).to_have_count(1)
    expect(page.locator(".timeline > li").last).to_contain_text(re.compile(r"state\s+open\s+→\s*to\s+acknowledged"))
    for key, label in (("f", "Commit"), ("x", "Why?"), ("e", "Why is it accepted?")):
        page.locator(".answer").click()  # keys do nothing in a text field
        page.keyboard.press(key)
        expect(page.get_by_label(label, exact=True)).to_be_focused()
        expect(page.locator(".decision[open]")).to_have_count(1)
    page.keyboard.type("fx")
    expect(page.get_by_label("Why is it accepted?")).to_have_value("fx")
    expect(page.locator("#proposal")).to_contain_text("The median of the last 4 runs")
    page.get_by_role("button", name="Accept as fixed").click()
    expect(page.locator(".page-head .badge", has_text="fixed")).to_be_visible()
    expect(page.locator("#proposal")).to_have_count(0)
    expect(page.locator(".timeline > li").last).to_contain_text("Ada Lovelace accepted the proposal")
    assert page.evaluate("window.sameDocument"), "a decision loaded the page again"

    page.goto("/regressions?project=worked-off")
    expect(page.locator("#regression-table")).to_contain_text("No matching regressions")
    page.get_by_role("link", name=re.compile(r"^Closed 1$")).click()
    expect(page.get_by_role("row", name=re.compile("Ada Lovelace"))).to_be_visible()
    with read_session(house.engine) as session:
        assert session.get_one(RegressionRow, number).state == "fixed"
        who = session.execute(
            select_any(AuditEventRow.who, AuditEventRow.action)
            .where(col(AuditEventRow.subject) == "regression", col(AuditEventRow.subject_id) == str(number))
            .order_by(col(AuditEventRow.id))
        ).all()
    assert [tuple(row) for row in who] == [
        ("Threewalls", "opened"), *(("Ada Lovelace", action) for action in ("changed", "undone", "changed", "changed")),
        ("Ada Lovelace", "proposal_accepted"),
    ]  # fmt: skip


def test_the_chart_zooms_by_a_drag(open_page: OpenPage, house: House) -> None:
    stack = slow_stack(house, "zoomed")
    page = open_page(f"/regressions/{regression(house, stack)}")
    canvas = page.locator("#chart [data-chart][data-ready] canvas")
    expect(canvas).to_be_visible()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 80, steps=6)
    page.mouse.up()
    back = page.get_by_role("button", name="All runs")
    expect(back).to_be_visible()
    expect(canvas).to_be_visible()
    points = "JSON.parse(document.querySelector('#chart [data-spec] script').textContent).datasets.points"
    inside = page.evaluate(f"{points}.map((point) => point.id)")
    assert tuple(inside) == stack.runs[stack.runs.index(inside[0]) : stack.runs.index(inside[-1]) + 1]
    assert 1 < len(inside) < len(stack.runs)
    back.click()
    expect(back).to_have_count(0)


def test_the_keyboard_is_enough(open_page: OpenPage, house: House) -> None:
    stack = slow_stack(house, "keys")
    regression(house, stack)
    regression(house, stack, cause="Another knob.", state="fixed")
    page = open_page("/regressions?project=keys")
    page.locator(".more-filters summary").focus()
    for name in ("To do", "To close", "Closed"):
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_contain_text(name)
    while page.locator(":focus").get_attribute("name") != "seen":
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator("[data-selected]")).to_have_text("1 of 1")
    while page.locator(":focus").get_attribute("id") != "b-state":
        page.keyboard.press("Tab")
    page.keyboard.type("ack")
    page.keyboard.press("Tab")
    page.keyboard.type("Grace")
    page.keyboard.press("Enter")
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    expect(page.locator("#toasts")).to_contain_text("1 regression changed")
    expect(page.get_by_role("row", name=re.compile("acknowledged"))).to_contain_text("Grace")


def test_several_are_selected_and_changed_together(open_page: OpenPage, house: House) -> None:
    stack = slow_stack(house, "many-at-once")
    for _ in range(3):
        regression(house, stack)
    page = open_page("/regressions?project=many-at-once")
    page.get_by_label("Select all on this page").check()
    expect(page.locator("[data-selected]")).to_have_text("3 of 3")
    page.get_by_role("checkbox", name=re.compile(r"^Select regression")).first.uncheck()
    expect(page.locator("[data-selected]")).to_have_text("2 of 3")
    bulk = page.locator("#bulk")
    bulk.get_by_label("State").select_option("expected")
    bulk.get_by_role("button", name="Change").click()
    sign(page, "Ada")
    expect(bulk.locator("#b-note-d")).to_contain_text("must explain why the regression is expected")
    expect(page.locator("[data-selected]")).to_have_text("2 of 3")
    bulk.get_by_label("Note", exact=True).fill("the price of determinism")
    bulk.get_by_role("button", name="Change").click()
    expect(page.locator("#toasts")).to_contain_text("2 regressions changed")
    expect(page.locator("#regression-table tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#regression-table tbody tr")).to_have_count(3)


def test_the_lead_of_the_overview_follows_what_is_closed_there(open_page: OpenPage, house: House) -> None:
    stack = slow_stack(house, "closed-at-once")
    for proposal in ("", "fixed", "fixed"):
        regression(house, stack, proposal=proposal)
    page = open_page("/?project=closed-at-once")
    expect(page.locator(".answer")).to_have_attribute("data-open", "3")
    page.get_by_role("button", name=re.compile(r"^Close \d+ recovered")).click()
    sign(page, "Ada")
    expect(page.locator("#toasts")).to_contain_text("2 regressions closed")
    expect(page.locator(".answer")).to_have_attribute("data-open", "1")


def test_filters_live_in_the_address(open_page: OpenPage, house: House) -> None:
    stack = slow_stack(house, "filtered")
    regression(house, stack, cause="All code between two commits.", assignee="Ada")
    regression(house, stack, cause="Another knob.", state="acknowledged")
    regression(house, stack, cause="A third knob.", state="fixed", assignee="Ada")
    page = open_page("/regressions?project=filtered")
    page.evaluate("window.sameDocument = true")
    page.get_by_label("Text", exact=True).fill("knob")
    expect(page.locator("#regression-table tbody tr")).to_have_count(1)
    page.get_by_role("link", name=re.compile(r"^Closed")).click()
    expect(page.locator("#regression-table tbody tr")).to_contain_text("A third knob")
    expect(page).to_have_url(re.compile(r"/regressions\?q=knob&project=filtered&state=closed$"))
    page.get_by_role("link", name="Remove the filter text: knob").click()
    expect(page).to_have_url(re.compile(r"/regressions\?project=filtered&state=closed$"))
    page.get_by_label("Assignee", exact=True).first.select_option("nobody")
    expect(page).to_have_url(re.compile(r"state=closed"))
    expect(page.locator("#regression-table")).to_contain_text("No matching regressions")
    assert page.evaluate("window.sameDocument"), "the list was loaded as a page, not by htmx"
    page.go_back()
    expect(page.locator("#regression-table tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Cost", exact=True).click()
    expect(page).to_have_url(re.compile(r"sort=cost"))


def test_two_concurrent_users_learn_of_each_other(open_page: OpenPage, house: House) -> None:
    number = regression(house, slow_stack(house, "two-people"))
    first, second = open_page(f"/regressions/{number}"), open_page(f"/regressions/{number}")
    decisions = (
        (first, "Grace", "Expected…", "Accept as expected"),
        (second, "Ada", "Fixed by commit…", "Mark as fixed"),
    )
    for page, name, panel, button in decisions:
        page.locator("#decisions").get_by_text(panel).click()
        page.locator(".decision[open] textarea").fill(f"{name} was here")
        page.get_by_role("button", name=button).click()
        sign(page, name)
    expect(second.locator("#decisions").get_by_role("alert")).to_contain_text("was changed by Grace")
    expect(second.locator(".decision[open] textarea")).to_have_value("Ada was here")
    expect(second.locator(".timeline")).to_contain_text("Grace was here")
    second.get_by_role("button", name="Mark as fixed").click()
    expect(second.locator(".page-head .badge", has_text="fix claimed")).to_be_visible()


def test_without_script_it_is_the_same_work(open_page: OpenPage, house: House) -> None:
    stack = slow_stack(house, "scriptless-triage")
    regression(house, stack)
    page = open_page("/regressions", script=False)
    page.get_by_label("Project").select_option("scriptless-triage")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("checkbox", name=re.compile(r"^Select regression")).check()
    page.locator("#bulk").get_by_label("Assignee").fill("Grace")
    page.locator("#bulk").get_by_label("Your name").fill("Ada")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_role("status").first).to_contain_text("1 regression changed")
    expect(page).to_have_url(re.compile(r"project=scriptless-triage"))
    page.get_by_role("link", name=re.compile("slower")).click()
    page.get_by_role("link", name="Show the table").click()
    expect(page.get_by_role("region", name="Runs of the chart")).to_contain_text("first slow run")


@pytest.fixture(scope="module")
def addresses(house: House) -> dict[str, str]:
    long = "a-name-that-is-much-longer-than-any-screen-of-a-phone-could-ever-show-in-one-line-without-help" * 2
    stacks = [slow_stack(house, "looks", back=4), slow_stack(house, "looks", stack="b", name=long, model=long)]
    proposed = {"proposal": "fixed", "proposal_run_id": stacks[0].runs[17]}
    number = regression(house, stacks, cause=long, note=long, assignee=long[:100], **proposed)
    regression(house, stacks[1], gpu_hours_per_day=None, external_url=f"https://tracker.example/{long}")
    return {
        "list": "/regressions?project=looks",
        "none": "/regressions?q=nothing-has-this",
        "one": f"/regressions/{number}",
        "other": f"/regressions/{number + 1}",
    }


@pytest.mark.parametrize("name", ["list", "one", *sized((), ("none", "other"))])
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(
    open_page: OpenPage, addresses: dict[str, str], name: str
) -> None:
    page = settled(open_page(addresses[name], width=PHONE))
    if name == "list":
        first = page.locator("#regression-table tbody tr").first
        expect(first.get_by_role("checkbox")).to_be_visible()
        expect(first.locator("td.big")).to_be_visible()
    assert_looks_well(page)
