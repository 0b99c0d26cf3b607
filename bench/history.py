"""Server time of a stack's history: page and chart of 50, 1,000 and 5,000 runs, compared with an empty page.

First `make setup`. `.venv/bin/python -m bench.history` fills an SQLite database with processed runs, judges them with
the real judge, and sends requests to one process of the service. It prints response times at the client and processor
times of the service, which other load affects little.
"""

import http.client
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from app.settings import Settings, get_settings
from app.storage.database import make_engine, migrate, transaction
from app.storage.tables import RunRow
from app.storage.visible import see_every_project
from bench.options import without_options
from tests.builders import make_stack
from tests.embedded.processes import Running, running

SIZES = (50, 1000, 5000)
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "40"))
PARTS = {"page": "", "chart": "/chart", "chart and table (zoom)": "/data", "table": "/runs", "CSV": "/runs.csv"}
LIMIT_MS = 150
CHANGES_EVERY = 80
"""Runs between change points: a stack of 1,000 runs has a dozen change points."""


@dataclass(frozen=True)
class Row:
    what: str
    median_ms: float
    highest_ms: float
    cpu_ms: float
    kilobytes: float


def main() -> None:
    see_every_project()
    without_options(__doc__)
    print(f"{ROUNDS} requests each, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        os.environ["THREEWALLS_DATA_DIR"], os.environ["THREEWALLS_LOG_LEVEL"] = str(data), "warning"
        get_settings.cache_clear()
        keys = _fill(Settings(data_dir=data))
        with running("serve", data) as house:
            rows = [_measure("empty page (a list without a match)", house, "/history?q=nothing-has-this-name")]
            rows += [_measure("list of stacks", house, "/history")]
            for size, key in keys.items():
                rows += [
                    _measure(f"{size:,} runs, {what}", house, f"/history/{key}{path}") for what, path in PARTS.items()
                ]
                rows.append(_measure(f"{size:,} runs, API", house, f"/api/v1/history/{key}"))
    print(f"{'':40} median ms  highest ms  processor ms       kB")
    for row in rows:
        print(f"{row.what:40} {row.median_ms:9.1f}  {row.highest_ms:10.1f}  {row.cpu_ms:12.1f}  {row.kilobytes:7.1f}")
    slow = [row.what for row in rows if row.median_ms > LIMIT_MS and row.what.endswith(("page", "chart"))]
    print(f"limit {LIMIT_MS} ms for page and chart: {'met' if not slow else 'exceeded by ' + ', '.join(slow)}")
    sys.exit(bool(slow))


def _fill(settings: Settings) -> dict[int, str]:
    """Fill the database; return stack keys by number of runs. Every tenth run of a stack has a second configuration."""
    migrate(settings)
    engine = make_engine(settings)
    draw = np.random.default_rng(5)
    keys = {}
    for size in SIZES:
        with transaction(engine) as session:
            others = size // 10
            levels = [400.0 * 1.03 ** (k // CHANGES_EVERY % 3) for k in range(size - others)]
            times = [ms * math.exp(0.005 * draw.standard_normal()) for ms in levels]
            runs = make_stack(session, times, project=f"bench-{size}", judged=others == 0)
            knob = {"dispatcher": "hybridep", "dispatcher_type": "flex"}
            times = [330.0 * math.exp(0.005 * draw.standard_normal()) for _ in range(others)]
            make_stack(session, times, project=f"bench-{size}", fields=knob, judged=True)
            keys[size] = session.get_one(RunRow, runs[0]).stack_key
    engine.dispose()
    return keys


def _measure(what: str, house: Running, path: str) -> Row:
    parts = urlsplit(house.address)
    connection = http.client.HTTPConnection(parts.netloc)
    headers = {"HX-Request": "true"} if path.endswith(("/chart", "/data", "/runs")) else {"Accept": "*/*"}
    times, size, used = [], 0, 0.0
    for number in range(ROUNDS + 3):
        if number == 3:  # the first requests import modules and open connections
            used = _cpu_seconds(house)
        began = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        size = len(answer.read())
        if number >= 3:
            times.append((time.perf_counter() - began) * 1000)
        assert answer.status == 200, (path, answer.status)
    connection.close()
    cpu = (_cpu_seconds(house) - used) / ROUNDS * 1000
    return Row(what, statistics.median(times), max(times), cpu, size / 1000)


def _cpu_seconds(house: Running) -> float:
    """Return the processor seconds of the web process. The worker is a separate, idle process."""
    fields = Path(f"/proc/{house.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
