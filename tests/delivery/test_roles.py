"""The commands on the page of each role, run from an empty folder against a real service."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.embedded.guarded import WORD, add_maintainer
from tests.embedded.processes import Running
from tests.training_logs import training_log

pytestmark = pytest.mark.server
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def guarded(guarded_server: Running) -> Running:
    add_maintainer(guarded_server.data, "mara", "moe")  # as the documents state
    return guarded_server


def follow(page: str, folder: Path, **env: str) -> str:
    """Run every command of a document in one shell that stops at the first failure."""
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
    printed = follow("administrator.md", tmp_path, THREEWALLS_ADMIN_PASSWORD=WORD)
    assert "root is now" in printed
    assert (tmp_path / "restored/threewalls.db").exists()
