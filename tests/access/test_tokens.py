"""Tokens: scopes that nest, what an uploading token may do, whoami, who uploaded a run, the tokens of a project."""

import html
import re
import textwrap
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from sqlmodel import col
from starlette.testclient import TestClient

from app.access.members import PAGE_SIZE
from app.access.members_pages import CURL, DOWNLOAD, job_lines
from app.domain.access.principal import Scope
from app.settings import ROOT
from app.storage import audit, tokens
from app.storage.database import read_session, transaction
from app.storage.tables import RunRow, utc_now
from tests.access.belongings import Belongings
from tests.access.people import OURS, SCOPES, THEIRS, Teams
from tests.runs.uploading import LOG, assert_problem, upload
from workers.tasks import process_run

ADDRESS = f"/api/v1/projects/{OURS}/tokens"
PAGE = f"/settings/projects/{OURS}/tokens"


def test_a_token_is_shown_once_and_uploads_until_it_is_revoked(teams: Teams) -> None:
    maintainer, job = teams.client("maintainer"), teams.client("anonymous")
    answer = maintainer.post(ADDRESS, json={"name": "nightly CI"})
    body = answer.json()
    assert (answer.status_code, answer.headers["Cache-Control"]) == (201, "no-store")
    assert re.fullmatch(r"tw_[\w-]{43}", body["token"])
    assert body["scopes"] == ["upload"]
    year = datetime.fromisoformat(body["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=364) < year <= timedelta(days=365)

    job.headers["Authorization"] = f"Bearer {body['token']}"
    assert job.post("/api/v1/runs", files={"log": b"a line"}).status_code == 202
    listed = next(item for item in maintainer.get(ADDRESS).json()["items"] if item["id"] == body["id"])
    assert body["token"] not in maintainer.get(ADDRESS).text
    assert (listed["state"], listed["shown"]) == ("in force", body["token"][:10])
    assert listed["last_used_at"]
    assert listed["created_by"] == "maintainer"

    revoked = maintainer.delete(f"{ADDRESS}/{body['id']}").json()
    assert (revoked["state"], revoked["revoked_by"]) == ("revoked", "maintainer")
    assert job.post("/api/v1/runs", files={"log": b"a line"}).status_code == 401
    with read_session(teams.engine) as session:
        done = [(event.who, event.action) for event in audit.events(session, "token", body["id"])]
    assert done == [("maintainer", "revoked"), ("maintainer", "created")]


def test_invalid_fields_are_reported_and_nothing_is_created(teams: Teams) -> None:
    client = teams.client("maintainer")
    before = client.get(ADDRESS).json()
    for body in (
        {"name": ""},
        {"name": "a", "scopes": []},
        {"name": "a", "scopes": ["admin"]},
        {"name": "a", "expires_at": "2020-01-01T00:00:00Z"},
        {"name": "a", "expires_at": "2030-01-01T00:00:00"},
        {"name": "a", "project": THEIRS},
    ):
        answer = client.post(ADDRESS, json=body)
        assert (answer.status_code, len(answer.json()["errors"])) == (422, 1), body
    assert client.get(ADDRESS).json() == before
    assert client.post(ADDRESS, json={"name": "a", "expires_at": None}).json()["expires_at"] is None


def test_a_token_of_another_project_is_not_revoked_by_its_number(teams: Teams) -> None:
    theirs = teams.client("outsider").post(f"/api/v1/projects/{THEIRS}/tokens", json={"name": "t"}).json()
    for who in ("maintainer", "administrator"):
        assert teams.client(who).delete(f"{ADDRESS}/{theirs['id']}").status_code == 404
        assert teams.client(who).post(f"{PAGE}/{theirs['id']}/revoke").status_code == 404
    listed = teams.client("outsider").get(f"/api/v1/projects/{THEIRS}/tokens").json()["items"]
    assert [item["state"] for item in listed] == ["in force"]


def test_the_page_shows_the_token_once_with_the_lines_to_paste(teams: Teams) -> None:
    client = teams.client("maintainer")
    page = client.post(PAGE, data={"name": "<b>CI</b>", "scopes": ["upload", "read"], "life": "30"})
    assert page.headers["Cache-Control"] == "no-store"
    token = re.findall(r"tw_[\w-]{43}", page.text)
    assert len(token) == 1
    assert "threewalls upload train.log --wait" in page.text
    lines = html.unescape(page.text)
    assert f"THREEWALLS_PROJECT={OURS}\n{CURL}" in lines
    assert DOWNLOAD in lines
    again = client.post(
        PAGE, data={"name": "<b>CI</b>", "scopes": ["upload"], "life": "30"}
    )  # or the page loaded again
    assert (again.status_code, "&lt;b&gt;CI" in again.text) == (422, True)
    assert len(re.findall(r"tw_[\w-]{43}", again.text)) == 0
    assert "&lt;b&gt;CI&lt;/b&gt;" in page.text
    after = client.get(PAGE).text
    assert token[0] not in after
    assert f"<code>{token[0][:10]}…</code>" in after
    number = next(
        item["id"] for item in client.get(ADDRESS).json()["items"] if item["shown"] == token[0][:10]
    )  # fmt: skip
    assert client.post(f"{PAGE}/{number}/revoke").headers["Location"].endswith(PAGE)
    assert "revoked by maintainer" in client.get(PAGE).text
    reader = client.post(PAGE, data={"name": "<b>CI</b>", "scopes": ["read"], "life": "30"})  # the name is free again
    assert ("threewalls runs" in reader.text, "threewalls upload" in reader.text) == (True, True)


def test_the_lines_to_paste_are_those_of_the_documents() -> None:
    documents = (ROOT / "docs/ci.md").read_text()
    assert CURL in documents
    lines = job_lines("https://threewalls.example.org", "moe")
    for script in (textwrap.indent(lines.github, "      "), lines.gitlab):
        assert script.replace("upload train.log", "upload train.log --set gpu=H100 --set cluster=west") in documents
    for system, branch in lines.branches:
        assert f"| {system} | `{branch}` |" in documents


def test_the_form_says_what_is_missing(teams: Teams) -> None:
    page = teams.client("maintainer").post(PAGE, data={"name": " ", "life": "365"})
    assert page.status_code == 422
    assert "must have 1 to 100 characters" in page.text
    page = teams.client("maintainer").post(PAGE, data={"name": "CI", "life": "365"})
    assert (page.status_code, "upload, read and triage" in page.text) == (422, True)


def test_tokens_are_listed_page_by_page_those_in_force_first(teams: Teams) -> None:
    maintainer = teams.client("maintainer")
    token_ids = [
        maintainer.post(ADDRESS, json={"name": f"job {number}"}).json()["id"] for number in range(PAGE_SIZE + 1)
    ]
    maintainer.delete(f"{ADDRESS}/{token_ids[-1]}")
    first, second = (maintainer.get(ADDRESS, params={"page": page, "page_size": PAGE_SIZE}).json() for page in (1, 2))
    assert len(first["items"]) == PAGE_SIZE
    assert first["total"] == second["total"] == len(first["items"]) + len(second["items"])
    assert token_ids[-1] in [token["id"] for token in second["items"]]
    assert maintainer.get(ADDRESS, params={"page_size": 501}).status_code == 422
    assert maintainer.get(PAGE).text.count("<tr") == PAGE_SIZE + 1
    assert f'rel="next" href="{PAGE}?page=2"' in maintainer.get(PAGE).text
    assert f"job {PAGE_SIZE}" in maintainer.get(PAGE, params={"page": 2}).text


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


def test_a_token_without_triage_cannot_probe_a_log_by_appending(teams: Teams) -> None:
    for meta in ({}, {"complete": False}):
        run = upload(teams.client("contributor"), LOG, meta=meta | {"name": str(meta)}).json()["id"]
        for who in ("token:upload", "token:read"):
            for piece in (LOG[:1], b"\x00"):
                answer = teams.client(who).post(f"/api/v1/runs/{run}/logs?offset=0", content=piece)
                assert_problem(answer, 403, "needs triage")


CALL = "/api/v1/whoami"
INCLUDED = {
    "token:upload": ["upload"],
    "token:read": ["upload", "read"],
    "token:triage": ["upload", "read", "triage"],
    "token:all": ["upload", "read", "triage"],
}


@pytest.mark.parametrize("who", SCOPES)
def test_a_token_of_any_scope_reads_its_own_data(teams: Teams, who: str) -> None:
    body = teams.client(who).get(CALL).json()
    assert (body["kind"], body["project"]) == ("token", OURS)
    assert body["scopes"] == INCLUDED[who]
    assert body["expires_at"] is None


def test_a_token_reports_when_it_expires(teams: Teams) -> None:
    ends = utc_now() + timedelta(days=3)
    with transaction(teams.engine) as session:
        _, token = tokens.make_token(
            session, project_id=teams.ours, name="short", scopes=[Scope.UPLOAD], by="test", expires_at=ends
        )
    client = teams.client("anonymous")
    body = client.get(CALL, headers={"Authorization": f"Bearer {token}"}).json()
    assert body["expires_at"].startswith(ends.isoformat()[:19])
    assert token not in str(body)


def test_an_inactive_token_is_rejected(teams: Teams) -> None:
    answer = teams.client("anonymous").get(CALL, headers={"Authorization": "Bearer tw_" + "0" * 43})
    assert answer.status_code == 401


def test_users_and_anonymous_callers(teams: Teams) -> None:
    assert teams.client("viewer").get(CALL).json()["name"] == "viewer"
    assert teams.client("anonymous").get(CALL).json()["kind"] == "nobody"


def test_a_service_without_log_ins_takes_everyone(client: TestClient) -> None:
    assert client.get(CALL).json()["kind"] == "everyone"


MORE = b"hello there\n"
ANSWERS = ("report", "report.md", "verdict")


@pytest.fixture
def fork(teams: Teams) -> TestClient:
    """Another pipeline of the project, with its own upload-only token."""
    with transaction(teams.engine) as session:
        _, token = tokens.make_token(session, project_id=teams.ours, name="fork", scopes=[Scope.UPLOAD], by="test")
    client = teams.client("anonymous")
    client.headers["Authorization"] = f"Bearer {token}"
    return client


def append(client: TestClient, run: int, piece: bytes, **params: str | int) -> tuple[int, str]:
    answer = client.post(f"/api/v1/runs/{run}/logs", params=params, content=piece)
    return answer.status_code, answer.text


def later(teams: Teams, run: int, hours: float) -> None:
    """This long after its last update."""
    with transaction(teams.engine) as session:
        heard_at = utc_now() - timedelta(hours=hours)
        session.execute(update(RunRow).where(col(RunRow.id) == run).values(heard_at=heard_at))


def test_an_upload_token_cannot_change_a_finished_run(teams: Teams) -> None:
    job, reader = teams.client("token:upload"), teams.client("viewer")
    run = upload(job, LOG).json()["id"]
    before = reader.get(f"/api/v1/runs/{run}").json()
    for params, piece in (
        ({"name": "evil.log"}, MORE),
        ({"offset": len(LOG)}, MORE),
        ({"complete": "false"}, b""),
        ({"complete": "false"}, LOG),
    ):
        answer = job.post(f"/api/v1/runs/{run}/logs", params=params, content=piece)
        assert_problem(answer, 403, "finished run", "needs triage", "Nothing was saved")
    assert reader.get(f"/api/v1/runs/{run}").json() == before
    assert append(job, run, LOG)[0] == 200  # stored bytes may be sent again, because the answer may have been lost
    assert reader.get(f"/api/v1/runs/{run}").json() == before


def test_a_token_completes_a_run_that_it_started_and_continues_after_closing_it_too_early(teams: Teams) -> None:
    job = teams.client("token:upload")
    begun = upload(job, LOG, meta={"complete": False}).json()["id"]
    assert append(job, begun, MORE, offset=len(LOG))[0] == 200
    later(teams, begun, hours=2)
    assert append(job, begun, b"", complete="true")[0] == 200
    assert append(job, begun, MORE, offset=len(LOG) + len(MORE), complete="false")[0] == 200
    assert append(job, begun, b"", complete="true")[0] == 200
    later(teams, begun, hours=2)
    assert append(job, begun, b"", complete="true")[0] == 200
    assert append(job, begun, LOG)[0] == 200  # nothing new, so it does not extend the time
    assert append(job, begun, b"", complete="false")[0] == 403
    assert append(job, begun, MORE, offset=len(LOG) + 2 * len(MORE))[0] == 403
    assert append(job, begun, MORE, name="evil.log")[0] == 403


def test_tokens_of_a_project_are_limited_to_their_own_runs(teams: Teams, fork: TestClient) -> None:
    job, reader = teams.client("token:upload"), teams.client("viewer")
    others = [
        upload(job, LOG, meta={"complete": False}).json()["id"],
        upload(job, LOG, meta={"name": "whole"}).json()["id"],
        upload(teams.client("contributor"), LOG, meta={"name": "by hand", "complete": False}).json()["id"],
    ]
    before = [reader.get(f"/api/v1/runs/{run}").json() for run in others]
    for run in others:
        for params, piece in (
            ({"offset": len(LOG)}, MORE),
            ({"complete": "true"}, b""),
            ({"name": "evil.log"}, MORE),
            ({}, LOG),  # nor does it learn whether its guess of the log was right
            ({"offset": 2**53}, b""),
        ):
            answer = fork.post(f"/api/v1/runs/{run}/logs", params=params, content=piece)
            assert_problem(answer, 403, "token fork did not upload this run", "needs triage", "Nothing was saved")
        for what in ANSWERS:
            answer = fork.get(f"/api/v1/runs/{run}/{what}")
            assert_problem(answer, 403, "token fork did not upload this run", "needs read")
    assert [reader.get(f"/api/v1/runs/{run}").json() for run in others] == before


def test_a_job_can_read_the_result_of_its_own_run_and_nothing_else(teams: Teams, fork: TestClient) -> None:
    job = teams.client("token:upload")
    run = upload(job, LOG).json()["id"]
    process_run(run)
    assert job.get(f"/api/v1/runs/{run}/report").json()["run"]["id"] == str(run)
    assert {what: job.get(f"/api/v1/runs/{run}/{what}").status_code for what in ANSWERS} == dict.fromkeys(ANSWERS, 200)
    for what in ("", "/log", "/series", "/files/0", "/suggestions"):
        assert_problem(job.get(f"/api/v1/runs/{run}{what}"), 403, "needs read")
    assert job.get("/api/v1/runs").json()["items"] == []  # of public projects


def test_contributors_append_to_finished_runs(teams: Teams) -> None:
    run = upload(teams.client("token:upload"), LOG).json()["id"]
    for number, who in enumerate(("contributor", "token:all")):
        assert append(teams.client(who), run, MORE, name=f"late-{number}.log")[0] == 200


def uploaded_by(client: TestClient, run: int) -> tuple[str, bool]:
    """Return the result of the API, and whether the run's page agrees."""
    process_run(run)
    name = client.get(f"/api/v1/runs/{run}").json()["uploaded_by"]
    page = client.get(f"/runs/{run}?tab=record", headers={"Accept": "text/html"}).text
    return name, f"<dt>uploaded by</dt><dd>{name}</dd>" in page


def test_a_person_and_a_token_are_named(teams: Teams) -> None:
    reader = teams.client("viewer")
    stated = {"project": OURS, "uploaded_by": "somebody else", "author": "somebody else"}
    for who, name in (("contributor", "contributor"), ("token:upload", "token token:upload")):
        run = upload(teams.client(who), LOG, meta=stated | {"commit": who[:5] * 8}).json()["id"]
        assert uploaded_by(reader, run) == (name, True)


def test_a_run_sent_by_the_form_names_the_person(teams: Teams) -> None:
    person = teams.client("contributor")
    answer = person.post("/upload", files={"log": ("a.log", LOG)}, data={"project": OURS}, follow_redirects=False)
    run = int(answer.headers["Location"].rpartition("/")[2])
    assert uploaded_by(teams.client("viewer"), run) == ("contributor", True)


def test_without_log_ins_no_user_is_named(client: TestClient) -> None:
    run = upload(client, LOG).json()["id"]
    assert uploaded_by(client, run)[0] == ""
    assert "<dt>uploaded</dt>" in client.get(f"/runs/{run}?tab=record").text
