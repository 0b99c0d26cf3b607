"""The upgrade report at the public door: page, CSV and API over stacks that moved to a new container."""

import csv
import html
import io
import json
import math
import re
import shlex
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyarrow import parquet
from sqlalchemy import Engine, event
from sqlmodel import Session, col, select
from starlette.testclient import TestClient

from app.domain.numbers import THIN, change_text
from app.domain.verdict.comparability import Suspect
from app.domain.verdict.evidence import RankedSuspect
from app.domain.verdict.upgrade import cause_key
from app.regressions.pages import RegressionView
from app.storage import audit
from app.storage.runs import WITH_RESULT
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, RunRow, UpgradeChangeRow
from app.storage.verdicts import show_badges
from app.upgrade.pages import UpgradeQuery, upgrade_page
from app.upgrade.queries import best_labels
from app.upgrade.views import stack_rows
from tests.builders import FIRST_PLACE, make_run, make_stack
from tests.runs.uploading import assert_problem

OLD, NEW = "nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.09"
NOISE = (0.0, 2.0, -2.0, 1.0, -1.0, 3.0, 1.0, -2.0)
LATER = FIRST_PLACE + timedelta(days=8)
ADDRESS = f"/upgrade?project=moe-lab&field=container&from={OLD}&to={NEW}"
KNOWN = {"cluster": "west", "pp_layout": "even", "attention": "flash"}


def stack(session: Session, container: str, ms: float, **fields: Any) -> list[int]:
    """Eight nightly runs that vary by 0.2 %; those of the new container follow those of the old."""
    stated = {**KNOWN, **fields, "container": container}
    times = [ms * (1 + change / 1000) for change in NOISE]
    return make_stack(session, times, fields=stated, started=FIRST_PLACE if container == OLD else LATER)


def moved(session: Session) -> None:
    """Three upgraded stacks, two of them slower; one not upgraded, one new, one that differs in more fields."""
    for seq_len, factor in ((2048, 1.0), (4096, 1.06), (8192, 1.09)):
        stack(session, OLD, 0.1 * seq_len, seq_len=seq_len)
        stack(session, NEW, 0.1 * seq_len * factor, seq_len=seq_len)
    stack(session, OLD, 900.0, model="Mixtral-8x7B", gpu="B200", gpus=64, gbs=64)
    stack(session, NEW, 800.0, model="DeepSeek-V3", gpu="GB200", gpus=256, gbs=8192)
    stack(session, NEW, 500.0, seq_len=4096, cluster="east")
    session.commit()


def report(client: TestClient, **query: str) -> dict[str, Any]:
    answer = client.get("/api/v1/upgrade", params={"project": "moe-lab", **query})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_every_stack_is_measured_named_or_missing(client: TestClient, session: Session) -> None:
    moved(session)
    result = report(client, **{"field": "container", "from": OLD, "to": NEW})
    assert result["schema"] == "threewalls.upgrade/1"
    assert [item["decision"] for item in result["stacks"]] == ["worse", "worse", "no change"]
    assert (
        result["summary"]
        .replace(THIN, " ")
        .startswith("2 of 3 jobs slower by 6.0 to 9.0 %, 1 unchanged; under 0.1 GPU-h/day")
    )
    slowest = result["stacks"][0]
    assert slowest["title"].endswith("seq 8192")
    assert slowest["step_time"]["ci_low_pct"] < 9.0 < slowest["step_time"]["ci_high_pct"]
    assert slowest["p_value"] <= slowest["q_value"] < 0.001
    assert slowest["memory"]["decision"] == "no_change"
    assert (len(slowest["to_runs"]), len(slowest["from_runs"])) == (5, 8), "as judged: over the first five commits"
    sides = f"a={','.join(slowest['from_runs'])}&b={','.join(slowest['to_runs'])}"
    compared = client.get(f"/api/v1/compare?{sides}").json()["metrics"]["step_time_ms"]
    assert slowest["step_time"]["planned_looks"] > 1
    assert compared["ci_low_pct"] > slowest["step_time"]["ci_low_pct"], "one test instead of one after each commit"
    assert slowest["comparability"]["attributed_to"] is None, "no commit ran on both sides"
    assert [[d["field"] for d in item["differences"]] for item in result["differ_in_more"]] == [["cluster"]]
    assert (len(result["only_from"]), len(result["only_to"])) == (1, 1)
    assert result["gpu_hours_per_day"] == pytest.approx(
        sum(item["gpu_hours_per_day"] or 0 for item in result["stacks"])
    )


def test_the_comparison_of_its_runs_names_a_differing_figure(client: TestClient, session: Session) -> None:
    moved(session)
    slowest = report(client, **{"from": OLD, "to": NEW})["stacks"][0]
    sides = f"a={','.join(slowest['from_runs'])}&b={','.join(slowest['to_runs'])}"
    compared = client.get(f"/api/v1/compare?{sides}").json()["metrics"]["step_time_ms"]["delta_pct"]
    judged, tested = (f"{value:.1f}" for value in (slowest["step_time"]["delta_pct"], compared))
    assert ("data-upgrade" in client.get(f"/compare?{sides}").text) == (judged != tested)
    for row in session.exec(select(RegressionMemberRow)):
        row.slow_level = (row.slow_level or 0.0) - 0.004
        row.delta_pct = 100 * math.expm1(row.slow_level - (row.usual_level or 0.0))
    session.commit()
    (judged_again,) = (
        row for row in report(client, **{"from": OLD, "to": NEW})["stacks"] if row["stack_key"] == slowest["stack_key"]
    )
    (note,) = re.findall(r"data-upgrade>(.*?)</p>", client.get(f"/compare?{sides}").text, re.DOTALL)
    assert f"{judged_again['step_time']['delta_pct']:.1f}{THIN}% slower" in note
    assert "data-upgrade" not in client.get(f"/compare?a={slowest['from_runs'][0]}&b={slowest['from_runs'][1]}").text


def test_without_runs_it_says_how_to_send_one(client: TestClient) -> None:
    assert "Nothing to measure yet" in (page := client.get("/upgrade").text)
    assert "data-copy" in page.partition('class="empty"')[2]


def test_the_regression_that_it_opened_is_linked(client: TestClient, session: Session) -> None:
    moved(session)
    of_it = col(RegressionRow.cause_key).startswith("upgrade:container:")
    opened = session.exec(select(RegressionRow).where(of_it)).one()
    result = report(client, **{"from": OLD, "to": NEW})
    assert [(regression["id"], regression["stacks"], regression["metric"]) for regression in result["regressions"]] == [
        (opened.id, 2, "step_time_ms")
    ]
    assert f'<a class="button primary" href="/regressions/{opened.id}">' in one_line(client.get(ADDRESS).text)
    assert ": 2 jobs slower by" in client.get("/regressions").text
    for state, proposal, badge, action in (
        ("open", "stale", "idle", "#shared-commit"),
        ("expected", "", "expected", "#shared-commit"),
    ):
        opened.state, opened.proposal = state, proposal
        session.commit()
        page = one_line(client.get(ADDRESS).text)
        main = page.partition('class="page-head"')[2]
        assert re.findall(r'<a class="button primary" href="([^"]+)">', main) == [action]
        assert re.search(rf'>{badge}</span>\s*<a href="/regressions/{opened.id}"', page)


def test_the_report_and_its_regression_name_the_same_suspects(client: TestClient, session: Session) -> None:
    stack(session, OLD, 400.0)
    new = KNOWN | {"container": NEW}
    (fast,) = make_stack(session, [402.0], fields=new, started=LATER, commits=["e" * 40])
    session.get_one(RunRow, fast).is_steady = False  # no baseline, but not slow
    session.flush()
    make_stack(session, [480.0, 481.0], fields=new, started=LATER + timedelta(days=1), commits=["f" * 40] * 2)
    session.commit()
    (regression,) = report(client, **{"from": OLD, "to": NEW})["regressions"]
    assert regression["suspects"] == ["code likely", "container unlikely"]
    upgrade = client.get(ADDRESS).text
    assert f'data-suspects="{regression["id"]}"' in upgrade
    assert "data-inseparable" not in upgrade
    page = one_line(client.get(f"/regressions/{regression['id']}").text)
    cards = re.findall(r'class="panel suspect".*?<strong>(\w+)</strong> <span class="muted">(\w+)</span>', page)
    assert [f"{axis} {label}" for label, axis in cards] == regression["suspects"]


def one_line(page: str) -> str:
    return re.sub(r"\s+", " ", page)


def test_one_drifting_run_is_unconfirmed(client: TestClient, session: Session) -> None:
    stack(session, OLD, 400.0)
    make_stack(session, [680.0], fields={**KNOWN, "container": NEW}, started=LATER, is_steady=False)
    session.commit()
    (change,) = client.get("/api/v1/upgrades").json()["items"]
    size = f"{change['stacks'][0]['delta_pct']:.1f}\u202f%"
    assert change["sentence"] == f"1 job unconfirmed ({size} slower)"
    assert datetime.fromisoformat(change["at"]) == LATER
    assert change["stacks"][0]["is_unconfirmed"] is True
    measured = report(client, **{"from": OLD, "to": NEW})
    assert measured["summary"].startswith(f"The only job is unconfirmed (slower by {size})")
    (of_job,) = measured["stacks"]
    assert (of_job["decision"], of_job["step_time"]["needs_confirmation"]) == ("unconfirmed", True)
    assert (of_job["gpu_hours_per_day"], measured["gpu_hours_per_day"]) == (None, None)
    assert of_job["comparability"]["attributed_to"] is None, "the code changed as well"
    assert "slower in one run, not steady" in client.get(f"/upgrade?field=container&from={OLD}&to={NEW}").text
    make_stack(session, [680.0, 681.0], fields={**KNOWN, "container": NEW}, started=LATER + timedelta(days=1))
    session.commit()
    (change,) = client.get("/api/v1/upgrades").json()["items"]
    assert change["sentence"].startswith("1 job slower by ")


def test_a_drifting_run_in_a_regression_of_the_upgrade_is_slower_as_its_badge(
    client: TestClient, session: Session
) -> None:
    stack(session, OLD, 400.0)
    [slow] = make_stack(session, [680.0], fields={**KNOWN, "container": NEW}, started=LATER, is_steady=False)
    run = session.get_one(RunRow, slow)
    regression = RegressionRow(
        project_id=run.project_id, kind="upgrade", cause_key=cause_key("container", OLD, NEW), metric="step_time_ms"
    )
    session.add(regression)
    session.flush()
    session.add(
        RegressionMemberRow(
            regression_id=regression.id or 0, run_id=slow, stack_key=run.stack_key, config_key=run.config_key,
            usual_level=math.log(400.0), slow_level=math.log(680.0), delta_pct=70.0,
        )
    )  # fmt: skip
    session.flush()
    show_badges(session, [slow])
    session.commit()
    (change,) = client.get("/api/v1/upgrades").json()["items"]
    (measured,) = report(client, **{"from": OLD, "to": NEW})["stacks"]
    assert client.get("/api/v1/runs").json()["items"][0]["badge"] == "regression"
    assert (change["stacks"][0]["is_unconfirmed"], measured["decision"]) == (False, "worse")


def test_a_job_that_only_one_run_shows_is_not_counted_beside_others_of_the_regression(
    client: TestClient, session: Session
) -> None:
    once = KNOWN | {"seq_len": 1024, "container": NEW}
    stack(session, OLD, 100.0, seq_len=1024)
    make_stack(session, [170.0], fields=once, started=LATER)
    session.commit()
    (alone,) = report(client, **{"from": OLD, "to": NEW})["stacks"]
    assert alone["decision"] == "worse", "the regression has no other job"
    stack(session, OLD, 400.0)
    stack(session, NEW, 440.0)
    session.commit()
    measured = report(client, **{"from": OLD, "to": NEW})
    jobs = {item["stack_key"]: item for item in measured["stacks"]}
    of_one_run = jobs.pop(alone["stack_key"])
    assert (of_one_run["decision"], of_one_run["gpu_hours_per_day"]) == ("in one run", None)
    assert [item["decision"] for item in jobs.values()] == ["worse"]
    assert measured["summary"].startswith("1 of 2 jobs slower by ")
    (upgrade,) = client.get("/api/v1/upgrades").json()["items"]
    assert [item["stack_key"] for item in upgrade["stacks"] if item["is_unconfirmed"]] == [alone["stack_key"]]
    assert all(item["is_in_regression"] for item in upgrade["stacks"]), "their regression lists all of them"
    assert "unconfirmed" not in upgrade["sentence"]
    (other,) = [item["run_id"] for item in upgrade["stacks"] if not item["is_unconfirmed"]]
    (container, *_) = client.get(f"/api/v1/runs/{other}/report").json()["verdict"]["suspects"]
    moves = {move: [job["stack_key"] for job in of] for move, of in container["other_stacks"].items() if of}
    assert moves == {"slower_in_one_run": [alone["stack_key"]]}, "the evidence counts the jobs as the report does"


def test_pages_state_the_figures_of_the_regression_after_the_speed_changed_too(
    client: TestClient, session: Session
) -> None:
    moved(session)
    less, more = session.exec(select(RegressionMemberRow).order_by(col(RegressionMemberRow.delta_pct))).all()
    for member, shift in ((less, 0.002), (more, -0.05)):
        assert member.usual_level
        assert member.slow_level
        member.slow_level += shift
        member.delta_pct = 100 * math.expm1(member.slow_level - member.usual_level)
    session.commit()
    changes = {item["stack_key"]: item["step_time"] for item in report(client, **{"from": OLD, "to": NEW})["stacks"]}
    (upgrade,) = client.get("/api/v1/upgrades").json()["items"]
    listed = {item["stack_key"]: item["delta_pct"] for item in upgrade["stacks"]}
    for member in (less, more):
        change = changes[member.stack_key]
        (begun, _) = client.get(f"/api/v1/history/{member.stack_key}").json()["changes"]
        figures = (change["delta_pct"], listed[member.stack_key], begun["delta_pct"])
        assert figures == pytest.approx((member.delta_pct,) * 3)
        assert change["candidate_ms"] == pytest.approx(math.exp(member.slow_level or 0.0))
    measured = upgrade_page(session, UpgradeQuery("moe-lab", "container", OLD, NEW)).measured
    assert measured is not None
    intervals = {row.stack_key: row.interval for row in stack_rows(measured)}
    assert intervals[less.stack_key] == intervals[more.stack_key] == (None, None), "they are of other figures"
    assert [row.tested != "" for row in stack_rows(measured) if row.word == "worse"] == [True, True]
    assert all(row.line[0] < row.line[1] for row in stack_rows(measured) if row.time)
    assert intervals_of_page(session, less.regression_id) == {less.stack_key: None, more.stack_key: None}
    chosen = select(UpgradeChangeRow).where(col(UpgradeChangeRow.stack_key) == less.stack_key)
    less.delta_pct = session.exec(chosen).one().delta_pct
    session.commit()
    measured = upgrade_page(session, UpgradeQuery("moe-lab", "container", OLD, NEW)).measured
    assert measured is not None
    intervals = {row.stack_key: row.interval for row in stack_rows(measured)}
    assert intervals[more.stack_key] == (None, None)
    assert {row.stack_key for row in stack_rows(measured) if row.tested} == {more.stack_key}
    expected = change_text(less.delta_pct, *intervals[less.stack_key]).interval
    assert intervals_of_page(session, less.regression_id) == {less.stack_key: expected, more.stack_key: None}
    session.get_one(RegressionRow, less.regression_id).metric = "peak_memory_gib"
    session.commit()
    assert set(intervals_of_page(session, less.regression_id).values()) == {None}, "the report measured step time"


def intervals_of_page(session: Session, regression_id: int) -> dict[str, str | None]:
    """Return the intervals of the upgrade that the page of a regression shows, by stack."""
    shown = {row.job.first.stack_key: row.interval_of_upgrade for row in RegressionView(session, regression_id).jobs}
    return {key: interval and interval[0] for key, interval in shown.items()}


def test_the_chart_shows_the_stacks_between_the_ends_of_a_drag(client: TestClient, session: Session) -> None:
    moved(session)
    address = ADDRESS.replace("/upgrade?", "/upgrade/chart?")
    stacks = {
        ends: re.findall(r'"id": (\d)', client.get(f"{address}&first={ends[0]}&last={ends[1]}").text)
        for ends in ((3, 2), (1, 2), (2, 2), (1, 3))
    }
    assert stacks == {(3, 2): ["2", "3"], (1, 2): ["1", "2"], (2, 2): ["1", "2", "3"], (1, 3): ["1", "2", "3"]}


def test_a_drag_leaves_out_what_changed_by_less_or_more(client: TestClient, session: Session) -> None:
    moved(session)
    noisy = KNOWN | {"seq_len": 1024}
    make_stack(session, [100.0, 150.0, 80.0], fields=noisy | {"container": OLD})
    make_stack(session, [110.0, 90.0, 160.0], fields=noisy | {"container": NEW}, started=LATER)
    session.commit()
    address = ADDRESS.replace("/upgrade?", "/upgrade/chart?")

    def changes(ends: str = "") -> dict[str, float]:
        answer = client.get(f"{address}{ends}").text
        spec = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', answer, re.DOTALL)[0])
        return {point["id"]: point["delta"] for point in spec["datasets"]["points"]}

    whole = changes()
    assert list(whole) == [1, 2, 3, 4]
    low, high = sorted((whole[4], whole[1]))
    inside = {rank: change for rank, change in whole.items() if low <= change <= high}
    assert 1 < len(inside) < 4
    assert changes("&first=4&last=1") == inside


def test_the_page_begins_with_the_sentence_and_draws_after_the_figures(client: TestClient, session: Session) -> None:
    moved(session)
    page = client.get(ADDRESS).text.replace(THIN, " ")
    assert re.search(r'<p class="answer">2 of 3 jobs .*6\.0 to 9\.0 %', page)
    assert "data-chart" not in page
    assert "cluster (west → east)" in page
    assert "<code>nvcr.io/nvidia/nemo:26.09</code>" in page
    chart = client.get(ADDRESS.replace("/upgrade?", "/upgrade/chart?"), headers={"HX-Request": "true"}).text
    assert chart.count('"word": "worse"') == 2


def test_what_ran_on_other_commits_is_not_attributed_to_the_container_alone(
    client: TestClient, session: Session
) -> None:
    stack(session, OLD, 400.0)
    new = stack(session, NEW, 440.0)
    session.commit()
    assert "No commit ran on both" in client.get(ADDRESS).text
    for run, before in zip(new, range(1, 9), strict=True):
        session.get_one(RunRow, run).commit = session.get_one(RunRow, before).commit
    session.commit()
    assert "Only the container differs" in client.get(ADDRESS).text
    (same_code,) = report(client, **{"from": OLD, "to": NEW})["stacks"]
    assert same_code["comparability"]["attributed_to"] == "container"


def test_the_step_that_separates_the_upgrade_from_the_code_is_offered_until_a_commit_ran_on_both(
    client: TestClient, session: Session
) -> None:
    stack(session, OLD, 400.0)
    new = stack(session, NEW, 440.0)
    session.commit()
    page = client.get(ADDRESS).text
    assert '<a class="button" href="#shared-commit">Run one commit in both containers</a>' in page
    fold = html.unescape(page[page.index('id="shared-commit"') :])
    command = re.search(r"curl --fail-with-body .*?/api/v1/runs", fold)
    assert command is not None
    part = next(word for word in shlex.split(command[0]) if word.startswith("meta="))
    meta = json.loads(part.removeprefix("meta="))
    newest = session.get_one(RunRow, 8)
    assert (meta["commit"], meta["container"], meta["purpose"]) == (newest.commit, NEW, "ci")
    assert meta["branch"] != newest.branch
    added = session.get_one(RunRow, new[-1])
    added.commit, added.branch = meta["commit"], meta["branch"]
    session.commit()
    assert "shared-commit" not in client.get(ADDRESS).text


def test_the_suspects_of_an_upgrade_lead_to_the_step_that_separates_them(client: TestClient, session: Session) -> None:
    stack(session, OLD, 400.0)
    first, *_ = stack(session, NEW, 440.0)
    session.commit()
    opened = session.exec(select(RegressionMemberRow).where(RegressionMemberRow.run_id == first)).one()
    page = html.unescape(client.get(f"/regressions/{opened.regression_id}").text)
    suspects = page[page.index('id="suspects"') :]
    cards = re.findall(r"<code>(container|commit)</code>.*?</li>", suspects, re.DOTALL)
    assert sorted(cards) == ["commit", "container"]
    (action,) = re.findall(r'<a class="button"\s+href="(/upgrade[^"]+)#shared-commit"', suspects)
    assert parse_qs(urlsplit(action).query) == parse_qs(urlsplit(ADDRESS).query)
    assert len(re.findall(rf'href="/compare\?a=\d+&b={first}"', page)) == 1


def test_the_list_and_the_report_state_the_same_changes(client: TestClient, session: Session) -> None:
    moved(session)
    members = session.exec(select(RegressionMemberRow)).all()
    for member in members:
        assert member.slow_level
        assert member.usual_level
        member.slow_level += 0.002
        member.delta_pct = 100 * math.expm1(member.slow_level - member.usual_level)
    session.commit()
    pages = {
        item["stack_key"]: (
            *(item["step_time"][name] for name in ("decision", "delta_pct", "ci_low_pct", "ci_high_pct")),
            item["interval_level_pct"],
            len(item["to_runs"]),
            len(item["from_runs"]),
        )
        for item in report(client, **{"from": OLD, "to": NEW})["stacks"]
    }
    (upgrade,) = client.get("/api/v1/upgrades").json()["items"]
    for address in ("/upgrade", f"/upgrade?project={upgrade['project']}"):
        opened = client.get(address, follow_redirects=False)
        assert (opened.status_code, "from=" in opened.headers["location"]) == (303, True)
    names = ("decision", "delta_pct", "ci_low_pct", "ci_high_pct", "interval_level_pct", "runs", "from_runs")
    assert {item["stack_key"]: tuple(item[name] for name in names) for item in upgrade["stacks"]} == pages
    slower = [change[1] for change in pages.values() if change[0] == "regression"]
    assert sorted(slower) == pytest.approx(sorted(member.delta_pct or 0.0 for member in members))
    low, high = sorted(slower)
    assert upgrade["sentence"].startswith(f"2 jobs slower by {low:.1f} to {high:.1f}")


def test_a_job_that_was_slow_before_the_upgrade_is_not_counted_as_slower_by_it(
    client: TestClient, session: Session
) -> None:
    moved(session)
    first, second = session.exec(select(RegressionMemberRow).order_by(col(RegressionMemberRow.delta_pct))).all()
    opened = session.get_one(RegressionRow, second.regression_id)
    older = RegressionRow(
        **opened.model_dump(exclude={"id", "kind", "cause_key"}), kind="run", cause_key=f"code:{'e' * 40}"
    )
    session.add(older)
    session.flush()
    session.add(RegressionMemberRow(**second.model_dump(exclude={"regression_id"}), regression_id=older.id))
    session.delete(second)
    change = session.exec(select(UpgradeChangeRow).where(UpgradeChangeRow.stack_key == second.stack_key)).one()
    audit.record(
        session, who=audit.SERVICE, subject="regression", subject_id=older.id or 0, action="continued",
        project_id=older.project_id, before={"stack": change.from_stack_key},
        after={"run": second.run_id, "stack": second.stack_key},
    )  # fmt: skip
    session.commit()
    result = report(client, **{"from": OLD, "to": NEW})
    stated = {item["stack_key"]: (item["decision"], item["already_slow"]) for item in result["stacks"]}
    assert stated[second.stack_key] == ("already slow", older.id)
    assert stated[first.stack_key] == ("worse", None)
    assert [item["gpu_hours_per_day"] for item in result["stacks"] if item["already_slow"]] == [None]
    assert result["summary"].startswith("1 of 3 jobs slower")
    (upgrade,) = client.get("/api/v1/upgrades").json()["items"]
    assert {item["stack_key"]: item["already_slow"] for item in upgrade["stacks"]}[second.stack_key] == older.id
    assert upgrade["sentence"].startswith("1 job slower")
    assert f'href="/regressions/{older.id}"' in client.get(ADDRESS).text
    changes = client.get(f"/api/v1/history/{second.stack_key}").json()["changes"]
    assert next(change["decision"] for change in changes if change["kind"] == "container") == "already slow"


def test_a_job_that_was_not_upgraded_directly_is_compared_but_not_counted(client: TestClient, session: Session) -> None:
    moved(session)
    skipped = session.exec(select(UpgradeChangeRow).where(UpgradeChangeRow.decision != "regression")).all()
    assert len(skipped) == 1
    session.delete(skipped[0])
    session.commit()
    answer = report(client, **{"from": OLD, "to": NEW})
    assert [row["judged"] for row in answer["stacks"]] == [True, True, False]
    other = answer["stacks"][-1]
    assert other["decision"] == "not judged"
    assert [other[name]["decision"] for name in ("step_time", "memory")] == [None, None]
    assert other["step_time"]["delta_pct"] is not None
    (upgrade,) = client.get("/api/v1/upgrades").json()["items"]
    assert upgrade["sentence"].startswith("2 jobs slower")
    assert answer["summary"].startswith("All 2 jobs slower")
    page = client.get("/upgrade", params={"project": "moe-lab", "field": "container", "from": OLD, "to": NEW}).text
    before, fold = one_line(page).split('id="not-direct"')
    assert "2 jobs upgraded directly" in before
    assert "1 job not upgraded directly" in before
    assert (before.count('data-label="Before"'), fold.count('data-label="Before"')) == (2, 1)
    chart = client.get(ADDRESS.replace("/upgrade?", "/upgrade/chart?")).text
    assert re.findall(r'"id": (\d)', chart) == ["1", "2"]


def test_no_two_jobs_look_alike_and_an_outlier_does_not_squeeze_the_others(
    client: TestClient, session: Session
) -> None:
    for container, started, factor, noisy in (
        (OLD, FIRST_PLACE, 1.0, (1.0, 1.5, 0.8)),
        (NEW, LATER, 1.1, (2.0, 1.0, 3.0)),
    ):
        fields = KNOWN | {"container": container}
        for job in ("nightly/long_name_of_a_job_dp_last/west", "nightly/long_name_of_a_job/west"):
            times = [400.0 * factor * (1 + change / 1000) for change in NOISE]
            make_stack(session, times, fields=fields, started=started, job=job)
        times = [200.0 * number for number in noisy]
        make_stack(session, times, fields=fields | {"seq_len": 2048}, started=started)
    session.commit()
    answer = client.get(ADDRESS.replace("/upgrade?", "/upgrade/chart?")).text
    spec = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', answer, re.DOTALL)[0])
    *others, outlier = spec["datasets"]["points"]
    assert [point["is_quiet"] for point in (*others, outlier)] == [False, False, True], "inconclusive ones come last"
    names = [f"{point['first_line']}{point['last_line']}" for point in spec["datasets"]["points"]]
    assert len({name[:20] for name in names}) == 3
    assert [round(point["delta"]) for point in others] == [10, 10]
    changes = [row["step_time"]["delta_pct"] for row in report(client, **{"from": OLD, "to": NEW})["stacks"]]
    assert sorted(point["delta"] for point in (outlier, *others)) == sorted(changes)
    assert [point["shown"] for point in others] == [point["delta"] for point in others]
    assert outlier["delta"] > 3 * max(point["delta"] for point in others)
    assert outlier["high"] == outlier["shown"] < outlier["delta"], "it is drawn at the edge, and its interval is cut"
    assert (outlier["mark"], {point["mark"] for point in others}) == ("triangle-right", {"worse"})
    assert outlier["shown"] <= 1.5 * max(point["high"] for point in others)
    assert re.fullmatch(rf"\d{{3,}}{THIN}% ▸", outlier["beyond"])
    assert {point["beyond"] for point in others} == {""}
    slide = client.get(ADDRESS.replace("/upgrade?", "/upgrade/picture.svg?")).text
    assert slide.count("<circle") == len(others), "a slide has the decided jobs"


def test_both_step_times_give_the_printed_change_and_the_intervals_are_named(
    client: TestClient, session: Session
) -> None:
    moved(session)
    page = client.get(ADDRESS).text.replace(THIN, " ")
    rows = [row for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if 'data-label="Before"' in row]
    assert len(rows) == 3
    for row in rows[:2]:
        before, after = (
            float(re.search(rf'data-label="{side}">\s*([\d.,]+) ms', row)[1].replace(",", ""))  # type: ignore[index]
            for side in ("Before", "After")
        )
        assert f"{100 * (after / before - 1):.1f} % slower" in row
    assert "Lines: 99 % intervals of the test." in page
    stacks = report(client, **{"from": OLD, "to": NEW})["stacks"]
    levels = {row["decision"]: row["step_time"] for row in stacks}
    stated = {row["decision"]: row["interval_level_pct"] for row in stacks}
    assert (stated["worse"], stated["no change"]) == (pytest.approx(99.75), pytest.approx(97.5))
    chart = client.get(ADDRESS.replace("/upgrade?", "/upgrade/chart?")).text
    spec = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', chart, re.DOTALL)[0])
    drawn = {point["word"]: point["high"] - point["low"] for point in spec["datasets"]["points"]}
    decided = {word: time["ci_high_pct"] - time["ci_low_pct"] for word, time in levels.items()}
    assert drawn["worse"] < decided["worse"], "it was decided at a higher level"
    assert drawn["no change"] > decided["no change"], "it was decided at a lower level"


def test_the_table_is_exported(client: TestClient, session: Session) -> None:
    moved(session)
    rows = list(csv.DictReader(io.StringIO(client.get(ADDRESS.replace("/upgrade?", "/upgrade.csv?")).text)))
    assert [row["decision"] for row in rows] == ["worse", "worse", "no change"]
    assert 0 < float(rows[0]["q_value"]) < 0.001
    assert float(rows[0]["delta_pct"]) == pytest.approx(9.0, abs=0.1)
    answer = client.get(ADDRESS.replace("/upgrade?", "/api/v1/upgrade?format=parquet&"))
    table = parquet.read_table(io.BytesIO(answer.content)).to_pylist()
    assert [(row["stack"], row["delta_pct"]) for row in table] == [
        (row["stack"], float(row["delta_pct"])) for row in rows
    ]
    names = ("stack_key", "from_stack_key", "job", "decision", "shares_commits", "judged")
    stacks = client.get(ADDRESS.replace("/upgrade?", "/api/v1/upgrade?")).json()["stacks"]
    assert [[row[name] for name in names] for row in table] == [[stack[name] for name in names] for stack in stacks]
    assert "judged" in rows[0]


def test_a_version_in_no_key_is_compared_run_by_run(client: TestClient, session: Session) -> None:
    times = [400 * (1 + change / 1000) for change in NOISE]
    make_stack(session, times, fields={**KNOWN, "driver": "570.1"})
    make_stack(session, [1.08 * time for time in times], fields={**KNOWN, "driver": "580.2"}, started=LATER)
    session.commit()
    result = report(client, **{"field": "driver", "from": "570.1", "to": "580.2"})
    assert "slower by 8.0 %" in result["summary"].replace(THIN, " ")


def test_contracts_are_read_again_only_for_a_run_that_was_processed_again(
    client: TestClient, engine: Engine, session: Session
) -> None:
    runs = make_stack(session, [400.0] * 3, fields={**KNOWN, "driver": "570.1"})
    session.commit()
    read: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def record(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        read.extend([statement] if "contract" in statement and "driver" in str(parameters) else [])

    for _ in range(2):
        values = report(client, field="driver")["values"]
        assert [(value["value"], value["runs"]) for value in values] == [("570.1", 3)]
    assert len(read) == 1
    row = session.get_one(RunRow, runs[-1], options=[WITH_RESULT])
    row.result.contract = row.result.contract | {"driver": row.result.contract["driver"] | {"value": "580.2"}}
    row.processed_at = LATER
    session.commit()
    values = report(client, field="driver")["values"]
    assert {(value["value"], value["runs"]) for value in values} == {("570.1", 2), ("580.2", 1)}


def test_remembered_configurations_follow_every_change(client: TestClient, session: Session) -> None:
    first, *_, last = stack(session, OLD, 400.0)
    numbers = []
    for change in ("none", "quarantine", "delete", "add", "read again"):
        if change == "quarantine":
            session.get_one(RunRow, last).quarantine = "bad node"
        elif change == "delete":
            session.delete(session.get_one(RunRow, first))
        elif change == "add":
            added = stack(session, OLD, 400.0, seq_len=2048)
        elif change == "read again":
            row = session.get_one(RunRow, added[-1], options=[WITH_RESULT])
            row.result.contract = row.result.contract | {"container": row.result.contract["container"] | {"value": NEW}}
            row.processed_at = LATER
        session.commit()
        values = report(client)["values"]
        numbers.append(values[0]["runs"])
    assert numbers[:-1] == [8, 7, 6, 14]
    assert {value["value"] for value in values} == {OLD, NEW}


def test_runs_that_cannot_be_a_baseline_are_on_no_side(client: TestClient, session: Session) -> None:
    slow = stack(session, OLD, 400.0)
    make_run(
        session, quarantine="bad node", contract={"container": {"value": "x:1", "source": "metadata", "detail": ""}}
    )
    session.commit()
    values = report(client)["values"]
    assert [(value["value"], value["runs"], value["newest_run"]) for value in values] == [(OLD, 8, slow[-1])]


def test_without_a_choice_it_offers_what_has_runs_on_both_sides(client: TestClient, session: Session) -> None:
    moved(session)
    assert report(client)["offers"] == [{"from": OLD, "to": NEW, "stacks": 3}]
    page = client.get("/upgrade").text
    assert "from=nvcr.io%2Fnvidia%2Fnemo%3A26.06&amp;to=nvcr.io%2Fnvidia%2Fnemo%3A26.09" in page
    assert report(client, field="cudnn_version")["offers"] == []
    assert "cudnn_version" in client.get("/upgrade?field=cudnn_version").text


def test_without_versions_it_opens_the_upgrade_to_the_newest_with_most_decided_jobs(
    client: TestClient, session: Session
) -> None:
    moved(session)
    middle = FIRST_PLACE + timedelta(days=4)
    stated = {**KNOWN, "seq_len": 16384}
    make_stack(session, [1638.0, 1640.0], fields={**stated, "container": "nvcr.io/nvidia/nemo:26.07"}, started=middle)
    late = LATER + timedelta(days=20)
    make_stack(session, [2700.0], fields={**stated, "container": NEW}, started=late, is_steady=False)
    session.commit()
    newest, *_ = client.get("/api/v1/upgrades").json()["items"]
    assert (newest["from_value"], newest["stacks"][0]["is_unconfirmed"]) == ("nvcr.io/nvidia/nemo:26.07", True)
    opened = client.get("/upgrade", follow_redirects=False).headers["location"]
    assert "from=nvcr.io%2Fnvidia%2Fnemo%3A26.06&to=nvcr.io%2Fnvidia%2Fnemo%3A26.09" in opened


def test_a_value_without_runs_says_so(client: TestClient, session: Session) -> None:
    stack(session, OLD, 400.0)
    session.commit()
    result = report(client, **{"from": "a:1", "to": "b:<i>2"})
    assert (result["stacks"], "a:1 or b:<i>2" in result["summary"]) == ([], True)
    assert "<i>" not in client.get("/upgrade?from=a:1&to=b:<i>2").text


def test_a_wrong_question_is_refused(client: TestClient, session: Session) -> None:
    assert "No projects yet" in client.get("/upgrade").text
    session.add(ProjectRow(slug="one"))
    session.commit()
    assert_problem(client.get("/api/v1/upgrade?field=dispatcher"), 422, field="field")
    for address in ("/api/v1/upgrade", "/api/v1/upgrades", "/api/v1/availability"):
        assert_problem(client.get(f"{address}?colour=red"), 422, field="colour")
    assert_problem(client.get("/api/v1/upgrade?project=none"), 404, "Project 'none' does not exist")


def test_each_cause_is_named_once_with_its_best_label() -> None:
    suspects = [
        RankedSuspect(Suspect(axis, field, ""), support, None, None)
        for axis, field, support in (
            ("container", "container", "open"), ("code", "commit", "open"), ("code", "commit", "unlikely"),
        )
    ]  # fmt: skip
    assert [*best_labels(suspects).items()] == [("container", "possible"), ("code", "possible")]
