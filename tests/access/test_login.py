"""In and out by the browser's door, and what is on record of it."""

import re
import time
from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from app.access.credentials import HOST_NAME, NAME
from app.access.pages import local_path
from app.main import create_app
from app.settings import Settings, get_settings
from app.storage import audit, users
from app.storage.database import read_session, transaction
from app.storage.tokens import tokens_of
from tests.access.people import SAME_ORIGIN, Teams

PASSWORD, OTHER = "correct horse battery", "staple by the window"
PAGE = {"Accept": "text/html"}


@pytest.fixture
def browser(teams: Teams) -> TestClient:
    with transaction(teams.engine) as session:
        users.set_password(session, users.get_user(session, teams.users["viewer"]), PASSWORD, by="test")
    client = teams.client("anonymous")
    client.headers.update(SAME_ORIGIN | PAGE)
    return client


def log_in(client: TestClient, name: str = "viewer", password: str = PASSWORD, **more: str) -> int:
    return client.post("/login", data={"name": name, "password": password, **more}).status_code


def recorded(teams: Teams, subject_id: int | str) -> list[str]:
    with read_session(teams.engine) as session:
        return [event.action for event in audit.events(session, "account", subject_id)]


def test_a_password_opens_the_pages_and_leads_back(teams: Teams, browser: TestClient) -> None:
    answer = browser.post("/login", data={"name": "viewer", "password": PASSWORD, "next": "/runs?q=a"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/runs?q=a")
    assert re.fullmatch(
        NAME + r"=[\w-]{43}; HttpOnly; Max-Age=2592000; Path=/; SameSite=lax", answer.headers["Set-Cookie"]
    )
    page = browser.get("/runs").text
    assert "Log out" in page
    assert 'title="Logged in as viewer"' in page
    assert browser.get("/login").headers["Location"] == "/"
    assert recorded(teams, teams.users["viewer"])[0] == "logged in"


def test_over_https_the_cookie_goes_nowhere_else(teams: Teams, browser: TestClient) -> None:
    log_in(browser)
    former = browser.cookies[NAME]
    browser.base_url = "https://threewalls.example"
    browser.cookies.clear()
    browser.cookies.set(NAME, former)
    # The name that any page of a host beside this one could have planted: whoever holds it logs in anew.
    assert browser.get("/account/password").status_code == 303
    answer = browser.post("/login", data={"name": "viewer", "password": PASSWORD})
    assert re.fullmatch(
        HOST_NAME + r"=[\w-]{43}; HttpOnly; Max-Age=2592000; Path=/; SameSite=lax; Secure", answer.headers["Set-Cookie"]
    )
    assert browser.get("/runs").status_code == 200


def test_what_was_wrong_is_told_to_nobody(teams: Teams, browser: TestClient) -> None:
    def told(name: str) -> str:
        answer = browser.post("/login", data={"name": name, "password": "not the password"})
        assert (answer.status_code, "Set-Cookie" in answer.headers) == (422, False)
        return answer.text.replace(f'value="{name}"', 'value=""')

    assert told("viewer") == told("no-such-name")
    assert recorded(teams, teams.users["viewer"])[0] == "log-in refused"
    assert recorded(teams, "unknown") == ["log-in refused"]


def test_a_name_without_an_account_costs_as_much_as_one_with(
    teams: Teams, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = settings.model_copy(update={"password_memory_mib": 32, "login_attempts": 100})
    monkeypatch.setenv("THREEWALLS_PASSWORD_MEMORY_MIB", "32")
    get_settings.cache_clear()
    app = create_app(dear)
    with transaction(teams.engine) as session:
        users.set_password(session, users.get_user(session, teams.users["viewer"]), PASSWORD, by="test")
        assert "$m=32768," in users.get_user(session, teams.users["viewer"]).password_hash
    client = TestClient(app, headers=SAME_ORIGIN)

    def processor_seconds(name: str) -> float:
        began = time.process_time()
        for _ in range(5):
            assert log_in(client, name, "not the password") == 422
        return time.process_time() - began

    processor_seconds("viewer")
    with_account, without = processor_seconds("viewer"), processor_seconds("no-such-name")
    app.state.engine.dispose()
    assert 0.5 < without / with_account < 2


def test_who_is_disabled_or_has_no_password_does_not_come_in(teams: Teams, browser: TestClient) -> None:
    assert log_in(browser, "contributor", "") == 422
    with transaction(teams.engine) as session:
        users.disable(session, users.get_user(session, teams.users["viewer"]), by="test")
    assert log_in(browser) == 422


def test_a_log_in_never_takes_the_id_that_the_browser_brought(teams: Teams, browser: TestClient) -> None:
    def given(brought: str) -> str:
        answer = browser.post("/login", data={"name": "viewer", "password": PASSWORD}, headers={"Cookie": brought})
        return str(answer.headers["Set-Cookie"].partition(";")[0])

    brought = f"{NAME}={'a' * 43}"
    first = given(brought)
    assert len({brought, first, given(first)}) == 3


def test_a_log_out_ends_the_session_and_not_only_the_cookie(teams: Teams, browser: TestClient) -> None:
    log_in(browser)
    secret = browser.cookies[NAME]
    assert browser.post("/logout").headers["Location"] == "/login"
    browser.cookies.set(NAME, secret)
    assert browser.get("/runs/1").status_code == 303
    assert recorded(teams, teams.users["viewer"])[0] == "logged out"


def test_a_session_that_is_not_used_ends_and_use_prolongs_it(teams: Teams) -> None:
    client = teams.client("viewer")
    with transaction(teams.engine) as session:
        row = users.sessions_of(session, teams.users["viewer"])[0]
        before = row.expires_at
        row.seen_at -= timedelta(minutes=5)
    assert client.get("/runs").status_code == 200
    with transaction(teams.engine) as session:
        row = users.sessions_of(session, teams.users["viewer"])[0]
        assert row.expires_at > before
        row.expires_at = row.created_at
    assert client.get("/runs/1", headers=PAGE).status_code == 303


def test_another_password_ends_every_other_session(teams: Teams, browser: TestClient) -> None:
    elsewhere = teams.client("viewer")
    log_in(browser)
    form = {"old": PASSWORD, "new": OTHER, "again": OTHER}
    for wrong, told in (
        ("old", "is not your password"),
        ("new", "at least 12 characters"),
        ("again", "does not match"),
    ):
        answer = browser.post("/account/password", data=form | {wrong: "short"})
        assert (answer.status_code, told in answer.text, PASSWORD in answer.text) == (422, True, False)
    assert 'value="/runs?q=a"' in browser.get("/account/password?next=/runs%3Fq%3Da").text
    answer = browser.post("/account/password", data=form | {"username": "viewer", "next": "/runs?q=a"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/runs?q=a")
    assert 'value="/"' in browser.get("/account/password?next=//evil.example/").text
    assert elsewhere.get("/account/password", headers=PAGE).status_code == 303
    assert [log_in(browser), log_in(browser, password=OTHER)] == [422, 303]


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "/login",
        "runs",
        "",
        "/\n/x",
    ],
)
def test_nobody_is_led_away_after_the_log_in(wanted: str) -> None:
    assert local_path(wanted) == "/"


def test_the_last_use_of_a_token_is_on_record(teams: Teams) -> None:
    teams.client("token:read").get("/api/v1/runs")
    with read_session(teams.engine) as session:
        used = {row.name: row.last_used_at is not None for row in tokens_of(session, teams.ours, first=0, limit=100)}
    assert used == {name: name == "token:read" for name in teams.tokens}
