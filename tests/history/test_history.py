"""Histories through the public interface: the stack of a URL, the text and data of its page, its golden run."""

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from sqlalchemy import Engine, delete, event, update
from sqlmodel import Session, col, select
from starlette.testclient import TestClient

from app.domain.naming import stack_title
from app.domain.numbers import change_text
from app.history.charts import history_picture
from app.history.lists import StackQuery, find_stacks
from app.history.queries import get_stack
from app.pipeline.decisions import propose
from app.runs.queries import RunQuery, find_runs
from app.storage.database import read_session, transaction
from app.storage.runs import WITH_RESULT, newest_contract
from app.storage.tables import AuditEventRow, RegressionMemberRow, RegressionRow, RunRow, StackRow, UpgradeChangeRow
from tests.builders import FIRST_PLACE, make_project, make_run, make_stack
from tests.prepared import prepared
from tests.regressions.triaged import FIRST, SlowStack, continue_in_stack, make_regression, make_slow_stack
from tests.statements import statements

HTML = {"Accept": "text/html"}
HTMX = {"HX-Request": "true"}

Make = Callable[..., list[int]]


def series(*levels: tuple[int, float], sd: float = 0.004) -> list[float]:
    """`(runs, milliseconds)` after another, with noise between launches."""
    draw = np.random.default_rng(1)
    return [ms * math.exp(sd * draw.standard_normal()) for n, ms in levels for _ in range(n)]


@pytest.fixture
def make(engine: Engine) -> Make:
    def make(*args: Any, **columns: Any) -> list[int]:
        with transaction(engine) as session:
            return make_stack(session, *args, **columns)

    return make


@pytest.fixture
def moved(make: Make, engine: Engine) -> list[int]:
    """26 runs that became 6 % slower at the 15th."""

    def make_moved() -> list[int]:
        with transaction(engine) as session:
            project = make_project(session)
            project.commit_url = "https://git.example/c/{commit}"
            project.compare_url = "https://git.example/d/{from}...{to}"
            session.add(project)
        return make(series((14, 400.0), (12, 424.0)))

    return prepared(engine, make_moved)


def key_of(engine: Engine, run: int) -> str:
    with transaction(engine) as session:
        return session.get_one(RunRow, run).stack_key


def text_of(page: str) -> str:
    """Return the visible text of the page in one line."""
    plain = html.unescape(re.sub(r"<[^>]+>", " ", page))
    return re.sub(r"\s+", " ", plain.replace("\u202f", " "))


def chart_of(client: TestClient, address: str) -> dict[str, Any]:
    part = client.get(address, headers=HTMX).text
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', part, re.DOTALL)
    result: dict[str, Any] = json.loads(spec)
    return result


def drawn_runs(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of all drawn runs: on the axis, and in the lanes above and below it."""
    return [row for name in ("points", "lane", "low_lane") for row in data.get(name, ())]


def test_the_page_begins_with_the_state_of_the_stack(client: TestClient, engine: Engine, moved: list[int]) -> None:
    page = client.get(f"/history/{key_of(engine, moved[0])}").text
    text = text_of(page)
    assert f"423.5 ms per step now; regression 1: 5.9 % slower since #{moved[14]}." in text
    (change,) = client.get(f"/api/v1/history/{key_of(engine, moved[0])}").json()["change_points"]
    assert (change["run_id"], change["called_by_run_id"]) == (moved[14], moved[14])
    assert re.search(r"#15 .* 5\.9 % slower 400\.0 ms → 423\.5 ms", text)
    with transaction(engine) as session:
        before, after = (session.get_one(RunRow, moved[place]).commit for place in (13, 14))
    assert f'href="https://git.example/d/{before}...{after}"' in page
    assert f'href="https://git.example/c/{after}"' in page
    assert re.search(r"R1 open", text)


def test_an_address_may_be_the_first_eight_digits(client: TestClient, engine: Engine, moved: list[int]) -> None:
    key = key_of(engine, moved[0])
    assert "per step now" in client.get(f"/history/{key[:8]}").text
    for address in (key[:7], "no-hex-at-all", "abcdef0123456789", key + "0", "%00", "a" * 90):
        answer = client.get(f"/history/{address}", headers=HTML)
        assert answer.status_code == 404, address
        assert "/history" in answer.text, address
        assert client.get(f"/api/v1/history/{address}").status_code == 404, address


def test_digits_that_begin_several_keys_are_a_choice(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for ending in ("1", "2"):
            make_run(session, name=f"run {ending}", stack_key="abcdef00" + ending * 8)
    answer = client.get("/history/abcdef00", headers=HTML)
    assert answer.status_code == 300
    assert 'href="/history/abcdef0011111111"' in answer.text
    assert 'href="/history/abcdef0022222222"' in answer.text
    problem = client.get("/api/v1/history/abcdef00")
    assert problem.status_code == 422
    assert "abcdef0011111111, abcdef0022222222" in problem.json()["errors"][0]["message"]
    assert client.get("/history/abcdef0011111111").status_code == 200


def test_htmx_gets_the_part_and_everyone_else_the_page(client: TestClient, engine: Engine, moved: list[int]) -> None:
    address = f"/history/{key_of(engine, moved[0])}"
    page = client.get(address)
    assert page.text.startswith("<!doctype html>")
    assert f'hx-get="{address}/chart?"' in page.text
    assert "data-vega" not in page.text  # the figures come first
    chart, data = (client.get(f"{address}/{part}?first={moved[3]}", headers=HTMX) for part in ("chart", "data"))
    assert chart.text.strip().startswith('<div id="history-chart"')
    assert "data-vega" in chart.text
    assert 'id="history-runs" hx-swap-oob="true"' in data.text
    assert data.headers["HX-Push-Url"] == f"{address}?first={moved[3]}"
    rows = client.get(f"{address}/runs?page=2", headers=HTMX).text
    assert rows.strip().startswith('<div id="history-runs"')
    assert rows.count("<tr>") == 1 + 1  # 26 runs, 25 a page
    assert client.get(f"{address}/chart").text.startswith("<!doctype html>")


def test_the_chart_shows_runs_levels_and_changes(client: TestClient, engine: Engine, moved: list[int]) -> None:
    with transaction(engine) as session:
        short, bad = session.get_one(RunRow, moved[4]), session.get_one(RunRow, moved[5])
        short.short, bad.quarantine = True, "a slow node"
        session.add_all([short, bad])
    data = chart_of(client, f"/history/{key_of(engine, moved[0])}/chart")["datasets"]
    assert [row["id"] for row in data["points"]] == moved
    assert [row["id"] for row in data["points"] if row["mark"] == "aside"] == moved[4:6]
    assert data["points"][5]["counts"] == "not counted: quarantined"
    assert data["points"][0]["href"] == f"/runs/{moved[0]}"
    assert [(round(row["from"] + 0.4), round(row["to"] - 0.4)) for row in data["levels"]] == [(1, 14), (15, 26)]
    assert [(row["at"], row["direction"]) for row in data["changes"]] == [(14.5, "slower")]
    assert "regression" in {row["verdict"] for row in data["arrows"]}


def test_levels_of_throughput_follow_from_those_of_step_time(
    client: TestClient, engine: Engine, moved: list[int]
) -> None:
    address = f"/history/{key_of(engine, moved[0])}/chart?metric="
    times, rates, memory = (
        chart_of(client, address + name)["datasets"]
        for name in ("step_time_ms", "tokens_per_s_per_gpu", "peak_memory_gib")
    )
    product = [a["value"] * b["value"] for a, b in zip(times["levels"], rates["levels"], strict=True)]
    assert product == pytest.approx([1024 * 4096 * 1000 / 16] * 2)
    assert "lower" in rates["changes"][0]["label"]
    assert "levels" not in memory
    assert "changes" not in memory


def test_the_lead_is_about_the_chosen_metric(client: TestClient, engine: Engine, moved: list[int]) -> None:
    address = f"/history/{key_of(engine, moved[0])}"

    def lead(path: str, metric: str) -> str:
        part = client.get(f"{address}{path}?metric={metric}", headers=HTMX).text.partition('id="history-lead"')[2]
        return text_of(part.partition('class="answer">')[2].partition("</p>")[0])

    levels = chart_of(client, f"{address}/chart?metric=tokens_per_s_per_gpu")["datasets"]["levels"]
    for path in ("", "/data"):
        tokens = lead(path, "tokens_per_s_per_gpu")
        assert tokens.startswith(f"{text_of(levels[-1]['label'])} tokens/s/GPU now"), "like the chart"
        assert change_text(100 * (400 / 424 - 1), metric="tokens_per_s_per_gpu").word in tokens
        memory = lead(path, "peak_memory_gib")
        assert (f"in #{moved[-1]} " in memory, "GiB" in memory, "regression 1" in memory) == (True, True, False)
    with transaction(engine) as session:
        session.execute(update(RegressionRow).values(metric="peak_memory_gib"))
    assert f"more since #{moved[14]} (regression 1)" in lead("", "peak_memory_gib")
    assert 'id="changes" hx-swap-oob' in re.sub(r"\s+", " ", client.get(f"{address}/data", headers=HTMX).text)


def test_a_zoom_between_two_runs_works_in_either_order(client: TestClient, engine: Engine, moved: list[int]) -> None:
    address = f"/history/{key_of(engine, moved[0])}"
    for first, last in ((5, 9), (9, 5)):
        query = f"first={moved[first]}&last={moved[last]}"
        assert [row["id"] for row in chart_of(client, f"{address}/chart?{query}")["datasets"]["points"]] == moved[5:10]
        assert client.get(f"{address}/runs?{query}", headers=HTMX).text.count("<tr>") == 5 + 1
    assert "Whole history" in client.get(f"{address}?first={moved[5]}").text
    assert len(chart_of(client, f"{address}/chart?last={moved[0]}")["datasets"]["points"]) == 1


def test_by_date_the_runs_stand_at_their_commits(client: TestClient, engine: Engine, moved: list[int]) -> None:
    data = chart_of(client, f"/history/{key_of(engine, moved[0])}/chart?axis=date")["datasets"]
    assert data["points"][0]["at"] == FIRST_PLACE.timestamp() * 1000
    assert data["points"][1]["at"] - data["points"][0]["at"] == 86_400_000


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("metric=speed", "metric"),
        ("axis=sideways", "axis"),
        ("first=-1", "first"),
        ("last=999999", "last"),
        ("first=" + "9" * 30, "first"),
        ("config=zz", "config"),
        ("config=00000000", "config"),
        ("page=x", "page"),
    ],
)
def test_a_view_that_means_nothing_is_refused_by_name(
    client: TestClient, engine: Engine, moved: list[int], query: str, field: str
) -> None:
    answer = client.get(f"/history/{key_of(engine, moved[0])}?{query}", headers=HTML)
    assert answer.status_code == 422
    assert f"<code>{field}</code>" in answer.text


def test_a_job_that_alternates_is_not_triaged_as_slower(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [400.0] * 8, job="perf")
        slow = make_stack(session, [600.0, 400.0, 600.0, 400.0], job="perf", started=FIRST_PLACE + timedelta(days=8))
        number = make_regression(session, member(session, slow[0], 400.0, 600.0))
        upgraded = {"container": "train:2"}
        later = FIRST_PLACE + timedelta(days=12)
        (newest,) = make_stack(session, [600.0], job="perf", fields=upgraded, started=later)
        key = session.get_one(RunRow, newest).stack_key
        failed = {"dispatcher": "deepep", "dispatcher_type": "flex"}
        make_stack(session, [600.0], fields=failed | upgraded, started=later, status="failed", step_time_ms=None)
    text = client.get(f"/history/{key}").text
    assert 'class="dispatcher deepep"' not in client.get(f"/history/{key}/chart", headers=HTMX).text
    lead = text.partition('<p class="answer">')[2].partition("</p>")[0]
    assert re.search(r"alternates between 399\.\d and 599\.\d\u202fms", lead)
    assert re.search(rf'class="button primary" href="/regressions/{number}">Open', text)
    row = client.get("/history").text
    assert re.search(rf'data-regression="{number}"[^>]*>alternates: 399\.\d and 599\.\d\u202fms</a>', row)
    assert '<span class="dispatcher deepep">' not in row, "it only failed"


def test_a_run_of_a_job_that_alternates_is_to_be_rerun(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [400.0] * 8, job="perf")
        slow = make_stack(session, [600.0, 400.0, 600.0, 400.0], job="perf", started=FIRST_PLACE + timedelta(days=8))
        make_regression(session, member(session, slow[0], 400.0, 600.0))
        for day, container, times in ((12, "train:2", [600.0, 400.0]), (14, "train:3", [600.0])):
            later = FIRST_PLACE + timedelta(days=day)
            *_, last = make_stack(session, times, job="perf", fields={"container": container}, started=later)
    verdict = client.get(f"/api/v1/runs/{last}/verdict").json()
    assert verdict["reason"].startswith("Inconclusive: ")
    assert re.search(r"alternates between 399\.\d and 599\.\d", verdict["reason"])
    page = client.get(f"/runs/{last}").text
    assert f'href="/runs/{last}?tab=why#rerun"' in page
    step_time = page.partition(">Step time</span>")[2].partition("</tr>")[0]
    assert re.findall(r'<span class="muted">(\w+)</span>', step_time) == ["alternates"], "no percentage of a mean"
    listed = client.get("/api/v1/runs").json()["items"]
    label = {run["id"]: (run["badge"], run["label"], run["contrast_pct"]) for run in listed}[last]
    assert label == ("inconclusive", "alternates", None)
    key = client.get(f"/api/v1/runs/{last}").json()["stack_key"]
    assert f" in #{last}, inconclusive; the job alternates between" in client.get(f"/history/{key}").text


def test_colours_tell_configurations_apart_where_the_dispatcher_is_unknown(
    client: TestClient, engine: Engine, make: Make
) -> None:
    unknown: dict[str, Any] = {"dispatcher": ..., "dispatcher_type": ...}
    old = make(series((14, 400.0)), fields=unknown)
    address = f"/history/{key_of(engine, old[0])}"
    key = r'<span class="dispatcher ([^"]*)"'
    assert {row["colour"] for row in chart_of(client, f"{address}/chart")["datasets"]["points"]} == {""}
    assert re.findall(key, client.get(f"{address}/chart", headers=HTMX).text) == []
    later = FIRST_PLACE + timedelta(days=7, hours=3)
    new = make(series((16, 300.0)), fields=unknown | {"ep_overlap": True}, started=later)
    points = chart_of(client, f"{address}/chart")["datasets"]["points"]
    assert {row["colour"] for row in points if row["id"] in new} == {"line-2"}
    assert re.findall(key, client.get(f"{address}/chart", headers=HTMX).text) == ["line-1", "line-2"]


def test_the_label_of_an_earlier_level_covers_no_run(client: TestClient, engine: Engine, make: Make) -> None:
    old = make(series((8, 400.0)))
    later, other = FIRST_PLACE + timedelta(days=8), {"dispatcher": "hybridep", "dispatcher_type": "flex"}
    make(series((8, 400.0)), fields=other, started=later)
    levels = chart_of(client, f"/history/{key_of(engine, old[0])}/chart")["datasets"]["levels"]
    assert [(row["config"], bool(row["label"])) for row in levels] == [("A", False), ("B", True)]


def test_configurations_have_levels_of_their_own(client: TestClient, engine: Engine, make: Make) -> None:
    old = make(series((14, 400.0)))
    later = FIRST_PLACE + timedelta(days=7, hours=3)
    new = make(series((16, 300.0)), fields={"dispatcher": "hybridep", "dispatcher_type": "flex"}, started=later)
    address = f"/history/{key_of(engine, old[0])}"
    with transaction(engine) as session:
        config = session.get_one(RunRow, old[0]).config_key
    text = text_of(client.get(address).text)
    assert re.search(r"(299|300)\.\d ms per step now", text)
    body = client.get(f"/api/v1{address}").json()
    assert "configuration B of 2" in body["answer"]
    assert "dispatcher alltoall" in text
    both = chart_of(client, f"{address}/chart")["datasets"]
    assert {row["colour"] for row in both["points"]} == {"alltoall", "hybridep"}
    assert [(row["config"], row["is_now"]) for row in both["levels"]] == [("A", False), ("B", True)], "B replaced A"
    assert [row["label"].partition("  ")[0] for row in both["levels"]] == ["A", "B"]
    assert [row["text"] for row in both["events"]] == ["configuration B begins: dispatcher hybridep"]
    assert re.search(r">A: alltoall, 14 runs<.*>B: dispatcher hybridep, 16 runs<", client.get(address).text, re.DOTALL)
    changes = text_of(client.get(address).text.partition('id="changes"')[2]).replace("\u202f", " ")
    row = rf"#{new[0]} .{{10}} 2[45]\.\d % faster (399|400)\.\d ms → (299|300)\.\d ms dispatcher alltoall → hybridep"
    assert re.search(row, changes), changes
    datasets = chart_of(client, f"{address}/chart?config={config[:12]}")["datasets"]
    assert {row["id"] for row in datasets["points"]} == set(old)
    assert re.search(r"(399|400)\.\d ms per step now", text_of(client.get(f"{address}?config={config[:12]}").text))
    outside = client.get(f"{address}/chart?config={config[:12]}&first={new[-1]}&last={new[-1]}", headers=HTMX)
    assert "data-spec" not in outside.text


def test_a_regression_that_no_change_point_shows_yet_is_named(client: TestClient, engine: Engine, make: Make) -> None:
    runs = make([*series((6, 400.0)), 440.0, 441.0])
    page = client.get(f"/history/{key_of(engine, runs[0])}").text
    changes = text_of(page.partition('id="changes"')[2].partition("</table>")[0])
    assert re.search(rf"#{runs[6]} .* (9|10)\.\d % slower (399|400)\.\d ms → 4[34]\d\.\d ms .*R1 open", changes)


def test_an_experiment_carries_no_mark_of_a_regression(client: TestClient, engine: Engine, make: Make) -> None:
    runs = make(series((6, 400.0)))
    slow = make([440.0], started=FIRST_PLACE + timedelta(days=9), purpose="experiment", fields={"ep_overlap": True})
    chart = chart_of(client, f"/history/{key_of(engine, runs[0])}/chart")["datasets"]
    with transaction(engine) as session:
        assert session.get_one(RunRow, slow[0]).verdict == "regression"
    assert "regression" not in {row["verdict"] for row in chart.get("arrows", [])}


def test_another_container_is_a_neighbour(client: TestClient, engine: Engine, make: Make) -> None:
    before = make(series((3, 400.0)))
    upgrade = {"container": "nvcr.io/nvidia/nemo:26.07"}
    after = make(series((3, 390.0)), fields=upgrade, started=FIRST_PLACE + timedelta(days=4))
    make(series((3, 390.0)), fields=upgrade | {"gbs": 512}, started=FIRST_PLACE + timedelta(days=8))
    old, new = key_of(engine, before[0]), key_of(engine, after[0])
    forward, back = (client.get(f"/history/{key}").text for key in (old, new))
    assert f'Continues in <a href="/history/{new}">nvcr.io/nvidia/nemo:26.07</a>' in forward
    assert f'Continues from <a href="/history/{old}">nvcr.io/nvidia/nemo:26.06</a>' in back
    assert forward.count("only the container differs") == 1


def test_the_chart_continues_through_containers(client: TestClient, engine: Engine, make: Make) -> None:
    upgrade = {"container": "nvcr.io/nvidia/nemo:26.07"}
    before = make(series((8, 400.0)))
    after = make(series((8, 440.0)), fields=upgrade, started=FIRST_PLACE + timedelta(days=8))
    trial = make([300.0], fields={"ep_overlap": True}, purpose="experiment", started=FIRST_PLACE + timedelta(days=3))
    addresses = [f"/history/{key_of(engine, runs[0])}" for runs in (before, after)]
    for address, runs in zip(addresses, ([*before, *trial, *after], [*before, *after]), strict=True):
        data = chart_of(client, f"{address}/chart")["datasets"]
        assert {row["id"] for row in drawn_runs(data)} == set(runs)
        first, second = data["containers"]
        assert (first["label"], first["container"]) == ("26.06", "nvcr.io/nvidia/nemo:26.06")
        assert re.search(r"26\.07  (A )?\+(9|10)", second["label"])
        assert {row["config"] for row in data["levels"]} == {"A"}
        listed = client.get(f"{address}/data", headers=HTMX).text.partition('id="history-runs"')[2]
        assert listed.partition("</table>")[0].count("<tr>") == len(runs) + 1
        rows = list(csv.DictReader(io.StringIO(client.get(f"{address}/runs.csv").text)))
        assert {int(row["id"]) for row in rows} == set(runs)
    listed = client.get("/history").text
    rows_of = listed[listed.index("<tbody>") : listed.index("</tbody>")]
    assert re.findall(r'href="(/history/[0-9a-f]{64})"', rows_of) == addresses[::-1]
    assert rows_of.count("<tr>") == 1
    lead = r"4[34]\d\.\d ms per step in nemo:26.07, (9|10)\.?\d* % slower than in nemo:26.06\."
    for address in addresses:
        text = text_of(client.get(address).text)
        assert re.search(lead, text), "the newest drawn container leads, whichever of them was asked for"
        assert re.search(r"<h1>[^<]*nemo:26.07\s", client.get(address).text)
    alone = client.get(f"{addresses[0]}?containers=own").text
    assert re.search(r"<h1>[^<]*nemo:26.06\s", alone)
    own = chart_of(client, f"{addresses[1]}/chart?containers=own")["datasets"]
    assert {row["id"] for row in own["points"]} == set(after)
    assert "containers" not in own
    zoomed = chart_of(client, f"{addresses[1]}/chart?first={before[2]}&last={before[6]}")["datasets"]
    assert {row["id"] for row in zoomed["points"]} == set(before[2:7])
    assert [row["label"] for row in zoomed["containers"]] == ["26.06"]
    api = client.get(f"/api/v1{addresses[1]}").json()
    assert [run["id"] for run in api["runs"]] == after


def test_a_chart_shows_what_changed_in_another_container(client: TestClient, engine: Engine, make: Make) -> None:
    before = make(series((4, 400.0)))
    upgrade = {"container": "nvcr.io/nvidia/nemo:26.07"}
    after = make(series((4, 440.0)), fields=upgrade, started=FIRST_PLACE + timedelta(days=8))
    address = f"/history/{key_of(engine, after[0])}"

    def marks() -> dict[int, str]:
        return {row["id"]: row["mark"] for row in drawn_runs(chart_of(client, f"{address}/chart")["datasets"])}

    assert marks() == dict.fromkeys([*before, *after], "counts")
    before += make([401.0], started=FIRST_PLACE + timedelta(days=5))
    assert marks() == dict.fromkeys([*before, *after], "counts")
    with transaction(engine) as session:
        session.get_one(RunRow, before[1]).quarantine = "a slow node"
    assert marks() == dict.fromkeys([*before, *after], "counts") | {before[1]: "aside"}
    later = {"container": "nvcr.io/nvidia/nemo:26.08"}
    newest = make(series((4, 430.0)), fields=later, started=FIRST_PLACE + timedelta(days=16))
    assert marks().keys() == {*before, *after, *newest}
    pinned = client.post(f"/history/{key_of(engine, before[0])}/pin", data={"run": before[0], "author": "Ada"})
    events = chart_of(client, f"{address}/chart")["datasets"]["events"]
    assert (pinned.status_code, [row["kind"] for row in events]) == (200, ["golden"])


def test_the_containers_of_a_history_are_read_together(client: TestClient, engine: Engine, make: Make) -> None:
    counts = []
    for number in range(4):
        runs = make(
            series((3, 400.0)),
            fields={"container": f"nvcr.io/nvidia/nemo:26.0{number}"},
            started=FIRST_PLACE + timedelta(days=4 * number),
        )
        address = f"/history/{key_of(engine, runs[0])}"
        assert client.get(address).status_code == 200
        with statements(engine) as executed:
            page = client.get(address).text
        assert f"nemo:26.0{number}" in page
        counts.append(len(executed))
    assert counts[1] == counts[2] == counts[3], counts


def test_the_change_of_a_container_is_that_of_the_judged_upgrade(
    client: TestClient, engine: Engine, make: Make
) -> None:
    make(series((8, 400.0)))
    after = make(
        series((8, 440.0)), fields={"container": "nvcr.io/nvidia/nemo:26.07"}, started=FIRST_PLACE + timedelta(days=8)
    )
    address = f"/history/{key_of(engine, after[0])}"

    def states() -> tuple[str, float | None]:
        band = chart_of(client, f"{address}/chart")["datasets"]["containers"][-1]["label"]
        changes = client.get(f"/api/v1{address}").json()["changes"]
        return band, next(row["delta_pct"] for row in changes if row["kind"] == "container" and row["run_id"] in after)

    for figure in (12.5, -3.5):
        with transaction(engine) as session:
            session.execute(update(UpgradeChangeRow).values(delta_pct=figure, decision="inconclusive"))
        assert states() == ("26.07", pytest.approx(figure)), "a band states only a decided change"
        changes = client.get(f"/api/v1{address}").json()["changes"]
        assert [row["decision"] for row in changes if row["run_id"] == after[0]] == ["inconclusive"]
        page = client.get(address).text
        assert change_text(figure).size not in page.partition('class="answer"')[2].partition("</p>")[0]
        assert not re.search(r'class="change (regression|improvement)"', page), "it has no colour"
    with transaction(engine) as session:
        session.execute(update(UpgradeChangeRow).values(decision="improvement"))
    assert states() == (f"26.07  {change_text(-3.5).delta}", pytest.approx(-3.5))
    with transaction(engine) as session:
        session.execute(delete(UpgradeChangeRow))
    assert states() == ("26.07", pytest.approx(10, abs=0.5)), "the table still has the regression"


def member(session: Session, run: int, usual: float, slow: float) -> SlowStack:
    row = session.get_one(RunRow, run)
    return SlowStack(row.stack_key, row.config_key, (run,), 0, math.log(usual), math.log(slow), row.project_id)


def test_a_mean_of_different_runs_is_neither_drawn_nor_a_change(client: TestClient, engine: Engine, make: Make) -> None:
    before = make(series((8, 400.0)))
    upgrade = {"container": "nvcr.io/nvidia/nemo:26.07"}
    after = make([600.0, 400.0], fields=upgrade, started=FIRST_PLACE + timedelta(days=8))
    key = key_of(engine, after[0])
    with transaction(engine) as session:
        session.execute(update(UpgradeChangeRow).values(decision="inconclusive"))
        session.execute(delete(RegressionRow))

    def row() -> tuple[str, float | None, int | None]:
        changes = client.get(f"/api/v1/history/{key}").json()["changes"]
        (change,) = (change for change in changes if change["run_id"] == after[0])
        return change["decision"], change["delta_pct"], change["regression_id"]

    assert row() == ("inconclusive", None, None)
    chart = chart_of(client, f"/history/{key}/chart")["datasets"]
    assert [level["to"] for level in chart["levels"]] == [pytest.approx(len(before), abs=0.5)]
    assert 'class="button" href="/upgrade?' in client.get(f"/history/{key}").text, "it still has a report"
    with transaction(engine) as session:
        number = make_regression(session, member(session, after[0], 400.0, 600.0))
    assert row() == ("regression", pytest.approx(50.0), number), "the regression was judged at this run"


def test_each_member_of_a_regression_has_its_row(client: TestClient, engine: Engine, make: Make) -> None:
    upgrade, other = {"container": "nvcr.io/nvidia/nemo:26.07"}, {"ep_overlap": True}
    later, hours = FIRST_PLACE + timedelta(days=8), timedelta(hours=2)
    old = make([400.0] * 8)
    make([600.0] * 8, fields=other, started=FIRST_PLACE + hours)
    first = make([480.0] * 2, fields=upgrade, started=later)
    second = make([750.0] * 2, fields=upgrade | other, started=later + hours)
    key = key_of(engine, first[0])
    with transaction(engine) as session:
        session.execute(delete(RegressionRow))
        slow = [member(session, run, 400.0, 480.0) for run in (first[0], second[0])]
        continued = [member(session, run, 20.0, 21.0) for run in (old[2], first[0])]
        number = make_regression(session, slow)
        memory = make_regression(session, continued, metric="peak_memory_gib", cause_key="code:memory")
    for proposal in ("", "fixed"):
        with transaction(engine) as session:
            session.execute(
                update(RegressionMemberRow)
                .where(col(RegressionMemberRow.run_id).in_([second[0], old[2]]))
                .values(proposal=proposal)
            )
        changes = client.get(f"/api/v1/history/{key}").json()["changes"]
        of_runs = {change["run_id"]: change["regression_id"] for change in changes}
        assert (of_runs[first[0]], of_runs[second[0]]) == (number, number), f"{proposal=}"
        changes_part = client.get(f"/history/{key}").text.partition('id="changes"')[2]
        notice = changes_part.partition(f'href="/regressions/{memory}"')[2].partition("</p>")[0]
        assert f'href="/runs/{old[2]}"' in notice, "its first run in this history, whatever the container"


def test_the_row_of_a_slow_run_states_its_own_stack_and_the_container_after_it_continues_the_regression(
    client: TestClient, engine: Engine, make: Make
) -> None:
    old = make([*[400.0] * 8, 580.0], job="nightly")
    later, upgrade = FIRST_PLACE + timedelta(days=9), {"container": "nvcr.io/nvidia/nemo:26.07"}
    new = make([600.0] * 3, fields=upgrade, started=later, job="nightly")
    with transaction(engine) as session:
        session.execute(delete(RegressionRow))
        slow = member(session, old[8], 400.0, 580.0)
        number = make_regression(session, slow)
        continue_in_stack(session, number, slow, session.get_one(RunRow, new[0]).stack_key, new[0])
        session.get_one(RegressionMemberRow, (number, new[0])).delta_pct = 50.0
    key = key_of(engine, new[0])
    for ms, continued in ((600.0, number), (410.0, None)):
        with transaction(engine) as session:
            session.execute(update(RunRow).where(col(RunRow.id).in_(new)).values(log_step_time=math.log(ms)))
            session.execute(update(StackRow).values(revision=StackRow.revision + 1))
        changes = {change["run_id"]: change for change in client.get(f"/api/v1/history/{key}").json()["changes"]}
        assert changes[old[8]]["delta_pct"] == pytest.approx(45)
        assert changes[old[8]]["to_step_time_ms"] == pytest.approx(580)
        assert changes[old[8]]["regression_id"] == number
        assert changes[new[0]]["regression_id"] == continued, f"{ms=}"
    table = text_of(client.get(f"/history/{key}").text.partition('id="changes"')[2].partition("</table>")[0])
    assert "up to 50.0 % slower" in table, "the size of the regression stands apart"


def test_a_workload_whose_newest_runs_do_not_count_keeps_its_regression_in_the_list(
    client: TestClient, engine: Engine, make: Make
) -> None:
    old = make([*[400.0] * 8, 580.0], job="nightly")
    later, upgrade = FIRST_PLACE + timedelta(days=9), {"container": "nvcr.io/nvidia/nemo:26.07"}
    new = make([410.0] * 2, fields=upgrade | {"ep_overlap": True}, started=later, job="nightly")
    with transaction(engine) as session:
        session.execute(delete(RegressionRow))
        number = make_regression(session, member(session, old[8], 400.0, 580.0))
        session.execute(update(RunRow).where(col(RunRow.id).in_(new)).values(is_steady=False))
        session.execute(update(StackRow).values(revision=StackRow.revision + 1))
    page = client.get("/history").text
    assert re.findall(r'data-regression="(\d+)"', page.partition("without-trend")[0]) == [str(number)]


def test_configurations_are_named_by_their_jobs_where_these_differ(
    client: TestClient, engine: Engine, make: Make
) -> None:
    runs = make(series((3, 400.0)), job="release/gpt_4experts")
    make(series((3, 300.0)), job="release/gpt_8experts", started=FIRST_PLACE + timedelta(days=2))
    address = f"/history/{key_of(engine, runs[0])}"

    def names() -> list[str]:
        chooser = client.get(address).text.partition('id="h-config"')[2].partition("</select>")[0]
        return [name.strip() for name in re.findall(r">([A-Z]: [^<]*)<", chooser)]

    assert names() == ["A: gpt_4experts, 3 runs", "B: gpt_8experts, 3 runs"]
    more: dict[str, Any] = {"fields": {"ep_overlap": True}, "started": FIRST_PLACE + timedelta(days=4)}
    make(series((3, 280.0)), job="release/gpt_8experts", **more)
    assert names() == ["A: gpt_4experts, 3 runs", "B: gpt_8experts, 3 runs", "C: ep_overlap on, 3 runs"]


def test_the_lead_is_of_the_configuration_that_is_slower(client: TestClient, engine: Engine, make: Make) -> None:
    upgrade, other = {"container": "nvcr.io/nvidia/nemo:26.07"}, {"ep_overlap": True}
    later = FIRST_PLACE + timedelta(days=8)
    make([400.0] * 8)
    make([600.0] * 8, fields=other, started=FIRST_PLACE + timedelta(hours=2))
    slower = make([480.0] * 6, fields=upgrade, started=later)
    make([500.0] * 6, fields=upgrade | other, started=later + timedelta(hours=2))
    address = f"/api/v1/history/{key_of(engine, slower[0])}"

    def lead(query: str = "") -> str:
        text = client.get(f"{address}{query}").json()["lead"]
        assert isinstance(text, str)
        return text.replace("\u202f", " ")

    configurations = {row["letter"]: row["config_key"] for row in client.get(address).json()["configurations"]}
    assert re.match(r"Configuration A: 4\d\d.\d ms .* 20\.0 % slower .*; B 16\.\d % faster\.$", lead())
    assert re.match(r"\d{3}\.\d ms .* 16\.\d % faster", lead(f"?config={configurations['B'][:12]}")), "it was asked for"
    make([500.0] * 6, fields=upgrade | other, started=later + timedelta(days=6, hours=2))
    make([402.0] * 3, fields=upgrade, started=later + timedelta(days=6))
    with transaction(engine) as session:
        session.execute(update(UpgradeChangeRow).values(decision="no_change"))
    assert not lead().startswith("Configuration"), "the slower one is back"


def shown_states(client: TestClient, key: str) -> tuple[str, str, str, str]:
    """Return the lead, the primary button, the answer of the API, and the row of the list."""
    page = client.get(f"/history/{key}").text
    (lead,) = re.findall(r'<p class="answer">(.*?)</p>', page, re.DOTALL)
    button = re.findall(r'class="button primary" href="(.*?)"', page.partition("stack-head")[2])[0]
    answer = client.get(f"/api/v1/history/{key}").json()["answer"].replace("\u202f", " ")
    row = text_of(client.get("/history").text.partition("<tbody>")[2])
    return text_of(lead).strip(), button, answer, row


def test_row_lead_button_and_answer_are_of_the_configuration_in_use(
    client: TestClient, engine: Engine, make: Make
) -> None:
    """A job was upgraded, which made it slower, and continued with another knob, which made it slower again."""
    upgrade, later = {"container": "nvcr.io/nvidia/nemo:26.07"}, FIRST_PLACE + timedelta(days=8)
    make([400.0] * 8, job="nightly")
    upgraded = make([440.0] * 6, fields=upgrade, started=later, job="nightly")
    new = make(
        [484.0] * 4, fields=upgrade | {"permute_fusion": False}, started=later + timedelta(days=9), job="nightly"
    )
    with transaction(engine) as session:
        session.execute(delete(RegressionRow))
        number = make_regression(session, member(session, upgraded[0], 400.0, 440.0))
    lead, button, answer, row = shown_states(client, key_of(engine, new[0]))
    level, change = r"48\d\.\d ms", r"(9\.\d|10\.\d) % slower"
    assert re.fullmatch(rf"{level} per step: {change} in nemo:26\.07, then {change} with permute_fusion \S+\.", lead)
    assert re.match(rf"{level} per step now.* configuration B of 2 configurations, the most recent one", answer)
    assert button == f"/regressions/{number}"
    assert re.search(rf"{level} .*10\.0 % slower R{number} open then {change}", row), row
    with read_session(engine) as session:
        config = session.get_one(RunRow, new[0]).config_key
    page = client.get(f"/history/{key_of(engine, new[0])}?config={config[:12]}")
    assert page.status_code == 200, "the configuration before is not shown"
    assert re.search(rf"{level} per step now: {change} with permute_fusion", text_of(page.text).replace("\u202f", " "))
    changes = client.get(f"/api/v1/history/{key_of(engine, new[0])}").json()["changes"]
    (step,) = (row for row in changes if row["kind"] == "configuration")
    with read_session(engine) as session:
        judged = session.get_one(RunRow, new[0])
        assert judged.verdict_delta_pct is not None
        assert (step["delta_pct"], step["decision"]) == (pytest.approx(judged.verdict_delta_pct), "regression")
        listed = find_stacks(session, StackQuery()).items[0].regression
        assert listed is not None
        assert listed.later is not None
        assert listed.later.delta_pct == pytest.approx(judged.verdict_delta_pct)


@pytest.mark.parametrize(("newest", "was"), [(900.0, ""), (600.0, "was ")])
def test_a_stale_regression_of_another_configuration_does_not_lead(
    client: TestClient, engine: Engine, make: Make, newest: float, was: str
) -> None:
    upgrade, other = {"container": "nvcr.io/nvidia/nemo:26.07"}, {"ep_overlap": True}
    later, hours = FIRST_PLACE + timedelta(days=8), timedelta(hours=2)
    make([400.0] * 8)
    before = make([600.0] * 6 + [newest] * 2, fields=other, started=FIRST_PLACE + hours)
    make([900.0] * 2, fields=upgrade | other, started=later)
    slow = make([480.0, 480.0, 410.0], fields=upgrade, started=later + hours)
    with transaction(engine) as session:
        session.execute(delete(RegressionRow))
        session.execute(delete(UpgradeChangeRow))
        of_slow = make_regression(session, member(session, slow[0], 400.0, 480.0))
        of_idle = make_regression(session, member(session, before[6], 600.0, 900.0), cause_key="code:idle")
        session.execute(update(RegressionRow).values(proposal="stale"))
    lead, button, answer, row = shown_states(client, key_of(engine, slow[0]))
    assert of_idle > of_slow
    assert re.fullmatch(rf"4\d\d\.\d ms in #{slow[-1]} .*was 20\.0 % slower .*regression {of_slow}, idle.*", lead), lead
    assert button == f"/regressions/{of_slow}"
    assert re.search(r"configuration \w of 2 configurations, the most recent one", answer)
    assert re.search(rf"4\d\d\.\d ms was 20\.0 % slower, now [+]\d\.\d % R{of_slow} idle", row), row
    page = client.get(f"/history/{key_of(engine, slow[0])}").text
    others = re.findall(r"<p[^>]*data-others.*?</p>", page, re.DOTALL)
    assert [re.findall(r'href="([^"]*)"', part) for part in others] == [[f"/regressions/{of_idle}"]]
    assert re.search(rf"configuration \w, {was}50\.0\s%\s+slower, idle\)", html.unescape(others[0])), others[0]
    third = make([600.0] * 8, fields={"permute_fusion": False}, started=FIRST_PLACE + 2 * hours)
    with transaction(engine) as session:
        session.execute(delete(RegressionRow).where(col(RegressionRow.id) == of_idle))
        both = [member(session, before[6], 600.0, 900.0), member(session, third[6], 600.0, 840.0)]
        make_regression(session, both, cause_key="code:idle", proposal="stale")
    page = client.get(f"/history/{key_of(engine, slow[0])}").text
    (others,) = re.findall(r"<p[^>]*data-others.*?</p>", page, re.DOTALL)
    assert re.search(rf"configurations \w, \w, {was}up to 50\.0\s%\s+slower, idle\)", html.unescape(others)), others


def test_the_lead_names_a_newest_run_that_is_slower_and_unconfirmed(
    client: TestClient, engine: Engine, make: Make
) -> None:
    runs = make(series((14, 400.0), (1, 460.0)))
    row = text_of(client.get("/history").text.partition("<tbody>")[2])
    assert "unconfirmed" in row
    lead = text_of(client.get(f"/history/{key_of(engine, runs[0])}").text.partition('id="history-lead"')[2])
    assert re.search(rf"#{runs[-1]}, 1[45]\.\d % slower than the last 1[24] runs, unconfirmed", lead), lead[:200]


def test_the_lead_names_the_only_run_behind_a_change(client: TestClient, engine: Engine, make: Make) -> None:
    before, slow = make([400.0, 600.0])
    lead, *_ = shown_states(client, key_of(engine, slow))
    assert re.fullmatch(rf"\d+\.\d ms in #{slow}, \d+\.\d % slower than #{before} alone, unconfirmed\.", lead), lead


def test_runs_that_differ_too_much_have_no_level_in_the_lead(client: TestClient, engine: Engine, make: Make) -> None:
    runs = make([600.0, 400.0])
    lead, _, answer, _ = shown_states(client, key_of(engine, runs[0]))
    assert re.fullmatch(rf"\d+\.\d ms in #{runs[1]}; 2 runs differ too much for one level\.", lead)
    assert answer == lead


def test_an_inconclusive_upgrade_is_still_slower_than_before_its_regression(
    client: TestClient, engine: Engine, make: Make
) -> None:
    later, days = FIRST_PLACE + timedelta(days=8), timedelta(days=8)
    make([400.0] * 8)
    slow = make([560.0] * 2, fields={"container": "nvcr.io/nvidia/nemo:26.07"}, started=later)
    now = make([540.0], fields={"container": "nvcr.io/nvidia/nemo:26.08"}, started=later + days)
    with transaction(engine) as session:
        session.execute(update(UpgradeChangeRow).values(decision="inconclusive"))
        session.execute(delete(RegressionRow))
        number = make_regression(session, member(session, slow[0], 400.0, 560.0))
    lead, button, _, row = shown_states(client, key_of(engine, now[0]))
    expected = rf"\d+\.\d ms per step in nemo:26\.08; still 3\d\.\d % slower than before regression {number}\."
    assert re.fullmatch(expected, lead)
    assert button == f"/regressions/{number}"
    assert re.search(rf"5[34]\d\.\d ms 40\.0 % slower R{number} open", row), "the row has the regression of the page"
    with transaction(engine) as session:
        session.execute(update(RegressionRow).values(state="expected"))
    assert f"R{number}" not in shown_states(client, key_of(engine, now[0]))[3]


def test_a_slowdown_that_returned_with_an_inconclusive_upgrade_leads(
    client: TestClient, engine: Engine, make: Make
) -> None:
    later, days = FIRST_PLACE + timedelta(days=8), timedelta(days=8)
    make([400.0] * 8)
    slow = make([560.0, 404.0], fields={"container": "nvcr.io/nvidia/nemo:26.07"}, started=later)
    now = make([540.0], fields={"container": "nvcr.io/nvidia/nemo:26.08"}, started=later + days)
    with transaction(engine) as session:
        session.execute(update(UpgradeChangeRow).values(decision="inconclusive"))
        session.execute(delete(RegressionRow))
        number = make_regression(session, member(session, slow[0], 400.0, 560.0))
    lead, button, _, row = shown_states(client, key_of(engine, now[0]))
    assert lead.endswith(f"slower than before regression {number}."), lead
    assert button == f"/regressions/{number}", "it is still to triage"
    assert f"R{number}" in row, "the list counts what the page's button triages"


@pytest.mark.parametrize("is_cleared", [False, True])
def test_the_lead_names_the_container_unless_the_evidence_clears_it(
    client: TestClient, engine: Engine, make: Make, is_cleared: bool
) -> None:
    """Another stack that did not move with the same upgrade clears the container."""
    upgrade, later = {"container": "nvcr.io/nvidia/nemo:26.07"}, FIRST_PLACE + timedelta(days=8)
    other, hours = {"seq_len": 8192, "gbs": 512}, timedelta(hours=2)
    make([400.0] * 8)
    slow = make([480.0, 478.0], fields=upgrade, started=later)
    if is_cleared:
        make([500.0] * 8, fields=other, started=FIRST_PLACE + hours)
        make([500.0] * 6, fields=other | upgrade, started=later + hours)
    address = f"/history/{key_of(engine, slow[0])}"
    data = client.get(f"/api/v1{address}").json()
    (row,) = (row for row in data["changes"] if row["kind"] == "container" and row["regression_id"])
    lead = data["lead"].replace("\u202f", " ")
    assert ("nemo:26.07" in lead) == (not is_cleared)
    assert (f"egression {row['regression_id']}" in lead) == is_cleared
    assert ('data-cleared="container"' in client.get(address).text) == is_cleared
    if not is_cleared:
        assert lead.startswith(f"{row['to_step_time_ms']:.1f} ms"), "the figure of the row of the change"
        drawn = chart_of(client, f"{address}/chart")["datasets"]
        at = {row["at"]: row["id"] for row in drawn["points"]}
        marks = {at[row["at"]]: row["verdict"] for row in drawn["arrows"]}
        assert marks.get(slow[0]) == "regression", "as its own page, although it has no baseline"


def test_marks_of_memory_are_its_own_regressions(client: TestClient, engine: Engine, moved: list[int]) -> None:
    with transaction(engine) as session:
        make_regression(session, member(session, moved[3], 20.0, 21.0), metric="peak_memory_gib", cause_key="code:m")
    address = f"/history/{key_of(engine, moved[0])}/chart"
    data = chart_of(client, f"{address}?metric=peak_memory_gib")["datasets"]
    at = {row["at"]: row["id"] for row in data["points"]}
    assert [(at[row["at"]], row["verdict"]) for row in data["arrows"]] == [(moved[3], "regression")]
    assert "crosses" not in data
    times = chart_of(client, address)["datasets"]
    assert moved[3] not in {at[row["at"]] for row in times["arrows"]}


def test_more_memory_is_not_a_slow_step(client: TestClient, engine: Engine, make: Make) -> None:
    make([400.0, 401.0, 402.0])
    started = FIRST_PLACE + timedelta(days=3)
    [heavy] = make([401.0], started=started, peak_memory_gib=70.0)
    [slow] = make([480.0], started=started + timedelta(days=1))
    address = f"/history/{key_of(engine, heavy)}"
    data = chart_of(client, f"{address}/chart")["datasets"]
    at = {row["at"]: row["id"] for row in data["points"]}
    assert [(at[row["at"]], row["verdict"]) for row in data["arrows"]] == [(slow, "regression")]
    table = client.get(f"{address}/runs").text.partition("<tbody")[2]
    of_slow, of_heavy = table.split("</tr>")[:2]
    assert 'class="delta-bar regression"' in of_slow
    assert f"#{heavy}<" in of_heavy
    figures = re.findall(r'<span class="nowrap">((?:time )?)[+\u2212]?([\d.]+)', of_heavy)
    assert figures == [("", "14.0"), ("time ", "0.00")], "each change says of what"
    assert "delta-bar" not in of_heavy
    with read_session(engine) as session:
        stack = get_stack(session, key_of(engine, heavy))
        assert stack is not None
        assert len(re.findall("worse", history_picture(session, stack).body)) == 1


@pytest.mark.parametrize(
    ("days", "expected"),
    [(0.25, ["28 Dec", "29 Dec", "30 Dec"]), (3, ["28 Dec 2025", "9 Jan 2026", "12 Jan 2026", "24 Jan 2026"])],
)
def test_dates_below_the_runs_have_the_year_if_it_changes_and_never_repeat(
    client: TestClient, make: Make, engine: Engine, days: float, expected: list[str]
) -> None:
    runs = make(series((10, 400.0)))
    begin = FIRST_PLACE.replace(year=2025, month=12, day=28, hour=1)
    with transaction(engine) as session:
        for number, run in enumerate(runs):
            session.get_one(RunRow, run).ordered_at = begin + timedelta(days=days * number)
        session.execute(update(StackRow).values(revision=StackRow.revision + 1))
    labels = [
        row["label"] for row in chart_of(client, f"/history/{key_of(engine, runs[0])}/chart")["datasets"]["ticks"]
    ]
    assert set(expected) <= {*labels}
    assert len(set(labels)) == len(labels)


def test_the_api_lists_the_changes_of_the_page(client: TestClient, engine: Engine, make: Make) -> None:
    upgrade = {"container": "nvcr.io/nvidia/nemo:26.07"}
    runs = make(series((14, 400.0), (12, 424.0)))
    runs += make(series((6, 404.0)), fields=upgrade, started=FIRST_PLACE + timedelta(days=26))
    for address in (key_of(engine, runs[0]), key_of(engine, runs[-1])):
        answer = client.get(f"/api/v1/history/{address}").json()
        page = client.get(f"/history/{address}").text
        listed = page[page.index('id="changes"') :].partition("</table>")[0]
        rows = re.findall(r'<th scope="row".*?href="/runs/(\d+)"', listed, re.DOTALL)
        assert [str(change["run_id"]) for change in answer["changes"]] == rows
        assert [change["kind"] for change in answer["changes"]] == ["container", "change_point", "container"]
        (point,) = (change for change in answer["changes"] if change["kind"] == "change_point")
        assert point["regression_id"] == 1
        assert answer["lead"].replace("\u202f", " ") in text_of(page)


def test_containers_are_those_of_the_shown_configuration(client: TestClient, engine: Engine, make: Make) -> None:
    upgrade, other = {"container": "nvcr.io/nvidia/nemo:26.07"}, {"ep_overlap": True}
    later = FIRST_PLACE + timedelta(days=8)
    make([400.0] * 8)
    make([600.0] * 8, fields=other, started=FIRST_PLACE + timedelta(hours=2))
    unsteady = make([440.0], fields=upgrade, started=later, is_steady=False)
    quicker = make([440.0] * 6, fields=upgrade, started=later + timedelta(days=1))
    make([480.0] * 6, fields=upgrade | other, started=later + timedelta(days=1, hours=2))
    (late,) = make([600.0], fields=other, started=later + timedelta(days=5, hours=3))
    address = f"/history/{key_of(engine, quicker[0])}"
    spec = chart_of(client, f"{address}/chart")["datasets"]
    bands, points = spec["containers"], {row["id"]: row for row in spec["points"]}
    assert bands[1]["label"] == f"26.07  A {change_text(10.0).delta}", "the configuration of the lead"
    assert bands[1]["at"] < points[unsteady[0]]["at"], "a run that does not count is in its container's band, too"
    assert (points[late]["container"], points[late]["at"] > bands[1]["at"]) == ("nemo:26.06", True)
    assert "1 run is in the band of a newer container" in text_of(client.get(f"{address}/chart", headers=HTMX).text)
    page = client.get(address).text
    changes = text_of(page.partition('id="changes"')[2].partition("</table>")[0])
    steps = re.findall(r"#(\d+) [^#]*?(\S+) ms → (\S+) ms container nemo:26.07[^#]*\(configuration (\w)\)", changes)
    assert [
        (int(run), round(float(before), -1), round(float(after), -1), name) for run, before, after, name in steps
    ] == [
        (quicker[-1] + 1, 600, 480, "B"),
        (quicker[0], 400, 440, "A"),
    ], "each configuration has its own first counted run"
    first, second = re.findall(r'<option value="([0-9a-f]{12}[^"]*)"', page)
    for config, change, level in ((first, 10.0, 440), (second, -20.0, 480)):
        drawn = chart_of(client, f"{address}/chart?config={config}")["datasets"]
        assert [row["label"] for row in drawn["containers"]] == ["26.06", f"26.07  {change_text(change).delta}"]
        changes = client.get(f"{address}?config={config}").text.partition('id="changes"')[2].partition("</table>")[0]
        assert [round(float(ms), -1) for ms in re.findall(r"→ (\S+) ms container", text_of(changes))] == [level]
    tokens = chart_of(client, f"{address}/chart?metric=tokens_per_s_per_gpu")["datasets"]["containers"]
    assert tokens[1]["label"] == f"26.07  A {change_text(100 / 1.1 - 100).delta}", "the change of the metric"
    with transaction(engine) as session:
        of_lead = update(UpgradeChangeRow).where(UpgradeChangeRow.delta_pct > 0)
        session.execute(of_lead.values(decision="inconclusive"))
    band = chart_of(client, f"{address}/chart")["datasets"]["containers"][1]
    assert band["label"] == f"26.07  B {change_text(-20.0).delta}", "a decided change comes before an inconclusive one"
    assert "A inconclusive" in band["change"]
    assert (band["direction"], band["name"]) == ("faster", "26.07")


@pytest.mark.parametrize(
    ("slow", "proposal", "expected"),
    [
        (12, "", r"4\d\d\.\d ms per step now; regression 1: \S+ % slower since #15\."),
        (12, "stale", r"4\d\d\.\d ms in #26 \(\d+ \w+\); \S+ % slower since #15 \(regression 1, idle\)\."),
        (11, "stale", r"398\.6 ms in #26 \(\d+ \w+\); was \S+ % slower since #15 \(regression 1, idle\)\."),
    ],
)
def test_a_regression_to_close_is_not_the_current_state(
    client: TestClient, engine: Engine, slow: int, proposal: str, expected: str
) -> None:
    with transaction(engine) as session:
        runs = make_stack(session, series((14, 400.0), (slow, 424.0), (12 - slow, 402.0)))
        session.execute(update(RegressionRow).values(proposal=proposal))
    page = client.get(f"/history/{key_of(engine, runs[0])}").text
    (answer,) = re.findall(r'<p class="answer">(.*?)</p>', page, re.DOTALL)
    assert re.fullmatch(expected, text_of(answer).strip())
    button = re.search(r'class="button primary" href="/regressions/1">(.*?)</a>', page, re.DOTALL)
    assert button is not None
    assert button[1].split() == [("Open" if proposal else "Triage"), "regression", "1"]
    assert ("None of its jobs ran for 30 days" in page) == bool(proposal)


def test_versions_and_releases_stand_below_the_points(client: TestClient, engine: Engine, make: Make) -> None:
    runs = make(series((6, 400.0)), fields={"driver": "550.54"})
    with transaction(engine) as session:
        for run in runs[3:]:
            row = session.get_one(RunRow, run)
            row.result.contract = row.result.contract | {"driver": {"value": "560.35", "source": "log line"}}
            session.add(row)
        release = session.get_one(RunRow, runs[4])
        release.purpose, release.name = "release", "v1.2"
        session.add(release)
    address = f"/history/{key_of(engine, runs[0])}"
    events = chart_of(client, f"{address}/chart")["datasets"]["events"]
    assert [(row["at"], row["kind"], row["text"]) for row in events] == [
        (4, "versions", "driver 550.54 to 560.35"),
        (5, "release", "release v1.2"),
    ]
    assert f"#{runs[3]} " in text_of(client.get(address).text).partition("Versions")[2]


def test_a_history_without_a_run_that_counts_has_a_page(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_run(session, stack_key="aaaaaaaa", config_key="bbbbbbbb", purpose="ci", step_time_ms=400.0)
        failed = make_run(session, stack_key="cccccccc", config_key="dddddddd", status="failed")
        row = session.get_one(RunRow, failed)
        row.outcome = "failed"
        session.add(row)
    for key in ("aaaaaaaa", "cccccccc"):
        for part in ("", "/chart", "/data", "/runs", "/chart?axis=date", "/chart?metric=mfu_pct"):
            assert client.get(f"/history/{key}{part}", headers=HTMX if part else HTML).status_code == 200, key + part
        assert client.get(f"/api/v1/history/{key}").status_code == 200
    assert "1 failed" in client.get("/history/cccccccc").text


def test_names_and_notes_stay_text(client: TestClient, engine: Engine, make: Make) -> None:
    attack = "</script><script>alert(1)</script>"
    runs = make(series((13, 400.0)), name=attack, branch="main")
    with transaction(engine) as session:
        row = session.get_one(RunRow, runs[0])
        row.quarantine = '"><img src=x>'
        session.add(row)
    address = f"/history/{key_of(engine, runs[0])}"
    form = {"run": str(runs[1]), "author": "Ada", "note": attack}
    assert client.post(f"{address}/pin", data=form, follow_redirects=False).status_code == 303
    for part in ("", "/chart", "/data", "/runs"):
        text = client.get(f"{address}{part}", headers=HTMX if part else HTML).text
        assert "<script>alert" not in text, part
        assert "<img src=x>" not in text, part


def test_a_golden_run_is_pinned_and_unpinned(client: TestClient, engine: Engine, moved: list[int]) -> None:
    address = f"/history/{key_of(engine, moved[0])}"
    for run in (moved[2], moved[16]):
        answer = client.post(
            f"{address}/pin", data={"run": f"#{run}", "author": "Ada", "note": "why"}, follow_redirects=False
        )
        assert (answer.status_code, answer.headers["Location"]) == (303, f"{address}#golden")
    text = text_of(client.get(address).text)
    assert f"Golden run #{moved[16]}, pinned on" in text
    assert re.search(rf"[56]\.\d % slower than #{moved[2]}", text)  # the drift that the second pin would hide
    pins = client.get(f"/api/v1{address}").json()["golden_runs"]
    assert [(pin["run_id"], pin["unpinned_by"]) for pin in pins] == [(moved[16], None), (moved[2], "Ada")]
    assert 5 < pins[0]["drift_since_last_pin_pct"] < 7
    (number,) = re.findall(r'name="pin" value="(\d+)"', client.get(address).text)
    client.post(f"{address}/unpin", data={"pin": number, "author": "Grace"})
    assert "Golden run #" not in text_of(client.get(address).text).partition("Golden runs")[0]
    with transaction(engine) as session:
        rows = session.exec(select(AuditEventRow).where(AuditEventRow.subject == "stack")).all()
        assert [(row.who, row.action) for row in rows] == [("Ada", "pin"), ("Ada", "pin"), ("Grace", "unpin")]
    (name,) = {item["name"] for item in client.get("/api/v1/audit?subject=stack").json()["items"]}
    with read_session(engine) as session:
        contract = newest_contract(session, key_of(engine, moved[0]))
        # The runs of a stack can use different dispatchers, so its name has none.
        assert name == stack_title(contract, dispatcher=False) != stack_title(contract)


def test_a_golden_run_is_proposed_by_one_user_and_approved_by_another(
    client: TestClient, engine: Engine, moved: list[int]
) -> None:
    def decide(run: int, action: str, author: str, note: str = "") -> int:
        return client.post(f"/api/v1/runs/{run}/{action}", json={"author": author, "note": note}).status_code

    history = f"/api/v1/history/{key_of(engine, moved[0])}"
    assert decide(moved[2], "pin", "Ada") == 200
    with transaction(engine) as session:
        session.get_one(RunRow, moved[5]).outcome = "out_of_memory"
    assert decide(moved[5], "propose", "Ada") == 422  # never part of a baseline
    assert decide(moved[5], "pin", "Ada") == 422
    assert decide(moved[16], "approve", "Ada") == 422  # not proposed
    assert decide(moved[16], "propose", "Ada", "the fused kernel costs this") == 200
    assert decide(moved[16], "propose", "Bea") == 200  # changes nothing
    assert decide(moved[20], "propose", "Cleo") == decide(moved[21], "propose", "Cleo") == 200
    assert f'data-proposal="{moved[16]}"' in client.get("/").text
    run_page = client.get(f"/runs/{moved[16]}?tab=record").text
    assert 'id="approve"' in run_page
    assert 'id="pin"' not in run_page
    proposed = {item["run_id"]: item for item in client.get(history).json()["golden_proposals"]}
    assert list(proposed) == [moved[21], moved[20], moved[16]]
    assert 5 < proposed[moved[16]]["drift_since_golden_pct"] < 7
    assert decide(moved[16], "approve", "Ada", "mine") == 422  # the user who proposed it
    assert decide(moved[21], "decline", "Grace") == 422  # without a reason
    assert decide(moved[21], "decline", "Grace", "noisy") == 200
    assert decide(moved[16], "approve", "Grace") == 200
    data = client.get(history).json()
    assert [(item["state"], item["decided_by"], item["reason"]) for item in data["golden_proposals"]] == [
        ("declined", "Grace", "noisy"), ("superseded", "Grace", "the fused kernel costs this"),
        ("approved", "Grace", "the fused kernel costs this"),
    ]  # fmt: skip
    golden = [(pin["run_id"], pin["pinned_by"], pin["unpinned_by"]) for pin in data["golden_runs"]]
    assert golden == [(moved[16], "Grace", None), (moved[2], "Ada", "Grace")]
    assert "data-proposal" not in client.get("/").text
    assert text_of(client.get(history.removeprefix("/api/v1")).text).count("proposed by Cleo") == 2


def test_a_run_of_an_experiment_never_becomes_the_golden_run(
    client: TestClient, engine: Engine, moved: list[int]
) -> None:
    run, stack = moved[3], key_of(engine, moved[3])
    with transaction(engine) as session:
        propose(session, run, "Ada")  # as an earlier version stored it
        session.get_one(RunRow, run).purpose = "experiment"
    page = client.get(f"/runs/{moved[4]}?tab=record").text
    assert 'id="propose"' in page
    assert 'id="pin"' in page
    for action in ("propose", "pin", "approve"):
        refused = client.post(f"/api/v1/runs/{run}/{action}", json={"author": "Bea"})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "run"), action
        assert "purpose ci" in refused.json()["detail"], action
        form = client.post(f"/runs/{run}/{action}", data={"author": "Bea"})
        assert (form.status_code, "purpose ci" in form.text) == (422, True), action
    form = client.post(f"/history/{stack}/pin", data={"run": str(run), "author": "Bea"})
    assert (form.status_code, "purpose ci" in form.text) == (422, True)
    declined = client.post(f"/api/v1/runs/{run}/decline", json={"author": "Bea", "note": "an experiment"})
    assert declined.status_code == 200
    page = client.get(f"/runs/{run}?tab=record").text
    assert 'id="propose"' not in page
    assert 'id="pin"' not in page
    assert client.get(f"/api/v1/history/{stack}").json()["golden_runs"] == []


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"run": "17000", "author": "Ada"}, "17000 is not"),
        ({"run": "newest", "author": "Ada"}, "must be the number of a run"),
        ({"run": "", "author": ""}, "must be the number of a run"),
        ({"run": "1", "author": ""}, "must name the author"),
        ({"run": "1", "author": "Ada", "note": "n" * 1001}, "at most 1,000 characters"),
    ],
)
def test_a_rejected_pin_keeps_its_input(
    client: TestClient, engine: Engine, moved: list[int], form: dict[str, str], message: str
) -> None:
    answer = client.post(f"/history/{key_of(engine, moved[0])}/pin", data=form)
    assert answer.status_code == 422
    assert message in answer.text
    assert f'value="{form["author"]}"' in answer.text


@pytest.mark.parametrize(
    ("last_ms", "total_pct"), [(440.0, 10.0), (420.0, None), (400.0, None)], ids=["two losses", "one loss", "recovered"]
)
def test_the_page_adds_up_losses_that_follow_each_other(
    client: TestClient, engine: Engine, make: Make, last_ms: float, total_pct: float | None
) -> None:
    runs = make(series((8, 400.0), (8, 420.0), (8, last_ms)))
    page = client.get(f"/history/{key_of(engine, runs[0])}").text
    (lead,) = re.findall(r'id="history-lead".*?</div>', page, re.DOTALL)
    totals = re.findall(r'data-total="([\d.]+)".*?href="/runs/(\d+)"', lead, re.DOTALL)
    expected = [] if total_pct is None else [(pytest.approx(total_pct, abs=0.8), runs[7])]
    assert [(float(pct), int(run)) for pct, run in totals] == expected


def test_a_pin_of_another_stack_cannot_be_ended_here(
    client: TestClient, engine: Engine, moved: list[int], make: Make
) -> None:
    other = make(series((2, 400.0)), fields={"gbs": 512})
    theirs, ours = key_of(engine, other[0]), key_of(engine, moved[0])
    client.post(f"/history/{theirs}/pin", data={"run": str(other[0]), "author": "Ada"})
    (number,) = re.findall(r'name="pin" value="(\d+)"', client.get(f"/history/{theirs}").text)
    assert client.post(f"/history/{ours}/unpin", data={"pin": number, "author": "Ada"}).status_code == 422
    assert client.post(f"/history/{ours}/pin", data={"run": str(other[1]), "author": "Ada"}).status_code == 422
    assert client.get(f"/api/v1/history/{theirs}").json()["golden_runs"][0]["unpinned_at"] is None


def test_the_api_has_what_the_page_shows(client: TestClient, engine: Engine, moved: list[int]) -> None:
    body = client.get(f"/api/v1/history/{key_of(engine, moved[0])}").json()
    (change,) = body["change_points"]
    assert (change["run_id"], change["after_run_id"], change["called_by_run_id"]) == (moved[14], moved[13], moved[14])
    assert change["delta_pct"] == pytest.approx(6, abs=0.6)
    assert change["regression_id"] == 1
    (configuration,) = body["configurations"]
    assert [level["runs"] for level in configuration["levels"]] == [14, 12]
    assert [run["id"] for run in body["runs"]] == moved
    assert body["runs"][0]["metrics"]["step_time_ms"]["n"] == 46
    assert body["contract"]["gpus"] == 16


def test_the_runs_as_csv(client: TestClient, engine: Engine, moved: list[int]) -> None:
    with transaction(engine) as session:
        row = session.get_one(RunRow, moved[0])
        row.name = "=cmd()"
        session.add(row)
    key = key_of(engine, moved[0])
    answer = client.get(f"/api/v1/history/{key}?first={moved[0]}&last={moved[4]}", headers={"Accept": "text/csv"})
    two = client.get(f"/history/{key}/runs.csv?first={moved[0]}&last={moved[4]}")
    assert answer.text == two.text
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(row["id"]) for row in rows] == moved[:5]
    assert rows[0]["name"] == "'=cmd()"
    assert float(rows[1]["step_time_ms"]) == pytest.approx(400, rel=0.02)
    assert float(rows[1]["step_time_ms_ci_low"]) < float(rows[1]["step_time_ms"])
    stated = client.get(f"/api/v1/history/{key}", params={"first": moved[0], "last": moved[4], "format": "csv"})
    assert stated.text == answer.text
    assert client.get(f"/api/v1/history/{key}", headers={"Accept": "image/png"}).status_code == 406
    parquet = client.get(f"/api/v1/history/{key}", params={"first": moved[0], "last": moved[4], "format": "parquet"})
    table = pyarrow.parquet.read_table(io.BytesIO(parquet.content))
    assert table.column_names == list(rows[0])
    assert table["step_time_ms"].to_pylist() == [float(row["step_time_ms"]) for row in rows]
    assert [at.isoformat() for at in table["at"].to_pylist()] == [row["at"] for row in rows]
    assert client.get(f"/api/v1/history/{key}", params={"format": "xlsx"}).status_code == 422


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"Qwen3-30B-A3B", "DeepSeek-V3"}),
        ("q=deepseek", {"DeepSeek-V3"}),
        ("q=nightly", {"Qwen3-30B-A3B", "DeepSeek-V3"}),
        ("q=100%25", set()),
        ("model=DeepSeek-V3&gpu=GB200", {"DeepSeek-V3"}),
        ("dispatcher=hybridep", {"Qwen3-30B-A3B"}),
        ("dispatcher=unknown", set()),
        ("project=other", {"DeepSeek-V3"}),
        ("verdict=no_baseline", {"DeepSeek-V3"}),
        ("verdict=failed", set()),
    ],
)
def test_the_list_of_stacks(client: TestClient, engine: Engine, make: Make, query: str, expected: set[str]) -> None:
    make(series((4, 400.0)))
    make(series((2, 300.0)), fields={"dispatcher": "hybridep"}, started=FIRST_PLACE + timedelta(hours=1))
    make([900.0], fields={"model": "DeepSeek-V3", "gpu": "GB200"}, project="other")
    page = client.get(f"/history?{query}").text
    assert set(re.findall(r"<span>(\S+) · ", page)) == expected
    assert len(set(re.findall(r'href="/history/([0-9a-f]{64})"', page))) == len(expected)


def test_a_stack_that_differs_only_in_mbs_is_named_so(client: TestClient, engine: Engine, make: Make) -> None:
    runs = [*make([400.0], fields={"mbs": 1}), *make([390.0], fields={"mbs": 4})]
    for run, mbs in zip(runs, (1, 4), strict=True):
        key = key_of(engine, run)
        assert client.get(f"/api/v1/history/{key}").json()["title"].endswith(f" · MBS {mbs}")
        assert f" · MBS {mbs}" in text_of(client.get(f"/search?q={key[:12]}", headers=HTMX).text)


def test_the_list_counts_the_regressed_workloads(client: TestClient, engine: Engine, make: Make) -> None:
    with transaction(engine) as session:
        make_regression(session, make_slow_stack(session))
    make(series((4, 400.0)), started=FIRST_PLACE + timedelta(days=900))
    for address, slow in (("/history", 1), ("/history?project=moe-lab", 0)):
        assert f'data-slow="{slow}" data-idle="0"' in client.get(address).text, address
    with transaction(engine) as session:
        session.execute(update(RegressionRow).values(proposal="stale"))
    assert 'data-slow="0" data-idle="1"' in client.get("/history").text
    assert "idle" in text_of(client.get("/history").text.partition("<tbody>")[2])


def test_a_row_has_the_idle_regressions_of_all_its_jobs_and_the_badge_of_the_newest_run(
    client: TestClient, engine: Engine, make: Make
) -> None:
    other = make([300.0] * 4, job="other")
    make([400.0] * 8, job="nightly")
    upgrade, later = {"container": "nvcr.io/nvidia/nemo:26.07"}, FIRST_PLACE + timedelta(days=9)
    new = make([401.0], fields=upgrade, started=later, job="nightly")
    with transaction(engine) as session:
        session.execute(delete(RegressionRow))
        session.get_one(RunRow, new[0]).badge = "inconclusive"
        number = make_regression(session, member(session, other[3], 200.0, 300.0), proposal="stale")
    with read_session(engine) as session:
        page = find_stacks(session, StackQuery())
        [row] = page.items
        [of_runs] = [run for run in find_runs(session, RunQuery()).items if run.id == new[0]]
    assert (row.regression, row.idle, page.slow, page.idle) == (None, (number,), 1, 1)
    assert row.judged == of_runs
    assert f'title="Idle regressions: R{number}"' in client.get("/history").text


def test_a_row_without_a_counted_run_has_the_step_time_of_the_newest(engine: Engine, make: Make) -> None:
    make([400.0, 410.0], is_steady=False)
    with read_session(engine) as session:
        [row] = find_stacks(session, StackQuery()).items
    assert (row.step_time_ms, row.not_counted, row.spark) == (pytest.approx(410.0, rel=0.01), "not steady", None)


def test_a_stack_of_the_list_says_what_it_is(client: TestClient, make: Make) -> None:
    make(series((4, 400.0)))
    page = client.get("/history").text
    row = text_of(page[page.index("<tbody>") : page.index("</tbody>")])
    assert re.search(r"Qwen3-30B-A3B · 16 × H100 · forced balance\s*nemo:26.06 moe-lab (39|40)\d\.\d ms", row), row
    assert re.search(r'aria-label="[^"]*\b4 runs\b', page)


def test_the_list_reads_runs_again_only_after_a_change(client: TestClient, engine: Engine, make: Make) -> None:
    runs = make(series((4, 400.0)))
    before = client.get("/history").text
    read: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        is_label = "badge_label" in statement  # depends on regressions, too
        read.extend([statement] if re.search("FROM run(_result)?\\b", statement) and not is_label else [])

    assert client.get("/history").text == before
    assert read == []
    with transaction(engine) as session:
        row = session.get_one(RunRow, runs[-1], options=[WITH_RESULT])
        contract = row.result.contract["container"] | {"value": "NEMO:26.06"}
        row.result.contract = row.result.contract | {"container": contract}
        row.processed_at = FIRST_PLACE
    changed = client.get("/history").text
    assert read != []
    assert ("NEMO:26.06" in before, "NEMO:26.06" in changed) == (False, True)


def test_the_list_pages_on_the_server(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for number in range(27):
            make_run(session, name=f"r{number}", stack_key=f"{number:08x}")
    first, second, third = (client.get(f"/history?page={page}").text for page in (1, 2, 3))
    assert [text.count('<th scope="row"') for text in (first, second)] == [25, 2]
    assert 'rel="next" href="/history?page=2"' in first
    assert "No such page" in third
    block = client.get("/history?q=r1&page=1&model=", headers=HTMX)
    assert block.text.strip().startswith('<div id="stack-table"')
    assert block.headers["HX-Push-Url"] == "/history?q=r1"


def test_the_list_says_when_it_leaves_older_stacks_out(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.history.lists.MOST_STACKS", 3)
    with transaction(engine) as session:
        for number in range(4):
            model = "Qwen3" if number else "Mixtral"
            make_run(session, name=f"r{number}", stack_key=f"{number:08x}", model=model)
    counts = [client.get(f"/history{query}").text.count("data-most-stacks") for query in ("", "?model=Mixtral")]
    assert counts == [1, 0]


def test_a_workload_is_one_row_on_all_pages(client: TestClient, engine: Engine, make: Make) -> None:
    make([400.0], fields={"container": "nemo:26.04"}, started=FIRST_PLACE)
    make([400.0], fields={"container": "nemo:26.06"}, started=FIRST_PLACE + timedelta(days=90))
    with transaction(engine) as session:
        for number in range(26):
            place = FIRST_PLACE + timedelta(days=1 + number)
            make_run(session, name=f"r{number}", stack_key=f"{number:08x}", ordered_at=place)
    pages = [client.get(f"/history?page={number}").text for number in (1, 2)]
    rows = [len(re.findall(r'<a class="parts"', page)) for page in pages]
    assert rows == [25, 2]
    assert re.search(r'was\s*<a href="/history/[0-9a-f]{64}">nemo:26.04</a>', pages[0])
    assert "nemo:26.04" not in pages[1]


def test_a_trend_crosses_containers_and_names_its_regression(client: TestClient, engine: Engine, make: Make) -> None:
    make(series((8, 400.0)), fields={"container": "nemo:26.04"}, started=FIRST_PLACE)
    after = make(series((3, 440.0)), fields={"container": "nemo:26.06"}, started=FIRST_PLACE + timedelta(days=9))
    make([400.0], fields={"seq_len": 8192})
    with read_session(engine) as session:
        number = session.execute(select(RegressionMemberRow.regression_id)).scalar_one()
    page = client.get("/history").text
    assert re.findall(r'data-(slow|regression)="(\d+)"', page) == [("slow", "1"), ("regression", str(number))]
    spark = re.search(r'aria-label="([^"]*)">\s*<polyline points="([^"]*)"', page)
    assert spark
    assert "last 11 runs" in spark[1]
    assert "first slow run 9," in spark[1]
    heights = [float(point.partition(",")[2]) for point in spark[2].split()]
    assert max(heights[8:]) < min(heights[:8]), "slower is higher"
    assert page.count('<svg class="spark"') == 1, "a workload with one run has no trend"
    assert len(after) == 3


def test_the_row_of_a_stack_with_several_jobs_is_about_the_slow_one(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        slow = make_slow_stack(session, usual_ms=20_000.0, job="release/gpt_4experts")
        make_slow_stack(session, usual_ms=300.0, slow_pct=0.0, days=(18, 1), job="release/gpt_8experts")
        number = make_regression(session, slow)
    row = text_of(client.get("/history").text.partition("<tbody>")[2])
    assert re.search(rf"gpt_4experts.* 2[01]\.\d+ s 5\.0 % slower R{number} open", row.replace("\u202f", " ")), row
    with transaction(engine) as session:
        session.execute(update(RunRow).where(RunRow.id == slow.runs[-1]).values(step_time_ms=20_100.0))
        session.execute(update(StackRow).values(revision=StackRow.revision + 1))
    row = text_of(client.get("/history").text.partition("<tbody>")[2]).replace("\u202f", " ")
    assert re.search(rf"20\.10 s was 5\.0 % slower, now \+0\.5\d % R{number} open", row), row


def test_the_row_of_a_stack_shows_the_newest_configuration(client: TestClient, engine: Engine) -> None:
    """The job of a regression continues with another configuration, which replaces the slow one."""
    with transaction(engine) as session:
        slow = make_slow_stack(session, usual_ms=20_000.0, job="nightly")
        number = make_regression(session, slow)
        for k, ms in enumerate((23_000.0, 23_100.0)):
            make_run(
                session, project="triage", purpose="ci", job="nightly", stack_key=slow.stack_key, config_key="e" * 64,
                ordered_at=FIRST + timedelta(days=20 + k), step_time_ms=ms, log_step_time=math.log(ms),
                is_steady=True, short=False, outcome="completed",
            )  # fmt: skip
        session.execute(update(StackRow).values(revision=StackRow.revision + 1))
    row = text_of(client.get("/history").text.partition("<tbody>")[2]).replace("\u202f", " ")
    assert re.search(rf"23\.\d\d s 5\.0 % slower R{number} open then 9\.\d % slower", row), row
    (label,) = re.findall(r'class="spark".*?aria-label="([^"]*)"', client.get("/history").text, re.DOTALL)
    assert "of the last 18 runs: " in label
    assert "first slow run 13," in label


def test_a_workload_is_named_by_the_container_that_began_last(client: TestClient, engine: Engine, make: Make) -> None:
    make([400.0] * 5, fields={"container": "nemo:26.04"}, started=FIRST_PLACE)
    (newest,) = make([400.0], fields={"container": "nemo:26.06"}, started=FIRST_PLACE + timedelta(days=1))
    page = client.get("/history").text
    row = page[page.index("<tbody>") : page.index("</tbody>")]
    assert re.findall(r'href="/history/[0-9a-f]{64}"[^>]*>.*?(nemo:26\.0\d)', row, re.DOTALL) == [
        "nemo:26.06",
        "nemo:26.04",
    ]
    heading = text_of(client.get(f"/history/{key_of(engine, newest)}").text.partition("<h1>")[2].partition("</h1>")[0])

    assert "nemo:26.06" in heading


def test_a_workload_links_to_the_container_before(client: TestClient, make: Make) -> None:
    for number in range(6):
        make([400.0], fields={"container": f"nemo:26.0{number}"}, started=FIRST_PLACE + timedelta(days=number))
    row = text_of(client.get("/history").text)
    assert re.search(r"nemo:26.05 moe-lab was nemo:26.04\s+\+4", row), row


@pytest.mark.parametrize("query", ["verdict=good", "page=0", "q=%00", "model=" + "m" * 301])
def test_a_list_that_means_nothing_is_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/history?{query}", headers=HTML)
    assert answer.status_code == 422
    assert f"<code>{query.partition('=')[0]}</code>" in answer.text


def test_the_empty_list_shows_the_command_that_fills_it(client: TestClient) -> None:
    assert "http://testserver/api/v1/runs" in client.get("/history").text


@pytest.mark.parametrize("metric", ["step_time_ms", "tokens_per_s_per_gpu"])
def test_every_mark_is_at_its_value_or_in_the_lane_of_its_side(
    client: TestClient, engine: Engine, make: Make, metric: str
) -> None:
    draw = np.random.default_rng(20)
    for number in range(6):
        times = [400 * math.exp(0.01 * step) for step in draw.standard_normal(40)]
        for outlier in draw.choice(15, number // 2 + 1, replace=False):
            times[outlier] *= draw.uniform(1.3, 5) ** (-1 if number % 3 == 2 else draw.choice((-1, 1)))
        runs = make(times, stack_key=f"{number}" * 64, config_key=f"{number}" * 64)
        with transaction(engine) as session:
            session.execute(update(RunRow).where(col(RunRow.id).in_(runs[:3])).values(short=True))
        spec = chart_of(client, f"/history/{str(number) * 64}/chart?metric={metric}")
        data = spec["datasets"]
        low, high = sorted(row["shown"] for row in data["frame"])
        values = {run: client.get(f"/api/v1/runs/{run}").json()["metrics"][metric]["value"] for run in runs}
        assert {row["id"]: row["shown"] for row in data["points"]} == {
            run: pytest.approx(value) for run, value in values.items() if low <= value <= high
        }
        (bottom, top) = next(scale["range"] for scale in spec["scales"] if scale["name"] == "y")
        sides = {
            "lane": ([run for run in runs if values[run] > high], lambda y, top=top: y < top),
            "low_lane": ([run for run in runs if values[run] < low], lambda y, bottom=bottom: y > bottom),
        }
        assert any(beyond for beyond, _ in sides.values())
        for name, (beyond, is_on_its_side) in sides.items():
            lane = {row["id"]: row["lane"] for row in data.get(name, ())}
            assert list(lane) == beyond
            assert all(lane.values())
            assert not set(lane) & set(runs[-20:])
            assert [row["text"] for row in data.get(name.replace("lane", "edge"), ())] == ["off the scale"] * bool(lane)
            sources = {source["name"] for source in spec["data"] if name in (source["name"], source.get("source"))}
            marks = [mark["encode"]["update"] for mark in spec["marks"] if mark.get("from", {}).get("data") in sources]
            assert all(is_on_its_side(mark["y"]["value"]) for mark in marks)
            assert bool(marks) == bool(lane)
            texts = sorted((row["narrow_dy"], row["at"]) for row in data.get(name, ()))
            assert all(a != b or after > before + 1 for (a, before), (b, after) in pairwise(texts))
        assert all(row["slot"] < bottom for row in data.get("events", ()))
        labels = sorted(row["label_at"] for row in data.get("levels", ()) if row["label"])
        assert all(after - before >= 0.99 * (high - low) / 300 * 15 for before, after in pairwise(labels))
        # Nothing else stretches the axis.
        ends = [row[end] for row in data.get("intervals", ()) for end in ("low", "high")]
        assert all(low <= value <= high for value in (*ends, *(row["value"] for row in data.get("levels", ()))))


def test_runs_near_the_axis_are_on_it_and_those_without_a_figure_are_named(
    client: TestClient, engine: Engine, make: Make
) -> None:
    """A run that is not steady does not decide the axis, but the axis extends to it."""
    runs = make([*series((12, 400.0)), 391.0, 200.0, 900.0, 400.0])
    with transaction(engine) as session:
        session.execute(update(RunRow).where(col(RunRow.id).in_(runs[12:15])).values(is_steady=False))
        failed = session.get_one(RunRow, runs[15], options=[WITH_RESULT])
        failed.outcome, failed.log_step_time, failed.step_time_ms, failed.result.metrics = "crashed", None, None, {}
    data = chart_of(client, f"/history/{key_of(engine, runs[0])}/chart")["datasets"]
    assert runs[12] in {row["id"] for row in data["points"]}
    assert [row["id"] for row in data["low_lane"]] == [runs[13], runs[15]]
    assert [row["id"] for row in data["lane"]] == [runs[14]]
    assert [row["text"] for row in data["low_edge"]] == ["off the scale", "× no figure"]
    notes = text_of(client.get(f"/history/{key_of(engine, runs[0])}/chart", headers=HTMX).text)
    for side in ("above", "below"):
        assert f"1 run is off the scale: see the values {side} the axis." in notes


def test_a_long_history_is_drawn_by_its_marked_runs_and_extremes(
    client: TestClient, make: Make, engine: Engine
) -> None:
    times = series((450, 400.0), (450, 424.0))
    times[200], times[700] = 640.0, 300.0
    runs = make(times, judged=False)
    with transaction(engine) as session:
        session.get_one(RunRow, runs[333]).purpose = "release"
    address = f"/history/{key_of(engine, runs[0])}"
    chart = chart_of(client, f"{address}/chart")["datasets"]
    drawn = {row["id"] for row in drawn_runs(chart)}
    assert 100 < len(drawn) < 600
    assert {runs[0], runs[200], runs[333], runs[449], runs[450], runs[700], runs[-1]} <= drawn
    assert len(chart["changes"]) == 1
    assert f"{len(drawn)} of 900 runs are drawn" in client.get(f"{address}/chart", headers=HTMX).text
    part = chart_of(client, f"{address}/chart?first={runs[100]}&last={runs[300]}")["datasets"]
    assert {row["id"] for row in drawn_runs(part)} == set(runs[100:301])
