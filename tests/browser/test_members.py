"""A service with log-ins, from its first administrator to a revoked token, all in the browser, without a script."""

from collections.abc import Callable, Iterator

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from app.main import create_app
from app.settings import Settings
from app.storage import users
from app.storage.database import transaction
from tests.browser.conftest import House
from tests.browser.looks import PHONE, assert_looks_well
from tests.in_process import served
from workers.tasks import process_run

ROOT = "a password of the first"
CHOSEN = "words that Viv has chosen"

Visit = Callable[[], Page]


@pytest.fixture
def guarded(settings: Settings) -> Iterator[str]:
    """The address of a service that has an administrator."""
    app = create_app(settings, open_to=())
    with transaction(app.state.engine) as session:
        users.create_user(session, "root", by="test", password=ROOT, administrator=True)
    with served(app) as address:
        yield address
    app.state.engine.dispose()


@pytest.fixture
def visit(chromium: Browser, guarded: str) -> Iterator[Visit]:
    """Another person's browser."""
    contexts: list[BrowserContext] = []

    def visit() -> Page:
        contexts.append(chromium.new_context(base_url=guarded, java_script_enabled=False))
        return contexts[-1].new_page()

    yield visit
    for context in contexts:
        context.close()


def log_in(page: Page, name: str, password: str, wanted: str) -> None:
    page.goto(wanted)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("main").get_by_role("button", name="Log in").click()


def test_a_project_a_member_and_a_token_from_the_first_to_the_last_day(guarded: str, visit: Visit) -> None:
    root = visit()
    log_in(root, "root", ROOT, "/settings/projects")
    root.get_by_label("Name").fill("moe")
    root.get_by_role("button", name="Create project").click()
    expect(root.get_by_role("heading", name="Members of moe")).to_be_visible()

    settings = root.get_by_role("navigation", name="Settings")
    settings.get_by_role("link", name="Users").click()
    root.get_by_label("Name").fill("viv")
    root.get_by_role("button", name="Add").click()
    first = root.get_by_role("region", name="The first password").inner_text()
    root.goto("/settings/projects/moe/members")
    root.get_by_label("Name").fill("viv")
    root.locator("#f-role").select_option("viewer")
    root.get_by_role("button", name="Add").click()
    expect(root.get_by_label("Role of viv")).to_have_value("viewer")
    root.get_by_label("Name").fill("viv")
    root.get_by_role("button", name="Add").click()
    expect(root.get_by_text("is already a member, as viewer; change the role in the list above")).to_be_visible()
    expect(root.get_by_label("Role of viv")).to_have_value("viewer")

    settings.get_by_role("link", name="Tokens").click()
    root.get_by_label("Name").fill("nightly CI")
    root.get_by_role("button", name="Create token").click()
    token = root.get_by_role("region", name="The token", exact=True).inner_text()
    job = {"Authorization": f"Bearer {token}"}
    log = b"[2026-11-21 05:00:00] iteration 1/ 10 | elapsed time per iteration (ms): 412.0 |\n"
    sent = httpx2.post(f"{guarded}/api/v1/runs", headers=job, files={"log": ("train.log", log)})
    assert sent.status_code == 202, sent.text
    process_run(sent.json()["id"])
    run = f"/runs/{sent.json()['id']}"

    viv = visit()
    log_in(viv, "viv", first, run)
    viv.get_by_label("Current password").fill(first)
    viv.get_by_label("New password", exact=True).fill(CHOSEN)
    viv.get_by_label("Repeat new password").fill(CHOSEN)
    viv.get_by_role("button", name="Change password").click()
    assert viv.goto(f"{run}?tab=record").status == 200
    expect(viv.get_by_role("link", name="Upload")).to_have_count(0)
    expect(viv.get_by_text("Contributors of this project may quarantine this run")).to_be_visible()
    expect(viv.get_by_role("button", name="Quarantine")).to_have_count(0)
    refused = viv.request.post(f"{guarded}{run}/quarantine", form={"reason": "bad node"}, headers={"Origin": guarded})
    assert (refused.status, "needs the role contributor" in refused.text()) == (403, True)
    assert viv.goto("/settings/projects/moe/tokens").status == 403
    viv.goto("/settings/projects/moe")
    expect(viv.get_by_role("navigation", name="Settings").get_by_role("link", name="Tokens")).to_have_count(0)

    root.goto("/settings/projects/moe/tokens")
    really = root.get_by_role("button", name="Revoke nightly CI", exact=True)
    expect(really).to_be_hidden()
    root.locator("summary").get_by_text("Revoke…").click()
    expect(root.get_by_text("Jobs that use nightly CI are refused immediately.")).to_be_visible()
    really.click()
    expect(root.get_by_text("revoked by root")).to_be_visible()
    assert httpx2.post(f"{guarded}/api/v1/runs", headers=job, files={"log": ("b.log", log)}).status_code == 401
    root.goto("/settings/audit?project=moe")
    text = root.get_by_role("region", name="Audit").inner_text()
    assert [text.count(word) for word in ("revoked", "role", "created")] == [1, 2, 2]


def test_the_pages_of_a_log_in_look_well_on_a_phone_to_axe_and_in_the_dark(guarded: str, chromium: Browser) -> None:
    context = chromium.new_context(base_url=guarded, reduced_motion="reduce")
    for address in ("/login", "/settings/account", "/account/password", "/settings/projects", "/settings/users"):
        page = context.new_page()
        page.set_viewport_size({"width": PHONE, "height": 844})
        page.goto(address)
        if page.url.partition("?")[0].endswith("/login") and address != "/login":
            log_in(page, "root", ROOT, "/login")
            page.goto(address)
        assert page.url.endswith(address)
        assert_looks_well(page)
        page.close()
    context.close()


def test_without_log_ins_the_pages_say_so(house: House, chromium: Browser) -> None:
    with chromium.new_context(base_url=house.address) as context:
        page = context.new_page()
        page.goto("/settings/users")
        expect(page.get_by_text("Log-ins are off")).to_be_visible()
        expect(page.get_by_role("link", name="Your profile")).to_have_count(0)
