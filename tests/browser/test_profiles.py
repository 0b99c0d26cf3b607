"""Profiles in a browser: attach one to a run, see the walls, follow the first suggestion, compare two."""

import re
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import expect

from app.storage.database import transaction
from tests.browser.conftest import PATIENCE_MS, House, OpenPage
from tests.browser.looks import PHONE, assert_looks_well
from tests.domain.profiles.traces import corpus, event, trace_bytes
from tests.suggestions.advised import make_advised

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture(scope="module")
def run(house: House) -> int:
    with transaction(house.engine) as session:
        return make_advised(session, fields={"dispatcher": None, "gpu": "H100", "gpus": 1}, name="profiled")


def attach(house: House, run: int, *names: str) -> int:
    """Attach a trace and wait until the worker of the server read it."""
    files = [("profile", (Path(name).name, (corpus() / name).read_bytes())) for name in names]
    number = httpx2.post(f"{house.address}/api/v1/runs/{run}/profiles", files=files, timeout=300).json()["id"]
    return int(number)


def test_a_person_attaches_a_profile_and_follows_its_first_suggestion(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}")
    page.locator("#profiled").get_by_role("link", name="Attach a profile").click()
    page.get_by_label("Traces of one or several ranks").set_input_files(
        corpus() / "synthetic/seed-11/moe-hybridep-abs_us.json.gz"
    )
    page.get_by_role("button", name="Attach profile").click()
    expect(page.locator("#walls")).to_be_visible(timeout=PATIENCE_MS)
    walls = page.locator("#walls").bounding_box()
    assert walls is not None
    assert walls["y"] + walls["height"] < 900, "the walls stand in the first viewport"
    if page.get_by_role("button", name="Confirm").count():
        page.get_by_label("Your name").first.fill("Ada")
        page.get_by_role("button", name="Confirm").click()
    page.locator("[data-suggestion]").first.click()
    expect(page.locator("#facts")).to_contain_text(re.compile(r"measured by profile \d+"))


@pytest.mark.parametrize("name", ["ddp-a100-ns", "ranks"])
def test_its_page_looks_well(open_page: OpenPage, house: House, run: int, name: str) -> None:
    ranks = [f"synthetic/seed-12/ranks-{rank}.json.gz" for rank in range(4)]
    number = attach(house, run, *(ranks if name == "ranks" else [f"{name}.json.gz"]))
    page = open_page(f"/runs/{run}/profiles/{number}", width=PHONE)
    expect(page.locator("#walls")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".timeline rect").nth(4)).to_be_attached()
    assert_looks_well(page)


def test_two_profiles_are_compared_from_one_of_them(open_page: OpenPage, house: House, run: int) -> None:
    attach(house, run, "synthetic/seed-12/pair-before.json.gz")
    number = attach(house, run, "synthetic/seed-12/pair-after.json.gz")
    page = open_page(f"/runs/{run}/profiles/{number}", width=PHONE)
    expect(page.locator("#walls")).to_be_visible(timeout=PATIENCE_MS)
    page.locator("#compare a").first.click()
    expect(page.locator("[data-row=sum]")).to_be_visible()
    expect(page.locator("[data-row]").first).to_have_attribute("data-row", "comm.ep")
    assert_looks_well(page)


def test_hostile_names_of_a_trace_run_nothing(open_page: OpenPage, house: House, run: int, tmp_path: Path) -> None:
    args = {"Collective name": HOSTILE, "Process Group Description": HOSTILE}
    data = trace_bytes([event(ts=10 * at, name=f"nccl{HOSTILE}" if at % 2 else HOSTILE, args=args) for at in range(9)])
    files = [("profile", (f"{HOSTILE}.json", data))]
    number = httpx2.post(f"{house.address}/api/v1/runs/{run}/profiles", files=files, timeout=300).json()["id"]
    page = open_page(f"/runs/{run}/profiles/{number}")
    expect(page.locator("#walls")).to_be_visible(timeout=PATIENCE_MS)
    expect(page).to_have_title(re.compile("Profile"))
    assert page.locator("main img, main script").count() == 0
