"""Profiles in a browser: attach one to a run, see the walls, follow the first suggestion, compare two."""

import re
import time
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import expect

from app.storage.database import transaction
from tests.browser.conftest import PATIENCE_MS, House, OpenPage, sign
from tests.browser.looks import PHONE, assert_looks_well
from tests.browser.test_runs import DROP
from tests.domain.profiles.traces import corpus, event, trace_bytes
from tests.regressions.triaged import make_regression, make_slow_stack
from tests.suggestions.advised import make_advised

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture(scope="module")
def house(working_house: House) -> House:
    return working_house


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
    page.locator("#profiled").get_by_role("link", name="a profile").click()
    page.get_by_label("Traces of one or more ranks").set_input_files(
        corpus() / "synthetic/seed-11/moe-hybridep-abs_us.json.gz"
    )
    page.get_by_role("button", name="Attach profile").click()
    expect(page.locator("#walls")).to_be_visible(timeout=PATIENCE_MS)
    walls = page.locator("#walls").bounding_box()
    assert walls is not None
    assert walls["y"] + walls["height"] < 900, "the walls stand in the first viewport"
    if page.get_by_role("button", name="Confirm").count():
        page.get_by_role("button", name="Confirm").click()
        sign(page, "Ada")
    page.locator("[data-suggestion]").first.click()
    expect(page.locator("#facts")).to_contain_text(re.compile(r"measured by profile \d+"))


def test_a_run_without_a_profile_gets_one_and_plans_what_it_shows(open_page: OpenPage, house: House) -> None:
    with transaction(house.engine) as session:
        run = make_advised(session, fields={"gpu": "H100", "gpus": 1}, name="to profile", project="to-profile")
    page = open_page(f"/runs/{run}/next/profile-required")
    assert page.locator("[data-waits]").count() > 3
    page.goto(f"/runs/{run}")
    page.locator("form[data-drops]").wait_for(state="attached")  # the walls are loaded after the page
    page.locator("h1").evaluate(DROP, [["rank-0.json", exposed_trace().decode()]])
    expect(page.locator("#walls")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("[data-wall=communication]")).to_have_class(re.compile("is-wall"))
    page.locator("[data-wall=communication] [data-suggestion]").first.click()
    expect(page.locator("[data-rests-on]")).to_contain_text("exposed_comm_frac")
    page.locator("#plan").get_by_role("button", name="Plan this").click()
    sign(page, "mara")
    page.wait_for_url(re.compile(r"/experiments/\d+$"))


def exposed_trace() -> bytes:
    """Steps in which a third is exposed expert communication."""
    events = []
    for step in range(4):
        at, ids = 1000 * step, 10 * step
        annotation = {"cat": "user_annotation", "pid": 1, "tid": 1}
        events.append(event(name=f"ProfilerStep#{step}", ts=at, dur=1000, args={}, **annotation))
        for name, start, length, correlation in (("gemm", 10, 600, 1), ("ncclDevKernel_SendRecv(int)", 615, 380, 2)):
            args = {"correlation": ids + correlation}
            events.append(event(cat="cuda_runtime", name="cudaLaunchKernel", ts=at + 1, dur=2, pid=1, tid=1, args=args))
            more = {"Collective name": "all_to_allv"} if "nccl" in name else {}
            events.append(event(name=name, ts=at + start, dur=length, args=args | more))
    return trace_bytes(events, distributedInfo={"rank": 0, "world_size": 1})


def test_a_regression_leads_to_the_profiles_that_explain_it(open_page: OpenPage, house: House) -> None:
    with transaction(house.engine) as session:
        stack = make_slow_stack(session, project="profiled-regression")
        number = make_regression(session, stack)
    for run, side in ((stack.runs[2], "before"), (stack.since, "after")):
        profile = attach(house, run, f"synthetic/seed-12/pair-{side}.json.gz")
        settle(house, run, profile)
    page = open_page(f"/regressions/{number}", width=PHONE)
    # It may already be visible, in which case the answer has replaced it.
    page.evaluate("document.querySelector(\"[hx-get^='/compare/profiled']\")?.scrollIntoView()")
    expect(page.locator("[data-profiles]")).to_contain_text("expert dispatch and combine")
    page.locator("[data-profiles]").get_by_role("link", name="Compare the profiles").click()
    expect(page.locator("[data-row=sum]")).to_be_visible()
    assert_looks_well(page)


def settle(house: House, run: int, profile: int) -> None:
    """Wait until a profile is read, and confirm it: the traces name another GPU than generated runs."""
    address = f"{house.address}/api/v1/profiles/{profile}"
    until = time.monotonic() + PATIENCE_MS / 1000
    while httpx2.get(address, timeout=60).json()["status"] != "ready":
        assert time.monotonic() < until
        time.sleep(0.1)
    confirm = f"{house.address}/api/v1/runs/{run}/profiles/{profile}/confirm"
    assert httpx2.post(confirm, json={"author": "kim"}, timeout=60).status_code == 200


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
