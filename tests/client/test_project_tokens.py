"""`threewalls token list|create|revoke` against a service with log-ins, and the job that its token is for."""

import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import update

from app.client.account import expiry
from app.errors import UsageError
from app.settings import Settings
from app.storage.database import make_engine, transaction
from app.storage.tables import RunRow, utc_now
from tests.client.commands import Done, threewalls
from tests.client.test_follow import LINES, following
from tests.embedded.guarded import WORD, add_maintainer
from tests.embedded.processes import Running, wait_for

pytestmark = pytest.mark.server

FOLLOWED = "follow-again"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def guarded(guarded_server: Running) -> Running:
    """A service with log-ins: nora maintains the project switch."""
    add_maintainer(guarded_server.data, "nora", "switch")
    return guarded_server


def tokens(server: Running, folder: Path, *words: str, word: str = WORD, **env: str) -> Done:
    env = {"THREEWALLS_PASSWORD": word, **env}
    return threewalls(server.address, folder, "token", *words, "--project", "switch", "--user", "nora", **env)


def sessions(server: Running) -> int:
    """Return the number of nora's sessions, without the one of the request."""
    origin = {"Sec-Fetch-Site": "none"}
    with httpx2.Client(base_url=server.address, headers=origin, timeout=300) as client:
        client.post("/login", data={"name": "nora", "password": WORD})
        items: list[object] = client.get("/api/v1/account/sessions").json()["items"]
        client.post("/logout")
    return len(items) - 1


def two_hours_pass(server: Running) -> None:
    """Since the last news of the run that is followed."""
    engine = make_engine(Settings(data_dir=server.data))
    with transaction(engine) as session:
        session.execute(update(RunRow).where(RunRow.name == FOLLOWED).values(heard_at=utc_now() - timedelta(hours=2)))
    engine.dispose()


def test_a_token_is_created_used_listed_and_revoked_and_no_session_stays_open(guarded: Running, tmp_path: Path) -> None:
    result = tokens(guarded, tmp_path, "create", "--name", "ci", "--scope", "upload", "--expires", "90d")
    assert result.code == 0, result.err
    secret = result.out.strip()
    assert secret.startswith("tw_")
    assert len(result.out.split()) == 1
    assert secret not in result.err
    assert "in force" in result.err

    own = threewalls(guarded.address, tmp_path, "token", "--json", THREEWALLS_TOKEN=secret).document
    assert (own["project"], own["scopes"]) == ("switch", ["upload"])
    # A job's token in the environment creates no token: it is not even sent.
    listed = tokens(guarded, tmp_path, "list", "--json", THREEWALLS_TOKEN=secret)
    assert [item["name"] for item in listed.document["items"]] == ["ci"]
    assert secret not in listed.out

    log = tmp_path / "train.log"
    log.write_bytes(b"".join(LINES))
    uploaded = threewalls(
        guarded.address, tmp_path, "upload", str(log), "--wait", "--json", "--no-ci", THREEWALLS_TOKEN=secret
    )
    assert (uploaded.code, uploaded.document["report"]["run"]["project"]) == (4, "switch"), uploaded.err

    assert "revoked" in tokens(guarded, tmp_path, "revoke", "ci").out
    assert threewalls(guarded.address, tmp_path, "token", THREEWALLS_TOKEN=secret).code == 3
    assert tokens(guarded, tmp_path, "revoke", "ci").code == 2
    assert tokens(guarded, tmp_path, "revoke", "4711").code == 3
    assert sessions(guarded) == 0  # also after a refusal


def test_errors_are_reported_without_secrets(guarded: Running, tmp_path: Path) -> None:
    wrong = tokens(guarded, tmp_path, "create", "--name", "ci", word="a guess")
    assert (wrong.code, wrong.out) == (3, "")
    assert f"{guarded.address}/settings/projects/switch/tokens" in wrong.err
    assert "a guess" not in wrong.err
    without_user = threewalls(guarded.address, tmp_path, "token", "list", "--project", "switch")
    assert (without_user.code, "--user" in without_user.err) == (2, True)
    assert tokens(guarded, tmp_path, "create", "--name", "ci", "--expires", "soon").code == 2
    assert threewalls(guarded.address, tmp_path, "token", "list").code == 2


def test_a_token_that_never_expires_says_so(guarded: Running, tmp_path: Path) -> None:
    result = tokens(guarded, tmp_path, "create", "--name", "for ever", "--expires", "never", "--json")
    assert (result.document["expires_at"], result.document["scopes"]) == (None, ["upload"])
    assert "does not expire" in tokens(guarded, tmp_path, "list").out


def test_without_log_ins_no_password_is_requested_and_no_token_is_created(server: Running, tmp_path: Path) -> None:
    httpx2.post(f"{server.address}/api/v1/projects", json={"project": "open-tokens"}, timeout=300)
    words = ("--project", "open-tokens")
    result = threewalls(server.address, tmp_path, "token", "create", "--name", "ci", *words)
    assert (result.code, "threewalls admin create" in result.err) == (3, True)
    assert threewalls(server.address, tmp_path, "token", "list", *words).code == 0


def test_a_follower_that_was_stopped_too_early_goes_on_in_its_run(guarded: Running, tmp_path: Path) -> None:
    secret = tokens(guarded, tmp_path, "create", "--name", "follower").out.strip()
    reader = tokens(guarded, tmp_path, "create", "--name", "reader", "--scope", "read").out.strip()
    log = tmp_path / "train.log"
    log.write_bytes(b"".join(LINES[:20]))

    def reception_and_sizes() -> list[tuple[str, int]]:
        headers = {"Authorization": f"Bearer {reader}"}
        params = {"q": FOLLOWED}
        runs = httpx2.get(f"{guarded.address}/api/v1/runs", params=params, headers=headers, timeout=300).json()["items"]
        result = [
            httpx2.get(f"{guarded.address}/api/v1/runs/{run['id']}", headers=headers, timeout=300).json()
            for run in runs
        ]
        return [(run["reception"], sum(file["size_bytes"] for file in run["files"])) for run in result]

    words = ("--name", FOLLOWED)
    first = following(guarded, log, "switch", *words, THREEWALLS_TOKEN=secret)
    wait_for(lambda: reception_and_sizes() == [("receiving", log.stat().st_size)], "what is there")
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=300)
    assert reception_and_sizes() == [("complete", log.stat().st_size)]
    with log.open("ab") as job:
        job.write(b"".join(LINES[20:]))
    second = following(guarded, log, "switch", *words, THREEWALLS_TOKEN=secret)
    wait_for(lambda: reception_and_sizes() == [("receiving", log.stat().st_size)], "the run to go on")
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=300)
    assert second.returncode == 0
    there = [("complete", log.stat().st_size)]
    assert reception_and_sizes() == there
    two_hours_pass(guarded)
    with log.open("ab") as job:
        job.write(b"one more line\n")
    third = following(guarded, log, "switch", *words, THREEWALLS_TOKEN=secret)
    _, output = third.communicate(timeout=300)
    assert (third.returncode, reception_and_sizes()) == (3, there)
    assert "has since been closed" in output
    assert "another --key" in output


@pytest.mark.parametrize(
    ("text", "end"),
    [("never", None), ("90d", "2027-01-30T00:00:00+00:00"), ("2027-03-31", "2027-03-31T00:00:00+00:00")],
)
def test_when_a_token_ends(text: str, end: str | None) -> None:
    assert expiry(text, NOW) == end


@pytest.mark.parametrize("text", ["", "90", "2027-13-01", "tomorrow"])
def test_lines_that_do_not_end_a_run(text: str) -> None:
    with pytest.raises(UsageError, match="--expires"):
        expiry(text, NOW)


def test_the_secret_is_in_the_document_too(guarded: Running, tmp_path: Path) -> None:
    result = tokens(guarded, tmp_path, "create", "--name", "as-json", "--json")
    assert json.loads(result.out)["token"].startswith("tw_")
