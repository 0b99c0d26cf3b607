"""Start, watch, restart and stop the worker process of the embedded mode."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

import structlog

from app.wakes import Pipes

log = structlog.get_logger(__name__)

FINISH_SECONDS = 8.0
"""Time for the current run to finish at a stop. Most take milliseconds."""

RESTART_SECONDS, MOST_RESTART_SECONDS = 1.0, 60.0
"""Pause before a restart. It doubles while the worker dies within the longest pause, so that the log does not fill."""

COMMAND = (
    sys.executable,
    "-m",
    "app.embedded.worker_main",
    "--quiet",
    "-A",
    "workers.celery_app",
    "worker",
    "--pool=prefork",
    "--without-mingle",
    "--without-gossip",
    "--without-heartbeat",
    "--loglevel=warning",
)


class Worker:
    """Keep one worker process alive and call `sweep` every `sweep_seconds`. The worker itself sweeps as it starts.

    `before_start` runs before each start, when no worker is alive.
    """

    def __init__(
        self, before_start: Callable[[], object], sweep: Callable[[], object], sweep_seconds: float, pipes: Pipes
    ) -> None:
        self._before_start = before_start
        self._sweep = sweep
        self._sweep_seconds = sweep_seconds
        self._pipes = pipes
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._threads = [
            threading.Thread(target=self._keep_alive, name="worker-watch", daemon=True),
            threading.Thread(target=self._sweep_regularly, name="worker-clock", daemon=True),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError, ValueError):  # it is gone already
                process.stdin.write(b".")
                process.stdin.flush()
            try:
                process.wait(FINISH_SECONDS + 1)
            except subprocess.TimeoutExpired:
                process.kill()
        for thread in self._threads:
            thread.join()

    def _keep_alive(self) -> None:
        pause = RESTART_SECONDS
        while not self._stopping.is_set():
            began, status = time.monotonic(), None
            try:
                self._before_start()
            except Exception:  # for any error: a service without a worker would be worse
                log.exception("worker_start_unprepared")
            try:
                status = self._run_one()
            except Exception:  # out of memory, processes or files: this may pass
                log.exception("worker_not_started")
            if time.monotonic() - began > MOST_RESTART_SECONDS:
                pause = RESTART_SECONDS
            if not self._stopping.is_set():
                log.error("worker_died", status=status, restart_in_seconds=pause)
                self._stopping.wait(pause)
            pause = min(2 * pause, MOST_RESTART_SECONDS)

    def _run_one(self) -> int:
        # A separate session: Ctrl-C in a terminal reaches only the server, which then stops the worker in order. Our
        # own path, so that the worker finds the same code even if PYTHONPATH contains a package called `app`.
        path = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
        with subprocess.Popen(
            COMMAND,
            env=os.environ | path | self._pipes.environment,
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=self._pipes.descriptors,
        ) as process:
            self._process = process
            if self._stopping.is_set():
                process.kill()
            return process.wait()

    def _sweep_regularly(self) -> None:
        while not self._stopping.wait(self._sweep_seconds):
            self._sweep()
