"""Experiments at the public door: planned, listed, decided, and the journey that they make."""

import csv
import io
import json
import re
import shlex
from typing import Any

import pyarrow.parquet
import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.experiments.plan import tagged, upload_command
from app.errors import InvalidChange, NotFound
from app.storage import audit
from app.storage.database import read_session
from app.storage.tables import RunRow
from tests.experiments.planned import PROJECT, Fields, add_runs, make_baseline, make_history, plan, read
from tests.prepared import prepared
from tests.runs.uploading import assert_problem

API = "/api/v1/experiments"


def planned(client: TestClient, run: int, **body: Any) -> dict[str, Any]:
    sent = {"run": run, "author": "mara"} | ({"rule": "eo-enable"} if "knobs" not in body else {}) | body
    answer = client.post(API, json=sent)
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"{API}/{document['id']}"
    return document


@pytest.fixture
def done(engine: Engine) -> int:
    """Two runs a side: 25 % faster with the overlap."""

    def make() -> int:
        make_history(engine)
        experiment = plan(engine, make_baseline(engine), runs_each=2)
        tag = read(engine, experiment).tag
        add_runs(engine, tag, [25_000.0, 25_050.0])
        add_runs(engine, tag, [31_280.0], side="baseline")
        return experiment

    return prepared(engine, make)


@pytest.fixture
def baseline_slow(engine: Engine) -> int:
    """One run per side: the candidate takes 15 % longer."""
    experiment = plan(engine, make_baseline(engine), runs_each=1)
    add_runs(engine, read(engine, experiment).tag, [36_000.0])
    return experiment


def test_an_experiment_is_planned_and_read_again(client: TestClient, engine: Engine) -> None:
    run = make_baseline(engine)
    created = planned(client, run, runs_each=3)
    assert client.get(f"{API}/{created['id']}").json() == created
    assert (created["state"], created["rule"], created["baseline_run"]) == ("planned", "eo-enable", run)
    assert created["knobs"] == [{"field": "ep_overlap", "before": False, "after": True, "known": True}]
    assert created["sequence"] == ["baseline", "candidate", "candidate", "baseline", "baseline", "candidate"]
    assert [upload["side"] for upload in created["plan"]["uploads"]] == ["baseline", "candidate"]
    upload = created["plan"]["uploads"][1]
    assert upload["meta"]["tags"] == [created["tag"], "candidate"]
    assert upload["command"].endswith("/api/v1/runs")
    assert created["plan"]["sizing"]["spread_from"] == "default"


def test_a_users_own_idea_is_planned_by_its_knobs(client: TestClient, engine: Engine) -> None:
    created = planned(
        client, make_baseline(engine), knobs={"recompute_modules": ["moe_act"]}, title="Less recomputation"
    )
    assert (created["title"], created["rule"]) == ("Less recomputation", "")
    assert created["knobs"][0]["after"] == ["moe_act"]


def test_what_cannot_be_planned_is_a_problem(client: TestClient, engine: Engine) -> None:
    run = make_baseline(engine)
    body = {"run": run, "author": "mara"}
    assert_problem(client.post(API, json=body), 422, "rule", field="rule")
    assert_problem(client.post(API, json=body | {"rule": "no-such-rule"}), 404, "no-such-rule")
    assert_problem(client.post(API, json=body | {"run": run + 99, "rule": "eo-enable"}), 404)
    assert_problem(client.post(API, json=body | {"knobs": {"seq_len": 1}}), 422, field="knobs.seq_len")
    assert_problem(client.post(API, json=body | {"rule": "eo-enable", "unknown": 1}), 422, field="unknown")
    assert_problem(client.get(f"{API}/99"), 404)
    assert_problem(client.get(f"{API}?state=nonsense"), 422, field="state")


def test_the_list_has_filters(client: TestClient, engine: Engine, done: int) -> None:
    other = plan(engine, read(engine, done).baseline_run_id, knobs={"dispatcher": "deepep"})

    def ids(query: str) -> list[int]:
        return [item["id"] for item in client.get(f"{API}?{query}").json()["items"]]

    assert ids("") == [other, done]
    assert ids("state=done") == [done]
    assert ids("rule=eo-enable") == [done]
    assert ids(f"project={PROJECT}&page_size=1&page=2") == [done]
    assert ids("project=another") == []
    assert ids(f"run={read(engine, done).side('candidate')[0].run_id}") == [done]
    assert client.get(f"{API}?state=done").json()["states"] == {"done": 1, "planned": 1}


def test_the_list_is_a_table_too(client: TestClient, engine: Engine, done: int) -> None:
    parquet = client.get(API, params={"format": "parquet", "project": PROJECT})
    (row,) = pyarrow.parquet.read_table(io.BytesIO(parquet.content)).to_pylist()
    (text,) = csv.DictReader(io.StringIO(client.get(API, headers={"Accept": "text/csv"}).text))
    assert (row["id"], int(text["id"])) == (done, done)
    assert "ep_overlap: " in row["knobs"]
    gain = client.get(f"{API}/{done}").json()["result"]["gain"]
    assert (row["gain_pct"], row["winner"]) == (gain["pct"], "candidate")
    assert client.get(API, params={"format": "csv", "state": "rejected"}).text.count("\n") == 1
    assert client.get(API, params={"format": "xlsx"}).status_code == 422


def test_the_result_is_an_ab_with_interval_and_evidence(client: TestClient, done: int) -> None:
    result = client.get(f"{API}/{done}").json()["result"]
    assert (result["finished"], result["winner"], result["decision"]) == (True, "candidate", "improvement")
    assert result["gain"]["low_pct"] < result["gain"]["pct"] < result["gain"]["high_pct"]
    assert result["gain"]["pct"] == pytest.approx(25.1, abs=0.2)
    assert result["attributed_to"] == "ep_overlap"
    assert result["evidence_level"] == "matched_ab"
    assert result["metrics"]["step_time_ms"]["delta_pct"] == pytest.approx(-20.0, abs=0.2)
    assert (len(result["baseline"]), len(result["candidate"])) == (2, 2)


def test_the_rules_about_two_runs_speak_of_the_runs_of_an_experiment(client: TestClient, baseline_slow: int) -> None:
    rules = {row["rule"]: row["why"] for row in client.get(f"{API}/{baseline_slow}").json()["rules"]}
    assert "% slower than" in rules["val-regression"]
    page = client.get(f"/experiments/{baseline_slow}").text
    assert 'href="/playbook/val-regression"' in page


def test_the_warning_of_short_runs_quotes_the_shortest(client: TestClient, engine: Engine) -> None:
    make_history(engine)
    experiment = plan(engine, make_baseline(engine), runs_each=2)
    tag = read(engine, experiment).tag
    add_runs(engine, tag, [25_000.0], iterations=20)
    add_runs(engine, tag, [25_050.0], iterations=40)
    add_runs(engine, tag, [31_280.0], side="baseline", iterations=45)
    rules = {row["rule"]: row["why"] for row in client.get(f"{API}/{experiment}").json()["rules"]}
    assert " of 20 iterations." in rules["val-screen"]


def test_accepting_leads_to_the_next_steps_of_the_winner(client: TestClient, engine: Engine, done: int) -> None:
    answer = client.patch(f"{API}/{done}", json={"author": "kai", "state": "accepted", "note": "into the recipe"})
    body = answer.json()
    winner = read(engine, done).side("candidate")[-1].run_id
    assert (body["state"], body["decided_by"], body["winner_run"]) == ("accepted", "kai", winner)
    assert body["next_url"].endswith(f"/runs/{winner}/next")
    assert_problem(client.patch(f"{API}/{done}", json={"author": "kai", "state": "rejected", "note": "no"}), 422)
    with read_session(engine) as session:
        events = audit.events(session, "experiment", done)
    assert [(event.action, event.who) for event in events] == [("accepted", "kai"), ("plan", "mara")]


def test_rejecting_needs_a_note(client: TestClient, engine: Engine, done: int) -> None:
    assert_problem(client.patch(f"{API}/{done}", json={"author": "kai", "state": "rejected"}), 422, field="note")
    body = client.patch(f"{API}/{done}", json={"author": "kai", "state": "rejected", "note": "too much memory"}).json()
    assert (body["state"], body["winner_run"]) == ("rejected", read(engine, done).side("baseline")[-1].run_id)


def test_what_has_no_candidate_cannot_be_accepted_but_withdrawn(client: TestClient, engine: Engine) -> None:
    created = planned(client, make_baseline(engine))
    address = f"{API}/{created['id']}"
    assert_problem(client.patch(address, json={"author": "kai", "state": "accepted", "note": "sure"}), 422)
    assert client.patch(address, json={"author": "kai", "state": "withdrawn"}).json()["state"] == "withdrawn"
    add_runs(engine, created["tag"], [25_000.0])
    assert len(client.get(address).json()["runs"]) == 1


def test_more_runs_ask_for_more_certainty(client: TestClient, engine: Engine, done: int) -> None:
    body = client.patch(f"{API}/{done}", json={"author": "kai", "runs_each": 4}).json()
    assert (body["runs_each"], len(body["sequence"])) == (4, 8)
    assert any("the test is stricter" in text for text in body["result"]["warnings"])
    assert_problem(client.patch(f"{API}/{done}", json={"author": "kai"}), 422, field="state")
    assert_problem(client.patch(f"{API}/{done}", json={"author": "kai", "runs_each": 99}), 422, field="runs_each")


def test_a_journey_is_a_tree_that_goes_on_from_the_winner(client: TestClient, engine: Engine, done: int) -> None:
    first = read(engine, done)
    plan(engine, first.baseline_run_id, knobs={"dispatcher": "deepep"})
    client.patch(f"{API}/{done}", json={"author": "kai", "state": "accepted"})
    winner = read(engine, done).winner_run_id
    assert winner is not None
    following = planned(client, winner, knobs={"recompute_modules": ["moe_act"]})
    assert following["parent"] == done
    for run in (first.baseline_run_id, winner):
        tree = client.get(f"/api/v1/journeys/{run}").json()
        assert [node["depth"] for node in tree["nodes"]] == [0, 1, 2, 1]
        assert [node["mark"] for node in tree["nodes"]] == ["root", "current", "", ""]
        assert tree["current_run"] == winner
        counted = (first.result.baseline, first.result.candidate)
        assert [node["runs"] for node in tree["nodes"][:2]] == [sorted(map(int, side)) for side in counted]
        assert [node["run_id"] for node in tree["nodes"][:2]] == [max(map(int, side)) for side in counted]
        assert [(edge["source"], edge["target"]) for edge in tree["edges"]][:2] == [
            ("root", f"experiment-{done}"),
            (f"experiment-{done}", f"experiment-{following['id']}"),
        ]
    text = client.get(f"/api/v1/journeys/{winner}?format=mermaid").text
    assert text.startswith("flowchart TD\n")
    assert "ep_overlap = on: 20.0" in text
    assert client.get(f"/api/v1/journeys/{winner}?format=dot").text.startswith("digraph journey {")
    assert_problem(client.get("/api/v1/journeys/9999"), 404)


def test_a_run_without_experiments_is_a_journey_of_one(client: TestClient, engine: Engine) -> None:
    run = make_baseline(engine)
    tree = client.get(f"/api/v1/journeys/{run}").json()
    assert ([node["run_id"] for node in tree["nodes"]], tree["edges"], tree["current_run"]) == ([run], [], run)


# --- The content of a plan: the knob, the candidate's key, the number and order of runs, and commands to paste.


def test_a_plan_from_a_suggestion_turns_its_one_knob(engine: Engine) -> None:
    make_history(engine)
    run = make_baseline(engine)
    experiment = read(engine, plan(engine, run))
    assert (experiment.state, experiment.rule_id, experiment.project, experiment.created_by) == (
        "planned",
        "eo-enable",
        PROJECT,
        "mara",
    )
    assert [(knob.field, knob.before, knob.after) for knob in experiment.knobs] == [("ep_overlap", False, True)]
    assert experiment.tag == f"exp-eo-enable-{run}"
    assert [(run.run_id, run.side, run.joined_by, run.counts) for run in experiment.runs] == [
        (run, "baseline", "plan", True)
    ]
    sides = list(experiment.sequence)
    assert sides[:4] == ["baseline", "candidate", "candidate", "baseline"][: len(sides)]
    assert sides.count("baseline") == sides.count("candidate") == experiment.runs_each
    assert experiment.plan.verify
    assert ("container", "nvcr.io/nvidia/nemo:26.06") in experiment.plan.hold
    with read_session(engine) as session:
        assert [event.action for event in audit.events(session, "experiment", experiment.id)] == ["plan"]


def test_the_candidates_key_is_that_of_the_run_that_follows_the_plan(engine: Engine) -> None:
    experiment = read(engine, plan(engine, make_baseline(engine)))
    (run,) = add_runs(engine, "no tag of ours", [31_000.0], side="")
    (turned,) = add_runs(engine, "no tag of ours", [25_000.0])
    with read_session(engine) as session:
        assert session.get_one(RunRow, run).config_key == experiment.baseline_key
        assert session.get_one(RunRow, turned).config_key == experiment.candidate_key


def test_a_plan_begins_with_as_many_runs_as_detect_the_expected_effect(engine: Engine) -> None:
    run = make_baseline(engine)
    sizing = read(engine, plan(engine, run)).plan.sizing
    assert (sizing.effect_pct, sizing.needed, sizing.runs_each) == (24.1, 1, 2)  # 41.25 -> 31.31 s here
    assert sizing.gpu_hours == pytest.approx(4 * 50 * 31.3 * 16 / 3600, rel=0.01)
    idea = read(engine, plan(engine, run, knobs={"manual_gc": True})).plan.sizing
    assert (idea.effect_pct, idea.runs_each) == (2.0, 10)


def test_the_spread_is_that_of_the_series_where_it_is_known(engine: Engine) -> None:
    run = make_baseline(engine)
    sizing = read(engine, plan(engine, run, effect_pct=2.0)).plan.sizing
    assert (sizing.spread_from, sizing.spread_runs, sizing.spread_pct) == ("default", 0, pytest.approx(1.5))
    make_history(engine)
    with_effect = read(engine, plan(engine, run, effect_pct=2.0)).plan.sizing
    assert (with_effect.spread_from, with_effect.spread_runs) == ("series", 8)
    assert with_effect.spread_pct < 1
    assert with_effect.runs_each < sizing.runs_each
    assert round(with_effect.smallest_pct, 1) <= with_effect.effect_pct == 2


def test_what_to_paste_is_the_runs_own_command_with_and_without_the_change(engine: Engine) -> None:
    experiment = read(engine, plan(engine, make_baseline(engine)))
    (commands,) = (command for command in experiment.plan.change.commands if command.trainer == "Megatron-LM")
    assert commands.diff == ("+ --overlap-moe-expert-parallel-comm",)
    assert "--overlap-moe-expert-parallel-comm" in commands.candidate
    assert "--overlap-moe-expert-parallel-comm" not in commands.baseline
    assert "0123456789abcdef" not in commands.baseline + commands.candidate
    meta = tagged(experiment.plan.meta["candidate"], experiment.tag, "candidate")
    assert meta["tags"] == [experiment.tag, "candidate"]
    assert (meta["purpose"], meta["project"], meta["gpu"]) == ("experiment", PROJECT, "H100")
    words = shlex.split(upload_command(meta, "http://here"))
    assert words[-1] == "http://here/api/v1/runs"
    assert json.loads(words[words.index("-F", 4) + 1].removeprefix("meta=")) == meta


def test_a_users_own_idea_needs_no_rule(engine: Engine) -> None:
    experiment = read(engine, plan(engine, make_baseline(engine), knobs={"ep_overlap": "true", "dispatcher": "deepep"}))
    assert {knob.field: (knob.before, knob.after) for knob in experiment.knobs} == {
        "ep_overlap": (False, True),
        "dispatcher": ("alltoall", "deepep"),
    }
    assert experiment.title == "ep_overlap: off to on, dispatcher: alltoall to deepep"
    assert any("cannot be attributed" in text for text in experiment.plan.warnings)
    assert "--moe-flex-dispatcher-backend deepep" in experiment.plan.change.commands[0].add


@pytest.mark.parametrize(
    ("knobs", "field"),
    [
        ({"no_such_field": 1}, "knobs.no_such_field"),
        ({"ep_overlap": "perhaps"}, "knobs.ep_overlap"),
        ({"seq_len": 8192}, "knobs.seq_len"),
        ({"gpus": 32}, "knobs.gpus"),
        ({"ep_overlap": False}, "knobs"),
    ],
)
def test_a_field_that_is_not_a_knob_is_refused_by_name(engine: Engine, knobs: dict[str, object], field: str) -> None:
    run = make_baseline(engine)
    with pytest.raises(InvalidChange) as refused:
        plan(engine, run, knobs=knobs)
    assert field in [error.field for error in refused.value.errors]


def test_an_unknown_or_silent_rule_plans_nothing(engine: Engine) -> None:
    run = make_baseline(engine)
    with pytest.raises(NotFound):
        plan(engine, run, "no-such-rule")
    with pytest.raises(InvalidChange, match="does not fire"):
        plan(engine, make_baseline(engine, 31_311.0, fields={"ep_overlap": True}))
    quarantined = make_baseline(engine, 31_312.0, quarantine="a bad node")
    with pytest.raises(InvalidChange, match="quarantined"):
        plan(engine, quarantined)


def test_tags_are_unique_in_a_project(engine: Engine) -> None:
    run = make_baseline(engine)
    first, second = (read(engine, plan(engine, run)) for _ in range(2))
    assert second.tag == f"{first.tag}-2"


def test_a_person_may_choose_the_number_of_runs_or_the_effect(engine: Engine) -> None:
    run = make_baseline(engine)
    assert read(engine, plan(engine, run, runs_each=3)).runs_each == 3
    large = read(engine, plan(engine, run, effect_pct=10.0))
    assert (large.runs_each, large.plan.sizing.needed) == (2, 2)
    for wrong in ({"runs_each": 21}, {"effect_pct": 0.5}):
        with pytest.raises(InvalidChange):
            plan(engine, run, **wrong)


# --- Sweeps: several values of one knob, halved after each round.


def sweep(client: TestClient, run: int, **body: Any) -> dict[str, Any]:
    sent = {"run": run, "field": "mbs", "values": [1, 4, 8], "runs_each": 2, "author": "mara"} | body
    answer = client.post("/api/v1/sweeps", json=sent)
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"{API}/{document['id']}/sweep"
    return document


def upload_values(engine: Engine, experiment: dict[str, Any], **ms: float) -> None:
    """Add a run of each named value: `mbs_4=25_000`."""
    tags = {trial["value"]: trial["tag"] for trial in experiment["trials"]}
    for name, time in ms.items():
        value = name.removeprefix("mbs_")
        add_runs(engine, tags[value], [time], fields={"mbs": int(value)})


def test_a_sweep_halves_its_values_and_confirms_the_last_one(client: TestClient, engine: Engine) -> None:
    make_history(engine)
    created = sweep(client, make_baseline(engine))
    address = f"{API}/{created['id']}/sweep"
    assert [(item["values"], item["runs_each"]) for item in created["rounds"]] == [(3, 1), (2, 2), (1, 2)]
    assert (created["may_go_on"], {trial["place"] for trial in created["trials"]}) == (False, {"needs 1 more"})
    assert_problem(client.patch(address, json={"author": "mara"}), 422, field="state")
    upload_values(engine, created, mbs_1=31_000.0, mbs_4=25_000.0, mbs_8=27_000.0)
    now = client.get(address).json()
    assert (now["may_go_on"], now["keep"], now["drop"]) == (True, ["4", "8"], ["1"])
    second = client.patch(address, json={"author": "mara"}).json()
    assert (second["round"], second["may_go_on"]) == (2, False)
    assert {trial["value"]: trial["state"] for trial in second["trials"]}["1"] == "rejected"
    assert {trial["value"]: trial["planned"] for trial in second["trials"]} == {"4": 2, "8": 2, "1": 1}
    upload_values(engine, created, mbs_4=25_050.0, mbs_8=27_050.0)
    last = client.patch(address, json={"author": "mara"}).json()
    assert (last["round"], last["may_go_on"], last["drop"]) == (3, False, [])
    best = next(trial for trial in last["trials"] if trial["value"] == "4")
    add_runs(engine, best["tag"], [31_280.0], side="baseline")
    result = client.get(f"{API}/{best['experiment']}").json()
    assert (result["result"]["winner"], result["sweep"]) == ("candidate", created["id"])
    client.patch(f"{API}/{best['experiment']}", json={"author": "mara", "state": "accepted"})
    assert client.get(address).json()["sentence"].startswith("4 was accepted, 20.0\u202f% faster")


def test_the_value_that_the_run_has_needs_no_trial(client: TestClient, engine: Engine) -> None:
    created = sweep(client, make_baseline(engine), values=[1, 2, 4])
    assert {trial["value"] for trial in created["trials"]} == {"1", "4"}


def test_a_sweep_refuses_invalid_values(client: TestClient, engine: Engine) -> None:
    run = make_baseline(engine)
    body = {"run": run, "field": "mbs", "author": "mara"}
    assert_problem(client.post("/api/v1/sweeps", json=body | {"values": [4]}), 422, field="values")
    assert_problem(client.post("/api/v1/sweeps", json=body | {"values": [4, "many"]}), 422, field="knobs.mbs")
    assert_problem(client.post("/api/v1/sweeps", json=body | {"values": [2, "2"]}), 422, field="values")
    assert_problem(client.get(f"{API}/{plan(engine, run)}/sweep"), 404, "does not begin a sweep")


def test_a_knob_without_effect_is_refused(client: TestClient, engine: Engine) -> None:
    alltoall: Fields = {"dispatcher_type": "alltoall", "flex_backend": None, "dispatch_sms": None}
    run = make_baseline(engine, fields={**alltoall, "dispatcher": ...})
    body = {"run": run, "author": "mara"}
    sweep = {**body, "field": "dispatch_sms", "values": [16, 24, 32]}
    assert_problem(client.post("/api/v1/sweeps", json=sweep), 422, "dispatcher is alltoall", field="knobs.dispatch_sms")
    single = {**body, "knobs": {"dispatch_sms": 24}}
    assert_problem(client.post(API, json=single), 422, "dispatcher is alltoall", field="knobs.dispatch_sms")
    page = client.get(f"/runs/{run}/sweeps/new?field=dispatch_sms&values=16,24,32").text
    assert 'class="error" id="d-values"' in page
    together = {**body, "knobs": {"dispatcher": "hybridep", "dispatch_sms": 24}}
    assert client.post(API, json=together).status_code == 201


def test_the_form_of_a_sweep_opens_with_a_knob_and_values_that_start(client: TestClient, engine: Engine) -> None:
    run = make_baseline(engine)
    form = f"/runs/{run}/sweeps/new"
    opened = client.get(form).text
    assert re.search(r'<option value="\w+" selected>', opened)
    (values,) = re.findall(r'name="values"[^>]*\svalue="([^"]+)"', opened)
    assert len(values.split(", ")) >= 2
    assert "data-cost" in opened
    unfinished = client.get(f"{form}?values=1,2").text
    assert 'value="1,2"' in unfinished
    assert "data-cost" not in unfinished, "values without a knob stay as they are"
    choice = client.get(f"{form}?field=dispatcher").text
    assert 'value="dispatcher" selected' in choice
    assert "data-cost" in choice
    unknown = client.get(f"{form}?field=mbz&values=1,2").text
    assert "is not a knob" in unknown
    assert "data-cost" not in unknown


def test_the_pages_show_the_cost_before_a_sweep_is_planned_and_go_on_by_form(
    client: TestClient, engine: Engine
) -> None:
    make_history(engine)
    run = make_baseline(engine)
    page = client.get(f"/runs/{run}/sweeps/new?field=mbs&values=1,4,8&runs_each=2").text
    assert "at most 6 runs" in page
    assert "GPU-hours" in page
    refused = client.post(f"/runs/{run}/sweeps", data={"field": "mbs", "values": "1", "author": "mara"})
    assert (refused.status_code, "2 to 12 different values" in refused.text) == (422, True)
    sent = {"field": "mbs", "values": "1, 4, 8", "runs_each": "2", "author": "mara"}
    answer = client.post(f"/runs/{run}/sweeps", data=sent, follow_redirects=False)
    address = answer.headers["location"]
    sweep_id = int(address.split("/")[2])
    upload_values(engine, client.get(f"{API}/{sweep_id}/sweep").json(), mbs_1=31_000.0, mbs_4=25_000.0, mbs_8=27_000.0)
    assert "more runs of 4, 8" in client.get(address).text
    assert client.post(address, data={}).status_code == 422
    assert client.post(address, data={"author": "mara"}, follow_redirects=False).status_code == 303
    assert f'href="/experiments/{sweep_id}/sweep"' in client.get(f"/experiments/{sweep_id}").text
