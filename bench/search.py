"""Searches and lists compared with MLflow: `.venv/bin/python -m bench.search --mlflow BIN --runs 10000`.

Starts the embedded service on SQLite and the scaled service on PostgreSQL. `--mlflow`, the `bin` folder of an
environment with mlflow and psycopg2, also starts an MLflow server on PostgreSQL. All have the same number of runs. One
client alternates between them. Search: the 50 fastest runs of a model, a GPU and a dispatcher. List: the newest 100
runs.
"""

import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from sqlalchemy import MetaData, create_engine, insert, text

from app.storage.visible import see_every_project
from bench import options
from bench.ingest import scaled
from bench.pages import filled
from bench.seed import DISPATCHERS, GPUS, MODELS
from bench.uploads import METRICS, PARAMETERS, ask, mlflow
from tests.embedded.processes import running
from tests.services.postgres_server import running_postgres
from tests.services.redis_server import free_port, running_redis
from tests.services.scaled import new_token

EXPERIMENT = 0
BATCH = 1_000


def named(chosen: random.Random) -> dict[str, str]:
    return {
        "model": chosen.choice(MODELS),
        "gpu": chosen.choice(GPUS),
        "dispatcher": chosen.choice(DISPATCHERS),
    }


class Ours:
    def __init__(self, address: str, token: str = "") -> None:
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def search(self, chosen: random.Random) -> None:
        self._get({**named(chosen), "sort": "step_time_ms", "page_size": 50})

    def list(self, _: random.Random) -> None:
        self._get({"page_size": 100})

    def _get(self, query: dict[str, object]) -> None:
        ask(self._connection, "GET", f"/api/v1/runs?{urlencode(query)}", b"", self._headers)


class Mlflow:
    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)

    def search(self, chosen: random.Random) -> None:
        condition = " and ".join(f"params.{name} = '{value}'" for name, value in named(chosen).items())
        self._post(filter=condition, order_by=["metrics.step_time_ms ASC"], max_results=50)

    def list(self, _: random.Random) -> None:
        self._post(order_by=["attributes.start_time DESC"], max_results=100)

    def _post(self, **query: Any) -> None:
        body = json.dumps({"experiment_ids": [str(EXPERIMENT)], **query}).encode()
        ask(self._connection, "POST", "/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"})


def fill_mlflow(url: str, runs: int) -> None:
    """Insert finished runs with 30 parameters and 8 metrics each, as MLflow stores them."""
    engine = create_engine(url)
    tables = MetaData()
    tables.reflect(engine, only=["runs", "params", "latest_metrics", "metrics", "tags"])
    chosen, now = random.Random(runs), int(time.time() * 1000)
    for first in range(0, runs, BATCH):
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("runs", "params", "metrics", "tags")}
        for number in range(first, min(first + BATCH, runs)):
            run = uuid.uuid4().hex
            rows["runs"].append(
                {
                    "run_uuid": run, "name": f"run-{number}", "source_type": "UNKNOWN", "source_name": "",
                    "entry_point_name": "", "user_id": "bench", "status": "FINISHED", "source_version": "",
                    "start_time": now - 1000 * (runs - number), "end_time": now, "lifecycle_stage": "active",
                    "artifact_uri": f"mlflow-artifacts:/{EXPERIMENT}/{run}/artifacts", "experiment_id": EXPERIMENT,
                }
            )  # fmt: skip
            stated = named(chosen) | {f"p{place}": f"value {chosen.randrange(50)}" for place in range(3, PARAMETERS)}
            rows["params"] += [{"key": key, "value": value, "run_uuid": run} for key, value in stated.items()]
            measured = {"timestamp": now, "step": 49, "is_nan": False, "run_uuid": run}
            rows["metrics"] += [{"key": key, "value": chosen.random(), **measured} for key in METRICS]
            rows["tags"].append({"key": "mlflow.runName", "value": f"run-{number}", "run_uuid": run})
        with engine.begin() as connection:
            for name, values in rows.items():
                connection.execute(insert(tables.tables[name]), values)
            connection.execute(insert(tables.tables["latest_metrics"]), rows["metrics"])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))
    engine.dispose()


def main() -> int:
    see_every_project()
    os.environ |= {"THREEWALLS_LOG_LEVEL": "error", "THREEWALLS_REQUESTS_PER_MINUTE": "0"}
    parser = options.parser(__doc__)
    parser.add_argument("--mlflow", type=Path, help="folder with the program mlflow")
    parser.add_argument("--runs", type=options.count, default=10_000, help="runs (10,000)")
    parser.add_argument("--rounds", type=options.count, default=30, help="requests of each kind to each target (30)")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(running_postgres())
        redis = stack.enter_context(running_redis(free_port()))
        filled(folder / "embedded", "", chosen.runs)
        address = stack.enter_context(running("serve", folder / "embedded")).address
        targets: dict[str, Ours | Mlflow] = {"SQLite": Ours(address)}
        settings = filled(folder / "scaled", postgres.url(postgres.new_database()), chosen.runs)
        address = stack.enter_context(scaled(folder / "scaled", settings.database_url, redis))
        targets["PostgreSQL"] = Ours(address, new_token(settings, "pretraining"))
        if chosen.mlflow:
            url = postgres.url(postgres.new_database())
            address = stack.enter_context(mlflow(chosen.mlflow, folder / "mlflow", url))
            fill_mlflow(url, chosen.runs)
            targets["MLflow"] = Mlflow(address)
        print(f"{chosen.runs:,} runs, {chosen.rounds} rounds, load {os.getloadavg()[0]:.1f}")
        for kind in ("search", "list"):
            seconds: dict[str, list[float]] = {name: [] for name in targets}
            for number in range(chosen.rounds + 2):
                for name, target in targets.items():
                    began = time.perf_counter()
                    getattr(target, kind)(random.Random(number))
                    if number >= 2:  # the first requests open connections and fill caches
                        seconds[name].append(time.perf_counter() - began)
            medians = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
            for name, median in medians.items():
                times = f"{medians['MLflow'] / median:8.1f}x faster" if "MLflow" in medians else ""
                print(f"{kind:8}{name:12}{median:8.1f} ms{times}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
