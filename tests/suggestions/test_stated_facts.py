"""Facts that people state of a run that is there already: by form and API, recorded, used, taken back."""

from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.storage.database import transaction
from app.storage.tables import RunRow
from tests.runs.uploading import assert_problem
from tests.suggestions.advised import make_advised

PROFILE = {"exposed_comm_frac": 0.3, "gpu_idle_frac": 0.05}


@pytest.fixture
def run(engine: Engine) -> int:
    with transaction(engine) as session:
        return make_advised(session)


def state(client: TestClient, run: int, facts: dict[str, Any], author: str = "Ada", note: str = "nsys") -> Any:
    return client.patch(f"/api/v1/runs/{run}/facts", json={"facts": facts, "author": author, "note": note})


def test_a_stated_profile_names_the_wall_and_stands_with_who_said_it(
    client: TestClient, engine: Engine, run: int
) -> None:
    with transaction(engine) as session:
        before = session.get_one(RunRow, run).stack_key, session.get_one(RunRow, run).config_key
    told = state(client, run, PROFILE).json()
    assert (told["wall"]["wall"], told["wall"]["certainty"]) == ("communication", "measured")
    assert {(one["name"], one["author"], one["note"]) for one in told["stated"]} == {
        ("exposed_comm_frac", "Ada", "nsys"),
        ("gpu_idle_frac", "Ada", "nsys"),
    }
    overlap = next(one for one in told["suggestions"] if one["rule"] == "eo-enable")
    assert {one["stated_by"] for one in overlap["facts"] if one["name"] == "exposed_comm_frac"} == {"Ada"}
    assert "stated by Ada on " in client.get(f"/runs/{run}/next/eo-enable").text
    assert "stated by Ada on " in client.get(f"/runs/{run}/next").text
    with transaction(engine) as session:
        row = session.get_one(RunRow, run)
        assert (row.stack_key, row.config_key, row.rules_asked) == (*before, "")


def test_the_newest_statement_counts_and_can_be_taken_back(client: TestClient, run: int) -> None:
    state(client, run, PROFILE)
    told = state(client, run, {"exposed_comm_frac": 0.01, "gpu_idle_frac": 0.4}, author="Grace").json()
    assert told["wall"]["wall"] == "host"
    told = state(client, run, {name: {"unset": True} for name in PROFILE}).json()
    assert (told["wall"]["certainty"], told["stated"]) == ("inferred", [])
    page = client.get(f"/runs/{run}/next").text
    assert "withdrawn" in page
    assert "Grace" in page
    refused = state(client, run, {"gpu_idle_frac": {"unset": True}})
    assert_problem(refused, 422)
    assert refused.json()["errors"][0]["field"] == "facts.gpu_idle_frac"


def test_nothing_is_kept_of_a_statement_with_a_mistake(client: TestClient, run: int) -> None:
    refused = state(client, run, {**PROFILE, "gpu_idle_frac": 40})
    assert_problem(refused, 422)
    assert [one["field"] for one in refused.json()["errors"]] == ["facts.gpu_idle_frac"]
    assert_problem(state(client, run, {}), 422)
    assert_problem(state(client, run, PROFILE, author=""), 422)
    assert_problem(state(client, 999, PROFILE), 404)
    assert client.get(f"/api/v1/runs/{run}/suggestions").json()["stated"] == []


def test_what_the_log_measured_counts_over_what_is_stated(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, health={"iterations": 50, "loss_finite": True})
    told = state(client, run, {"loss_finite": False}).json()
    assert told["stated"][0]["name"] == "loss_finite"
    assert (told["stated"][0]["value"], told["stated"][0]["in_use"]) == (False, True)
    assert "Overridden by the run's files: true." in client.get(f"/runs/{run}/next").text


def test_the_form_does_the_same_and_keeps_what_was_typed(client: TestClient, run: int) -> None:
    page = client.get(f"/runs/{run}/next?fact=sharp").text
    assert 'name="fact.exposed_comm_frac"' in page
    assert 'name="fact.sharp"' in page
    sent = {"fact.exposed_comm_frac": "30 %", "fact.gpu_idle_frac": "lots", "author": "Ada", "note": "<b>nsys</b>"}
    refused = client.post(f"/runs/{run}/facts", data=sent)
    assert refused.status_code == 422
    assert 'value="30 %"' in refused.text
    assert "must be a number" in refused.text
    answer = client.post(f"/runs/{run}/facts", data=sent | {"fact.gpu_idle_frac": "5%"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run}/next#stated")
    page = client.get(f"/runs/{run}/next").text
    assert "Limited by: communication" in page
    assert "<b>nsys" not in page


def test_few_facts_stand_open_and_each_would_decide_something(client: TestClient, run: int) -> None:
    told = client.get(f"/api/v1/runs/{run}/suggestions").json()
    opened = client.get(f"/runs/{run}/next").text.partition('id="more-missing"')[0].count('name="fact.')
    assert 0 < opened <= 8
    useful = [bool(one["decides"]) for one in told["missing"]]
    assert useful == sorted(useful, reverse=True)
    assert "loss_finite" not in {one["fact"] for one in told["missing"]}


def test_a_log_that_shows_nothing_overrules_no_stated_proof(client: TestClient, engine: Engine) -> None:
    flex: dict[str, Any] = {"dispatcher": "deepep", "dispatcher_type": "flex", "flex_backend": "deepep"}
    asked = {"dispatcher": {"requested": {"value": "deepep", "source": "arguments"}, "active": None, "agrees": None}}
    with transaction(engine) as session:
        run = make_advised(session, fields=flex, activity=asked)
    assert state(client, run, {"backend_proof": True}).json()["stated"][0]["in_use"] is True
