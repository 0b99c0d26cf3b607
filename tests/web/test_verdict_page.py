"""The page of a run begins with its verdict; users decide there about quarantine and pins."""

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, select
from sqlmodel import col
from starlette.testclient import TestClient

from app.domain.numbers import THIN, step_time
from app.domain.verdict.step_time import LossChange, MemoryChange, Prior
from app.storage import audit
from app.storage.database import read_session, transaction
from app.storage.readings import pack_series, unpack_series
from app.storage.tables import (
    PinRow,
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunResultRow,
    RunRow,
    SeriesRow,
    StackWorkRow,
)
from app.storage.verdicts import keep_alarms, put_verdict
from tests.judged import judge, make_baseline, make_stack_run
from tests.regressions.judging import works

HTML = {"Accept": "text/html"}
HTMX = {"HX-Request": "true"}
ATTACK = "<script>alert(1)</script>"

Make = Callable[..., int]


@pytest.fixture
def stack(engine: Engine) -> list[int]:
    with transaction(engine) as session:
        return make_baseline(session)


@pytest.fixture
def make(engine: Engine, stack: list[int]) -> Make:
    def make(earlier: list[int] | None = None, judging: dict[str, Any] | None = None, **columns: Any) -> int:
        with transaction(engine) as session:
            run = make_stack_run(session, columns.pop("place", 20), **columns)
            judge(session, run, stack if earlier is None else earlier, **(judging or {}))
        return run

    return make


def page(client: TestClient, run: int, status: int = 200, tab: str = "") -> str:
    answer = client.get(f"/runs/{run}{tab and f'?tab={tab}'}", headers=HTML)
    assert answer.status_code == status
    return html.unescape(answer.text).replace(THIN, " ")


def part(text: str, element: str) -> str:
    match = re.search(rf'<section class="section" id="{element}".*?</section>', text, re.DOTALL)
    assert match is not None
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", match[0]))


def verdict_of(client: TestClient, run: int) -> Any:
    return client.get(f"/api/v1/runs/{run}/verdict").json()


def linked(text: str, element: str) -> set[int]:
    """Return the runs that a part of the page links to."""
    start = text.index(f'id="{element}"')
    return {int(run) for run in re.findall(r'href="/runs/(\d+)"', text[start : text.index("</details>", start)])}


def test_the_verdict_is_the_first_sentence_and_shown_next_to_every_figure(client: TestClient, make: Make) -> None:
    run = make(slower=0.0334)
    text = page(client, run)
    own = client.get(f"/api/v1/runs/{run}").json()["metrics"]["step_time_ms"]["value"]
    answer = re.search(r'<p class="answer regression">(.*?)</p>', text)
    assert answer is not None
    assert answer[1] == f"3.4 % slower: {step_time(own)}, was 20.00 s.".replace(THIN, " ")
    assert "the last 12 runs" in text
    assert text.index('class="badge regression"') < text.index('id="figures"')
    changes = re.findall(r'against"><span class="change( \w+)?"><span class="nowrap">(.*?)</span>', text)
    assert [(kind.strip(), change) for kind, change in changes] == [
        ("regression", "3.4 % slower"), *[("regression", "3.3 % lower")] * 3, ("", "the same"),
    ]  # fmt: skip


def test_figures_of_reruns_are_the_mean_that_their_change_is_about(client: TestClient, make: Make) -> None:
    first = make(slower=0.05)
    alone = part(page(client, first), "figures")
    second = make(slower=0.09, judging={"reruns": (first,)})
    for run in (first, second):
        change = verdict_of(client, run)["metrics"]["step_time_ms"]
        own = client.get(f"/api/v1/runs/{run}").json()["metrics"]["step_time_ms"]["value"]
        row = part(page(client, run), "figures").partition("Step time")[2].partition("tokens")[0]
        mean, _, after = row.partition("slower")
        assert step_time(change["candidate"]).replace(THIN, " ") in mean
        assert step_time(own).replace(THIN, " ") in after
        assert change["candidate"] != pytest.approx(own, rel=0.01)
        launches = page(client, run).partition('id="launches"')[2].partition("</span>")[0]
        assert [f'href="/runs/{launch}"' in launches for launch in (first, second)] == [True, True]
    assert "This run" not in alone, "one run has one value"


def test_a_provisional_change_says_so_at_the_top(client: TestClient, make: Make) -> None:
    provisional = make(slower=0.05, fields={"dispatcher": "hybridep", "driver": "9.9"})
    firm = make(slower=0.05, place=21)
    for run in (firm, provisional):
        head = page(client, run).partition('class="answer')[0]
        assert verdict_of(client, run)["provisional"] is (run == provisional)
        assert (">provisional<" in head.replace("</svg>", ">")) is (run == provisional)


def test_the_baseline_is_listed_with_excluded_runs_and_reasons(client: TestClient, make: Make, engine: Engine) -> None:
    with transaction(engine) as session:
        short = make_stack_run(session, 13, short=True)
        odd = make_stack_run(session, 14, purpose="experiment")
    run = make(earlier=[*range(1, 13), short, odd], slower=0.03)
    baseline = verdict_of(client, run)["baseline"]
    assert (baseline["kind"], len(baseline["runs"])) == ("same_config", 12)
    assert {int(row["run"]) for row in baseline["left_out"]} == {short, odd} == linked(page(client, run), "left-out")


def test_suspects_have_their_axis_and_the_commits_link_to_the_repository(
    client: TestClient, make: Make, engine: Engine
) -> None:
    with transaction(engine) as session:
        project = session.get_one(ProjectRow, 1)
        project.compare_url, project.commit_url = "https://git/{from}...{to}", "https://git/{commit}"
        session.add(project)
    run = make(slower=0.03, fields={"ep_overlap": True}, commit="feedface01")
    text = page(client, run)
    verdict = part(text, "verdict")
    assert "ep_overlap off → on" in verdict
    assert re.search(r'href="https://git/\w{8}\.\.\.feedface01" rel="noreferrer nofollow"', text)
    assert 'href="https://git/feedface01"' in client.get(f"/runs/{run}?tab=record").text


def test_the_tab_of_the_configuration_says_whether_only_the_code_is_new(client: TestClient, make: Make) -> None:
    notes = []
    for fields in ({}, {"ep_overlap": True}):
        tab = page(client, make(fields=fields)).partition('data-tab="config"')[2].partition("</a>")[0]
        notes.append(re.search(r'"muted small">([^<]*)<', tab))
    assert [note and note[1] for note in notes] == ["new commit", "2 differ"]


def test_the_configuration_begins_with_what_differs_from_the_nearest_run(
    client: TestClient, make: Make, stack: list[int]
) -> None:
    run = make(fields={"mbs": 16}, outcome="out_of_memory")
    assert verdict_of(client, run)["baseline"]["runs"] == []
    text = page(client, run, tab="config").partition('id="contract"')[2]
    assert re.findall(r'<tr id="contract-(\w+)"', text) == ["mbs", "commit"]
    assert re.findall(r'<th scope="col">\s*<a[^>]*href="/runs/(\d+)"', text) == [str(stack[-1])]


def test_an_inconclusive_run_says_how_to_run_it_again(client: TestClient, make: Make, engine: Engine) -> None:
    run = make(earlier=list(range(1, 13)), judging={"prior": Prior(0.01**2, 12, 5)}, slower=0.015)
    text = page(client, run)
    assert re.search(r"2 reruns of commit \w{8} would decide", text)
    assert f"threewalls rerun {run} --exec CMD" in text
    with read_session(engine) as session:
        commit = session.get_one(RunRow, run).commit
    command = re.search(
        r"curl --fail-with-body -F log=@train.log -F 'meta=(\{.*?\})' http://testserver/api/v1/runs", text
    )
    assert command is not None
    assert f'"commit": "{commit}"' in command[1]
    assert '"purpose": "ci"' in command[1]


def test_without_a_baseline_the_nearest_misses_are_shown(client: TestClient, make: Make) -> None:
    run = make(fields={"gpu": "B200", "container": "nvcr.io/nvidia/nemo:26.08"})
    verdict = verdict_of(client, run)
    (miss,) = verdict["nearest_misses"]
    assert (verdict["verdict"], verdict["baseline"]["runs"]) == ("no_baseline", [])
    assert (miss["runs_alike"], set(miss["fields"])) == (12, {"gpu", "container"})
    assert f"/compare?a={miss['run']}&b={run}" in page(client, run)
    first = make(earlier=[], fields={"model": "DSV3"}, place=21)
    assert verdict_of(client, first)["nearest_misses"] == []
    assert "/compare?a=" not in part(page(client, first), "verdict")


def test_a_contrast_has_no_colour_of_a_verdict(client: TestClient, make: Make) -> None:
    run = make(slower=0.05, fields={"container": "nvcr.io/nvidia/nemo:26.08"})
    text, verdict = page(client, run), verdict_of(client, run)
    assert "nemo:26.06 instead of nemo:26.08" in text
    assert (verdict["verdict"], verdict["contrast"]["decision"]) == ("no_baseline", "regression")
    assert 'class="change regression"' not in text
    compared = text.partition('id="compared-with"')[2].partition("</p>")[0]
    assert re.findall(r"/runs/(\d+)", compared) == verdict["contrast"]["runs"][-8:]
    chip = text.partition('class="badges"')[2].partition("</a>")[0]
    assert ("slower" in chip, "regression" in chip) == (True, False)
    lead = re.search(r'<p class="answer regression">(.*?)</p>', text)
    assert lead
    time = client.get(f"/api/v1/runs/{run}").json()["metrics"]["step_time_ms"]["value"]
    assert step_time(time).replace(THIN, " ") in lead[1]


def test_an_experiment_is_an_a_b_and_no_regression(client: TestClient, make: Make) -> None:
    run = make(slower=0.2, purpose="experiment", fields={"dispatcher": "hybridep"})
    text, verdict = page(client, run), verdict_of(client, run)
    assert "hybridep instead of alltoall" in text
    assert (verdict["comparability"]["kind"], verdict["raises_regression"]) == ("matched_ab", False)
    assert ">regression<" not in text


def test_a_slower_run_of_another_configuration_says_why_it_opens_no_regression(client: TestClient, make: Make) -> None:
    other, same = make(slower=0.2, fields={"dispatcher": "hybridep"}), make(slower=0.2, place=21)
    verdict = verdict_of(client, other)
    assert (verdict["verdict"], verdict["baseline"]["kind"]) == ("regression", "last_config")
    assert not verdict["raises_regression"]
    text = page(client, other)
    assert "data-opens-none" in text
    assert ">regression<" not in text
    assert verdict_of(client, same)["raises_regression"]
    assert "data-opens-none" not in page(client, same)


def test_earlier_verdicts_stay_with_the_reason_of_the_next_one(
    client: TestClient, make: Make, engine: Engine, stack: list[int]
) -> None:
    run = make(slower=0.03)
    with transaction(engine) as session:
        judge(session, run, stack[:3], because=f"Run 7 was quarantined: {ATTACK}")
    text = client.get(f"/runs/{run}").text
    assert ATTACK not in text
    assert html.escape(ATTACK, quote=False) in text
    (earlier,) = verdict_of(client, run)["earlier"]
    assert ATTACK in verdict_of(client, run)["because"]
    assert earlier["verdict"] == "regression"


def test_a_run_leads_to_its_regression_and_one_at_its_level_too(client: TestClient, make: Make, engine: Engine) -> None:
    first, second = make(slower=0.05), make(slower=0.05, place=21)
    with transaction(engine) as session:
        session.add(RegressionRow(id=7, project_id=1, kind="run", cause_key="c", cause=ATTACK, metric="step_time_ms"))
        session.flush()
        row = session.get_one(RunRow, first)
        session.add(
            RegressionMemberRow(regression_id=7, run_id=first, stack_key=row.stack_key, config_key=row.config_key)
        )
        keep_alarms(session, {second: {"step_time_ms": 7}})
    assert "Opened" in part(page(client, first), "verdict")
    assert "Part of" in part(page(client, second), "verdict")
    assert ATTACK not in client.get(f"/runs/{first}").text
    with transaction(engine) as session:
        session.get_one(RegressionRow, 7).state = "fixed"
    assert re.search(r"Part of\s+regression 7\s+fix claimed", part(page(client, second), "verdict"))


def test_the_chart_shows_where_the_baseline_lies(client: TestClient, make: Make) -> None:
    chart = client.get(f"/runs/{make(slower=0.05)}/chart", headers=HTMX).text
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', chart, re.DOTALL)
    datasets = json.loads(spec)["datasets"]
    assert 19.9 < datasets["baseline"][0]["value"] < 20.1
    assert datasets["earlier"] == []


def test_the_chart_shows_all_of_a_wide_interval(client: TestClient, engine: Engine, make: Make) -> None:
    run = make(slower=0.05)
    with transaction(engine) as session:
        result = session.get_one(RunResultRow, run)
        assert result.steady_state is not None
        result.steady_state = {**result.steady_state, "ci_low_ms": 14_000.0, "ci_high_ms": 31_000.0}
    chart = client.get(f"/runs/{run}/chart", headers=HTMX).text
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', chart, re.DOTALL)
    (interval,) = json.loads(spec)["datasets"]["interval"]
    assert (interval["low"], interval["high"]) == (14.0, 31.0)


def test_the_chart_shows_a_worse_loss_with_that_of_the_baseline(
    client: TestClient, engine: Engine, stack: list[int]
) -> None:
    with transaction(engine) as session:
        run = make_stack_run(session, 20)
        series = session.get_one(SeriesRow, (run, "lm_loss"))
        before = unpack_series(series.blob)
        series.blob = pack_series(1.1 * before)
        session.flush()
        document = judge(session, run, stack)
        worse = replace(document.verdict, loss=LossChange("worse", 10.0, 1.0))
        put_verdict(session, run, replace(document, verdict=worse), "It was uploaded.")
    chart = client.get(f"/runs/{run}/chart", headers=HTMX).text
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', chart, re.DOTALL)
    datasets = json.loads(spec)["datasets"]
    shown = {row["iteration"]: row["value"] for row in datasets["points"]}
    earlier = {row["iteration"]: row["value"] for row in datasets["earlier"]}
    assert set(earlier) <= set(range(1, len(before) + 1))
    assert len(before) in earlier
    assert all(value == pytest.approx(before[iteration - 1]) for iteration, value in earlier.items())
    assert all(shown[iteration] == pytest.approx(1.1 * earlier[iteration]) for iteration in shown if iteration > 20)
    assert f"baseline #{stack[-1]}" in chart
    assert datasets["baseline"] == []
    times = client.get(f"/runs/{run}/chart?series=step_time_ms", headers=HTMX).text
    assert '"earlier": []' in times


def test_the_api_names_the_run_since_which_the_page_says_that_the_loss_is_worse(
    client: TestClient, engine: Engine, stack: list[int]
) -> None:
    with transaction(engine) as session:
        run = make_stack_run(session, 20)
        document = judge(session, run, stack)
        worse = replace(document.verdict, loss=LossChange("worse", 10.0, 1.0, since=str(stack[-1])))
        put_verdict(session, run, replace(document, verdict=worse), "It was uploaded.")
    answer = client.get(f"/api/v1/runs/{run}/verdict").json()
    assert answer["loss"]["since"] == str(stack[-1])
    assert f"since #{stack[-1]}" in answer["reason"]
    page = client.get(f"/runs/{run}").text
    (lead,) = re.findall(r'<p class="answer[^>]*>(.*?)</p>', page, re.DOTALL)
    assert f"since #{stack[-1]}" in lead
    assert "data-earlier-loss" not in page, "stated once"
    with transaction(engine) as session:
        slow = replace(worse, decision="regression")
        put_verdict(session, run, replace(document, verdict=slow), "It was uploaded.")
    (line,) = re.findall(r"data-earlier-loss>(.*?)</span>", client.get(f"/runs/{run}").text, re.DOTALL)
    assert ("10.0" in line, f'href="/runs/{stack[-1]}"' in line) == (True, True), "below a lead about step time"


@pytest.mark.parametrize("is_in_log", [True, False])
def test_the_chart_shows_the_memory_where_the_lead_does_or_says_why_it_cannot(
    client: TestClient, engine: Engine, stack: list[int], is_in_log: bool
) -> None:
    with transaction(engine) as session:
        run = make_stack_run(session, 20)
        for number, gib in ((run, 66.0), (stack[-1], 60.0)) if is_in_log else ():
            blob = pack_series(np.full(50, gib * 2**30))
            session.add(SeriesRow(run_id=number, metric="peak_memory_bytes", unit="bytes", n=50, blob=blob))
        session.flush()
        document = judge(session, run, stack)
        memory = MemoryChange("regression", 60.0 * 2**30, 66.0 * 2**30, 10.0, 1.0)
        heavy = replace(document.verdict, decision="regression", memory=memory)
        put_verdict(session, run, replace(document, verdict=heavy), "It was uploaded.")
    chart = client.get(f"/runs/{run}/chart", headers=HTMX).text
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', chart, re.DOTALL)
    datasets = json.loads(spec)["datasets"]
    shown, earlier = ({row["value"] for row in datasets[name]} for name in ("points", "earlier"))
    (note,) = re.findall(r'<p class="chart-note".*?</p>', chart, re.DOTALL)
    assert ("peak memory" in note) is not is_in_log
    if is_in_log:
        assert max(shown) == pytest.approx(1.1 * max(earlier))
    else:
        assert datasets["baseline"], "the chart shows step time"


def test_a_run_that_is_not_judged_yet_follows_its_stack(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_stack_run(session, 1)
        row = session.get_one(RunRow, run)
        session.add(StackWorkRow(id=5, project_id=row.project_id, stack_key=row.stack_key, work="waiting", wanted=1))
    text = page(client, run)
    assert "being computed" in text
    match = re.search(r'hx-get="(/runs/\d+/news\?seen=[^"]+)"', text)
    assert match is not None
    assert client.get(match[1], headers=HTMX).status_code == 204
    with transaction(engine) as session:
        judge(session, run, [])
        session.get_one(StackWorkRow, 5).work = ""
    news = client.get(match[1], headers=HTMX).text
    assert re.search(r'data-announce="[^"]+"', news)
    assert "no baseline" in news
    assert "news?seen" not in news


def test_quarantine_needs_a_name_and_a_reason_and_is_recorded(client: TestClient, make: Make, engine: Engine) -> None:
    run = make(slower=0.05)
    refused = client.post(f"/runs/{run}/quarantine", data={"author": "", "note": ATTACK}, headers=HTML)
    assert refused.status_code == 422
    assert ATTACK not in refused.text
    assert 'id="quarantine-author" name="author" value=""' in refused.text
    assert "must name the author" in refused.text
    assert html.escape(ATTACK, quote=False) in refused.text

    sent = {"author": "Ada <b>", "note": f"node 17 {ATTACK}"}
    answer = client.post(f"/runs/{run}/quarantine", data=sent, headers=HTML, follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, f"/runs/{run}?tab=record#decisions")
    text = client.get(f"/runs/{run}").text
    assert ATTACK not in text
    assert "Quarantined by Ada &lt;b&gt;" in text
    assert client.get(f"/api/v1/runs/{run}").json()["quarantine"]["reason"] == f"node 17 {ATTACK}"
    assert works(engine) == ["waiting"]

    client.post(f"/runs/{run}/release", data={"author": "Bea", "note": ""}, headers=HTML)
    assert client.get(f"/api/v1/runs/{run}").json()["quarantine"] is None
    assert [(item.who, item.action) for item in recorded(engine, "run", run)] == [
        ("Bea", "release"), ("Ada <b>", "quarantine"),
    ]  # fmt: skip


def test_a_pin_says_what_drifts_out_of_sight(client: TestClient, make: Make, engine: Engine, stack: list[int]) -> None:
    with transaction(engine) as session:
        release = make_stack_run(session, 0, purpose="release", slower=-0.05)
    client.post(f"/runs/{stack[0]}/pin", data={"author": "Ada", "note": ""})
    run = make(slower=0.02)
    decisions = part(page(client, run, tab="record"), "decisions")
    assert f"#{stack[0]} , pinned by Ada" in decisions
    drift = re.findall(r"Step time against [^#:]*#(\d+) ?: (\+\d\.\d) %, not judged", decisions)
    assert drift == [(str(stack[0]), "+2.0"), (str(release), "+7.3")]

    client.post(f"/runs/{run}/pin", data={"author": "Bea", "note": "after the <upgrade>"})
    text = page(client, run, tab="record")
    assert "golden baseline" in text
    assert re.findall(r"Step time against [^#:]*#(\d+)", part(text, "decisions")) == [str(stack[0]), str(release)]
    assert "&lt;upgrade&gt;" in client.get(f"/runs/{run}?tab=record").text
    client.post(f"/runs/{run}/unpin", data={"author": "Cleo"})
    with read_session(engine) as session:
        assert session.execute(select(col(PinRow.id)).where(col(PinRow.unpinned_at).is_(None))).all() == []


def test_a_golden_baseline_in_an_open_regression_is_marked(
    client: TestClient, make: Make, engine: Engine, stack: list[int]
) -> None:
    run = make()
    client.post(f"/runs/{run}/pin", data={"author": "Ada", "note": ""})
    assert "data-slow-golden" not in page(client, run)
    with transaction(engine) as session:
        row = session.get_one(RunRow, run)
        keys = {"stack_key": row.stack_key, "config_key": row.config_key}
        regression = RegressionRow(project_id=row.project_id, kind="run", cause_key="run", metric="step_time_ms")
        session.add(regression)
        session.flush()
        session.add(RegressionMemberRow(regression_id=regression.id or 0, run_id=run, delta_pct=5.0, **keys))
    assert 'data-slow-golden="1"' in page(client, run)
    assert "golden baseline, slow (R1)" in page(client, run)


def test_the_api_decides_what_the_forms_decide(client: TestClient, make: Make) -> None:
    run = make()
    address = f"/api/v1/runs/{run}"
    assert client.post(f"{address}/quarantine", json={"author": "Ada"}).status_code == 422
    answer = client.post(f"{address}/quarantine", json={"author": "Ada", "note": "bad node"})
    assert answer.json()["quarantine"]["by"] == "Ada"
    assert client.post(f"{address}/release", json={"author": "Ada"}).json()["quarantine"] is None
    for action in ("pin", "unpin"):
        assert client.post(f"{address}/{action}", json={"author": "Ada"}).status_code == 200
    for action in ("quarantine", "release", "pin", "unpin"):
        missing = client.post(f"/api/v1/runs/999/{action}", json={"author": "Ada", "note": "why"})
        assert missing.status_code == 404, action
    assert client.post(f"/runs/{run}/explode", data={}).status_code in (404, 405)


def test_lists_name_the_verdict_of_an_ab_as_its_page_does(client: TestClient, make: Make) -> None:
    run = make(slower=0.08, fields={"ep_overlap": True})
    key = client.get(f"/api/v1/runs/{run}").json()["stack_key"]
    for address in (f"/runs/{run}", "/runs", f"/history/{key}/runs"):
        badges = re.findall(
            r'<span class="badge regression"[^>]*>.*?</svg>\s*([^<]+?)\s*</span>', client.get(address).text
        )
        assert badges == ["A/B slower"], address


def recorded(engine: Engine, subject: audit.Subject, subject_id: int) -> tuple[audit.AuditEvent, ...]:
    with read_session(engine) as session:
        return audit.events(session, subject, subject_id)
