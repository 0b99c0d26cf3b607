"""One Chromium for the pages of a process, and the application. No page may log an error in its console."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect, sync_playwright
from sqlalchemy import Engine
from starlette.types import ASGIApp, Receive, Scope, Send

from app.main import create_app
from app.settings import Settings
from app.storage.database import make_engine, transaction
from app.storage.log_files import LogFiles
from tests.builders import make_run
from tests.embedded.processes import Running
from tests.in_process import served

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first is Chromium without windows, which takes a quarter less of the processors."""

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    # Pages share one renderer, which compiles each script once. Without this, every page would open in a new process.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    # RenderDocument creates a new frame in browser and renderer for every navigation, a fifth of its cost.
    "--disable-features=IsolateOrigins,site-per-process,SpareRendererForSitePerProcess,RenderDocument,Translate,OptimizationHints",
]

PATIENCE_MS = 90_000

_EXPECTED = (
    "the server responded with a status of",  # of a page that shows an error
    "htmx:sendAbort",  # from a page that was left while parts of it were loading
    "htmx:afterRequest",  # repeats each failed request, which has its own message
)
"""How long a page may take to show what is expected: a machine that others use, too, fails no test."""

OpenPage = Callable[..., Page]


@dataclass(frozen=True)
class House:
    """The server's URL, and direct access to its database, for data that no quick run would produce."""

    address: str
    settings: Settings
    engine: Engine
    log_files: LogFiles

    def make_run(self, **columns: object) -> int:
        with transaction(self.engine) as session:
            return make_run(session, log_files=self.log_files, **columns)


class Door:
    """One URL whose service each test file replaces, so that the browser keeps its cached scripts."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="package")
def door() -> Iterator[tuple[Door, str]]:
    door = Door()
    with served(door) as address:
        yield door, address


@pytest.fixture(scope="module")
def house(module_settings: Settings, door: tuple[Door, str]) -> Iterator[House]:
    """A service without a worker, whose data no other test file changes, so that its pages are deterministic."""
    settings = module_settings.model_copy(update={"requests_per_minute": 0, "uploads_per_minute": 0})
    app = create_app(settings, open_to=())
    behind, address = door
    behind.app = app
    yield House(address, settings, app.state.engine, app.state.log_files)
    app.state.engine.dispose()


@pytest.fixture(scope="session")
def working_house(server: Running) -> Iterator[House]:
    """A service with a worker. Other test files share it, so each must create its own project."""
    settings = Settings(data_dir=server.data)
    engine = make_engine(settings)
    yield House(server.address, settings, engine, LogFiles.from_settings(settings))
    engine.dispose()


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Until the block ends, no other code in this thread may run its own event loop."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert path, "Chromium is needed for these tests: apt-get install chromium-headless-shell"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def contexts(chromium: Browser) -> Callable[[str, bool], BrowserContext]:
    """One user's browsers, with and without scripts, for all tests; they keep their cache."""

    @cache
    def context(address: str, script: bool) -> BrowserContext:
        context = chromium.new_context(base_url=address, reduced_motion="reduce", java_script_enabled=script)
        context.set_default_timeout(PATIENCE_MS)
        context.new_page()  # the first page of every test, because opening and closing one takes a third of a second
        return context

    return context


@pytest.fixture(scope="module", autouse=True)
def _nothing_goes_on(chromium: Browser) -> Iterator[None]:
    """Leave the last pages of a file, because they would send requests to the service of the next file."""
    yield
    for context in chromium.contexts:
        for page in context.pages:
            page.goto("about:blank")


@pytest.fixture
def open_page(contexts: Callable[[str, bool], BrowserContext], house: House) -> Iterator[OpenPage]:
    """Open a URL of the service in a page without state of earlier tests; its console must stay silent."""
    complaints: list[str] = []
    used: dict[bool, BrowserContext] = {}

    def note(message: ConsoleMessage) -> None:
        if any(words in message.text for words in _EXPECTED):
            return
        if message.type in ("error", "warning"):
            complaints.append(f"{message.type}: {message.text}")

    def note_exception(error: Error) -> None:
        complaints.append(f"exception: {error}")

    def open_page(path: str, *, width: int = 1440, dark: bool = False, script: bool = True) -> Page:
        if script in used:
            page = used[script].new_page()
        else:
            used[script] = contexts(house.address, script)
            page = used[script].pages[0]
        page.set_viewport_size({"width": width, "height": 900 if width > 600 else 844})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.on("console", note)
        page.on("pageerror", note_exception)
        page.goto(path)
        return page

    yield open_page
    for context in used.values():
        context.pages[0].remove_listener("console", note)
        context.pages[0].remove_listener("pageerror", note_exception)
        forget(context)
    assert not complaints, "\n".join(complaints)


def sign(page: Page, name: str) -> None:
    """Enter a name for the first change of this browser."""
    dialog = page.get_by_role("dialog", name="Sign your changes")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_role("button", name="Continue").click()


COUNT_CLICKS = """window.countsClicks || addEventListener("click", ({ isTrusted, detail }) => {
  if (isTrusted && detail) sessionStorage.clicks = 1 + Number(sessionStorage.clicks ?? 0)
}, true)
window.countsClicks = true"""


def count_clicks(page: Page) -> Callable[[], int]:
    """Count from now on what is clicked with the mouse, on all pages that follow."""
    page.add_init_script(COUNT_CLICKS)
    page.evaluate(COUNT_CLICKS)
    return lambda: int(page.evaluate("sessionStorage.clicks ?? 0"))


def forget(context: BrowserContext) -> None:
    """Clear the state of a test: its pages, cookies, permissions, and stored settings (the theme, a name).

    The first page stays until the next test opens another URL, because an empty page in between takes longer.
    """
    first, *others = context.pages
    for page in others:
        page.close()
    if first.url.startswith("http"):
        first.evaluate("localStorage.clear(); sessionStorage.clear()")
    first.mouse.move(0, 0)
    context.clear_cookies()
    context.clear_permissions()
