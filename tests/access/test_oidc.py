"""Log-in by an identity provider that runs as a process and speaks the protocol: who may log in, and who may not."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from app.domain.access.principal import Role
from app.main import create_app
from app.settings import Settings
from app.storage import audit, users
from app.storage.database import read_session, transaction
from app.storage.users import list_users
from tests.access.people import THEIRS, Teams, make_teams, new_browser
from tests.services.provider_server import CLIENT, SECRET

ADA = {"sub": "ada-1", "preferred_username": "ada", "email": "ada@example.org", "email_verified": True}
ATTEMPT = "threewalls_oidc"


@pytest.fixture(scope="session")
def provider() -> Iterator[str]:
    """The URL of an identity provider that runs during the tests."""
    command = [sys.executable, "-m", "tests.services.provider_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def teams(settings: Settings, provider: str, tmp_path: Path) -> Iterator[Teams]:
    secret = tmp_path / "oidc-secret"
    secret.write_text(f"{SECRET}\n")
    by_provider = {
        "oidc_issuer": provider, "oidc_client_id": CLIENT, "oidc_client_secret_file": str(secret), "oidc_name": "Acme",
        "public_url": "http://testserver",
    }  # fmt: skip
    app = create_app(settings.model_copy(update=by_provider))
    yield make_teams(app)
    app.state.engine.dispose()


@pytest.fixture
def browser(teams: Teams, provider: str) -> TestClient:
    say(provider, ADA)
    return new_browser(teams)


def say(provider: str, person: dict[str, Any], *, rotate: bool = False, **lie: Any) -> None:
    """Set who logs in at the provider from now on, and which false statements it makes."""
    httpx2.post(f"{provider}/test", json={"person": person, "lie": lie, "rotate": rotate})


def leave(browser: TestClient, wanted: str = "/runs") -> str:
    """To the provider, and the address that it sends the browser back to."""
    away = browser.get("/login/oidc", params={"next": wanted})
    assert away.status_code == 303, away.text
    back = httpx2.get(away.headers["Location"])
    assert back.status_code == 302, back.text
    return str(back.headers["Location"])


def kind(browser: TestClient) -> str:
    return str(browser.get("/api/v1/whoami").json()["kind"])


def refused(browser: TestClient, message: str, address: str = "") -> None:
    answer = browser.get(address or leave(browser))
    assert (answer.status_code, message in answer.text) == (422, True), answer.text
    assert kind(browser) == "nobody"
    assert ATTEMPT not in browser.cookies  # it can be answered once


def test_the_first_log_in_makes_an_account_of_no_project_and_leads_back(teams: Teams, browser: TestClient) -> None:
    assert '<a class="button" href="/login/oidc?next=%2Fruns%3Fq%3Da">Log in with Acme</a>' in (
        browser.get("/login?next=/runs?q=a").text
    )
    answer = browser.get(leave(browser, "/runs?q=a"))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/runs?q=a")
    who = browser.get("/api/v1/whoami").json()
    assert (who["kind"], who["name"]) == ("person", "ada")
    assert {item["project"] for item in browser.get("/api/v1/projects").json()["items"]} == {"window"}
    with read_session(teams.engine) as session:
        created = next(user for user in list_users(session) if user.name == "ada")
        done = [event.action for event in audit.events(session, "account", created.id)]
    assert (created.email, created.administrator, bool(created.comes_by)) == ("ada@example.org", False, True)
    assert done == ["logged in", "created"]


def test_an_invited_person_comes_by_the_provider_and_needs_no_password(teams: Teams, browser: TestClient) -> None:
    project = f"/api/v1/projects/{THEIRS}"
    invited = teams.client("outsider").post(f"{project}/invitations", json={"role": "viewer"}).json()
    link = urlsplit(invited["link"]).path
    tried = {"name": "ada", "password": "a horse, a battery", "again": "a horse, a battery"}
    assert browser.post(link, data=tried).status_code == 422
    assert browser.get(leave(browser, link)).headers["Location"] == link
    assert browser.get(f"{project}/rules").status_code == 404
    assert browser.post(link).status_code == 303
    assert browser.get(f"{project}/rules").status_code == 200


def test_the_person_is_the_subject_and_not_the_name_or_the_address(
    teams: Teams, browser: TestClient, provider: str
) -> None:
    with transaction(teams.engine) as session:
        users.create_user(session, "ada", by="test", password="her own password here", email="ada@example.org")
    browser.get(leave(browser))
    assert browser.get("/api/v1/whoami").json()["name"] == "ada 2"
    again = new_browser(teams)
    say(provider, ADA | {"preferred_username": "married", "email": "other@example.org"})
    again.get(leave(again))
    assert again.get("/api/v1/whoami").json()["name"] == "ada 2"
    other = new_browser(teams)
    say(provider, ADA | {"sub": "somebody-else"})
    other.get(leave(other))
    assert other.get("/api/v1/whoami").json()["name"] == "ada 3"
    assert new_browser(teams).post("/login", data={"name": "ada 2", "password": ""}).status_code == 422


@pytest.mark.parametrize(
    "lie",
    [
        {"claims": {"nonce": "another"}},
        {"claims": {"nonce": None}},
        {"claims": {"exp": 1_600_000_000}},
        {"claims": {"exp": None}},
        {"claims": {"aud": "another-client"}},
        {"claims": {"aud": ["threewalls", "another-client"], "azp": "another-client"}},
        {"claims": {"iss": "https://another.example"}},
        {"claims": {"sub": None}},
        {"claims": {"sub": ""}},
        {"alg": "none"},
        {"alg": "HS256"},
        {"foreign_key": True},
    ],
    ids=str,
)
def test_an_invalid_id_token_is_refused(lie: dict[str, Any], teams: Teams, browser: TestClient, provider: str) -> None:
    say(provider, ADA, **lie)
    refused(browser, "does not prove who you are")
    with read_session(teams.engine) as session:
        assert all(not user.comes_by for user in list_users(session))


def test_a_code_is_valid_once_and_only_for_the_browser_that_requested_it(teams: Teams, browser: TestClient) -> None:
    callback = leave(browser)
    cookie = browser.cookies[ATTEMPT]
    assert browser.get(callback).status_code == 303
    browser.post("/logout")
    refused(browser, "Try again", callback)  # the browser's attempt is over
    browser.cookies.set(ATTEMPT, cookie, domain="testserver.local", path="/login/oidc")
    refused(browser, "does not prove who you are", callback)  # and the provider's code is used up

    stolen, thief = leave(browser), new_browser(teams)
    refused(thief, "in another browser", stolen)
    leave(thief)
    state, code = (parse_qs(urlsplit(stolen).query)[name][0] for name in ("state", "code"))
    own = thief.cookies[ATTEMPT].split(".")[0]
    assert own != state
    refused(thief, "does not prove who you are", f"/login/oidc/callback?state={own}&code={code}")  # PKCE


def test_refusals_of_the_provider_are_shown(browser: TestClient, provider: str) -> None:
    say(provider, ADA, error="access_denied")
    refused(browser, "did not log you in")
    refused(browser, "Try again", "/login/oidc/callback?code=x&state=")


def test_disabled_users_cannot_log_in(teams: Teams, browser: TestClient) -> None:
    browser.get(leave(browser))
    with transaction(teams.engine) as session:
        row = users.find_user(session, "ada")
        assert row
        users.set_rights(session, row, disabled=True, by="test")
    assert kind(browser) == "nobody"
    refused(new_browser(teams), "Your user is disabled")


def test_the_way_back_is_of_this_service(teams: Teams, browser: TestClient) -> None:
    for wanted in ("https://evil.example/", "//evil.example", "/\\evil.example", "/login"):
        client = new_browser(teams)
        assert client.get(leave(client, wanted)).headers["Location"] == "/"


def test_new_keys_of_the_provider_are_read(
    teams: Teams, browser: TestClient, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.access.identity_provider._RELOAD_KEYS_SECONDS", 0)
    assert browser.get(leave(browser)).status_code == 303
    say(provider, ADA, rotate=True)
    client = new_browser(teams)
    assert client.get(leave(client)).status_code == 303


def test_a_provider_with_another_or_no_issuer_is_reported(teams: Teams, provider: str, client: TestClient) -> None:
    say(provider, ADA, issuer="https://another.example")
    answer = new_browser(teams).get("/login/oidc")
    assert (answer.status_code, "calls itself" in answer.text) == (503, True)
    assert client.get("/login/oidc/callback").status_code == 404


def test_settings_that_cannot_be_are_refused_at_the_start() -> None:
    for wrong in (
        {"oidc_issuer": "http://provider.example", "oidc_client_id": "a"},
        {"oidc_issuer": "https://provider.example"},
        {"oidc_issuer": "https://provider.example", "oidc_client_id": "a", "public_url": ""},
        {"oidc_issuer": "https://provider.example", "oidc_client_id": "a", "oidc_scopes": "profile"},
        {"oidc_issuer": "https://provider.example", "oidc_client_id": "a", "oidc_client_secret_file": "/nowhere"},
    ):
        with pytest.raises(ValidationError, match="THREEWALLS_OIDC"):
            Settings(**{"public_url": "https://threewalls.example"} | wrong)


def test_the_provider_s_groups_give_roles_and_its_domains_let_in(
    provider: str, teams: Teams, browser: TestClient
) -> None:
    with transaction(teams.engine) as session:
        group = users.create_group(session, "perf-team", by="test").id
        users.set_group_role(session, project_id=teams.theirs, group_id=group, role=Role.VIEWER, by="test")
    theirs = f"/api/v1/projects/{THEIRS}/rules"
    say(provider, ADA | {"groups": ["perf-team", "everyone", 7]})
    browser.get(leave(browser))
    assert browser.get(theirs).status_code == 200
    gone = browser.post("/logout")
    assert gone.headers["Location"] == "/login?left=provider"
    assert '<a href="/logout/oidc">' in browser.get("/login?left=provider").text
    away = urlsplit(browser.get("/logout/oidc").headers["Location"])
    sent = {name: values[0] for name, values in parse_qs(away.query).items()}
    assert f"{away.scheme}://{away.netloc}" == provider
    assert sent == {"realm": "1", "client_id": CLIENT, "post_logout_redirect_uri": "http://testserver/login"}
    say(provider, ADA)
    browser.get(leave(browser))
    assert browser.get(theirs).status_code == 404  # the claim ended the membership
    limited = {"oidc_domains": "acme.example, @example.org"}
    teams.app.state.settings = teams.app.state.settings.model_copy(update=limited)
    again = new_browser(teams)
    again.get(leave(again))
    assert kind(again) == "person"
    for person in (ADA | {"email": "ada@example.com"}, ADA | {"email_verified": False}):
        say(provider, person)
        refused(new_browser(teams), "may not log in here")
