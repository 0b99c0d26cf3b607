"""Published figures: the list, figures that teams add, and the nearest figure to a run."""

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pyarrow import parquet
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.testclient import TestClient

from app.domain.numbers import THIN
from app.domain.references.point import published
from app.references import commands
from app.references.pages import recognise
from app.references.views import lanes, point_row
from app.storage.database import transaction
from app.storage.references import Reference, references
from app.storage.tables import RunRow
from tests.builders import make_project, make_run, make_stack
from tests.runs.uploading import assert_problem

OWN: dict[str, Any] = {
    "author": "Ada",
    "contract": {"model": "Qwen3-30B-A3B", "gpu": "h100", "gpus": 16, "precision": "BF16", "dispatcher": "deepep"},
    "tokens_per_s_per_gpu": 12_500.0,
    "measured_by": "Lab East",
    "source": "Our paper",
    "date": "2026-10",
}


def add(client: TestClient, **other: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/references", json=OWN | other)
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def listed(client: TestClient, **query: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/references", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_the_built_in_figures_are_listed_newest_first_a_page_at_a_time(client: TestClient) -> None:
    result = listed(client, page_size=100)
    assert (result["total"], result["pages"], len(result["items"])) == (len(published()), 3, 100)
    dates = [item["date"] for page in (1, 2, 3) for item in listed(client, page=page, page_size=100)["items"]]
    assert dates == sorted(dates, reverse=True)
    assert all(item["entered"] is None for item in result["items"])


def test_a_column_sorts_the_list_the_export_and_the_page(client: TestClient) -> None:
    fastest = [item["tflops_per_gpu"] or 0.0 for item in listed(client, sort="-tflops")["items"]]
    assert fastest == sorted(fastest, reverse=True)
    first = next(csv.DictReader(io.StringIO(client.get("/references.csv?sort=-tflops").text)))
    assert float(first["tflops_per_gpu"]) == fastest[0]
    part = client.get("/references?sort=-tflops", headers={"HX-Request": "true"}).text
    assert 'href="/api/v1/references?sort=-tflops&page_size=500"' in part.replace("&amp;", "&")
    assert re.search(r'aria-sort="descending">\s*<a href="/references\?sort=tflops"', part)


def test_every_figure_of_a_gpu_is_drawn_inside_the_axis(client: TestClient) -> None:
    places = [
        float(place) for place in re.findall(r'<circle class="m\d[^"]*" cx="([\d.]+)%"', client.get("/references").text)
    ]
    assert len(places) == sum(item["tflops_per_gpu"] is not None for item in listed(client, page_size=500)["items"])
    assert 90 < max(places) < 99


def test_the_chart_says_what_it_leaves_out_and_which_figure_is_of_another_length() -> None:
    everything = [Reference(point.key, point) for point in published()]
    chart = lanes(everything)
    assert chart.drawn == len(everything) - 3
    assert (list(chart.ticks.values()), min(chart.ticks), max(chart.ticks) <= 100) == (
        ["0", "500", "1,000", "1,500"], 0.0, True
    )  # fmt: skip
    assert {lane.gpu: lane.sequence for lane in chart.lanes if lane.sequence} == {"H100": "131,072"}
    drawn_untuned = sum(point.untuned and point.tflops_per_gpu is not None for point in published())
    assert sum(dot.is_untuned for lane in chart.lanes for dot in lane.dots) == drawn_untuned == 6


def test_rows_with_different_figures_differ_in_what_they_say_of_the_job() -> None:
    rows = [
        replace(point_row(Reference(point.key, point)), id="", figures={}, mfu="", note="") for point in published()
    ]
    twins = [row for row, count in Counter(map(repr, rows)).items() if count > 1]
    assert twins == []


def test_filters_narrow_the_list_and_the_export(client: TestClient) -> None:
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "routing": "dropless", "q": "verification card"}
    (item,) = listed(client, **query)["items"]
    assert (item["step_time_ms"], item["contract"]["dispatcher"]) == (30289.55, "hybridep")
    (row,) = csv.DictReader(io.StringIO(client.get("/references.csv", params=query).text))
    assert (row["step_time_ms"], row["gpus"], row["label"]) == ("30289.55", "16", "another lab's measurement")
    assert list(
        csv.DictReader(io.StringIO(client.get("/api/v1/references", params={**query, "format": "csv"}).text))
    ) == [row]
    table = client.get("/api/v1/references", params={**query, "format": "parquet"}).content
    (point,) = parquet.read_table(io.BytesIO(table)).to_pylist()
    assert (point["id"], point["step_time_ms"], point["rounded"]) == (row["id"], 30289.55, False)
    page = client.get("/references", params=query).text
    assert page.count("<tr>") == 2
    assert f'href="/references/{item["id"]}"' in page
    assert_problem(client.get("/api/v1/references?kind=rumour"), 422, field="kind")


def test_a_value_that_only_a_team_s_figure_has_is_a_filter_until_it_is_withdrawn(client: TestClient) -> None:
    places = ("/references", "/references.csv", "/api/v1/references")
    values = {"model": "Our-MoE", "gpu": "H20", "precision": "fp32", "routing": "guessed", "project": "nowhere"}
    for place in places:
        for name, value in values.items():
            answer = client.get(place, params={name: value}, headers={"Accept": "application/json"})
            if name == "project":
                assert answer.status_code == 404
            else:
                assert_problem(answer, 422, field=name)
    added = add(client, contract=OWN["contract"] | {"gpu": "H20"})
    assert [item["id"] for item in listed(client, gpu="H20")["items"]] == [added["id"]]
    assert {client.get(place, params={"gpu": "H20"}).status_code for place in places} == {200}
    withdrawn = client.delete(f"/api/v1/references/{added['id']}", params={"author": "Ada", "reason": "wrong"})
    assert withdrawn.status_code < 300
    assert_problem(client.get("/api/v1/references?gpu=H20"), 422, field="gpu")


def test_a_team_adds_its_own_figure_which_is_labelled(client: TestClient) -> None:
    added = add(client, note="=cmd <b>", reason="From the workshop.")
    assert added["label"] == "another lab's measurement, entered by hand"
    assert added["contract"] == {
        "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "precision": "bf16", "dispatcher": "deepep"
    }  # fmt: skip
    assert (added["kind"], added["entered"]["added_by"], added["entered"]["project"]) == ("own", "Ada", None)
    (event,) = added["events"]
    assert (event["who"], event["action"], event["note"]) == ("Ada", "add", "From the workshop.")
    assert event["after"]["tokens_per_s_per_gpu"] == 12_500.0
    (item,) = listed(client, kind="own")["items"]
    assert item["id"] == added["id"]
    assert "<b>" not in client.get(f"/references/{added['id']}").text
    (row,) = csv.DictReader(io.StringIO(client.get("/references.csv?kind=own").text))
    assert (row["note"], row["added_by"]) == ("'=cmd <b>", "Ada")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"contract": OWN["contract"] | {"gpus": 0}}, "contract.gpus"),
        ({"contract": OWN["contract"] | {"precision": "float9"}}, "contract.precision"),
        ({"contract": OWN["contract"] | {"url": "https://else.where"}}, "contract.url"),
        ({"contract": {"model": "Qwen3-30B-A3B"}}, "contract.gpu"),
        ({"contract": OWN["contract"] | {"gpu": None}}, "contract.gpu"),
        ({"tokens_per_s_per_gpu": None}, "tokens_per_s_per_gpu"),
        ({"tokens_per_s_per_gpu": -1}, "tokens_per_s_per_gpu"),
        ({"url": "javascript:alert(1)"}, "url"),
        ({"date": "last spring"}, "date"),
        ({"source": "   "}, "source"),
        ({"project": "no-such"}, "project"),
        ({"author": "  "}, "author"),
        ({"kind": "release_table"}, "kind"),
    ],
)
def test_invalid_values_are_named_and_nothing_is_stored(client: TestClient, wrong: dict[str, Any], field: str) -> None:
    assert_problem(client.post("/api/v1/references", json=OWN | wrong), 422, field=field)
    assert listed(client, kind="own")["total"] == 0


def test_a_correction_changes_what_it_names_and_says_what_was_before(client: TestClient) -> None:
    number = add(client, window="41 to 50")["id"]
    body = {
        "author": "Grace", "reason": "A misprint.", "tflops_per_gpu": 290.0, "window": None,
        "contract": {"dispatcher": None, "ep": 16},
    }  # fmt: skip
    changed = client.patch(f"/api/v1/references/{number}", json=body).json()
    assert (changed["tflops_per_gpu"], changed["tokens_per_s_per_gpu"], changed["window"]) == (290.0, 12_500.0, "")
    assert ("dispatcher" in changed["contract"], changed["contract"]["ep"]) == (False, 16)
    event = changed["events"][-1]
    assert (event["who"], event["action"], event["note"]) == ("Grace", "change", "A misprint.")
    assert event["before"] == {"dispatcher": "deepep", "window": "41 to 50"}
    assert event["after"] == {"ep": 16, "tflops_per_gpu": 290.0}
    page = client.get(f"/references/{number}").text
    assert "Grace changed it" in page
    assert "not stated →" in page


def test_a_correction_that_changes_nothing_is_not_recorded(client: TestClient) -> None:
    number = add(client)["id"]
    again = client.patch(f"/api/v1/references/{number}", json={"author": "Grace", "date": "2026-10"}).json()
    assert [event["action"] for event in again["events"]] == ["add"]


def test_a_change_based_on_an_old_state_is_refused(client: TestClient) -> None:
    added = add(client)
    seen = added["entered"]["changed_at"]
    address = f"/api/v1/references/{added['id']}"
    assert client.patch(address, json={"author": "Ada", "note": "one", "seen": seen}).status_code == 200
    late = client.patch(address, json={"author": "Grace", "note": "two", "seen": seen})
    assert_problem(late, 409, "was changed by Ada", field="seen")
    assert client.get(address).json()["note"] == "one"


def test_a_withdrawn_figure_keeps_its_address_and_counts_no_more(client: TestClient) -> None:
    number = add(client)["id"]
    address = f"/api/v1/references/{number}"
    gone = client.delete(address, params={"author": "Ada", "reason": "retracted"}).json()
    assert gone["entered"]["withdrawn_at"] is not None
    assert client.delete(address, params={"author": "Ada"}).status_code == 200
    assert [event["action"] for event in client.get(address).json()["events"]] == ["add", "withdraw"]
    assert listed(client, kind="own")["total"] == 0
    assert_problem(client.patch(address, json={"author": "Ada", "note": "x"}), 422, "was withdrawn")
    page = client.get(f"/references/{number}").text
    assert re.findall(r'data-action="(\w+)"', page) == ["withdraw", "add"]
    assert "retracted" in page
    assert f"/references/{number}/change" not in page
    assert add(client)["id"] != number


def test_the_figures_that_come_with_the_service_stay_as_they_are(client: TestClient) -> None:
    key = published()[0].key
    assert client.get(f"/api/v1/references/{key}").json()["events"] == []
    assert 'data-origin="built-in"' in client.get(f"/references/{key}").text
    assert_problem(client.patch(f"/api/v1/references/{key}", json={"author": "Ada", "note": "x"}), 422)
    assert_problem(client.delete("/api/v1/references/1", params={"author": "Ada"}), 404, "No team added")
    assert_problem(client.get("/api/v1/references/nothing-of-this-name"), 404)


def test_the_same_figure_is_kept_once(client: TestClient) -> None:
    number = add(client)["id"]
    again = client.post("/api/v1/references", json=OWN)
    assert_problem(again, 422, field="source")
    assert f"reference point {number}" in again.json()["errors"][0]["message"]


def test_a_figure_of_a_project_is_offered_to_it_alone(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for slug in ("east", "west"):
            make_project(session, slug)
    add(client, project="east", note="secret")
    add(client, note="for all")
    with transaction(engine) as session:
        offered = {
            slug: {reference.point.note for reference in references(session, slug) if reference.entered}
            for slug in ("east", "west")
        }
    assert offered == {"east": {"secret", "for all"}, "west": {"for all"}}
    assert listed(client, kind="own", project="west")["total"] == 1


def test_stored_values_are_limited(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_IN_FORCE", 1)
    add(client)
    assert_problem(
        client.post("/api/v1/references", json=OWN | {"note": "another"}),
        422,
        "Withdraw figures that are no longer needed",
    )


def test_by_form_a_figure_is_added_corrected_and_withdrawn(client: TestClient) -> None:
    form = {
        "field.model": "Mixtral-8x7B", "field.gpu": "A100", "field.gpus": "64", "field.precision": "bf16",
        "another": "topk", "another_value": "2", "tflops_per_gpu": "141.5", "measured_by": "Lab", "source": "Blog",
        "date": "2026-09-01", "rounded": "true", "untuned": "true", "author": "Ada", "field.seq_len": "",
    }  # fmt: skip
    added = client.post("/references/new", data=form, follow_redirects=False)
    assert added.status_code == 303
    address = added.headers["location"].partition("?")[0]
    values = client.get(f"/api/v1{address}").json()
    assert (values["tflops_per_gpu"], values["contract"]["topk"]) == (141.5, 2)
    assert (values["rounded"], values["untuned"]) == (True, True)
    page = client.get(address).text
    assert "About 141.5 TFLOP/s/GPU" in page
    seen = values["entered"]["changed_at"].replace("Z", "+00:00")
    change_ = form | {
        "tflops_per_gpu": "143",
        "rounded": "",
        "untuned": "",
        "author": "Grace",
        "seen": seen,
        "another_value": "",
    }
    assert client.post(f"{address}/change", data=change_, follow_redirects=False).status_code == 303
    late = client.post(f"{address}/change", data=change_ | {"tflops_per_gpu": "150"})
    assert late.status_code == 409
    assert "was changed by Grace" in late.text
    changed = client.get(f"/api/v1{address}").json()
    assert (changed["tflops_per_gpu"], changed["rounded"], changed["untuned"]) == (143, False, False)
    assert client.post(f"{address}/withdraw", data={"author": ""}).status_code == 422
    assert client.post(f"{address}/withdraw", data={"author": "Ada"}, follow_redirects=False).status_code == 303
    assert "withdrawn" in client.get(address).text


def test_a_rejected_form_keeps_its_input_and_marks_the_errors(client: TestClient) -> None:
    form = {"field.model": "Mixtral<b>", "field.gpus": "many", "tflops_per_gpu": "fast", "author": "Ada"}
    answer = client.post("/references/new", data=form)
    assert answer.status_code == 422
    assert 'value="Mixtral&lt;b&gt;"' in answer.text
    for message in ("must be a whole number of at least 1", "must be a number above 0", "is required"):
        assert message in answer.text
    assert listed(client, kind="own")["total"] == 0


def test_the_form_begins_with_what_the_address_names(client: TestClient) -> None:
    assert 'value="Mixtral-8x7B"' in client.get("/references/new?model=Mixtral-8x7B&nothing=x").text


def test_the_page_says_how_many_and_offers_a_way_on_where_none_is(client: TestClient) -> None:
    assert f"{len(published())} figures of 11 models" in client.get("/references").text
    assert "No published figure matches" in client.get("/references?q=nothing-like-it").text
    assert "No such page" in client.get("/references?page=900").text
    assert client.get("/references?page=none", headers={"accept": "text/html"}).status_code == 422


def test_times_are_in_utc(client: TestClient) -> None:
    added_at = datetime.fromisoformat(add(client)["entered"]["added_at"])
    assert added_at.utcoffset() == datetime.now(UTC).utcoffset()


def test_an_unknown_parameter_is_rejected_by_name(client: TestClient) -> None:
    refused = client.get("/api/v1/references?hardware=H100")
    assert_problem(refused, 422, field="hardware")
    assert all(name in refused.json()["errors"][0]["message"] for name in ("q, ", "model, ", "gpu, "))


RECORD = {"mbs": 1, "dispatcher": "hybridep", "task": "pretrain"}
NOISE = (0.0, 2.0, -2.0, 1.0, -1.0, 3.0)


def nearest(client: TestClient, **query: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/references/nearest", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def stack(session: Session, ms: float, **fields: Any) -> list[int]:
    run_ids = make_stack(session, [ms * (1 + change / 1000) for change in NOISE], fields=fields)
    session.commit()
    return run_ids


def test_a_run_is_compared_with_the_nearest_figure(client: TestClient, session: Session) -> None:
    run = stack(session, 21_846.0, **RECORD)[-1]
    result = nearest(client, run=run)
    assert (result["reference"]["step_time_ms"], result["reference"]["date"]) == (20147.29, "2026-07-27")
    assert result["more_pct"]["step_time_ms"] == pytest.approx(8.7, abs=0.5)
    assert result["reference"]["measured_by"] == "NVIDIA"
    assert {difference["field"] for difference in result["differences"]} == {"etp", "ep_overlap"}
    assert not any(difference["known"] for difference in result["differences"])
    (window,) = (cause["sentence"] for cause in result["causes"] if cause["field"] == "window")
    assert "41 to 50" in window


def test_an_open_regression_is_named_as_a_part_of_the_gap(client: TestClient, session: Session) -> None:
    times = [21_846.0 * (1 + change / 1000) for change in NOISE]
    runs = make_stack(session, times + [1.08 * time for time in times[:4]], fields=RECORD)
    session.commit()
    (regression,) = client.get("/api/v1/regressions").json()["items"]
    assert [nearest(client, run=run)["regression"] for run in (runs[0], runs[-1])] == [None, regression["id"]]
    page = client.get(f"/references/nearest?run={runs[-1]}").text
    link = rf'<a href="/regressions/{regression["id"]}">.*</a> is open: this\s+run is (\S+)\s%\s+slower'
    assert (slower := re.search(link, page))
    assert float(slower[1]) == pytest.approx(8.0, abs=1.0)
    result = nearest(client, run=runs[-1])
    whole, rest = (1 + result[name]["step_time_ms"] / 100 for name in ("more_pct", "rest_pct"))
    assert whole / rest == pytest.approx(1 + float(slower[1]) / 100, abs=0.001)
    assert re.search(rf"rest of the gap: {100 * (rest - 1):.1f}\s%\s+slower", page)
    assert nearest(client, run=runs[0])["rest_pct"] == {}


def test_a_stack_is_compared_by_its_fastest_result(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0, mbs=1)
    fast = stack(session, 25_000.0, mbs=1, ep_overlap=True)
    key = session.get_one(RunRow, fast[0]).stack_key
    result = nearest(client, stack=key)
    assert result["ours"]["run_id"] == fast[-1]
    assert result["ours"]["dispatcher"] == "alltoall"
    assert result["ours"]["step_time_ms"] == pytest.approx(25_000, rel=0.01)
    assert result["ours"]["runs"] == len(fast)
    assert result["more_pct"]["step_time_ms"] > 0, "a figure of the same step is nearer than a vague one"
    page = client.get(f"/references/nearest?stack={key}").text
    assert f"alltoall, mean of {len(fast)} runs, newest #{fast[-1]}" in page
    alone = nearest(client, run=fast[0])["ours"]
    assert (alone["runs"], alone["step_time_ms"]) == (1, session.get_one(RunRow, fast[0]).step_time_ms)
    assert f"alltoall, run #{fast[0]}," in client.get(f"/references/nearest?run={fast[0]}").text


def test_the_page_of_a_figure_begins_with_the_own_nearest_run(client: TestClient, session: Session) -> None:
    figures = listed(client, model="Qwen3-30B-A3B", gpu="H100")["items"]
    (address,) = (f"/references/{item['id']}" for item in figures if item["step_time_ms"] == 20147.29)
    assert "data-picture" not in client.get(address).text
    run = stack(session, 40_294.58, mbs=1)[-1]
    assert client.get("/api/v1/leaderboards").json()["total"] == 1, "it is ranked"
    page = client.get(address).text.partition("data-picture")[2]
    assert re.findall(r'href="/runs/(\d+)"', page)[0] == str(run)
    ours, theirs = (float(width) for width in re.findall(r'<rect y="2" width="([\d.]+)%"', page))
    assert (ours, theirs) == (100.0, pytest.approx(50.0, abs=0.2))
    labels = re.findall(r'<li>\s*<a href="/(?:runs|references)/[^"]*">(.*?)</a>', page)[:2]
    assert [label.rpartition(", ")[2] for label in labels] == ["bf16", "bf16"], "equal precisions are named, too"
    work = {"seq_len": 4096, "gbs": 1024, "mbs": 1, "dispatcher": "alltoall", "precision": "bf16"}
    nearer = add(client, contract=OWN["contract"] | work, tokens_per_s_per_gpu=None, step_time_ms=40_000.0)["id"]
    bars = client.get(address).text.partition("data-picture")[2].partition("</ul>")[0]
    assert re.findall(r'<a href="([^"]*)">', bars) == [f"/runs/{run}", f"/references/{nearer}"]
    assert len(re.findall(r"<rect ", bars)) == 3, "the figure of the page follows the nearest one"
    assert bars.count("%</span>") + bars.count(f"{THIN}%") == 1, "only the gap to the nearest one is a percentage"
    listed_lead = re.findall(r'<p class="answer"[^>]*>(.*?)</p>', client.get("/references").text, re.DOTALL)[0]
    best = max(listed(client)["items"], key=lambda item: item["tflops_per_gpu"] or 0.0)
    assert f", {best['contract']['precision']})" in listed_lead


def test_the_figure_of_a_team_is_taken_when_it_is_nearer_and_only_then(client: TestClient, session: Session) -> None:
    run = stack(session, 21_846.0, **RECORD, cluster="west")[-1]
    form = {**RECORD, "seq_len": 4096, "gbs": 1024, "ep": 16, "tp": 1, "pp": 1, "cp": 1, "etp": 1, "ep_overlap": False}
    form |= {"routing_mode": "forced-balance", "data_mode": "mock", "container": "nvcr.io/nvidia/nemo:26.06"}
    contract = OWN["contract"] | form
    number = add(client, contract=contract)["id"]
    result = nearest(client, run=run)
    assert (result["reference"]["id"], result["differences"]) == (number, [])
    assert result["reference"]["entered"] is not None
    assert client.get("/api/v1/leaderboards").json()["total"] == 1, "it is ranked"
    client.delete(f"/api/v1/references/{number}", params={"author": "Ada"})
    farther = nearest(client, run=run)["reference"]["id"]
    assert farther != number
    again = add(client, contract=contract)["id"]
    page = client.get(f"/references/{farther}").text
    assert f'data-nearest="{again}"' in page
    assert "A nearer published figure exists for your only stack of this model on this GPU." in page


def test_another_model_has_no_figure_and_the_page_offers_to_add_one(client: TestClient, session: Session) -> None:
    run = stack(session, 900.0, model="Our-MoE", gpu="A100")[0]
    result = nearest(client, run=run)
    assert (result["reference"], result["differences"], result["causes"]) == (None, [], [])
    assert "Our-MoE on A100" in result["summary"]
    assert "/references/new?model=Our-MoE&amp;gpu=A100" in client.get(f"/references/nearest?run={run}").text


def test_unstated_fields_are_listed(client: TestClient, session: Session) -> None:
    run = make_run(session, contract={}, model=None, gpu=None)
    session.commit()
    result = nearest(client, run=run)
    assert (result["reference"], result["differences"]) == (None, [])
    assert f'href="/runs/{run}#supply"' in client.get(f"/references/nearest?run={run}").text


def test_the_run_page_asks_for_it_when_it_is_seen_and_links_it_without_script(
    client: TestClient, session: Session
) -> None:
    run = stack(session, 21_846.0, **RECORD)[0]
    page = client.get(f"/runs/{run}?tab=record").text
    assert f'hx-get="/references/nearest?run={run}" hx-trigger="revealed"' in page
    assert f'<a href="/references/nearest?run={run}">' in page
    part = client.get(f"/references/nearest?run={run}", headers={"HX-Request": "true"}).text
    assert part.lstrip().startswith('<div class="reference"')
    assert f"{THIN}%" in part
    assert '<ol class="causes">' in part


def test_a_wrong_question_is_refused(client: TestClient, session: Session) -> None:
    assert_problem(client.get("/api/v1/references/nearest"), 422, field="run")
    assert_problem(client.get("/api/v1/references/nearest?run=1&stack=x"), 422, field="run")
    assert_problem(client.get("/api/v1/references/nearest?run=12345"), 404, "Run 12345 does not exist")
    assert_problem(client.get("/api/v1/references/nearest?stack=nothing"), 422, field="stack")
    assert_problem(client.get("/api/v1/references/nearest?stack=abcdef012345"), 404, "No stack with the key")


def test_a_figure_of_the_same_job_wins_despite_unknown_fields_and_lists_its_nearest_stacks(
    client: TestClient, session: Session
) -> None:
    """NVIDIA's card differs in container and micro-batch; the team states both, and no layout."""
    stack(session, 21_846.0, dispatcher="hybridep", mbs=2, container="ours:1")
    meta = {"seq_len": 4096, "gbs": 1024, "mbs": 2, "container": "ours:1", "routing_mode": "forced-balance"}
    number = add(client, contract=OWN["contract"] | meta | {"dispatcher": "hybridep"})["id"]
    key = client.get("/api/v1/leaderboards").json()["items"][0]["stack_key"]
    assert nearest(client, stack=key[:12])["reference"]["id"] == number
    page = client.get(f"/references/{number}?saved=add").text
    assert re.findall(r'data-nearest="([^"]+)"', page) == [str(number)]
    other = add(client, contract=OWN["contract"] | meta | {"dispatcher": "hybridep", "container": "other:2"})["id"]
    page = client.get(f"/references/{other}").text
    assert re.findall(r'data-nearest="([^"]+)"', page) == [str(number)]
    assert "<code>container</code>" in page.partition('data-nearest="')[2]


def test_invalid_figures_are_reported_together_and_by_field(client: TestClient) -> None:
    wrong = client.post("/api/v1/references", json={}).json()["errors"]
    assert {"author", "source", "contract.model"} <= {item["field"] for item in wrong}
    misplaced = client.post("/api/v1/references", json={"author": "Ada", "gpu": "H100"})
    assert "put it into `contract`" in misplaced.json()["errors"][0]["message"]
    built_in = client.get("/api/v1/references?kind=guide").json()["items"][0]["id"]
    gone = client.delete(f"/api/v1/references/{built_in}", params={"author": "Ada"})
    assert_problem(gone, 422, "Built-in figures")


# --- Values recognised in pasted text, and the form that they fill.


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            "iteration 50/50 | elapsed time per iteration (ms): 20147.3 | throughput per GPU (TFLOP/s/GPU): 299.4 |",
            {"step_time_ms": "20147.3", "tflops_per_gpu": "299.4"},
        ),
        (
            "Qwen3-30B-A3B on 16 x H100, BF16, TP1 PP1 EP16, seq 4096, GBS 1024: 13,011 tokens/s/GPU, 20.15 s per step",
            {
                "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "precision": "bf16", "tp": "1", "pp": "1",
                "ep": "16", "seq_len": "4096", "gbs": "1024", "tokens_per_s_per_gpu": "13011", "step_time_ms": "20150",
            },
        ),
        (
            "| Model | GPUs | GPU | Precision | EP | Tokens/s/GPU |\n|---|---|---|---|---|---|\n"
            "| DeepSeek-V3 | 256 | GB200 | MXFP8 | 64 | 4,021 |",
            {
                "model": "DeepSeek-V3", "gpus": "256", "gpu": "GB200", "precision": "fp8_mx", "ep": "64",
                "tokens_per_s_per_gpu": "4021",
            },
        ),
        ("see https://example.com/a-report of 2026-08", {"url": "https://example.com/a-report", "date": "2026-08"}),
        ("nothing of use", {}),
        ("1" * 5000, {}),  # must not be tried from every digit on
    ],
)  # fmt: skip
def test_values_are_recognised(text: str, values: dict[str, str]) -> None:
    assert recognise(text) == values


def test_pasted_text_fills_the_form(client: TestClient) -> None:
    page = client.get("/references/new", params={"pasted": "Qwen3-30B-A3B, 16xH100, bf16: 299.4 TFLOP/s/GPU"}).text
    inputs = dict(re.findall(r'name="([\w.:-]+)"\s+(?:type="\w+"\s+)?value="([^"]+)"', page))
    assert inputs["tflops_per_gpu"] == "299.4"
    assert "Qwen3-30B-A3B" in inputs.values()
    assert "H100" in inputs.values()
