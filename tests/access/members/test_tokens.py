"""Tokens of a project: made once, listed, used, revoked; by maintainers, for their own project."""

import html
import re
import textwrap
from datetime import UTC, datetime, timedelta

from app.access.members import PAGE_SIZE
from app.access.members_pages import CURL, INSTALL, job_lines
from app.settings import ROOT
from app.storage import audit
from app.storage.database import read_session
from tests.access.people import OURS, THEIRS, Teams

ADDRESS = f"/api/v1/projects/{OURS}/tokens"
PAGE = f"/settings/projects/{OURS}/tokens"


def test_a_token_is_shown_once_and_uploads_until_it_is_revoked(teams: Teams) -> None:
    maintainer, job = teams.client("maintainer"), teams.client("anonymous")
    answer = maintainer.post(ADDRESS, json={"name": "nightly CI"})
    made = answer.json()
    assert (answer.status_code, answer.headers["Cache-Control"]) == (201, "no-store")
    assert re.fullmatch(r"tw_[\w-]{43}", made["token"])
    assert made["scopes"] == ["upload"]
    year = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=364) < year <= timedelta(days=365)

    job.headers["Authorization"] = f"Bearer {made['token']}"
    assert job.post("/api/v1/runs", files={"log": b"a line"}).status_code == 202
    listed = next(one for one in maintainer.get(ADDRESS).json()["items"] if one["id"] == made["id"])
    assert made["token"] not in maintainer.get(ADDRESS).text
    assert (listed["state"], listed["shown"]) == ("in force", made["token"][:10])
    assert listed["last_used_at"]
    assert listed["created_by"] == "maintainer"

    revoked = maintainer.delete(f"{ADDRESS}/{made['id']}").json()
    assert (revoked["state"], revoked["revoked_by"]) == ("revoked", "maintainer")
    assert job.post("/api/v1/runs", files={"log": b"a line"}).status_code == 401
    with read_session(teams.engine) as session:
        done = [(event.who, event.action) for event in audit.events(session, "token", made["id"])]
    assert done == [("maintainer", "revoked"), ("maintainer", "created")]


def test_what_is_wrong_is_told_by_field_and_nothing_is_made(teams: Teams) -> None:
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
    assert [one["state"] for one in listed] == ["in force"]


def test_the_page_shows_the_token_once_with_the_lines_to_paste(teams: Teams) -> None:
    client = teams.client("maintainer")
    page = client.post(PAGE, data={"name": "<b>CI</b>", "scopes": ["upload", "read"], "life": "30"})
    assert page.headers["Cache-Control"] == "no-store"
    token = re.findall(r"tw_[\w-]{43}", page.text)
    assert len(token) == 1
    assert "threewalls upload train.log --wait" in page.text
    lines = html.unescape(page.text)
    assert f"THREEWALLS_PROJECT={OURS}\n{CURL}" in lines
    assert INSTALL in page.text.replace("&#39;", "'")
    again = client.post(
        PAGE, data={"name": "<b>CI</b>", "scopes": ["upload"], "life": "30"}
    )  # or the page loaded again
    assert (again.status_code, "CI&lt;/b&gt; is in force already" in again.text) == (422, True)
    assert len(re.findall(r"tw_[\w-]{43}", again.text)) == 0
    assert "&lt;b&gt;CI&lt;/b&gt;" in page.text
    after = client.get(PAGE).text
    assert token[0] not in after
    assert f"<code>{token[0][:10]}…</code>" in after
    number = next(
        one["id"] for one in client.get(ADDRESS).json()["items"] if one["shown"] == token[0][:10]
    )  # fmt: skip
    assert client.post(f"{PAGE}/{number}/revoke").headers["Location"].endswith(PAGE)
    assert "revoked by maintainer" in client.get(PAGE).text
    reader = client.post(PAGE, data={"name": "<b>CI</b>", "scopes": ["read"], "life": "30"})  # the name is free again
    assert ("threewalls runs" in reader.text, "threewalls upload" in reader.text) == (True, True)


def test_the_lines_to_paste_are_those_of_the_documents() -> None:
    documents = (ROOT / "docs/ci.md").read_text()
    assert CURL in documents
    lines = job_lines("https://threewalls.example.org", "moe", "--set gpu=H100 --set cluster=west")
    assert textwrap.indent(lines.github, "      ") in documents
    assert lines.gitlab in documents
    for system, branch in lines.branches:
        assert f"| {system} | `{branch}` |" in documents


def test_the_form_says_what_is_missing(teams: Teams) -> None:
    page = teams.client("maintainer").post(PAGE, data={"name": " ", "life": "365"})
    assert page.status_code == 422
    assert "must have 1 to 100 characters" in page.text
    page = teams.client("maintainer").post(PAGE, data={"name": "CI", "life": "365"})
    assert (page.status_code, "must be one or more of upload, read and triage" in page.text) == (422, True)


def test_tokens_are_listed_page_by_page_those_in_force_first(teams: Teams) -> None:
    maintainer = teams.client("maintainer")
    made = [maintainer.post(ADDRESS, json={"name": f"job {number}"}).json()["id"] for number in range(PAGE_SIZE + 1)]
    maintainer.delete(f"{ADDRESS}/{made[-1]}")
    first, second = (maintainer.get(ADDRESS, params={"page": page, "page_size": PAGE_SIZE}).json() for page in (1, 2))
    assert len(first["items"]) == PAGE_SIZE
    assert first["total"] == second["total"] == len(first["items"]) + len(second["items"])
    assert made[-1] in [token["id"] for token in second["items"]]
    assert maintainer.get(ADDRESS, params={"page_size": 501}).status_code == 422
    assert maintainer.get(PAGE).text.count("<tr") == PAGE_SIZE + 1
    assert f'rel="next" href="{PAGE}?page=2"' in maintainer.get(PAGE).text
    assert f"job {PAGE_SIZE}" in maintainer.get(PAGE, params={"page": 2}).text
