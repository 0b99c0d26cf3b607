"""The Slurm job that records a profile: run in full with small programs in place of srun and nsys."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.domain.profiles.traces import corpus

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
