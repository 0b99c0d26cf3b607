"""Many concurrent readers: 64 readers of 8 kinds of pages and 4 uploaders, on the embedded service.

`python -m bench.readers` starts the service with some runs and times a single reader for a tenth of the duration. Then
`BENCH_READERS` (64) loopback connections read for `BENCH_SECONDS` (180) while `BENCH_UPLOADERS` (4) clients upload.
Then it times single requests again. It fails if a request failed, an upload was not acknowledged, or one of the last
requests took a second or more. Readers cycle through the kinds of pages without a pause. It prints the 95th percentile
of each kind as a multiple of the single reader's; the goal is at most 20.
"""

import collections
import http.client
import itertools
import multiprocessing
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from app.settings import Settings
from app.storage.database import make_engine, transaction
from bench.options import without_options
from tests.builders import make_leaderboard, make_run
from tests.embedded.processes import running
from tests.training_logs import training_log

READERS = int(os.environ.get("BENCH_READERS", "64"))
UPLOADERS = int(os.environ.get("BENCH_UPLOADERS", "4"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "180"))
MOST_TIMES = 20
AFTERWARDS_SECONDS = 1.0
RUNS = 100
PATHS = ("/", "/runs", "/runs/1", "/regressions", "/leaderboards", "/history", "/compare?a=1&b=2", "/api/v1/runs")
UPLOAD = "POST /api/v1/runs"

Answer = tuple[str, int, float]
"""Path, status (0: no answer) and seconds."""


def main() -> None:
    without_options(__doc__)
    os.environ |= {"THREEWALLS_LOG_LEVEL": "error", "THREEWALLS_REQUESTS_PER_MINUTE": "0"}
    print(f"{READERS} readers, {len(PATHS)} kinds of page, {UPLOADERS} uploaders, {SECONDS:g} s, ", end="")
    print(f"{os.cpu_count()} cores, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with running("serve", data) as house:
            make_rows(data)
            for path in (*PATHS, "/healthz"):
                assert ask(connection(house.address), path)[1] == 200, path
            alone = under_load(house.address, readers=1, uploaders=0, seconds=SECONDS / 10)
            answers = under_load(house.address, readers=READERS, uploaders=UPLOADERS, seconds=SECONDS)
            after = [ask(connection(house.address), path) for path in ("/healthz", *PATHS)]
    show(answers, {path: percentile(rows, 0.95) for path, rows in by_path(alone).items()})
    slowest = max(after, key=lambda answer: answer[2])
    print(f"\nafterwards the slowest of {len(after)} single requests took {slowest[2] * 1000:.0f} ms ({slowest[0]})")
    failed = [answer for answer in answers + after if answer[1] not in (200, 202)]
    assert not failed, f"{len(failed)} of {len(answers)} requests failed: {failed[:5]}"
    assert slowest[2] < AFTERWARDS_SECONDS, slowest


def make_rows(data: Path) -> None:
    engine = make_engine(Settings(data_dir=data))
    with transaction(engine) as session:
        for number in range(RUNS):
            make_run(session, name=f"run {number}", step_time_ms=31_000.0 + number)
        make_leaderboard(session, "leaders")
    engine.dispose()


def under_load(address: str, *, readers: int, uploaders: int, seconds: float) -> list[Answer]:
    """Return all answers of the readers (in a separate process) and of the uploaders."""
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.SimpleQueue[list[Answer]] = context.SimpleQueue()
    process = context.Process(target=read_all, args=(address, readers, seconds, queue))
    process.start()
    answers: list[Answer] = []
    until = time.monotonic() + seconds
    uploads = [threading.Thread(target=upload_until, args=(address, until, answers)) for _ in range(uploaders)]
    for thread in uploads:
        thread.start()
    read = queue.get()
    process.join()
    for thread in uploads:
        thread.join()
    return read + answers


def read_all(address: str, readers: int, seconds: float, queue: "multiprocessing.SimpleQueue[list[Answer]]") -> None:
    answers: list[Answer] = []
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=read_until, args=(address, n, until, answers)) for n in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.put(answers)


def read_until(address: str, number: int, until: float, answers: list[Answer]) -> None:
    open_connection = connection(address)
    for path in itertools.islice(itertools.cycle(PATHS), number, None):
        if time.monotonic() >= until:
            return
        answers.append(ask(open_connection, path))


def upload_until(address: str, until: float, answers: list[Answer]) -> None:
    log = training_log(200)
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            sent = {"log": (f"{uuid.uuid4().hex}.log", f"# {uuid.uuid4()}\n".encode() + log)}
            status = httpx2.post(f"{address}/api/v1/runs", files=sent, timeout=60).status_code
        except httpx2.RequestError:
            status = 0
        answers.append((UPLOAD, status, time.monotonic() - began))


def connection(address: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)


def ask(open_connection: http.client.HTTPConnection, path: str) -> Answer:
    began = time.monotonic()
    try:
        open_connection.request("GET", path, headers={"Accept": "text/html" if not path.startswith("/api") else "*/*"})
        answer = open_connection.getresponse()
        answer.read()
        status = answer.status
    except (OSError, http.client.HTTPException):
        open_connection.close()
        status = 0
    return path, status, time.monotonic() - began


def by_path(answers: Sequence[Answer]) -> dict[str, list[tuple[float, int]]]:
    """Return seconds and status of the answers of each path."""
    rows = collections.defaultdict(list)
    for path, status, seconds in answers:
        rows[path].append((seconds, status))
    return rows


def percentile(rows: Sequence[tuple[float, int]], share: float) -> float:
    times = sorted(seconds for seconds, _ in rows)
    return times[int(share * (len(times) - 1))]


def show(answers: Sequence[Answer], alone: Mapping[str, float]) -> None:
    print(f"\n{'':26} answers  failed     median        p95        max   (s)   p95, times the single reader's")
    for path, rows in sorted(by_path(answers).items()):
        failed = sum(status not in (200, 202) for _, status in rows)
        figures = (percentile(rows, 0.5), percentile(rows, 0.95), percentile(rows, 1.0))
        times = f"{figures[1] / alone[path]:12.1f} of {MOST_TIMES}" if path in alone else ""
        print(f"{path:26}{len(rows):8}{failed:8}" + "".join(f"{figure:11.3f}" for figure in figures) + times)
    print(f"{len(answers) / SECONDS:.1f} answers a second")


if __name__ == "__main__":
    main()
