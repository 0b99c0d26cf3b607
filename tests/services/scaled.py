"""The scaled mode as processes: the commands of `docker-compose.yml`, each with its environment."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from app.domain.access.principal import Scope
from app.settings import Settings
from app.storage.database import make_engine, transaction
from app.storage.tokens import make_token
from tests.builders import make_project
from tests.embedded.processes import PLAIN_HTTP, Running, running, wait_for

CALM = {"THREEWALLS_SWEEP_SECONDS": "0.5", "THREEWALLS_LOG_LEVEL": "warning"}
QUICK = {**CALM, "THREEWALLS_LEASE_SECONDS": "2", "THREEWALLS_MAX_ATTEMPTS": "20"}
"""For tests that kill workers. Elsewhere a slow machine would lose the lease of a worker that is alive."""
CELERY = ("celery", "--quiet", "-A", "workers.celery_app")
WORKER = (*CELERY, "worker", "--loglevel=warning", "--without-mingle", "--without-gossip")
BEAT = (*CELERY, "beat", "--loglevel=warning", "--pidfile=")
BLOCKED_WORKER = ("tests.services.blocked_worker", *WORKER[1:])


@dataclass
class House:
    """A web process at `address`, and the workers that the test starts."""

    data: Path
    stack: ExitStack
    web: Running
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    """Those of a job with a token of the project: here everybody logs in."""

    def start(self, command: Sequence[str], name: str = "") -> subprocess.Popen[bytes]:
        """A Python module as a process in its own session, stopped with the service."""
        extra = ("-n", f"{name}@test") if name else ()
        process = subprocess.Popen([sys.executable, "-m", *command, *extra], start_new_session=True)
        self.stack.callback(kill, process)
        return process

    def upload(self, log: bytes, **headers: str) -> int:
        """The run's id, once it is acknowledged."""
        answer = httpx2.post(
            f"{self.web.address}/api/v1/runs",
            files={"log": log},
            headers=headers | self.headers,
            timeout=300,
            verify=PLAIN_HTTP,
        )
        assert answer.status_code in (200, 202), answer.text
        return int(answer.json()["id"])

    def run(self, run_id: int) -> dict[str, object]:
        answer = httpx2.get(
            f"{self.web.address}/api/v1/runs/{run_id}", headers=self.headers, timeout=300, verify=PLAIN_HTTP
        )
        run: dict[str, object] = answer.json()
        return run

    def wait_until(self, run_id: int, *statuses: str) -> dict[str, object]:
        wait_for(lambda: self.run(run_id)["status"] in statuses, f"run {run_id} to be {' or '.join(statuses)}")
        return self.run(run_id)


@contextmanager
def scaled_house(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    database_url: str,
    broker_url: str,
    project: str = "default",
    kills: bool = False,
) -> Iterator[House]:
    """Web over PostgreSQL, Redis and a shared artifact folder; the environment is for all processes started after."""
    settings = {"DATABASE_URL": database_url, "BROKER_URL": broker_url, "DATA_DIR": str(data)}
    for name, value in (
        (QUICK if kills else CALM) | {f"THREEWALLS_{name}": value for name, value in settings.items()}
    ).items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        web = stack.enter_context(running("serve", data))
        token = new_token(Settings(), project)
        yield House(data, stack, web, headers={"Authorization": f"Bearer {token}"})


def new_token(settings: Settings, project: str) -> str:
    """Create a project and a token of it."""
    engine = make_engine(settings)
    with transaction(engine) as session:
        row = make_project(session, project)
        token = make_token(session, project_id=row.id or 0, name="ci", scopes=list(Scope), by="test")[1]
    engine.dispose()
    return token


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it and all of its children immediately with kill -9."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
