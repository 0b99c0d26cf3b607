"""Requests per second of the scaled service by its number of web processes, over one database.

`python -m bench.web_processes` starts `threewalls serve --web-processes N` for N = 1 and 2 (`--processes`) over one
PostgreSQL and one Redis. 8 connections read the API of each service alternately. The readers and the database use the
same cores, which limits scaling.
"""

import argparse
import http.client
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from app.settings import Settings
from app.storage.database import make_engine, migrate, transaction
from bench import options
from tests.builders import make_run
from tests.embedded.processes import Started, running
from tests.services.postgres_server import running_postgres
from tests.services.redis_server import free_port, running_redis
from tests.services.scaled import new_token

PATHS = ("/api/v1/runs/{run}", "/api/v1/runs?q={run}", "/api/v1/runs/{run}/suggestions", "/api/v1/runs?page={run}")
"""Paths. Each reader requests different runs, because identical concurrent requests share one answer."""
READERS = 8
RUNS = 96


def read_until(address: str, headers: dict[str, str], reader: int, until: float) -> int:
    """Read until the time `until`; return the number of answers."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    for number in itertools.count():
        if time.monotonic() >= until:
            return number
        path = PATHS[number % len(PATHS)].format(run=1 + (reader + READERS * number) % RUNS)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, (path, answer.status)
    return 0


def answers_per_second(address: str, headers: dict[str, str], seconds: float) -> float:
    began = time.monotonic()
    with ThreadPoolExecutor(READERS) as pool:
        answers = [pool.submit(read_until, address, headers, reader, began + seconds) for reader in range(READERS)]
        total = sum(answer.result() for answer in answers)
    return total / (time.monotonic() - began)


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--processes", type=options.count, nargs="+", default=[1, 2], help="numbers to compare (1 2)")
    parser.add_argument("--rounds", type=options.count, default=5, help="rounds (5)")
    parser.add_argument("--seconds", type=options.count, default=6, help="seconds of each service in a round (6)")
    chosen: argparse.Namespace = parser.parse_args()
    os.environ |= {"THREEWALLS_LOG_LEVEL": "warning", "THREEWALLS_REQUESTS_PER_MINUTE": "0"}
    print(f"{READERS} readers, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(running_postgres())
        redis = stack.enter_context(running_redis(free_port()))
        settings = Settings(database_url=postgres.url(postgres.new_database()))
        migrate(settings)
        headers = {"Authorization": f"Bearer {new_token(settings, 'bench')}"}
        engine = make_engine(settings)
        with transaction(engine) as session:
            for number in range(RUNS):
                make_run(session, name=f"run {number}", project="bench", step_time_ms=31_000.0 + number)
        engine.dispose()
        os.environ |= {"THREEWALLS_DATABASE_URL": settings.database_url, "THREEWALLS_BROKER_URL": redis}
        services: dict[int, Started] = {}
        for processes in chosen.processes:
            house = running("serve", folder / str(processes), "--web-processes", str(processes))
            services[processes] = stack.enter_context(house)
            stack.callback(services[processes].stop, signal.SIGTERM)
        rates: dict[int, list[float]] = {processes: [] for processes in services}
        for number in range(chosen.rounds + 1):
            for processes, service in services.items():
                rate = answers_per_second(service.address, headers, chosen.seconds)
                if number:  # the first round imports, compiles templates and opens connections
                    rates[processes].append(rate)
    least = statistics.median(rates[chosen.processes[0]])
    for processes, values in rates.items():
        rate = statistics.median(values)
        print(f"{processes:3} web processes: {rate:6.1f} answers a second, {rate / least:.2f} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
