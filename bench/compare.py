"""Server time of a comparison: two runs of 10,000 iterations each, and two sets of five runs of 50 iterations.

First `make setup`. `.venv/bin/python -m bench.compare` fills an SQLite database and calls the application in this
process, without a network. The first requests are not measured, because they import the chart library and fill its
cache of specifications.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings, get_settings
from app.storage.database import make_engine, migrate, transaction
from app.storage.visible import see_every_project
from bench.options import without_options
from tests.compare.runs import make_compared

ITERATIONS = 10_000
SET = 5
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "40"))
PARTS = {"page": "/compare", "series": "/compare/series", "windows": "/compare/distributions", "API": "/api/v1/compare"}


def main() -> None:
    see_every_project()
    without_options(__doc__)
    print(f"{ROUNDS} requests each, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["THREEWALLS_DATA_DIR"], os.environ["THREEWALLS_LOG_LEVEL"] = folder, "warning"
        get_settings.cache_clear()
        settings = Settings(data_dir=Path(folder))
        queries = _fill(settings)
        client = TestClient(create_app(settings, open_to=("testserver",)))
        print(f"{'':36} median ms  highest ms       kB")
        for what, query in queries.items():
            for part, path in PARTS.items():
                _measure(client, f"{what}, {part}", f"{path}?{query}")


def _fill(settings: Settings) -> dict[str, str]:
    migrate(settings)
    engine = make_engine(settings)
    with transaction(engine) as session:
        long = [make_compared(session, {"ep_overlap": on}, iterations=ITERATIONS) for on in (False, True)]
        sets = [[make_compared(session, {"ep_overlap": on}) for _ in range(SET)] for on in (False, True)]
    engine.dispose()
    a, b = (",".join(map(str, side)) for side in sets)
    return {f"2 x {ITERATIONS:,} iterations": f"a={long[0]}&b={long[1]}", f"2 x {SET} runs": f"a={a}&b={b}"}


def _measure(client: TestClient, what: str, address: str) -> None:
    took = []
    for round_ in range(ROUNDS + 3):
        began = time.perf_counter()
        answer = client.get(address, headers={"HX-Request": "true"} if address.count("/") == 2 else {})
        if round_ >= 3:
            took.append((time.perf_counter() - began) * 1000)
    assert answer.status_code == 200, answer.text
    print(f"{what:36} {statistics.median(took):9.1f} {max(took):11.1f} {len(answer.content) / 1000:8.0f}")


if __name__ == "__main__":
    main()
