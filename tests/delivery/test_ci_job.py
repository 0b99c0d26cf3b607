"""A shell script that plays a CI job against a real service with log-ins: uploads, verdicts, an outage, `sync`."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from app.client.upload import PIECE_BYTES
from app.domain.access.principal import Scope
from app.settings import Settings
from app.storage import tokens, users
from app.storage.database import make_engine, transaction
from tests.builders import make_project
from tests.domain.profiles.traces import corpus
from tests.embedded.processes import wait_for
from tests.services.github_server import GitHub, running_github
from tests.services.redis_server import free_port
from tests.training_logs import training_log

pytestmark = pytest.mark.server

SCRIPT = Path(__file__).with_name("ci_job.sh")


def prepare(data: Path) -> tuple[str, str]:
    """A database with an administrator, so that log-ins are required, and two tokens of `moe`: upload and read."""
    engine = make_engine(Settings(data_dir=data))
    with transaction(engine) as session:
        users.create_user(session, "mara", by="test", password="correct horse battery", administrator=True)
        project = make_project(session, "moe")
        secrets = {
            scope: tokens.make_token(session, project_id=project.id or 0, name=scope, scopes=[scope], by="test")[1]
            for scope in (Scope.UPLOAD, Scope.READ)
        }
    engine.dispose()
    return secrets[Scope.UPLOAD], secrets[Scope.READ]


def write_logs(folder: Path) -> None:
    folder.mkdir()
    for number in range(1, 13):
        log = training_log(step_time_ms=400 + 0.3 * (number * 7 % 5))
        (folder / f"main-{number}.log").write_bytes(log)
    (folder / "slow.log").write_bytes(training_log(step_time_ms=440))
    (folder / "long.log").write_bytes(training_log(step_time_ms=400.2, noise_bytes=PIECE_BYTES * 2))


def service_commands(folder: Path, port: int) -> tuple[str, str]:
    """How the script kills the service, and how it starts it and waits until it answers."""
    address = f"http://127.0.0.1:{port}"
    started = f"{sys.executable} -m app.cli serve --data {folder}/data --port {port}"
    back = (
        f"setsid {started} > {folder}/service.txt 2>&1 & echo $! > {folder}/pid; "
        f"until curl -sf {address}/healthz > /dev/null; do kill -0 $(cat {folder}/pid) || exit 1; sleep 0.1; done"
    )
    return f"sleep 0.6; kill -9 -- -$(cat {folder}/pid)", back


@pytest.fixture
def forge() -> Iterator[GitHub]:
    with running_github("/api/v3") as forge:
        yield forge


def test_a_ci_job_from_the_first_upload_to_the_sync_after_an_outage(
    tmp_path: Path, forge: GitHub, migrated_data: Path
) -> None:
    (token, reader), port = prepare(migrated_data), free_port()
    write_logs(tmp_path / "logs")
    outage, back = service_commands(tmp_path, port)
    (tmp_path / "home").mkdir()
    address = f"http://127.0.0.1:{port}"
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path / "home"),
        "THREEWALLS_URL": address, "THREEWALLS_TOKEN": token, "LOGS": str(tmp_path / "logs"),
        "FORGE": forge.base, "OUTAGE": outage, "BACK": back, "THREEWALLS_SWEEP_SECONDS": "1",
    }  # fmt: skip
    try:
        subprocess.run(["bash", "-c", back], env=env, check=True, timeout=300)
        done = subprocess.run(
            [SCRIPT], env=env, cwd=tmp_path / "home", timeout=300, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        assert token not in done.stdout
        headers = {"Authorization": f"Bearer {reader}"}

        def runs() -> list[dict[str, object]]:
            params = {"page_size": 100}
            items: list[dict[str, object]] = httpx2.get(
                f"{address}/api/v1/runs", params=params, headers=headers, timeout=300
            ).json()["items"]
            return items

        assert len(runs()) == 12 + 2 + 3 + 1, "each upload is one run, however often it was sent"
        wait_for(lambda: {run["status"] for run in runs()} == {"ready"}, "all runs to be read")
        assert {run["project"] for run in runs()} == {"moe"}
        assert (tmp_path / "home/comment.md").read_text().startswith("**")
        assert (len(forge.comments), "regression" in forge.comments[0]["body"], forge.wrong) == (1, True, [])
        assert [check["conclusion"] for check in forge.checks] == ["failure"]
        assert [item.body["conclusion"] for item in forge.asked if "check-runs" in item.path and item.body] == [
            "success", "failure",
        ]  # fmt: skip
    finally:
        subprocess.run(["bash", "-c", f"kill -9 -- -$(cat {tmp_path}/pid)"], check=False, timeout=10)


# --- The Slurm job that records a profile: run in full with small programs in place of srun and nsys.

ROOT = Path(__file__).parents[2]
SRUN = """
status=0 tasks=()
for rank in 0 1 2 3; do SLURM_PROCID=$rank "$@" & tasks+=($!); done
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit $status
"""
NSYS = """
if [ "$1" = export ]; then cp "${!#}" "${@: -2:1}"; exit; fi
shift
while [[ $1 == --* ]]; do [[ $1 == --output=* ]] && report=${1#--output=}; shift; done
status=0
"$@" || status=$?
cp "$EXPORT" "$report.nsys-rep"
exit $status
"""
TRAINER = 'echo "rank $SLURM_PROCID: $*"; [ "$SLURM_PROCID" != "$FAILING" ] || exit 3'


@pytest.mark.parametrize(("failing", "status"), [("", 0), ("2", 3)])
def test_the_profile_of_a_job_is_exported_and_uploaded_also_when_the_job_fails(
    tmp_path: Path, failing: str, status: int
) -> None:
    client = f'exec {Path(sys.executable).with_name("threewalls")} "$@" --offline'
    for name, text in (("srun", SRUN), ("nsys", NSYS), ("train", TRAINER), ("threewalls", client)):
        program = tmp_path / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    export = tmp_path / "export.sqlite"
    export.write_bytes(gzip.decompress((corpus() / "synthetic/seed-11/nsys-ranges.sqlite.gz").read_bytes()))
    settings = {"SLURM_JOB_ID": "7", "PROFILE_RANKS": "0 2", "PROFILE_FOLDER": str(tmp_path / "profile")}
    settings |= {"EXPORT": str(export), "FAILING": failing, "THREEWALLS_SPOOL": str(tmp_path / "spool")}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "docs/ci/profile.sbatch", "train", "--lr", "1 e-4"],
        cwd=ROOT,
        env=os.environ | settings | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    exports = sorted(file.name for file in (tmp_path / "profile").glob("*.sqlite"))
    assert exports == ["rank-0.sqlite", "rank-2.sqlite"]
    log = (tmp_path / "profile/train.log").read_text()
    options = "--profile --profile-step-start 20 --profile-step-end 23 --profile-ranks 0 2"
    assert sorted(log.splitlines()) == [f"rank {rank}: --lr 1 e-4 {options}" for rank in range(4)]
    (stored,) = (tmp_path / "spool").glob("*/upload.json")
    assert json.loads(stored.read_text())["meta"]["purpose"] == "experiment"
