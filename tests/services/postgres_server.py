"""A real PostgreSQL on a free port. It refuses to run as root, so as root it is started as the user `postgres`."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.redis_server import free_port

DEBIAN_BINARIES = Path("/usr/lib/postgresql")
ACCOUNT = "postgres" if os.geteuid() == 0 else None
SPEED = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c max_connections=300"


@dataclass(frozen=True)
class Postgres:
    port: int

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def new_database(self, template: str = "template1") -> str:
        """Name of a new database, a copy of `template`."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.run(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def run(self, statement: str) -> None:
        import psycopg  # noqa: PLC0415

        with psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", autocommit=True) as connection:
            connection.execute(statement.encode())


def start_postgres(folder: Path) -> int:
    """Start a cluster below `folder`; returns its port. It runs until somebody stops it, such as the janitor."""
    folder.mkdir()
    if ACCOUNT:
        shutil.chown(folder, ACCOUNT)
    port = free_port()
    _run(folder, "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} {SPEED}"
    _run(folder, "pg_ctl", "-l", str(folder / "log"), "-o", options, "-w", "start")
    return port


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A cluster that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="threewalls-pg-") as parent:
        Path(parent).chmod(0o755)  # PostgreSQL's user must be able to walk to its folder
        folder = Path(parent) / "postgres"
        port = start_postgres(folder)
        try:
            yield Postgres(port)
        finally:
            _run(folder, "pg_ctl", "-m", "immediate", "-w", "stop")


def _run(folder: Path, program: str, *arguments: str) -> None:
    command = [_binary(program), "-D", str(folder / "data"), *arguments]
    done = subprocess.run(command, user=ACCOUNT, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def _binary(name: str) -> str:
    """On the path, or where Debian installs each major version. If it is missing, the test fails."""
    if result := shutil.which(name):
        return result
    versions = sorted(DEBIAN_BINARIES.glob(f"*/bin/{name}"))
    assert versions, f"{name} is not installed: install PostgreSQL (`make test` does it where it may)"
    return str(versions[-1])
