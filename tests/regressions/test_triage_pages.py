"""The triage pages through the public interface: texts, forms without script, hostile text, empty states."""

import csv
import html
import json
import math
import re
import struct
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlmodel import col
from starlette.testclient import TestClient

from app.domain.notifications.events import Subscription
from app.domain.numbers import THIN
from app.pipeline.notify import notify_regression
from app.regressions.words import discussion
from app.storage.audit import SERVICE, AuditEvent
from app.storage.database import read_session, transaction
from app.storage.regressions import get_regression, regressions_elsewhere
from app.storage.tables import (
    DeliveryRow,
    ProjectRow,
    ReceiverRow,
    RegressionMemberRow,
    RegressionRow,
    RunAlarmRow,
    RunRow,
    utc_now,
)
from app.storage.verdicts import keep_alarms, regressions_of
from tests.builders import make_run, make_stack
from tests.prepared import prepared
from tests.regressions.triaged import FIRST, SlowStack, continue_in_stack, judge_against, make_slow_stack

HTML = {"Accept": "text/html"}
HTMX = {"HX-Request": "true"}
ATTACK = '"><script>alert(1)</script>'

Make = Callable[..., int]


@pytest.fixture
def stack(engine: Engine) -> SlowStack:
    def make() -> SlowStack:
        with transaction(engine) as session:
            return make_slow_stack(session, back=4)

    return prepared(engine, make)


def row_of(engine: Engine, number: int) -> RegressionRow:
    with read_session(engine) as session:
        return session.get_one(RegressionRow, number)


def post(client: TestClient, address: str, **form: Any) -> Any:
    return client.post(address, data={"author": "Ada"} | form, headers=HTML, follow_redirects=False)


def hidden(page: str, name: str) -> str:
    match = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert match is not None
    return match[1]


def test_the_lead_of_the_list_counts_what_matches_the_filters(client: TestClient, make: Make) -> None:
    make(gpu_hours_per_day=62.0)
    make(gpu_hours_per_day=None, each_costs=None, metric="peak_memory_gib", proposal="stale")
    of_filter = {
        "metric=step_time_ms": (1, 0, True),
        "metric=peak_memory_gib": (1, 1, False),
        "project=no": (0, 0, False),
    }
    for query, (to_triage, proposed, is_costly) in of_filter.items():
        for state in ("", "&state=closed"):
            page = client.get(f"/regressions?{query}{state}").text
            assert f'data-to-triage="{to_triage}" data-proposed="{proposed}"' in page, (query, state)
            has_next = bool(re.search(r'class="button primary"\s+href="/regressions/\d', page))
            assert has_next == (to_triage > proposed and not state), (query, state)
            lead = page.partition('id="regression-lead"')[2].partition("</p>")[0]
            assert ("GPU-h/day" in lead) == is_costly, (query, state)
    everything = client.get("/regressions?state=any").text
    assert "<details open>" in everything.partition('id="to-close"')[2], "all are asked for"


def test_the_list_begins_with_what_needs_triage(client: TestClient, make: Make) -> None:
    make(gpu_hours_per_day=62.0)
    make(gpu_hours_per_day=None, state="acknowledged")
    make(gpu_hours_per_day=0.0, state="acknowledged", proposal="stale")
    make(state="fixed")
    text = client.get("/regressions").text
    assert 'data-to-triage="2" data-proposed="1" data-in-work="1"' in text
    assert "5.0\u202f% slower</a>" in text
    assert text.count('name="seen"') == 3
    assert "62\u202fGPU-h/day" in text
    assert client.get("/regressions?state=any").text.count('name="seen"') == 4
    tabs = re.findall(r'href="/regressions\?([^"]*)"[^>]*>([A-Z][a-z ]+) ?<span class="small">(\d)</span>', text)
    assert tabs == [("", "To do ", "2"), ("state=to_close", "To close ", "1"), ("state=closed", "Closed ", "1")]
    for state in ("to_close", "closed"):
        listed = client.get(f"/regressions?state={state}").text
        assert (listed.count('name="seen"'), 'class="pager"' in listed) == (1, False)


def test_a_trend_is_drawn_again_after_a_run_of_its_stack_changed(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    make()
    drawn = [re.findall(r'<polyline points="([^"]*)"', client.get("/regressions").text) for _ in range(2)]
    with transaction(engine) as session:
        session.get_one(RunRow, stack.runs[-1]).step_time_ms = 30_000.0
    again = re.findall(r'<polyline points="([^"]*)"', client.get("/regressions").text)
    assert drawn[0] == drawn[1] != again
    assert len(again) == 1


def test_the_block_is_for_htmx(client: TestClient, make: Make) -> None:
    make()
    block = client.get("/regressions?state=open", headers=HTMX)
    assert block.text.strip().startswith('<div id="regression-table"')
    assert block.headers["HX-Push-Url"] == "/regressions?state=open"


def test_each_emptiness_says_what_to_do(client: TestClient, make: Make) -> None:
    assert "No regressions yet" in client.get("/regressions").text
    assert "api/v1/runs" in client.get("/regressions").text
    make(state="fixed")
    assert "Nothing to triage" in client.get("/regressions").text
    assert "None in this state" in client.get("/regressions?state=invalid").text
    assert "No matching regressions" in client.get("/regressions?q=nothing").text
    assert "No such page" in client.get("/regressions?state=any&page=7").text


def test_the_page_answers_what_how_much_since_when_and_at_what_cost(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    with transaction(engine) as session:
        other = make_slow_stack(session, stack="b", slow_pct=3.0)
        project = session.get_one(ProjectRow, stack.project_id)
        project.compare_url = "https://git.example/{from}...{to}"
    cause = "Upgrade of the container: registry.example/moe/train:1 -> registry.example/moe/train:2."
    number = make([stack, other], worst_delta_pct=5.0, gpu_hours_per_day=41.0, cause=cause)
    text = client.get(f"/regressions/{number}").text
    assert all(part in text for part in ("5.0\u202f% slower", "2 jobs", f"#{stack.since}", "41 GPU-h/day"))
    assert "train:1 → train:2" in text
    assert "× 16 GPUs = 12\u202fGPU-h/day" in text
    assert re.search(r'href="https://git.example/\w{40}\.\.\.\w{40}"', text)
    assert text.count("the last 13 runs") == 2
    suspects = re.findall(r'class="panel suspect" data-level="(\d)" data-jobs="(\d)"', text)
    assert suspects == [("2", "1")], "the newest run of the other job is back"
    assert f'href="/history/{stack.stack_key}?config={stack.config_key}"' in text


def test_pages_count_jobs_and_the_table_stacks(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        one, same, other = (make_slow_stack(session, stack=name, slow_pct=9.0) for name in ("one", "same", "other"))
    number = make([one, same, other])
    with transaction(engine) as session:
        member = session.get_one(RegressionMemberRow, (number, same.since))
        row = session.get_one(RunRow, one.since)
        member.stack_key, member.config_key = row.stack_key, row.config_key
    page = client.get(f"/regressions/{number}").text
    assert words_of(client, number).startswith("3 jobs slow since #")
    assert re.findall(r'data-jobs="(\d)"', page) == ["3"]
    for address in ("/regressions", "/"):
        assert re.search(rf'<a href="/regressions/{number}#members"[^>]*>\+2</a>', client.get(address).text), address
    (row,) = csv.DictReader(client.get("/regressions.csv").text.splitlines())
    assert row["stacks"] == "2"


@pytest.fixture
def two_jobs(engine: Engine) -> tuple[SlowStack, SlowStack]:
    """Two jobs of one configuration: the first became 3 % slower, the second 9 %."""
    with transaction(engine) as session:
        less, more = (
            make_slow_stack(session, stack="two", slow_pct=slow_pct, job=job)
            for job, slow_pct in (("less", 3.0), ("more", 9.0))
        )
    return less, more


def test_the_largest_of_several_changes_is_not_stated_of_the_first_run(
    client: TestClient, engine: Engine, make: Make, two_jobs: tuple[SlowStack, SlowStack]
) -> None:
    less, more = two_jobs
    number = make([less, more], worst_delta_pct=9.0)
    page = client.get(f"/regressions/{number}").text
    assert "<h1>Up to 9.0\u202f% slower: " in page
    assert words_of(client, number).startswith(f"2 jobs slow since #{less.since}")
    assert "Up to 9.0\u202f% slower" in client.get("/regressions", headers=HTML).text
    assert "Up to 9.0\u202f% slower" in client.get("/", headers=HTML).text
    with transaction(engine) as session:
        keep_alarms(session, {job.runs[-1]: {"step_time_ms": number} for job in two_jobs})
        for job, pct in zip(two_jobs, (3.0, 9.0), strict=True):
            for run in (job.since, job.runs[-1]):
                (own,) = regressions_of(session, run)
                assert own.delta_pct == pytest.approx(pct, abs=0.01), run


@pytest.mark.parametrize("back", [0, 1])
def test_a_run_says_whether_its_slowdown_is_past(engine: Engine, make: Make, back: int) -> None:
    with transaction(engine) as session:
        stack = make_slow_stack(session, stack="past", slow_pct=9.0, back=back)
    make([stack], worst_delta_pct=9.0)
    with transaction(engine) as session:
        (own,) = regressions_of(session, stack.since)
    assert own.is_past is bool(back)


def test_lists_name_a_model_and_gpu_only_if_all_jobs_have_it(
    client: TestClient, engine: Engine, make: Make, two_jobs: tuple[SlowStack, SlowStack]
) -> None:
    less, more = two_jobs
    number = make(two_jobs, worst_delta_pct=9.0)
    jobs = rf'<a href="/regressions/{number}#members"[^>]*>([^<]+)</a>'
    since = rf'href="/runs/{less.since}"'
    for address in ("/", "/regressions"):
        assert re.findall(jobs, client.get(address, headers=HTML).text) == ["+1"], address
    with transaction(engine) as session:
        session.get_one(RunRow, more.since).gpu = "GB200"
    for address in ("/", "/regressions"):
        page = client.get(address, headers=HTML).text
        assert re.findall(jobs, page) == ["1 job on H100, 1 on GB200"], address
        assert re.search(since, page), "the first slow run of all of them"


def test_each_row_of_the_chart_has_the_runs_of_its_own_job(
    client: TestClient, make: Make, two_jobs: tuple[SlowStack, SlowStack]
) -> None:
    points = spec_of(client, f"/regressions/{make(two_jobs, worst_delta_pct=9.0)}/chart")["points"]
    assert sorted(point["id"] for point in points) == sorted(run for job in two_jobs for run in job.runs)


@pytest.mark.parametrize("is_moved", [False, True])
def test_lists_and_page_name_the_first_run_of_what_is_still_slow(
    client: TestClient, engine: Engine, make: Make, is_moved: bool
) -> None:
    with transaction(engine) as session:
        back, slow = (make_slow_stack(session, stack=name, slow_pct=9.0) for name in ("back", "slow"))
    number = make([back, slow])
    with transaction(engine) as session:
        session.get_one(RegressionMemberRow, (number, back.since)).proposal = "fixed"
        if is_moved:
            continue_in_stack(session, number, slow, "f" * 64, slow.runs[-1])
    page = client.get(f"/regressions/{number}").text
    assert f"1 of 2 jobs slow since #{slow.since}" in page
    assert page.index(f'id="member-{slow.since}"') < page.index(f'id="member-{back.since}"')
    for address in ("/regressions", "/"):
        text = client.get(address, headers=HTML).text
        assert f'href="/runs/{slow.since}"' in text, address
        assert f'href="/runs/{back.since}"' not in text, address


def spec_of(client: TestClient, address: str) -> dict[str, Any]:
    (spec,) = re.findall(
        r'<script type="application/json">(.*?)</script>', client.get(address, headers=HTMX).text, re.DOTALL
    )
    data: dict[str, Any] = json.loads(spec)["datasets"]
    return data


def test_the_chart_marks_the_change_and_has_its_table(client: TestClient, make: Make, stack: SlowStack) -> None:
    number = make()
    data = spec_of(client, f"/regressions/{number}/chart?run={stack.since}")
    assert [row["role"] for row in data["points"]] == ["before"] * 13 + ["first slow run"] + ["after"] * 7
    assert [row["href"] for row in data["points"]] == [f"/runs/{run}" for run in stack.runs]
    assert [row["at"] for row in data["changes"]] == [13.5]
    assert {row["commit"] for row in data["ticks"]} <= {row["commit"] for row in data["points"]}
    assert [row["on_phone"] for row in data["ticks"] if row["weight"] == "bold"] == [True]
    whole = client.get(f"/regressions/{number}/chart?run={stack.since}").text
    assert whole.startswith("<!doctype html>")
    assert whole.partition('id="suspects"')[0].count('<th scope="row">') == 21
    assert client.get(f"/regressions/{number}/chart?run=1").status_code == 404


def test_a_zoom_shows_the_runs_between_two_and_its_axis_follows(
    client: TestClient, make: Make, stack: SlowStack
) -> None:
    address = f"/regressions/{make()}/chart?run={stack.since}"
    whole = spec_of(client, address)
    before = spec_of(client, f"{address}&first={stack.runs[12]}&last={stack.runs[6]}")
    assert [row["href"] for row in before["points"]] == [f"/runs/{run}" for run in stack.runs[6:13]]
    assert "changes" not in before, "the change is after them"
    assert [row["at"] for row in before["frame"]] == [0.5, 7.5]
    assert [(row["from"], row["to"], row["delta"]) for row in before["levels"]] == [(0.6, 7.5, 0.0)]
    lowest, *_, highest = sorted(before["points"], key=lambda point: point["delta"])
    pixels = (highest["shown"] - lowest["shown"]) / (highest["delta"] - lowest["delta"])
    assert pixels > 1.3 * scales_of(whole)[0][1], "without the slow runs, the axis is shorter"
    both = spec_of(client, f"{address}&first={stack.runs[11]}&last={stack.runs[15]}")
    assert [row["at"] for row in both["changes"]] == [2.5]
    assert spec_of(client, f"{address}&first={stack.runs[11]}&last=1000000") == whole, "an unknown run is no end"


def test_every_mark_is_at_its_value_or_labelled_in_the_lane(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    with transaction(engine) as session:
        other = make_slow_stack(session, stack="b", slow_pct=3.0)
        run = session.get_one(RunRow, other.runs[15])
        run.log_step_time = (run.log_step_time or 0) + 1.0
    data = spec_of(client, f"/regressions/{make([stack, other])}/chart")
    scales = scales_of(data)
    assert len(scales) == 2
    owner = {f"/runs/{number}": scales[row] for row, of in enumerate((other, stack)) for number in of.runs}
    for point in data["points"]:
        zero, pixels = owner[point["href"]]
        assert point["shown"] == pytest.approx(zero + pixels * point["delta"]), point
    (off,) = data["lane"]
    assert (off["href"], off["label"]) == (f"/runs/{other.runs[15]}", "180.0\u202f% slower")


def test_an_excluded_run_has_no_change_in_the_chart(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    with transaction(engine) as session:
        run = session.get_one(RunRow, stack.runs[15])
        run.log_step_time, run.is_steady = (run.log_step_time or 0) + 1.0, False
    (off,) = spec_of(client, f"/regressions/{make([stack])}/chart")["lane"]
    assert (off["id"], off["change"], off["label"]) == (stack.runs[15], "–", off["text"])


def test_the_usual_level_is_drawn_over_its_runs_only(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        stack = make_slow_stack(session, stack="uneven", slow_pct=6.0)
        for run_id in (*stack.runs[:3], stack.runs[5], *stack.runs[7:10]):
            run = session.get_one(RunRow, run_id)
            run.log_step_time = (run.log_step_time or 0.0) + 0.06
    levels = spec_of(client, f"/regressions/{make(stack)}/chart")["levels"]
    usual = [(row["from"], row["to"]) for row in levels if not row["delta"]]
    assert usual == [(3.6, 7.4), (10.6, 13.5)], "one unusual run does not interrupt it, three do"


def scales_of(data: dict[str, Any]) -> list[tuple[float, float]]:
    """The height of 0 % and the pixels of 1 % in each row: the lines of the usual level and of the slow one."""
    lines = sorted(data["levels"], key=lambda line: -line["shown"])
    rows = [lines[k : k + 2] for k in range(0, len(lines), 2)]
    return [(zero["shown"], (slow["shown"] - zero["shown"]) / slow["delta"]) for slow, zero in rows]


def test_a_large_change_does_not_flatten_a_small_one(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        small = make_slow_stack(session, stack="small", slow_pct=8.0)
        similar = make_slow_stack(session, stack="similar", slow_pct=9.0)
        large = make_slow_stack(session, stack="large", slow_pct=90.0)
    _, pixels = scales_of(spec_of(client, f"/regressions/{make([small, large])}/chart"))[1]
    assert pixels * 8 > 40, "the change takes the row"
    alike = scales_of(spec_of(client, f"/regressions/{make([small, similar])}/chart"))
    assert alike[0][1] == pytest.approx(alike[1][1]), "one scale while it shows both"


def test_name_and_change_of_a_row_do_not_overlap(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        stacks = [make_slow_stack(session, stack=name, slow_pct=9.0) for name in ("one", "two")]
    data = spec_of(client, f"/regressions/{make(stacks)}/chart")
    half = 7  # a line of text
    (above, row), (_, name) = data["changes"], data["names"]
    assert row["top"] + 10 <= name["shown"] - half, "values off the scale are under the text"
    assert name["shown"] + 2 * half <= above["bottom"] - half, "a phone has two lines for name and change"


def test_a_member_names_runs_of_its_job_that_are_as_slow_elsewhere_and_its_interval(
    client: TestClient, engine: Engine, make: Make
) -> None:
    facts = {"job": "nightly/h100", "model": "moe", "gpu": "H100", "gpus": 16}
    with transaction(engine) as session:
        slow = make_slow_stack(session, **facts)
        elsewhere = [
            make_run(
                session, project="triage", purpose="ci", stack_key="e" * 64, config_key="e" * 64, step_time_ms=time,
                ordered_at=FIRST + timedelta(days=day), is_steady=is_steady, **facts,
            )
            for day, time, is_steady in (
                (11.5, 21_000.0, True), (12.5, 21_000.0, False), (12.6, 20_050.0, True), (15.0, 21_010.0, True),
            )
        ]  # fmt: skip
    number, other = make(slow), make()
    with transaction(engine) as session:
        session.add(RunAlarmRow(run_id=elsewhere[3], metric="step_time_ms", regression_id=other))
    change = client.get(f"/api/v1/runs/{slow.since}/verdict").json()["metrics"]["step_time_ms"]
    with transaction(engine) as session:
        member = session.get_one(RegressionMemberRow, (number, slow.since))
        member.delta_pct = member.first_delta_pct = change["delta_pct"]
    page = client.get(f"/regressions/{number}").text
    (named,) = re.findall(r'<div class="muted small elsewhere".*?</div>', page, re.DOTALL)
    assert re.findall(r'href="/runs/(\d+)"', named) == [str(elsewhere[1]), str(elsewhere[3])]
    assert re.findall(r'href="/regressions/(\d+)"', named) == [str(other)], "that of the last run"
    assert "not steady" in named
    assert f"since #{slow.since}" in page, "the first slow run of a member"
    assert "already slow in" not in page, "a run that is not steady does not show it"
    with read_session(engine) as session:
        listed = [[item.id for item in regressions_elsewhere(session, run)] for run in (slow.since, *elsewhere)]
    assert listed == [[], [], [number], [], [number]], "those that the page lists lead back to it"
    data = spec_of(client, f"/regressions/{number}/chart")
    drawn = {mark["id"]: mark["at"] for mark in data["points"] if mark["role"] == "slow elsewhere"}
    assert drawn.keys() == {elsewhere[3]}, "one that is not steady shows nothing"
    excluded = [mark["at"] for mark in data["points"] if mark["id"] == elsewhere[1]]
    assert excluded[0] < data["changes"][0]["at"] < drawn[elsewhere[3]]
    levels = re.findall(r'title="([\d.]+).% interval of the first slow run"', page)
    assert levels == ["99"]


@pytest.mark.parametrize("proposal", ["", "stale", "fixed"])
def test_page_api_report_and_message_state_the_same_about_a_regression(
    client: TestClient, engine: Engine, make: Make, proposal: str
) -> None:
    facts = {"job": "nightly/h100", "model": "moe", "gpu": "H100", "gpus": 16}
    with transaction(engine) as session:
        slow = make_slow_stack(session, **facts)
        before = make_run(
            session, project="triage", purpose="ci", stack_key="e" * 64, config_key="e" * 64, step_time_ms=21_000.0,
            ordered_at=FIRST + timedelta(days=12.5), **facts,
        )  # fmt: skip
    cost = 0.0 if proposal else 12.5
    number = make(slow, proposal=proposal, each_costs=cost, gpu_hours_per_day=cost)
    with transaction(engine) as session:
        session.get_one(RegressionMemberRow, (number, slow.since)).proposal = "fixed" if proposal == "fixed" else ""
        rules = Subscription(("regression.opened",)).as_json()
        receiver = {"kind": "webhook", "name": "pager", "target": "https://1.1.1.1/hook", "created_by": "Ada"}
        session.add(ReceiverRow(project_id=slow.project_id, rules=rules, **receiver))
        notify_regression(session, session.get_one(RegressionRow, number), "regression.opened", "", "")
        message = session.execute(select(DeliveryRow)).scalar_one().payload["data"]["regression"]["summary"]
    summary = client.get(f"/api/v1/regressions/{number}").json()["summary"]
    (reported,) = client.get(f"/api/v1/runs/{slow.since}/report").json()["regressions"]
    assert reported["summary"] == message == summary
    assert words_of(client, number) == summary["text"]
    assert summary["since_run"] == slow.since
    page = client.get(f"/regressions/{number}").text
    assert re.findall(r'already slow in\s+<a href="/runs/(\d+)"', page) == [str(before)]
    assert summary["last_run"] == (slow.runs[-1] if proposal == "stale" else None)


@pytest.mark.parametrize(
    ("back", "is_steady", "once", "named"), [(0, True, False, False), (3, True, True, True), (0, False, True, False)]
)
def test_a_job_that_is_as_slow_elsewhere_is_not_slow_once_unless_its_own_stack_is_back_or_the_run_is_not_steady(
    client: TestClient, engine: Engine, make: Make, back: int, *, is_steady: bool, once: bool, named: bool
) -> None:
    facts = {"job": "nightly/h100", "model": "moe", "gpu": "H100", "gpus": 16}
    with transaction(engine) as session:
        slow = make_slow_stack(session, days=(13, 1), back=back, **facts)
        again = make_run(
            session, project="triage", purpose="ci", stack_key="e" * 64, config_key="e" * 64, step_time_ms=21_000.0,
            log_step_time=math.log(21_000.0), ordered_at=FIRST + timedelta(days=20), is_steady=is_steady, **facts,
        )  # fmt: skip
    number = make(slow)
    with transaction(engine) as session:
        session.get_one(RegressionMemberRow, (number, slow.since)).delta_pct = 5.0
    roles = {mark["role"] for mark in spec_of(client, f"/regressions/{number}/chart")["points"]}
    assert ("only slow run" in roles, "first slow run" in roles) == (once, not once)
    assert (f"again in #{again}" in words_of(client, number)) is named
    for path in ("/regressions", "/"):
        listed = client.get(path, headers=HTML).text
        assert ("in one run, again elsewhere</a>" in listed) is named
    page = client.get(f"/regressions/{number}").text
    assert (re.search(r"in one run here\s*</span>", page) is not None) is named


def test_a_job_that_alternates_counts_alone_and_its_sparkline_ends_with_the_newest_run(
    client: TestClient, engine: Engine, make: Make
) -> None:
    facts = {"model": "moe", "gpu": "H100", "gpus": 16}
    with transaction(engine) as session:
        pair = [
            make_slow_stack(session, stack=job, days=(13, 1), slow_pct=pct, back=2, job=f"nightly/{job}", **facts)
            for job, pct in (("one", 40.0), ("two", 50.0))
        ]
        for day, ms in ((17, 28_000.0), (18, 20_000.0), (19, 28_000.0)):
            make_run(
                session, project="triage", purpose="ci", stack_key="e" * 64, config_key="e" * 64, step_time_ms=ms,
                log_step_time=math.log(ms), ordered_at=FIRST + timedelta(days=day), is_steady=True, short=False,
                commit=f"{day}" * 20, job="nightly/one", **facts,
            )  # fmt: skip
    number = make(pair, each_costs=0.0, gpu_hours_per_day=0.0, worst_delta_pct=40.0, proposal="stale")
    lead = "One job alternates between 19.98 and 27.98\u202fs, whatever its code. The other recovered"
    assert words_of(client, number) == f"{lead}."
    with read_session(engine) as session:
        assert get_regression(session, number).worst_delta_pct == pytest.approx(40.0, abs=0.1)
    listed = client.get("/regressions", headers=HTML).text
    assert "40.0\u202f% slower at times</a>" in listed
    (last,) = re.findall(r"Step time of[^\"]*?([\d.]+)\s+s last", listed)
    assert float(last) == pytest.approx(28.0, abs=0.05)
    figures = [row["figures"] for row in spec_of(client, f"/regressions/{number}/chart")["names"]]
    assert ["once, 2 more elsewhere" in text for text in figures] == [True, False]
    assert ["newest" in text for text in figures] == [False, True]
    with transaction(engine) as session:
        there = make_run(
            session, project="triage", purpose="ci", stack_key="e" * 64, config_key="e" * 64, step_time_ms=32_000.0,
            log_step_time=math.log(32_000.0), ordered_at=FIRST + timedelta(days=20), is_steady=False, short=False,
            commit="20" * 20, job="nightly/two", **facts,
        )  # fmt: skip
    told = "One job alternates, whatever its code. The other recovered"
    assert words_of(client, number).startswith(f"{told}; #{there} (")
    assert words_of(client, number).endswith(") slower, unconfirmed.")


def test_a_job_that_moved_to_another_stack_is_one_row(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, stack="moves", days=(13, 4), back=4)
        first = slow.runs[15]
        moved = "f" * 64
        for run_id in slow.runs[15:]:
            session.get_one(RunRow, run_id).stack_key = moved
    number = make(slow, proposal="fixed", proposal_run_id=slow.runs[17])
    with transaction(engine) as session:
        continue_in_stack(session, number, slow, moved, first)
    data = spec_of(client, f"/regressions/{number}/chart")
    assert len(data["names"]) == len(data["changes"]) == 1
    assert [row["role"] for row in data["points"]] == ["before"] * 13 + ["first slow run"] + ["after"] * 7
    assert [(row["from"], row["to"]) for row in data["bands"]] == [(13.5, 15.5), (15.5, 21.5)]
    assert all(row["line"] - 7 > row["top"] for row in data["bands"]), "values off the scale are under the names"
    slow_lines = [(row["from"], row["to"]) for row in data["levels"] if row["delta"]]
    assert slow_lines == [(13.5, 15.4), (15.5, 17.4)], "no line where no run is slow"
    assert data["names"][0]["is_quiet"]
    page = client.get(f"/regressions/{number}").text
    old, new = client.get(f"/api/v1/regressions/{number}").json()["members"]
    assert (old["proposal"], old["continued_by"], new["continued_by"]) == ("", first, None), "it only moved"
    assert re.findall(r'data-moves="(\d)"', page) == ["2"]
    assert f"recovered since #{slow.runs[17]}" in page


def test_a_job_that_left_the_stack_of_another_has_its_name_in_both_stacks(
    client: TestClient, engine: Engine, make: Make
) -> None:
    with transaction(engine) as session:
        leaving, staying = (make_slow_stack(session, stack="shared", job=f"ci/{name}") for name in ("a_x", "a_y"))
        session.get_one(RunRow, leaving.runs[-1]).stack_key = "f" * 64
    number = make([leaving, staying])
    with transaction(engine) as session:
        continue_in_stack(session, number, leaving, "f" * 64, leaving.runs[-1])
    members = client.get(f"/api/v1/regressions/{number}").json()["members"]
    names = {member["run_id"]: member["title"].rpartition(" · ")[2] for member in members}
    assert names == {leaving.since: "a_x", leaving.runs[-1]: "a_x", staying.since: "a_y"}


@pytest.mark.parametrize(("slow_runs", "is_once"), [(1, True), (2, False)])
def test_slow_runs_of_a_job_count_over_its_stacks(
    client: TestClient, engine: Engine, make: Make, slow_runs: int, is_once: bool
) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, stack="moves", days=(13, slow_runs), back=2 - slow_runs)
        session.get_one(RunRow, slow.runs[14]).stack_key = "f" * 64
    number = make(slow)
    with transaction(engine) as session:
        continue_in_stack(session, number, slow, "f" * 64, slow.runs[14])
    members = client.get(f"/api/v1/regressions/{number}").json()["members"]
    assert [member["is_once"] for member in members] == [is_once] * 2


def test_a_change_in_one_run_is_marked_as_such_and_has_no_level(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        once = make_slow_stack(session, stack="once", days=(13, 1), slow_pct=30.0)
        lasting = make_slow_stack(session, stack="lasting", days=(13, 2), slow_pct=9.0)
    numbers = make(once), make(lasting)
    levels = [
        [row["delta"] > 1 for row in spec_of(client, f"/regressions/{number}/chart")["levels"]] for number in numbers
    ]
    assert levels == [[False], [False, True]]
    roles = [{row["role"] for row in spec_of(client, f"/regressions/{number}/chart")["points"]} for number in numbers]
    assert ["only slow run" in of_job for of_job in roles] == [True, False]
    leads = [re.search(r'class="answer">(.*?)</p>', client.get(f"/regressions/{number}").text) for number in numbers]
    assert ["in one run" in lead[1] for lead in leads if lead] == [True, False]


def test_the_lead_states_the_size_of_jobs_that_one_run_shows(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        lasting = [make_slow_stack(session, stack=name, slow_pct=9.0, gpu="A100") for name in ("one", "two")]
        once = make_slow_stack(session, stack="once", days=(13, 1), slow_pct=30.0, gpu="H100")
    assert words_of(client, make([*lasting, once])).endswith("; 1 other up to 30.0\u202f% in one run only.")


@pytest.mark.parametrize(
    ("is_once", "ending"), [(True, ": 1 mostly recovered, 1 in one run"), (False, ", mostly recovered")]
)
def test_the_lead_counts_the_jobs_that_do_not_count_by_kind(
    client: TestClient, engine: Engine, make: Make, is_once: bool, ending: str
) -> None:
    with transaction(engine) as session:
        jobs = [make_slow_stack(session, stack=name, slow_pct=9.0) for name in ("one", "two", "nearly")]
        session.get_one(RunRow, jobs[-1].runs[-1]).step_time_ms = 20_000.0
        jobs += [make_slow_stack(session, stack="once", days=(13, 1), slow_pct=30.0)] if is_once else []
    assert words_of(client, make(jobs)).endswith(f"\u202f%{ending}.")


def test_the_chart_names_the_size_of_the_jobs_that_it_does_not_draw_yet(
    client: TestClient, engine: Engine, make: Make
) -> None:
    with transaction(engine) as session:
        lasting = [make_slow_stack(session, stack=name, slow_pct=9.0, gpu="A100") for name in "bcde"]
        once = make_slow_stack(session, stack="once", days=(13, 1), slow_pct=30.0, gpu="H100")
    address = f"/regressions/{make([*lasting, once])}/chart"
    more = re.search(r'class="chart-more">.*?">([^<]+)</a>', client.get(address, headers=HTML).text)
    assert more is not None
    assert more[1] == "1 more job, 30.0\u202f% slower"
    assert len(spec_of(client, f"{address}?every=true")["names"]) == 5


def test_a_regression_counts_the_jobs_that_are_slow_now(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        once, other = (make_slow_stack(session, stack=name, days=(13, 1), slow_pct=30.0) for name in ("once", "other"))
        lasting, nearly = (make_slow_stack(session, stack=name, slow_pct=9.0) for name in ("lasting", "nearly"))
        session.get_one(RunRow, nearly.runs[-1]).step_time_ms = 20_000.0
    mixed, single = make([once, lasting, nearly], worst_delta_pct=30.0), make([once, other], worst_delta_pct=30.0)
    answers = [words_of(client, number) for number in (mixed, single)]
    assert answers[0].startswith(f"1 of 3 jobs slow since #{lasting.since}")
    assert "<h1>9.0\u202f% slower: Qwen3-30B-A3B · 16 × H100</h1>" in client.get(f"/regressions/{mixed}").text
    assert answers[1].startswith("2 jobs slow on 2 Nov, one run each, about")
    listed = client.get("/regressions", headers=HTML).text
    assert ">9.0\u202f% slower</a>" in listed
    assert f'href="/runs/{lasting.since}"' in listed
    assert ">30.0\u202f% slower in one run each</a>" in listed
    overview = re.sub("[ \n]+", " ", client.get("/", headers=HTML).text)
    assert re.search("> ?9.0\u202f% slower</a>", overview)
    assert re.search("> ?30.0\u202f% slower in one run each</a>", overview)
    rows = dict(re.findall(r'data-regression="(\d+)"(.*?)</tr>', overview))
    others = {number: re.findall(r'title="(\d) more jobs?"', rows[str(number)]) for number in (mixed, single)}
    assert others == {mixed: [], single: ["1"]}, "those that give the change"
    with transaction(engine) as session:
        session.get_one(RegressionRow, mixed).proposal = "stale"
    assert words_of(client, mixed) == f"1 job slow since #{lasting.since}; 1 in one run, 1 mostly recovered."
    assert re.findall(r'href="/regressions/(\d+)#members"[^>]*>\+(\d)', listed) == [(str(single), "1")]
    stated = {item["id"]: item["worst_delta_pct"] for item in client.get("/api/v1/regressions").json()["items"]}
    assert stated == {mixed: pytest.approx(9.0), single: pytest.approx(30.0)}
    table = csv.DictReader(client.get("/regressions.csv").text.splitlines())
    exported = {row["id"]: float(row["worst_delta_pct"]) for row in table}
    assert exported == {str(number): size for number, size in stated.items()}
    for number, size in stated.items():
        assert client.get(f"/api/v1/regressions/{number}").json()["worst_delta_pct"] == size


def words_of(client: TestClient, number: int) -> str:
    (answer,) = re.findall(r'class="answer">(.*?)</p>', client.get(f"/regressions/{number}").text, re.DOTALL)
    return " ".join(answer.split(" "))


def test_jobs_of_one_stack_have_different_names(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        stacks = [make_slow_stack(session, stack="same", job=f"ci/train{end}/h100") for end in ("", "_last")]
    page = client.get(f"/regressions/{make(stacks)}").text
    titles = re.findall(r'<a href="/history/[^"]*"\s+title="([^"]*)"', page)
    assert sorted(title.rpartition(" · ")[2] for title in titles) == ["train", "train_last"]


def test_a_member_without_runs_of_its_own_before_shows_those_of_the_other_container(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    number = make()
    moved = "f" * 64
    with transaction(engine) as session:
        for run_id in stack.runs[stack.slow :]:
            session.get_one(RunRow, run_id).stack_key = moved
        session.execute(update(RegressionMemberRow).values(stack_key=moved))
    roles = Counter(row["role"] for row in spec_of(client, f"/regressions/{number}/chart")["points"])
    assert roles == {"another stack": 13, "first slow run": 1, "after": 7}
    for kind, words in (("run", "another stack"), ("upgrade", "before the upgrade")):
        with transaction(engine) as session:
            session.get_one(RegressionRow, number).kind = kind
        drawn = client.get(f"/regressions/{number}/chart", headers=HTML).text
        assert len(re.findall(rf"{words}\s*</td>", drawn)) == 13
        assert len(re.findall(rf"{words}\s*</span>", drawn)) == 1, "the key and the table use the same words"
    spark = re.search(r'<polyline points="([^"]+)"', client.get("/regressions", headers=HTML).text)
    assert spark is not None
    heights = [float(point.partition(",")[2]) for point in spark[1].split()]  # 0 is the slowest
    assert len(heights) == 21, "13 runs of the other container come before the 8 of its own"
    assert max(heights[13:17]) < min(heights[:13]), "slower runs must stand above the earlier ones"


@pytest.mark.parametrize("unsteady", [False, True])
def test_the_spark_contains_the_slow_runs_of_one_configuration_with_the_first_marked(
    client: TestClient, engine: Engine, make: Make, unsteady: bool
) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, stack="slow", slow_pct=30.0)
        faster = make_slow_stack(session, stack="newer", usual_ms=5_000.0, days=(20, 2))
        for run_id in faster.runs:
            session.get_one(RunRow, run_id).stack_key = slow.stack_key
        for run_id in slow.runs[slow.slow :]:
            session.get_one(RunRow, run_id).is_steady = not unsteady
    make([slow])
    for page in ("/regressions", "/"):
        spark = re.search(
            r'<polyline points="([^"]+)".*?class="changed"\s+cx="([^"]+)"', client.get(page).text, re.DOTALL
        )
        assert spark is not None
        points = [tuple(map(float, point.split(","))) for point in spark[1].split()]
        before, after = points[:12], points[12:]
        assert len(after) == 4
        assert after[0][0] == float(spark[2])
        assert max(y for _, y in after) < min(y for _, y in before) - 10, "30 % slower is higher by most of the picture"


def test_stacks_of_one_name_are_distinguished(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        stacks = [
            make_slow_stack(session, stack=str(length), contract={"seq_len": {"value": length, "source": "metadata"}})
            for length in (4096, 8192)
        ]
    number = make(stacks)
    for text in (client.get("/regressions").text, client.get(f"/regressions/{number}").text):
        assert "seq 4096" in text
        assert "seq 8192" in text


def test_a_proposal_is_answered_with_one_click(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    number = make(proposal="fixed", proposal_run_id=stack.runs[17], assignee="Grace")
    text = client.get(f"/regressions/{number}").text
    assert f"#{stack.runs[17]}" in text.partition('id="proposal"')[2]
    assert 'data-proposal="fixed"' in client.get("/regressions").text
    address = f"/regressions/{number}"
    answer = post(client, address, proposal="accept", changed_at=hidden(text, "changed_at"))
    assert (answer.status_code, answer.headers["location"]) == (303, address)
    row = row_of(engine, number)
    assert (row.state, row.proposal, row.assignee) == ("fixed", "", "Grace")
    text = client.get(address).text
    assert "accepted the proposal" in text
    assert 'id="proposal"' not in text


def test_a_proposal_says_how_near_the_usual_level_the_runs_are(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    number = make(proposal="fixed", proposal_run_id=stack.runs[17])
    text = client.get(f"/regressions/{number}").text.replace("\u202f", " ")
    assert "The median of the last 4 runs is 0.1 % below the usual level" in text
    for ms, where in ((20_000.0, "at"), (20_080.0, "0.4 % above")):
        with transaction(engine) as session:
            session.execute(update(RunRow).where(RunRow.id.in_(stack.runs[17:])).values(step_time_ms=ms))
        text = client.get(f"/regressions/{number}").text.replace("\u202f", " ")
        assert f"The median of the last 4 runs is {where} the usual level" in text


def test_a_proposal_of_several_jobs_names_the_job_of_its_runs(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    with transaction(engine) as session:
        other = make_slow_stack(session, stack="other", back=4)
    text = client.get(f"/regressions/{make([stack, other], proposal='fixed', proposal_run_id=other.runs[17])}").text
    name = re.search(r"The median of the last 4 runs of (.*?) is ", text)
    assert name is not None
    assert name[1] == other.stack_key[:8], "stacks without a title are named by their keys"


def test_an_answer_without_a_name_requests_it_and_loses_no_input(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    number = make(proposal="fixed", proposal_run_id=stack.runs[17], assignee="Grace")
    answer = post(client, f"/regressions/{number}", author="", proposal="accept")
    assert answer.status_code == 422
    assert "must name the author" in answer.text
    assert 'name="assignee" type="text" value="Grace"' in answer.text
    assert row_of(engine, number).state == "open"


def test_the_form_changes_only_the_edited_fields(client: TestClient, engine: Engine, make: Make) -> None:
    number = make(assignee="Grace", external_url="https://tracker.example/1")
    address = f"/regressions/{number}"
    form = {"was_assignee": "Grace", "was_external_url": "https://tracker.example/1"}
    post(client, address, state="acknowledged", assignee="Grace", external_url="", note="a\r\nb", **form)
    row = row_of(engine, number)
    assert (row.state, row.assignee, row.external_url, row.note) == ("acknowledged", "Grace", "", "a\nb")
    text = client.get(address).text
    assert "<blockquote>a\nb</blockquote>" in text
    assert "https://tracker.example/1 <span aria-hidden" in text


def test_a_conflict_keeps_the_input_and_shows_the_other_change(client: TestClient, engine: Engine, make: Make) -> None:
    number = make()
    address = f"/regressions/{number}"
    page = client.get(address).text
    seen = {name: hidden(page, name) for name in ("changed_at", "was_assignee", "was_external_url")}
    post(client, address, author="Grace", state="acknowledged", assignee="Grace", **seen)
    answer = post(client, address, author="Ada", state="invalid", note="a bad node", **seen)
    assert answer.status_code == 409
    assert "was changed by Grace" in answer.text
    assert ">a bad node</textarea>" in answer.text
    assert 'name="assignee" type="text" value="Grace"' in answer.text
    assert row_of(engine, number).state == "acknowledged"
    # After the user has seen it, the same form is a decision.
    again = {name: hidden(answer.text, name) for name in seen}
    post(client, address, state="invalid", note="a bad node", assignee="Grace", **again)
    row = row_of(engine, number)
    assert (row.state, row.assignee) == ("invalid", "Grace")


def test_selected_rows_are_changed_together_without_script(client: TestClient, engine: Engine, make: Make) -> None:
    numbers = [make(), make(), make()]
    page = client.get("/regressions").text
    seen = [
        value for value in re.findall(r'name="seen" value="([^"]+)"', page) if int(value.split("@")[0]) != numbers[2]
    ]
    answer = post(client, "/regressions?sort=-age", seen=seen, state="acknowledged", assignee="Grace")
    assert (answer.status_code, answer.headers["location"]) == (303, "/regressions?sort=-age&changed=2")
    assert [row_of(engine, number).state for number in numbers] == ["acknowledged", "acknowledged", "open"]
    assert "2 regressions changed" in client.get(answer.headers["location"]).text
    again = post(client, "/regressions?sort=-age", seen=seen, assignee="nobody")
    assert again.status_code == 409
    assert "was changed by Ada" in again.text
    assert "checked" in again.text


@pytest.mark.parametrize(("address", "page"), [("/regressions", ""), ("/", "overview")])
def test_proposals_are_one_line_and_recovered_ones_are_closed_together(
    client: TestClient, engine: Engine, make: Make, address: str, page: str
) -> None:
    work, idle = make(), make(proposal="stale", worst_delta_pct=86.1)
    closing = [make(proposal="fixed", worst_delta_pct=90.0), make(proposal="fixed")]
    text = client.get(address, headers=HTML).text
    assert f"3 to close: 1 idle (86.1{THIN}% slower), 2 recovered" in re.sub("[ \n]+", " ", text)
    if page:
        assert re.findall(r'data-regression="(\d+)"', text) == [str(work)]
    else:
        assert re.search(r"1 to triage[^,<]*, 3 to close", text)
        folded = text.partition('id="to-close"')[2]
        assert [f'href="/regressions/{number}"' in folded for number in (work, idle, *closing)] == [
            False,
            True,
            True,
            True,
        ]
    form: dict[str, Any] = {
        "author": "Ada", "proposal": "accept", "page": hidden(text, "page"),
        "closing": re.findall(r'name="closing"\s+value="([^"]+)"', text),
    }  # fmt: skip
    assert form["page"] == page
    done = client.post("/regressions", data=form, headers=HTMX).text
    assert "2 regressions closed." in done
    badge = done.partition('hx-swap-oob="innerHTML:[data-to-triage-count]"')[2]
    assert 'title="1 regression to triage"' in badge
    if not page:
        assert re.search(r'id="regression-lead"\s+hx-swap-oob="true"\s+data-to-triage="2"\s+data-proposed="1"', done)
    assert [row_of(engine, number).state for number in (work, idle, *closing)] == ["open", "open", "fixed", "fixed"]
    undo = client.post(
        "/regressions/undo", data={"event": events_in(done), "page": page, "author": "Ada"}, headers=HTMX
    )
    assert undo.headers.get("HX-Refresh", "") == ("true" if page else "")
    rows = [row_of(engine, number) for number in closing]
    assert [(row.state, row.proposal) for row in rows] == [("open", "fixed"), ("open", "fixed")]
    assert client.post("/regressions", data=form, headers=HTMX).status_code == 409, "they have changed since"


def events_in(fragment: str) -> list[str]:
    return re.findall(r'name="event" value="(\d+)"', fragment)


def test_a_decision_is_answered_by_a_toast_that_undoes_it(client: TestClient, engine: Engine, make: Make) -> None:
    number = make(note="seen before")
    address = f"/regressions/{number}"

    def decide(**form: str) -> str:
        answer = client.post(address, data={"author": "Ada"} | form, headers=HTMX)
        assert answer.status_code == 200
        assert answer.text.lstrip().startswith('<div class="decided"')
        assert 'id="discussion"' in answer.text
        assert 'hx-swap-oob="afterbegin:#toasts"' in answer.text
        return str(answer.text)

    def undo(fragment: str, status: int = 200) -> Any:
        form = {"event": events_in(fragment), "page": str(number), "author": "Grace"}
        answer = client.post("/regressions/undo", data=form, headers=HTMX)
        assert answer.status_code == status
        return answer

    def state() -> tuple[str, str, str]:
        row = row_of(engine, number)
        return row.state, row.assignee, row.note

    taken = decide(take="yes")
    assert state() == ("acknowledged", "Ada", "seen before")
    assert "Taken by Ada." in taken
    fixed = decide(state="fixed", commit="0123abcd", note="The default is back.")
    assert state() == ("fixed", "Ada", "Fixed by commit 0123abcd.\nThe default is back.")
    assert "was changed by Ada" in undo(taken, 409).json()["errors"][0]["message"]
    again = undo(fixed).text
    assert state() == ("acknowledged", "Ada", "")
    assert "Undone." in again
    assert events_in(again) == []
    assert 'data-action="undone" data-who="Grace"' in again
    undo(fixed, 409)
    undo(decide(state="invalid", note="a bad node"))
    assert state()[0] == "acknowledged"
    # What the runs decide is not restored from the audit log.
    with transaction(engine) as session:
        session.get_one(RegressionRow, number).proposal = "fixed"
    assert events_in(decide(proposal="decline")) == []
    assert events_in(decide(note="only a note")) == []
    assert client.post("/regressions/undo", data={"author": "Ada", "event": "999"}, headers=HTMX).status_code == 404


def test_a_change_of_the_list_is_undone_in_the_list(client: TestClient, engine: Engine, make: Make) -> None:
    numbers = [make(), make()]
    seen = re.findall(r'name="seen" value="([^"]+)"', client.get("/regressions").text)
    form = {"author": "Ada", "seen": seen, "state": "acknowledged", "assignee": "Grace"}
    changed = client.post("/regressions?state=open", data=form, headers=HTMX).text
    assert changed.lstrip().startswith('<div id="regression-table"')
    assert [row_of(engine, number).state for number in numbers] == ["acknowledged"] * 2
    shown = HTMX | {"HX-Current-URL": "http://testserver/regressions?state=open"}
    undone = client.post("/regressions/undo", data={"author": "Ada", "event": events_in(changed)}, headers=shown)
    assert undone.text.count('name="seen"') == 2
    assert 'data-to-triage="2"' in undone.text, "the lead changes, too"
    rows = [row_of(engine, number) for number in numbers]
    assert [(row.state, row.assignee) for row in rows] == [("open", "")] * 2


def test_the_name_is_requested_once(client: TestClient, make: Make) -> None:
    number = make()
    html = client.get(f"/regressions/{number}").text
    assert 'class="field no-js"' in html
    client.cookies.set("threewalls_name", "Ada%20%3CL%3E%0A")
    page = client.get(f"/regressions/{number}").text
    assert hidden(page, "author") == "Ada &lt;L&gt;"
    assert 'class="field no-js"' not in page
    client.cookies.delete("threewalls_name")


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"state": "fixed"}, 422, "Select at least one regression"),
        ({"seen": "x"}, 422, "A selected row is invalid"),
        ({"seen": "999", "state": "fixed"}, 404, "Regression 999 does not exist"),
        ({"seen": "1"}, 422, "or another change"),
        ({"seen": "1", "state": "expected"}, 422, "must explain why the regression is expected"),
        ({"seen": "1", "state": "fixed", "author": ""}, 422, "must name the author"),
    ],
)
def test_a_refused_selection_shows_the_reason_next_to_the_list(
    client: TestClient, make: Make, form: dict[str, str], status: int, words: str
) -> None:
    make()
    answer = post(client, "/regressions", **form)
    assert answer.status_code == status
    assert words in answer.text
    assert 'id="regression-table"' in answer.text


def test_hostile_text_stays_text(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        bad = make_slow_stack(session, stack="bad", name=ATTACK, model=ATTACK, branch=ATTACK, commit=ATTACK)
    number = make(bad, cause=ATTACK, assignee=ATTACK, note=ATTACK)
    client.patch(f"/api/v1/regressions/{number}", json={"author": ATTACK, "note": ATTACK, "assignee": "x" + ATTACK})
    for address in ("/regressions", f"/regressions/{number}", f"/regressions/{number}/chart?run={bad.since}"):
        text = client.get(address).text
        assert "alert(1)" in text, address
        assert "<script>alert" not in text, address


def test_an_invalid_stored_link_is_not_offered(client: TestClient, make: Make) -> None:
    number = make(external_url="javascript:alert(1)")
    for address in ("/regressions", f"/regressions/{number}"):
        assert 'href="javascript:' not in client.get(address).text


@pytest.mark.parametrize("address", ["/regressions/7", "/regressions/x", "/regressions/99999999999999"])
def test_a_missing_page_is_an_error_page(client: TestClient, address: str) -> None:
    answer = client.get(address, headers=HTML)
    assert answer.status_code == 404
    assert "<!doctype html>" in answer.text


def test_a_member_whose_verdict_is_gone_still_shows(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        other = make_slow_stack(session, stack="later")
        member = SlowStack(**(other.__dict__ | {"slow": other.slow + 2}))
    text = client.get(f"/regressions/{make(member)}").text
    assert "verdict deleted" in text


def test_all_pages_agree_on_size_cost_and_state(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    number = make(gpu_hours_per_day=1.2, state="acknowledged", assignee="Grace")
    with transaction(engine) as session:
        run = stack.since
        keep_alarms(session, {run: {"step_time_ms": number}})
    pages = {
        path: html.unescape(re.sub(r"<[^>]+>", " ", client.get(path, headers=HTML).text)).replace("\u202f", " ")
        for path in ("/", "/regressions", f"/regressions/{number}", f"/runs/{run}")
    }
    for path, text in pages.items():
        assert "5.0 % slower" in text, path
        assert re.search(r"\b1\.2 GPU-h/day", text), path
        assert "acknowledged" in text, path
        assert "Grace" in text, path
    (item,) = client.get("/api/v1/regressions").json()["items"]
    detail = client.get(f"/api/v1/regressions/{number}").json()
    for answer in (item, detail):
        assert (answer["worst_delta_pct"], answer["gpu_hours_per_day"]) == (pytest.approx(5.0), 1.2)
        assert (answer["state"], answer["shown_state"]) == ("acknowledged", "acknowledged")


def test_all_pages_say_that_a_regression_is_over(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, slow_pct=5.0, back=4)
        milder = make_slow_stack(session, stack="b", slow_pct=3.0, back=4)
    number = make([slow, milder], proposal="fixed", proposal_run_id=slow.runs[17])
    with transaction(engine) as session:
        keep_alarms(session, {run: {"step_time_ms": number} for run in (slow.since, milder.since)})
    over = f" from 2 Nov; all recovered since #{slow.runs[17]} on 6 Nov"
    sizes = {f"/regressions/{number}": f"2 jobs slow{over}"}
    sizes |= {f"/runs/{slow.since}": f"5.0\u202f% slower{over}", f"/runs/{milder.since}": f"3.0\u202f% slower{over}"}
    for path, text in sizes.items():
        assert text in html.unescape(client.get(path).text), path


def test_nothing_is_to_be_undone_after_a_regression_is_over(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, slow_pct=5.0, back=4)
    number = make([slow])

    def suggested() -> set[str]:
        advice = client.get(f"/api/v1/runs/{slow.since}/suggestions").json()
        return {row["rule"] for row in advice["suggestions"]}

    assert "val-regression-cause" in suggested()
    with transaction(engine) as session:
        row = session.get_one(RegressionRow, number)
        row.proposal, row.proposal_run_id = "fixed", slow.runs[17]
    assert "val-regression-cause" not in suggested()


def test_a_suggestion_to_undo_a_regression_has_the_figure_of_this_run(
    client: TestClient, engine: Engine, make: Make
) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, slow_pct=5.0)
        *earlier, last = slow.runs[slow.slow :]
        judge_against(session, last, earlier)
    make([slow])
    advice = client.get(f"/api/v1/runs/{last}/suggestions").json()["suggestions"]
    (why,) = (row["why"] for row in advice if row["rule"] == "val-regression-cause")
    with read_session(engine) as session:
        own = session.get_one(RunRow, last).step_time_ms or 0.0
        first = next(item for item in regressions_of(session, last)).delta_pct
    still = f"{100 * (own / math.exp(slow.usual_level) - 1):.1f} %"
    assert still != f"{first:.1f} %"
    assert f"{still} longer than before #{slow.since}" in why.replace("\u202f", " ")


def test_the_overview_counts_the_jobs_that_are_still_slow(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        stacks = [make_slow_stack(session, stack=name, slow_pct=5.0) for name in "bcd"]
    make(stacks)
    assert 'title="2 more jobs"' in client.get("/").text
    with transaction(engine) as session:
        own = RegressionMemberRow.run_id == stacks[0].since
        session.execute(update(RegressionMemberRow).where(own).values(proposal="fixed"))
    assert 'title="1 more job"' in client.get("/").text


def test_a_regression_is_a_picture_that_chats_find(client: TestClient, make: Make, stack: SlowStack) -> None:
    number = make()
    address = f"/regressions/{number}/picture"
    assert (
        f'<meta property="og:image" content="http://testserver{address}.png">'
        in client.get(f"/regressions/{number}").text
    )
    png = client.get(f"{address}.png")
    assert (png.headers["content-type"], struct.unpack(">II", png.content[16:24])) == ("image/png", (1600, 900))
    assert client.get(f"{address}.png", headers={"If-None-Match": png.headers["etag"]}).status_code == 304
    drawn = {}
    for theme in ("light", "dark"):
        svg = ET.fromstring(client.get(f"{address}.svg?theme={theme}").text)  # noqa: S314
        drawn[theme] = Counter(dot.get("fill") for dot in svg.iter("{http://www.w3.org/2000/svg}circle"))
    before, after = drawn["light"].values()  # by colour, in the order of the runs
    assert (before, after) == tuple(drawn["dark"].values())
    assert before >= 3
    assert after >= 1
    assert client.get(f"{address}.gif").status_code == 404
    assert client.get("/regressions/999/picture.png").status_code == 404


def test_a_page_asks_for_a_rerun_before_a_regression_without_runs_is_closed(
    client: TestClient, engine: Engine, make: Make, stack: SlowStack
) -> None:
    number = make(proposal="stale")
    for address in ("/regressions", f"/regressions/{number}"):
        assert re.findall(r'data-proposal="(\w+)"', client.get(address).text) == ["stale"]
    asked = client.get(f"/regressions/{number}").text.partition('id="proposal"')[2].partition("</form>")[0]
    primary = re.findall(r'class="button primary"[^>]*?(?:href="([^"]*)"|>)', asked)
    assert stack.runs[-1] != stack.since
    assert primary == [f"/runs/{stack.runs[-1]}?tab=why#rerun"], "closing decides nothing"
    answer = {"author": "Ada", "proposal": "accept"}
    assert client.post(f"/regressions/{number}", data=answer, headers=HTMX).status_code == 200
    assert (row_of(engine, number).state, row_of(engine, number).proposal) == ("stale", "")


def test_a_regression_of_memory_has_no_cost_and_no_words_of_speed(
    client: TestClient, engine: Engine, make: Make
) -> None:
    number = make(metric="peak_memory_gib", each_costs=None, gpu_hours_per_day=None)
    back = make(metric="peak_memory_gib", each_costs=None, gpu_hours_per_day=None, proposal="fixed")
    with transaction(engine) as session:
        stacks = [make_slow_stack(session, stack=name, days=(13, 1), slow_pct=30.0) for name in ("once", "other")]
    once = make(stacks, metric="peak_memory_gib", each_costs=None, gpu_hours_per_day=None)
    listed = client.get("/regressions", headers=HTML).text
    cost = listed.partition('data-label="Cost"')[2].partition("</td>")[0]
    assert 'title="Only step time has a cost."' in cost
    for shown in (number, once):
        page = client.get(f"/regressions/{shown}", headers=HTML).text
        assert 'data-label="Cost"' not in page
        assert not re.search("slow run|[Ss]lower", page[page.index('class="page-head"') :])
    assert words_of(client, number).startswith("Affected since #")
    assert words_of(client, back).startswith("1 job affected since 2 Nov")


def test_a_title_says_what_happened_and_a_stale_proposal_since_when(
    client: TestClient, engine: Engine, make: Make
) -> None:
    with transaction(engine) as session:
        pairs = [make_slow_stack(session, stack=f"{pct}", days=(13, 1), slow_pct=pct) for pct in (17.9, 34.7)]
    number = make(pairs, each_costs=0.0, gpu_hours_per_day=0.0, worst_delta_pct=34.7, proposal="stale")
    page = client.get(f"/regressions/{number}", headers=HTML).text
    assert "<h1>2 jobs 17.9 and 34.7\u202f% slower on " in page
    assert words_of(client, number) == "2 jobs slow on 2 Nov, one run each."
    proposal = page[page.index('id="proposal"') :]
    assert (
        "No run since 2 Nov. The last ones were up to 34.7\u202f% slower than usual."
        in proposal[: proposal.index("</p>")]
    )


def test_the_chart_names_the_earlier_regression_of_a_run_before_the_change(
    client: TestClient, engine: Engine, stack: SlowStack, make: Make
) -> None:
    early = stack.runs[4:6]
    with transaction(engine) as session:
        for run_id in early:
            session.get_one(RunRow, run_id).log_step_time = stack.slow_level
    earlier, number = make(cause_key="code:earlier", state="fixed"), make()
    with transaction(engine) as session:
        session.add(RunAlarmRow(run_id=early[0], metric="step_time_ms", regression_id=earlier))
        session.add(RunAlarmRow(run_id=early[1], metric="step_time_ms", regression_id=earlier))
    address = f"/regressions/{number}/chart"
    (label,) = spec_of(client, address)["earlier"]
    assert (label["href"], label["at"]) == (f"/regressions/{earlier}", 5.5)
    assert f"before, regression {earlier}</td>" in client.get(address, headers=HTML).text


def test_the_chart_says_why_a_run_is_excluded(client: TestClient, engine: Engine, stack: SlowStack, make: Make) -> None:
    with transaction(engine) as session:
        session.get_one(RunRow, stack.runs[5]).quarantine = "a bad node"
        session.get_one(RunRow, stack.runs[6]).is_steady = False
    address = f"/regressions/{make()}/chart"
    data = spec_of(client, address)
    meanings = {row["id"]: row["meaning"] for row in [*data["points"], *data.get("lane", ())]}
    assert meanings[stack.runs[5]] == "excluded: quarantined: a bad node"
    assert meanings[stack.runs[6]].startswith("excluded: not steady")
    assert "excluded: quarantined: a bad node" in client.get(address, headers=HTML).text


def test_a_job_whose_newest_run_is_half_back_says_so(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        lasting, half_back = make_slow_stack(session, stack="lasting"), make_slow_stack(session, stack="half back")
        session.get_one(RunRow, half_back.runs[-1]).step_time_ms = 20_200.0
    page = client.get(f"/regressions/{make([lasting, half_back])}").text.partition('id="members"')[2]
    shown = re.findall(r'newest run of this stack, <a href="/runs/(\d+)">.*?(\+[\d.]+)', page, re.DOTALL)
    assert shown == [(str(half_back.runs[-1]), "+1.0")]


def test_a_job_whose_newest_run_is_much_slower_names_the_regression_of_that_run(
    client: TestClient, engine: Engine, stack: SlowStack, make: Make
) -> None:
    number, later, newest = make(), make(cause_key="code:later"), stack.runs[-1]
    with transaction(engine) as session:
        session.get_one(RunRow, newest).step_time_ms = 23_000.0
        keys = {"stack_key": stack.stack_key, "config_key": stack.config_key, "joined_at": utc_now()}
        member = session.get_one(RegressionMemberRow, (later, stack.since))
        session.delete(member)
        session.add(RegressionMemberRow(regression_id=later, run_id=newest, **keys))
    page = client.get(f"/regressions/{number}").text.partition('id="members"')[2]
    shown = re.search(r"newest run of this stack.*?(\+[\d.]+).*?href=\"(/regressions/\d+)\"", page, re.DOTALL)
    assert shown is not None
    assert shown.groups() == ("+15.0", f"/regressions/{later}")


def test_a_cost_in_a_history_that_ended_names_the_day_of_the_last_run(
    client: TestClient, stack: SlowStack, make: Make
) -> None:
    number = make()
    assert re.search(r"GPU-h/day</span>, last run \d+ Nov", client.get(f"/runs/{stack.since}").text)
    assert re.search(r"GPU-h/day, last run \d+ Nov\.$", words_of(client, number))
    assert re.search(r"GPU-h/day, last run \d+ Nov", client.get("/regressions").text)


def test_a_run_without_a_step_time_changes_neither_the_rate_nor_the_day_of_the_last_run(
    client: TestClient, engine: Engine, stack: SlowStack, make: Make
) -> None:
    number = make()

    def cost() -> tuple[str, Any]:
        regression = client.get(f"/api/v1/regressions/{number}").json()
        return regression["summary"]["text"], regression["costs"][0]["runs_per_day"]

    measured = cost()
    with transaction(engine) as session:
        last = session.get_one(RunRow, stack.runs[-1]).ordered_at
        fields = {"purpose": "ci", "stack_key": stack.stack_key, "config_key": stack.config_key, "outcome": "failed"}
        failed = make_run(session, project="triage", ordered_at=last + timedelta(days=1), **fields)
        session.get_one(RunRow, failed).step_time_ms = None
    assert cost() == measured


def test_a_job_that_is_nearly_back_does_not_tell_when_the_slow_ones_last_ran(
    client: TestClient, engine: Engine, make: Make
) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, stack="slow")
        half_back = make_slow_stack(session, stack="half back", days=(13, 9))
        session.get_one(RunRow, half_back.runs[-1]).step_time_ms = 20_200.0
        days = {}
        for of_stack in (slow, half_back):
            days[of_stack.stack_key] = session.get_one(RunRow, of_stack.runs[-1]).ordered_at
    number = make([slow, half_back], proposal="stale")
    with transaction(engine) as session:
        for member in session.execute(select(RegressionMemberRow)).scalars():
            member.proposal = ""
    with read_session(engine) as session:
        regression = get_regression(session, number)
    assert [job.newest_change is None for job in regression.jobs] == [True, False]
    assert regression.last_ran == days[slow.stack_key] < days[half_back.stack_key]
    assert "No run of its slow jobs since" in client.get(f"/regressions/{number}").text


def test_stacks_that_join_or_follow_one_after_another_are_one_entry_of_the_discussion() -> None:
    def event(number: int, action: str) -> AuditEvent:
        return AuditEvent(number, 1, utc_now(), SERVICE, "regression", "1", action, {}, {"stack": "a"}, "A cause.")

    actions = ("opened", "joined", "joined", "left", "joined", "continued", "continued")
    entries = discussion(event(number, action) for number, action in enumerate(actions))
    assert [entry.event.action for entry in entries] == ["opened", "joined", "left", "joined", "continued"]
    assert ["2 " in entry.words for entry in entries] == [False, True, False, False, True]
    assert [entry.event.note for entry in entries] == ["A cause.", "", "A cause.", "", ""]


def test_a_run_and_the_trends_state_a_regression_as_its_page_does(
    client: TestClient, engine: Engine, stack: SlowStack, make: Make
) -> None:
    number = make(proposal="stale")
    with transaction(engine) as session:
        project = session.get_one(ProjectRow, stack.project_id).slug
        at, fields = FIRST + timedelta(days=30), {"container": "moe/train:2026.12"}
        (newest,) = make_stack(session, [430.0], project=project, fields=fields, started=at)
        continue_in_stack(session, number, stack, session.get_one(RunRow, newest).stack_key, newest)
        session.get_one(RegressionMemberRow, (number, newest)).delta_pct = 7.5
        session.get_one(RegressionMemberRow, (number, stack.since)).first_delta_pct = 5.0
    page = client.get(f"/regressions/{number}", headers=HTML).text
    run = client.get(f"/runs/{stack.since}", headers=HTML).text
    notice, top = (run[run.index(mark) :][:900] for mark in ("regression-link", "run-regression"))
    for text in (page, notice):
        assert re.search("7\\.5\u202f%", text)
        assert re.search(r'class="badge[^>]*>.{0,200}idle', text, re.DOTALL)
    assert re.search("7\\.5\u202f% slower on average", notice), "the first run changed by 5 %"
    assert re.search(rf">Regression {number}</a>\s*idle", top)
    trends = client.get("/history", headers=HTML).text
    assert 'data-slow="0"' in trends
    assert re.search(rf"7\.5\u202f% slower,</a>\s*<span.*>now .*<span[^>]*>R{number} idle", trends)


def test_a_run_says_that_its_regression_is_of_memory(client: TestClient, stack: SlowStack, make: Make) -> None:
    number = make(metric="peak_memory_gib")
    run = client.get(f"/runs/{stack.since}", headers=HTML).text
    assert re.search(rf">Regression {number}</a>\s*\(memory\)", run)


def test_the_example_on_the_upload_page_continues_no_regression(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, slow_pct=5.0)
        usual, last = slow.runs[slow.slow - 1], slow.runs[-1]
        session.execute(update(RunRow).where(col(RunRow.id).in_([usual, last])).values(verdict="no_change"))
    assert f"/runs/{last}/spark" in client.get("/upload").text
    make([slow])
    assert f"/runs/{usual}/spark" in client.get("/upload").text, "the newer run is as fast as before, but still slow"
