"""Uploads per second of 1 MB logs, acknowledged and processed, compared with an empty endpoint and a commit.

First `make setup`. `.venv/bin/python -m bench.ingest` measures everything in one run, so that ratios are comparable. It
needs Redis and PostgreSQL. A client is a process that sends uploads one after another over one connection.
"""

import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from app.settings import Settings
from app.storage.database import make_engine, migrate, transaction
from app.storage.tables import ProjectRow
from app.storage.visible import see_every_project
from bench.options import without_options
from tests.embedded.processes import running
from tests.services.postgres_server import running_postgres
from tests.services.redis_server import free_port, running_redis
from tests.services.scaled import BEAT, WORKER, kill
from tests.training_logs import training_log

SECONDS = float(os.environ.get("BENCH_SECONDS", "6"))
CLIENTS = (1, 4)
WORKERS = 2
LOG = training_log(iterations=1000, noise_bytes=700_000)
HEAD = b'--b\r\nContent-Disposition: form-data; name="log"; filename="train.log"\r\n\r\n'
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


@dataclass(frozen=True)
class Row:
    what: str
    clients: int
    acknowledged_per_s: float
    processed_per_s: float | None = None


def main() -> None:
    see_every_project()
    without_options(__doc__)
    print(
        f"a log of {len(LOG) / 1e6:.2f} MB, {SECONDS:.0f} s each, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(running_postgres())
        redis_url = stack.enter_context(running_redis(free_port()))
        sqlite = Settings(data_dir=folder / "commit")
        postgresql = Settings(database_url=postgres.url(postgres.new_database()))
        rows = [*_bare(folder)]
        rows += [_commits("commit, SQLite", sqlite), _commits("commit, PostgreSQL", postgresql)]
        os.environ["THREEWALLS_LOG_LEVEL"] = "warning"
        for clients in CLIENTS:
            with running("serve", folder / f"embedded-{clients}") as house:
                rows.append(_uploads("embedded", house.address, clients))
        for clients in CLIENTS:
            with scaled(folder / f"scaled-{clients}", postgres.url(postgres.new_database()), redis_url) as address:
                rows.append(_uploads(f"scaled, {WORKERS} workers", address, clients))
    _print(rows)


def _bare(folder: Path) -> Iterator[Row]:
    """Measure an endpoint that does nothing: with an empty request, and with the form of an upload."""
    code = (
        "from fastapi import FastAPI, Request\napp = FastAPI()\n"
        "@app.post('/')\nasync def nothing(request: Request):\n    await request.form()\n    return {}\n"
    )
    (folder / "bare.py").write_text(code)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "bare:app", "--port", str(port), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=folder, start_new_session=True)
    try:
        _wait_for_port(port)
        for clients in CLIENTS:
            yield Row("empty endpoint", clients, _send(f"http://127.0.0.1:{port}/", clients, with_log=False)[0])
        for clients in CLIENTS:
            yield Row("empty endpoint + form", clients, _send(f"http://127.0.0.1:{port}/", clients)[0])
    finally:
        kill(process)


def _commits(what: str, settings: Settings) -> Row:
    migrate(settings)
    engine = make_engine(settings)
    done, end = 0, time.perf_counter() + SECONDS / 3
    while time.perf_counter() < end:
        with transaction(engine) as session:
            session.add(ProjectRow(slug=f"p{done}"))
        done += 1
    engine.dispose()
    return Row(what, 1, done / (SECONDS / 3))


def _uploads(what: str, address: str, clients: int) -> Row:
    _send(f"{address}/api/v1/runs", 1, seconds=1)  # the first requests import modules and open connections
    warm = _wait_until_processed(address)
    acknowledged, sent, began = _send(f"{address}/api/v1/runs", clients)
    total = _wait_until_processed(address)
    assert total - warm == sent, f"{sent} acknowledged, {total - warm} processed"
    return Row(what, clients, acknowledged, sent / (time.perf_counter() - began))


@contextmanager
def scaled(data: Path, database_url: str, broker_url: str) -> Iterator[str]:
    settings = {"DATABASE_URL": database_url, "BROKER_URL": broker_url, "DATA_DIR": str(data)}
    environment = {f"THREEWALLS_{name}": value for name, value in settings.items()}
    migrate(Settings(database_url=database_url))
    os.environ.update(environment)
    with ExitStack() as stack:
        for command in [(*WORKER, "-n", f"w{n}@bench") for n in range(WORKERS)] + [BEAT]:
            process = subprocess.Popen([sys.executable, "-m", *command], start_new_session=True)
            stack.callback(kill, process)
        yield stack.enter_context(running("serve", data)).address
    for name in environment:
        del os.environ[name]


def _send(url: str, clients: int, *, with_log: bool = True, seconds: float = SECONDS) -> tuple[float, int, float]:
    """Return requests per second, the number of requests, and when the first was sent."""
    with multiprocessing.get_context("spawn").Pool(clients) as pool:
        pool.map(abs, range(clients), chunksize=1)  # waits until the processes have imported their modules
        began = time.perf_counter()
        counts = pool.starmap(_client, [(url, number, seconds, with_log) for number in range(clients)], chunksize=1)
        return sum(counts) / (time.perf_counter() - began), sum(counts), began


def _client(url: str, number: int, seconds: float, with_log: bool) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        unlike = b"upload %d of client %d, %d\n" % (done, number, time.time_ns())
        body = HEAD + unlike + LOG + b"\r\n--b--\r\n" if with_log else b""
        connection.request("POST", parts.path, body, FORM if with_log else {})
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 202), answer.status
        done += 1
    connection.close()
    return done


def _wait_until_processed(address: str) -> int:
    """Wait until all runs are processed; return their number."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc)

    def total(query: str) -> int:
        connection.request("GET", f"/api/v1/runs?page_size=1&{query}")
        return int(json.loads(connection.getresponse().read())["total"])

    while (done := total("status=ready")) < total(""):
        time.sleep(0.05)
    connection.close()
    return done


def _wait_for_port(port: int) -> None:
    while True:
        try:
            http.client.HTTPConnection("127.0.0.1", port).connect()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)


def _print(rows: list[Row]) -> None:
    bare = {row.clients: row.acknowledged_per_s for row in rows if row.what == "empty endpoint + form"}
    print(f"{'':24} clients  acknowledged/s  processed/s  of empty endpoint + form")
    for row in rows:
        processed = f"{row.processed_per_s:11.1f}" if row.processed_per_s is not None else " " * 11
        ratio = f"{row.acknowledged_per_s / bare[row.clients]:8.1%}" if row.processed_per_s is not None else ""
        print(f"{row.what:24} {row.clients:7}  {row.acknowledged_per_s:14.1f}  {processed}  {ratio}")


if __name__ == "__main__":
    main()
