"""A service that is backed up and restored on an empty machine returns the same answers."""

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import Engine, text

from app.analysis.options import USAGE
from app.cli import main
from app.errors import Unavailable
from app.main import create_app
from app.settings import Settings, get_settings
from app.storage import backup
from app.storage.database import make_engine, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import HeartbeatRow, utc_now
from tests.builders import make_run, make_stack
from tests.cases import sized
from tests.conftest import OPEN_TO, forget_settings
from tests.pages import PageClient
from tests.services.postgres_server import Postgres
from tests.services.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

ADDRESSES = (
    "/api/v1/runs", "/api/v1/runs/1", "/api/v1/runs/1/series", "/api/v1/runs/10/log", "/api/v1/runs/10/files/0",
    "/api/v1/runs/3/verdict", "/api/v1/regressions", "/api/v1/projects", "/api/v1/audit", "/api/v1/leaderboards",
)  # fmt: skip


def fill(engine: Engine, log_files: LogFiles) -> None:
    with transaction(engine) as session:
        make_stack(session, [100.0, 101.0, 99.5, 100.4, 100.2, 99.8, 100.1, 112.0, 112.4])
        make_run(session, log_files=log_files, name="with a log")


def answers(settings: Settings) -> dict[str, Any]:
    app = create_app(settings, open_to=OPEN_TO)
    client = PageClient(app, raise_server_exceptions=False)
    try:
        responses = {address: client.get(address) for address in ADDRESSES}
        assert [response.status_code for response in responses.values()] == [200] * len(ADDRESSES)
        return {address: response.content for address, response in responses.items()}
    finally:
        app.state.engine.dispose()


def use(monkeypatch: pytest.MonkeyPatch, **variables: object) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(f"THREEWALLS_{name.upper()}", str(value))
    forget_settings()
    return get_settings()


PLACES = ("backup.tar", "backups", "s3")
DATABASES = ("sqlite", "postgresql")
EVERY_PAIR = [(database, place) for database in DATABASES for place in PLACES]
SAMPLE = [("sqlite", "s3"), ("sqlite", "backups"), ("postgresql", "backup.tar")]
"""Each database, and each place: what is written does not depend on where it is written to."""


@pytest.fixture
def service(
    database: str, request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Settings, Engine]]:
    """A service with runs, and its engine."""
    if database == "postgresql":
        settings = use(monkeypatch, database_url=request.getfixturevalue("postgres_url"))
    engine = make_engine(settings)
    fill(engine, LogFiles.from_settings(settings))
    yield settings, engine
    engine.dispose()


def empty_machine(settings: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Settings:
    new: dict[str, object] = {"data_dir": folder}
    if settings.database_url:
        server: Postgres = request.getfixturevalue("postgres_server")
        new["database_url"] = server.url(server.new_database())
    return use(monkeypatch, **new)


@pytest.mark.parametrize(("database", "target"), sized(SAMPLE, EVERY_PAIR))
def test_a_restored_service_returns_equal_answers(
    service: tuple[Settings, Engine], target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    settings, engine = service
    where = str(tmp_path / target)
    if target == "s3":
        s3: S3Server = request.getfixturevalue("s3_server")
        where = f"s3://{s3.new_bucket()}/threewalls"
        keys = {"s3_access_key_id": ACCESS_KEY, "s3_secret_access_key": SECRET_KEY}
        settings = use(monkeypatch, s3_endpoint=s3.endpoint, **keys)
    expected = answers(settings)
    assert main(["backup", where]) == 0
    assert main(["verify", where]) == 0
    assert backup.last_backup(engine) is not None

    restored = empty_machine(settings, tmp_path / "elsewhere", monkeypatch, request)
    assert main(["restore", where]) == 0
    assert answers(restored) == expected
    assert main(["verify"]) == 0
    assert main(["restore", where]) != 0  # never over a service that has data
    assert answers(restored) == expected


def test_further_backups_copy_new_objects_only_and_old_ones_are_pruned(
    settings: Settings, engine: Engine, log_files: LogFiles, tmp_path: Path
) -> None:
    where = str(tmp_path / "backups")
    with transaction(engine) as session:
        first = make_run(session, log_files=log_files)
    assert backup.back_up(settings, where).new_objects == 1
    with transaction(engine) as session:
        make_run(session, log_files=log_files, step_time_ms=900.0)
        session.execute(text("DELETE FROM run_file WHERE run_id = :run"), {"run": first})
    second = backup.back_up(settings, where, keep=2)
    assert (second.new_objects, second.manifest.objects) == (1, 1)
    third = backup.back_up(settings, where, keep=2)
    place = backup._place(settings, where)
    assert isinstance(place, backup.Repository)
    assert place.snapshots() == [second.manifest.id, third.manifest.id]
    assert len(place.stored_objects()) == 1  # that of the pruned backup is gone
    assert backup.check_backup(settings, where, snapshot=second.manifest.id) == second.manifest


def test_options_and_settings_for_many_backups_are_refused_for_one_file(
    settings: Settings, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = str(tmp_path / "backup.tar")
    assert main(["backup", where, "--keep", "2"]) == USAGE
    assert "--keep" in capsys.readouterr().err
    assert not Path(where).exists()
    backup.back_up(settings, where)
    for command in ("restore", "verify"):
        assert main([command, where, "--id", "20261123T061500000000Z"]) == USAGE
        assert "--id" in capsys.readouterr().err
    with pytest.raises(ValidationError, match="THREEWALLS_BACKUP_URL"):
        Settings(data_dir=tmp_path, backup_url=where)


def test_a_damaged_backup_is_refused_and_changes_nothing(
    settings: Settings, engine: Engine, log_files: LogFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine, log_files)
    where = tmp_path / "backups"
    backup.back_up(settings, str(where))
    (stored,) = (where / "objects").rglob("*.zst")
    damage(stored)
    assert main(["verify", str(where)]) == 3
    elsewhere = use(monkeypatch, data_dir=tmp_path / "elsewhere")
    assert main(["restore", str(where)]) == 3
    assert not (elsewhere.data_dir / "threewalls.db").exists()


def test_a_cut_backup_another_file_and_a_target_that_cannot_be_written_are_refused(
    settings: Settings, engine: Engine, log_files: LogFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine, log_files)
    whole, cut = tmp_path / "whole.tar", tmp_path / "cut.tar"
    backup.back_up(settings, str(whole))
    elsewhere = use(monkeypatch, data_dir=tmp_path / "elsewhere")
    content = whole.read_bytes()
    for part in (content[: len(content) // 2], content[:600], b"text", b""):
        cut.write_bytes(part)
        assert (main(["verify", str(cut)]), main(["restore", str(cut)])) == (3, 3)
        assert not (elsewhere.data_dir / "threewalls.db").exists()
    for target in (tmp_path / "none" / "a.tar", whole / "folder"):
        with pytest.raises(Unavailable):
            backup.back_up(settings, str(target))


def test_verify_reports_a_damaged_database_and_orphans(
    settings: Settings, engine: Engine, log_files: LogFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(engine, log_files)
    log_files.put([b"an upload that failed\n"])
    assert main(["verify"]) == 0
    assert "1 object of" in capsys.readouterr().out
    with sqlite3.connect(settings.data_dir / "threewalls.db") as connection:
        connection.execute("DELETE FROM project")  # foreign keys are not checked by this connection
    assert main(["verify"]) == 3


def test_beat_backs_up_when_it_is_due(settings: Settings, engine: Engine, tmp_path: Path) -> None:
    configured = settings.model_copy(update={"backup_url": str(tmp_path / "backups"), "backup_keep": 1})
    assert backup.back_up_if_due(engine, settings) is None
    assert backup.back_up_if_due(engine, configured) is not None
    assert backup.back_up_if_due(engine, configured) is None
    with transaction(engine) as session:
        session.get_one(HeartbeatRow, backup.LAST).seen_at = utc_now() - timedelta(hours=25)
    assert backup.back_up_if_due(engine, configured) is not None
    assert len(list((tmp_path / "backups").rglob("manifest.json"))) == 1


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
