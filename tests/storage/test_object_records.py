"""Objects that no run came to need are forgotten, and those that a run needs never are."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.errors import Unavailable
from app.settings import Settings
from app.storage import objects
from app.storage.database import make_engine, read_session, transaction
from app.storage.log_files import LogFiles, StagedFile
from app.storage.tables import RunRow, StoredObjectRow, utc_now
from app.storage.visible import seeing
from tests.runs.uploading import LOG, traces, upload

NOW = timedelta(0)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Engine]:
    if request.param == "postgresql":
        settings = settings.model_copy(update={"database_url": request.getfixturevalue("postgres_url")})
    engine = make_engine(settings)
    yield engine
    engine.dispose()


def put(database: Engine, store: LogFiles, text: bytes) -> str:
    """As an upload does that dies before it commits its run."""
    with StagedFile([text]) as staged:
        with transaction(database) as session:
            objects.about_to_put(session, [staged.stored.key])
        store.keep(staged)
        return staged.stored.key


def recorded(database: Engine) -> list[str]:
    with read_session(database) as session:
        return list(session.exec(select(StoredObjectRow.key)))


def test_what_an_upload_left_is_forgotten_after_a_while(database: Engine, settings: Settings) -> None:
    store = LogFiles.from_settings(settings)
    key = put(database, store, b"left behind")
    assert objects.forget_unused(database, store) == 0
    assert objects.forget_unused(database, store, NOW) == 1
    assert recorded(database) == []
    with pytest.raises(Unavailable):
        list(store.stream([key]))


def test_what_another_team_needs_stays_whoever_forgets(client: TestClient, engine: Engine, settings: Settings) -> None:
    assert upload(client, LOG).status_code == 202
    store, keys = LogFiles.from_settings(settings), recorded(engine)
    with seeing(frozenset()):
        assert objects.forget(engine, store, keys, utc_now()) == 0
        assert objects.forget_unused(engine, store, NOW) == 0
    assert recorded(engine) == keys


def test_what_is_wanted_again_stays(database: Engine, settings: Settings) -> None:
    store = LogFiles.from_settings(settings)
    key = put(database, store, b"wanted twice")
    with transaction(database) as session:
        noted = objects.about_to_put(session, ["another"])
    assert put(database, store, b"wanted twice") == key
    assert objects.forget(database, store, [key], noted) == 0
    assert b"".join(store.stream([key])) == b"wanted twice"


def test_what_a_run_needs_stays_until_the_run_is_gone(
    client: TestClient, engine: Engine, log_files: LogFiles, settings: Settings
) -> None:
    upload(client, LOG)
    assert objects.forget_unused(engine, log_files, NOW) == 0
    with transaction(engine) as session:
        session.execute(delete(RunRow).where(col(RunRow.id) > 0))
    assert objects.forget_unused(engine, log_files, NOW) == 1
    assert traces(engine, settings) == {"messages": 1}


def test_a_store_that_fails_halfway_leaves_nothing(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_keep, kept = LogFiles.keep, []

    def fail_at_the_second(store: LogFiles, staged: StagedFile) -> object:
        if kept:
            raise Unavailable("The artifact store did not answer.")
        kept.append(really_keep(store, staged))
        return kept[0]

    monkeypatch.setattr(LogFiles, "keep", fail_at_the_second)
    assert upload(client, LOG, b"another log\n").status_code == 503
    assert len(kept) == 1
    assert traces(engine, settings) == {}


def test_a_stored_object_is_synced_before_it_is_acknowledged(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    stored = LogFiles.from_settings(settings).put([LOG])
    folder = settings.data_dir / "artifacts"
    assert synced == [str(folder / stored.key), str((folder / stored.key).parent), str(folder)]
