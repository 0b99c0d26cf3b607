"""A log is dropped into the browser and becomes a run page, without a reload."""

import re
from datetime import timedelta

from playwright.sync_api import expect

from app.queue import PROCESS_RUN, QUEUE, make_celery
from app.storage.database import transaction
from app.storage.tables import RunRow, utc_now
from tests.browser.conftest import House, OpenPage
from tests.builders import megatron_log, step_times

DROP = """(zone, files) => {
  const data = new DataTransfer();
  for (const [name, text] of files) data.items.add(new File([text], name));
  for (const type of ["dragenter", "dragover", "drop"]) {
    zone.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
  }
}"""


def test_a_dropped_log_becomes_a_run_page(open_page: OpenPage) -> None:
    page = open_page("/upload")
    page.locator("[data-drop]").evaluate(DROP, [["dropped.log", megatron_log(step_times(412.0, 60))]])
    expect(page.get_by_label("Chosen files")).to_contain_text("dropped.log")
    page.get_by_label("Name").fill("dropped <b>log</b>")
    page.get_by_label("Project").fill("by-hand")
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("dropped <b>log</b>")
    expect(page.locator(".figures")).to_contain_text(re.compile(r"4\d\d\.\d\s*ms"))
    expect(page.locator("[data-chart] canvas")).to_be_visible()


def test_the_run_page_goes_live_from_received_to_ready(open_page: OpenPage, house: House) -> None:
    # Leased to nobody, so that no worker takes it before the page was seen.
    held = utc_now() + timedelta(hours=1)
    stated = {"name": "live"}
    run = house.make_run(name="live", status="received", work="waiting", lease_until=held, metadata_stated=stated)
    page = open_page(f"/runs/{run}")
    expect(page.locator("#run-body")).to_contain_text("waits for a worker")
    page.evaluate("window.sameDocument = true")
    with transaction(house.engine) as session:
        row = session.get(RunRow, run)
        assert row is not None
        row.lease_until = None
    make_celery(house.settings).send_task(PROCESS_RUN, args=(run,), queue=QUEUE)
    expect(page.locator(".badge", has_text="ready")).to_be_visible(timeout=90_000)
    expect(page.locator("[data-chart][data-ready]")).to_be_visible()
    expect(page.locator("#announce")).to_have_text("The run is ready.")
    assert page.evaluate("window.sameDocument")
    expect(page.locator("#run-poll[hx-trigger]")).to_have_count(0)


def test_an_error_stands_at_its_field_and_the_file_stays_chosen(open_page: OpenPage, house: House) -> None:
    page = open_page("/upload")
    page.get_by_label("Drop logs here").set_input_files(
        {"name": "kept.log", "mimeType": "text/plain", "buffer": b"a line\n"}
    )
    page.get_by_label("GPUs").fill("-8")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_label("GPUs")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("GPUs")).to_be_focused()
    expect(page.get_by_label("Chosen files")).to_contain_text("kept.log")
    page.get_by_label("GPUs").fill("8")
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    expect(page.locator(".badge", has_text="unread").first).to_be_visible(timeout=90_000)


def test_upload_works_without_script(open_page: OpenPage) -> None:
    page = open_page("/upload", script=False)
    page.get_by_label("Drop logs here").set_input_files(
        {"name": "plain.log", "mimeType": "text/plain", "buffer": megatron_log(step_times(900.0, 30)).encode()}
    )
    page.get_by_label("Project").fill("no-script")
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/runs/\d+$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("plain")
