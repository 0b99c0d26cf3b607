"""Scopes of tokens nest: `upload` < `read` < `triage`. Tokens use the API, never pages."""

import pytest

from app.storage.database import transaction
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, Teams
from tests.runs.uploading import LOG, assert_problem, upload


@pytest.fixture
def ours(teams: Teams) -> Belongings:
    with transaction(teams.engine) as session:
        return make_belongings(session, OURS)


def test_read_includes_upload_and_triage_includes_both(teams: Teams, ours: Belongings) -> None:
    allowed = {}
    for who in ("token:upload", "token:read", "token:triage"):
        client, run = teams.client(who), f"/api/v1/runs/{ours.run}"
        answers = (
            upload(client, LOG, meta={"name": who}),
            client.get(run),
            client.post(f"{run}/quarantine", json={"note": f"bad node, says {who}"}),
        )
        allowed[who] = [answer.status_code < 300 for answer in answers]
    assert allowed == {
        "token:upload": [True, False, False],
        "token:read": [True, True, False],
        "token:triage": [True, True, True],
    }


def test_a_token_with_triage_reads_the_answer_to_its_change(teams: Teams, ours: Belongings) -> None:
    answer = teams.client("token:triage").patch(f"/api/v1/regressions/{ours.regression}", json={"note": "looks real"})
    assert (answer.status_code, answer.json()["id"]) == (200, ours.regression)


@pytest.mark.parametrize("who", ["token:upload", "token:read", "token:triage", "token:all"])
def test_no_token_uses_pages(teams: Teams, ours: Belongings, who: str) -> None:
    job = teams.client(who)
    for method, address in (
        ("POST", f"/runs/{ours.run}/quarantine"), ("POST", "/regressions"), ("POST", f"/history/{ours.stack}/unpin"),
        ("GET", f"/runs/{ours.run}/experiments/new"), ("GET", f"/runs/{ours.run}"), ("POST", "/upload"),
    ):  # fmt: skip
        answer = job.request(method, address)
        assert_problem(answer, 403, "/api/v1")
    # A table as CSV is for programs too.
    assert (f"{OURS}-lab" in job.get("/references.csv").text) == (who != "token:upload")


def test_receivers_and_their_deliveries_need_triage(teams: Teams, ours: Belongings) -> None:
    for path in ("receivers", f"receivers/{ours.receiver}", "deliveries"):
        address = f"/api/v1/projects/{OURS}/{path}"
        assert_problem(teams.client("token:read").get(address), 403, "needs triage")
        assert teams.client("token:triage").get(address).status_code == 200


def test_a_token_without_triage_guesses_no_log_by_adding_to_it(teams: Teams) -> None:
    for meta in ({}, {"complete": False}):
        run = upload(teams.client("contributor"), LOG, meta=meta | {"name": str(meta)}).json()["id"]
        for who in ("token:upload", "token:read"):
            for piece in (LOG[:1], b"\x00"):
                answer = teams.client(who).post(f"/api/v1/runs/{run}/logs?offset=0", content=piece)
                assert_problem(answer, 403, "needs triage")
