"""From a run to a planned experiment, its runs through the real door, and its result read and accepted on the page."""

import json
import re
import secrets
import shlex
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.experiments.commands import SweepRequest, accept, plan_experiment, plan_sweep
from app.pipeline.propose import ExperimentRequest
from app.storage.database import read_session, transaction
from app.storage.experiments import get_experiment
from tests.browser.conftest import House, OpenPage, sign
from tests.browser.looks import PHONE, assert_looks_well
from tests.builders import make_stack, megatron_log, step_times
from tests.cases import sized
from tests.suggestions.advised import FIELDS, LAUNCH, PROFILED

PROJECT = "in-the-browser"
PLACES = {
    "project": PROJECT,
    "model": "Qwen3-30B-A3B",
    "gpu": "H100",
    "gpus_per_node": 8,
    "container": "nvcr.io/nvidia/nemo:26.06",
    "cluster": "eos",
    "commit": "5eed0fbd5a1c4f6e9d3b2a10c8e7f6a5b4c3d2e1",
    "branch": "main",
}


@pytest.fixture(scope="module")
def house(working_house: House) -> House:
    return working_house


def upload(address: str, log: str, meta: dict[str, Any]) -> int:
    """Through the API, as a training job would; answers when the run was read and judged."""
    boundary = secrets.token_hex(16)
    parts = (("meta", "application/json", json.dumps(meta)), ('log"; filename="train.log', "text/plain", log))
    body = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: {kind}\r\n\r\n{content}\r\n'
        for name, kind, content in parts
    )
    request = urllib.request.Request(  # our own server
        f"{address}/api/v1/runs?wait=30",
        data=f"{body}--{boundary}--\r\n".encode(),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return int(json.load(answer)["id"])


def log_of(step_time_ms: float, *, overlap: bool) -> str:
    text = megatron_log(step_times(step_time_ms, 60))
    line = next(line for line in text.splitlines() if "overlap_moe_expert_parallel_comm" in line)
    return text.replace(line, line.replace("False", str(overlap)))


def metadata_to_send(page: Page, side: str) -> dict[str, Any]:
    """Upload like a user who pastes the command of a side."""
    command = page.get_by_label(f"Upload of {side}", exact=True).text_content() or ""
    part = next(word for word in shlex.split(command) if word.startswith("meta="))
    result: dict[str, Any] = json.loads(part.removeprefix("meta="))
    return result


def test_a_person_plans_a_suggestion_runs_it_and_accepts_the_result(open_page: OpenPage, house: House) -> None:
    run = upload(
        house.address,
        log_of(31_310.0, overlap=False),
        PLACES | PROFILED | {"name": "overlap off", "purpose": "experiment", "launch_args": LAUNCH},
    )
    page = open_page(f"/runs/{run}")
    page.get_by_role("link", name="Next step", exact=True).click()
    page.get_by_role("link", name="Overlap expert communication with computation").first.click()
    plan = page.locator("#plan")
    expect(plan).to_contain_text("interleaved")
    expect(plan).to_contain_text("Held fixed")
    plan.locator("#propose-curve > summary").click()
    plan.get_by_label("Runs per side").fill("1")
    plan.get_by_role("button", name="Plan this").click()
    sign(page, "mara")

    page.wait_for_url(re.compile(r"/experiments/\d+$"))
    expect(page.locator("#order-title")).to_contain_text("Next: a run of B, with ep_overlap")
    expect(page.get_by_label("Megatron-LM command of B")).to_contain_text("--overlap-moe-expert-parallel-comm")
    page.evaluate("window.sameDocument = true")
    candidate = upload(
        house.address, log_of(25_010.0, overlap=True), metadata_to_send(page, "B") | {"name": "overlap on"}
    )

    expect(page.locator(".answer")).to_contain_text("faster (", timeout=90_000)
    assert page.evaluate("window.sameDocument"), "the page followed without a reload"
    expect(page.locator("#result")).to_contain_text("faster")
    expect(page.locator("#result .effect")).to_be_visible()
    expect(page.locator("#runs")).to_contain_text(f"#{candidate}")
    accept = page.locator("#decide").get_by_role("button", name="Accept")
    expect(accept).to_have_class(re.compile("primary"))  # the result is better
    expect(accept).to_be_in_viewport()
    accept.click()
    expect(page.get_by_role("heading", name=re.compile(r"^Next for B$"))).to_be_visible()
    page.locator("#plan-fold > summary").click()
    expect(page.locator("#record")).to_contain_text("mara")

    page.get_by_role("link", name="Journey", exact=True).click()
    expect(page.locator("svg.tree .won .name")).to_have_text("overlap on")
    page.goto(f"/runs/{candidate}?tab=record")
    expect(page.locator("dl.facts")).to_contain_text("Overlap expert communication with computation")


@pytest.fixture(scope="module")
def ids(house: House) -> dict[str, int]:
    """A run with one experiment in each state that pages distinguish, including a long name and a long knob."""
    long = "a-name-that-is-much-longer-than-any-screen-of-a-phone-could-ever-show-in-one-line-without-help" * 2
    project = "experiments-shown"

    def add(ms: float, minute: int, **columns: Any) -> int:
        fields = FIELDS | columns.pop("fields", {})
        stated = {"launch_args": LAUNCH, **PROFILED}
        with transaction(house.engine) as session:
            return make_stack(
                session, [ms], project=project, fields=fields, commits=["5eed0fbd"], purpose="experiment",
                metadata_stated=stated, **columns,
            )[0]  # fmt: skip

    run = add(31_310.0, 0, name=long)

    def planned(**requested: Any) -> tuple[int, str]:
        number = plan_experiment(house.engine, house.settings, ExperimentRequest(run, **requested), "mara")
        with read_session(house.engine) as session:
            return number, get_experiment(session, number).tag

    accepted, tag = planned(rule_id="eo-enable", runs_each=1)
    add(25_010.0, 1, fields={"ep_overlap": True}, tags=[tag, "candidate"], name="overlap on")
    accept(house.engine, accepted, "mara", f"taken over {long}")
    undecided, tag = planned(knobs={"recompute_modules": "core_attn"}, runs_each=1)
    add(30_900.0, 2, fields={"recompute_modules": ("core_attn",)}, tags=[tag, "candidate"])
    add(30_900.0, 3, fields={"recompute_modules": ("core_attn",), "tp": 2}, tags=[tag, "candidate"], name=long)
    waiting, _ = planned(knobs={"dispatcher": "hybridep"}, runs_each=4)
    sweep = plan_sweep(house.engine, house.settings, SweepRequest(run, "mbs", [1, 4, 8], 2), "mara")
    return {"run": run, "accepted": accepted, "undecided": undecided, "waiting": waiting, "sweep": sweep}


ADDRESSES = (
    "/experiments?project=experiments-shown",
    "/experiments/{accepted}",
    "/experiments/{undecided}",
    "/experiments/new?run=nothing",
    "/runs/{run}/experiments/new?field=dispatcher&value=deepep",
    "/runs/{run}/journey",
    "/runs/{run}/sweeps/new?field=mbs&values=1,4,8&runs_each=2",
    "/experiments/{sweep}/sweep",
    *sized((), ("/experiments?state=withdrawn", "/experiments/{waiting}", "/runs/{run}/next/eo-enable")),
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_it_looks_well_on_a_phone_to_axe_and_in_the_dark(
    open_page: OpenPage, ids: dict[str, int], address: str
) -> None:
    page = open_page(address.format(**ids), width=PHONE)
    assert_looks_well(page, unfold=True)


def test_a_journey_says_its_phase_on_the_first_screen(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['run']}/journey")
    expect(page.locator("#phase")).to_be_in_viewport(ratio=1)


def test_a_journey_is_a_list_on_a_phone(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['run']}/journey", width=390)
    expect(page.locator("svg.tree")).to_be_hidden()
    expect(page.locator(".tree-list")).to_contain_text("faster")


def test_the_cost_of_a_sweep_is_shown_without_a_signature(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['run']}/sweeps/new")
    expect(page.locator("[data-cost]")).to_be_visible()
    page.get_by_label("Knob").select_option("mbs")
    expect(page).to_have_url(re.compile("field=mbs"))
    page.get_by_label("Values").fill("1, 4, 8")
    page.get_by_role("button", name="Show the cost").click()
    expect(page.locator("#plan")).to_contain_text("GPU-hours")
    page.get_by_role("button", name="Plan sweep").click()
    expect(page.get_by_role("heading", name="Sign your changes")).to_be_visible()


def test_an_own_idea_is_planned_without_script(open_page: OpenPage, ids: dict[str, int]) -> None:
    page = open_page(f"/runs/{ids['run']}?tab=record", script=False)
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Plan an experiment").click()
    page.get_by_label("All knobs").select_option("ep")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_label("ep", exact=True).fill("8")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_label("Your name").fill("mara")
    page.get_by_role("button", name="Plan this").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("ep: 16 to 8")
    page.locator("#decide-more").click()
    page.get_by_text("Withdraw…", exact=True).click()
    page.locator(".decision details[open]").get_by_label("Your name").fill("mara")
    page.get_by_role("button", name="Withdraw experiment").click()
    expect(page.locator(".answer")).to_contain_text("Withdrawn")
