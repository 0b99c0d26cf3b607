"""Pages of experiments: the list, the plan before and after, decisions by form, and the journey."""

import json
import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.experiments.journey import AcceptedChange, make_journey
from app.domain.experiments.outcome import short_result
from app.domain.experiments.plan import smallest_pct
from app.domain.experiments.values import PlannedGain
from app.domain.numbers import change_text, gain_change, gpu_hours, level_text
from app.domain.verdict.step_time import Decision
from app.experiments.commands import accept
from app.experiments.journey_page import JourneyPage, svg
from app.experiments.pages import ExperimentPage
from app.experiments.result_view import effect, is_too_small, more_runs, too_small_sentence, would_decide
from app.experiments.waterfall import waterfall
from app.profiles.views import RunWalls
from app.settings import get_settings
from app.storage.database import read_session, transaction
from app.storage.setbacks import REGRESSION_RULE
from app.storage.tables import ExperimentRow
from tests.builders import make_stack
from tests.domain.experiments.test_experiments import ROOT, step
from tests.experiments.planned import add_runs, make_baseline, make_history, plan, read
from tests.prepared import prepared
from tests.profiles.attaching import attached, trace
from tests.suggestions.advised import make_advised

AUTHOR = {"author": "mara"}
SVG = "{http://www.w3.org/2000/svg}"
FAST = [25_000.0, 25_100.0]


@pytest.fixture
def baseline(engine: Engine) -> int:
    def make() -> int:
        make_history(engine)
        return make_baseline(engine)

    return prepared(engine, make)


def text(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_step_shows_what_the_experiment_takes_and_plans_it(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    step = text(client, f"/runs/{baseline}/next/eo-enable")
    assert f'action="/runs/{baseline}/experiments"' in step
    assert step.index('id="unmet"') < step.index(f'action="/runs/{baseline}/experiments"'), (
        "some are not known to be met"
    )
    assert "interleaved" in step
    answer = client.post(
        f"/runs/{baseline}/experiments",
        data={"rule": "eo-enable", "runs_each": "2", **AUTHOR},
        follow_redirects=False,
    )
    assert answer.status_code == 303
    number = int(answer.headers["location"].rpartition("/")[2])
    experiment = read(engine, number)
    assert (experiment.rule_id, experiment.runs_each, experiment.created_by) == ("eo-enable", 2, "mara")


def test_the_search_finds_an_experiment_by_its_knob_title_and_number(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline)
    address = f'href="/experiments/{number}"'
    for searched in ("ep_overlap", "--overlap-moe-expert-parallel-comm", read(engine, number).title):
        assert address in client.get("/search", params={"q": searched}).text
    jump = client.get("/search", params={"q": f"experiment {number}"}, follow_redirects=False)
    assert (jump.status_code, jump.headers["location"]) == (303, f"/experiments/{number}")


def test_every_page_the_api_the_report_and_the_plan_ask_for_the_same_runs(client: TestClient, engine: Engine) -> None:
    make_history(engine, 12)  # its variation is lower than the default prior, so fewer runs suffice
    run = make_baseline(engine)
    advice = client.get(f"/api/v1/runs/{run}/suggestions").json()
    first = advice["suggestions"][0]
    paths = (f"runs/{run}/next", f"runs/{run}/next/{first['rule']}", f"runs/{run}/journey")
    pages = {path: text(client, f"/{path}") for path in (*paths, f"api/v1/runs/{run}/report.md")}
    planned = client.post("/api/v1/experiments", json={"run": run, "rule": first["rule"], "author": "mara"}).json()
    pages["experiment"] = text(client, f"/experiments/{planned['id']}")
    sizing = planned["plan"]["sizing"]
    runs, hours = first["place"]["runs_per_side"], first["place"]["cost_gpu_hours"]
    assert (planned["runs_each"], sizing["gpu_hours"]) == (runs, hours)
    assert sizing["spread_from"] == "series"
    for path, page in pages.items():
        read = " ".join(re.sub(r"<[^>]+>", " ", page).split())
        # Later suggestions have their own figures.
        assert re.findall(r"(\d+) runs? per side", read)[:1] == [str(runs)], path
        left = hours * (1 - 1 / (2 * runs)) if path == "experiment" else hours  # the baseline is a run of A
        assert re.findall(r"about ([\d.,]+) GPU-hours", read)[:1] == [gpu_hours(left)], path


def test_an_accepted_experiment_copies_its_flag_and_a_planned_one_opens_the_next_command(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, runs_each=1)
    page = text(client, f"/experiments/{number}")
    assert re.search(r'id="commands"\s+open', page)
    assert "Copy flag" not in page[: page.index('id="commands"')]
    add_runs(engine, read(engine, number).tag, FAST[:1])
    sent = {"decision": "accept", "note": "faster", **AUTHOR}
    page = client.post(f"/experiments/{number}", data=sent).text
    copied = re.search(r"data-copy hidden>\s*Copy flags[^<]*</button>\s*<code hidden>([^<]*)</code>", page)
    assert copied is not None
    assert copied[1] == "--overlap-moe-expert-parallel-comm --train-iters 50", "what validates it"


def test_the_button_of_the_next_run_leads_to_what_to_remove(client: TestClient, engine: Engine, baseline: int) -> None:
    number = plan(engine, baseline, knobs={"permute_fusion": False}, runs_each=1)
    with transaction(engine) as session:
        row = session.get_one(ExperimentRow, number)
        flags = [{"trainer": "Megatron-LM", "add": "", "remove": ["--moe-permute-fusion"]}]
        row.plan = {**row.plan, "change": {**row.plan["change"], "commands": flags}}
    page = text(client, f"/experiments/{number}")
    (button,) = re.findall(r'class="button primary" href="#side-candidate">([^<]*)<', page)
    assert button == "Flags of the next run", "it shows them and changes nothing"
    commands = page[page.index('id="side-candidate"') :]
    assert commands.index("<code>--moe-permute-fusion</code>") < commands.index("Flags to set")


def test_a_form_without_a_name_keeps_its_input(client: TestClient, baseline: int) -> None:
    answer = client.post(f"/runs/{baseline}/experiments", data={"rule": "eo-enable", "runs_each": "3"})
    assert answer.status_code == 422
    assert 'aria-invalid="true"' in answer.text
    assert 'value="3"' in answer.text


def test_a_rule_that_changes_nothing_offers_no_plan(client: TestClient, baseline: int) -> None:
    assert f'action="/runs/{baseline}/experiments"' not in text(client, f"/runs/{baseline}/next/contract-fields")
    assert f'action="/runs/{baseline}/experiments"' in text(client, f"/runs/{baseline}/next/eo-enable")


def test_the_page_says_what_to_paste_for_each_side(client: TestClient, engine: Engine, baseline: int) -> None:
    number = plan(engine, baseline, runs_each=2)
    page = text(client, f"/experiments/{number}")
    assert "ep_overlap off" in page
    assert "--overlap-moe-expert-parallel-comm" in page
    for side in ("baseline", "candidate"):
        part = page[page.index(f'id="side-{side}"') :]
        command = re.search(r"<code>(curl .*?)</code>", part, re.DOTALL)
        assert command is not None
        sent = shlex.split(command[1].replace("&#34;", '"').replace("&#39;", "'").replace("&amp;", "&"))
        meta = json.loads(next(argument for argument in sent if argument.startswith("meta=")).removeprefix("meta="))
        assert meta["tags"] == [read(engine, number).tag, side]


def test_the_result_is_read_on_the_page(client: TestClient, engine: Engine, baseline: int) -> None:
    number = plan(engine, baseline, runs_each=2)
    tag = read(engine, number).tag
    add_runs(engine, tag, FAST)
    add_runs(engine, tag, [26_000.0], fields={"ep_overlap": True, "tp": 2}, name="<b>other</b>")
    add_runs(engine, tag, [31_300.0], side="baseline")
    page = text(client, f"/experiments/{number}")
    assert "The change is 20.0\u202f% faster" in page
    because = read(engine, number).result.evidence_because
    assert because
    assert because[1:] in page.partition('id="result"')[0], "the qualification follows the result"
    assert 'class="effect improvement"' in page
    assert "<code>tp</code> is 2" in page
    client.post(f"/experiments/{number}", data={"decision": "accept", **AUTHOR})
    assert read(engine, number).state_text == "accepted, not full-length"
    for path in (f"/experiments/{number}", "/experiments"):
        assert re.search(r'class="badge plain"[^>]*>.*?accepted, not full-length', client.get(path).text, re.DOTALL), (
            path
        )
    accepted = client.get(f"/experiments/{number}").text
    lead = accepted.partition('class="answer">')[2].partition("</p>")[0]
    assert lead.startswith("Accepted, not full-length: 20.0\u202f% faster (")
    assert "&lt;b&gt;other&lt;/b&gt;" in page
    assert 'hx-trigger="every' not in page, "nothing comes by itself any more"


def test_the_comparison_of_its_sides_has_the_interval_that_decided(client: TestClient, engine: Engine) -> None:
    """The plan of an experiment fixes its prior, so later runs change no interval of the same runs."""
    run = make_baseline(engine)
    number = plan(engine, run, runs_each=2)
    tag = read(engine, number).tag
    add_runs(engine, tag, FAST)
    add_runs(engine, tag, [31_300.0], side="baseline")
    for tp in (1, 2, 4, 8, 16, 32):
        make_history(engine, fields={"tp": tp, "ep": 4})
    result = read(engine, number).result
    assert result.verdict is not None
    assert result.verdict.step_time is not None
    sides = f"a={','.join(result.baseline)}&b={','.join(result.candidate)}"
    compared = client.get(f"/api/v1/compare?{sides}").json()["metrics"]["step_time_ms"]
    time = result.verdict.step_time
    assert (compared["ci_low_pct"], compared["ci_high_pct"]) == pytest.approx((time.ci_low_pct, time.ci_high_pct))
    stricter = replace(result.verdict, step_time=replace(time, equal_pct=time.equal_pct / 2))
    drawn, narrow = effect(result), effect(replace(result, verdict=stricter))
    assert drawn is not None
    assert narrow is not None
    assert float(narrow.band_width) < 0.7 * float(drawn.band_width), "the band is the threshold that decided"
    page = text(client, f"/experiments/{number}")
    assert drawn.caption in page
    assert drawn.levels in page
    captions = []
    cases: tuple[tuple[Decision, bool], ...] = (
        ("improvement", True), ("no_change", True), ("inconclusive", True), ("no_change", False),
    )  # fmt: skip
    for decision, finished in cases:
        other = replace(time, decision=decision)
        shown = effect(replace(result, finished=finished, verdict=replace(result.verdict, step_time=other)))
        assert shown is not None
        assert level_text(other.interval_level_pct) in shown.caption
        if decision != "no_change":
            assert level_text(other.interval_level_pct) in shown.levels
        captions.append(shown.caption)
    assert len(set(captions)) == 4, "each decision has its own reason"


def test_an_undecided_result_says_how_many_more_runs(client: TestClient, engine: Engine, baseline: int) -> None:
    number = plan(engine, baseline, runs_each=1)
    (run,) = add_runs(engine, read(engine, number).tag, [30_500.0])
    page = text(client, f"/experiments/{number}")
    assert 'class="effect inconclusive"' in page
    own_page = text(client, f"/runs/{run}")  # only the experiment determines which runs it needs
    assert 'data-side="B"' in own_page
    assert 'class="decide"' not in own_page
    badges = own_page.partition('class="badges"')[2].partition("<nav")[0]
    assert "A/B" not in badges, "no second verdict"
    assert f'href="/experiments/{number}">Open experiment' in own_page
    assert re.search(r"\d+ (more )?runs? per side", page)


def test_an_undecided_change_that_counts_as_equal_is_to_be_rejected(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, runs_each=1)
    add_runs(engine, read(engine, number).tag, [30_900.0])
    item = read(engine, number)
    assert (item.result.inconclusive, is_too_small(item), more_runs(item)) == (True, True, 0)
    assert (item.result.excluded_gain_pct, would_decide(item)) == (None, "")
    assert "Add runs" in too_small_sentence(item), "the interval reaches a gain that counts"
    assert item.result.verdict is not None
    assert item.result.verdict.step_time is not None
    bounded = replace(item.result, gain=PlannedGain(0.3, -1.0, 1.9))
    assert bounded.excluded_gain_pct == item.result.verdict.step_time.equal_pct
    assert too_small_sentence(replace(item, result=bounded)).startswith(short_result(bounded).partition(":")[0])
    caption, of_bounded = (drawn.caption for row in (item.result, bounded) if (drawn := effect(row)))
    assert caption != of_bounded
    page = text(client, f"/experiments/{number}")
    more = item.result.verdict.step_time.need_runs
    assert more, "the note of the API says it"
    assert f"About {more} more run" in client.get(f"/api/v1/experiments/{number}").json()["result"]["notes"][0]
    assert primary_decisions(page) == ["runs"]
    with read_session(engine) as session:
        shown = ExperimentPage(session, number, "", get_settings())
        assert offered(page) == [str(shown.offered_runs)]
        sizing = shown.experiment.plan.sizing
        for needed, fewest in ((2, 1), (1 + more + 1, more), (1, more), (None, more)):
            planned = replace(shown.experiment.plan, sizing=replace(sizing, needed=needed))
            shown.experiment = replace(item, plan=planned)
            assert shown.optional_runs == fewest, f"{needed} runs of each show a gain that counts"


def offered(page: str) -> list[str]:
    """Return the numbers of runs per side that buttons plan."""
    return re.findall(r'<input type="hidden" name="runs_each" value="(\d+)">', page)


def primary_decisions(page: str) -> list[str]:
    """Return the decisions of the primary buttons that are visible without opening a panel."""
    decisions = re.sub(r'<div class="panel">.*?</details>', "", page.partition('id="decide"')[2], flags=re.DOTALL)
    buttons = re.findall(r"<(?:button|summary)[^>]*>", decisions.partition('<div id="experiment-')[0])
    return [re.findall(r'(?:value="|id="decide-)(\w+)', tag)[0] for tag in buttons if "primary" in tag]


def test_an_experiment_has_one_primary_action_and_marks_only_reached_steps(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, runs_each=1)
    steps: dict[str, list[str]] = {}
    for times in ((), FAST[:1]):
        add_runs(engine, read(engine, number).tag, times)
        page = text(client, f"/experiments/{number}")
        listed = page.partition('<ol class="steps">')[2].partition("</ol>")[0]
        done = len(re.findall(r'<li class="done"', listed))
        assert len(re.findall(r"M3 8.5l3", listed)) == done, "a tick for each step that was passed"
        steps[read(engine, number).state] = [str(done), *primary_decisions(page)]
    assert steps == {"planned": ["0"], "done": ["2", "accept"]}


def test_a_run_of_an_experiment_has_the_figures_of_the_experiment_and_no_verdict(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, runs_each=2)
    tag = read(engine, number).tag
    run, _ = add_runs(engine, tag, FAST)
    (other,) = add_runs(engine, tag, [31_300.0], side="baseline")
    change = read(engine, number).result.metrics["step_time_ms"]
    assert change is not None
    shown = change_text(change.delta_pct, change.ci_low_pct, change.ci_high_pct)
    page = text(client, f"/runs/{run}")
    figures = page[page.index('id="figures"') :]
    assert 'id="verdict"' not in page
    assert shown.figure in figures
    assert shown.interval in figures
    chart = client.get(f"/runs/{run}/chart", headers={"HX-Request": "true"}).text
    assert re.search(r"A of experiment,\s+2 runs", chart)
    page = text(client, f"/runs/{other}")
    assert 'id="verdict"' not in page
    assert 'class="change' not in page[page.index('id="figures"') :], "A is what B is measured against"


@pytest.mark.parametrize("slower_ms", [31_700.0, 40_000.0])
def test_pages_reports_the_api_and_lists_have_the_one_result_of_an_experiment_for_its_runs(
    client: TestClient, engine: Engine, baseline: int, slower_ms: float
) -> None:
    number = plan(engine, baseline, runs_each=2)
    tag = read(engine, number).tag
    runs = dict.fromkeys(add_runs(engine, tag, [slower_ms, slower_ms + 300]), "candidate")
    assert client.get(f"/api/v1/runs/{min(runs)}/verdict").json()["experiment"]["finished"] is (slower_ms == 40_000)
    runs |= dict.fromkeys(add_runs(engine, tag, [31_300.0], side="baseline"), "baseline")
    result = read(engine, number).result
    change = result.metrics["step_time_ms"]
    assert change is not None
    assert result.decision == ("regression" if slower_ms == 40_000 else "inconclusive")
    shown = change_text(change.delta_pct, change.ci_low_pct, change.ci_high_pct).text
    items = {item["id"]: item for item in client.get("/api/v1/runs?purpose=experiment").json()["items"]}
    for run, side in runs.items():
        verdict = client.get(f"/api/v1/runs/{run}/verdict").json()
        assert verdict["experiment"] == {"id": number, "side": side, "finished": True}
        assert (verdict["verdict"], verdict["raises_regression"]) == (result.decision, False)
        assert verdict["baseline"]["runs"] == list(result.baseline)
        assert verdict["candidate"]["used"] == list(result.candidate)
        assert verdict["metrics"]["step_time_ms"]["delta_pct"] == change.delta_pct
        assert (items[run]["experiment_id"], items[run]["side"]) == (number, side)
        assert client.get(f"/api/v1/runs/{run}").json()["verdict"] == result.decision
        headline = client.get(f"/api/v1/runs/{run}/report").json()["headline"]
        assert f"B is {shown}" in headline, "also on side A: B is the faster or slower one"
        assert f"B is {shown}" in text(client, f"/runs/{run}")


def test_the_walls_of_a_run_whose_tuning_continued_still_offer_the_test_of_its_regression() -> None:
    rules = [SimpleNamespace(rule=SimpleNamespace(id=rule), title=rule) for rule in (REGRESSION_RULE, "eo-enable")]
    advice: Any = SimpleNamespace(leading=rules)
    offered = [[rule for rule, _ in RunWalls(advice, None, continued).next] for continued in (None, 138)]
    assert offered == [[REGRESSION_RULE, "eo-enable"], [REGRESSION_RULE]]


def test_a_regression_of_a_run_leads_though_its_tuning_continued(client: TestClient, engine: Engine) -> None:
    container: dict[str, Any] = {"container": "nvcr.io/nvidia/nemo:26.08"}
    make_history(engine, fields={"container": "nvcr.io/nvidia/nemo:26.06"})
    slow = make_baseline(engine, 36_000.0, fields=container, purpose="ci")
    number = plan(engine, slow, knobs={"ep_overlap": True}, runs_each=1)
    add_runs(engine, read(engine, number).tag, FAST[:1], fields={"ep_overlap": True, **container})
    accept(engine, number, who="mara")
    goes_on = client.get(f"/api/v1/journeys/{slow}").json()["current_run"]
    assert goes_on != slow
    for address in (f"/runs/{slow}/next", f"/runs/{slow}/next/{REGRESSION_RULE}"):
        page = text(client, address)
        lead = page[page.index('class="answer"') :].split("</p>")[0]
        assert f"/runs/{goes_on}/next" not in lead, address
    page = text(client, f"/runs/{slow}/next")
    assert re.findall(r'<a class="button"\s+href="/runs/(\d+)/next"', page) == [str(goes_on)], "a second action"
    assert " primary" in page[page.index(f'id="s-{REGRESSION_RULE}"') :].split("</li>")[0]


def test_a_decided_experiment_leads_to_the_one_to_finish_next(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, knobs={"ep_overlap": True}, runs_each=1)
    add_runs(engine, read(engine, number).tag, FAST[:1])
    accept(engine, number, who="mara")
    goes_on = client.get(f"/api/v1/journeys/{baseline}").json()["current_run"]
    following = plan(engine, goes_on, knobs={"permute_fusion": True}, runs_each=1)
    steps = text(client, f"/experiments/{number}").partition('id="go-on"')[2].partition("</section>")[0]
    assert re.findall(r'href="(/[^"]+)"', steps) == [f"/experiments/{following}"]


@pytest.mark.parametrize("decision", ["accept", "reject"])
def test_a_decided_change_is_not_offered_again(
    client: TestClient, engine: Engine, baseline: int, decision: str
) -> None:
    plans = f'href="/runs/{baseline}/next/eo-enable#plan"'
    assert plans in text(client, f"/runs/{baseline}/next")
    number = plan(engine, baseline, runs_each=1)
    add_runs(engine, read(engine, number).tag, FAST[:1])
    client.post(f"/experiments/{number}", data={"decision": decision, "note": "needs memory", **AUTHOR})
    page = text(client, f"/runs/{baseline}/next")
    assert plans not in page
    assert f'data-experiment="{number}"' in page
    goes_on = client.get(f"/api/v1/journeys/{baseline}").json()["current_run"]
    lead = page[page.index('class="answer"') :].split("</p>")[0]
    assert (f'href="/runs/{goes_on}/next"' in lead) is (decision == "accept")
    leading = re.findall(r'class="suggestion leading [^"]+"\s+id="s-([\w-]+)"', page)
    assert ("eo-enable" in leading) is (decision == "accept")
    walls = text(client, f"/runs/{baseline}/profiled")
    assert re.findall(r'data-suggestion="([\w-]+)"', walls) == ([] if decision == "accept" else leading)
    assert (f'href="/runs/{goes_on}/next"' in walls) is (decision == "accept")
    step = text(client, f"/runs/{baseline}/next/eo-enable")
    assert f'data-experiment="{number}"' in step
    lead = step[step.index('class="answer"') :].split("</p>")[0]
    assert (f'<a href="/experiments/{number}">' in lead) is (decision == "accept")
    badge = step[step.index('class="badges"') :].split("</span>")[0]
    assert ("accepted" in badge) is (decision == "accept")
    assert "Measured effect" in step, "on this stack"
    advice = client.get(f"/api/v1/runs/{baseline}/suggestions").json()
    assert [row["experiment"] for row in advice["suggestions"] if row["rule"] == "eo-enable"] == [number]


OFFERED = re.compile(r'class="button[^"]*"[^>]*?name="decision"\s+value="(\w+)"')


def test_a_waiting_experiment_cannot_be_accepted_and_an_undecided_one_first_gets_more_runs(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, runs_each=2)
    tag, pages = read(engine, number).tag, (f"/experiments/{number}", f"/runs/{baseline}/journey")
    add_runs(engine, tag, [30_500.0])
    for path in pages:
        assert 'value="accept"' not in text(client, path)
    (side, names), *_ = re.findall(r'href="#side-(\w+)">\s*(\w+) of the next run', text(client, pages[0]))
    commands = text(client, pages[0]).partition(f'id="side-{side}"')[2].partition('id="side-')[0]
    assert names == ("Command" if "command of" in commands else "Flags"), "the button names what it leads to"
    add_runs(engine, tag, [30_450.0])
    add_runs(engine, tag, [31_300.0], side="baseline")
    result = read(engine, number).result
    assert (result.finished, result.winner) == (True, "")
    for path in pages:
        page = text(client, path)
        assert OFFERED.findall(page[page.index(f'action="/experiments/{number}"') :])[0] == "runs"
    beside = re.search(
        r"per side\s*</button>\s*<span[^>]*>about [\d.,]+ GPU-hours, pays back after ([\d,]+) steps of B</span>",
        client.get(pages[0]).text,
    )
    assert beside is not None
    verdict = result.verdict
    assert verdict is not None
    assert verdict.step_time is not None
    sizing = read(engine, number).plan.sizing
    saved_hours = (verdict.step_time.baseline_ms - verdict.step_time.candidate_ms) / 3.6e6 * (sizing.gpus or 0)
    more = re.search(r'<input type="hidden" name="runs_each" value="(\d+)">', text(client, pages[0]))
    assert more is not None
    cost = sizing.gpu_hours_of(2 * (int(more[1]) - 2)) or 0.0
    assert int(beside[1].replace(",", "")) == pytest.approx(cost / saved_hours, rel=0.05)
    assert more is not None
    # The list says the same as the page.
    listed, lead = text(client, "/experiments"), f"bout {int(more[1]) - 2} more runs per side (80\u202f% power)"
    gain = read(engine, number).result.gain
    assert gain is not None
    condition = f"if {gain_change(gain.pct).size} holds."
    assert f"#{number} needs a{lead}." in listed
    assert f"A{lead} would decide {condition}" in text(client, pages[0])
    (advice, *_) = client.get(f"/api/v1{pages[0]}").json()["result"]["notes"]
    assert f"A{lead}" in advice.replace(" %", "\u202f%")
    assert int(more[1]) == next(point for point in range(1, 21) if round(smallest_pct(sizing, point), 1) <= 2.6)
    assert re.search(rf'href="/experiments/{number}#decide">Plan {int(more[1]) - 2} more</a>', listed)
    assert "Decide 1 experiment" not in listed
    client.post(pages[0], data={"decision": "runs", "runs_each": more[1], **AUTHOR})
    assert (read(engine, number).runs_each, read(engine, number).state) == (int(more[1]), "waiting")
    assert int(more[1]) > 2
    for path in pages:
        assert 'value="accept"' not in text(client, path)
    assert f'href="/experiments/{number}#decide"' not in text(client, "/experiments")


def test_a_decision_without_a_result_keeps_the_word_of_the_result(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, runs_each=2)
    tag = read(engine, number).tag
    add_runs(engine, tag, [30_900.0, 30_850.0])
    add_runs(engine, tag, [31_300.0], side="baseline")
    assert read(engine, number).result.inconclusive
    (beside,) = re.findall(r"per side\s*</button>\s*<span[^>]*>([^<]*)</span>", text(client, f"/experiments/{number}"))
    assert re.fullmatch(r"\d+ more \(about [\d,]+ GPU-hours\) decide if 1\.4\u202f% holds", beside), beside
    client.post(f"/experiments/{number}", data={"decision": "reject", "note": "slower here", **AUTHOR})
    page = client.get(f"/experiments/{number}").text
    assert re.search(r'class="badge plain"[^>]*>.*?rejected, inconclusive', page, re.DOTALL)
    assert re.search(rf'<blockquote class="decision-note">\s*{AUTHOR["author"]}: slower here', page)
    assert "rejected, inconclusive" in text(client, "/experiments")


def test_a_decision_by_form_is_kept_with_its_note(client: TestClient, engine: Engine, baseline: int) -> None:
    number = plan(engine, baseline, runs_each=1)
    add_runs(engine, read(engine, number).tag, FAST[:1])
    refused = client.post(f"/experiments/{number}", data={"decision": "reject", **AUTHOR})
    assert refused.status_code == 422
    assert read(engine, number).state == "done"
    sent = {"decision": "accept", "note": "faster", **AUTHOR}
    done = client.post(f"/experiments/{number}", data=sent)
    assert done.status_code == 200
    assert "Next for B" in done.text
    assert read(engine, number).note == "faster"


def test_another_number_of_runs_is_a_form_too(client: TestClient, engine: Engine, baseline: int) -> None:
    number = plan(engine, baseline, runs_each=1)
    wrong = client.post(f"/experiments/{number}", data={"decision": "runs", "runs_each": "99", **AUTHOR})
    assert wrong.status_code == 422
    client.post(f"/experiments/{number}", data={"decision": "runs", "runs_each": "4", **AUTHOR})
    assert read(engine, number).runs_each == 4


def test_the_page_of_a_run_names_its_experiments(client: TestClient, engine: Engine, baseline: int) -> None:
    assert f"/runs/{baseline}/experiments/new" in text(client, f"/runs/{baseline}")
    number = plan(engine, baseline)
    page = text(client, f"/runs/{baseline}?tab=record")
    assert f'href="/experiments/{number}"' in page
    assert f'href="/runs/{baseline}/journey"' in page
    head, _, steps = text(client, f"/runs/{baseline}/next").partition('id="suggestions"')
    assert f'href="/experiments/{number}"' in head, "under way"
    first = steps[steps.index("<li") :]
    assert f'data-unfinished="{number}"' in first[: first.index("</li>")]
    assert re.findall(r'class="button[^"]* primary[^"]*"\s+href="([^"]+)"', steps) == [f"/experiments/{number}"]
    chooser = text(client, "/experiments/new")
    assert f'<a class="button primary" href="/experiments/{number}">Finish #{number} first</a>' in chooser
    assert re.search(rf'<a href="/experiments/{number}">#{number}</a> planned\.', chooser)
    assert '<button class="button" type="submit">Continue</button>' in chooser


def test_the_list_is_filtered_by_its_address(client: TestClient, engine: Engine, baseline: int) -> None:
    assert "No experiments yet" in text(client, "/experiments")
    number = plan(engine, baseline)
    assert f'href="/experiments/{number}"' in text(client, "/experiments?state=planned&project=tuning")
    workload = "Qwen3-30B-A3B · 16 × H100 · seq 4096"
    assert f">{workload}</td>" in text(client, "/experiments")
    key = read(engine, number).stack_key
    assert f'<a href="/history/{key}">{workload}</a>' in text(client, f"/experiments/{number}")
    assert client.get(f"/history/{key}").status_code == 200
    assert "1 experiment waits</a> for runs" in text(client, "/")
    assert f'href="/experiments/{number}"' in text(client, f"/experiments?run={baseline}")
    assert "No matching experiments" in text(client, "/experiments?state=accepted")
    assert client.get("/experiments?state=nonsense").status_code == 422
    assert client.get("/experiments?run=x").status_code == 422
    assert client.get("/experiments?page=0").status_code == 422
    assert client.get("/experiments/999").status_code == 404


def lead_of(page: str) -> str:
    lead = re.search(r'id="experiment-lead"([^>]*)>([^<]*)</p>', page)
    assert lead is not None
    return lead[2]


def test_the_lead_of_the_list_is_about_the_matching_experiments(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    nothing = lead_of(text(client, "/experiments"))
    number = plan(engine, baseline, runs_each=1)
    add_runs(engine, read(engine, number).tag, [30_500.0])
    assert f"#{number}" in lead_of(text(client, "/experiments"))
    assert f"#{number}" in lead_of(text(client, "/experiments?project=tuning&state=accepted")), "a tab is no filter"
    none_match = lead_of(text(client, "/experiments?project=nope"))
    assert f"#{number}" not in none_match
    assert none_match != nothing
    assert lead_of(text(client, f"/experiments?run={baseline + 100}")) == none_match
    address, of_table = "/experiments?project=nope", {"HX-Request": "true", "HX-Target": "experiment-table"}
    fragment = client.get(address, headers=of_table).text
    assert (lead_of(fragment), fragment.count("hx-swap-oob")) == (none_match, 1), "the lead follows the filters"


def test_a_run_leads_with_what_its_experiment_needs(client: TestClient, engine: Engine, baseline: int) -> None:
    def lead(path: str) -> str:
        (lead,) = re.findall(r'<p class="answer">(.*?)</p>', text(client, path), re.DOTALL)
        return re.sub(r"<[^>]+>", "", lead).strip()

    number = plan(engine, baseline, runs_each=3)
    assert lead(f"/runs/{baseline}/next") == f"Start experiment #{number}."
    add_runs(engine, read(engine, number).tag, [31_300.0])
    assert lead(f"/runs/{baseline}/next") == f"Run 2 more of A and 2 of B for experiment #{number}."
    assert "2 more runs of A, 2 of B" in text(client, f"/experiments/{number}"), "as on its page"
    add_runs(engine, read(engine, number).tag, [31_320.0, 31_340.0])
    add_runs(engine, read(engine, number).tag, [31_330.0, 31_290.0], side="baseline")
    for path in (f"/runs/{baseline}/next", f"/runs/{baseline}/journey", "/experiments"):
        page = re.sub(r"<[^>]+>", " ", text(client, path)).lower()
        assert "decision due" in page, path
        assert "to decide" not in page, path


def test_an_experiment_of_a_run_opens_its_phase_of_retuning(client: TestClient, engine: Engine, baseline: int) -> None:
    def state() -> tuple[str, str]:
        page = text(client, f"/runs/{baseline}/next")
        (phase,) = re.findall(r'<li class="phase (\w+)"(?:(?!<li).)*?id="phase-retune">(.*?)</span>', page, re.DOTALL)
        return phase

    before = state()
    number = plan(engine, baseline)
    assert f"#{number}" in state()[1]
    assert (state()[0], f"#{number}" in before[1]) == ("open", False)


def test_where_tuning_continues_is_the_proposed_baseline(client: TestClient, engine: Engine, baseline: int) -> None:
    def proposed() -> str:
        (value,) = re.findall(r'name="run"\s+inputmode="numeric"\s+value="(\d+)"', text(client, "/experiments/new"))
        return str(value)

    newer = make_baseline(engine, fields={"seq_len": 2048})
    assert proposed() == str(newer)
    plan(engine, baseline)
    assert proposed() == str(baseline)


def test_workloads_of_the_project_of_the_newest_experiment_are_listed_first(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    def listed() -> list[str]:
        return re.findall(r'href="/runs/(\d+)/experiments/new', text(client, "/experiments/new"))

    with transaction(engine) as session:
        (other,) = make_stack(session, [400.0], project="ci", judged=False)
    assert listed() == [str(other), str(baseline)]
    plan(engine, baseline)
    assert listed() == [str(baseline), str(other)]


def test_an_own_idea_begins_at_a_run(client: TestClient, engine: Engine, baseline: int) -> None:
    assert client.get("/experiments/new?run=nothing").status_code == 422
    assert client.get("/experiments/new?run=999999").status_code == 422
    led = client.get(f"/experiments/new?run={baseline}", follow_redirects=False)
    assert led.headers["location"] == f"/runs/{baseline}/experiments/new"
    form = text(client, f"/runs/{baseline}/experiments/new?field=dispatcher")
    assert '<option value="hybridep">' in form
    assert "?field=dispatcher" in text(client, f"/runs/{baseline}/experiments/new")
    assert '<option value="container">' not in form, "an identity field is no knob"
    offer = text(client, f"/runs/{baseline}/experiments/new?field=dispatcher&value=hybridep")
    assert "dispatcher: alltoall to hybridep" in offer
    same = text(client, f"/runs/{baseline}/experiments/new?field=dispatcher&value=alltoall")
    assert "data-refused" in same
    assert "data-refused" not in offer
    sent = {"field": "dispatcher", "value": "hybridep", "runs_each": "2", **AUTHOR}
    planned = client.post(f"/runs/{baseline}/experiments", data=sent)
    assert "dispatcher: alltoall to hybridep" in planned.text
    number = int(planned.url.path.rpartition("/")[2])
    assert [knob.field for knob in read(engine, number).knobs] == ["dispatcher"]
    again = text(client, f"/runs/{baseline}/experiments/new?field=dispatcher&value=hybridep")
    assert 'id="same"' not in offer
    assert f'href="/experiments/{number}">Open #{number}' in again, "this change is planned already"


def test_the_plan_of_a_measured_change_leads_to_its_experiment(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, knobs={"ep_overlap": True}, runs_each=1)
    (run,) = add_runs(engine, read(engine, number).tag, [30_900.0])
    shown = text(client, f"/runs/{baseline}/experiments/new?field=ep_overlap&value=true")
    assert read(engine, number).result.sentence in shown
    assert f"#{run}</a> do not count" not in shown, "they were interleaved with the baseline"
    first = text(client, f"/runs/{baseline}/experiments/new").partition('id="first"')[2].partition("</section>")[0]
    assert f'href="/experiments/{number}"' in first
    assert "value=true" not in first
    assert ">Finish first</h2>" in first
    waiting = plan(engine, baseline, knobs={"router_fusion": True}, runs_each=2)
    assert re.search(r"Needs (1 more run|2 more runs) of A, 2 of B", text(client, f"/experiments/{waiting}"))
    page = text(client, f"/runs/{baseline}/experiments/new")
    first = page.partition('id="first"')[2].partition("</section>")[0]
    assert set(re.findall(r"Open #(\d+)", first)) == {str(number), str(waiting)}, "one without a result, too"
    journey = text(client, f"/runs/{baseline}/journey")
    assert '"#to-decide">Decide 1 experiment' in journey.partition('class="actions"')[2].partition("</a>")[0]


def test_abs_on_unlike_stacks_are_listed_apart_and_undecided_ones_below_certain_gains(
    client: TestClient, engine: Engine
) -> None:
    overlaps: dict[str, Any] = {"ep_overlap": True, "delay_wgrad": False}
    with transaction(engine) as session:
        for where, ms in (({"precision": "fp8"}, 25_000.0), ({"gbs": 512}, 27_000.0)):
            make_advised(session, fields=overlaps | where)
            make_advised(session, fields=overlaps | where | {"delay_wgrad": True}, ms=ms, purpose="experiment")
        make_advised(session, fields=overlaps | {"precision": "fp8", "router_fusion": False})
        fused = overlaps | {"precision": "fp8", "router_fusion": True}
        make_advised(session, fields=fused, ms=31_200.0, purpose="experiment")
        run = make_advised(session, fields=overlaps | {"router_fusion": False})
    page = text(client, f"/runs/{run}/experiments/new?field=delay_wgrad")
    gains = re.findall(r'<strong>([\d.]+)[^<]*</strong>.*?href="/history/([0-9a-f]+)"', page, re.DOTALL)
    assert sorted(gain for gain, _ in gains) == ["13.8", "20.2"]
    assert len({stack for _, stack in gains}) == 2
    page = text(client, f"/runs/{run}/experiments/new")
    certain, undecided = page[: page.index(">Undecided</h2>")], page[page.index(">Undecided</h2>") :]
    assert "field=delay_wgrad&amp;value=true" in certain
    assert "field=router_fusion&amp;value=true" in undecided


@pytest.mark.parametrize(("ep", "starts"), [(8, True), (256, False)])
def test_a_change_that_stops_the_job_is_not_tried_first(
    client: TestClient, engine: Engine, baseline: int, ep: int, starts: bool
) -> None:
    number = plan(engine, baseline, knobs={"ep": ep}, runs_each=1)
    add_runs(engine, read(engine, number).tag, FAST[:1], fields={"ep": ep})
    first = text(client, f"/runs/{baseline}/experiments/new").partition('id="first"')[2].partition("</section>")[0]
    assert (f'href="/experiments/{number}"' in first) is starts, "it was faster in both cases"


def test_a_withdrawn_experiment_names_the_user_and_reason_and_continues_from_its_baseline(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    number = plan(engine, baseline, runs_each=1)
    withdrawn = {"author": "kai", "state": "withdrawn", "note": "no <time> left"}
    assert client.patch(f"/api/v1/experiments/{number}", json=withdrawn).status_code == 200
    page = text(client, f"/experiments/{number}")
    assert "Withdrawn by kai before a result." in page
    assert page.count("no &lt;time&gt; left</blockquote>") == 1
    assert f'class="button primary" href="/runs/{baseline}/next"' in page


def test_a_journey_goes_on_from_the_winner(client: TestClient, engine: Engine, baseline: int) -> None:
    assert "No experiment" in text(client, f"/runs/{baseline}/journey")
    first = plan(engine, baseline, runs_each=1)
    (won,) = add_runs(engine, read(engine, first).tag, FAST[:1], name="overlap <on>")
    accept(engine, first, "mara")
    second = plan(engine, won, knobs={"dispatcher": "hybridep"}, runs_each=1)
    page = text(client, f"/runs/{won}/journey")
    assert "31.28\u202fs" in page
    assert "overlap &lt;on&gt;" in page
    assert f'href="/experiments/{second}"' in page
    tree = client.get(f"/api/v1/journeys/{baseline}").json()
    assert [edge["experiment"] for edge in tree["edges"]] == [first, second]
    assert f'href="/api/v1/journeys/{won}?format=mermaid"' in page
    assert 'id="beside"' not in page
    picture = client.get(f"/api/v1/journeys/{won}?format=svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    drawn = ET.fromstring(picture.text).iter(f"{SVG}text")  # noqa: S314
    assert [element.text for element in drawn if element.get("class") == "name"][1:] == ["overlap <on>", "no run yet"]
    assert client.get("/runs/999999/journey").status_code == 404


def test_finished_experiments_link_to_where_the_journey_is_now(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    first = plan(engine, baseline, runs_each=1)
    (won,) = add_runs(engine, read(engine, first).tag, FAST[:1])
    accept(engine, first, "mara")
    assert f'href="/runs/{won}/next"' in text(client, f"/experiments/{first}")
    second = plan(engine, won, knobs={"dispatcher": "hybridep"}, runs_each=1)
    changed = {"ep_overlap": True, "dispatcher": "hybridep"}
    (now,) = add_runs(engine, read(engine, second).tag, [20_000.0], fields=changed)
    accept(engine, second, "mara")
    page = text(client, f"/experiments/{first}")
    assert f'href="/runs/{now}/next"' in page
    assert f'href="/runs/{won}/next"' not in page
    assert "An experiment accepted this change" in text(client, f"/runs/{baseline}/next")


def test_the_loop_is_one_page(client: TestClient, engine: Engine, baseline: int) -> None:
    """From the state through the suggestion and its runs to the decision and the gain."""
    address = f"/runs/{baseline}/journey"
    page = text(client, address)
    assert "Limited by: communication (" in page
    assert f'href="/runs/{baseline}/next/eo-enable"' in page
    assert "+ --overlap-moe-expert-parallel-comm" in page
    assert f'action="/runs/{baseline}/experiments"' in page
    assert 'id="under-way"' not in page
    number = plan(engine, baseline, runs_each=1)
    waits = text(client, address)
    assert f'href="/api/v1/experiments/{number}/launch.sbatch?side=candidate"' in waits
    assert 'value="accept"' not in waits
    assert ('id="under-way"' in waits, 'id="to-decide"' in waits) == (True, False)
    assert "Continue 1 experiment<" in waits
    add_runs(engine, read(engine, number).tag, FAST[:1])
    done = text(client, address)
    assert 'value="accept"' in done
    assert ('id="under-way"' in done, 'id="to-decide"' in done) == (False, True)
    assert "Decide 1 experiment<" in done
    assert 'id="waterfall"' not in text(client, address)
    client.post(f"/experiments/{number}", data={"decision": "accept", **AUTHOR})
    won = text(client, address)
    assert 'id="waterfall"' in won
    assert ">ep_overlap on</text>" in won
    assert "20.2" in won  # step time, 31.31 s to 25 s


def test_the_wall_that_a_profile_measured_before_a_change_is_the_same_on_all_pages(
    client: TestClient, engine: Engine, baseline: int
) -> None:
    profile = attached(client, baseline, trace("ddp-a100-ns"))
    client.post(f"/api/v1/runs/{baseline}/profiles/{profile['id']}/confirm", json=AUTHOR)
    number = plan(engine, baseline, knobs={"ep_overlap": True}, runs_each=1)
    add_runs(engine, read(engine, number).tag, FAST[:1])
    accept(engine, number, "mara")
    measured = client.get(f"/api/v1/runs/{baseline}/suggestions").json()["wall"]
    current = read(engine, number).runs[-1].run_id
    wall = client.get(f"/api/v1/runs/{current}/suggestions").json()["wall"]
    shown = text(client, f"/runs/{baseline}/profiles/{profile['id']}")
    assert f'class="button primary" href="/runs/{current}/next"' in shown
    assert (wall["wall"], wall["certainty"], wall["profile_of"]) == (measured["wall"], "inferred", baseline)
    assert (measured["certainty"], measured["profile_of"]) == ("measured", None)
    for page in (f"/runs/{baseline}/journey", f"/runs/{current}/next"):
        section = text(client, page).partition('id="wall"')[2].partition("</p>")[0]
        assert f'href="/runs/{baseline}/profiles"' in section
    after = {row["rule"]: row["why"] for row in client.get(f"/api/v1/runs/{current}/suggestions").json()["suggestions"]}
    assert ("profile-required" in after, "profile-iterate" in after) == (False, True)
    assert f"#{baseline} (before ep_overlap) was {wall['wall']}-bound" in after["profile-iterate"]
    (later,) = add_runs(engine, "", FAST[:1], side="", fields={"ep_overlap": True})
    of_later = client.get(f"/api/v1/runs/{later}/suggestions").json()
    assert of_later["wall"] == wall, "a later run of the same configuration was led to by the same experiment"
    assert {row["rule"] for row in of_later["suggestions"]} == set(after)


def test_the_loop_follows_when_a_run_arrives(client: TestClient, engine: Engine, baseline: int) -> None:
    experiment = read(engine, plan(engine, baseline, runs_each=2))
    page = text(client, f"/runs/{baseline}/journey")
    address = re.search(r'hx-get="([^"]+/journey/news[?]seen=[^"]+)"', page)
    assert address is not None
    fragment = {"HX-Request": "true"}
    same = client.get(address[1], headers=fragment).text
    assert ('hx-swap-oob="true"' in same, address[1] in same) == (False, True)
    add_runs(engine, experiment.tag, FAST[:1])
    changed = client.get(address[1], headers=fragment).text
    assert 'id="journey-body" hx-swap-oob="true"' in changed
    assert address[1] not in changed
    assert "<html" in client.get(address[1]).text  # to all others the page itself


def test_the_journey_is_exported_as_pictures_and_as_a_recipe(client: TestClient, engine: Engine, baseline: int) -> None:
    files = f"/api/v1/journeys/{baseline}"
    assert client.get(f"{files}/waterfall.svg").status_code == 404
    number = plan(engine, baseline, runs_each=1)
    add_runs(engine, read(engine, number).tag, FAST[:1])
    accept(engine, number, "mara")
    drawn = ET.fromstring(client.get(f"{files}/waterfall.svg").text)  # noqa: S314
    assert [item.get("class") for item in drawn.iter(f"{SVG}g")] == ["start", "improvement", "result"]
    # 31.31 s to 25 s fills the picture; from zero, it would fill a fifth.
    heights = [int(bar.get("height", "")) for bar in drawn.iter(f"{SVG}rect") if bar.get("y")]
    assert heights[1] > 100 > heights[0] == heights[2]
    png = client.get(f"{files}/waterfall.png")
    assert (png.headers["content-type"], png.content[:4]) == ("image/png", b"\x89PNG")
    slide = ET.fromstring(client.get(f"/runs/{baseline}/journey/picture.svg").text)  # noqa: S314
    assert (slide.get("width"), len(list(slide.iter(f"{SVG}image")))) == ("1600", 1)
    assert f"/runs/{baseline}/journey/picture.png" in client.get(f"/runs/{baseline}/journey").text
    flags = client.get(f"{files}/recipe.sh").text
    assert ("# The command of this run is unknown." in flags) is ("# The whole command of the run:" not in flags)
    assert "  --overlap-moe-expert-parallel-comm\n" in flags
    assert "  --expert-model-parallel-size 16\n" in flags
    recipe = yaml.safe_load(client.get(f"{files}/recipe.yaml").text)
    assert recipe["comm_overlap"]["overlap_moe_expert_parallel_comm"] is True
    assert recipe["model"]["expert_model_parallel_size"] == 16
    assert recipe["model"]["recompute_modules"] == ["moe_act", "layernorm"]
    assert client.get(f"{files}/recipe.pdf").status_code == 404


def test_what_configurations_differ_from_the_abs_is_drawn_to_scale_and_as_no_change() -> None:
    gain = PlannedGain(25.0, 20.0, 30.0)  # 30 s to 24 s by the A/B, and 25 s by the run that is the result
    picture = waterfall([AcceptedChange(1, "ep_overlap on", 30_000.0, 25_000.0, gain)])
    assert picture is not None
    assert [bar.kind for bar in picture.bars] == ["start", "improvement", "rest", "result"]
    _, change, rest, _ = picture.bars
    assert rest.height == pytest.approx(change.height / 6, abs=1)
    assert not rest.href


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_waterfall_fills_its_frame_and_names_the_level_of_each_interval(count: int) -> None:
    gain = PlannedGain(5.0, 4.0, 6.0)
    step = [30_000.0 / 1.05**place for place in range(count + 1)]
    changes = [
        AcceptedChange(place, "x", step[place - 1], step[place], gain, level_pct=99.6) for place in range(1, count + 1)
    ]
    picture = waterfall(changes)
    assert picture is not None
    assert picture.width == pytest.approx(1320, abs=10)
    assert all("99.6" in bar.note for bar in picture.bars if bar.kind == "improvement")


@pytest.mark.parametrize(
    ("before_ms", "gain_pct", "ticks"),
    [(30_000.0, 25.0, ["22\u202fs", "24\u202fs", "26\u202fs", "28\u202fs", "30\u202fs"]),
     (900.0, 200.0, ["0\u202fs", "0.2\u202fs", "0.4\u202fs", "0.6\u202fs", "0.8\u202fs"])],
)  # fmt: skip
def test_an_axis_has_round_step_times_and_the_ends_name_their_runs(
    before_ms: float, gain_pct: float, ticks: list[str]
) -> None:
    after_ms = before_ms / (1 + gain_pct / 100)
    change = AcceptedChange(1, "ep_overlap on", before_ms, after_ms, None, ((11, 1), (12, 3)))
    picture = waterfall([change])
    assert picture is not None
    assert [text for _, text in picture.ticks] == ticks
    assert picture.ticks[0][0] == picture.base, "the axis starts at its first line"
    assert [bar.href for bar in picture.bars] == ["/runs/11", "/experiments/1", "/runs/12"]


def test_a_side_is_downloaded_as_a_script_that_bash_reads(client: TestClient, engine: Engine, baseline: int) -> None:
    number = plan(engine, baseline, runs_each=1)
    tag = read(engine, number).tag
    for kind in ("sbatch", "sh"):
        answer = client.get(f"/api/v1/experiments/{number}/launch.{kind}?side=candidate")
        assert f'filename="{tag}-candidate.{kind}"' in answer.headers["content-disposition"]
        script = answer.text
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        assert "--overlap-moe-expert-parallel-comm" in script
        assert ("#SBATCH --nodes=2" in script) == (kind == "sbatch")
        assert f'"tags": ["{tag}", "candidate"]' in script
    assert "--overlap-moe" not in client.get(f"/api/v1/experiments/{number}/launch.sh?side=baseline").text
    assert client.get(f"/api/v1/experiments/{number}/launch.exe").status_code == 404


def test_updates_come_only_after_a_change(client: TestClient, engine: Engine, baseline: int) -> None:
    number = plan(engine, baseline, runs_each=2)
    match = re.search(rf'hx-get="(/experiments/{number}/news\?seen=[^"]+)"', text(client, f"/experiments/{number}"))
    assert match is not None
    address, htmx = match[1].replace("&amp;", "&"), {"HX-Request": "true"}
    nothing = client.get(address, headers=htmx).text
    assert "hx-swap-oob" not in nothing
    add_runs(engine, read(engine, number).tag, FAST[:1])
    news = client.get(address, headers=htmx).text
    assert 'id="experiment-result" hx-swap-oob="true"' in news


# --- The picture of a journey: accepted changes off its path, and the picture as a file.


HOSTILE = 'a <b>"&'


def test_of_two_accepted_from_one_run_the_earlier_is_named_and_the_file_is_xml() -> None:
    steps = [step(1, None, 10.0, "accepted", HOSTILE), step(2, None, 5.0, "accepted"), step(3, 2, None, "waiting")]
    page = JourneyPage(make_journey(1, "moe", ROOT, steps), 1)
    assert [(node.edge_href, node.role) for node in page.beside] == [("/experiments/1", "accepted, off the path")]
    assert re.search(r" 2 A/Bs accepted, not full-length; 1 open\.$", page.answer), page.answer
    drawn = list(ET.fromstring(svg(page.picture, page.picture_label)).iter("{http://www.w3.org/2000/svg}text"))  # noqa: S314
    assert [element.text for element in drawn if element.get("class") == "name"] == [
        "root",
        "run",
        "no run yet",
        HOSTILE,
    ]
    assert JourneyPage(make_journey(1, "moe", ROOT, steps[1:]), 1).beside == []


def test_an_effect_states_its_own_step_times_where_its_runs_are_not_those_of_the_boxes() -> None:
    """The A/B ran before the start's second run: 400 ms is the mean of both, and 398 ms that of the A/B."""
    ab = replace(step(1, None, 10.0), compared_ms=(398.0, 400.0 / 1.1))
    page = JourneyPage(
        make_journey(1, "moe", ROOT, [ab, replace(ab, experiment_id=2, compared_ms=(400, 400 / 1.1))]), 1
    )
    other, same = page.rows[1:]
    assert other.effect == f"{same.effect}, 398.0\u202fms to 363.6\u202fms"
    assert [line.effect.replace("\u202f", " ") for line in page.picture.lines] == [
        "9.1 % faster than 398.0 ms",
        "9.1 % faster",
    ]
