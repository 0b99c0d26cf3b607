"""The real `threewalls` command as a process of its own."""

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


@dataclass
class Running:
    process: subprocess.Popen[str]
    data: Path
    address: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def worker_pid(self) -> int | None:
        """The Celery process under the server, None while there is none."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return next((int(pid) for file in children for pid in file.read_text().split()), None)

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(START_SECONDS)


@contextmanager
def running(command: str, data: Path, *arguments: str) -> Iterator[Running]:
    """`threewalls COMMAND --data DATA --port 0`, once it answers; killed at the end if it is still there."""
    process = start(command, data, "--port", "0", *arguments)
    house = Running(process, data)
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
    """Until `condition` is true; fails after some minutes, so that a hang has a name."""
    end = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def _read(house: Running) -> None:
    assert house.process.stdout is not None
    for line in house.process.stdout:
        house.lines.append(line)
        if match := re.search(r"ready: (http://\S+)", line):
            house.address = match[1]
