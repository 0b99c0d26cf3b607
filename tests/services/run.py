"""Shared by the processes of one test run: a folder, and the servers that each of them finds or starts."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.services import janitor

FOLDER = "TEST_RUN_FOLDER"
PREFIX = "threewalls-tests-"
ALIVE = "alive"
"""File that a run locks while it lasts, with its token."""
MEMORY = Path("/dev/shm")  # noqa: S108  # it gets a folder of its own
MEMORY_BYTES = 6 * 2**30
"""A run takes 1 GiB of it at most."""


def begin(config: pytest.Config) -> None:
    """Start the janitor. Processes of xdist inherit the run of the process that started them."""
    if hasattr(config, "workerinput"):
        return
    token = uuid.uuid4().hex
    end_lost_runs(_parent())
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=_parent())
    config.stash[_ALIVE] = alive = (Path(folder) / ALIVE).open("w")
    fcntl.flock(alive, fcntl.LOCK_EX)
    print(token, file=alive, flush=True)
    Path(folder).chmod(0o755)  # PostgreSQL's user must be able to walk to its folder
    temporary = Path(folder) / "tmp"
    temporary.mkdir()
    os.environ |= {janitor.VARIABLE: token, FOLDER: folder, "TMPDIR": str(temporary)}
    tempfile.tempdir = None  # so that pytest's own folders are there as well
    environment = {name: value for name, value in os.environ.items() if name != janitor.VARIABLE}
    config.stash[_JANITOR] = subprocess.Popen(
        [sys.executable, "-I", janitor.__file__, token, str(os.getpid()), folder],
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def end(config: pytest.Config) -> None:
    """The same as the janitor, so that the run ends after what it started."""
    process = config.stash.get(_JANITOR, None)
    if process is None:
        return
    process.kill()
    process.wait()
    folder = os.environ.pop(FOLDER)
    janitor.end_all(os.environ.pop(janitor.VARIABLE), folder)
    shutil.rmtree(folder, ignore_errors=True)
    config.stash[_ALIVE].close()


def end_lost_runs(parent: Path) -> None:
    """Clean up after runs that were killed together with their janitor: their lock is free."""
    for alive in parent.glob(f"{PREFIX}*/{ALIVE}"):
        with suppress(OSError), alive.open() as file:  # of another user, or another run ends it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if token := file.read().strip():  # otherwise it is about to take its lock
                janitor.end_all(token, str(alive.parent))
                shutil.rmtree(alive.parent, ignore_errors=True)


def _parent() -> Path:
    """Return a folder in memory if there is enough, because databases and logs of tests often wait for the disk."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        return MEMORY
    return Path(tempfile.gettempdir())


def folder() -> Path:
    return Path(os.environ[FOLDER])


def once(name: str, make: Callable[[], Any]) -> Any:
    """Return the result of `make` from the first process that requested `name`, converted through JSON."""
    path = folder() / f"{name}.json"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


_JANITOR = pytest.StashKey[subprocess.Popen[bytes]]()
_ALIVE = pytest.StashKey[TextIO]()
