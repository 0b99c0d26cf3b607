"""The first page: the trend, regressions by cost, failures by cause; period and branch in the URL."""

import contextlib
import hashlib
import html
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.numbers import THIN
from app.overview.trend import HEIGHT, MOST_LINES
from app.storage import audit, users
from app.storage.database import transaction
from app.storage.example_runs import loading_examples
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow, UpgradeChangeRow
from tests.access.people import Teams
from tests.builders import make_run

Make = Callable[..., int]
Upgraded = Callable[[int, str, float, float], None]
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
                project_id=row.project_id, kind="run", cause_key=f"run {run}",
                **({"metric": "step_time_ms"} | columns),
            )  # fmt: skip
            session.add(regression)
            session.flush()
            session.add(
                RegressionMemberRow(
                    regression_id=regression.id or 0,
                    run_id=run,
                    stack_key=row.stack_key,
                    config_key=row.config_key,
                    delta_pct=columns.get("worst_delta_pct"),
                )
            )
            return regression.id or 0

    return make_regression


def overview(client: TestClient, query: str = "") -> str:
    answer = client.get(f"/?{query}")
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text).replace(THIN, " ")


def answer(text: str) -> str:
    """Return the lead and the sentence of the trend below it."""
    match = re.search(r'<p class="answer"[^>]*>(.*?)</p>\s*(?:<p class="measured">(.*?)</p>)?', text, re.DOTALL)
    return " ".join(part.strip() for part in match.groups("")).strip() if match else ""


def counts(text: str, *names: str) -> dict[str, float | None]:
    """Return the counts of the first sentence: regressions by state, their cost, runs of the period."""
    match = re.search(r'<p class="answer"([^>]*)>', text)
    assert match is not None
    data = dict(re.findall(r'data-(\w+)="([\d.]*)"', match[1]))
    return {name: float(data[name]) if data[name] else None for name in names}


def table(text: str) -> list[str]:
    section = text.partition('id="regressions"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr data-[^>]*>(.*?)</tr>", section, re.DOTALL)
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)).strip() for row in rows]


def test_open_regressions_stand_first_the_dearest_at_the_top(
    client: TestClient, make: Make, make_regression: Make
) -> None:
    run = make(commit="feedface01")
    make_regression(run, worst_delta_pct=2.0, gpu_hours_per_day=None)
    dearest = make_regression(run, worst_delta_pct=9.8, gpu_hours_per_day=62.2, cause=ATTACK)
    make_regression(run, worst_delta_pct=3.4, gpu_hours_per_day=55.4, assignee="Ada")
    make_regression(run, state="acknowledged", worst_delta_pct=1.5, gpu_hours_per_day=500.0)
    make_regression(run, state="fixed", gpu_hours_per_day=900.0)
    text = overview(client)
    assert "618 GPU-h/day" in answer(text)
    assert answer(text).startswith("Qwen3-30B-A3B on H100 is up to 9.8 % slower, at least 618 GPU-h/day.")
    assert counts(text, "open", "acknowledged", "hours") == {"open": 3, "acknowledged": 1, "hours": 617.6}
    rows = table(text)
    assert [row.split(" ")[0] for row in rows] == ["500", "62", "55", "unknown"]
    assert "9.8 % slower" in rows[1]
    assert f"#{run} Take" in rows[1]
    assert rows[2].endswith("Ada")
    assert f'href="/regressions/{dearest}#decisions"' in text
    assert ATTACK not in client.get("/").text
    assert re.search(r'title="3 regressions to triage">3<', text)


def test_one_regression_of_unknown_cost_is_marked(client: TestClient, make: Make, make_regression: Make) -> None:
    make_regression(make())
    assert counts(overview(client), "open", "hours") == {"open": 1, "hours": None}


def test_a_branch_and_a_period_narrow_everything(client: TestClient, make: Make, make_regression: Make) -> None:
    old = datetime.now(UTC) - timedelta(days=20)
    make_regression(make(branch="main"), gpu_hours_per_day=10.0)
    make(name="ancient", branch="main", created_at=old, verdict="regression", verdict_delta_pct=3.0)
    make(name="recent", branch="dev", verdict="no_change", verdict_delta_pct=0.1)
    make(name="gone wrong", branch="dev", health={"outcome": "failed"})
    on_dev = overview(client, "branch=dev")
    assert counts(on_dev, "open", "runs", "failed") == {"open": 0, "runs": 2, "failed": 1}
    assert 'href="/runs?branch=dev&outcome=failed"' in on_dev
    assert counts(overview(client), "open", "runs", "failed") == {"open": 1, "runs": 4, "failed": 1}
    week = overview(client, "days=7")
    assert counts(week, "runs", "failed") == {"runs": 3, "failed": 1}
    assert '<option value="7" selected>7 days</option>' in week


@pytest.mark.parametrize("query", ["days=8", "days=-1", "days=x", "branch=%00", "project=%00", "branch=" + "b" * 400])
def test_a_period_that_means_nothing_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/?{query}").status_code == 422


def test_an_unknown_branch_is_shown_as_filter_and_matches_nothing(client: TestClient, make: Make) -> None:
    make()
    text = overview(client, "branch=nobody%3Cb%3E")
    assert "<option selected>nobody<b></option>" in text
    assert counts(text, "runs") == {"runs": 0}
    assert "nobody<b>" not in client.get("/?branch=nobody%3Cb%3E").text


def test_nothing_to_do_is_stated_calmly(client: TestClient, make: Make) -> None:
    make()
    text = overview(client)
    assert counts(text, "open", "acknowledged") == {"open": 0, "acknowledged": 0}
    assert "data-regression=" not in text


def test_the_lead_names_the_day_of_old_data_instead_of_now(
    client: TestClient, make: Make, make_regression: Make
) -> None:
    runs = nightly(make, "hub.example/train:1", 1, [20_000, 21_000, 21_000])
    make_regression(runs[1], gpu_hours_per_day=0.0, proposal="fixed")
    assert "1 regression to close; none ran in the last 14 days (newest run 3 Sep)." in answer(overview(client))
    make_regression(runs[2], gpu_hours_per_day=0.0)
    assert "1 open regression; none ran in the last 14 days (newest run 3 Sep)." in answer(overview(client))
    make(purpose="ci", ordered_at=datetime.now(UTC))
    assert "1 open regression; none costs GPU time now." in answer(overview(client))


def test_the_lead_names_a_slowdown_that_costs_nothing_now(
    client: TestClient, make: Make, make_regression: Make
) -> None:
    runs = nightly(make, "hub.example/train:1", 1, [20_000, 21_000, 21_000])
    make_regression(runs[2], gpu_hours_per_day=0.0, worst_delta_pct=5.0)
    assert "Qwen3-30B-A3B on H100 is 5.0 % slower (last ran 3 Sep)." in answer(overview(client))
    make_regression(make(name="idle"), gpu_hours_per_day=0.0, worst_delta_pct=3.0, proposal="stale")
    make_regression(make(name="large"), metric="peak_memory_gib", worst_delta_pct=9.0)
    assert "Qwen3-30B-A3B on H100 is 5.0 % slower (last ran 3 Sep); 1 more open." in answer(overview(client))


def test_one_team_s_morning_page_is_an_address(client: TestClient, make: Make, make_regression: Make) -> None:
    assert 'name="project"' not in overview(client)
    make_regression(make(project="red", name="red-run"), gpu_hours_per_day=10.0, cause="a red cause")
    make(project="blue", name="blue-run", branch="side", verdict="no_change", verdict_delta_pct=0.1)
    everything = overview(client)
    assert "a red cause" in everything
    assert counts(everything, "open", "runs") == {"open": 1, "runs": 2}
    blue = overview(client, "project=blue")
    assert "<option selected>blue</option>" in blue
    assert "a red cause" not in blue
    assert counts(blue, "open", "runs") == {"open": 0, "runs": 1}
    assert 'href="/regressions?project=blue"' in blue
    assert '"project": "blue"' in blue
    assert counts(overview(client, "project=nosuch"), "open", "runs") == {"open": 0, "runs": 0}


def test_users_without_runs_get_an_explanation(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        users.create_user(session, "olga", by="test", issuer="https://id.example.org", subject="1")
        user_ids = {**teams.users, "olga": users.find_user(session, "olga").id or 0}
        users.create_user(session, "zed", by="test", administrator=True)
    olga = replace(teams, users=user_ids).client("olga")
    first = olga.get("/").text
    request = first.partition('data-no-role="olga"')[2].partition("</p>")[0]
    assert all(name in request for name in ("administrator", "zed", "<strong>olga</strong>"))
    assert "curl" not in first
    viewer, contributor = (teams.client(who).get("/").text for who in ("viewer", "contributor"))
    assert all(part in viewer for part in ("uploaded to alpha yet", "<strong>viewer</strong>"))
    assert ("data-no-role" in viewer, "curl" in viewer) == (False, False)
    assert "Authorization: Bearer $THREEWALLS_TOKEN" in contributor
    assert '"project": "alpha"' in html.unescape(contributor)
    anonymous = teams.client("anonymous").get("/").text
    assert ("data-no-role" in anonymous, "curl" in anonymous) == (False, False)
    with transaction(teams.engine) as session:
        make_run(session, project="window")
    assert 'class="notice" data-no-role="olga"' in re.sub(r"\s+", " ", olga.get("/").text)


def nightly(
    make: Make, container: str, first: int, milliseconds: Sequence[float], *, gpus: int = 16, **columns: Any
) -> list[int]:
    """Make a nightly run of a stack in `container` for each step time, from day `first` on."""
    key = hashlib.sha256(container.encode()).hexdigest()
    stated = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": gpus, "seq_len": 4096, "container": container}
    return [
        make(
            purpose="ci", stack_key=key, step_time_ms=value, log_step_time=math.log(value), is_steady=True, short=False,
            ordered_at=datetime(2026, 9, 1, 3, tzinfo=UTC) + timedelta(days=first - 1 + day),
            contract={name: {"value": of, "source": "metadata"} for name, of in stated.items()}, **columns,
        )
        for day, value in enumerate(milliseconds)
    ]  # fmt: skip


@pytest.fixture
def upgraded(engine: Engine) -> Upgraded:
    def upgraded(run: int, decision: str, from_ms: float, to_ms: float) -> None:
        """Store the judged upgrade to a container of which this is the first run."""
        with transaction(engine) as session:
            row = session.get_one(RunRow, run)
            container = row.result.contract["container"]["value"]
            session.add(
                UpgradeChangeRow(
                    project_id=row.project_id, stack_key=row.stack_key, config_key=row.config_key, from_stack_key="",
                    job=row.job, run_id=run, at=row.ordered_at, field="container",
                    from_value=container.replace("new:", "train:").replace("train:2", "train:1"), decision=decision,
                    level=math.log(to_ms), delta_pct=100 * (to_ms / from_ms - 1), ci_low_pct=-60.0, ci_high_pct=60.0,
                    runs=3, from_runs=3,
                )
            )  # fmt: skip

    return upgraded


def test_the_trend_is_of_a_workload_across_containers(client: TestClient, make: Make, make_regression: Make) -> None:
    before = nightly(make, "hub.example/train:1", 1, [20_000, 20_100, 19_900, 20_000])
    after = nightly(make, "hub.example/train:2", 5, [21_000, 21_000, 21_000])
    number = make_regression(after[0])
    text = overview(client)
    assert "Throughput is 4.8 % below train:1." in answer(text)
    project = client.get("/api/v1/projects").json()["items"][0]["project"]
    make(project="another project")
    assert f"Throughput of {project}: 4.8 % below train:1." in answer(overview(client))
    assert "Throughput is 4.8 % below train:1." in answer(client.get(f"/?project={project}").text)
    assert 'hx-get="/overview/trend?' in text
    data = trend_data(client)
    assert [row["href"] for row in data["points"]] == [f"/runs/{run}" for run in (*before, *after)]
    assert {row["line"] for row in data["points"]} == {0}
    assert data["points"][-1]["shown"] == pytest.approx(100 * 20_000 / 21_000, rel=1e-4)
    assert [row["text"] for row in data["releases"]] == ["train:2"]
    assert [row["href"] for row in data["flags"]] == [f"/regressions/{number}"]
    (flag,), low, high = data["flags"], *sorted(row["shown"] for row in data["ends"])[:: len(data["ends"]) - 1]
    lowest = min(row["shown"] for row in data["points"])
    assert HEIGHT * (high - lowest) / (high - low) < flag["text_at"] - 7, "no point is behind the number of a flag"
    assert data["releases"][0]["foot"] <= flag["text_at"] - 7, "nor is the line of a container"
    zoomed = trend_data(client, f"first={after[1]}&last={before[3]}")
    assert [row["href"] for row in zoomed["points"]] == [f"/runs/{run}" for run in (before[3], *after[:2])]
    assert [row["text"] for row in zoomed["releases"]] == ["train:2"]
    only = trend_data(client, f"first={before[0]}&last={before[3]}")
    assert not {"flags", "releases"} & only.keys()
    assert min(row["shown"] for row in only["ends"]) > 98, "the axis follows the points that are left"


def test_the_range_leaves_out_a_job_whose_configuration_changed(client: TestClient, make: Make) -> None:
    for gpus, slow in ((16, 21_000), (32, 22_000)):
        nightly(make, f"hub{gpus}.example/train:1", 1, [20_000] * 3, gpus=gpus, config_key="usual", project="mine")
        nightly(make, f"hub{gpus}.example/train:2", 5, [21_000] * 3, gpus=gpus, config_key="usual", project="mine")
        key = "usual" if gpus == 16 else "other knob"
        nightly(make, f"hub{gpus}.example/train:2", 8, [slow] * 3, gpus=gpus, config_key=key, project="mine")
    range_text = "Throughput is 4.8 to 9.1 % below train:1; 1 of 2 jobs reconfigured."
    assert range_text in answer(overview(client))
    make(project="without CI runs")
    assert '<a href="/?project=without+CI+runs">' in client.get("/overview/trend").text, "it is not drawn"


def test_judged_lines_with_several_references_are_counted(client: TestClient, make: Make, upgraded: Upgraded) -> None:
    first = {}
    for gpus, times in ((8, [24_000, 24_000]), (16, [25_000] * 3), (32, [16_000] * 3), (64, [40_000] * 3)):
        nightly(make, f"hub.example/train:{gpus}", 1, [20_000] * 3, gpus=gpus, job="perf/a")
        first[gpus] = nightly(make, f"hub.example/new:{gpus}", 5, times, gpus=gpus, job="perf/a")[0]
    assert "None of 4 jobs clearly faster or slower." in answer(overview(client)), "nothing is judged"
    nightly(make, "hub.example/new:16", 5, [9_000], gpus=16, job="perf/b")
    for gpus, decision in ((8, "regression"), (16, "regression"), (32, "improvement"), (64, "inconclusive")):
        upgraded(first[gpus], decision, 20_000, {8: 24_000, 16: 25_000, 32: 16_000, 64: 40_000}[gpus])
    page = overview(client)
    assert "1 of 4 drawn jobs judged faster, 2 slower." in answer(page)
    judged = re.findall(r'data-label="step time">([^<]*)<', client.get("/overview/trend").text)
    assert sorted(judged) == ["faster", "inconclusive", "slower", "slower"]
    notes = {row["name"]: row["note"] for row in trend_data(client)["labels"]}
    assert notes == {"8": "vs. 8", "16": "a · vs. 16", "32": "vs. 32", "64": "vs. 64"}


def test_of_several_projects_the_lead_states_the_lowest_throughput(
    client: TestClient, make: Make, upgraded: Upgraded
) -> None:
    for project, time in (("mild", 21_000), ("worst", 25_000)):
        for container, first, milliseconds in (("train:1", 1, 20_000), ("train:2", 5, time)):
            runs = nightly(make, f"{project}.example/{container}", first, [milliseconds] * 3, project=project)
        upgraded(runs[0], "regression", 20_000, time)
    lowest = min(row["now"] for row in trend_data(client)["labels"])
    assert f"Up to {100 - lowest:.1f} % lower throughput in 2 of 2 jobs." in answer(overview(client))
    nightly(make, "hub.example/train:3", 8, [30_000] * 2, gpus=64, project="mild")
    lines = len(trend_data(client)["labels"])
    assert (lines, f"in 2 of {lines} jobs" in answer(overview(client))) == (3, True), "one line has no reference"


def test_the_current_level_is_the_same_for_every_period(client: TestClient, make: Make) -> None:
    nightly(make, "hub.example/train:1", 1, [20_000, 20_000, 20_000])
    nightly(make, "hub.example/train:2", 4, [24_000, 21_000, 22_000])
    month, day = (trend_data(client, f"days={days}") for days in (30, 1))
    assert len(day["points"]) == 2, "two of the three runs of the level are in the period"
    assert [row["now"] for row in day["labels"]] == [row["now"] for row in month["labels"]]
    assert day["current"][0]["from"] == day["points"][0]["at"], "the level is drawn within the period"


def test_the_number_of_a_flag_at_the_left_edge_does_not_cover_the_axis(
    client: TestClient, make: Make, make_regression: Make
) -> None:
    runs = nightly(make, "hub.example/train:1", 1, [21_000, 21_000, 20_000, 21_000, 21_000])
    first, later = make_regression(runs[0]), make_regression(runs[3])
    aligned = {row["text"]: row["align"] for row in trend_data(client)["flags"]}
    assert aligned == {f"R{first}": "left", f"R{later}": "center"}


def test_a_flag_is_where_a_regression_began_not_where_its_job_continued(
    client: TestClient, engine: Engine, make: Make, make_regression: Make
) -> None:
    before = nightly(make, "hub.example/train:1", 1, [20_000, 21_000])
    after = nightly(make, "hub.example/train:2", 80, [21_000] * 3)
    number = make_regression(before[1])
    with transaction(engine) as session:
        first = session.get_one(RegressionMemberRow, (number, before[1]))
        row = session.get_one(RunRow, after[0])
        moved = RegressionMemberRow(**first.model_dump() | {"run_id": row.id, "stack_key": row.stack_key})
        session.add(moved)
        audit.record(
            session, who=audit.SERVICE, subject="regression", subject_id=number, action="continued",
            project_id=row.project_id, before={"stack": first.stack_key},
            after={"run": row.id, "stack": row.stack_key}, note="",
        )  # fmt: skip
    assert "flags" not in trend_data(client)
    (flag,) = trend_data(client, "days=90")["flags"]
    points = {row["id"]: row["at"] for row in trend_data(client, "days=90")["points"]}
    assert flag["at"] == points[before[1]]


def trend_data(client: TestClient, query: str = "") -> dict[str, Any]:
    text = client.get(f"/overview/trend?{query}").text
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    data: dict[str, Any] = json.loads(spec)["datasets"]
    return data


def trend_points(client: TestClient, query: str = "") -> list[float]:
    return [row["shown"] for row in trend_data(client, query)["points"]]


def test_the_trend_has_the_baseline_of_the_regression(
    client: TestClient, engine: Engine, make: Make, make_regression: Make
) -> None:
    # The last runs of the container before were slow as well; the regression compares with its usual level.
    nightly(make, "hub.example/train:1", 1, [20_000, 20_000, 20_000, 20_000, 21_000, 21_000])
    after = nightly(make, "hub.example/train:2", 10, [21_000, 21_000, 21_000])
    number = make_regression(after[0])
    with transaction(engine) as session:
        session.get_one(RegressionRow, number).kind = "upgrade"
        session.get_one(RegressionMemberRow, (number, after[0])).usual_level = math.log(20_000)
    assert trend_points(client)[0] == pytest.approx(100, rel=2e-3)
    assert trend_points(client)[-1] == pytest.approx(100 * 20 / 21, rel=2e-3)


def test_the_trend_has_the_baseline_of_the_measured_upgrade(client: TestClient, make: Make, upgraded: Upgraded) -> None:
    nightly(make, "hub.example/train:1", 1, [20_000, 20_000, 20_000, 21_000])
    after = nightly(make, "hub.example/train:2", 5, [19_000, 19_000, 19_000])
    upgraded(after[0], "improvement", 20_000, 19_000)
    assert trend_points(client)[-1] == pytest.approx(100 / 0.95, rel=2e-3)


def test_a_job_that_became_slow_before_the_period_stays_in_the_trend(
    client: TestClient, engine: Engine, make: Make, make_regression: Make
) -> None:
    slow = nightly(make, "hub.example/train:1", 1, [20_000, 20_000, 30_000], job="perf/a")
    newest = nightly(make, "hub.example/train:1", 45, [30_000], job="perf/a")
    for gpus in range(1, MOST_LINES + 1):
        nightly(make, f"hub.example/other:{gpus}", 50, [10_000] * 3, gpus=gpus + 64, job="perf/b")
    number = make_regression(slow[2])
    with transaction(engine) as session:
        session.get_one(RegressionMemberRow, (number, slow[2])).usual_level = math.log(20_000)
    # The container before had the slow run as well: the level before the regression is 100 %.
    newest += nightly(make, "hub.example/train:2", 52, [30_000], job="perf/a")
    data = trend_data(client)
    assert len(data["labels"]) == MOST_LINES
    assert [row["shown"] for row in data["points"] if row["id"] in newest] == pytest.approx([200 / 3] * 2, rel=2e-3)
    assert "Throughput is 33.3 % below the earlier level." in answer(overview(client))


def test_a_line_counts_newer_unsteady_runs_of_its_job_and_names_two_levels(
    client: TestClient, engine: Engine, make: Make, make_regression: Make
) -> None:
    times = [20_000.0, 30_000.0] * 4
    runs = (
        nightly(make, "hub.example/train:1", n, [ms], job="perf/a", commit=f"{n:040}") for n, ms in enumerate(times)
    )
    slow = [run for of_day in runs for run in of_day]
    number = make_regression(slow[1])
    make(
        purpose="ci", job="perf/a", is_steady=False, step_time_ms=25_000.0, ordered_at=datetime(2026, 10, 1, tzinfo=UTC)
    )
    (label,) = trend_data(client)["labels"]
    assert (label["percent"], label["note"]) == ("66.7 %", "1 newer not steady")
    with transaction(engine) as session:
        member = session.get_one(RegressionMemberRow, (number, slow[1]))
        member.usual_level, member.slow_level = math.log(20_000), math.log(30_000)
    data = trend_data(client)
    (label,) = data["labels"]
    assert label["percent"] == "alternates", "no percentage of a mean"
    assert [row["shown"] for row in data["points"]] == pytest.approx([100.0, 200 / 3] * 4, rel=1e-4)
    nightly(make, "hub.example/train:2", 9, [20_000.0], job="perf/a", commit="9" * 40)
    data = trend_data(client)
    assert data["points"][-1]["shown"] == pytest.approx(100.0, rel=1e-4), "also where it ends fast, not % of the mean"
    assert data["labels"][0]["percent"].endswith(" %")


def test_the_trend_covers_the_chosen_period(client: TestClient, make: Make) -> None:
    nightly(make, "hub.example/train:1", 1, [20_000] * 20)
    assert [len(trend_points(client, f"days={days}")) for days in (1, 7, 30)] == [2, 8, 20]


def test_a_first_run_of_something_else_hides_no_trend(client: TestClient, make: Make) -> None:
    nightly(make, "hub.example/train:1", 1, [20_000] * 3)
    nightly(make, "hub.example/other:1", 70, [5_000], gpus=8)
    assert [round(shown) for shown in trend_points(client)] == [100, 100, 100]


def test_a_period_without_a_line_is_widened(client: TestClient, make: Make) -> None:
    for day in (1, 61):
        nightly(make, "hub.example/train:1", day, [20_000])
    assert [round(shown) for shown in trend_points(client)] == [100, 100]
    assert "1 Sep to 31 Oct, because 30 days have too few runs." in html.unescape(overview(client))
    assert "because" not in client.get("/overview/trend?days=90").text


def test_the_label_of_a_line_names_the_level_that_is_drawn(client: TestClient, make: Make) -> None:
    nightly(make, "hub.example/train:1", 1, [20_000, 20_000, 20_000, 21_000, 22_000, 23_000])
    data = trend_data(client)
    newest = data["points"][-3:]
    assert [(row["from"], row["to"]) for row in data["current"]] == [(newest[0]["at"], newest[2]["at"])]
    assert data["current"][0]["shown"] == data["labels"][0]["now"] == newest[1]["shown"]
    assert data["labels"][0]["percent"] == f"{newest[1]['shown']:.1f} %"


def test_runs_long_ago_are_not_the_current_level(client: TestClient, make: Make) -> None:
    for day, milliseconds in ((1, 20_000), (29, 25_000)):
        nightly(make, "hub.example/train:1", day, [milliseconds])
    assert trend_data(client)["labels"][0]["now"] == trend_points(client)[-1]


def test_the_current_level_does_not_reach_back_before_a_regression(
    client: TestClient, engine: Engine, make: Make, make_regression: Make
) -> None:
    runs = nightly(make, "hub.example/train:1", 1, [20_000, 20_000, 20_000, 25_000])
    number = make_regression(runs[-1])
    with transaction(engine) as session:
        session.get_one(RegressionMemberRow, (number, runs[-1])).usual_level = math.log(20_000)
        session.get_one(RegressionRow, number).gpu_hours_per_day = 0
    text = overview(client)
    assert "Throughput is 19.9 % below the earlier level." in answer(text)
    assert "usual" not in answer(text)
    assert re.search(r'title="Back at the usual level, or no run in the last 14 days.">\s*last ran', text)
    assert re.search(rf'class="quiet-change"\s+href="/regressions/{number}"', text)
    assert trend_data(client)["labels"][0]["now"] == trend_points(client)[-1] == pytest.approx(80, abs=0.5)


def test_the_lines_of_active_regressions_are_drawn_first(client: TestClient, make: Make, make_regression: Make) -> None:
    *_, slow = nightly(make, "hub.example/slow:1", 1, [20_000, 20_000, 25_000], gpus=8, job="slow")
    nightly(make, "hub.example/slow:1", 4, [9_000, 9_000], gpus=8, job="another")
    for number in range(MOST_LINES):
        nightly(make, f"hub.example/train:{number}", 10, [20_000] * 3, gpus=16 + number)
    assert f"/runs/{slow}" not in [row["href"] for row in trend_data(client)["points"]]
    regression = make_regression(slow)
    data = trend_data(client)
    assert [row["href"] for row in data["points"] if row["line"] == 0][-1] == f"/runs/{slow}"
    assert [row["text"] for row in data["flags"]] == [f"R{regression}"]
    assert len({row["line"] for row in data["points"]}) == MOST_LINES


def test_an_idle_regression_chooses_a_line_only_where_there_is_nothing_else_to_decide(
    client: TestClient, make: Make, make_regression: Make
) -> None:
    *_, current = nightly(make, "hub.example/slow:1", 1, [20_000, 20_000, 25_000], gpus=8, job="current")
    *_, last_slow = nightly(make, "hub.example/slow:1", 5, [20_000, 20_000, 25_000], gpus=8, job="idle")
    idle = make_regression(last_slow, proposal="stale")
    data = trend_data(client)
    assert f"/runs/{last_slow}" in [row["href"] for row in data["points"]]
    assert f"R{idle} idle" in data["labels"][0]["note"]
    make_regression(current)
    data = trend_data(client)
    assert " idle" not in data["labels"][0]["note"]
    drawn = [row["href"] for row in data["points"]]
    assert (f"/runs/{current}" in drawn, f"/runs/{last_slow}" in drawn) == (True, False)


def test_the_job_of_a_current_regression_is_drawn_although_it_began_before_the_runs_that_are_read(
    client: TestClient, make: Make, make_regression: Make
) -> None:
    (first_slow,) = nightly(make, "hub.example/slow:1", 1, [25_000], gpus=8, job="current")
    runs = nightly(make, "hub.example/slow:1", 200, [25_000, 20_000], gpus=8, job="current")
    *_, last_slow = nightly(make, "hub.example/slow:1", 205, [20_000, 20_000, 25_000], gpus=8, job="idle")
    make_regression(last_slow, proposal="stale")
    make_regression(first_slow)
    assert [row["id"] for row in trend_data(client)["points"]] == runs


def test_the_trend_marks_where_the_current_configuration_began(client: TestClient, make: Make) -> None:
    *_, before = nightly(make, "hub.example/train:1", 1, [20_000] * 3, config_key="a" * 64)
    after, _ = nightly(make, "hub.example/train:1", 4, [21_000] * 2, config_key="b" * 64)
    assert [row["href"] for row in trend_data(client)["changes"]] == [f"/compare?a={before}&b={after}"]


def test_the_lead_gives_the_throughput_of_the_labels(client: TestClient, make: Make) -> None:
    nightly(make, "hub.example/train:1", 1, [20_000] * 3, config_key="a" * 64)
    nightly(make, "hub.example/train:2", 4, [21_000] * 3, config_key="a" * 64)
    judged = {"verdict": "regression", "verdict_delta_pct": 9.5}
    nightly(make, "hub.example/train:2", 7, [23_000] * 3, config_key="b" * 64, **judged)
    page = client.get("/", headers={"Accept": "text/html"}).text
    assert "Throughput is 13.0 % below train:1." in answer(page)
    (label,) = trend_data(client)["labels"]
    assert label["percent"] == "87.0 %"


@pytest.mark.parametrize(("verdict", "is_listed"), [("regression", True), ("no_change", False)])
def test_a_slower_configuration_is_listed_although_it_opens_no_regression(
    client: TestClient, make: Make, verdict: str, is_listed: bool
) -> None:
    nightly(make, "hub.example/train:1", 1, [20_000] * 3, config_key="a" * 64)
    judged = {"verdict": verdict, "verdict_delta_pct": 5.0}
    after, _ = nightly(make, "hub.example/train:1", 4, [21_000] * 2, config_key="b" * 64, **judged)
    page = client.get("/", headers={"Accept": "text/html"}).text
    assert re.findall(r'data-slower="(\d+)"', page) == ([str(after)] if is_listed else [])


def test_an_unconfirmed_slowdown_is_listed_until_its_job_runs_again(client: TestClient, make: Make) -> None:
    unconfirmed = {"badge_label": "slower, unconfirmed", "verdict": "regression", "verdict_delta_pct": 24.7}
    for config in ("a" * 64, "b" * 64):
        (slow,) = nightly(make, "hub.example/train:1", 1, [25_000], config_key=config, **unconfirmed)
    nightly(make, "hub.example/train:1", 2, [20_000], config_key="a" * 64)
    page = overview(client)
    assert re.findall(r'data-unconfirmed="(\d+)"', page) == [str(slow)]
    assert re.search(r"24\.7\s% slower, unconfirmed", page)
    assert f'href="/runs/{slow}?tab=why#rerun"' in page


def test_failures_stand_in_one_line_for_each_cause(client: TestClient, make: Make) -> None:
    for kind, title, line in (
        ("deepep_missing", "DeepEP is not installed", 12),
        ("deepep_missing", "DeepEP is not installed", 88),
        ("out_of_memory", "CUDA out of memory", 7),
    ):
        failure = {"kind": kind, "title": title, "evidence": [{"text": f"at line {line}", "line": line}]}
        make(health={"outcome": "failed"}, failures=[failure])
    text = overview(client)
    lines = re.findall(r'<li class="cause-line">(.*?)</li>', text, re.DOTALL)
    plain = [" ".join(re.sub(r"<[^>]+>", " ", line).split()) for line in lines]
    assert [line.partition(" #")[0] for line in plain] == ["2 × DeepEP is not installed", "1 × CUDA out of memory"]


def loading(text: str) -> dict[str, int]:
    """Return the attributes of the progress of the example runs; nothing without it."""
    bar = re.search(r"<progress([^>]*)>", text)
    return {name: int(value) for name, value in re.findall(r'(max|value)="(\d+)"', bar[1])} if bar else {}


def test_the_progress_of_the_example_runs_is_shown_until_all_are_processed(
    client: TestClient, make: Make, make_regression: Make
) -> None:
    make_regression(make(branch="dev"))
    make(status="received")
    assert loading(overview(client)) == {}
    badge = 'class="count"'
    assert badge in client.get("/runs", headers={"Accept": "text/html"}).text
    with loading_examples(2):
        for query in ("", "branch=dev"):
            assert loading(overview(client, query)) == {"max": 2, "value": 1}
            assert "data-open" not in overview(client, query)  # nothing is a result yet
        regressions = client.get("/regressions", headers={"Accept": "text/html"}).text
        assert loading(regressions) == {"max": 2, "value": 1}
        assert 'id="regression-lead"' not in regressions
        assert badge not in regressions, "a later run may show that it recovered"
        assert 'hx-trigger="every' in client.get("/overview/loading").text
        make()
        assert "hx-trigger" not in client.get("/overview/loading").text
        assert loading(overview(client)) == {}
    with contextlib.suppress(OSError), loading_examples(9):
        raise OSError  # the upload is interrupted
    assert loading(overview(client)) == {}


def test_the_upload_command_leaves_with_the_third_run(client: TestClient, make: Make) -> None:
    shown = []
    for number in range(3):
        make(name=f"run {number}")
        shown.append('id="add"' in overview(client))
    assert shown == [True, True, False]


def test_a_number_of_a_run_and_a_regression_offers_both(client: TestClient, make: Make, make_regression: Make) -> None:
    run = make()
    regression = make_regression(run)
    assert regression == run
    for text, addresses in (
        (f"#{run}", {f"/runs/{run}", f"/regressions/{run}"}),
        (f"run {run}", {f"/runs/{run}"}),
        (f"R{run}", {f"/regressions/{run}"}),
        (f"regression {run}", {f"/regressions/{run}"}),
    ):
        answer = client.get("/search", params={"q": text}, follow_redirects=False)
        if len(addresses) == 1:
            assert {answer.headers["location"]} == addresses, text
        else:
            assert addresses <= set(re.findall(r'href="([^"]+)"', answer.text)), text


def test_inconclusive_upgrades_do_not_hide_an_earlier_slowdown(
    client: TestClient, make: Make, upgraded: Upgraded
) -> None:
    for number in range(3, 9):
        (run,) = nightly(make, f"hub.example/train:{number}", number, [21_000])
        upgraded(run, "regression" if number == 3 else "inconclusive", 20_000, 21_000)
    listed = re.findall(r'data-upgrade="container">.*?from=[^"]+(\d)&', client.get("/regressions").text, re.S)
    assert listed == ["3", "8", "7", "6", "5", "4"]
