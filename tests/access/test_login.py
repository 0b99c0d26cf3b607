"""Log-in: session, password rules, user names and the user's own page."""

import re
import time
from datetime import timedelta

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine
from sqlmodel import SQLModel, func, select
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from app.access.credentials import HOST_NAME, NAME
from app.access.pages import browser_name, local_path
from app.access.routes import route_table
from app.domain.access.passwords import problem_with
from app.errors import InvalidChange
from app.main import create_app
from app.settings import Settings, get_settings
from app.storage import audit, users
from app.storage.database import read_session, transaction
from app.storage.tables import utc_now
from app.storage.tokens import tokens_of
from tests.access.belongings import make_belongings
from tests.access.people import OURS, SAME_ORIGIN, Teams
from tests.runs.uploading import LOG, upload

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


def test_over_https_the_cookie_is_sent_to_this_host_only(teams: Teams, browser: TestClient) -> None:
    log_in(browser)
    former = browser.cookies[NAME]
    browser.base_url = "https://threewalls.example"
    browser.cookies.clear()
    browser.cookies.set(NAME, former)
    # A page of a neighbouring host could have planted a cookie of this name, so its holder must log in again.
    assert browser.get("/account/password").status_code == 303
    answer = browser.post("/login", data={"name": "viewer", "password": PASSWORD})
    assert re.fullmatch(
        HOST_NAME + r"=[\w-]{43}; HttpOnly; Max-Age=2592000; Path=/; SameSite=lax; Secure", answer.headers["Set-Cookie"]
    )
    assert browser.get("/runs").status_code == 200


def test_errors_are_not_revealed(teams: Teams, browser: TestClient) -> None:
    def answer_text(name: str) -> str:
        answer = browser.post("/login", data={"name": name, "password": "not the password"})
        assert (answer.status_code, "Set-Cookie" in answer.headers) == (422, False)
        return answer.text.replace(f'value="{name}"', 'value=""')

    assert answer_text("viewer") == answer_text("no-such-name")
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


def test_users_who_are_disabled_or_have_no_password_cannot_log_in(teams: Teams, browser: TestClient) -> None:
    assert log_in(browser, "contributor", "") == 422
    with transaction(teams.engine) as session:
        users.set_rights(session, users.get_user(session, teams.users["viewer"]), disabled=True, by="test")
    assert log_in(browser) == 422


def test_a_log_in_never_reuses_the_session_id_of_the_browser(teams: Teams, browser: TestClient) -> None:
    def given(brought: str) -> str:
        answer = browser.post("/login", data={"name": "viewer", "password": PASSWORD}, headers={"Cookie": brought})
        return str(answer.headers["Set-Cookie"].partition(";")[0])

    brought = f"{NAME}={'a' * 43}"
    first = given(brought)
    assert len({brought, first, given(first)}) == 3


def test_a_log_out_ends_the_session_on_the_server(teams: Teams, browser: TestClient) -> None:
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
    for wrong, message in (
        ("old", "is not your password"),
        ("new", "at least 12 characters"),
        ("again", "does not match"),
    ):
        answer = browser.post("/account/password", data=form | {wrong: "short"})
        assert (answer.status_code, message in answer.text, PASSWORD in answer.text) == (422, True, False)
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
def test_a_log_in_redirects_only_within_the_service(wanted: str) -> None:
    assert local_path(wanted) == "/"


def test_the_last_use_of_a_token_is_on_record(teams: Teams) -> None:
    teams.client("token:read").get("/api/v1/runs")
    with read_session(teams.engine) as session:
        used = {row.name: row.last_used_at is not None for row in tokens_of(session, teams.ours, first=0, limit=100)}
    assert used == {name: name == "token:read" for name in teams.tokens}


ACCOUNT = "Ada Lovelace-King"
COMMON = (
    "password1234", "P@ssw0rd2024!", "Password Password1", "qwertyuiop12", "iloveyou1234", "1qaz2wsx3edc",
    "correcthorsebatterystaple", "!!dragon2026!!", "Administrator#1",
)  # fmt: skip
NAMED = ("Lovelace1815!", "my l0vel@ce likes it", "threewalls-2026", "ThreeWalls is ours", "kingdom of numbers")
GOOD = ("correct horse battery", "a password of hers", "staple by the window", "Adas own words", "vX7-qpLr_2mZ90")


def test_common_passwords_and_those_with_a_name_are_rejected() -> None:
    problems = {password: problem_with(password, ACCOUNT) for password in (*COMMON, *NAMED, *GOOD)}
    wrong = [f"{password} is accepted" for password in (*COMMON, *NAMED) if not problems[password]]
    wrong += [f"{password} {problems[password]}" for password in GOOD if problems[password]]
    assert not wrong, "\n".join(wrong)


def test_common_passwords_are_refused(teams: Teams) -> None:
    admin = teams.client("administrator")
    body = admin.post("/api/v1/users", json={"name": "mara"}).json()
    browser = TestClient(teams.app, headers=SAME_ORIGIN | PAGE, follow_redirects=False)
    assert browser.post("/login", data={"name": "mara", "password": body["password"]}).status_code == 303
    form = {"old": body["password"], "new": "Password Password1", "again": "Password Password1"}
    assert browser.post("/account/password", data=form).status_code == 422
    chosen = "staple by the window"
    assert browser.post("/account/password", data=form | {"new": chosen, "again": chosen}).status_code == 303


def test_an_initial_password_expires_after_72_hours_and_a_chosen_one_does_not(teams: Teams) -> None:
    admin = teams.client("administrator")
    body = admin.post("/api/v1/users", json={"name": "mara"}).json()

    def log_in(password: str) -> int:
        browser = TestClient(teams.app, headers=SAME_ORIGIN, follow_redirects=False)
        return browser.post("/login", data={"name": "mara", "password": password}).status_code

    def hours_pass(hours: float) -> None:
        with transaction(teams.engine) as session:
            row = users.get_user(session, body["id"])
            assert row.password_ends_at is not None
            row.password_ends_at -= timedelta(hours=hours)

    hours_pass(71)
    assert log_in(body["password"]) == 303
    hours_pass(1)
    assert log_in(body["password"]) == 422
    again = admin.post(f"/api/v1/users/{body['id']}/password").json()
    assert again["password_ends_at"] > utc_now().isoformat()
    browser = TestClient(teams.app, headers=SAME_ORIGIN, follow_redirects=False)
    browser.post("/login", data={"name": "mara", "password": again["password"]})
    chosen = "staple by the window"
    browser.post("/account/password", data={"old": again["password"], "new": chosen, "again": chosen})
    listed = {user["name"]: user for user in admin.get("/api/v1/users").json()["items"]}
    assert listed["mara"]["password_ends_at"] is None
    assert log_in(chosen) == 303


ALIKE = (
    "Viewer",
    "VIEWER",
    "v\u0456ewer",
    "viewer\u200b",
    "token ci",
    "Command Line",
    "nobody logged in",
    "threewalls",
)


@pytest.mark.parametrize("name", ALIKE)
def test_a_name_that_looks_like_another_is_refused(teams: Teams, name: str) -> None:
    with pytest.raises((InvalidChange, users.NameTaken)), transaction(teams.engine) as session:
        users.create_user(session, name, by="test")


@pytest.mark.parametrize(
    ("claimed", "name"),
    [("Zoë Müller", "Zoe Muller"), ("r\u043e\u043et", "rt"), ("token ci", "user token ci"), ("\u200b", "user")],
)
def test_names_from_a_provider_are_converted(claimed: str, name: str) -> None:
    assert users.plain_name(claimed) == name
    assert users.checked_name(name) == name


def test_names_are_compared_as_one_letter_forms() -> None:
    assert users.checked_name("\uff41\uff44\uff41") == "ada"


SESSIONS = "/api/v1/account/sessions"
ACCOUNT_PAGE = "/settings/account"


def test_the_page_shows_the_user_and_their_roles(teams: Teams) -> None:
    client = teams.client("viewer")
    client.headers["User-Agent"] = "<Browser> 1.0"
    page = client.get(ACCOUNT_PAGE).text
    assert "1 project" in page
    assert OURS in page
    assert "current" in page
    assert "every project" in teams.client("administrator").get(ACCOUNT_PAGE).text
    assert teams.client("anonymous").get(ACCOUNT_PAGE, headers={"Accept": "text/html"}).status_code == 303
    assert teams.client("token:all").get(ACCOUNT_PAGE).status_code == 401


def test_a_browser_that_was_forgotten_somewhere_is_ended_from_elsewhere(teams: Teams) -> None:
    here, there, third = (teams.client("viewer") for _ in range(3))
    there.get("/")
    listed = here.get(SESSIONS).json()["items"]
    assert [item["current"] for item in listed].count(True) == 1
    assert len(listed) == 3
    other = next(item["key"] for item in there.get(SESSIONS).json()["items"] if item["current"])
    assert here.post(f"{ACCOUNT_PAGE}/sessions/{other}/end").headers["Location"] == ACCOUNT_PAGE
    assert there.get(SESSIONS).status_code == 401
    assert here.post(f"{ACCOUNT_PAGE}/sessions/others/end").status_code == 303
    assert third.get(SESSIONS).status_code == 401
    own = here.get(SESSIONS).json()["items"]
    assert len(own) == 1
    with read_session(teams.engine) as session:
        done = [event.after for event in audit.events(session, "account", teams.users["viewer"])[:2]]
    assert done == [{"session": "all others"}, {"session": other}]
    assert here.post(f"{ACCOUNT_PAGE}/sessions/{own[0]['key']}/end").headers["Location"] == "/login"
    assert here.get(SESSIONS).status_code == 401


def test_users_cannot_end_the_sessions_of_others(teams: Teams) -> None:
    viewer, maintainer = teams.client("viewer"), teams.client("maintainer")
    key = viewer.get(SESSIONS).json()["items"][0]["key"]
    assert maintainer.delete(f"{SESSIONS}/{key}").status_code == 404
    assert maintainer.delete(f"{SESSIONS}/{'x' * 16}").status_code == 422
    assert viewer.delete(f"{SESSIONS}/{key}").status_code == 204
    assert viewer.get(SESSIONS).status_code == 401


def test_sessions_name_the_browser_and_programs_as_they_are() -> None:
    chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36"
    safari = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Version/18.0 Safari/604.1"
    assert [browser_name(agent) for agent in (chrome, f"{chrome} Edg/156.0", safari)] == [
        "Chrome on Linux", "Edge on Linux", "Safari on iOS"
    ]  # fmt: skip
    assert browser_name("Python-urllib/3.11") == "Python-urllib/3.11"


# --- A service without log-ins: what it still refuses, and to whom.

LASTING = (
    "account",
    "login_session",
    "member",
    "user_group",
    "group_role",
    "token",
    "receiver",
    "delivery",
    "audit_event",
)


def counted(engine: Engine) -> dict[str, int]:
    with read_session(engine) as session:
        tables = SQLModel.metadata.tables
        return {name: session.execute(select(func.count()).select_from(tables[name])).scalar_one() for name in LASTING}


def test_every_page_says_once_that_no_log_in_is_needed(app: FastAPI, client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        owned = make_belongings(session, OURS)
    settings = [route.path for route in route_table(app).routes if route.method == "GET" and "/settings/" in route.path]
    texts = {}
    for path in ("/", *settings):
        answer = client.get(path.format(**owned.params()), headers=PAGE)
        if answer.status_code == 200 and answer.headers["content-type"].startswith("text/html"):
            texts[path] = answer.text
    assert len(texts) > 15
    assert {path: text.count("data-local-mode") for path, text in texts.items()} == dict.fromkeys(texts, 1)


def test_users_tokens_receivers_and_public_projects_need_log_ins(
    app: FastAPI, client: TestClient, engine: Engine
) -> None:
    with transaction(engine) as session:
        owned = make_belongings(session, OURS)
    before = counted(engine)
    wrong = []
    refused = [
        route
        for route in route_table(app).routes
        if route.method not in ("GET", "HEAD", "MOUNT")
        and any(
            word in route.path
            for word in ("users", "members", "groups", "tokens", "notifications", "receivers", "public")
        )
    ]
    assert len(refused) > 30
    for route in refused:
        answer = client.request(route.method, route.path.format(**owned.params()))
        command = re.search(
            r"threewalls admin create NAME --data (\S+)$", answer.json()["detail"]
        )  # to copy, so at the end
        if answer.status_code != 403 or command is None:
            wrong.append(f"{route.key}: {answer.status_code} {answer.text}")
    switched = client.patch(f"/api/v1/projects/{OURS}", json={"public": True, "author": "Ada"})
    created = client.post("/api/v1/projects", json={"project": "open", "public": True, "author": "Ada"})
    assert not wrong, "\n".join(wrong)
    assert [switched.status_code, created.status_code] == [403, 403]
    assert counted(engine) == before


def test_an_empty_service_says_that_there_is_nothing_yet(client: TestClient) -> None:
    projects, audit = (client.get(f"/settings/{name}", headers=PAGE).text for name in ("projects", "audit"))
    assert ("No projects yet." in projects, "Create the first project" in projects) == (True, False)
    assert ("No changes by users yet." in audit, "newest first" in audit) == (True, False)


def test_the_pages_say_so_and_offer_no_form_for_it(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        owned = make_belongings(session, OURS)
    base = f"/settings/projects/{OURS}"
    for address in (
        "/settings/users",
        f"{base}/members",
        f"{base}/tokens",
        f"{base}/notifications",
        f"{base}/notifications/{owned.receiver}",
    ):
        page = client.get(address, headers=PAGE)
        assert page.status_code == 200, address
        assert f'method="post" action="{address}' not in page.text, address
        assert "on this machine" in page.text, address
        assert "No tokens yet" not in page.text, "a token cannot be created without log-ins"
        assert 'href="/settings/users"' in page.text


def test_http_1_0_requests_may_come_through_a_proxy(app: FastAPI) -> None:
    """A request from nginx with only `proxy_pass`: no header identifies a proxy, and Host is 127.0.0.1."""

    async def by_http_1_0(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "http_version": "1.0"}, receive, send)

    old, new = (TestClient(way, headers={"Host": "127.0.0.1:8000"}) for way in (by_http_1_0, app))
    assert [old.get("/runs").status_code, upload(old, LOG).status_code] == [403, 403]
    assert [new.get("/runs").status_code, upload(new, LOG).status_code] == [200, 202]
    assert old.get("/healthz").status_code == 200


def test_an_action_without_a_body_needs_a_name(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_belongings(session, OURS)
    answer = client.post(f"/api/v1/projects/{OURS}/archive")
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, ["author"])
    assert answer.json()["errors"][0]["message"].startswith("is required")
