"""The list of runs in a browser, and the upload of a log."""

import re
from datetime import timedelta

import pytest
from playwright.sync_api import Locator, Page, expect

from app.queue import PROCESS_RUN, QUEUE, make_celery
from app.storage.database import transaction
from app.storage.tables import RunRow, utc_now
from tests.browser.conftest import House, OpenPage, count_clicks
from tests.builders import megatron_log, step_times


@pytest.fixture(scope="module")
def house(working_house: House) -> House:
    return working_house


def names(page: Page) -> Locator:
    return page.locator("#run-table .run-name a")


def test_filters_paging_and_the_back_button(open_page: OpenPage, house: House) -> None:
    for number in range(60):
        house.make_run(
            project="many", name=f"run-{number:02d}", status="received", dispatcher=["deepep", None][number % 2]
        )
    page = open_page("/runs?project=many")
    page.evaluate("window.sameDocument = true")
    expect(page.locator("#run-table")).to_contain_text("60 runs match")

    page.get_by_role("link", name="Next").click()
    expect(page).to_have_url(re.compile(r"/runs\?project=many&after=\d+&page=2$"))
    expect(names(page)).to_have_count(20)

    page.locator("#run-table").get_by_label("Select #").first.check()
    page.get_by_text("+ Filter").click()
    page.get_by_label("Dispatcher", exact=True).select_option("deepep")
    expect(page).to_have_url(re.compile(r"/runs\?project=many&dispatcher=deepep$"))
    expect(page.locator("#run-table")).to_contain_text("30 runs match")
    page.locator("#run-table").get_by_label("Select #").nth(2).check()
    bar = page.locator("#selection")
    expect(bar).to_contain_text("2 selected")

    page.get_by_label("Text", exact=True).fill("run-0")
    expect(page.locator("#run-table")).to_contain_text("5 runs match")
    expect(page.locator("#announce")).to_have_text("5 runs")
    expect(bar).to_contain_text("2 selected")
    bar.get_by_role("button", name="Clear").click()
    expect(bar).to_be_hidden()

    page.get_by_role("link", name="Run", exact=True).click()
    expect(page).to_have_url(re.compile(r"sort=name"))
    expect(names(page)).to_have_text(["run-00", "run-02", "run-04", "run-06", "run-08"])
    assert page.evaluate("window.sameDocument"), "the list was loaded as a page, not by htmx"

    page.get_by_role("link", name="Remove the filter dispatcher: deepep").click()
    expect(page.locator("#run-table")).to_contain_text("10 runs match")
    expect(page.get_by_label("Dispatcher", exact=True)).to_have_value("")

    page.go_back()
    expect(page.locator("#run-table")).to_contain_text("5 runs match")
    expect(page.get_by_label("Dispatcher", exact=True)).to_have_value("deepep")
    page.get_by_role("link", name="run-04").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("run-04")
    page.go_back()
    expect(page.get_by_label("Text", exact=True)).to_have_value("run-0")
    expect(page.locator(".bar")).to_have_count(1)


def test_filters_work_without_script(open_page: OpenPage, house: House) -> None:
    house.make_run(project="scriptless", name="only", status="received")
    page = open_page("/runs", script=False)
    page.get_by_text("+ Filter").click()
    page.get_by_label("Project").select_option("scriptless")
    page.get_by_role("button", name="Apply").click()
    expect(names(page)).to_have_text(["only"])
    page.get_by_label("Select #").check()
    bar = page.locator("#selection noscript")  # locators by text do not look into it
    bar.locator("summary").click()
    bar.locator("input[name=author]").fill("Ada")
    bar.locator("button[value=quarantine]").click()
    expect(bar.locator(".error").first).to_be_visible()  # a reason is missing
    expect(page.get_by_label("Select #")).to_be_checked()
    bar.locator("input[name=tag]").fill("checked")
    bar.locator("button[value=tag]").click()
    expect(names(page)).to_have_text(["only"])
    page.goto("/runs?q=tag:checked")
    expect(names(page)).to_have_text(["only"])


DROP = """(zone, files) => {
  const data = new DataTransfer();
  for (const [name, text] of files) data.items.add(new File([text], name));
  for (const type of ["dragenter", "dragover", "drop"]) {
    zone.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
  }
}"""


def test_a_dropped_log_becomes_a_run_page_in_two_clicks_and_one_drag(open_page: OpenPage) -> None:
    page = open_page("/")
    clicks = count_clicks(page)
    page.get_by_role("link", name="Upload", exact=True).first.click()
    page.wait_for_url("**/upload")
    log = megatron_log(step_times(412.0, 60))
    page.locator("h1").evaluate(DROP, [["dropped.log", log], ["second.log", log]])  # outside the zone
    files = page.get_by_label("Chosen files")
    expect(files.locator("li")).to_have_count(2)
    files.get_by_role("button", name="Remove second.log").press("Enter")  # chosen by mistake
    expect(files.locator("li")).to_have_count(1)
    expect(page.locator("[data-recognised]")).to_contain_text("60 iterations")
    send = page.get_by_role("button", name="Upload 1 file")
    expect(send).to_be_in_viewport()
    expect(page.get_by_label("Cluster")).to_be_visible()  # no log shows it
    page.get_by_label("Project").fill("by-hand")
    send.click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    assert clicks() == 2
    expect(page.get_by_role("heading", level=1)).to_contain_text("dropped")
    expect(page.locator("main")).to_contain_text(re.compile(r"4\d\d\.\d\s*ms"))
    page.goto("/upload")
    expect(page.get_by_label("Project")).to_have_value("by-hand")


def test_a_file_that_is_not_a_log_is_not_proposed_for_upload(open_page: OpenPage) -> None:
    page = open_page("/upload")
    page.locator("h1").evaluate(DROP, [["list.txt", "milk\neggs\n" * 9]])
    expect(page.locator("[data-recognised]")).to_contain_text("No step times found.")
    send = page.get_by_role("button", name="Upload without figures")
    expect(send).not_to_have_class(re.compile("primary"))
    page.locator("h1").evaluate(DROP, [["dropped.log", megatron_log(step_times(412.0, 60))]])
    expect(page.get_by_role("button", name="Upload 2 files")).to_have_class(re.compile("primary"))


def test_the_file_name_proposes_what_the_log_does_not_show(open_page: OpenPage) -> None:
    page = open_page("/upload")
    times = "".join(f" iteration {at}/50 | elapsed time per iteration (ms): 400.0 |\n" for at in range(1, 40))
    files = page.get_by_label("Drop files here")
    files.set_input_files({"name": "dsv3-gb200x64.log", "mimeType": "text/plain", "buffer": times.encode()})
    model = page.get_by_label("Model", exact=True)
    expect(model).to_have_value("DeepSeek-V3")
    expect(page.get_by_label("GPUs", exact=True)).to_have_value("64")
    marks = page.get_by_text("From the file name")
    expect(marks).to_have_count(3)
    model.fill("My model")
    expect(marks).to_have_count(2)
    files.set_input_files({"name": "plain.log", "mimeType": "text/plain", "buffer": times.encode()})
    expect(page.get_by_label("GPUs", exact=True)).to_have_value("")
    expect(model).to_have_value("My model")
    files.set_input_files({"name": "broken.log.gz", "mimeType": "text/plain", "buffer": bytes(range(256)) * 9})
    expect(page.locator("[data-recognised]")).to_contain_text("is binary data")
    expect(page.get_by_role("button", name="Upload 1 file")).to_be_disabled()


def test_the_run_page_goes_live_from_received_to_ready(open_page: OpenPage, house: House) -> None:
    # Leased to a nonexistent worker, so that none takes it before the page was checked.
    lease_until = utc_now() + timedelta(hours=1)
    stated = {"name": "live"}
    run = house.make_run(
        name="live", status="received", work="waiting", lease_until=lease_until, metadata_stated=stated
    )
    page = open_page(f"/runs/{run}")
    expect(page.locator("#run-body")).to_contain_text("waits for a worker")
    page.evaluate("window.sameDocument = true")
    with transaction(house.engine) as session:
        row = session.get(RunRow, run)
        assert row is not None
        row.lease_until = None
    make_celery(house.settings).send_task(PROCESS_RUN, args=(run,), queue=QUEUE)
    expect(page.locator("[data-chart][data-ready]")).to_be_visible(timeout=90_000)
    expect(page.locator("#announce")).to_have_text("The run is ready.")
    assert page.evaluate("window.sameDocument")
    expect(page.locator("#run-poll[hx-trigger]")).to_have_count(0)


def test_an_error_is_shown_at_its_field_and_the_file_stays_chosen(open_page: OpenPage, house: House) -> None:
    page = open_page("/upload")
    page.get_by_label("Drop files here").set_input_files(
        {"name": "kept.log", "mimeType": "text/plain", "buffer": b"a line\n"}
    )
    page.get_by_text("Model, GPU, container").click()  # folded, because nothing was read
    page.get_by_label("GPUs", exact=True).fill("-8")
    page.get_by_role("button", name="Upload without figures").click()
    expect(page.get_by_label("GPUs", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("GPUs", exact=True)).to_be_focused()
    expect(page.get_by_label("Chosen files")).to_contain_text("kept.log")
    page.get_by_label("GPUs", exact=True).fill("8")
    page.get_by_role("button", name="Upload without figures").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    expect(page.locator(".badge", has_text="unread").first).to_be_visible(timeout=90_000)


def test_upload_works_without_script(open_page: OpenPage) -> None:
    page = open_page("/upload", script=False)
    page.get_by_label("Drop files here").set_input_files(
        {"name": "plain.log", "mimeType": "text/plain", "buffer": megatron_log(step_times(900.0, 30)).encode()}
    )
    page.get_by_label("Project").fill("no-script")
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("plain")
