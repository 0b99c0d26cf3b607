"""The real `threewalls` command as a separate process."""

import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 300
PLAIN_HTTP = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""`verify=` of requests to services here: to read the certificates of the machine takes each of them 25 ms."""

COMMAND = [sys.executable, "-m", "app.cli"]
READY = re.compile(r"ready: (http://\S+)")
OF_A_TEST = {"THREEWALLS_DATA_DIR", "THREEWALLS_LOG_LEVEL", "THREEWALLS_MAX_WAIT_SECONDS"}
"""What fixtures set for the test that happens to start a service of the whole run."""


@dataclass
class Running:
    data: Path
    pid: int
    address: str = ""

    def worker_pid(self) -> int | None:
        """Return the Celery process of the server, None if there is none."""
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        return next((int(pid) for file in children for pid in file.read_text().split()), None)


@dataclass(kw_only=True)
class Started(Running):
    """Return a server for this test alone."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(START_SECONDS)


@contextmanager
def running(command: str, data: Path, *arguments: str) -> Iterator[Started]:
    """Yield `threewalls COMMAND --data DATA --port 0` once it answers; kill it at the end if it still runs."""
    process = start(command, data, "--port", "0", *arguments)
    house = Started(data, process.pid, process=process)
    reader = threading.Thread(target=_read, args=(house,), daemon=True)
    reader.start()
    try:
        wait_for(lambda: house.address != "" or process.poll() is not None, "the address")
        assert house.address, house.output
        yield house
    finally:
        process.kill()
        process.wait()
        reader.join()
        if process.stdout is not None:
            process.stdout.close()


def serve_for_the_run(data: Path) -> Running:
    """Start `threewalls serve --data DATA` for all processes of this run of the tests. The janitor ends it."""
    # A pipe would end with the process that started it.
    output = data.with_suffix(".txt")
    with output.open("w") as file:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--data", str(data), "--port", "0"],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={name: text for name, text in os.environ.items() if name not in OF_A_TEST}
            | {"PYTHONUNBUFFERED": "1", "THREEWALLS_REQUESTS_PER_MINUTE": "0", "THREEWALLS_UPLOADS_PER_MINUTE": "0"},
            start_new_session=True,
        )
    wait_for(lambda: READY.search(output.read_text()) or process.poll() is not None, "the address")
    match = READY.search(output.read_text())
    assert match, output.read_text()
    process.returncode = 0  # else Python reports it as forgotten
    return Running(data, process.pid, match[1])


def start(command: str, data: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, command, "--data", str(data), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` is true.

    Fail after some minutes, so that a hang is reported. Slow conditions are polled less often, because polling uses the
    same processors.
    """
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < START_SECONDS, f"waited for {what}"
        time.sleep(max(0.05, waited / 20))


def worker_of(house: Running) -> int:
    wait_for(lambda: house.worker_pid() is not None, "the worker")
    pid = house.worker_pid()
    assert pid is not None
    return pid


def processes_of_session(leader: int) -> list[int]:
    """Processes of the session that `leader` leads: the worker and its pool."""
    result = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader and is_alive(int(entry.name)):
                    result.append(int(entry.name))
            except ProcessLookupError:
                continue
    return result


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def _read(house: Started) -> None:
    assert house.process.stdout is not None
    for line in house.process.stdout:
        house.lines.append(line)
        if match := READY.search(line):
            house.address = match[1]
