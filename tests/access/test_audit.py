"""The audit: every writing route is recorded, and each reader sees the events of their projects."""

import csv
import io
import re
from datetime import datetime
from typing import Any

import pytest

from app.access.routes import route_table
from app.domain.access.principal import Role
from app.storage import audit, users
from app.storage.audit import AuditEvent, AuditFilter, all_events, find_events
from app.storage.database import read_session, transaction
from app.storage.projects import slugs_by_id
from app.storage.tables import utc_now
from tests.access.belongings import Belongings, make_belongings
from tests.access.changes import CHANGES, NO_RECORD, PASSWORD, Change, There
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
    result, before = [], {}
    while True:
        page = teams.client("maintainer").get(ADDRESS, params=params | before).json()
        result += [item["id"] for item in page["items"]]
        if page["next_before"] is None:
            return result
        before = {"before": page["next_before"]}


def test_a_maintainer_reads_the_own_project_and_an_administrator_all(teams: Teams) -> None:
    assert {item["project"] for item in read(teams)} == {OURS}
    assert {item["project"] for item in read(teams, "outsider")} == {THEIRS}
    assert {item["project"] for item in read(teams, "administrator")} == {OURS, THEIRS, None}
    assert read(teams, project=THEIRS) == []
    assert THEIRS not in teams.client("maintainer").get(PAGE).text.replace(f"project={THEIRS}", "")
    assert THEIRS not in teams.client("maintainer").get(f"{PAGE}.csv").text


@pytest.mark.parametrize("who", ["viewer", "contributor", "token:all"])
def test_others_cannot_read_it(who: str, teams: Teams) -> None:
    assert [teams.client(who).get(address).status_code for address in (ADDRESS, PAGE, f"{PAGE}.csv")] == [403] * 3


def test_walking_the_cursor_reads_every_event_once_while_others_come(teams: Teams) -> None:
    record(teams, MANY)
    client, result, before = teams.client("maintainer"), [], ""
    expected = MANY + 7  # three roles and four tokens
    while True:
        page = client.get(f"{ADDRESS}?limit=500{before}").json()
        result += [item["id"] for item in page["items"]]
        record(teams, 1)
        if page["next_before"] is None:
            break
        before = f"&before={page['next_before']}"
    assert len(result) == len(set(result)) == expected
    assert result == sorted(result, reverse=True)


def test_the_export_is_complete_and_no_formula(teams: Teams) -> None:
    record(teams, MANY)
    record(teams, 1, who="=cmd()", note="+1", before={"a": 1}, after={"a": "é"})
    answer = teams.client("maintainer").get(f"{PAGE}.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == MANY + 1 + 7
    of_ada = csv.DictReader(io.StringIO(teams.client("maintainer").get(f"{PAGE}.csv?who=Ada&subject=run").text))
    assert [int(item["id"]) for item in of_ada] == walked(teams, who="Ada", subject="run")
    assert teams.client("maintainer").get(f"{ADDRESS}?format=csv").text == answer.text
    assert [len(piece) for piece in all_events(teams.engine, AuditFilter(who="Ada"))] == [500, 500, 203]
    assert (rows[0]["who"], rows[0]["note"], rows[0]["after"]) == ("'=cmd()", "'+1", '{"a": "é"}')
    assert rows[0]["project"] == OURS
    named = {(row["subject"], row["name"]) for row in rows}
    assert {("token", "token:read"), ("member", "viewer")} <= named
    assert not any("." in row["at"] for row in rows)
    assert {item["name"] for item in read(teams, "administrator", subject="account")} >= {"viewer", "outsider"}
    assert "attachment" in answer.headers["Content-Disposition"]


def test_filters_by_project_person_subject_and_time(teams: Teams) -> None:
    record(teams, 2)
    assert len(read(teams, who="Ada")) == 2
    assert {item["subject"] for item in read(teams, subject="token")} == {"token"}
    assert {item["action"] for item in read(teams, "administrator", subject="account")} == {"created"}
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
    assert "reason &lt;b&gt;bad node&lt;/b&gt;" in page
    assert "<script>x" not in page
    assert 'href="/runs/59"' in page
    assert 'rel="next"' in page
    assert "60 changes by" in client.get(f"{PAGE}?who=%3Cscript%3E").text
    assert "viewer" in client.get(f"{PAGE}?subject=member").text
    unmatched = client.get(f"{PAGE}?who=nobody").text
    assert "No matching entries" in unmatched
    assert "<tbody>" not in unmatched
    assert client.get(f"{PAGE}?since=yesterday").status_code == 422


def test_settings_and_projects_that_begin_with_an_upload_are_in_it(teams: Teams) -> None:
    client = teams.client("maintainer")
    client.put(f"/api/v1/projects/{OURS}/defaults", json={"fields": {"cluster": "eos"}})
    done = read(teams, subject="project")
    assert [(item["who"], item["action"], item["before"], item["after"]) for item in done] == [
        ("maintainer", "defaults", {"cluster": None}, {"cluster": "eos"})
    ]
    admin = teams.client("administrator")
    admin.post("/api/v1/runs", files={"log": b"a line"}, data={"meta": '{"project": "brand-new"}'})
    begun = read(teams, "administrator", subject="project", project="brand-new")
    assert [(item["who"], item["action"]) for item in begun] == [("administrator", "created")]


WRITING = ("POST", "PUT", "PATCH", "DELETE")


def test_every_writing_route_has_an_audit_record_or_a_reason_for_none(teams: Teams) -> None:
    writing = {route.key for route in route_table(teams.app).routes if route.method in WRITING}
    assert writing == CHANGES.keys() | NO_RECORD.keys()
    assert not CHANGES.keys() & NO_RECORD.keys()


def test_every_change_by_a_route_is_in_the_audit(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        owned = make_belongings(session, OURS)
        dora = users.create_user(session, "dora", by="test", password=PASSWORD).id
        users.set_role(session, project_id=teams.ours, user_id=dora, role=Role.VIEWER, by="test")
    teams = Teams(
        teams.app, teams.ours, teams.theirs, teams.public, {**teams.users, "dora": dora}, teams.tokens, teams.engine
    )
    wrong = [f"{key}: {why}" for key, change in CHANGES.items() if (why := _made(teams, owned, key, change))]
    assert not wrong, "\n".join(wrong)


def _made(teams: Teams, owned: Belongings, key: str, change: Change) -> str:
    """Make the change, and return what is wrong with its record; empty if nothing is."""
    client = teams.client(change.who)
    there = There(teams, client, owned)
    last, began = _events(teams)[0], utc_now()
    status, text = _send(there, key, change)
    if status not in (200, 201, 202, 204, 303):
        return f"{status} {text if text[0] == '{' else text[text.index('<main') :]}"
    recorded = [event for event in _events(teams) if event.id > last.id]
    if strange := [item.who for item in recorded if item.who != change.who]:
        return f"in the name of {strange}"
    with read_session(teams.engine) as session:
        slugs = slugs_by_id(session)
    if any(_fits(item, change, slugs.get(item.project_id or 0), began) for item in recorded):
        return ""
    return f"left {recorded}"


def _fits(entry: AuditEvent, change: Change, project: str | None, began: datetime) -> bool:
    is_same = (entry.subject, entry.action, project) == (change.subject, change.action, change.project)
    return (
        is_same
        and began <= entry.at <= utc_now()
        and entry.before.items() >= change.before.items()
        and all(entry.after.get(name, ...) == value for name, value in change.after.items())
    )


def _send(there: There, key: str, change: Change) -> tuple[int, str]:
    method, path = key.split(" ")
    address = path.format(**there.owned.params() | {name: named(there) for name, named in change.of.items()})
    sent = change.sent(there) if callable(change.sent) else change.sent
    answer = there.client.request(method, address, **_as_sent(path, sent))
    return answer.status_code, answer.text


def _as_sent(path: str, sent: Any) -> dict[str, Any]:
    """Forms state another's name, which is not believed."""
    if isinstance(sent, bytes):
        return {"content": sent}
    if files := {name: sent[name] for name in ("log", "profile") if name in sent}:
        return {"files": files, "data": {name: value for name, value in sent.items() if name not in files}}
    return {"json": sent} if path.startswith("/api/") else {"data": {"author": "the boss"} | sent}


def _events(teams: Teams) -> tuple[AuditEvent, ...]:
    """The newest first."""
    with read_session(teams.engine) as session:
        return find_events(session, AuditFilter(), before=None, limit=20).events


def test_the_page_hides_actions_of_the_service_by_default(teams: Teams) -> None:
    record(teams, 2)
    record(teams, 3, who="Threewalls")
    client = teams.client("maintainer")
    pages = [client.get(f"{PAGE}{query}").text for query in ("", "?by=all", "?who=Threewalls")]
    assert [len(re.findall(r"<p>\s*<a[^>]*>Threewalls</a>", page)) for page in pages] == [0, 3, 3]
    everything = {item["who"] for item in read(teams)}
    assert everything > {"Ada", "Threewalls"}
    assert "Threewalls" not in {item["who"] for item in read(teams, by="users")}
