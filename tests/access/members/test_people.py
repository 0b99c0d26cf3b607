"""People: made with a password of the first day, disabled, made administrators; one administrator always stays."""

import re

import pytest
from starlette.testclient import TestClient

from app.storage import audit
from app.storage.database import read_session
from tests.access.people import SAME_ORIGIN, Teams

USERS = "/api/v1/users"
PAGE = "/settings/users"
CHOSEN = "a password of my own"


def browser(teams: Teams) -> TestClient:
    client = teams.client("anonymous")
    client.headers.update(SAME_ORIGIN | {"Accept": "text/html"})
    return client


def log_in(client: TestClient, name: str, password: str) -> str:
    return str(client.post("/login", data={"name": name, "password": password}).headers.get("Location", ""))


def test_the_first_password_opens_nothing_but_its_change(teams: Teams) -> None:
    admin = teams.client("administrator")
    answer = admin.post(USERS, json={"name": "Ada", "email": "ada@example.org"})
    made = answer.json()
    assert (answer.status_code, answer.headers["Cache-Control"]) == (201, "no-store")
    assert (made["must_change_password"], made["roles"], made["disabled"]) == (True, {}, False)
    ada = browser(teams)
    assert log_in(ada, "Ada", made["password"]) == "/"
    assert ada.get("/runs").headers["Location"] == "/account/password?next=%2Fruns"
    assert ada.get("/api/v1/runs").status_code == 403
    sent = {"old": made["password"], "new": CHOSEN, "again": CHOSEN}
    assert ada.post("/account/password", data=sent).status_code == 303
    assert ada.get("/runs").status_code == 200
    assert made["password"] not in admin.get(USERS).text
    assert admin.post(USERS, json={"name": "Ada"}).status_code == 409


def test_who_is_disabled_is_out_at_once_and_can_come_back(teams: Teams) -> None:
    admin, viewer = teams.client("administrator"), teams.client("viewer")
    assert viewer.get("/api/v1/whoami").json()["kind"] == "person"
    address = f"{USERS}/{teams.users['viewer']}"
    assert admin.patch(address, json={"disabled": True}).json()["disabled"] is True
    assert viewer.get("/api/v1/whoami").json()["kind"] == "nobody"
    assert admin.patch(address, json={"disabled": False}).json()["disabled"] is False
    assert viewer.get("/api/v1/whoami").json()["kind"] == "nobody"  # the session is over; the account is not
    with read_session(teams.engine) as session:
        done = [event.action for event in audit.events(session, "account", teams.users["viewer"])]
    assert done == ["enabled", "disabled", "created"]


def test_the_last_administrator_stays_one(teams: Teams) -> None:
    admin = teams.client("administrator")
    own = f"{USERS}/{teams.users['administrator']}"
    for change in ({"administrator": False}, {"disabled": True}):
        answer = admin.patch(own, json=change)
        assert (answer.status_code, answer.json()["title"]) == (409, "This is the last administrator")
    page = admin.post(f"{PAGE}/{teams.users['administrator']}", data={"do": "disable"})
    assert (page.status_code, "is the last administrator" in page.text) == (422, True)
    assert admin.patch(f"{USERS}/{teams.users['viewer']}", json={"administrator": True}).status_code == 200
    assert admin.post(f"{PAGE}/{teams.users['administrator']}", data={"do": "no administrator"}).status_code == 303
    assert admin.get(PAGE).status_code == 403
    # The other one is disabled by nobody: the first is no administrator any longer.
    second = teams.client("viewer")
    assert second.patch(f"{USERS}/{teams.users['viewer']}", json={"disabled": True}).status_code == 409


def test_a_new_password_logs_out_everywhere(teams: Teams) -> None:
    admin, viewer = teams.client("administrator"), teams.client("viewer")
    page = admin.post(f"{PAGE}/{teams.users['viewer']}", data={"do": "reset password"})
    assert page.headers["Cache-Control"] == "no-store"
    shown = re.search(r'aria-label="The first password"><code>([^<]+)', page.text)
    assert shown
    assert viewer.get("/api/v1/whoami").json()["kind"] == "nobody"
    assert log_in(browser(teams), "viewer", shown[1]) == "/"
    assert shown[1] not in admin.get(PAGE).text
    assert admin.post(f"{USERS}/{teams.users['viewer']}/password").json()["password"] != shown[1]


def test_the_page_makes_and_shows_people(teams: Teams) -> None:
    admin = teams.client("administrator")
    page = admin.post(PAGE, data={"name": "Eve O'Hara", "email": "eve@example.org"})
    assert "Pass this password to Eve O&#39;Hara now" in page.text
    assert "eve@example.org" in admin.get(PAGE).text
    for sent, told in (
        ({"name": ""}, "must have 1 to 100 characters"),
        ({"name": "<i>Eve</i>"}, "must start with a letter (a to z)"),
        ({"name": "viewer"}, "User viewer already exists"),
        ({"name": "Bob", "email": "bob"}, "must be an e-mail address"),
    ):
        page = admin.post(PAGE, data=sent)
        assert (page.status_code, told in page.text) == (422, True), sent
    assert admin.post(f"{PAGE}/{teams.users['viewer']}", data={"do": "promote"}).status_code == 422


@pytest.mark.parametrize("who", ["viewer", "maintainer", "token:all"])
def test_nobody_else_sees_people(who: str, teams: Teams) -> None:
    assert teams.client(who).get(USERS).status_code == 403
    assert teams.client(who).get(PAGE).status_code == 403
