"""The audit: complete, filtered, exported; a maintainer's own projects and nobody else's."""

import csv
import io
from typing import Any

import pytest

from app.storage import audit
from app.storage.audit import AuditFilter, all_events
from app.storage.database import transaction
from tests.access.people import OURS, THEIRS, Teams

ADDRESS, PAGE = "/api/v1/audit", "/settings/audit"
MANY = 1_203


def read(teams: Teams, reader: str = "maintainer", **params: Any) -> list[dict[str, Any]]:
    answer = teams.client(reader).get(ADDRESS, params=params)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def record(teams: Teams, number: int, who: str = "Ada", **more: Any) -> None:
    with transaction(teams.engine) as session:
        for index in range(number):
            audit.record(
                session, who=who, subject="run", subject_id=index, action="quarantine", project_id=teams.ours, **more
            )


def walked(teams: Teams, **params: Any) -> list[int]:
    """By the cursor, page by page."""
    found, before = [], {}
    while True:
        page = teams.client("maintainer").get(ADDRESS, params=params | before).json()
        found += [one["id"] for one in page["items"]]
        if page["next_before"] is None:
            return found
        before = {"before": page["next_before"]}


def test_a_maintainer_reads_the_own_project_and_an_administrator_all(teams: Teams) -> None:
    assert {one["project"] for one in read(teams)} == {OURS}
    assert {one["project"] for one in read(teams, "outsider")} == {THEIRS}
    assert {one["project"] for one in read(teams, "administrator")} == {OURS, THEIRS, None}
    assert read(teams, project=THEIRS) == []
    assert THEIRS not in teams.client("maintainer").get(PAGE).text.replace(f"project={THEIRS}", "")
    assert THEIRS not in teams.client("maintainer").get(f"{PAGE}.csv").text


@pytest.mark.parametrize("who", ["viewer", "contributor", "token:all"])
def test_nobody_else_reads_it(who: str, teams: Teams) -> None:
    assert [teams.client(who).get(address).status_code for address in (ADDRESS, PAGE, f"{PAGE}.csv")] == [403] * 3


def test_walking_the_cursor_reads_every_event_once_while_others_come(teams: Teams) -> None:
    record(teams, MANY)
    client, found, before = teams.client("maintainer"), [], ""
    expected = MANY + 7  # three roles and four tokens
    while True:
        page = client.get(f"{ADDRESS}?limit=500{before}").json()
        found += [one["id"] for one in page["items"]]
        record(teams, 1)
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    assert len(found) == len(set(found)) == expected
    assert found == sorted(found, reverse=True)


def test_the_export_is_complete_and_no_formula(teams: Teams) -> None:
    record(teams, MANY)
    record(teams, 1, who="=cmd()", note="+1", before={"a": 1}, after={"a": "é"})
    answer = teams.client("maintainer").get(f"{PAGE}.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == MANY + 1 + 7
    of_ada = csv.DictReader(io.StringIO(teams.client("maintainer").get(f"{PAGE}.csv?who=Ada&subject=run").text))
    assert [int(one["id"]) for one in of_ada] == walked(teams, who="Ada", subject="run")
    assert [len(piece) for piece in all_events(teams.engine, AuditFilter(who="Ada"))] == [500, 500, 203]
    assert (rows[0]["who"], rows[0]["note"], rows[0]["after"]) == ("'=cmd()", "'+1", '{"a": "é"}')
    assert rows[0]["project"] == OURS
    named = {(one["subject"], one["name"]) for one in rows}
    assert {("token", "token:read"), ("member", "viewer")} <= named
    assert not any("." in one["at"] for one in rows)
    assert {one["name"] for one in read(teams, "administrator", subject="account")} >= {"viewer", "outsider"}
    assert "attachment" in answer.headers["Content-Disposition"]


def test_filters_by_project_person_subject_and_time(teams: Teams) -> None:
    record(teams, 2)
    assert len(read(teams, who="Ada")) == 2
    assert {one["subject"] for one in read(teams, subject="token")} == {"token"}
    assert {one["action"] for one in read(teams, "administrator", subject="account")} == {"created"}
    today = read(teams, who="Ada")[0]["at"][:10]
    assert len(read(teams, who="Ada", since=today, until=today)) == 2
    assert read(teams, until="2020-01-31") == []
    assert read(teams, since="2190-01-01T00:00:00+02:00") == []
    for wrong in ({"since": "yesterday"}, {"subject": "weather"}, {"before": 0}, {"limit": 501}, {"person": "Ada"}):
        assert teams.client("maintainer").get(ADDRESS, params=wrong).status_code == 422, wrong


def test_the_page_says_who_did_what_and_leads_there(teams: Teams) -> None:
    record(teams, 60, who="<script>", before={"reason": ""}, after={"reason": "<b>bad node</b>"})
    client = teams.client("maintainer")
    page = client.get(PAGE).text
    assert "reason: &lt;b&gt;bad node&lt;/b&gt;" in page
    assert "<script>x" not in page
    assert 'href="/runs/59"' in page
    assert 'rel="next"' in page
    assert "viewer" in client.get(f"{PAGE}?subject=member").text
    unmatched = client.get(f"{PAGE}?who=nobody").text
    assert "No matching entries" in unmatched
    assert "<tbody>" not in unmatched
    assert client.get(f"{PAGE}?since=yesterday").status_code == 422


def test_settings_and_projects_that_begin_with_an_upload_are_in_it(teams: Teams) -> None:
    client = teams.client("maintainer")
    client.put(f"/api/v1/projects/{OURS}/defaults", json={"fields": {"cluster": "eos"}})
    done = read(teams, subject="project")
    assert [(one["who"], one["action"], one["before"], one["after"]) for one in done] == [
        ("maintainer", "defaults", {"cluster": None}, {"cluster": "eos"})
    ]
    admin = teams.client("administrator")
    admin.post("/api/v1/runs", files={"log": b"a line"}, data={"meta": '{"project": "brand-new"}'})
    begun = read(teams, "administrator", subject="project", project="brand-new")
    assert [(one["who"], one["action"]) for one in begun] == [("administrator", "created")]
