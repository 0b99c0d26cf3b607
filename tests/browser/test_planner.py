"""The planner in a browser: fill in, read, copy, share; axe, phone, dark, no script."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import House, OpenPage
from tests.browser.looks import PHONE, assert_looks_well
from tests.cases import sized

DEEPSEEK = "/plan?model=DeepSeek-V3&mtp=1&gpu=H100&gpus=256&seq_len=4096&gbs=8192"
BROKEN = "/plan?model=Qwen3-30B-A3B&gpu=H100&gpus=24&seq_len=4096&tp=3&pp=2&cp=1&ep=16"
NOTHING = "/plan?model=Qwen3-30B-A3B&gpu=H100&gpus=30&seq_len=4096&gbs=7&pp=7"
ADDRESSES = ("/plan", DEEPSEEK, BROKEN, *sized((), (NOTHING, "/plan?gpus=x")))


@pytest.mark.parametrize("address", ADDRESSES)
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(open_page: OpenPage, address: str) -> None:
    page = open_page(address, width=PHONE)
    assert_looks_well(page)


def test_the_form_is_filled_in_and_its_answer_can_be_shared_without_script(open_page: OpenPage) -> None:
    page = open_page("/plan", script=False)
    page.get_by_label("Model", exact=True).fill("DeepSeek-V3")
    page.get_by_label("GPU", exact=True).select_option("H100")
    for label, text in (("GPUs", "256"), ("Sequence length", "4096"), ("Global batch", "8192"), ("MTP layers", "1")):
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_label("Precision", exact=True).select_option("fp8_sc")
    page.get_by_role("button", name="Plan").click()
    expect(page).to_have_url(re.compile("gpus=256"))
    expect(page.locator(".answer")).to_contain_text("Other predictions")
    expect(page.locator("main")).to_contain_text("TP1 PP8 VPP2 CP1 EP32 ETP1")
    page.get_by_role("link", name="Show flags").click()
    expect(page.get_by_role("region", name="Megatron-LM flags of TP1 PP8 VPP2 CP1 EP32 ETP1")).to_contain_text(
        "--pipeline-model-parallel-layout 'Et*4|(tttt|)*14tmL'"
    )
    page.locator("#layout-table").get_by_role("rowheader").first.get_by_role("link").click()
    expect(page.locator(".answer")).to_contain_text("GiB predicted")
    expect(page.locator(".measured").first).to_contain_text("satisfies every constraint")


def test_the_table_is_sorted_and_the_picture_is_drawn(open_page: OpenPage) -> None:
    page = open_page(DEEPSEEK)
    expect(page.locator("#layout-chart canvas")).to_be_visible()
    page.locator("#layout-table").get_by_role("link", name="Memory").click()
    expect(page).to_have_url(re.compile("sort=memory"))
    expect(page.get_by_role("columnheader", name="Memory")).to_have_attribute("aria-sort", "ascending")


def test_choosing_a_model_shows_its_shape(open_page: OpenPage) -> None:
    page = open_page("/plan")
    page.get_by_label("Model", exact=True).fill("Mixtral-8x7B")
    page.get_by_label("GPUs", exact=True).focus()
    expect(page.get_by_label("Experts", exact=True)).to_have_attribute("placeholder", "8")


def test_flags_are_copied(open_page: OpenPage) -> None:
    page = open_page(DEEPSEEK)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("link", name="Show flags").click()
    page.locator("#flags").get_by_role("button", name="Copy").first.click()
    assert "--expert-model-parallel-size 32" in page.evaluate("navigator.clipboard.readText()")


def test_a_run_leads_to_its_own_layout(open_page: OpenPage, house: House) -> None:
    page = open_page(f"/runs/{house.make_run(project='planner')}")
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Plan layout").click()
    expect(page.locator("#given")).to_contain_text("TP1 PP1 CP1 EP16 ETP1")
    expect(page.get_by_label("Global batch", exact=True)).to_have_value("1024")
