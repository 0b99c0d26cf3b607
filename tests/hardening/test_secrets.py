"""Secrets appear in no log, page or error, and only the service's user reads the data folder."""

import io
import json
import logging
import re
import stat
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.testclient import TestClient

from app.access.credentials import NAME
from app.domain.access.secrets import new_session_id, new_token
from app.embedded.service import keep_private
from app.main import create_app
from app.service_log import configure_logging
from app.settings import Settings
from app.storage import users
from app.storage.database import read_session, transaction
from app.storage.tables import ProjectRow, select_any
from tests.access.people import SAME_ORIGIN
from tests.embedded.processes import Running, running

PASSWORD = "a password of nobody else"
OTHER = "another password of nobody"
STATED = {
    "s3_secret_access_key": "s3-secret-key",
    "metrics_token": "metrics-secret",
    "broker_url": "",
    "log_level": "debug",
}
PAGE = {"Accept": "text/html"}
CHAT = "https://hooks.slack.com/services/T000/B000/as-good-as-a-password"


@dataclass(frozen=True)
class Talkative:
    """Logs all that it can. A defect waits at /healthz/broken."""

    app: FastAPI
    log: io.StringIO


@dataclass(frozen=True)
class Used:
    """`proofs` are shown to the service, which checks them; `own` it uses itself, so it must be able to read them."""

    proofs: tuple[str, ...]
    own: tuple[str, ...]


@pytest.fixture(params=["json", "console"])
def talkative(
    request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Talkative]:
    stream = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        app = create_app(settings.model_copy(update=STATED | {"log_format": request.param}))
    logging.getLogger().setLevel(logging.DEBUG)

    def broken(password: str = PASSWORD, token: str = "tw_in_a_variable") -> None:  # noqa: S107
        raise RuntimeError("a defect with secrets in its variables")

    app.add_api_route("/healthz/broken", broken)
    yield Talkative(app, stream)
    app.state.engine.dispose()
    configure_logging(settings)


def use_secrets(app: FastAPI) -> Used:
    """A log-in, a failed one, a password change, valid and invalid tokens, receivers, badges, an internal error."""
    with transaction(app.state.engine) as session:
        users.create_user(session, "ada", by="test", password=PASSWORD, administrator=True)
    browser = TestClient(app, headers=SAME_ORIGIN, raise_server_exceptions=False, follow_redirects=False)
    wrong = f"{PASSWORD} wrong"
    assert browser.post("/login", data={"name": "ada", "password": wrong}).status_code == 422
    assert browser.post("/login", data={"name": PASSWORD, "password": "ada"}).status_code == 422
    assert browser.post("/login", data={"name": "ada", "password": PASSWORD}).status_code == 303
    first = browser.cookies[NAME]
    assert browser.post("/settings/projects", data={"slug": "ours"}).status_code == 303
    answer = browser.post("/api/v1/projects/ours/tokens", json={"name": "ci", "scopes": ["read", "upload"]})
    token = answer.json()["token"]
    own = [CHAT]
    for kind, target in (("webhook", "https://ci.example/hook"), ("slack", CHAT)):
        sent = {"name": kind, "kind": kind, "target": target}
        answer = browser.post("/api/v1/projects/ours/receivers", json=sent)
        assert answer.status_code == 201, answer.text
        own += [secret for secret in [answer.json()["secret"]] if secret]
        browser.post(f"/api/v1/projects/ours/receivers/{answer.json()['id']}/test", json={})
        browser.get(f"/settings/projects/ours/notifications/{answer.json()['id']}", headers=PAGE)
    with read_session(app.state.engine) as session:
        own.append(session.execute(select_any(ProjectRow.badge_secret)).scalar_one())
    form = {"old": PASSWORD, "new": OTHER, "again": OTHER}
    assert browser.post("/account/password", data=form).status_code == 303
    unknown, cookie = new_token(), new_session_id()
    for shown in (token, unknown, "tw_x"):
        job = TestClient(app, headers={"Authorization": f"Bearer {shown}"}, raise_server_exceptions=False)
        job.get("/api/v1/runs")
        job.post("/api/v1/runs", files={"log": b"x"})
    assert browser.get("/healthz/broken").status_code == 500
    TestClient(app, cookies={NAME: cookie}).get("/runs", headers=PAGE)
    TestClient(app, headers={"Authorization": f"Bearer {STATED['metrics_token']}"}).get("/metrics")
    proofs = (PASSWORD, OTHER, token, unknown, first, browser.cookies[NAME], cookie, "tw_in_a_variable")
    return Used((*proofs, STATED["s3_secret_access_key"], STATED["metrics_token"]), tuple(own))


def test_no_secret_is_logged(talkative: Talkative) -> None:
    used = use_secrets(talkative.app)
    output = talkative.log.getvalue()
    assert "a defect with secrets in its variables" in output
    assert "login_refused" in output
    assert not [secret for secret in (*used.proofs, *used.own) if secret in output]


def test_stored_credentials_that_are_only_checked_are_hashed(settings: Settings) -> None:
    """Secrets that it signs and sends with are only in the database; after a leak, renew them."""
    app = create_app(settings.model_copy(update=STATED))
    app.add_api_route("/healthz/broken", lambda: 1 / 0)
    used = use_secrets(app)
    app.state.engine.dispose()
    stored = {path.name: path.read_bytes() for path in Path(settings.data_dir).rglob("*") if path.is_file()}
    assert sum(map(len, stored.values())) > 100_000
    assert not [secret for secret in used.proofs for data in stored.values() if secret.encode() in data]
    assert len(used.own) == 3
    for secret in used.own:
        assert {name.partition("-")[0] for name, data in stored.items() if secret.encode() in data} == {"threewalls.db"}


def test_a_database_error_reveals_no_values(app: FastAPI) -> None:
    with pytest.raises(Exception, match="no such table") as error, transaction(app.state.engine) as session:
        session.execute(text("SELECT * FROM nowhere WHERE a = :a"), {"a": PASSWORD})
    assert PASSWORD not in str(error.value)


SECRET = re.compile(r"secret(?!_file)|password|token|(database|broker)_url")


def test_settings_are_not_printed_with_their_secrets(settings: Settings) -> None:
    names = [name for name, field in Settings.model_fields.items() if SECRET.search(name) and field.annotation is str]
    assert len(names) >= 4
    stated = settings.model_copy(update=dict.fromkeys(names, "a-secret"))
    assert "a-secret" not in repr(stated) + str(stated)


def test_a_refused_setting_does_not_reveal_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEWALLS_S3_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("THREEWALLS_TASK_SOFT_LIMIT_SECONDS", "9999")
    with pytest.raises(ValueError, match="TASK_SOFT_LIMIT") as error:
        Settings()
    assert "a-secret" not in str(error.value)


def test_the_path_of_a_request_is_one_line_of_the_log(talkative: Talkative) -> None:
    TestClient(talkative.app).get("/nowhere%0a2026-01-01 [info] forged%1b[2J")
    lines = [line for line in talkative.log.getvalue().splitlines() if "forged" in line and "path" in line]
    assert len(lines) == 1
    assert "\x1b[2J" not in lines[0]
    assert not lines[0].startswith("2026-01-01")
    if lines[0].startswith("{"):
        assert json.loads(lines[0])["path"].endswith("forged\x1b[2J")


META = (
    '--x\r\nContent-Disposition: form-data; name="meta"\r\n\r\n{"project": "own-files", "complete": false}\r\n--x--\r\n'
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def send_a_log(house: Running) -> None:
    """A run with a log, so that there are objects, messages and a database."""
    begin = urllib.request.Request(
        f"{house.address}/api/v1/runs", META.encode(), {"Content-Type": "multipart/form-data; boundary=x"}
    )
    with urllib.request.urlopen(begin, timeout=300) as answer:
        run = json.load(answer)["id"]
    more = urllib.request.Request(
        f"{house.address}/api/v1/runs/{run}/logs?complete=true", b"hello\n", {"Content-Type": "text/plain"}
    )
    with urllib.request.urlopen(more, timeout=300) as answer:
        assert answer.status == 200


def test_only_the_account_of_the_service_can_read_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with running("serve", folder) as house:
        send_a_log(house)
        files = [folder, *folder.rglob("*")]
        open_ones = {str(path): oct(mode(path)) for path in files if mode(path) & 0o077}
    assert {"threewalls.db", "artifacts", "serve.lock"} <= {path.name for path in files}
    assert not open_ones
    assert "data_folder_closed" in house.output


@pytest.mark.parametrize(("before", "after"), [(0o755, 0o700), (0o777, 0o700), (0o750, 0o750), (0o1777, 0o1777)])
def test_an_open_folder_is_restricted_unless_a_group_has_access_or_it_is_shared(
    tmp_path: Path, before: int, after: int
) -> None:
    tmp_path.chmod(before)
    keep_private(tmp_path)
    assert mode(tmp_path) == after
    tmp_path.chmod(0o700)
