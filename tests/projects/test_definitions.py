"""The page and the API of the definitions: progress, and what stays behind."""

from typing import Any

from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS, VERDICT_RULES
from app.storage.database import transaction
from tests.builders import make_run

CURRENT: dict[str, Any] = {"definition_version": DEFINITION_VERSION, "definitions": DEFINITIONS}
OLD: dict[str, Any] = {"definition_version": DEFINITION_VERSION - 1, "definitions": DEFINITIONS | {"flops": 1}}


def runs(engine: Engine, *columns: dict[str, Any]) -> list[int]:
    with transaction(engine) as session:
        return [make_run(session, name=f"run {number}", **one) for number, one in enumerate(columns)]


def test_an_empty_service_says_so(client: TestClient) -> None:
    assert "No run has been computed yet." in client.get("/settings/definitions").text


def test_the_api_counts_runs_by_their_figures(client: TestClient, engine: Engine) -> None:
    ids = runs(engine, CURRENT, OLD, OLD | {"recompute_failed": DEFINITION_VERSION, "recompute_error": "It broke."})
    body = client.get("/api/v1/definitions").json()
    assert {name: body["runs"][name] for name in ("total", "done", "waiting", "failed")} == {
        "total": 3,
        "done": 1,
        "waiting": 1,
        "failed": 1,
    }
    assert (body["definitions"], body["verdict_rules"]) == (DEFINITIONS, VERDICT_RULES)
    assert [(one["run_id"], one["reason"]) for one in body["failed_runs"]] == [(ids[2], "It broke.")]
    assert 'threewalls_definitions_runs{state="waiting"} 1.0' in client.get("/metrics").text


def test_the_page_shows_progress_while_it_runs_and_asks_again(client: TestClient, engine: Engine) -> None:
    runs(engine, CURRENT, OLD)
    page = client.get("/settings/definitions").text
    assert "1 of 2 runs have figures of the current definitions, 1 to go." in page
    assert 'hx-trigger="every 3s"' in page
    part = client.get("/settings/definitions", headers={"HX-Request": "true"}).text
    assert part.lstrip().startswith('<div id="standing"')


def test_the_page_lists_what_stays_behind_and_tries_it_again(client: TestClient, engine: Engine) -> None:
    runs(engine, CURRENT, OLD | {"recompute_failed": DEFINITION_VERSION, "recompute_error": "<b>It broke.</b>"})
    page = client.get("/settings/definitions").text
    assert "1 run could not be recomputed; all others are up to date." in page
    assert "&lt;b&gt;It broke.&lt;/b&gt;" in page
    assert f"flops 1 -&gt; {DEFINITIONS['flops']}" in page
    assert "hx-trigger" not in page
    client.post("/settings/definitions/retry")
    assert client.get("/api/v1/definitions").json()["runs"]["waiting"] == 1


def test_the_page_of_a_service_that_is_up_to_date_says_so(client: TestClient, engine: Engine) -> None:
    runs(engine, CURRENT, CURRENT)
    page = client.get("/settings/definitions").text
    assert "All figures and verdicts follow the current definitions (2 runs)." in page
