"""`threewalls serve`: start, stop, address, worker, embedded queue."""

import errno
import gc
import os
import signal
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from alembic import command

from app import wakes
from app.cli import main
from app.embedded import worker
from app.embedded.service import _listen
from app.embedded.start_up import StartUp
from app.errors import Unavailable
from app.queue import PROCESS_RUN, QUEUE, make_celery
from app.settings import Settings
from app.storage.database import alembic_config, make_engine, require_migrated
from tests.conftest import forget_settings
from tests.embedded.guarded import add_administrator
from tests.embedded.processes import (
    PLAIN_HTTP,
    START_SECONDS,
    Running,
    processes_of_session,
    running,
    start,
    wait_for,
    worker_of,
)
from tests.services.postgres_server import Postgres
from tests.services.redis_server import free_port


def test_it_answers_at_the_address_that_it_prints(server: Running) -> None:
    with urllib.request.urlopen(f"{server.address}/healthz", timeout=300) as answer:
        assert answer.status == 200


def test_a_second_service_on_one_folder_is_refused_by_name(server: Running) -> None:
    second = start("serve", server.data, "--port", "0")  # a process, to see its exit code and output
    output, _ = second.communicate(timeout=START_SECONDS)
    assert second.returncode == 3
    assert f"process {server.pid} at {server.address}" in output
    assert "Traceback" not in output


Refused = Callable[..., tuple[int, str]]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Refused]:
    """Return exit code and output of `threewalls serve` in this process; a new one would import for two seconds."""
    umask, threshold = os.umask(0), gc.get_threshold()
    os.umask(umask)

    def serve(data: Path, *options: str) -> tuple[int, str]:
        monkeypatch.setenv("THREEWALLS_DATA_DIR", str(data))  # so that the command's change of it ends with the test
        forget_settings()
        code = main(["serve", "--data", str(data), *options])
        output = "".join(capfd.readouterr())
        assert "Traceback" not in output
        return code, output

    yield serve
    os.umask(umask)
    gc.set_threshold(*threshold)
    gc.enable()
    forget_settings()


def test_an_address_that_others_reach_needs_its_url_and_an_administrator(
    refused: Refused, migrated_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--port", "0", "--host", "0.0.0.0")
    code, output = refused(migrated_data, *options)
    assert (code, "THREEWALLS_PUBLIC_URL" in output) == (3, True)
    monkeypatch.setenv("THREEWALLS_PUBLIC_URL", "http://threewalls.example")
    code, output = refused(migrated_data, *options)
    assert (code, "threewalls admin create NAME" in output) == (3, True)


def test_a_dead_worker_is_started_again_a_killed_server_takes_it_along_and_sigterm_stops_both(
    tmp_path: Path, migrated_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("THREEWALLS_PUBLIC_URL", "http://threewalls.example")
    add_administrator(migrated_data)
    with running("serve", migrated_data, "--host", "0.0.0.0") as house:
        address = house.address.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(f"{address}/api/v1/runs", timeout=300, verify=PLAIN_HTTP).status_code == 401
        first = worker_of(house)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: house.worker_pid() not in (None, first), "another worker")
        second = worker_of(house)
        wait_for(lambda: len(processes_of_session(second)) > 1, "the worker's pool")
        os.kill(second, signal.SIGSTOP)  # a worker that reads nothing any more does not outlive its server either
        house.process.kill()
        wait_for(lambda: processes_of_session(second) == [], "the end of the worker")
    assert list(temporary.glob("pymp-*")) == []
    with running("serve", migrated_data) as again:  # the folder is free
        leader = worker_of(again)
        wait_for(lambda: len(processes_of_session(leader)) > 1, "the worker's pool")
        folders = [path for path in (migrated_data / "temporary").iterdir() if path.is_dir()]
        assert len(folders) == 1, "what killed workers left is removed before the next starts"
        assert again.stop(signal.SIGTERM) == 0
        assert processes_of_session(leader) == []
        assert "Traceback" not in again.output


def test_a_worker_that_cannot_be_started_is_tried_again_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, attempts = tmp_path / "worker", []
    monkeypatch.setattr(worker, "COMMAND", (str(program),))
    monkeypatch.setattr(worker, "RESTART_SECONDS", 0.01)

    def prepare() -> None:
        attempts.append(program.exists())
        if len(attempts) == 3:
            program.write_text("#!/bin/sh\nexec head -c 1\n")
            program.chmod(0o700)

    with wakes.opened() as pipes, worker.Worker(prepare, lambda: None, 60, pipes) as keeper:
        wait_for(lambda: keeper._process is not None, "a worker")
    assert attempts == [False, False, False]


def test_a_taken_port_is_named(refused: Refused, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = refused(tmp_path, "--port", str(port))
    assert (code, f"Port {port} on 127.0.0.1" in output) == (3, True)


def test_the_embedded_service_has_one_web_process(refused: Refused, tmp_path: Path) -> None:
    code, output = refused(tmp_path, "--web-processes", "2")
    assert (code, "THREEWALLS_BROKER_URL" in output) == (3, True)


def test_a_setting_that_is_not_valid_is_named(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREEWALLS_MAX_UPLOAD_BYTES", "-1")
    code, output = refused(tmp_path)
    assert (code, "max_upload_bytes" in output) == (2, True)


def test_answers_do_not_wait_for_an_acknowledgement() -> None:
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_slow_start_prints_its_steps_until_the_server_is_ready(capfd: pytest.CaptureFixture[str]) -> None:
    start = StartUp(seconds=0)
    start._timer.join(60)  # not by reading the output, because text written during a read is lost
    start.step("migrating")
    start.done()
    start.step("too late")
    assert [line.rpartition(": ")[2] for line in capfd.readouterr().out.splitlines()] == [
        "loading the service ...",
        "migrating ...",
    ]


def test_a_quick_start_prints_no_steps(capfd: pytest.CaptureFixture[str]) -> None:
    start = StartUp(seconds=600)
    start.step("migrating")
    start.done()
    assert capfd.readouterr().out == ""


def test_an_empty_table_of_bindings_keeps_no_message_from_its_worker(settings: Settings) -> None:
    sending = make_celery(settings)
    folder = settings.data_dir / "queue"
    for name in (QUEUE, "celery"):  # what Kombu leaves behind if the disk is full while it writes them in place
        (folder / "control" / f"{name}.exchange").write_bytes(b"")
    sending.send_task(PROCESS_RUN, args=(17,), queue=QUEUE, retry=False)
    with make_celery(settings).connection_for_read() as connection:
        message = connection.SimpleQueue(next(iter(sending.conf.task_queues))).get(timeout=10)
        assert message.payload[0] == [17]
        message.ack()


def test_a_message_that_does_not_fit_on_the_disk_leaves_no_file(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    celery = make_celery(settings)
    write_text = Path.write_text

    def full(path: Path, *arguments: Any, **options: Any) -> int:
        write_text(path, "")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        celery.send_task(PROCESS_RUN, args=(17,), queue=QUEUE, retry=False)
    assert list((settings.data_dir / "queue" / "messages").iterdir()) == []


def test_a_database_without_tables_is_named(
    refused: Refused, tmp_path: Path, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREEWALLS_BROKER_URL", f"redis://127.0.0.1:{free_port()}/0")  # used by the first upload only
    monkeypatch.setenv("THREEWALLS_DATABASE_URL", postgres_server.url(postgres_server.new_database()))
    code, output = refused(tmp_path, "--port", "0")
    assert code == 3
    assert "threewalls migrate" in output


def test_an_older_version_is_rejected_and_a_newer_one_accepted(settings: Settings) -> None:
    require_migrated(settings)
    engine = make_engine(settings)
    command.downgrade(alembic_config(engine), "-1")
    with pytest.raises(Unavailable, match=r"tables of an earlier version.*threewalls migrate"):
        require_migrated(settings)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    require_migrated(settings)
    engine.dispose()


def test_an_unreachable_database_is_named_without_its_password() -> None:
    away = Settings(database_url=f"postgresql+psycopg://threewalls:hidden@127.0.0.1:{free_port()}/threewalls")
    with pytest.raises(Unavailable, match=r"@127\.0\.0\.1:\d+/threewalls does not answer: .*refused") as refused:
        require_migrated(away)
    assert "hidden" not in refused.value.detail
