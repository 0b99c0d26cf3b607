"""The claim check at the public door: the nearest published figure to a run and to the head of a stack."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.testclient import TestClient

from app.domain.numbers import THIN
from app.storage.tables import RunRow
from tests.builders import make_run, make_stack
from tests.references.test_references import OWN, add
from tests.runs.uploading import assert_problem

RECORD = {"mbs": 1, "dispatcher": "hybridep", "task": "pretrain"}
NOISE = (0.0, 2.0, -2.0, 1.0, -1.0, 3.0)


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine.execution_options(writes=True), expire_on_commit=False) as session:
        yield session


def nearest(client: TestClient, **query: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/references/nearest", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def stack(session: Session, ms: float, **fields: Any) -> list[int]:
    made = make_stack(session, [ms * (1 + change / 1000) for change in NOISE], fields=fields)
    session.commit()
    return made


def test_a_run_is_held_against_the_nearest_figure(client: TestClient, session: Session) -> None:
    run = stack(session, 21_846.0, **RECORD)[-1]
    found = nearest(client, run=run)
    assert (found["reference"]["step_time_ms"], found["reference"]["date"]) == (20147.29, "2026-07-27")
    assert found["reference"]["label"] == "another lab's measurement"
    assert found["more_pct"]["step_time_ms"] == pytest.approx(8.7, abs=0.5)
    assert "another lab's measurement (NVIDIA" in found["summary"]
    assert found["summary"].endswith("no known field differs.")
    assert {one["field"] for one in found["differences"]} == {"etp", "ep_overlap"}
    assert not any(one["known"] for one in found["differences"])
    assert any("a mean over iterations 41 to 50" in cause["sentence"] for cause in found["causes"])


def test_a_stack_is_held_against_it_by_its_fastest_result(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0, mbs=1)
    fast = stack(session, 25_000.0, mbs=1, ep_overlap=True)
    key = session.get_one(RunRow, fast[0]).stack_key
    found = nearest(client, stack=key)
    assert found["ours"]["run_id"] == fast[-1]
    assert found["ours"]["dispatcher"] == "alltoall"
    assert found["ours"]["step_time_ms"] == pytest.approx(25_000, rel=0.01)
    page = client.get(f"/references/nearest?stack={key}").text
    assert "alltoall, the fastest result of the stack" in page


def test_the_figure_of_a_team_is_taken_when_it_is_nearer_and_only_then(client: TestClient, session: Session) -> None:
    run = stack(session, 21_846.0, **RECORD, cluster="west")[-1]
    told = {**RECORD, "seq_len": 4096, "gbs": 1024, "ep": 16, "tp": 1, "pp": 1, "cp": 1, "etp": 1, "ep_overlap": False}
    told |= {"routing_mode": "forced-balance", "data_mode": "mock", "container": "nvcr.io/nvidia/nemo:26.06"}
    contract = OWN["contract"] | told
    number = add(client, contract=contract)["id"]
    found = nearest(client, run=run)
    assert (found["reference"]["id"], found["differences"]) == (number, [])
    assert "entered by hand" in found["summary"]
    client.delete(f"/api/v1/references/{number}", params={"author": "Ada"})
    assert nearest(client, run=run)["reference"]["id"] != number


def test_another_model_has_no_figure_and_the_page_offers_to_add_one(client: TestClient, session: Session) -> None:
    run = stack(session, 900.0, model="Our-MoE", gpu="A100")[0]
    found = nearest(client, run=run)
    assert (found["reference"], found["differences"], found["causes"]) == (None, [], [])
    assert found["summary"] == "No published figure for Our-MoE on A100 is known."
    assert "/references/new?model=Our-MoE&amp;gpu=A100" in client.get(f"/references/nearest?run={run}").text


def test_what_nobody_states_is_said(client: TestClient, session: Session) -> None:
    run = make_run(session, contract={}, model=None, gpu=None)
    session.commit()
    assert nearest(client, run=run)["summary"].startswith("The model and GPU of this result are unknown")
    assert f'href="/runs/{run}#supply"' in client.get(f"/references/nearest?run={run}").text


def test_the_run_page_asks_for_it_when_it_is_seen_and_links_it_without_script(
    client: TestClient, session: Session
) -> None:
    run = stack(session, 21_846.0, **RECORD)[0]
    page = client.get(f"/runs/{run}").text
    assert f'hx-get="/references/nearest?run={run}" hx-trigger="revealed"' in page
    assert f'<a href="/references/nearest?run={run}">' in page
    part = client.get(f"/references/nearest?run={run}", headers={"HX-Request": "true"}).text
    assert part.lstrip().startswith('<div class="reference"')
    assert f"{THIN}%" in part
    assert "Possible causes of the gap" in part


def test_a_wrong_question_is_refused(client: TestClient, session: Session) -> None:
    assert_problem(client.get("/api/v1/references/nearest"), 422, field="run")
    assert_problem(client.get("/api/v1/references/nearest?run=1&stack=x"), 422, field="run")
    assert_problem(client.get("/api/v1/references/nearest?run=12345"), 404, "Run 12345 does not exist")
    assert_problem(client.get("/api/v1/references/nearest?stack=nothing"), 422, field="stack")
    assert_problem(client.get("/api/v1/references/nearest?stack=abcdef012345"), 404, "No stack with the key")


def test_a_figure_of_the_very_job_wins_whatever_it_leaves_open_and_says_to_what_it_is_nearest(
    client: TestClient, session: Session
) -> None:
    """Of NVIDIA's card container and micro-batch differ; the team states both, and no layout."""
    stack(session, 21_846.0, dispatcher="hybridep", mbs=2, container="ours:1")
    told = {"seq_len": 4096, "gbs": 1024, "mbs": 2, "container": "ours:1", "routing_mode": "forced-balance"}
    number = add(client, contract=OWN["contract"] | told | {"dispatcher": "hybridep"})["id"]
    key = client.get("/api/v1/leaderboards").json()["items"][0]["stack_key"]
    assert nearest(client, stack=key[:12])["reference"]["id"] == number
    page = client.get(f"/references/{number}?saved=add").text
    assert "Added. It is the nearest published figure to the only stack of this model on this GPU." in page
    other = add(client, contract=OWN["contract"] | told | {"dispatcher": "hybridep", "container": "other:2"})["id"]
    page = client.get(f"/references/{other}").text
    assert "it differs in <code>container</code>, the nearest in nothing" in page


def test_what_is_wrong_with_a_figure_is_told_at_once_and_where_it_belongs(client: TestClient) -> None:
    wrong = client.post("/api/v1/references", json={}).json()["errors"]
    assert {"author", "source", "contract.model"} <= {one["field"] for one in wrong}
    misplaced = client.post("/api/v1/references", json={"author": "Ada", "gpu": "H100"})
    assert "put it into `contract`" in misplaced.json()["errors"][0]["message"]
    built_in = client.get("/api/v1/references?kind=guide").json()["items"][0]["id"]
    gone = client.delete(f"/api/v1/references/{built_in}", params={"author": "Ada"})
    assert_problem(gone, 422, "Built-in figures")
