"""Pages through the public interface: block or page, escaping, filters, errors at their field."""

import csv
import html
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlmodel import col
from starlette.testclient import TestClient

from app.runs.run_page import TABS
from app.storage.database import transaction
from app.storage.tables import ExperimentRow, ExperimentRunRow, RunResultRow, RunRow
from app.web.help_pages import PAGES
from tests.builders import FIRST_LINE, make_run, stated_activity
from tests.cases import every_case
from tests.judged import judge, make_baseline, make_stack_run

HTML = {"Accept": "text/html"}
HTMX = {"HX-Request": "true"}

Make = Callable[..., int]


def test_htmx_gets_the_block_and_everyone_else_the_page(client: TestClient, make: Make) -> None:
    make(name="one")
    page, block = client.get("/runs?q=one"), client.get("/runs?q=one&page=1&model=", headers=HTMX)
    assert page.text.startswith("<!doctype html>")
    assert block.text.strip().startswith('<div id="run-table"')
    assert block.headers["HX-Push-Url"] == "/runs?q=one"
    assert "HX-Push-Url" not in page.headers
    for answer in (page, block):
        assert "HX-Request" in answer.headers["Vary"]


def test_a_history_restore_gets_the_full_page(client: TestClient) -> None:
    answer = client.get("/runs", headers=HTMX | {"HX-History-Restore-Request": "true"})
    assert answer.text.startswith("<!doctype html>")


def test_hostile_names_and_lines_stay_text(client: TestClient, make: Make) -> None:
    attack = "<script>alert(1)</script>"
    run = make(name=attack, branch='"><img src=x>', warnings=[attack], ci_url="javascript:alert(1)", tags=[attack])
    tabs = [f"/runs/{run}?tab={tab}" for tab in TABS]
    for address in ("/", "/runs", f"/runs/{run}", f"/runs/{run}/log", *tabs, f"/runs?q={attack}"):
        text = client.get(address).text
        assert attack not in text, address
        assert "<img src=x>" not in text, address
        assert "javascript:" not in text, address
    assert "&lt;b&gt;of&lt;/b&gt;" in client.get(f"/runs/{run}?tab=log").text  # the log's own markup


def test_a_series_name_cannot_leave_the_chart_data(client: TestClient, make: Make) -> None:
    run = make(metadata_stated={})
    text = client.get(f"/runs/{run}/chart", headers=HTMX).text
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert "<" not in spec
    rows = json.loads(spec)["datasets"]
    assert {row["role"] for row in (*rows["points"], *rows["lane"])} == {"warm-up", "window", "spike"}
    assert rows["figure"]
    assert "median, 95 % interval" in text, "every band of the picture has a name"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"a", "b", "c"}),
        ("q=NEXT", {"b"}),
        ("q=qwen3 main", {"a"}),
        ("q=100%25", set()),
        ("model=Qwen3-30B-A3B&dispatcher=deepep", {"b"}),
        ("dispatcher=unknown", {"c"}),
        ("status=failed", {"c"}),
        ("branch=main", {"a", "c"}),
        ("purpose=ci", {"b"}),
        ("gpu=GB200", {"b"}),
        ("project=other", {"c"}),
        ("evidence=screen", {"a", "b"}),
    ],
)
def test_filters_select_runs(client: TestClient, make: Make, query: str, expected: set[str]) -> None:
    make(name="a")
    make(name="b", dispatcher="deepep", gpu="GB200", purpose="ci", branch="next")
    make(name="c", status="failed", project="other")
    names = re.findall(r'<a href="/runs/\d+" title="(\w)">', client.get(f"/runs?{query}").text)
    assert set(names) == expected


def test_runs_without_a_figure_sort_last_in_both_directions(client: TestClient, make: Make) -> None:
    make(name="s", step_time_ms=2000.0)
    make(name="f", step_time_ms=1000.0)
    make(name="x", status="failed")
    for sort, order in (("step_time_ms", "fsx"), ("-step_time_ms", "sfx"), ("name", "fsx"), ("-created", "xfs")):
        names = re.findall(r'<a href="/runs/\d+" title="(\w)">', client.get(f"/runs?sort={sort}").text)
        assert "".join(names) == order, sort


def test_the_list_pages_on_the_server(client: TestClient, make: Make) -> None:
    for number in range(53):
        make(name=f"run-{number}", status="received")
    first, second, third = (client.get(f"/runs?page={page}").text for page in (1, 2, 3))
    assert first.count("<tr>") == 40 + 1
    assert second.count("<tr>") == 13 + 1
    following = re.search(r'rel="next"\s+href="(/runs\?after=\d+&amp;page=2)"', first)
    assert following
    assert client.get(html.unescape(following[1])).text.count("<tr>") == 13 + 1
    assert "No such page" in third


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("/runs?status=done", "status"),
        ("/runs?sort=id", "sort"),
        ("/runs?page=0", "page"),
        ("/runs?page=٣", "page"),
        ("/runs?q=%00", "q"),
        ("/runs/1?series=nothing&view=table", "series"),
        ("/runs/1?series=nothing", "series"),
        ("/api/v1/runs?page=x", "page"),
        ("/api/v1/runs?status=done", "status"),
        ("/runs/1?first=9&last=3", "last"),
        ("/runs/1?scale=cubic", "scale"),
        ("/runs/1?line=-4", "line"),
    ],
)
def test_an_address_that_means_nothing_is_refused_by_name(
    client: TestClient, make: Make, address: str, field: str
) -> None:
    make()
    answer = client.get(address, headers=HTML)
    assert answer.status_code == 422
    assert f"<code>{field}</code>" in answer.text or f'"field":"{field}"' in answer.text
    if not address.startswith("/api/"):  # the way on is the same page without its filters
        assert f'class="button primary" href="{address.partition("?")[0]}"' in answer.text


def test_a_series_that_the_run_does_not_have_is_refused_with_those_it_has(client: TestClient, make: Make) -> None:
    text = client.get(f"/runs/{make()}?series=nothing", headers=HTML).text
    assert "step_time_ms, " in text
    assert "lm_loss" in text


def test_a_peak_above_the_memory_of_the_stated_gpu_is_a_contradiction(
    client: TestClient, make: Make, engine: Engine
) -> None:
    run = make(purpose="ci")
    assert "61.4 of 80 GiB" in client.get(f"/runs/{run}").text
    with transaction(engine) as session:
        (result,) = session.scalars(select(RunResultRow).where(col(RunResultRow.run_id) == run))
        peak = result.metrics["peak_memory_gib"] | {"value": 222.2, "ci_low": 222.2, "ci_high": 222.2}
        result.metrics = result.metrics | {"peak_memory_gib": peak}
    text = client.get(f"/runs/{run}").text
    assert "of 80 GiB" not in text
    contradiction = "stated GPU cannot be right: peak 222.2\u202fGiB, H100 has 80\u202fGiB"
    assert contradiction in text
    for form in ("pin", "propose"):
        offered = client.get(f"/runs/{run}?tab=record").text
        assert re.search(rf'id="{form}".*?data-contradiction', offered, re.DOTALL), form


def test_the_run_page_says_its_answer_first_and_names_every_figure(client: TestClient, make: Make) -> None:
    run = make()
    text = client.get(f"/runs/{run}").text
    assert "not judged" in text
    measured = text[text.index('class="measured"') :]
    places = [measured.index(label) for label in ("tokens/s/GPU", "TFLOP/s/GPU", "MFU", "GiB")]
    assert places == sorted(places)
    text = client.get(f"/runs/{run}?tab=config").text
    assert set(re.findall(r'class="unknown" href="#a-field\.(\w+)"', text)) == {"cluster", "pp_layout", "attention"}


def test_log_lines_and_chart_points_know_each_other(client: TestClient, make: Make) -> None:
    run = make()
    line = FIRST_LINE + 7
    log = client.get(f"/runs/{run}/log?line={line}", headers=HTMX).text
    assert f'id="L{line}" class="read chosen"' in log
    assert "Show iteration 7 in the chart" in log
    spec = client.get(f"/runs/{run}/chart?iteration=7", headers=HTMX).text
    assert f'"line": {line}' in spec
    assert '"pointed": [{"iteration": 7}]' in spec
    contract = re.search(r'id="contract-ep">.*?\?line=(\d+)', client.get(f"/runs/{run}?tab=config").text, re.DOTALL)
    assert contract is not None
    stated = client.get(f"/runs/{run}/log?line={contract.group(1)}", headers=HTMX).text
    assert f'id="L{contract.group(1)}" class="states chosen"' in stated
    assert "expert_model_parallel_size" in stated


def test_a_zoom_on_nothing_says_so(client: TestClient, make: Make) -> None:
    run = make()
    for query in ("first=9000&last=9001", "series=skipped_iterations&scale=log", "first=9000&view=table"):
        answer = client.get(f"/runs/{run}/chart?{query}", headers=HTMX)
        assert answer.status_code == 200, query
        assert "data-vega" not in answer.text, query


def test_a_long_log_is_paged_by_line(client: TestClient, make: Make) -> None:
    run = make(iterations=1000)
    first = client.get(f"/runs/{run}/log", headers=HTMX).text
    assert first.count("<li ") == 200
    assert f"/runs/{run}/log?line=201" in first
    assert 'id="L900"' in client.get(f"/runs/{run}/log?line=900", headers=HTMX).text
    assert 'id="L1041"' in client.get(f"/runs/{run}/log?line=99999999", headers=HTMX).text


def test_text_is_found_in_the_log_line_after_line(client: TestClient, make: Make) -> None:
    run = make(iterations=400)

    def chosen(query: str) -> list[int]:
        log = client.get(f"/runs/{run}/log?{query}", headers=HTMX).text
        return [int(number) for number in re.findall(r'<li id="L(\d+)"\s+class="[^"]*chosen', log)]

    (first,) = chosen("text=CONSUMED+samples")
    (second,) = chosen(f"text=consumed+samples&line={first}")
    assert second == first + 1
    total = int(re.findall(r'aria-label="Log lines \d+ to \d+ of (\d+)"', client.get(f"/runs/{run}?tab=log").text)[0])
    assert chosen(f"text=consumed+samples&line={total}") == [first], "from the end on from the start"
    assert "First warning" not in client.get(f"/runs/{run}/log", headers=HTMX).text
    assert "No line found" in client.get(f"/runs/{run}/log?text=no+such+text", headers=HTMX).text


def news(page: str, run: int) -> str:
    """Return the URL that the page polls, empty if it has stopped."""
    match = re.search(rf'hx-get="(/runs/{run}/news\?seen=[^"]+)"', page)
    return match[1] if match else ""


def test_a_waiting_page_is_left_alone_until_something_changed(client: TestClient, make: Make, engine: Engine) -> None:
    run = make(status="received")
    page = client.get(f"/runs/{run}").text
    assert '<meta http-equiv="refresh"' in page
    assert client.get(news(page, run), headers=HTMX).status_code == 204
    with transaction(engine) as session:
        session.exec(update(RunRow).where(col(RunRow.id) == run).values(status="processing"))
    changed = client.get(news(page, run), headers=HTMX).text
    assert '<div id="run-body" hx-swap-oob="true">' in changed
    assert re.search(r'data-announce="[^"]+"', changed)
    assert news(changed, run) != news(page, run)
    assert news(client.get(f"/runs/{make()}").text, run + 1) == ""


def test_generated_runs_say_so_wherever_they_show(client: TestClient, make: Make) -> None:
    run = make(project="demo", generated=True, status="failed")
    for address in ("/", "/runs", f"/runs/{run}"):
        assert ">generated</span>" in client.get(address).text, address


def test_empty_pages_give_the_command_that_fills_them(client: TestClient) -> None:
    for address in ("/", "/runs"):
        assert "http://testserver/api/v1/runs" in client.get(address).text, address


def test_errors_have_a_page_for_browsers(client: TestClient) -> None:
    for address in ("/nowhere", "/runs/999", "/runs/0", "/runs/abc", "/runs/-1/log", f"/runs/{2**63}"):
        answer = client.get(address, headers=HTML)
        assert answer.status_code == 404, address
        assert client.get(address).status_code == 404, address
        assert 'class="error-page"' in answer.text
        assert "kept" not in answer.text


def test_a_wrong_filter_offers_the_list_without_filters_and_nothing_else(client: TestClient) -> None:
    for path in ("/runs", "/regressions", "/experiments"):
        answer = client.get(f"{path}?sort=bogus&page=0", headers=HTML)
        assert answer.status_code == 422
        page = answer.text.partition('class="ways"')[2].partition("</p>")[0]
        assert re.findall(r'href="([^"]+)"', page) == [path]


def test_a_misspelt_filter_is_corrected_by_a_button_which_keeps_the_others(client: TestClient) -> None:
    answer = client.get("/runs?verdct=regression&gpu=H100", headers=HTML)
    page = answer.text.partition('class="ways"')[2].partition("</p>")[0]
    ways = re.findall(r'href="([^"]+)"', page)
    assert ways == ["/runs?verdict=regression&amp;gpu=H100", "/runs"]
    assert client.get(ways[0].replace("&amp;", "&"), headers=HTML).status_code == 200


def test_an_upload_over_the_limit_has_a_page_too(client: TestClient) -> None:
    answer = client.post("/upload", content=b"", headers=HTML | {"Content-Length": str(2**50)})
    assert answer.status_code == 413
    assert "Nothing was saved" in answer.text
    assert 'class="error-page"' in answer.text


def test_a_run_exports_as_csv(client: TestClient, make: Make) -> None:
    lines = client.get(f"/runs/{make()}/series.csv").text.splitlines()
    assert lines[0].startswith("iteration,step_time_ms")
    assert len(lines) == 51


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({"gpus": "-4"}, "gpus", "whole number"),
        ({"purpose": "fun"}, "purpose", "one of"),
        ({"meta": "{"}, "meta", "not JSON"),
        ({"meta": "[1]"}, "meta", "object"),
        ({"meta": '{"tp": -1}'}, "meta", "tp"),
        ({"meta": '{"model": "a"}', "model": "b"}, "model", "stated here and in the JSON"),
        ({"window.first": "9", "window.last": "3"}, "window.first", "window"),
    ],
)
def test_the_form_shows_an_error_at_its_field_and_keeps_its_input(
    client: TestClient, fields: dict[str, str], place: str, message: str
) -> None:
    files = {"log": ("a.log", b"iteration 1\n")}
    answer = client.post("/upload", data=fields | {"name": 'my "run"'}, files=files, headers=HTML)
    assert answer.status_code == 422
    shown = re.search(rf'name="{re.escape(place)}".*?class="error"[^>]*>(.*?)</p>', answer.text, re.DOTALL)
    assert shown is not None
    assert message in shown.group(1)
    assert 'value="my &#34;run&#34;"' in answer.text


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n" + bytes(100)])
def test_a_file_that_is_not_a_log_is_rejected_at_the_file(client: TestClient, content: bytes) -> None:
    answer = client.post("/upload", files={"log": ("a.log", content)}, headers=HTML)
    assert answer.status_code == 422
    assert 'id="e-log"' in answer.text


def test_the_form_uploads_through_the_same_door(client: TestClient, engine: Engine) -> None:
    fields = {"name": "by form", "gpus": "16", "tags": "a, b", "window.first": "2", "window.last": "9"}
    files = [("log", ("a.log", b"one\n")), ("log", ("b.log", b"two\n"))]
    answer = client.post("/upload", data=fields, files=files, headers=HTML, follow_redirects=False)
    assert answer.status_code == 303
    run = client.get(f"/api/v1{answer.headers['Location']}").json()
    assert (run["name"], run["tags"]) == ("by form", ["a", "b"])
    page = client.get(answer.headers["Location"]).text
    assert "a.log" in page
    assert "b.log" in page


def test_the_command_that_states_what_is_unknown_invents_nothing(client: TestClient, make: Make) -> None:
    run = make(unknown=["cluster", "gpu", "data_mode", "tp", "seq_len", "attention"])
    text = client.get(f"/runs/{run}?tab=config").text
    command = shlex.split(
        html.unescape(re.findall(r'id="supply-script".*?<code>(curl .*?)</code>', text, re.DOTALL)[0])
    )
    body = json.loads(command[command.index("-d") + 1])
    assert body == {"fields": {"cluster": None, "gpu": None, "data_mode": None, "seq_len": None}, "author": ""}
    assert "<dd>mock, real" in text
    refused = client.patch(f"/api/v1/runs/{run}/contract", json=body | {"author": "Ada"})
    assert refused.status_code == 422
    assert client.get(f"/api/v1/runs/{run}").json()["amendments"] == []
    assert "supply-script" not in client.get(f"/runs/{make(unknown=['tp'])}?tab=config").text


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "metric",
    [
        {"value": None, "ci_low": None, "ci_high": None, "n": None},
        {"value": NAN, "ci_low": NAN, "ci_high": NAN, "n": 0},
        {"value": INF, "ci_low": 1.0, "ci_high": INF, "n": 3},
        {"value": -INF, "ci_low": -INF, "ci_high": INF, "n": 3},
        {"value": 1.797e308, "ci_low": -1.797e308, "ci_high": 1.797e308, "n": 3},
        {"value": 31_310.0, "ci_low": None, "ci_high": None, "n": 3},
        {"value": 31_310.0, "ci_low": NAN, "ci_high": INF, "n": 3},
        {"value": 31_310.0},
        {"value": "31 s", "ci_low": "?"},
        {},
    ],
)
def test_absurd_stored_figures_are_unknown_and_break_nothing(
    client: TestClient, make: Make, metric: dict[str, Any]
) -> None:
    names = ("step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib")
    health = {"outcome": "completed", "last_loss": NAN, "first_loss": INF, "last_grad_norm": NAN}
    health |= {"largest_grad_norm": INF, "loss_finite": False, "peak_allocated_gib": NAN}
    timers = [{"name": "forward-compute", "share_of_step": NAN, "median_ms": INF, "max_over_min": NAN}]
    run = make(metrics=dict.fromkeys(names, metric), health=health, timers=timers)
    good = make()
    for address in ("/", "/runs", "/runs?sort=step_time_ms", f"/runs/{run}", f"/api/v1/runs/{run}"):
        assert client.get(address).status_code == 200, address
    listed = {item["id"]: item["metrics"] for item in client.get("/api/v1/runs").json()["items"]}
    assert listed[good]["step_time_ms"]["n"] == 46
    absurd = listed[run]["step_time_ms"]
    assert absurd is None or set(absurd) == {"value", "ci_low", "ci_high", "n", "note"}
    if metric.get("value") != 31_310.0 and metric.get("value") != 1.797e308:
        assert absurd is None


def test_a_failed_run_opens_its_log_and_an_unconfirmed_setting_is_not_good_health(
    client: TestClient, make: Make
) -> None:
    failure = {"kind": "hybridep_missing", "title": "t", "explanation": "e", "advice": "a", "rank": 0, "evidence": []}
    failed = client.get(f"/runs/{make(status='failed', health={'outcome': 'failed'}, failures=[failure])}").text
    assert re.search(r'data-tab="log"\s+aria-current="true"', failed)
    page = client.get(f"/runs/{make(activity=stated_activity('deepep', None), warnings=[])}").text
    assert "1 not proven" in page


def test_the_overview_counts_by_outcome_what_its_links_list(client: TestClient, make: Make) -> None:
    make(name="good")
    make(name="ended in an error", health={"outcome": "failed"})
    for number in range(2):
        make(name=f"memory {number}", health={"outcome": "out_of_memory"})
    make(name="no figure", status="failed", health={"outcome": "failed"})
    make(name="nothing known", status="failed", health={})
    text = client.get("/").text
    assert "4 of 6 runs" in text
    links = re.findall(r'href="(/runs\?(?:outcome|status)=\w+)">(\d+)\s+([\w ]+)</a>', text)
    assert [(count, words) for _, count, words in links] == [
        ("2", "with an error"), ("2", "out of memory"), ("2", "unreadable"),
    ]  # fmt: skip
    for address, count, _ in links:
        assert f">{count} runs match</span>" in client.get(address).text, address


def test_the_list_shows_verdicts_and_filters_by_them(client: TestClient, engine: Engine, make: Make) -> None:
    slow = make(name="slow", purpose="ci", verdict="regression", verdict_delta_pct=3.42)
    make(name="other knob", purpose="experiment", verdict="regression", verdict_delta_pct=9.0)
    make(name="waiting", verdict="")
    with transaction(engine) as session:  # runs of an experiment show their side in place of the verdict
        planned = ExperimentRow(
            project_id=session.get_one(RunRow, slow).project_id, baseline_run_id=slow, title="knob", stack_key="s",
            baseline_key="k", tag="knob", created_by="Ada",
        )  # fmt: skip
        session.add(planned)
        session.flush()
        for purpose in ("experiment", "ci"):
            side = make_run(session, name=f"side, {purpose}", purpose=purpose, verdict="regression")
            session.add(ExperimentRunRow(experiment_id=planned.id, run_id=side, side="candidate", joined_by="tag"))
        for state in ("planned", "withdrawn"):  # the run is their baseline
            later = planned.model_dump(exclude={"id"}) | {"tag": state, "state": state}
            session.add(row := ExperimentRow(**later))
            session.flush()
            session.add(ExperimentRunRow(experiment_id=row.id, run_id=side, side="baseline", joined_by="tag"))
        number = planned.id
    text = client.get("/runs").text
    assert f"B of experiment #{number}" in re.sub(r"<[^>]*>|\s+", " ", text).replace("  ", " ")
    assert re.search(r'#verdict"><span class="badge regression".*?regression</span>.*?>\+3\.4\u202f%<', text, re.DOTALL)
    assert "A/B slower</span>" in text
    assert '<span class="ellipsis">verdict: not judged</span>' in client.get("/runs?verdict=none").text
    slower = {"slow", "other knob", "side, ci"}
    for query, names in (("regression", slower), ("none", {"waiting"}), ("failed", set())):
        items = client.get(f"/api/v1/runs?verdict={query}").json()["items"]
        assert {item["name"] for item in items} == names, query
        table = client.get(f"/api/v1/runs?verdict={query}&format=csv").text
        assert {row["name"] for row in csv.DictReader(io.StringIO(table))} == names, query
    assert ">3 runs match</span>" in client.get("/runs?verdict=regression").text
    assert client.get("/api/v1/runs?verdict=slow").status_code == 422
    item = client.get("/api/v1/runs?q=slow").json()["items"][0]
    assert (item["verdict"], item["verdict_delta_pct"], item["quarantine"]) == ("regression", 3.42, "")
    every = client.get("/api/v1/runs").json()["items"]
    assert {item["name"] for item in every if item["verdict"] == "regression"} == slower, "as the filter finds them"


def test_a_quarantined_run_says_so_in_the_list_and_in_the_api(client: TestClient, make: Make) -> None:
    run = make(quarantine="node <b>17</b> throttled", quarantined_by="Ada")
    text = client.get("/runs").text
    assert 'title="node &lt;b&gt;17&lt;/b&gt; throttled"' in text
    assert "quarantined</span>" in text
    answer = client.get(f"/api/v1/runs/{run}").json()
    assert answer["quarantine"] == {"reason": "node <b>17</b> throttled", "by": "Ada", "at": None}


def test_names_and_branches_are_never_cut_by_the_server(client: TestClient, make: Make) -> None:
    make(name="a-name-that-is-longer-than-a-column-is-wide", branch="feature/a-branch-with-a-long-name")
    text = client.get("/runs?columns=branch").text
    assert ">a-name-that-is-longer-than-a-column-is-wide</a>" in text
    assert ">feature/a-branch-with-a-long-name</span>" in text


def test_the_upload_form_has_its_button_before_the_script_and_the_default_of_the_api(client: TestClient) -> None:
    text = client.get("/upload").text
    assert text.index('name="log"') < text.index('type="submit" data-send>Upload') < text.index("Upload from CI")
    assert "<option selected>ci</option>" in text


def test_the_fields_of_a_run_can_be_searched(client: TestClient, make: Make) -> None:
    run = make()
    every = re.findall(r'<tr id="contract-(\w+)"', client.get(f"/runs/{run}?tab=config").text)
    matches = re.findall(r'<tr id="contract-(\w+)"', client.get(f"/runs/{run}?tab=config&find=expert").text)
    assert {"ep", "dispatcher"} < set(every)
    assert matches != every
    assert re.findall(
        r'<tr id="contract-(\w+)"', client.get(f"/runs/{run}/tab?find=dispatcher", headers=HTMX).text
    ) == [name for name in every if "dispatcher" in name]


def test_names_in_backticks_are_code_and_escaped(client: TestClient, make: Make) -> None:
    run = make(warnings=["`<b>` was read as `tp`."], status="ready")
    assert "<code>&lt;b&gt;</code>" in client.get(f"/runs/{run}?tab=health").text
    reference = client.get("/docs/runs").text
    assert "<code>status</code> says whether" in reference
    assert "`" not in re.sub("<pre.*?</pre>", "", reference, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/run/12", ["/runs/12", "/runs", "/regressions"]),
        ("/regressions/999999", ["/regressions", "/runs"]),
        ("/upgrades", ["/upgrade", "/search?q=upgrades", "/runs", "/regressions"]),
        ("/leaderboard/h100/deepseek-v3", ["/leaderboards/h100/deepseek-v3", "/leaderboards", "/runs", "/regressions"]),
        ("/nightly-qwen", ["/search?q=nightly-qwen", "/runs", "/regressions"]),
        ("/s/a-secret", ["/"]),
        ("/%3Cb%3E", ["/search?q=%3Cb%3E", "/runs", "/regressions"]),
    ],
)
def test_a_page_that_does_not_exist_leads_to_what_was_probably_meant(
    client: TestClient, address: str, expected: list[str]
) -> None:
    answer = client.get(address, headers={"Accept": "text/html"})
    assert answer.status_code == 404
    ways = answer.text.partition('class="ways"')[2].partition("</p>")[0]
    assert re.findall(r'href="([^"]+)"', ways) == expected
    assert "<b>" not in ways


def test_the_table_of_iterations_has_the_other_series(client: TestClient, make: Make) -> None:
    run = make()
    text = client.get(f"/runs/{run}?view=table").text
    table = text[text.index('id="run-table"') :]
    head = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", table)
    names = client.get(f"/api/v1/runs/{run}/series").json()["columns"].keys()
    assert "lm_loss" in names
    assert len(head) == 3 + len({*names} & {"step_time_ms", "tflops_per_gpu", "lm_loss", "grad_norm"})


# --- `/search`: where words and numbers lead, for the palette and without script.

ATTACK = "<script>alert(1)</script>"


def hits(client: TestClient, text: str) -> dict[str, list[str]]:
    """Return the addresses by group."""
    answer = client.get("/search", params={"q": text}, headers=HTMX)
    assert answer.status_code == 200
    groups = re.split(r'<p class="hit-label"[^>]*>([^<]+)</p>', answer.text)[1:]
    return {label: re.findall(r'href="([^"]+)"', part) for label, part in zip(groups[::2], groups[1::2], strict=True)}


def test_a_run_found_by_its_dispatcher_says_so(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for name in ("nightly", "nightly with DeepEP"):
            make_run(session, name=name, dispatcher="deepep")
    shown = client.get("/search", params={"q": "deepep"}, headers=HTMX).text
    rows = re.findall(r'href="/runs/\d+".*?</a>', shown, re.DOTALL)
    assert ["dispatcher deepep" in re.sub("<[^>]+>", "", row) for row in rows] == [False, True]


def test_words_lead_to_everything_and_numbers_to_the_run(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        stack = make_baseline(session, 4, project="nightlies")
        slow = make_stack_run(session, 9, project="nightlies", name="nightly slow", slower=0.1)
        judge(session, slow, stack)
        commit = "0badcafe" * 5
        other = make_run(session, project="nightlies", name=ATTACK, commit=commit)
    sections = hits(client, "nightly slow")
    assert sections["Runs"] == [f"/runs/{slow}"]
    assert len(sections["Stacks"]) == 1
    assert client.get(sections["Stacks"][0]).status_code == 200
    shown = client.get("/search", params={"q": "nightly slow"}, headers=HTMX).text
    assert sections["Stacks"][0].removeprefix("/history/")[:8] not in re.sub(r'href="[^"]+"', "", shown)
    sections = hits(client, "nightlies")
    assert sections["Settings"] == ["/settings/projects/nightlies"]
    assert len(sections["Runs"]) == 6
    assert sections["Runs"][-1] == "/runs?q=nightlies"
    assert hits(client, "0badcafe")["Commits"] == [f"/runs?q={commit}"]
    assert hits(client, "planner")["Pages"] == ["/plan"]
    (rule, *_) = hits(client, "hybridep")["Rules"]
    assert client.get(rule).status_code == 200
    assert hits(client, "dispatcher")["Rules"][-1] == "/playbook?q=dispatcher"
    assert f"/runs/{other}" in hits(client, "alert(1)")["Runs"]
    assert ATTACK not in client.get("/search", params={"q": "alert(1)"}).text

    assert hits(client, f"#{slow}")["Number"][0] == f"/runs/{slow}"
    jump = client.get("/search", params={"q": f"#{slow}"}, follow_redirects=False)
    assert (jump.status_code, jump.headers["location"]) == (303, f"/runs/{slow}")
    assert client.get("/search?q=%23999999999").status_code == 200
    assert hits(client, "no such thing at all") == {}
    published, plan = hits(client, "deepseek h100")["Leaderboards and figures"]
    for address in (published, plan):
        assert client.get(html.unescape(address)).status_code == 200
    for text in ("permute_fusion", "permute fusion", "--moe-permute-fusion"):
        assert "/playbook/comp-fusions" in hits(client, text)["Rules"]
        assert "/glossary#field-permute_fusion" in hits(client, text)["Glossary"]
    assert "/glossary#three-walls" in hits(client, "three walls")["Glossary"]
    assert "Leaderboards and figures" not in hits(client, "16")
    assert hits(client, "")["Newest runs"][0] == f"/runs/{other}"
    assert client.get("/search", params={"q": "x" * 300}).status_code == 422


def test_a_cut_group_leads_to_the_rest(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for number in range(6):
            make_run(session, name="sweep", commit=f"0badcafe{number}" * 4, stack_key=f"{number}" * 64)
    groups = hits(client, "sweep") | {"Commits": hits(client, "0badcafe")["Commits"]}
    assert {name: groups[name][-1] for name in ("Runs", "Stacks", "Commits")} == {
        "Runs": "/runs?q=sweep", "Stacks": "/history?q=sweep", "Commits": "/runs?q=0badcafe",
    }  # fmt: skip
    assert [len(groups[name]) for name in ("Runs", "Stacks", "Commits")] == [6, 4, 6]
    assert hits(client, "moe")["Glossary"][-1] == "/glossary?q=moe"


# --- `/help`: the documents as pages, their links and search; `/llms.txt`.

DOCS = Path(__file__).resolve().parents[2] / "docs"
PEOPLE = {"Accept": "text/html"}


@pytest.mark.parametrize(("guessed", "first"), [("/api", "/docs"), ("/settings", "/settings/projects")])
def test_a_guessed_address_opens_the_first_page_of_its_section(client: TestClient, guessed: str, first: str) -> None:
    answer = client.get(guessed, headers=PEOPLE)
    assert (answer.status_code, answer.url.path) == (200, first)


def test_every_document_is_a_page_and_its_links_lead_somewhere(client: TestClient) -> None:
    names = [path.stem for path in DOCS.glob("*.md")]
    pages = {name: client.get("/help" if name == "README" else f"/help/{name}", headers=PEOPLE) for name in names}
    assert {name: page.status_code for name, page in pages.items()} == dict.fromkeys(names, 200)
    ids = {name: set(re.findall(r'<h[1-6] id="([^"]+)"', page.text)) for name, page in pages.items()}
    rows = pages["README"].text.count("<tr>") - pages["README"].text.count("<thead>")
    assert f"{rows} documents;" in pages["README"].text
    with every_case() as case:
        for name, page in pages.items():
            with case(f"{name}: links without an address"):
                assert re.findall(r"<a(?=[ >])(?![^>]* href=)[^>]*>", page.text) == []
            for target, anchor in re.findall(r'href="/help/([a-z-]+)(?:#([^"]+))?"', page.text):
                with case(f"{name} -> {target}#{anchor}"):
                    assert target in ids
                    assert not anchor or anchor in ids[target]
    row = pages["settings"].text.partition("<code>THREEWALLS_PUBLIC_URL</code>")[2].partition("</tr>")[0]
    assert re.findall('<td data-label="([^"]+)"', row) == ["Default", "Meaning"]  # a phone stacks the cells


def test_documents_link_the_pages_that_they_name(client: TestClient) -> None:
    page = client.get("/help/engineer", headers=PEOPLE).text
    named = re.findall(r'<td[^>]*><a href="(/[a-z/]+)">', page)
    assert {"/check", "/plan", "/upgrade"} <= {name for name in named if not name.startswith("/help/")} <= PAGES.keys()
    assert {client.get(address, headers=PEOPLE).status_code for address in PAGES} == {200}


def test_files_that_documents_link_to_are_shown_as_text(client: TestClient) -> None:
    pages = [client.get(f"/help/{name}").text for name in ("operations", "documents", "deploy")]
    targets = {target for page in pages for target in re.findall(r'href="(/help/files/[^"]+)"', page)}
    names = ("ops/alerts.yml", "ops/grafana.json", "iterations.schema.json", "../deploy/proxy/nginx.conf")
    for name in names:
        target = f"/help/files/{Path(name).name}"
        assert target in targets
        answer = client.get(target)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.content == (DOCS / name).read_bytes()
    assert {client.get(target).status_code for target in targets} == {200}
    for name in ("ops", "take_screenshot.py", "..%2Fpyproject.toml", "nothing.yml"):
        assert client.get(f"/help/files/{name}", headers=PEOPLE).status_code == 404


def test_the_search_finds_sections_and_an_unknown_document_is_not_found(client: TestClient) -> None:
    hits = re.findall(r'data-hit="([^"]+)"', client.get("/help?q=exit+codes", headers=PEOPLE).text)
    assert "/help/cli#exit-codes" in hits[:3]
    page = client.get("/help?q=retention", headers=PEOPLE).text
    excerpts = [
        re.sub("</?mark>", "", excerpt) for excerpt in re.findall("<p>([^<]*(?:<mark>[^<]*</mark>[^<]*)*)</p>", page)
        if "<mark>retention</mark>" in excerpt
    ]  # fmt: skip
    words = {word for path in DOCS.glob("*.md") for word in re.findall(r"\w+", path.read_text())}
    assert len(excerpts) > 2
    assert all(re.findall(r"\w+", text)[0] in words for text in excerpts), "no excerpt begins inside a word"
    none = client.get("/help?q=%3Cscript%3Exyzzy", headers=PEOPLE)
    assert none.status_code == 200
    assert "<script>xyzzy" not in none.text
    assert "data-hit" not in none.text
    assert client.get("/help/nothing", headers=PEOPLE).status_code == 404
    assert client.get("/help/..%2Fapp", headers=PEOPLE).status_code == 404


def test_agents_find_documents_and_interfaces(client: TestClient) -> None:
    text = client.get("/llms.txt").text
    assert text.startswith("# Threewalls\n")
    targets = re.findall(r"\]\((/help/[a-z-]+)\)", text)
    assert len(targets) > 15
    assert {client.get(target).status_code for target in targets} == {200}
