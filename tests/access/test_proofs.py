"""More than a cookie: a code of an authenticator app at the log-in, the password once more before access is given."""

import time
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pyotp
import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.storage import users
from app.storage.database import read_session, transaction
from app.storage.tables import SessionRow, utc_now
from app.storage.tokens import tokens_of
from tests.access.people import OURS, SAME_ORIGIN, Teams

PASSWORD = "correct horse battery"
SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
ADD, REMOVE = "/account/second-factor", "/account/second-factor/remove"


def code(later: int = 0) -> str:
    """Of now, or of so many times 30 seconds later."""
    return pyotp.TOTP(SECRET).at(time.time() + 30 * later)


@pytest.fixture
def teams(teams: Teams) -> Teams:
    with transaction(teams.engine) as session:
        for who in ("viewer", "maintainer", "administrator"):
            users.set_password(session, users.get_user(session, teams.users[who]), PASSWORD, by="test")
    return teams


def log_in(teams: Teams, name: str, **more: str) -> TestClient | None:
    browser = TestClient(teams.app, headers=SAME_ORIGIN | {"Accept": "text/html"}, follow_redirects=False)
    status = browser.post("/login", data={"name": name, "password": PASSWORD, **more}).status_code
    assert status in (303, 422)
    return browser if status == 303 else None


def logged_in(teams: Teams, name: str, **more: str) -> TestClient:
    browser = log_in(teams, name, **more)
    assert browser is not None
    return browser


def test_with_a_second_factor_a_password_alone_is_refused_and_a_code_is_valid_once(teams: Teams) -> None:
    browser, elsewhere = logged_in(teams, "viewer"), logged_in(teams, "viewer")
    form = {"secret": SECRET, "code": code(), "password": PASSWORD}
    for wrong in ({"code": "000000"}, {"password": "not the password"}, {"secret": "short"}):
        assert browser.post(ADD, data=form | wrong).status_code in (200, 422)
    assert log_in(teams, "viewer") is not None
    assert browser.post(ADD, data=form).status_code == 303
    assert elsewhere.get("/settings/account").status_code == 303  # logged out
    assert log_in(teams, "viewer") is None
    assert log_in(teams, "viewer", code=form["code"]) is None  # the code that confirmed the app
    later = code(1)
    assert log_in(teams, "viewer", code=later) is not None
    assert log_in(teams, "viewer", code=later) is None


def test_only_the_password_and_a_code_remove_it_or_a_reset(teams: Teams) -> None:
    browser = logged_in(teams, "viewer")
    first = code()
    assert browser.post(ADD, data={"secret": SECRET, "code": first, "password": PASSWORD}).status_code == 303
    assert browser.post(REMOVE, data={"code": first, "password": PASSWORD}).status_code == 422
    assert browser.post(REMOVE, data={"code": code(1), "password": "not the password"}).status_code == 422
    assert log_in(teams, "viewer") is None
    assert browser.post(REMOVE, data={"code": code(1), "password": PASSWORD}).status_code == 303
    assert browser.post(ADD, data={"secret": SECRET, "code": code(), "password": PASSWORD}).status_code == 303
    body = logged_in(teams, "administrator").post(f"/api/v1/users/{teams.users['viewer']}/password").json()
    assert body["second_factor"] is False
    answer = TestClient(teams.app, headers=SAME_ORIGIN, follow_redirects=False).post(
        "/login", data={"name": "viewer", "password": body["password"]}
    )
    assert answer.status_code == 303


@pytest.fixture
def strict(teams: Teams, settings: Settings) -> Iterator[Teams]:
    """The same service, which wants a second factor of administrators."""
    app = create_app(settings.model_copy(update={"totp_for_administrators": True}))
    yield Teams(app, teams.ours, teams.theirs, teams.public, teams.users, teams.tokens, app.state.engine)
    app.state.engine.dispose()


def test_a_required_second_factor_blocks_everything_else_until_it_is_added(strict: Teams) -> None:
    browser = logged_in(strict, "administrator")
    for address in ("/runs", "/settings/users"):
        answer = browser.get(address)
        assert (answer.status_code, urlsplit(answer.headers["Location"]).path) == (303, ADD)
    assert browser.get("/api/v1/users").status_code == 403
    assert logged_in(strict, "viewer").get("/runs").status_code == 200
    assert browser.post(ADD, data={"secret": SECRET, "code": code(), "password": PASSWORD}).status_code == 303
    assert browser.get("/settings/users").status_code == 200
    with transaction(strict.engine) as session:
        row = users.get_user(session, strict.users["administrator"])
        row.totp_secret, row.issuer = "", "https://provider.example"
    assert browser.get("/settings/users").status_code == 200  # whose provider requires it


GIVING = (
    ("maintainer", "POST", f"/settings/projects/{OURS}/tokens", {"name": "ci", "scopes": "read"}),
    ("maintainer", "POST", f"/settings/projects/{OURS}/members", {"name": "outsider", "role": "viewer"}),
    ("maintainer", "POST", f"/settings/projects/{OURS}/members/{{viewer}}", {"role": "maintainer"}),
    ("administrator", "POST", "/settings/users", {"name": "eve"}),
    ("administrator", "POST", "/settings/users/{viewer}", {"do": "make administrator"}),
    ("maintainer", "POST", f"/api/v1/projects/{OURS}/tokens", {"name": "api", "scopes": ["read"]}),
    ("maintainer", "POST", f"/api/v1/projects/{OURS}/members", {"name": "outsider", "role": "viewer"}),
    ("administrator", "POST", "/api/v1/users", {"name": "max"}),
    ("administrator", "PATCH", "/api/v1/users/{viewer}", {"administrator": True}),
    ("administrator", "POST", "/api/v1/users/{viewer}/password", {}),
)
"""Requests that give access: by whom, what, and what is sent."""


def test_a_session_grants_access_only_after_a_recent_password_check(teams: Teams) -> None:
    browsers = {who: logged_in(teams, who) for who in ("maintainer", "administrator")}
    viewer = teams.users["viewer"]
    wrong = []

    def ask(who: str, method: str, path: str, body: dict[str, object]) -> tuple[int, str]:
        address = path.format(viewer=viewer)
        sent = {"json": body} if path.startswith("/api/") else {"data": body}
        answer = browsers[who].request(method, address, headers={"Referer": f"http://testserver/runs?of={who}"}, **sent)
        return answer.status_code, answer.headers.get("Location", "")

    with transaction(teams.engine) as session:
        session.execute(update(SessionRow).values(confirmed_at=utc_now() - timedelta(minutes=11)))
        before = len(tokens_of(session, teams.ours, first=0, limit=100))
    for who, method, path, body in GIVING:
        status, location = ask(who, method, path, body)
        page = urlsplit(location)
        back = (page.path, parse_qs(page.query).get("next")) == ("/account/confirm", [f"/runs?of={who}"])
        if not (status == 403 if path.startswith("/api/") else status == 303 and back):
            wrong.append(f"{method} {path}: {status} {location}")
    with read_session(teams.engine) as session:
        assert len(tokens_of(session, teams.ours, first=0, limit=100)) == before
        assert users.find_user(session, "eve") is None
    assert browsers["maintainer"].post("/account/confirm", data={"password": "a wrong password"}).status_code == 422
    assert ask(*GIVING[0])[1].startswith("/account/confirm")
    for browser in browsers.values():
        done = browser.post("/account/confirm", data={"password": PASSWORD, "next": "/runs?a=b"})
        assert (done.status_code, done.headers["Location"]) == (303, "/runs?a=b")
    for who, method, path, body in GIVING:
        status, location = ask(who, method, path, body)
        if status not in (200, 201, 303) or "confirm" in location:
            wrong.append(f"{method} {path} after it: {status} {location}")
    assert not wrong, "\n".join(wrong)
