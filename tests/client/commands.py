"""The `threewalls` command as a job calls it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 120


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def job_environment(url: str, folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a job outside any CI system, regardless of where these tests run."""
    plain = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT", "PYTHONPATH") if name in os.environ}
    return {**plain, "HOME": str(folder), "THREEWALLS_URL": url, **more}


def threewalls(url: str, folder: Path, *words: str, **env: str) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", *words],
        env=job_environment(url, folder, **env), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)
