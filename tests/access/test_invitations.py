"""Invitations: one person joins by a link, as a new or existing user, until the link expires or is revoked."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.storage.database import read_session, transaction
from app.storage.tables import InvitationRow, utc_now
from app.storage.users import find_user, list_users
from tests.access.people import OURS, Teams, new_browser

API = f"/api/v1/projects/{OURS}/invitations"
PAGE = f"/settings/projects/{OURS}/invitations"
PASSWORD = "a horse, a battery"


def invite(teams: Teams, **fields: Any) -> str:
    """Invite as a maintainer; return the path of the link."""
    answer = teams.client("maintainer").post(API, json={"role": "contributor"} | fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["link"].removeprefix("http://testserver"))


def accept(client: TestClient, link: str, name: str = "ada", again: str = PASSWORD) -> int:
    return client.post(link, data={"name": name, "password": PASSWORD, "again": again}).status_code


def roles(teams: Teams) -> dict[str, tuple[str, str]]:
    members = teams.client("maintainer").get(f"/api/v1/projects/{OURS}/members").json()["members"]
    return {member["name"]: (member["role"], member["added_by"]) for member in members}


def states(teams: Teams) -> list[tuple[str, str]]:
    items = teams.client("maintainer").get(API).json()["items"]
    return [(item["state"], item["accepted_by"]) for item in items]


def test_a_new_user_joins_with_a_name_and_password_and_the_link_is_used(teams: Teams) -> None:
    link, client = invite(teams, email="ada@example.org"), new_browser(teams)
    page = client.get(link)
    assert (page.status_code, page.headers["Cache-Control"], page.headers["Referrer-Policy"]) == (
        200, "no-store", "same-origin",
    )  # fmt: skip
    assert accept(client, link, again="another") == 422
    assert accept(client, link, name="VIEWER") == 422  # somebody has it
    refused = client.post(link, data={"name": "ada", "password": "tiny hippo", "again": "tiny hippo"})
    assert (refused.status_code, "tiny hippo" in refused.text) == (422, False)
    assert accept(client, link) == 303
    assert client.get("/api/v1/whoami").json()["name"] == "ada"
    assert roles(teams)["ada"] == ("contributor", "maintainer")
    assert states(teams) == [("accepted", "ada")]
    with read_session(teams.engine) as session:
        ada = next(user for user in list_users(session) if user.name == "ada")
    assert (ada.email, ada.administrator, ada.must_change_password) == ("ada@example.org", False, False)
    other = new_browser(teams)
    assert (other.get(link).status_code, accept(other, link, "eve")) == (404, 404)
    assert new_browser(teams).post("/login", data={"name": "ada", "password": PASSWORD}).status_code == 303


def test_a_user_joins_as_who_they_are_and_keeps_a_higher_role(teams: Teams) -> None:
    outsider, lead = teams.client("outsider"), teams.client("maintainer")
    assert outsider.get(f"/api/v1/projects/{OURS}/rules").status_code == 404
    assert outsider.post(invite(teams, role="viewer")).status_code == 303
    assert outsider.get(f"/api/v1/projects/{OURS}/rules").status_code == 200
    lead.post(invite(teams, role="viewer"))
    assert (roles(teams)["outsider"], roles(teams)["maintainer"][0]) == (("viewer", "maintainer"), "maintainer")


def test_invitations_end(teams: Teams) -> None:
    revoked, late = invite(teams), invite(teams, days=1)
    lead = teams.client("maintainer")
    assert lead.delete(f"{API}/1").json()["state"] == "revoked"
    with transaction(teams.engine) as session:
        session.get_one(InvitationRow, 2).expires_at = utc_now() - timedelta(seconds=1)
    client = new_browser(teams)
    for link in (revoked, late, f"/invite/{'0' * 43}"):
        assert (client.get(link).status_code, accept(client, link)) == (404, 404)
    with read_session(teams.engine) as session:
        assert find_user(session, "ada") is None
    assert lead.delete(f"{API}/3").status_code == 404
    assert teams.client("outsider").delete("/api/v1/projects/omega/invitations/1").status_code == 404


def test_of_two_concurrent_acceptances_one_succeeds(teams: Teams) -> None:
    link = invite(teams)
    clients = {name: new_browser(teams) for name in ("ada", "eve", "max")}
    with ThreadPoolExecutor(3) as pool:
        answers = sorted(pool.map(lambda name: accept(clients[name], link, name), clients))
    assert answers == [303, 404, 404]
    assert len(roles(teams).keys() & clients.keys()) == 1
    with read_session(teams.engine) as session:
        assert len([user for user in list_users(session) if user.name in clients]) == 1


@pytest.mark.parametrize("fields", [{"role": "administrator"}, {"email": "ada"}, {"days": 0}, {"days": 31}])
def test_wrong_invitations_are_refused(teams: Teams, fields: dict[str, Any]) -> None:
    answer = teams.client("maintainer").post(API, json={"role": "viewer"} | fields)
    assert answer.status_code == 422
    assert teams.client("contributor").post(API, json={"role": "viewer"}).status_code == 403
    assert states(teams) == []


def test_the_page_shows_the_link_once_and_revokes_it(teams: Teams) -> None:
    lead = teams.client("maintainer")
    shown = lead.post(PAGE, data={"role": "viewer", "days": "7"}, headers={"Accept": "text/html"})
    (link,) = set(re.findall(r"/invite/[A-Za-z0-9_-]{43}", shown.text))
    assert shown.headers["Cache-Control"] == "no-store"
    assert link not in lead.get(PAGE).text
    assert new_browser(teams).get(link).status_code == 200
    assert lead.post(f"{PAGE}/1/revoke").status_code == 303
    assert new_browser(teams).get(link).status_code == 404
    assert lead.post(PAGE, data={"role": "boss"}).status_code == 422
