"""The client in a folder with its own dependencies only, as `pip install threewalls` makes it; and without any: curl.

The wheel is built and everything is taken from what is installed here: no package index is asked.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from packaging.requirements import Requirement

from tests.delivery.wheel import ROOT, build_wheel
from tests.embedded.processes import Running
from tests.training_logs import training_log

pytestmark = pytest.mark.server
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed_by(requirements: list[str]) -> Iterator[str]:
    """Names of distributions, and of those that they need."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name
            yield from needed_by(importlib.metadata.requires(requirement.name) or [])


def copy_distribution(name: str, target: Path) -> None:
    for file in importlib.metadata.files(name) or ():
        source = Path(str(file.locate()))
        if ".." not in file.parts and source.is_file() and source.suffix != ".pyc":
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).write_bytes(source.read_bytes())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the client and its dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    target = folder / "site"
    with zipfile.ZipFile(build_wheel(folder)) as wheel:
        wheel.extractall(target)
    for name in set(needed_by(PROJECT["dependencies"])):
        copy_distribution(name, target)
    return target


def run(alone: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """-S and -I: nothing of this environment can be imported, only Python's own library and that folder."""
    program = f"import sys; sys.path.insert(0, {str(alone)!r}); from app.cli import main; sys.exit(main())"
    plain = {"PATH": os.environ["PATH"], "HOME": str(alone.parent)}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *words],
        env=plain | env, capture_output=True, text=True, timeout=300, check=False, cwd=alone.parent,
    )  # fmt: skip


def test_it_is_small(alone: Path) -> None:
    names = {path.name.partition("-")[0] for path in alone.glob("*.dist-info")}
    assert names == {
        "anyio", "h11", "httpcore2", "httpx2", "idna", "threewalls", "truststore", "typing_extensions", "zstandard",
    }  # fmt: skip


def test_it_uploads_and_brings_the_verdict(alone: Path, server: Running, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(training_log(step_time_ms=407))
    words = ("upload", str(log), "--project", "client-alone", "--set", "gpu=H100", "--wait", "--json")
    done = run(alone, *words, THREEWALLS_URL=server.address)
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["report"]["verdict"]["verdict"] == "no_baseline"
    assert run(alone, "doctor", str(log), THREEWALLS_URL=server.address).returncode == 0


@pytest.mark.parametrize("command", [["serve"], ["analyze", "train.log"], ["migrate"]], ids=lambda one: str(one[0]))
def test_what_needs_the_service_s_packages_says_which_extra(alone: Path, command: list[str]) -> None:
    done = run(alone, *command)
    assert done.returncode == 70
    assert "pip install 'path/to/threewalls[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_names_every_command(alone: Path) -> None:
    told = run(alone, "--help").stdout
    assert {"upload", "sync", "report", "runs", "token", "doctor", "serve"} <= set(
        re.findall(r"^    (\S+)", told, re.M)
    )


def curl_job(folder: Path, address: str) -> tuple[str, dict[str, str]]:
    """The documented script, and what a job in a checkout of the branch `work` has around it."""
    text = (ROOT / "docs/ci.md").read_text()
    script = re.search(r"## Without the client\n.*?```sh\n(.*?)```", text, re.DOTALL)
    assert script is not None
    (folder / "train.log").write_bytes(training_log(step_time_ms=408))
    subprocess.run(["git", "init", "-q", "-b", "work", folder], check=True, timeout=300)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, "commit", "-qm", "x", "--allow-empty"], cwd=folder, check=True, timeout=300)
    env = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "THREEWALLS_URL": address,
        "THREEWALLS_TOKEN": "tw_none", "THREEWALLS_PROJECT": "client-curl", "JOB_ID": "17",
    }  # fmt: skip
    return script[1], env


def in_shell(shell: list[str], script: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shell, script], env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_documented_curl_line_does_the_same_upload(server: Running, tmp_path: Path) -> None:
    script, env = curl_job(tmp_path, server.address)
    for shell in (["bash", "-euc"], ["sh", "-c"]):
        done = in_shell(shell, script, env, tmp_path)
        assert done.returncode == 4, done.stdout + done.stderr
    # As CI systems check out: a commit and no branch.
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=tmp_path, check=True, timeout=300)
    done = in_shell(["bash", "-euc"], script, env, tmp_path)
    assert (done.returncode, "BRANCH" in done.stderr) == (3, True), done.stderr
    done = in_shell(["bash", "-euc"], script, env | {"BRANCH": "work"}, tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    params = {"project": "client-curl"}
    (run_made,) = httpx2.get(f"{server.address}/api/v1/runs", params=params, timeout=300).json()["items"]
    assert (run_made["branch"], run_made["purpose"]) == ("work", "ci")


@pytest.mark.parametrize("shell", [["bash", "-euc"], ["sh", "-c"]], ids=lambda shell: str(shell[0]))
def test_the_documented_curl_line_ends_at_once_when_it_is_refused(
    server: Running, tmp_path: Path, shell: list[str]
) -> None:
    script, env = curl_job(tmp_path, server.address)
    (tmp_path / "train.log").write_bytes(b"")
    done = in_shell(shell, script, env | {"JOB_ID": "18"}, tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Nothing was saved" in done.stderr
    assert "retr" not in done.stderr
