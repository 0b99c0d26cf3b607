"""Requirements for every page: no accessibility violation, no horizontal scrolling, themes, the keyboard."""

import re

import pytest
from playwright.sync_api import Page, expect

from app.access.routes import route_table
from app.domain.notifications.events import EVENTS
from app.domain.verdict.step_time import Prior
from app.main import create_app
from app.storage.database import transaction
from app.storage.tables import DeliveryRow, ReceiverRow
from tests.browser.conftest import House, OpenPage
from tests.browser.looks import PHONE, assert_accessible, assert_looks_well
from tests.browser.pages import ELSEWHERE, NO_PAGES, PAGES
from tests.builders import make_project
from tests.cases import sized
from tests.explained import explained
from tests.judged import judge, make_baseline, make_stack_run

ADDRESSES = (
    "/",
    "/runs?project=every",
    "/runs?q=nothing-has-this-name",
    "/upload",
    "/runs/{ready}",
    "/runs/{ready}?tab=config",
    "/runs/{ready}?tab=record",
    "/runs/{ready}?view=table&line=60",
    "/runs/{failed}?line=1",
    "/runs/{waiting}",
    "/runs/{explained}",
    "/runs/{explained}?tab=health",
    "/runs/{explained}?amend=ep",
    "/runs/{slow}",
    "/runs/{elsewhere}",
    "/runs/{quarantined}",
    "/runs/{ready}/correct",
    "/runs/{ready}/profiles",
    "/check",
    "/watching",
    "/availability",
    "/settings/projects/every",
    "/settings/projects",
    "/settings/projects/every/members",
    "/settings/projects/every/tokens",
    "/settings/projects/every/share-links",
    "/settings/projects/every/invitations",
    "/settings/projects/every/quota",
    "/settings/projects/every/storage",
    "/settings/projects/every/delete",
    "/settings/usage",
    "/settings/groups",
    "/settings/users/import",
    "/settings/users",
    "/settings/audit",
    "/settings/projects/every/notifications",
    "/settings/projects/every/notifications/{receiver}",
    "/glossary",
    "/settings/definitions",
    "/docs",
    "/docs/compare",
    "/help",
    "/help/verdicts",
    "/search?q=every",
    "/nowhere",
    *sized((), ("/runs/{undecided}", "/?days=30&branch=main", "/runs?status=no")),
)
"""Of pages that one template makes in much the same form, the suite opens one, and `make soak` all."""


@pytest.fixture(scope="module")
def ids(house: House) -> dict[str, int]:
    long = "a-name-that-is-much-longer-than-any-screen-of-a-phone-could-ever-show-in-one-line-without-help" * 2
    with transaction(house.engine) as session:
        stack = make_baseline(session, 4, project="every", log_files=house.log_files)
        receiver = ReceiverRow(
            project_id=make_project(session, "every").id or 0, kind="webhook", name=long[:100], created_by="Ada",
            target="https://ci.example/hook", rules={"events": list(EVENTS)},
        )  # fmt: skip
        session.add(receiver)
        session.flush()
        gone = DeliveryRow(receiver_id=receiver.id or 0, event="test", cause="test", state="failed", work="")
        gone.payload, gone.error, gone.attempts = {"title": long, "path": "/"}, "It answered 503.", 8
        session.add(gone)
        judged = {
            "slow": make_stack_run(session, 20, project="every", slower=0.1),
            "undecided": make_stack_run(session, 21, project="every", slower=0.015),
            "elsewhere": make_stack_run(session, 22, project="every", fields={"container": long, "gpu": "B200"}),
            "quarantined": make_stack_run(session, 23, project="every", quarantine=long, quarantined_by="Ada"),
        }
        for run in judged.values():
            for because in ("It was uploaded.", "Run 1 was pinned."):
                judge(session, run, stack, because=because, prior=Prior(0.01**2, 12, 5))
    return judged | {
        "receiver": receiver.id or 0,
        "ready": house.make_run(project="every", name=long, generated=True, branch=long),
        "failed": house.make_run(project="every", name="failed", status="failed"),
        "explained": house.make_run(project="every", name="explained", **explained()),
        "waiting": house.make_run(project="every", name="waiting", status="processing"),
    }


def settled(page: Page) -> Page:
    expect(page.locator("#run-chart[hx-trigger], #run-timers[hx-trigger]")).to_have_count(0)
    expect(page.locator("[data-chart]:not([data-ready])")).to_have_count(0)
    return page


@pytest.mark.parametrize("address", ADDRESSES)
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(
    open_page: OpenPage, ids: dict[str, int], address: str
) -> None:
    page = settled(open_page(address.format(**ids), width=PHONE))
    expect(page.get_by_text("Menu", exact=True)).to_be_visible()
    assert_looks_well(page)


def test_every_page_route_is_looked_at(house: House) -> None:
    app = create_app(house.settings, open_to=())
    routes = {route.path for route in route_table(app).routes if route.method == "GET" and route.is_page}
    app.state.engine.dispose()
    assert routes == {*PAGES, *ELSEWHERE} | NO_PAGES, "put a new page into tests/browser/pages.py"
    assert not (PAGES.keys() | ELSEWHERE.keys()) & NO_PAGES


def test_the_theme_follows_the_system_until_it_is_chosen(open_page: OpenPage) -> None:
    page = open_page("/runs", dark=True)
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(14, 17, 22)"
    switch = page.get_by_role("button", name="Theme: system")
    switch.click()
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    # Remembered, and applied before the first paint: the attribute is set while the head is parsed.
    page = open_page("/runs", dark=True)
    page.add_init_script(
        "new MutationObserver(() => { if (document.body && !window.first) window.first = "
        "document.documentElement.dataset.theme }).observe(document, { childList: true, subtree: true })"
    )
    page.goto("/upload")
    assert page.evaluate("window.first") == "light"
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()


def test_the_chart_follows_the_theme(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = settled(open_page(f"/runs/{ids['ready']}"))
    canvas = page.locator("[data-chart] canvas")
    light = canvas.evaluate("canvas => canvas.toDataURL()")
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    expect(page.locator("[data-chart][data-ready=dark]")).to_be_visible()
    assert canvas.evaluate("canvas => canvas.toDataURL()") != light


def test_a_dark_page_is_light_on_paper_without_what_only_a_screen_can_use(
    open_page: OpenPage, ids: dict[str, int]
) -> None:
    page = open_page(f"/runs/{ids['slow']}", dark=True)
    expect(page.locator("[data-chart][data-ready].drawn-dark canvas")).to_be_visible()
    darkness = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(media="print")  # as a browser that prints the drawing of the dark theme
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)" != darkness
    for useless in (".bar", ".crumbs", "#run-tabs", ".chart-controls", ".chart-tools"):
        expect(page.locator(useless).first).to_be_hidden()
    canvas = page.locator("[data-chart] canvas")
    expect(canvas).to_be_visible()
    assert canvas.evaluate("canvas => getComputedStyle(canvas).filter") == "invert(1) hue-rotate(180deg)"
    page.emulate_media(media="screen")
    expect(page.locator(".bar")).to_be_visible()


def test_the_keyboard_is_enough(open_page: OpenPage) -> None:
    page = open_page("/runs")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("/")
    search = page.get_by_role("combobox", name="Search")
    expect(search).to_be_focused()
    assert search.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"
    page.keyboard.type("pla")
    expect(page.locator("#palette").get_by_role("option", name="Playbook")).to_be_visible()
    page.keyboard.type("nner")
    expect(page.locator("#palette").get_by_role("option", name="Playbook")).to_have_count(0)
    expect(page.locator("#palette").get_by_role("option", selected=True)).to_contain_text("Planner")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/plan$"))


def test_keys_lead_everywhere_but_not_while_typing(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page("/runs?project=every")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    first = page.locator("#run-table tbody tr").first.locator("th a").first
    expect(first).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("#g")
    expect(page.get_by_role("combobox", name="Search")).to_have_value("#g")
    page.get_by_role("combobox", name="Search").fill(f"#{ids['slow']}")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"/runs/{ids['slow']}$"))
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.wait_for_url(re.compile(r"/regressions$"))


FADE = "([colour, selector]) => { document.querySelector(selector).style.color = colour }"


def test_the_reference_opens_the_call_of_its_address_and_what_a_search_finds(open_page: OpenPage) -> None:
    page = open_page("/docs/runs#read_run")
    opened = page.locator(":is(.reference-call, .reference-object)[open]:visible")
    expect(opened.locator("h2")).to_have_text(["/api/v1/runs/{run_id}"])
    expect(page.locator("#read_run")).to_be_in_viewport()
    page.goto("/docs/runs")
    expect(opened).to_have_count(0)
    page.get_by_label("Find a call or object").fill("read-as")
    expect(opened.locator("h2")).to_have_text(["/api/v1/runs/{run_id}/read-as"])
    expect(page.get_by_text("No match.")).to_be_hidden()
    page.get_by_label("Find a call or object").fill("zzzz")
    expect(page.get_by_text("No match.")).to_be_visible()


def test_axe_finds_a_contrast_that_is_too_low_in_either_theme_and_an_input_without_a_name(open_page: OpenPage) -> None:
    page = open_page("/nowhere")
    assert_accessible(page)
    for scheme, colour in (("light", "#c4c4c4"), ("dark", "#4a4a4a")):
        for selector in ("main h1", "main p", "header a"):
            page.evaluate(FADE, [colour, selector])
            with pytest.raises(AssertionError, match=rf"(?s)^in the {scheme} theme.*color-contrast"):
                assert_accessible(page)
            page.evaluate(FADE, ["", selector])
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    with pytest.raises(AssertionError, match=r"(?s)^in the light theme.*label"):
        assert_accessible(page)
