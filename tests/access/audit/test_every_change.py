"""Every route that writes, driven for real: what it changes is in the audit, with who, when, whose and from what."""

from datetime import datetime
from typing import Any

from app.access.routes import route_table
from app.domain.access.principal import Role
from app.storage import users
from app.storage.audit import AuditEvent, AuditFilter, find_events
from app.storage.database import read_session, transaction
from app.storage.projects import slugs_by_id
from app.storage.tables import utc_now
from tests.access.audit.changes import CHANGES, NO_RECORD, PASSWORD, Change, There
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, Teams

WRITING = ("POST", "PUT", "PATCH", "DELETE")


def test_every_writing_route_is_here_with_its_record_or_why_it_has_none(teams: Teams) -> None:
    writing = {route.key for route in route_table(teams.app).routes if route.method in WRITING}
    assert writing == CHANGES.keys() | NO_RECORD.keys()
    assert not CHANGES.keys() & NO_RECORD.keys()


def test_what_is_changed_by_any_route_is_in_the_audit(teams: Teams) -> None:
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
    """Makes the change. What is wrong with its record; empty when nothing is."""
    client = teams.client(change.who)
    there = There(teams, client, owned)
    last, began = _events(teams)[0], utc_now()
    status, text = _send(there, key, change)
    if status not in (200, 201, 202, 204, 303):
        return f"{status} {text if text[0] == '{' else text[text.index('<main') :]}"
    made = [one for one in _events(teams) if one.id > last.id]
    if strange := [one.who for one in made if one.who != change.who]:
        return f"in the name of {strange}"
    with read_session(teams.engine) as session:
        slugs = slugs_by_id(session)
    if any(_fits(one, change, slugs.get(one.project_id or 0), began) for one in made):
        return ""
    return f"left {made}"


def _fits(one: AuditEvent, change: Change, project: str | None, began: datetime) -> bool:
    told = (one.subject, one.action, project) == (change.subject, change.action, change.project)
    return (
        told
        and began <= one.at <= utc_now()
        and one.before.items() >= change.before.items()
        and all(one.after.get(name, ...) == value for name, value in change.after.items())
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
        return find_events(session, AuditFilter(), limit=20).events
