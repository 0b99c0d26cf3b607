"""The page of a run in a browser: chart and log, decisions, corrected fields, a log that grows."""

import json
import re

import httpx2
import pytest
from playwright.sync_api import Page, expect

from app.storage.database import transaction
from tests.browser.conftest import House, OpenPage, sign
from tests.builders import FIRST_LINE, megatron_log, step_times
from tests.explained import explained
from tests.judged import judge, make_baseline, make_stack_run
from tests.shared_papers import shared_folder


@pytest.fixture(scope="module")
def house(working_house: House) -> House:
    return working_house


@pytest.fixture(scope="module")
def run(house: House) -> int:
    return house.make_run(project="charts", name="charted", iterations=300)


def drawn(page: Page) -> None:
    expect(page.locator("[data-chart][data-ready] canvas")).to_be_visible()


def test_a_point_leads_to_its_line_and_a_line_to_its_point(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}")
    drawn(page)
    box = page.locator("[data-chart] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 150)
    tip = page.locator("#chart-tooltip")
    expect(tip).to_contain_text("log line")
    expect(tip).to_contain_text(re.compile(r"counts as:?\s*(window|spike)"))
    iteration = int(re.search(r"iteration:?\s*(\d+)", tip.inner_text()).group(1))
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 150)
    line = page.locator(f"#L{FIRST_LINE + iteration}")
    expect(line).to_have_class(re.compile("chosen"))
    expect(line).to_be_in_viewport()
    expect(page).to_have_url(re.compile(rf"line={FIRST_LINE + iteration}#L"))

    line.get_by_role("link", name=f"it. {iteration}").click()
    drawn(page)
    expect(page.locator("#chart")).to_be_in_viewport()
    page.wait_for_function(
        "text => document.querySelector('#run-chart-data script')?.textContent.includes(text)",
        arg=f'"pointed": [{{"iteration": {iteration}}}]',
        timeout=90_000,
    )


def test_dragging_zooms_and_the_address_says_so(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}")
    drawn(page)
    box = page.locator("[data-chart] canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 120, steps=5)
    page.mouse.up()
    expect(page.get_by_label("From iteration")).not_to_have_value("")
    expect(page).to_have_url(re.compile(r"first=\d+&last=\d+"))
    first = page.get_by_label("From iteration").input_value()
    page.reload()
    drawn(page)
    expect(page.get_by_label("From iteration")).to_have_value(first)
    page.get_by_role("link", name="Whole run").click()
    expect(page.get_by_label("From iteration")).to_have_value("")


def test_series_scale_and_table_switch_without_a_reload(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}")
    drawn(page)
    page.evaluate("window.sameDocument = true")
    page.get_by_label("Series").select_option("lm_loss")
    expect(page).to_have_url(re.compile("series=lm_loss"))
    drawn(page)
    page.get_by_role("link", name="log", exact=True).click()
    expect(page.get_by_role("link", name="log", exact=True)).to_have_attribute("aria-current", "true")
    expect(page.locator("#run-tabs a").first).to_have_attribute("href", re.compile("series=lm_loss"))
    page.get_by_role("link", name="Iterations").click()
    expect(page.get_by_role("columnheader", name="lm loss")).to_be_visible()
    page.locator("#run-tab").get_by_role("link", name="Next").click()
    expect(page.locator("#run-tab")).to_contain_text("26–50 of 300")
    page.get_by_label("Series").select_option("step_time_ms")
    expect(page.get_by_role("columnheader", name="Step time")).to_be_visible()
    assert page.evaluate("window.sameDocument")


def test_a_table_is_there_without_script(open_page: OpenPage, run: int) -> None:
    page = open_page(f"/runs/{run}", script=False)
    page.get_by_role("link", name="Show the table").click()
    expect(page.get_by_role("region", name="Iterations as a table")).to_contain_text("warm-up")


def test_a_log_opens_at_its_first_iteration(open_page: OpenPage, house: House) -> None:
    settings = "".join(f"  setting_{k} ......... {k}\n" for k in range(300))
    files = {"log": ("train.log", f"{settings}{megatron_log(step_times(412.0, 40))}".encode())}
    answer = httpx2.post(f"{house.address}/api/v1/runs", params={"wait": "30"}, files=files, timeout=300)
    page = open_page(f"/runs/{answer.json()['id']}?tab=log")
    line = page.locator("#run-log li.read").first
    expect(line).to_contain_text("iteration")
    log, at = page.locator("#run-log .log").bounding_box(), line.bounding_box()
    assert log is not None
    assert at is not None
    assert page.locator("#run-log .log").evaluate("log => log.scrollWidth <= log.clientWidth"), "lines are wrapped"
    expect(page.get_by_role("link", name="First warning")).to_have_count(0)
    assert log["y"] < at["y"] < log["y"] + log["height"] / 3


def test_a_failure_leads_to_the_line_that_shows_it(open_page: OpenPage, house: House) -> None:
    folder = shared_folder("corpus") / "logs" / "real-full"
    log = (folder / "dsv4-p22-turbo-crash.log").read_bytes()
    answer = httpx2.post(
        f"{house.address}/api/v1/runs",
        params={"wait": "30"},
        files={"log": ("crash.log", log)},
        data={"meta": "{}"},
        timeout=300,
    )
    page = open_page(f"/runs/{answer.json()['id']}")
    card = page.locator("#failure-1")
    expect(card.get_by_text("What to do:")).to_be_visible()
    link = card.locator(".evidence a").first
    number = int(re.sub(r"\D", "", link.inner_text()))
    evidence = card.locator(".evidence code").first.inner_text()
    link.click()
    line = page.locator(f"#L{number}")
    expect(line).to_be_in_viewport()
    expect(line).to_have_class(re.compile("event chosen"))
    expect(line).to_contain_text(evidence.split()[-1])
    line.get_by_role("link", name="failure").click()
    expect(card).to_be_in_viewport()


def test_timers_are_drawn_next_to_their_table(open_page: OpenPage, house: House) -> None:
    page = open_page(f"/runs/{house.make_run(project='charts', name='timed', **explained())}?tab=iterations")
    expect(page.locator(".bars-area[data-ready] canvas")).to_be_visible()
    expect(page.get_by_role("region", name="Timers as a table")).to_contain_text("forward backward")


def make_slow_run(house: House, project: str) -> int:
    with transaction(house.engine) as session:
        stack = make_baseline(session, 6, project=project)
        run = make_stack_run(session, 9, project=project, name=f"slow of {project}", slower=0.05)
        judge(session, run, stack)
    return run


def test_a_run_is_quarantined_and_released_and_the_name_is_remembered(open_page: OpenPage, house: House) -> None:
    run = make_slow_run(house, "decided")
    page = open_page(f"/runs/{run}")
    expect(page.locator(".answer")).to_contain_text("5.1\u202f% slower")
    page.get_by_role("link", name="Record").click()
    page.get_by_text("Quarantine this run").click()
    form = page.locator("#quarantine")
    form.get_by_role("button", name="Quarantine").click()
    sign(page, "Ada Lovelace")
    reason = page.locator("#quarantine").get_by_label("Reason")
    expect(reason).to_have_attribute("aria-invalid", "true")
    reason.fill("node 17 was <b>throttled</b>")
    page.locator("#quarantine").get_by_role("button", name="Quarantine").click()
    page.wait_for_url(re.compile(rf"/runs/{run}\?tab=record#decisions$"))
    expect(page.locator("#run-top")).to_contain_text("Quarantined by Ada Lovelace")
    expect(page.locator("#run-top")).to_contain_text("node 17 was <b>throttled</b>")

    page.get_by_text("Release from quarantine").click()
    expect(page.get_by_role("button", name="Ada Lovelace")).to_be_visible()
    page.locator("#release").get_by_role("button", name="Release").click()
    expect(page.locator("#run-top")).not_to_contain_text("Quarantined by")
    expect(page.locator("#decisions")).to_contain_text("Ada Lovelace released the run")


def test_a_pin_works_without_script(open_page: OpenPage, house: House) -> None:
    run = make_slow_run(house, "pinned")
    page = open_page(f"/runs/{run}?tab=record", script=False)
    page.get_by_text("Pin as golden baseline").click()
    page.locator("#pin").get_by_label("Your name").fill("Ada")
    page.locator("#pin").get_by_role("button", name="Pin").click()
    expect(page.locator("#decisions")).to_contain_text("Golden baseline of this stack, pinned by Ada")
    expect(page.locator("#run-top")).to_contain_text("golden baseline")


def test_the_first_page_keeps_period_and_branch_in_its_address(open_page: OpenPage, house: House) -> None:
    make_slow_run(house, "overviewed")
    page = open_page("/")
    expect(page.locator("[data-chart]:not([data-ready])")).to_have_count(0)
    page.locator("#o-days").select_option("30")
    page.wait_for_url(re.compile(r"/\?days=30$"))
    expect(page.locator("#o-days")).to_have_value("30")


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
    page.get_by_role("link", name="All missing fields").click()

    page.locator("#supply").get_by_label("cluster", exact=True).fill("eos")
    page.locator("#supply").get_by_role("button", name="Save").click()
    sign(page, "Ada Lovelace")
    page.wait_for_url(re.compile(rf"/runs/{run}\?tab=config#contract$"))
    row = page.locator("#contract-cluster")
    expect(row).to_contain_text("eos", timeout=90_000)
    expect(row).to_contain_text(re.compile(r"stated by Ada Lovelace on \d{4}-\d\d-\d\d"))
    expect(page.locator("#amendments")).to_contain_text("unknown")
    expect(page.locator("#run-top")).not_to_contain_text("is being read again")


def test_a_growing_log_moves_its_figures_and_nothing_else(open_page: OpenPage, house: House) -> None:
    text = megatron_log(step_times(412.0, 120))
    cut, later = (text.index(f"iteration {n:8d}/") for n in (40, 80))
    run = upload(house, text[:cut], name="growing", complete="false")
    page = open_page(f"/runs/{run}?tab=iterations")
    expect(page.locator(".badge", has_text="receiving")).to_be_visible()
    settled(page)
    page.evaluate("window.sameDocument = true")
    canvas = page.locator("#run-chart canvas")
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    page.get_by_label("cluster", exact=True).fill("half typed")
    page.evaluate("window.scrollTo(0, 400)")
    append(house, run, text[cut:later], cut)
    page.wait_for_function(
        "text => document.querySelector('#run-chart-data script')?.textContent.includes(text)",
        arg='"iteration": 79',
        timeout=90_000,
    )
    page.wait_for_function(
        "before => document.querySelector('#run-chart canvas')?.toDataURL() !== before", arg=before, timeout=90_000
    )
    expect(canvas).to_have_count(1)
    expect(page.get_by_label("cluster", exact=True)).to_have_value("half typed")
    assert page.evaluate("window.scrollY") == 400
    page.locator("#run-tabs").get_by_role("link", name="Health").click()
    expect(page.locator("#run-tab")).to_contain_text("the last is 79")
    append(house, run, text[later:], later, complete="true")
    expect(page.locator(".badge", has_text="receiving")).to_have_count(0, timeout=90_000)
    expect(page.locator("#run-tab")).to_contain_text("all 120", timeout=90_000)
    expect(page.locator("#run-poll[hx-trigger]")).to_have_count(0)
    assert page.evaluate("window.sameDocument")


WORDS = """selector => {
  const words = (text) => (text.match(/\\S+/g) ?? []).length
  const root = document.querySelector(selector).cloneNode(true)
  const hidden = "option, script, .visually-hidden, details:not([open]) > :not(summary)"
  for (const element of root.querySelectorAll(hidden)) element.remove()
  return words(root.textContent)
}"""


def test_the_first_viewport_answers_and_every_part_has_an_address(open_page: OpenPage, house: House) -> None:
    page = open_page(f"/runs/{make_slow_run(house, 'answered')}")
    drawn(page)
    expect(page.locator("#profiled .three-walls")).to_be_visible()
    for part in ("#run-chart .chart", "#profiled", "#run-top .actions .primary", "#run-tabs"):
        box = page.locator(part).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900, part
    actions, title = page.locator(".actions").bounding_box(), page.locator("h1").bounding_box()
    assert actions is not None
    assert title is not None
    assert actions["y"] < title["y"] + title["height"], "actions stand on the line of the title"
    assert len(page.locator(".answer").inner_text().split()) <= 16
    assert page.evaluate(WORDS, "#run-top") + page.evaluate(WORDS, ".run-hero") <= 150
    assert page.evaluate(WORDS, "main") <= 400
    page.get_by_role("link", name="Config").click()
    expect(page.locator("#contract")).to_be_visible()
    page.locator("#run-tabs").get_by_role("link", name="Health").click()
    expect(page.locator("#health")).to_be_visible()
    page.go_back()
    expect(page.locator("#contract")).to_be_visible()
    page.goto(page.url.partition("?")[0] + "#decisions")
    expect(page.locator("#decisions")).to_be_in_viewport()
