"""Takes docs/screenshot.png: the run page of one of the demo's nightly runs, in a real browser. Run: make screenshot"""

import json
import shutil
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from app.demo.story import story
from tests.browser.conftest import PROGRAMS
from tests.embedded.processes import running, wait_for

TARGET = Path(__file__).with_name("screenshot.png")
RUN = "nightly 2026-09-27, sequence 2048"
SIZE = {"width": 1440, "height": 820}


def main() -> None:
    """Starts the demo on a free port, waits until the run is read, and photographs its page."""
    chromium = next(filter(None, map(shutil.which, PROGRAMS)), None)
    with (
        tempfile.TemporaryDirectory() as folder,
        running("demo", Path(folder) / "data", "--generated-only") as house,
        sync_playwright() as playwright,
    ):
        wait_for(lambda: len(_ready(house.address)) >= len(list(story())) - 3, "the demo's runs to be read")
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(f"{house.address}/runs/{_ready(house.address)[RUN]}", wait_until="networkidle")
        page.screenshot(path=TARGET)
        browser.close()


def _ready(address: str) -> dict[str, Any]:
    query = urllib.parse.urlencode({"project": "demo", "page_size": 200})
    with urllib.request.urlopen(f"{address}/api/v1/runs?{query}", timeout=30) as answer:
        return {run["name"]: run["id"] for run in json.load(answer)["items"] if run["status"] == "ready"}


if __name__ == "__main__":
    main()
