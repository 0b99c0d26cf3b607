"""The first page: what needs attention first, by cost; the newest verdicts; a period and a branch in the address."""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.numbers import THIN
from app.storage import users
from app.storage.database import transaction
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow
from tests.access.conftest import teams
from tests.access.people import Teams
from tests.builders import make_run

__all__ = ["teams"]

Make = Callable[..., int]
ATTACK = "<script>alert(1)</script>"


@pytest.fixture
def make(engine: Engine) -> Make:
    def make(**columns: Any) -> int:
        with transaction(engine) as session:
            return make_run(session, **columns)

    return make


@pytest.fixture
def make_regression(engine: Engine) -> Make:
    def make_regression(run: int, **columns: Any) -> int:
        with transaction(engine) as session:
            row = session.get_one(RunRow, run)
            regression = RegressionRow(
                project_id=row.project_id, kind="run", cause_key=f"run {run}", metric="step_time_ms", **columns
            )
            session.add(regression)
            session.flush()
            session.add(
                RegressionMemberRow(
                    regression_id=regression.id or 0, run_id=run, stack_key=row.stack_key, config_key=row.config_key
                )
            )
            return regression.id or 0

    return make_regression


def overview(client: TestClient, query: str = "") -> str:
    answer = client.get(f"/?{query}")
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text).replace(THIN, " ")


def answer(text: str) -> str:
    match = re.search(r'<p class="answer">(.*?)</p>', text)
    return match[1] if match else ""


def table(text: str) -> list[str]:
    section = text.partition('id="regressions"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", section, re.DOTALL)[1:]
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)).strip() for row in rows]


def test_open_regressions_stand_first_the_dearest_at_the_top(
    client: TestClient, make: Make, make_regression: Make
) -> None:
    run = make(commit="feedface01")
    make_regression(run, worst_delta_pct=2.0, gpu_hours_per_day=None)
    make_regression(run, worst_delta_pct=9.8, gpu_hours_per_day=62.2, cause=ATTACK)
    make_regression(run, worst_delta_pct=3.4, gpu_hours_per_day=55.4, assignee="Ada")
    make_regression(run, state="acknowledged", worst_delta_pct=1.5, gpu_hours_per_day=500.0)
    make_regression(run, state="fixed", gpu_hours_per_day=900.0)
    text = overview(client)
    assert answer(text) == (
        "3 open and 1 acknowledged regressions cost about 618 GPU-hours a day, 1 of them at unknown cost."
    )
    rows = table(text)
    assert [row.partition(" step time ")[0] for row in rows] == ["500 h/d", "62 h/d", "55 h/d", "unknown"]
    assert "9.8 % slower" in rows[1]
    assert f"Qwen3-30B-A3B 16 × H100 alltoall feedface , #{run} open unassigned" in rows[1]
    assert rows[2].endswith("open Ada")
    assert ATTACK not in client.get("/").text
    assert re.search(r'title="3 open regressions">3<', text)


def test_one_regression_of_unknown_cost_is_said_so(client: TestClient, make: Make, make_regression: Make) -> None:
    make_regression(make())
    assert answer(overview(client)) == "1 open regression; cost unknown."


def test_a_branch_and_a_period_narrow_everything(client: TestClient, make: Make, make_regression: Make) -> None:
    old = datetime.now(UTC) - timedelta(days=20)
    make_regression(make(branch="main"), gpu_hours_per_day=10.0)
    make(name="ancient", branch="main", created_at=old, verdict="regression", verdict_delta_pct=3.0)
    make(name="recent", branch="dev", verdict="no_change", verdict_delta_pct=0.1)
    make(name="gone wrong", branch="dev", health={"outcome": "failed"})
    on_dev = overview(client, "branch=dev")
    assert answer(on_dev) == "No active regressions on dev."
    assert "1 of 2 runs in the last 7 days on dev failed." in on_dev
    assert 'href="/runs?branch=dev&outcome=failed"' in on_dev
    verdicts = on_dev.partition('id="verdicts"')[2].partition("</section>")[0]
    assert "recent" in verdicts
    assert "ancient" not in overview(client).partition('id="verdicts"')[2].partition("</section>")[0]
    month = overview(client, "days=30")
    assert "ancient" in month.partition('id="verdicts"')[2].partition("</section>")[0]
    assert '<option value="30" selected>30 days</option>' in month


@pytest.mark.parametrize("query", ["days=8", "days=-1", "days=x", "branch=%00", "project=%00", "branch=" + "b" * 400])
def test_a_period_that_means_nothing_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/?{query}").status_code == 422


def test_a_branch_that_nobody_has_is_shown_and_finds_nothing(client: TestClient, make: Make) -> None:
    make()
    text = overview(client, "branch=nobody%3Cb%3E")
    assert "<option selected>nobody<b></option>" in text
    assert "Nothing was uploaded in the last 7 days on nobody<b>." in text
    assert "nobody<b>" not in client.get("/?branch=nobody%3Cb%3E").text


def test_nothing_to_do_is_said_calmly(client: TestClient, make: Make) -> None:
    make()
    text = overview(client)
    assert answer(text) == "No active regressions."
    assert "A regression opens automatically" in text
    assert "A run is judged once" in text


def test_one_team_s_morning_page_is_an_address(client: TestClient, make: Make, make_regression: Make) -> None:
    assert 'name="project"' not in overview(client)
    make_regression(make(project="red", name="red-run"), gpu_hours_per_day=10.0, cause="a red cause")
    make(project="blue", name="blue-run", branch="side", verdict="no_change", verdict_delta_pct=0.1)
    everything = overview(client)
    assert "red-run" in everything and "blue-run" in everything and "a red cause" in everything  # noqa: PT018
    blue = overview(client, "project=blue")
    assert "<option selected>blue</option>" in blue
    assert ("blue-run" in blue, "red-run" in blue, "a red cause" in blue) == (True, False, False)
    assert answer(blue) == "No active regressions in blue."
    assert "1 run in the last 7 days in blue" in blue
    assert 'href="/regressions?project=blue"' in blue
    assert '"project": "blue"' in blue
    assert answer(overview(client, "project=nosuch")) == "No visible runs in nosuch."


def test_who_has_no_project_or_an_empty_one_hears_so(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        users.create_user(session, "olga", by="test", issuer="https://id.example.org", subject="1")
        known = {**teams.users, "olga": users.find_user(session, "olga").id or 0}  # type: ignore[union-attr]
        users.create_user(session, "zed", by="test", administrator=True)
    olga = replace(teams, users=known).client("olga")
    first = html.unescape(re.sub(r"<[^>]+>", "", olga.get("/").text))
    assert "You have no role in any project yet." in first
    assert "Ask a maintainer of your team's project or " in first
    assert "administrator or zed to add olga." in first
    assert "Nothing has been uploaded" not in first
    assert "curl" not in first
    viewer, contributor = (teams.client(who).get("/").text for who in ("viewer", "contributor"))
    assert "Nothing has been uploaded to alpha yet." in viewer
    assert "ask a maintainer to make <strong>viewer</strong> a contributor" in viewer
    assert ("Ask a maintainer of your team's project" in viewer, "curl" in viewer) == (False, False)
    assert "Authorization: Bearer $THREEWALLS_TOKEN" in contributor
    assert '"project": "alpha"' in html.unescape(contributor)
    assert "No project with runs is public." in teams.client("anonymous").get("/").text
    with transaction(teams.engine) as session:
        make_run(session, project="window")
    assert "You have no role in any project yet, so you see public projects only." in olga.get("/").text
