"""A token that may change things and read none reads none by changing them."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from app.domain.references.published import published
from app.references.commands import stated_values
from app.storage.database import transaction
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, Teams
from tests.runs.uploading import LOG, assert_problem, upload


@pytest.fixture
def ours(teams: Teams) -> Belongings:
    with transaction(teams.engine) as session:
        return make_belongings(session, OURS)


@pytest.fixture
def bot(teams: Teams) -> TestClient:
    return teams.client("token:triage")


def test_what_it_changes_is_done_and_nothing_of_it_is_told(teams: Teams, ours: Belongings, bot: TestClient) -> None:
    run = f"/api/v1/runs/{ours.run}"
    for method, address, sent in (
        (
            "POST",
            f"{run}/release",
            {},
        ),  # nothing is done, which was enough to read a run
        ("POST", f"{run}/quarantine", {"note": "bad node"}),
        ("PATCH", f"{run}/contract", {"fields": {"cluster": "c1"}}),
        ("PATCH", f"/api/v1/regressions/{ours.regression}", {"note": "looks real"}),
    ):
        answer = bot.request(method, address, json=sent)
        assert (answer.status_code, answer.content, answer.headers.get("content-type")) == (204, b"", None), answer.text
    assert teams.client("viewer").get(run).json()["quarantine"]["by"] == "token token:triage"


def test_of_what_it_makes_it_hears_the_address(teams: Teams, ours: Belongings, bot: TestClient) -> None:
    said = stated_values(replace(published()[0], measured_by="a lab", source="a slide"))
    contract = dict(published()[0].contract)
    body = {"contract": contract, "project": OURS} | {k: v for k, v in said.items() if k not in contract}
    made = bot.post("/api/v1/references", json=body)
    assert (made.status_code, made.content) == (204, b""), made.text
    assert teams.client("viewer").get(made.headers["location"]).json()["measured_by"] == "a lab"


def test_a_refusal_tells_it_nothing_of_what_is_there(ours: Belongings, bot: TestClient, teams: Teams) -> None:
    address, stale = f"/api/v1/regressions/{ours.regression}", "2020-01-01T00:00:00Z"
    change = {"note": "seen", "changed_at": stale}
    told = teams.client("contributor").patch(address, json=change)
    assert (told.status_code, "changed" in told.json()["detail"]) == (409, True)
    answer = bot.patch(address, json=change)
    assert_problem(answer, 409, "the scope read besides")
    assert set(answer.json()) == {"type", "title", "status", "detail", "errors"}
    assert answer.json()["errors"] == []


@pytest.mark.parametrize("who", ["token:triage", "token:upload", "token:all"])
def test_no_token_uses_pages(teams: Teams, ours: Belongings, who: str) -> None:
    job = teams.client(who)
    for method, address in (
        ("POST", f"/runs/{ours.run}/quarantine"), ("POST", "/regressions"), ("POST", f"/history/{ours.stack}/unpin"),
        ("GET", f"/runs/{ours.run}/experiments/new"), ("GET", f"/runs/{ours.run}"), ("POST", "/upload"),
    ):  # fmt: skip
        answer = job.request(method, address)
        assert_problem(answer, 403, "/api/v1")
    assert (f"{OURS}-lab" in job.get("/references.csv").text) == (who == "token:all")  # a table is for programs, too


def test_what_a_contributor_reads_it_does_not(ours: Belongings, bot: TestClient) -> None:
    for what in ("receivers", f"receivers/{ours.receiver}", "deliveries"):
        assert_problem(bot.get(f"/api/v1/projects/{OURS}/{what}"), 403, "needs read")


def test_it_guesses_no_log_by_adding_to_it(teams: Teams, bot: TestClient) -> None:
    for meta in ({}, {"complete": False}):
        run = upload(teams.client("contributor"), LOG, meta=meta | {"name": str(meta)}).json()["id"]
        for piece in (LOG[:1], b"\x00"):
            assert_problem(bot.post(f"/api/v1/runs/{run}/logs?offset=0", content=piece), 403, "needs read")
