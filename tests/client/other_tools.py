"""Runs of MLflow and TensorBoard, written by their own libraries in separate processes, and MLflow's own server.

The libraries are not imported here: each takes seconds, and they change the warnings and loggers of a process.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from tests.embedded.processes import wait_for
from tests.services.redis_server import free_port

ITERATIONS = 30
COMMIT = "5f3a" * 10

_MLFLOW = f"""
import sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("moe")
with mlflow.start_run(run_name="ml: a"):
    mlflow.set_tag("mlflow.source.git.commit", {COMMIT!r})
    mlflow.log_params({{"model": "Qwen3-30B-A3B", "tensor_model_parallel_size": 2, "cards": 16, "optimizer/lr": 1e-4}})
    for n in range(1, {ITERATIONS} + 1):
        mlflow.log_metrics({{"step_time_s": 0.5 + n % 3 / 1000, "train/loss": 3 - n / 100}}, step=n)
    mlflow.log_metric("grad_norm", float("nan"), step=1)
with mlflow.start_run() as deleted:
    mlflow.log_metric("step_time_s", 0.5, step=1)
mlflow.delete_run(deleted.info.run_id)
"""

# As torch.utils.tensorboard writes: a simple value, or a tensor of the scalars plugin.
_TENSORBOARD = f"""
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto
writer = EventFileWriter(sys.argv[1])
for n in range(1, {ITERATIONS} + 1):
    time = Summary.Value(tag="iteration-time", simple_value=0.5 + n % 3 / 1000)
    metadata = create_summary_metadata(display_name="", description="")
    loss = Summary.Value(tag="loss", tensor=make_tensor_proto(3 - n / 100, dtype="float32"), metadata=metadata)
    for value in (time, loss):
        writer.add_event(Event(step=n, wall_time=1780000000 + n, summary=Summary(value=[value])))
writer.close()
"""


def write_mlflow(address: str) -> None:
    _write(_MLFLOW, address, MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_HTTP_REQUEST_MAX_RETRIES="1")


def write_tensorboard(folder: Path) -> None:
    _write(_TENSORBOARD, str(folder))


def _write(program: str, where: str, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, where], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def running_mlflow(database: Path) -> Iterator[str]:
    """The REST API of `mlflow server` with its own database."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    output = database.with_suffix(".txt")
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "flask", "--app", "mlflow.server", "run", "--port", str(port)],
            env={
                **os.environ,
                "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{database}",
                "_MLFLOW_SERVER_ARTIFACT_ROOT": str(database.parent / "artifacts"),
            },
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: process.poll() is not None or _answers(address), "MLflow's server")
        assert process.poll() is None, output.read_text()
        yield address
    finally:
        process.kill()
        process.wait()


def _answers(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/health", timeout=10).is_success
    except httpx2.TransportError:
        return False
