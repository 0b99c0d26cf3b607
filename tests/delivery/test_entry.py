"""The installed command beside a job that has packages of the same names on its PYTHONPATH."""

import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.embedded.processes import PLAIN_HTTP, running
from tests.training_logs import training_log

COMMAND = Path(sys.executable).with_name("threewalls")


@pytest.fixture
def training_repository(tmp_path: Path) -> Path:
    """A checkout with packages called like ours and like what we need; importing any of them fails."""
    for name in ("app", "workers", "httpx2", "celery", "sqlalchemy"):
        (tmp_path / "repository" / name).mkdir(parents=True)
        (tmp_path / "repository" / name / "__init__.py").write_text(f"raise RuntimeError('the {name} of the job')\n")
    return tmp_path / "repository"


def test_packages_of_the_job_do_not_take_the_place_of_ours(training_repository: Path) -> None:
    (training_repository / "train.log").write_bytes(training_log())
    codes = {}
    for command in ([str(COMMAND)], [sys.executable, "-m", "threewalls_entry"]):
        for words, wanted in (
            (["--version"], 0),
            (["analyze", "train.log"], 0),
            (["runs", "--url=http://127.0.0.1:1"], 3),
        ):
            done = subprocess.run(
                [*command, *words, *(["--retries=0"] if wanted else [])], cwd=training_repository,
                env=os.environ | {"PYTHONPATH": str(training_repository)}, capture_output=True, text=True, timeout=300,
                check=False,
            )  # fmt: skip
            codes[command[-1], words[0]] = (done.returncode, wanted, done.stderr)
    assert {name: found for name, found in codes.items() if found[0] != found[1]} == {}


def test_a_broken_installation_is_70_and_never_a_regression(tmp_path: Path) -> None:
    (tmp_path / "threewalls_entry.py").write_text(Path(__file__).parents[2].joinpath("threewalls_entry.py").read_text())
    done = subprocess.run(
        [sys.executable, "-I", "-S", tmp_path / "threewalls_entry.py", "runs"], capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (70, 1), done.stderr


@pytest.mark.server
def test_the_worker_of_a_service_finds_our_code_too(training_repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(training_repository))
    monkeypatch.chdir(training_repository)
    monkeypatch.setattr("tests.embedded.processes.COMMAND", [str(COMMAND)])
    log = ("train.log", training_log())
    with running("serve", training_repository / "data") as house:
        run = httpx2.post(f"{house.address}/api/v1/runs", files={"log": log}, timeout=300, verify=PLAIN_HTTP).json()
        report = httpx2.get(
            f"{house.address}/api/v1/runs/{run['id']}/report?wait=120", timeout=300, verify=PLAIN_HTTP
        ).json()
    assert report["status"] == "judged", house.output
