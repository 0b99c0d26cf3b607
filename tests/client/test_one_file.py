"""The one-file client, as a job downloads it from the service, and its Python library, on the oldest Python."""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import numpy as np
import pytest
import zstandard

from app.client.service import client_version
from tests.client.commands import Done, job_environment
from tests.embedded.processes import Running
from tests.training_logs import training_log
from threewalls import Client, ServiceError

pytestmark = pytest.mark.server
OLDEST = (3, 9)


def version_of(python: str) -> tuple[int, ...]:
    """Return () for a program that does not start: a version manager may offer versions that are not installed."""
    program = "import sys; print(*sys.version_info[:2])"
    shown = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return tuple(map(int, shown.stdout.split()))


@pytest.fixture(scope="module")
def python() -> str:
    """The oldest Python of this machine from 3.9 on."""
    names = [shutil.which(f"python3.{minor}") for minor in range(9, sys.version_info.minor)]
    paths = {*filter(None, names), *map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3")), sys.executable}
    return min((path for path in paths if version_of(path) >= OLDEST), key=version_of)


@pytest.fixture
def folder(server: Running, tmp_path: Path) -> Path:
    """The result of `curl -O $URL/client/threewalls.pyz`, in a folder with packages that have the names of ours."""
    for name in ("threewalls.pyz", "threewalls.pyz.sha256"):
        (tmp_path / name).write_bytes(httpx2.get(f"{server.address}/client/{name}", timeout=300).content)
    for name in ("app", "workers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('a package of the job')\n")
    (tmp_path / "train.log").write_bytes(training_log(step_time_ms=409))
    return tmp_path


def in_job(python: str, server: Running, folder: Path, *words: str) -> Done:
    """-S: without any installed package."""
    env = job_environment(server.address, folder, THREEWALLS_PROJECT="client-one-file")
    done = subprocess.run(
        [python, "-S", "threewalls.pyz", *words],
        env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_job_fetches_the_client_and_gets_its_verdict(python: str, server: Running, folder: Path) -> None:
    subprocess.run(["sha256sum", "--check", "threewalls.pyz.sha256"], cwd=folder, check=True, timeout=300)
    assert in_job(python, server, folder, "--version").out.split() == ["threewalls", client_version()]
    done = in_job(python, server, folder, "upload", "train.log", "--set", "gpu=H100", "--wait", "--json")
    assert done.code == 4, done.err
    assert done.document["report"]["verdict"]["verdict"] == "no_baseline"
    (folder / "again.log.gz").write_bytes(gzip.compress(training_log(step_time_ms=411)))
    assert in_job(python, server, folder, "upload", "again.log.gz", "--set", "gpu=H100").code == 0
    assert len(in_job(python, server, folder, "runs", "--json").document["items"]) == 2
    assert in_job(python, server, folder, "doctor", "train.log").code == 0
    assert in_job(python, server, folder, "report", str(done.document["id"])).code == 4
    packed = zstandard.compress(training_log(step_time_ms=412))
    (folder / "third.log.zst").write_bytes(packed)
    refused = in_job(python, server, folder, "upload", "third.log.zst")
    assert (refused.code, "zstandard" in refused.err) == (3, True), refused.err


def test_the_file_of_one_version_is_always_the_same_and_is_cached(server: Running) -> None:
    first, second = (httpx2.get(f"{server.address}/client/threewalls.pyz", timeout=300) for _ in range(2))
    assert first.content == second.content
    headers = {"If-None-Match": first.headers["ETag"]}
    assert httpx2.get(f"{server.address}/client/threewalls.pyz", headers=headers, timeout=300).status_code == 304
    checksum = httpx2.get(f"{server.address}/client/threewalls.pyz.sha256", timeout=300).text.split()[0]
    assert hashlib.sha256(first.content).hexdigest() == checksum


PROGRAM = """
import json
from threewalls import Client

with Client() as client:
    run = client.upload("train.log", meta={"gpu": "H100"})
    assert client.upload("train.log", meta={"gpu": "H100"}).id == run.id
    verdict = client.verdict(run, wait=300)
    (listed,) = client.search(branch="", model="")
    series = client.series(listed)
    print(json.dumps([run.id, verdict.outcome, listed.step_time_ms, len(series.columns["iteration"])]))
"""


def test_the_library_works_next_to_packages_of_the_job(python: str, server: Running, folder: Path) -> None:
    (folder / "train.log").write_bytes(training_log(step_time_ms=413))
    env = job_environment(server.address, folder, PYTHONPATH="threewalls.pyz", THREEWALLS_PROJECT="library-old")
    done = subprocess.run(
        [python, "-S", "-c", PROGRAM], env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    run, outcome, step_time, iterations = json.loads(done.stdout)
    assert (run > 0, outcome, 400 < step_time < 430, iterations > 10) == (True, "no_baseline", True, True)


def test_series_come_as_arrays_and_as_a_frame(server: Running, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(training_log(step_time_ms=414))
    with Client(server.address, project="library-new", retries=0) as client:
        run = client.upload(log, meta={"gpu": "H100", "name": "from python"})
        assert client.verdict(run, wait=300).exit_code == 4
        assert client.run(run).name == "from python"
        arrays = client.series(run).arrays()
        frame = client.series(run).frame()
        assert np.allclose(frame["step_time_ms"], arrays["step_time_ms"], equal_nan=True)
        assert frame.index.name == "iteration"
        assert isinstance(client.suggestions(run), list)
        assert list(client.regressions(state="open")) == []
        with pytest.raises(ServiceError) as refused:
            client.run(2**31 - 1)
        assert refused.value.status == 404
        with pytest.raises(ServiceError, match="gpus"):
            client.upload(log, meta={"gpus": "many"})
    with pytest.raises(ServiceError, match="could not be reached"):
        Client("http://127.0.0.1:1", retries=0).run(1)
    assert "tw_secret" not in repr(Client(server.address, token="tw_secret"))
    assert os.environ.get("THREEWALLS_TOKEN") is None
