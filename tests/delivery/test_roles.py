"""The commands on the page of each role, run from an empty folder against a real service."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.domain.access.principal import Role
from app.settings import Settings
from app.storage import users
from app.storage.database import make_engine, migrate, transaction
from tests.builders import make_project
from tests.embedded.processes import Running, running
from tests.training_logs import training_log

pytestmark = pytest.mark.server
DOCS = Path(__file__).resolve().parents[2] / "docs"
WORD = "correct horse battery"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("roles")
    settings = Settings(data_dir=data)
    migrate(settings)
    engine = make_engine(settings)
    with transaction(engine) as session:
        users.create_user(session, "root", by="test", password=WORD, administrator=True)
        mara = users.create_user(session, "mara", by="test", password=WORD)
        project = make_project(session, "moe").id or 0
        users.set_role(session, project_id=project, user_id=mara.id, role=Role.MAINTAINER, by="test")
    engine.dispose()
    with running("serve", data) as house:
        yield house


def follow(page: str, folder: Path, **env: str) -> str:
    """Run every command of a page in one shell that stops at the first failure."""
    scripts = re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert scripts
    (folder / "train.log").write_bytes(training_log(step_time_ms=405))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(scripts)], cwd=folder, timeout=600, check=False,
        capture_output=True, text=True, env={"PATH": path, "HOME": str(folder), **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_engineer_gets_a_verdict(server: Running, tmp_path: Path) -> None:
    assert "train" in follow("engineer.md", tmp_path, THREEWALLS_URL=server.address)


def test_an_owner_of_ci_gets_a_report(guarded: Running, tmp_path: Path) -> None:
    follow("ci-owner.md", tmp_path, THREEWALLS_URL=guarded.address, THREEWALLS_PASSWORD=WORD)
    report = json.loads((tmp_path / "run.json").read_text())["report"]
    assert (report["run"]["project"], report["verdict"]["verdict"]) == ("moe", "no_baseline")
    assert (tmp_path / "comment.md").read_text().count("\n") > 3


def test_an_administrator_backs_up_and_restores(tmp_path: Path) -> None:
    follow("administrator.md", tmp_path, THREEWALLS_ADMIN_PASSWORD=WORD)
    assert (tmp_path / "restored/threewalls.db").exists()
