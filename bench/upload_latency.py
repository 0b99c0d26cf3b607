"""Does a large upload slow other requests? Latency of the run list (JSON and page) before, during and after an upload.

`python -m bench.upload_latency` starts the embedded service with some runs and requests the list over one connection,
with a pause after each answer, while curl uploads the log. Everything is measured in one run, so that the figures hold
for one state of the machine. Optional variables: `BENCH_UPLOAD_MB` (1000), `BENCH_REST_SECONDS` (10).
"""

import http.client
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

from app.settings import Settings
from app.storage.database import make_engine, transaction
from app.storage.visible import see_every_project
from bench.options import without_options
from tests.builders import make_run
from tests.embedded.processes import running
from tests.training_logs import training_log

UPLOAD_MB = int(os.environ.get("BENCH_UPLOAD_MB", "1000"))
REST_SECONDS = float(os.environ.get("BENCH_REST_SECONDS", "10"))
RUNS = 200
PATHS = ("/api/v1/runs", "/runs")
PAUSE_SECONDS = 0.02
_WARM_UP = 20
_BLOCK_BYTES = 25_000_000


@dataclass(frozen=True)
class Answer:
    path: str
    began: float
    ms: float


def main() -> None:
    see_every_project()
    without_options(__doc__)
    os.environ["THREEWALLS_LOG_LEVEL"] = "warning"
    print(f"{UPLOAD_MB} MB, {RUNS} runs in the list, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        log, data = Path(folder) / "large.log", Path(folder) / "data"
        _write_log(log)
        with running("serve", data) as house:
            _make_runs(data)
            with _asking(house.address) as answers:
                time.sleep(REST_SECONDS)
                began = time.monotonic()
                answer = _upload(log, f"{house.address}/api/v1/runs")
                ended = time.monotonic()
                time.sleep(REST_SECONDS)
    assert '"status":"received"' in answer, answer
    took = ended - began
    print(f"the upload took {took:.1f} s ({UPLOAD_MB / took:.0f} MB/s)\n")
    print(f"{'':20} {'':14} requests     median        p95        max   (ms)")
    _print("at rest", [a for a in answers if a.began + a.ms / 1000 < began])
    _print("during the upload", [a for a in answers if a.began + a.ms / 1000 >= began and a.began <= ended])
    _print("while it is read", [a for a in answers if a.began > ended])


def _write_log(path: Path) -> None:
    block = training_log(1000, noise_bytes=_BLOCK_BYTES)
    with path.open("wb") as file:
        for _ in range(UPLOAD_MB * 1_000_000 // len(block)):
            file.write(block)


def _make_runs(data: Path) -> None:
    engine = make_engine(Settings(data_dir=data))
    with transaction(engine) as session:
        for number in range(RUNS):
            make_run(session, name=f"run {number}", step_time_ms=31_000.0 + number)
    engine.dispose()


def _upload(log: Path, url: str) -> str:
    done = subprocess.run(["curl", "-sS", "-F", f"log=@{log}", url], capture_output=True, text=True, check=True)
    return done.stdout


@contextmanager
def _asking(address: str) -> Iterator[list[Answer]]:
    """Send requests from a separate process; the answers are available after the block."""
    context = multiprocessing.get_context("spawn")
    ready, stop, queue = context.Event(), context.Event(), context.SimpleQueue()
    process = context.Process(target=_ask, args=(address, ready, stop, queue))
    process.start()
    ready.wait()
    answers: list[Answer] = []
    yield answers
    stop.set()
    answers += queue.get()
    process.join()


def _ask(address: str, ready: Event, stop: Event, queue: "multiprocessing.SimpleQueue[list[Answer]]") -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    for number in range(_WARM_UP):
        _get(connection, PATHS[number % len(PATHS)])
    ready.set()
    answers = []
    while not stop.is_set():
        for path in PATHS:
            began = time.monotonic()
            _get(connection, path)
            answers.append(Answer(path, began, 1000 * (time.monotonic() - began)))
            time.sleep(PAUSE_SECONDS)
    connection.close()
    queue.put(answers)


def _get(connection: http.client.HTTPConnection, path: str) -> None:
    connection.request("GET", path, headers={"Accept": "text/html" if path == "/runs" else "application/json"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200


def _print(phase: str, answers: Sequence[Answer]) -> None:
    for path in PATHS:
        values = [answer.ms for answer in answers if answer.path == path]
        row = (statistics.median(values), _p95(values), max(values))
        print(f"{phase:20} {path:14} {len(values):8}  " + "  ".join(f"{value:9.1f}" for value in row))


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


if __name__ == "__main__":
    main()
