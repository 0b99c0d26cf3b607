"""The list of runs as a page: columns in the address, changes and exports of the selected runs, saved views."""

import csv
import io
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.history.lists import StackQuery, find_stacks
from app.runs.list_pages import Dot, edge_texts, list_answer, run_strip
from app.runs.queries import RunQuery, find_runs
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow
from app.storage.verdicts import show_badges
from tests.builders import FIRST_PLACE, make_run, make_stack

HTMX = {"HX-Request": "true"}
PAGE = {"Accept": "text/html"}


@pytest.fixture
def runs(engine: Engine, log_files: LogFiles) -> list[int]:
    with transaction(engine) as session:
        rows: list[dict[str, Any]] = [{"tags": ["old"]}, {"tags": []}, {"tags": []}]
        return [make_run(session, log_files=log_files, name=f"run-{k}", **row) for k, row in enumerate(rows)]


def test_a_single_run_answers_with_the_fields_of_its_entry_in_the_list(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [1000.0 + k % 3 for k in range(8)])
        [heavy] = make_stack(session, [1001.0], started=FIRST_PLACE + timedelta(days=8), peak_memory_gib=70.0)
    entries = client.get("/api/v1/runs").json()["items"]
    own = ("quarantine", "notes")  # a list has them in short
    assert {entry["badge"] for entry in entries if entry["id"] == heavy} == {"regression"}
    for entry in entries:
        run = client.get(f"/api/v1/runs/{entry['id']}").json()
        shared = {name: value for name, value in entry.items() if name not in own}
        assert {name: run[name] for name in shared} == shared


def headings(text: str) -> list[str]:
    head = text[text.index("<thead") : text.index("</thead")]
    return [re.sub(r"<[^>]+>|\s+", " ", cell).strip() for cell in re.findall(r"<th [^>]*>(.*?)</th>", head, re.DOTALL)]


def test_columns_are_chosen_in_the_address(client: TestClient, runs: list[int]) -> None:
    usual = client.get("/runs").text
    assert headings(usual) == ["Run", "Verdict", "Step time", "GPUs", "Committed", "Uploaded"]
    added = re.search(r'href="(/runs\?columns=[^"]*mfu_pct)"', usual)
    assert added
    assert headings(client.get(added[1]).text)[-1] == "MFU"
    assert headings(client.get("/runs?columns=branch,step_time_ms&sort=name").text) == ["Run", "Step time", "Branch"]
    assert client.get("/runs?columns=speed", headers=PAGE).status_code == 422


def test_rows_leave_out_the_dispatcher_of_the_filter(client: TestClient, runs: list[int]) -> None:
    dispatcher = client.get(f"/api/v1/runs/{runs[0]}").json()["contract"]["dispatcher"]["value"]
    rows = [client.get(f"/runs{query}").text.count('title="Dispatcher"') for query in ("", f"?dispatcher={dispatcher}")]
    assert rows == [3, 0]


def test_the_list_is_sorted_by_the_date_that_the_marked_column_shows(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        days = {make_run(session, commit_time=datetime(2026, 9, day, 23, tzinfo=UTC)): day for day in (3, 5, 4)}
        unknown = make_run(session)
    uploaded = [unknown, *reversed(days)]
    for sort, label, order in (
        ("-created", "Uploaded", uploaded),
        ("-commit_time", "Committed", [*sorted(days, key=lambda run: -days[run]), unknown]),
        ("commit_time", "Committed", [*sorted(days, key=lambda run: days[run]), unknown]),
    ):
        text = client.get(f"/runs?sort={sort}").text
        marked = re.search(r'aria-sort="(\w+)">\s*<a[^>]*>([^<]+)<', text)
        assert marked
        assert marked.groups() == ("descending" if sort.startswith("-") else "ascending", label)
        assert [int(run) for run in re.findall(r'name="run"\s+value="(\d+)"', text)] == order
        dates = re.findall(r'<td class="nowrap muted"(?: title="2026-09[^"]*")?>(2026-09-\d\d|–)</td>', text)
        assert dates == [f"2026-09-{days[run]:02}" if run in days else "–" for run in order]


def test_dots_stand_in_the_order_of_the_list(engine: Engine) -> None:
    with transaction(engine) as session:
        judged: dict[str, Any] = {"purpose": "ci", "verdict": "no_change", "verdict_delta_pct": 0.1}
        runs = [make_run(session, commit_time=datetime(2026, 9, day, tzinfo=UTC), **judged) for day in (3, 5, 4)]
        items = find_runs(session, RunQuery()).items
    strips = [run_strip(items, by_commit=by_commit) for by_commit in (False, True)]
    assert [[dot.run_id for dot in strip.dots] for strip in strips if strip] == [runs, [runs[k] for k in (0, 2, 1)]]


def test_every_dot_is_at_its_change_or_shows_its_value(client: TestClient, engine: Engine) -> None:
    changes = {"regression": 5.0, "improvement": -2.5, "no_change": 0.0, "inconclusive": 40.0, "no_baseline": None}
    with transaction(engine) as session:
        for verdict, change in changes.items():
            make_run(session, name=verdict, purpose="ci", verdict=verdict, verdict_delta_pct=change)
        make_run(session, name="broken", status="failed")
        strip = run_strip(find_runs(session, RunQuery()).items)
    assert strip
    dots = {dot.decision: dot for dot in strip.dots}
    assert {name for name, _ in strip.key} == {*dots}
    assert [text for _, text in strip.ticks] == ["+10\u202f%", "0", "\u22124\u202f%"]
    heights = {name: dots[name].y for name in ("improvement", "no-change", "regression", "inconclusive")}
    assert heights["no-change"] - heights["regression"] == pytest.approx(
        2 * (heights["improvement"] - heights["no-change"]), abs=0.2
    )
    assert [text.dots for text in strip.texts["wide"]] == [(dots["inconclusive"],)], "beyond the scale"
    assert strip.texts["wide"][0].text.startswith("+40\u202f")
    assert dots["failed"].y > heights["improvement"]
    assert strip.left_out == 1, "without a baseline"
    assert sorted(dot.x for dot in dots.values()) == [
        dot.x for dot in sorted(dots.values(), key=lambda dot: dot.run_id)
    ]
    text = client.get("/runs").text
    assert "1 of 6 runs" in text
    with read_session(engine) as session:
        ended = find_runs(session, RunQuery(status="failed")).items
    assert (len(ended), list_answer(ended)) == (1, "The run shown failed.")
    assert text.count("<circle class=") == 8, "each in the picture and in its key"


def test_a_search_for_an_unknown_filter_keeps_its_text(client: TestClient, runs: list[int]) -> None:
    answer = client.get("/runs?q=clustre:bar", headers=PAGE)
    assert (answer.status_code, 'value="clustre:bar"' in answer.text) == (422, True)
    assert client.get(re.search(r'class="button" href="(/runs\?q=%22[^"]*)"', answer.text)[1]).status_code == 200
    others = re.findall(r'href="(/runs\?q=\w+%3Abar)">(\w+)<', answer.text)
    assert {"gpu", "branch", "tag"} < {name for _, name in others}
    assert "verdict" not in {name for _, name in others}, "bar is no verdict"
    assert {client.get(address, headers=PAGE).status_code for address, _ in others} == {200}
    assert "0 runs match" not in answer.text
    assert "0 runs match" in client.get("/runs?q=gpu:bar", headers=PAGE).text


def test_a_search_without_match_offers_how_runs_ended(client: TestClient, engine: Engine, runs: list[int]) -> None:
    with transaction(engine) as session:
        make_run(session, name="big", outcome="out_of_memory", health={"outcome": "out_of_memory"})
    offers = [
        re.findall(r'href="/runs\?(outcome=\w+)"', client.get("/runs", params={"q": q}).text)
        for q in ("Out of memory", "out_of_memory", "not finite", "big")
    ]
    assert offers == [["outcome=out_of_memory"]] * 2 + [[], []], "no run has the third, and the last matches a name"


def test_the_view_of_failed_runs_lists_each_that_its_page_calls_failed(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        runs = {
            make_run(session, name="early", status="failed", verdict="failed", badge="failed"),
            make_run(session, name="late", outcome="out_of_memory", verdict="failed", badge="failed"),
        }
        make_run(session, name="good")
    view = re.search(r'<a href="/runs\?([^"]*)">Failed</a>', client.get("/runs").text)[1]
    assert {run["id"] for run in client.get(f"/api/v1/runs?{view}").json()["items"]} == runs


def test_the_selected_runs_are_tagged_all_or_none(client: TestClient, runs: list[int]) -> None:
    form = {"action": "tag", "tag": "night", "author": "mia", "run": runs[:2]}
    answer = client.post("/runs?sort=name", data=form, headers=HTMX)
    assert (answer.status_code, headings(answer.text)[0]) == (200, "Run")
    tags = [client.get(f"/api/v1/runs/{run}").json()["tags"] for run in runs]
    assert tags == [["old", "night"], ["night"], []]
    assert client.post("/runs", data=form, follow_redirects=False).headers["location"] == "/runs"
    assert client.get(f"/api/v1/runs/{runs[0]}").json()["tags"] == ["old", "night"]
    for wrong in ({"run": [runs[2], 999]}, {"tag": ""}, {"run": []}, {"run": list(range(1, 300))}, {"author": ""}):
        assert client.post("/runs", data=form | wrong, headers=PAGE).status_code in (400, 404, 422), wrong
    assert client.get(f"/api/v1/runs/{runs[2]}").json()["tags"] == []


def test_the_selected_runs_are_quarantined_with_a_reason(client: TestClient, runs: list[int]) -> None:
    form = {"action": "quarantine", "note": "a bad node", "author": "mia", "run": runs[1:]}
    assert client.post("/runs", data=form | {"note": ""}, headers=HTMX).status_code == 422
    assert client.post("/runs", data=form, headers=HTMX).status_code == 200
    states = [client.get(f"/api/v1/runs/{run}").json()["quarantine"] for run in runs]
    assert [state and state["reason"] for state in states] == [None, "a bad node", "a bad node"]


def test_the_selected_runs_alone_are_exported(client: TestClient, runs: list[int]) -> None:
    text = client.get("/runs.csv", params={"run": runs[::2]}).text
    assert {int(row["id"]) for row in csv.DictReader(io.StringIO(text))} == {runs[0], runs[2]}
    assert client.get("/runs.csv?run=x").status_code == 422


def test_filters_are_saved_as_a_view(client: TestClient, runs: list[int]) -> None:
    project = client.get(f"/api/v1/runs/{runs[0]}").json()["project"]
    form = {"project": project, "name": "fast", "query": f"project={project}&sort=step_time_ms", "author": "mia"}
    answer = client.post("/runs/views", data=form | {"shared": "yes"}, follow_redirects=False)
    assert answer.headers["location"] == f"/runs?{form['query']}"
    assert f'href="/runs?project={project}&amp;view=fast"' in client.get(f"/runs?project={project}").text
    assert client.post("/runs/views", data=form | {"query": "colour=red"}, headers=PAGE).status_code == 422


def test_the_step_times_of_a_row_are_a_small_picture(client: TestClient, runs: list[int]) -> None:
    picture = client.get(f"/runs/{runs[0]}/spark")
    assert len(re.search(r'points="([^"]+)"', picture.text)[1].split()) > 20
    assert client.get("/runs/999/spark").status_code == 404


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(st.none() | st.floats(12.5, 400), min_size=1, max_size=60),
    char=st.sampled_from((0.7, 2.6)),
)
def test_every_dot_off_the_scale_has_a_text_that_covers_nothing(changes: list[float | None], char: float) -> None:
    dots = [Dot(k, 1 + 98 * (k + 0.5) / len(changes), 18.0, "", "", change) for k, change in enumerate(changes)]
    off = [dot for dot in dots if dot.off_pct is not None]
    texts = edge_texts(off, char)
    assert [dot for text in texts for dot in text.dots] == off
    for k, text in enumerate(texts):
        assert min(text.ends) >= 0
        assert max(text.ends) <= 100.1
        numbers = [int(number) for number in re.findall(r"\d+", text.text)]
        values = [round(dot.off_pct or 0.0) for dot in text.dots]
        assert {min(values), max(values)} == {*numbers}
        for other in texts[:k]:
            if other.row == text.row:
                assert other.ends[1] <= text.ends[0]
            elif other.row < text.row:
                assert not other.ends[0] < text.at < other.ends[1]
            else:
                assert not text.ends[0] < other.at < text.ends[1]


def test_a_picture_names_every_run_off_the_scale(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for run in range(40):
            change = -99.0 if run in (0, 12, 13, 39) else float(run % 20)
            make_run(session, name=f"run-{run}", purpose="ci", verdict="inconclusive", verdict_delta_pct=change)
        strip = run_strip(find_runs(session, RunQuery(page_size=40)).items)
    assert strip
    off = {dot.run_id for dot in strip.dots if dot.off_pct is not None}
    assert len(off) == 4, "the scale covers the others"
    assert [text for _, text in strip.ticks] == ["+19\u202f%", "0", "\u221232\u202f%"]
    for texts in strip.texts.values():
        assert {dot.run_id for text in texts for dot in text.dots} == off
    assert [len(text.dots) for text in strip.texts["wide"] if text.is_below] == [1] * 4, "a wide picture has room"
    assert any(len(text.dots) > 1 for text in strip.texts["narrow"])
    page = client.get("/runs").text
    assert all(text.text in page for texts in strip.texts.values() for text in texts)


def test_a_bar_is_longer_for_a_larger_change_or_ends_as_an_arrow(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for change in (6.1, 12.0, 63.4, 105.7):
            make_run(session, purpose="ci", verdict="regression", verdict_delta_pct=change)
    bars = re.findall(r'<path class="(bar[^"]*)" d="M25 3h(-?[\d.]+)', client.get("/runs").text)
    assert [kind for kind, _ in bars] == ["bar off", "bar", "bar", "bar"]
    assert [float(length) for _, length in bars[1:]] == pytest.approx([19.1, 8.3, 5.9])


def test_an_inconclusive_change_is_grey(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for verdict, change in (("inconclusive", 105.7), ("regression", 63.4)):
            make_run(session, purpose="ci", verdict=verdict, verdict_delta_pct=change)
    changes = re.findall(r'<span class="nowrap( muted)?">\+([\d.]+)', client.get("/runs").text)
    assert changes == [("", "63.4"), (" muted", "105.7")]


def test_an_inconclusive_upgrade_is_so_on_its_page_and_in_lists(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [1000.0 + k % 3 for k in range(8)])
        fields, started = {"container": "train:2"}, FIRST_PLACE + timedelta(days=8)
        [run] = make_stack(session, [1030.0], fields=fields, started=started, is_steady=False)
    assert client.get(f"/api/v1/runs/{run}/verdict").json()["reason"].startswith("Inconclusive: ")
    with read_session(engine) as session:
        items = find_runs(session, RunQuery()).items
    [item] = [item for item in items if item.id == run]
    assert (item.verdict, item.badge, item.step_decision) == ("no_baseline", "inconclusive", "inconclusive")
    listed = client.get("/api/v1/runs?verdict=inconclusive").json()["items"][0]
    assert (listed["id"], listed["contrast_pct"]) == (run, pytest.approx(2.9, abs=0.2))
    assert run not in {item["id"] for item in client.get("/api/v1/runs?verdict=no_baseline").json()["items"]}
    strip = run_strip(items)
    assert strip is not None
    assert strip.against == "baseline or previous container"
    assert [dot.decision for dot in strip.dots if dot.run_id == run] == ["not-steady"]
    text = client.get("/runs").text
    assert re.search(rf'/runs/{run}#verdict"[^>]*>\s*<span class="undecided"[^>]*>.*?not steady', text)
    assert "1 not steady." in text


def test_a_run_that_an_upgrade_made_slower_shows_its_change(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        before = make_stack(session, [1000.0 + k % 3 for k in range(8)])
        started = FIRST_PLACE + timedelta(days=8)
        slow, _ = make_stack(session, [1100.0, 1101.0], fields={"container": "train:2"}, started=started)
    verdict = client.get(f"/api/v1/runs/{slow}/verdict").json()
    assert (verdict["verdict"], verdict["raises_regression"], verdict["needs_confirmation"]) == (
        "no_baseline",
        True,
        False,
    )
    assert verdict["contrast"]["decision"] == "regression"
    assert f'class="answer regression">{verdict["reason"]}</p>' in client.get(f"/runs/{slow}").text
    with read_session(engine) as session:
        items = {run.id: run for run in find_runs(session, RunQuery()).items}
    assert items[slow].contrast_pct == pytest.approx(9.9, abs=0.2)
    assert items[before[-1]].contrast_pct is None
    slower = client.get("/api/v1/runs?verdict=regression").json()["items"]
    assert [(item["id"], item["verdict"], item["badge"]) for item in slower] == [(slow, "no_baseline", "regression")]
    shown = client.get("/api/v1/runs").json()["items"]
    for value in ("regression", "no_baseline", "no_change", "inconclusive"):
        matches = client.get(f"/api/v1/runs?verdict={value}").json()["items"]
        assert [run["id"] for run in matches] == [run["id"] for run in shown if run["badge"] == value], value
    strip = run_strip([*items.values()])
    assert strip is not None
    assert [dot.decision for dot in strip.dots if dot.run_id == slow] == ["regression"]
    assert list_answer([items[slow]]).startswith("1 of 1 run")
    assert (
        list_answer([items[slow], items[before[-1]]], are_newest=True)
        == "Newest 2 runs: 1 slower than with the previous container."
    )


def test_a_run_that_an_upgrade_made_faster_is_drawn(engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [1000.0 + k % 3 for k in range(8)])
        started = FIRST_PLACE + timedelta(days=8)
        fast, _ = make_stack(session, [900.0, 901.0], fields={"container": "train:2"}, started=started)
        strip = run_strip(find_runs(session, RunQuery()).items)
    assert strip is not None
    assert [dot.decision for dot in strip.dots if dot.run_id == fast] == ["improvement"]
    assert strip.left_out == 1, "the first run"


def test_a_failed_run_says_so_once_in_its_row(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        health = {"outcome": "not_finite"}
        make_run(session, name="run", outcome="not_finite", verdict="failed", health=health)
        failed: dict[str, Any] = {"status": "failed", "verdict": "failed", "health": {"outcome": "failed"}}
        for kind in ("deepep_missing", "exception"):
            failure = {"kind": kind, "title": "<b>DeepEP</b> is missing", "evidence": [{"text": "KeyError: <b>"}]}
            make_run(session, name=kind, failures=[failure], **failed)
    rows = client.get("/runs").text.partition("<tbody")[2].partition("</tbody>")[0].split("</tr>")
    assert [re.findall('class="badge ([a-z-]+)', row) for row in rows[:3]] == [["failed"]] * 3
    assert ">KeyError: &lt;b&gt;</span>" in rows[0], "the exception itself stands in place of a change"
    assert ">&lt;b&gt;DeepEP&lt;/b&gt; is missing</span>" in rows[1], "the cause stands in place of a change"


def test_a_run_that_only_needs_more_memory_is_not_slower(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [1000.0, 1001.0, 1002.0])
        started = FIRST_PLACE + timedelta(days=3)
        [heavy] = make_stack(session, [1001.0], started=started, peak_memory_gib=70.0)
        [slow] = make_stack(session, [1100.0], started=started + timedelta(days=1))
    with read_session(engine) as session:
        items = {run.id: run for run in find_runs(session, RunQuery()).items}
    assert {items[run].verdict for run in (heavy, slow)} == {"regression"}
    assert items[heavy].memory_pct == pytest.approx(14.0, abs=0.1)
    assert items[slow].memory_pct is None
    strip = run_strip([*items.values()])
    assert strip is not None
    drawn = {dot.run_id: dot.decision for dot in strip.dots}
    assert (drawn[heavy], drawn[slow]) == ("memory", "unconfirmed")
    assert list_answer([items[heavy], items[slow]]).startswith("1 of 2 runs on this page is slower (1 unconfirmed), ")
    assert list_answer([items[heavy], items[slow]], are_all=True).startswith("1 of 2 runs is slower (1 unconfirmed), ")
    assert list_answer([items[heavy]]).endswith(", 1 needs more memory.")
    assert items[slow].baseline_kind == "same_config"
    listed = client.get("/api/v1/runs?verdict=regression").json()["items"]
    assert {run["id"]: run["memory_pct"] for run in listed} == {heavy: items[heavy].memory_pct, slow: None}


@pytest.mark.parametrize("upgraded", [False, True])
def test_a_slow_run_that_waits_for_a_rerun_is_unconfirmed_on_its_page_and_in_lists(
    client: TestClient, engine: Engine, upgraded: bool
) -> None:
    """One slow run of the stack, or one drifting run in a new container."""
    fields: dict[str, Any] = {"container": "train:2"} if upgraded else {}
    with transaction(engine) as session:
        make_stack(session, [1000.0 + k % 3 for k in range(8)])
        started = FIRST_PLACE + timedelta(days=8)
        [slow] = make_stack(session, [1400.0], fields=fields, started=started, is_steady=not upgraded)
    with read_session(engine) as session:
        items = find_runs(session, RunQuery()).items
        [label] = [stack.judged.label for stack in find_stacks(session, StackQuery()).items if stack.judged]
    [item] = [run for run in items if run.id == slow]
    change = item.contrast_pct if upgraded else item.verdict_delta_pct
    listed, single = client.get("/api/v1/runs").json()["items"], client.get(f"/api/v1/runs/{slow}").json()
    assert [run["label"] for run in (*listed, single) if run["id"] == slow] == ["slower, unconfirmed"] * 2
    assert (item.label, label) == ("slower, unconfirmed",) * 2
    assert change == pytest.approx(39.9, abs=0.2)
    strip = run_strip(items)
    assert strip is not None
    assert [dot.decision for dot in strip.dots if dot.run_id == slow] == ["unconfirmed"]
    assert " (1 unconfirmed)." in list_answer([item])
    page = client.get(f"/runs/{slow}").text
    head = page[: page.index('class="answer')]
    assert "slower, unconfirmed" in head
    assert f'class="button primary" href="/runs/{slow}?tab=why#rerun"' in head
    assert 'id="rerun"' in page
    verdict = client.get(f"/api/v1/runs/{slow}/verdict").json()
    assert (verdict["needs_confirmation"], verdict["raises_regression"]) == (True, not upgraded)
    assert verdict["reason"] in page


def test_picture_rows_and_answer_call_an_unsteady_run_not_steady(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [1000.0 + 40 * (k % 2) for k in range(8)])
        [unsteady] = make_stack(session, [1030.0], started=FIRST_PLACE + timedelta(days=8), is_steady=False)
    with read_session(engine) as session:
        items = find_runs(session, RunQuery()).items
    strip = run_strip(items)
    assert strip is not None
    assert [dot.run_id for dot in strip.dots if dot.decision == "not-steady"] == [unsteady]
    assert ("not-steady", "not steady") in strip.key
    assert list_answer(items).endswith(", 1 not steady.")
    assert ">not steady" in re.sub(r"<svg.*?</svg>\s*", "", client.get("/runs").text, flags=re.DOTALL)


def add_to_regression(engine: Engine, run: int, usual_ms: float, slow_ms: float) -> None:
    """Make the run the only member of a regression of step time."""
    with transaction(engine) as session:
        row = session.get_one(RunRow, run)
        regression = RegressionRow(project_id=row.project_id, kind="run", cause_key=f"run {run}", metric="step_time_ms")
        session.add(regression)
        session.flush()
        member = RegressionMemberRow(
            regression_id=regression.id or 0, run_id=run, stack_key=row.stack_key, config_key=row.config_key,
            usual_level=math.log(usual_ms), slow_level=math.log(slow_ms),
        )  # fmt: skip
        session.add(member)
        session.flush()
        show_badges(session, [run])


def badges_of(client: TestClient, run: int) -> tuple[list[str], list[str]]:
    """Return the badges of a run on its page and in the list."""
    page, listed = client.get(f"/runs/{run}").text, client.get("/runs").text
    head = page[page.index('class="badges"') : page.index('class="answer')]
    row = next(row for row in re.findall(r"<tr>.*?</tr>", listed, re.DOTALL) if f'href="/runs/{run}"' in row)
    badge = re.compile(r'<span class="badge (?!plain)[^>]*>(?:<svg.*?</svg>)?\s*([^<]+?)\s*</span>', re.DOTALL)
    return badge.findall(head), badge.findall(row)


@pytest.mark.parametrize(
    ("metric", "memory", "badges"),
    [("", {}, []), ("step_time_ms", {}, []), ("peak_memory_gib", {"peak_memory_gib": 70.0}, ["more memory"])],
)
def test_a_faster_run_of_a_new_container_is_not_slower(
    client: TestClient, engine: Engine, metric: str, memory: dict[str, Any], badges: list[str]
) -> None:
    with transaction(engine) as session:
        make_stack(session, [1000.0 + k % 3 for k in range(8)])
        started = FIRST_PLACE + timedelta(days=8)
        run, _ = make_stack(session, [900.0, 901.0], fields={"container": "train:2"}, started=started, **memory)
    if metric == "step_time_ms":
        add_to_regression(engine, run, 1000.0, 1100.0)
    assert badges_of(client, run) == (badges, badges)
    assert ('class="badge plain"' in client.get("/runs").text) != bool(badges), "its row names the change of a contrast"
    reason = client.get(f"/api/v1/runs/{run}/verdict").json()["reason"]
    assert ("more peak memory" in reason, "faster" in reason) == (bool(badges), True)


def test_a_member_of_a_regression_and_a_recovered_run_have_one_badge_everywhere(
    client: TestClient, engine: Engine
) -> None:
    with transaction(engine) as session:
        make_stack(session, [1000.0 + k % 3 for k in range(8)])
        started = FIRST_PLACE + timedelta(days=8)
        [slow] = make_stack(session, [1400.0], started=started)
    assert badges_of(client, slow) == (["slower, unconfirmed"], ["slower, unconfirmed"])
    add_to_regression(engine, slow, 1000.0, 1400.0)
    assert badges_of(client, slow) == (["regression"], ["regression"])
    with transaction(engine) as session:
        make_stack(session, [1400.0, 1401.0, 1402.0, 1400.0], started=started + timedelta(days=1))
        [back] = make_stack(session, [1001.0], started=started + timedelta(days=9))
    assert badges_of(client, back) == (["recovered"], ["recovered"])
