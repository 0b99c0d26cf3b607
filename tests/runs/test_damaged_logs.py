"""Stored logs that were lost or damaged: the rest of a run stays, they are found, and the same upload restores them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.cli import main
from app.settings import Settings
from app.storage.database import read_session
from app.storage.log_files import write_frames
from app.storage.tables import RunRow
from tests.runs.uploading import LOG, upload
from workers.tasks import process_run

PEOPLE = {"Accept": "text/html,application/xhtml+xml"}


def flip_a_byte(stored: Path) -> None:
    content = bytearray(stored.read_bytes())
    content[len(content) // 3] ^= 0xFF
    stored.write_bytes(content)


def swap_content(stored: Path) -> None:
    with stored.open("wb") as file:
        write_frames([b"another log\n"], file)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda stored: stored.write_bytes(b""),
    "cut": lambda stored: stored.write_bytes(stored.read_bytes()[:-30]),
    "zeros": lambda stored: stored.write_bytes(bytes(len(stored.read_bytes()))),
    "flipped byte": flip_a_byte,
    "another content": swap_content,
}


def stored_object(settings: Settings) -> Path:
    return next((settings.data_dir / "artifacts").rglob("*.zst"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_hides_nothing_else_is_found_and_is_restored_by_its_upload(
    damage: str, client: TestClient, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = upload(client, LOG).json()["id"]
    process_run(run_id)
    good = stored_object(settings).read_bytes()
    assert main(["verify"]) == 0
    DAMAGES[damage](stored_object(settings))
    page = client.get(f"/runs/{run_id}", headers=PEOPLE)
    assert (page.status_code, "data-log-problem" in page.text) == (200, damage != "another content")
    assert client.get(f"/api/v1/runs/{run_id}").json()["metrics"]["step_time_ms"]["value"] > 0
    assert client.get(f"/api/v1/runs/{run_id}/log").status_code == (200 if damage == "another content" else 503)
    assert main(["verify"]) == 3
    assert f"run {run_id}, train.log" in capsys.readouterr().out
    again = upload(client, LOG).json()
    assert (again["id"], again["created"]) == (run_id, False)
    assert stored_object(settings).read_bytes() == good
    assert main(["verify"]) == 0
    assert "data-log-problem" not in client.get(f"/runs/{run_id}", headers=PEOPLE).text


def test_a_run_that_failed_for_its_damaged_log_is_read_once_that_is_restored(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    run_id = upload(client, LOG).json()["id"]
    flip_a_byte(stored_object(settings))
    for _ in range(settings.max_attempts):
        process_run(run_id)
    with read_session(engine) as session:
        run = session.get_one(RunRow, run_id)
    assert (run.status, "damaged" in (run.error or "")) == ("failed", True)
    upload(client, LOG)
    process_run(run_id)
    assert client.get(f"/api/v1/runs/{run_id}").json()["status"] == "ready"
