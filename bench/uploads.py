"""Uploads per second compared with MLflow: 1 MB logs that are stored, read and judged; MLflow only stores values.

`.venv/bin/python -m bench.uploads [--mlflow BIN]` starts the embedded service, the scaled service with 2 workers and,
if BIN is the `bin` folder of an environment with mlflow and psycopg2, an MLflow server. It also starts PostgreSQL and
Redis. 1 and 4 clients alternate between the services over several rounds, so that the ratios are comparable. Our client
waits for the verdict of each run (`?wait=60`). The MLflow client creates a run, logs 30 parameters and 400 values,
stores the same log as an artifact and ends the run: four requests.
"""

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.settings import Settings
from app.storage.visible import see_every_project
from bench import options
from bench.ingest import HEAD, LOG, WORKERS, scaled
from tests.embedded.processes import running
from tests.services.postgres_server import running_postgres
from tests.services.redis_server import free_port, running_redis
from tests.services.scaled import kill, new_token

CLIENTS = (1, 4)
MODELS = ("Qwen3-30B-A3B", "Qwen3-235B-A22B", "DeepSeek-V3", "Mixtral-8x7B", "GPT-OSS-120B")
GPUS = ("H100", "GB200")
PARAMETERS, STEPS = 30, 50
METRICS = ("step_time_ms", "tflops", "lm_loss", "grad_norm", "mem_gb", "tokens_per_s", "z_loss", "lb_loss")

TOKEN, PORT = "BENCH_TOKEN", "BENCH_TOKEN_PORT"
"""Environment variables for the clients: token and port of the scaled service, which requires log-ins."""

_ATTEMPTS = 20
"""Attempts of a request whose connection is closed."""

Send = Callable[[http.client.HTTPConnection, int, int], None]
"""Sends one run over a connection. Arguments: the connection, and the numbers of the client and of its run."""


def upload(connection: http.client.HTTPConnection, client: int, number: int) -> None:
    stack = client + number
    meta = {
        "project": "bench", "branch": "main", "purpose": "ci", "commit": f"{time.time_ns():040d}",
        "model": MODELS[stack % 5], "gpu": GPUS[stack // 5 % 2], "gpus": 256,
    }  # fmt: skip
    form = b'--b\r\nContent-Disposition: form-data; name="meta"\r\n\r\n' + json.dumps(meta).encode() + b"\r\n"
    body = form + HEAD + b"upload %d of client %d\n" % (time.time_ns(), client) + LOG + b"\r\n--b--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    if connection.port == int(os.environ.get(PORT, "0")):
        headers["Authorization"] = f"Bearer {os.environ[TOKEN]}"
    answer = ask(connection, "POST", "/api/v1/runs?wait=60", body, headers)
    assert answer["status"] == "ready", answer


def log_to_mlflow(connection: http.client.HTTPConnection, client: int, number: int) -> None:
    def post(call: str, **values: Any) -> Any:
        path = f"/api/2.0/mlflow/{call}"
        return ask(connection, "POST", path, json.dumps(values).encode(), {"Content-Type": "application/json"})

    now = int(time.time() * 1000)
    run = post("runs/create", experiment_id="0", start_time=now, tags=[])["run"]["info"]
    values = [
        {"key": key, "value": 1.0 + step, "timestamp": now, "step": step} for step in range(STEPS) for key in METRICS
    ]
    parameters = [{"key": f"p{place}", "value": f"value {client} {number}"} for place in range(PARAMETERS)]
    post("runs/log-batch", run_id=run["run_id"], params=parameters, metrics=values)
    folder = run["artifact_uri"].split("mlflow-artifacts:/")[-1]
    ask(connection, "PUT", f"/api/2.0/mlflow-artifacts/artifacts/{folder}/train.log", LOG, {})
    post("runs/update", run_id=run["run_id"], status="FINISHED", end_time=now)


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
    for attempt in range(_ATTEMPTS):
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            break
        except (http.client.RemoteDisconnected, ConnectionError):
            # MLflow closes idle connections and those of a restarting worker.
            connection.close()
            if attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(0.1)
    assert answer.status < 300, (answer.status, text[:300])
    return json.loads(text or b"null")


def send_until(address: str, send: Send, client: int, seconds: float) -> int:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
    sent, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        send(connection, client, sent)
        sent += 1
    connection.close()
    return sent


def per_second(address: str, send: Send, clients: int, seconds: float) -> float:
    """Return runs per second. Clients are threads, because they mostly wait and processes would start too slowly."""
    with ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        sent = sum(pool.map(lambda client: send_until(address, send, client, seconds), range(clients)))
        return sent / (time.perf_counter() - began)


@contextmanager
def mlflow(programs: Path, data: Path, database_url: str) -> Iterator[str]:
    port = free_port()
    data.mkdir()
    store = database_url.replace("postgresql+psycopg", "postgresql+psycopg2")
    command = [str(programs / "mlflow"), "server", "--backend-store-uri", store, "--workers", "4"]
    command += ["--artifacts-destination", str(data / "artifacts"), "--host", "127.0.0.1", "--port", str(port)]
    with (data / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=data, stdout=log, stderr=log, start_new_session=True)
        try:
            yield _once_up(f"http://127.0.0.1:{port}", process)
        finally:
            kill(process)


def _once_up(address: str, process: "subprocess.Popen[bytes]") -> str:
    while process.poll() is None:
        try:
            connection = http.client.HTTPConnection(urlsplit(address).netloc)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return address
        except OSError:
            time.sleep(0.2)
    raise RuntimeError("MLflow did not start")


def chosen_options() -> argparse.Namespace:
    parser = options.parser(__doc__)
    parser.add_argument("--mlflow", type=Path, help="folder with the program mlflow")
    parser.add_argument("--rounds", type=options.count, default=5, help="rounds (5)")
    parser.add_argument("--seconds", type=options.count, default=6, help="seconds of each target in a round (6)")
    return parser.parse_args()


def main() -> int:
    see_every_project()
    chosen = chosen_options()
    os.environ |= {"THREEWALLS_LOG_LEVEL": "warning", "THREEWALLS_REQUESTS_PER_MINUTE": "0"}
    print(
        f"a log of {len(LOG) / 1e6:.2f} MB, {chosen.rounds} rounds of {chosen.seconds} s, {os.cpu_count()} cores, ",
        end="",
    )
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres = stack.enter_context(running_postgres())
        redis = stack.enter_context(running_redis(free_port()))
        targets: dict[str, tuple[str, Send]] = {
            "embedded": (stack.enter_context(running("serve", folder / "embedded")).address, upload)
        }
        database = postgres.url(postgres.new_database())
        address = stack.enter_context(scaled(folder / "scaled", database, redis))
        os.environ[TOKEN] = new_token(Settings(database_url=database), "bench")
        os.environ[PORT] = str(urlsplit(address).port)
        targets[f"scaled, {WORKERS} workers"] = (address, upload)
        if chosen.mlflow:
            url = postgres.url(postgres.new_database())
            targets["MLflow"] = (stack.enter_context(mlflow(chosen.mlflow, folder / "mlflow", url)), log_to_mlflow)
        for address, send in targets.values():
            per_second(address, send, 1, 2)  # imports modules, opens connections and creates the stacks
        print(f"{'':22}{'clients':>8}{'runs a second':>15}" + ("  to MLflow" if chosen.mlflow else ""))
        for clients in CLIENTS:
            rates: dict[str, list[float]] = {name: [] for name in targets}
            for _ in range(chosen.rounds):
                for name, (address, send) in targets.items():
                    rates[name].append(per_second(address, send, clients, chosen.seconds))
            for name, values in rates.items():
                ratio = statistics.median(values) / statistics.median(rates.get("MLflow", values))
                times = f"{ratio:10.2f}x" if chosen.mlflow else ""
                print(f"{name:22}{clients:8}{statistics.median(values):15.2f}{times}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
