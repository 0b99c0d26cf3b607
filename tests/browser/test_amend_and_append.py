"""What changes after the upload: fields that a person states, and a log that still grows."""

import json
import re

import httpx2
from playwright.sync_api import Page, expect

from tests.browser.conftest import House, OpenPage
from tests.builders import megatron_log, step_times


def upload(house: House, text: str, **query: str) -> int:
    meta = json.dumps({"project": "changing", "name": query.pop("name")})
    files = {"log": ("train.log", text.encode())}
    answer = httpx2.post(
        f"{house.address}/api/v1/runs", params=query | {"wait": "30"}, files=files, data={"meta": meta}, timeout=300
    )
    assert answer.status_code == 202, answer.text
    return int(answer.json()["id"])


def append(house: House, run: int, text: str, offset: int, **query: str) -> None:
    answer = httpx2.post(
        f"{house.address}/api/v1/runs/{run}/logs",
        params=query | {"offset": str(offset)},
        content=text.encode(),
        timeout=300,
    )
    assert answer.status_code == 200, answer.text


def settled(page: Page) -> None:
    expect(page.locator("[data-chart][data-ready] canvas").first).to_be_visible()


def test_an_unknown_field_is_filled_in_and_says_who_stated_it(open_page: OpenPage, house: House) -> None:
    run = upload(house, megatron_log(step_times(412.0, 40)), name="amended")
    page = open_page(f"/runs/{run}")
    page.locator(".still-unknown a[href='#supply']").click()

    page.get_by_label("cluster", exact=True).fill("eos")
    page.get_by_role("button", name="Save").click()
    author = page.locator("#f-author")
    expect(author).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("cluster", exact=True)).to_have_value("eos")
    author.fill("Ada Lovelace")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(re.compile(rf"/runs/{run}#contract$"))
    row = page.locator("#contract-cluster")
    expect(row).to_contain_text("eos", timeout=90_000)
    expect(row).to_contain_text(re.compile(r"stated by Ada Lovelace on \d{4}-\d\d-\d\d"))
    expect(page.locator("#amendments")).to_contain_text("unknown")
    expect(page.locator("#run-top")).not_to_contain_text("is being read again")


def test_a_growing_log_moves_its_figures_and_nothing_else(open_page: OpenPage, house: House) -> None:
    text = megatron_log(step_times(412.0, 120))
    cut, later = (text.index(f"iteration {n:8d}/") for n in (40, 80))
    run = upload(house, text[:cut], name="growing", complete="false")
    page = open_page(f"/runs/{run}")
    expect(page.locator(".badge", has_text="receiving")).to_be_visible()
    settled(page)
    page.evaluate("window.sameDocument = true")
    canvas = page.locator("#run-chart canvas")
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    page.get_by_label("cluster", exact=True).fill("half typed")
    page.evaluate("window.scrollTo(0, 400)")
    append(house, run, text[cut:later], cut)
    expect(page.locator("#run-middle")).to_contain_text("the last is 79", timeout=90_000)
    assert '"iteration": 79' in (page.locator("#run-chart-data script").text_content() or "")
    page.wait_for_function(
        "before => document.querySelector('#run-chart canvas')?.toDataURL() !== before", arg=before, timeout=90_000
    )
    expect(canvas).to_have_count(1)
    expect(page.get_by_label("cluster", exact=True)).to_have_value("half typed")
    assert page.evaluate("window.scrollY") == 400
    append(house, run, text[later:], later, complete="true")
    expect(page.locator(".badge", has_text="receiving")).to_have_count(0, timeout=90_000)
    expect(page.locator("#run-middle")).to_contain_text("the last is 120 of 120", timeout=90_000)
    expect(page.locator("#run-poll[hx-trigger]")).to_have_count(0)
    assert page.evaluate("window.sameDocument")
