"""One Chromium for the pages of a process, and a real server beside it. No page may complain in its console."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect, sync_playwright
from sqlalchemy import Engine

from app.settings import Settings
from app.storage.database import make_engine, transaction
from app.storage.log_files import LogFiles
from tests.builders import make_run
from tests.embedded.processes import Running

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    # Pages share one renderer, which compiles a script once: without it each opening of a page is a new process.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,SpareRendererForSitePerProcess,Translate,OptimizationHints",
]

PATIENCE_MS = 90_000

_EXPECTED = (
    "the server responded with a status of",  # of a page that shows an error
    "htmx:sendAbort",  # of a page left while parts of it were loading
    "htmx:afterRequest",  # repeats each failed request, which has a message of its own
)
"""How long a page may take to show what is expected: a machine that others use, too, fails no test."""

OpenPage = Callable[..., Page]


@dataclass(frozen=True)
class House:
    """The server's address, and a back door to its database: pages can show what no quick run would produce."""

    address: str
    settings: Settings
    engine: Engine
    log_files: LogFiles

    def make_run(self, **columns: object) -> int:
        with transaction(self.engine) as session:
            return make_run(session, log_files=self.log_files, **columns)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def house(server: Running) -> Iterator[House]:
    settings = Settings(data_dir=server.data)
    engine = make_engine(settings)
    yield House(server.address, settings, engine, LogFiles.from_settings(settings))
    engine.dispose()


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Until the block ends, nothing else in this thread may run an event loop of its own."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "Chromium is needed for these tests: apt-get install chromium"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


def one_context(chromium: Browser, house: House, *, script: bool) -> Iterator[BrowserContext]:
    context = chromium.new_context(base_url=house.address, reduced_motion="reduce", java_script_enabled=script)
    context.set_default_timeout(PATIENCE_MS)
    context.new_page()  # stays, and is the first page of every test: to open and close one takes a third of a second
    yield context
    context.close()


@pytest.fixture(scope="package")
def with_script(chromium: Browser, house: House) -> Iterator[BrowserContext]:
    """One person's browser for the pages of all tests: what it has loaded once (Vega is 0.9 MB) it keeps."""
    yield from one_context(chromium, house, script=True)


@pytest.fixture(scope="package")
def without_script(chromium: Browser, house: House) -> Iterator[BrowserContext]:
    yield from one_context(chromium, house, script=False)


@pytest.fixture
def open_page(with_script: BrowserContext, without_script: BrowserContext, house: House) -> Iterator[OpenPage]:
    """Opens an address of the house in a page that knows nothing of the tests before; its console must stay silent."""
    complaints: list[str] = []
    blank = {True: with_script.pages[0], False: without_script.pages[0]}

    def note(message: ConsoleMessage) -> None:
        if any(words in message.text for words in _EXPECTED):
            return
        if message.type in ("error", "warning"):
            complaints.append(f"{message.type}: {message.text}")

    def note_exception(error: Error) -> None:
        complaints.append(f"exception: {error}")

    def open_page(path: str, *, width: int = 1440, dark: bool = False, script: bool = True) -> Page:
        page = blank.pop(script, None) or (with_script if script else without_script).new_page()
        page.set_viewport_size({"width": width, "height": 900 if width > 600 else 844})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.on("console", note)
        page.on("pageerror", note_exception)
        page.goto(path)
        return page

    yield open_page
    for context, script in ((with_script, True), (without_script, False)):
        if script not in blank:
            context.pages[0].remove_listener("console", note)
            context.pages[0].remove_listener("pageerror", note_exception)
            forget(context, house.address)
    assert not complaints, "\n".join(complaints)


def sign(page: Page, name: str) -> None:
    """Answer who makes the first change of this browser."""
    dialog = page.get_by_role("dialog", name="Sign your changes")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_role("button", name="Continue").click()


def forget(context: BrowserContext, address: str) -> None:
    """Clear what a test left behind: its pages, cookies, permissions, and what pages remember (the theme, a name)."""
    first, *others = context.pages
    for page in others:
        page.close()
    first.goto("about:blank")
    first.mouse.move(0, 0)
    storage = {"origin": address, "storageTypes": "cookies,local_storage,indexeddb"}
    session = context.new_cdp_session(first)
    session.send("Storage.clearDataForOrigin", storage)
    session.detach()
    context.clear_permissions()
