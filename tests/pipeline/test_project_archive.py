"""A project moves to another service, from SQLite to PostgreSQL, with all of its data."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from sqlmodel import col
from starlette.testclient import TestClient

from app.cli import main
from app.errors import DamagedObject
from app.main import create_app
from app.pipeline.project_archive import import_project
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import RunRow
from tests.builders import make_run, make_stack
from tests.conftest import OPEN_TO
from tests.pages import PageClient
from tests.regressions.judging import judge_all
from tests.storage.test_backup import use

STEP_TIMES = [100.0, 101.0, 99.5, 100.4, 100.2, 99.8, 100.1, 112.0, 112.4]


def answers(client: TestClient, project: str = "moe-lab") -> dict[str, Any]:
    """Return the service's answers about a project, without times and URLs of that service."""
    listed = client.get(f"/api/v1/runs?project={project}&page_size=200&sort=created").json()["items"]
    result: dict[str, Any] = {"runs": listed}
    for item in listed:
        for part in ("series", "log"):
            answer = client.get(f"/api/v1/runs/{item['id']}/{part}")
            assert answer.status_code == 200
            result[f"{part} {item['name']}"] = answer.json()
        verdict = client.get(f"/api/v1/runs/{item['id']}/verdict").json()
        result[f"verdict {item['name']}"] = {name: verdict.get(name) for name in ("decision", "delta_pct", "because")}
    regressions = client.get(f"/api/v1/regressions?project={project}").json()["items"]
    result["regressions"] = [(item["cause"], item["state"], item["worst_delta_pct"]) for item in regressions]
    return result


def test_a_project_moves_from_sqlite_to_postgresql(
    client: TestClient, settings: Settings, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, log_files = client.app.state.engine, client.app.state.log_files
    with transaction(engine) as session:
        make_stack(session, STEP_TIMES, log_files=log_files)
        make_run(session, project="other")
    judge_all(engine, settings)
    archive = tmp_path / "moe.tar"
    assert main(["export-project", "moe-lab", str(archive)]) == 0
    streamed = client.get("/api/v1/export?project=moe-lab")
    assert len(streamed.content) == archive.stat().st_size
    expected = answers(client)

    new = use(monkeypatch, data_dir=tmp_path / "elsewhere", database_url=postgres_url)
    assert main(["import-project", str(archive)]) == 0
    app = create_app(new, open_to=OPEN_TO)
    elsewhere = PageClient(app, raise_server_exceptions=False)
    judge_all(app.state.engine, new)
    assert answers(elsewhere) == expected
    with transaction(app.state.engine) as session:
        assert make_run(session, name="next") > len(STEP_TIMES)  # numbers continue after those of the archive
    assert main(["import-project", str(archive)]) == 3  # it exists
    assert main(["import-project", str(archive), "--as", "copy"]) == 0
    with read_session(app.state.engine) as session:
        waiting = select(func.count()).select_from(RunRow).where(col(RunRow.work) == "waiting")
        assert session.execute(waiting).scalar_one() == len(STEP_TIMES)
    app.state.engine.dispose()


def test_a_damaged_archive_is_refused(
    engine: Engine, settings: Settings, log_files: LogFiles, client: TestClient, tmp_path: Path
) -> None:
    with transaction(engine) as session:
        make_stack(session, STEP_TIMES[:3], log_files=log_files)
    content = client.get("/api/v1/export?project=moe-lab").content
    rows = content.index(b"\x28\xb5\x2f\xfd")  # the first compressed part
    flipped = bytearray(content)
    flipped[rows + 20] ^= 0xFF
    later = content.replace(b'"slug"', b'"name"', 1)
    for number, damaged in enumerate((content[: len(content) * 2 // 3], flipped, later, tarred("manifest.json"))):
        archive = tmp_path / f"{number}.tar"
        archive.write_bytes(damaged)
        with pytest.raises(DamagedObject):
            import_project(engine, log_files, archive, slug=f"p{number}", who="mia")
    assert client.get("/api/v1/export?project=nowhere").status_code == 404


def tarred(name: str) -> bytes:
    """An archive with one file, as other programs write it."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return written.getvalue()
