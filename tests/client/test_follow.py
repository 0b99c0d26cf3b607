"""A log that grows while its job runs: sent as it grows and closed at its end, despite interruptions."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest

from app.client.delivery import Follower, StopCondition, Tail
from app.client.errors import Refused, Unreachable
from app.client.service import ClientSettings, Service
from app.client.upload import Upload
from tests.client.answering import Answer, answering
from tests.client.commands import job_environment
from tests.embedded.processes import Running, wait_for
from tests.training_logs import training_log

LINES = training_log(iterations=60).splitlines(keepends=True)


def following(server: Running, log: Path, project: str, *words: str, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "app.cli", "upload", str(log), "--follow", "--interval", "0.05", "--no-ci"]
    return subprocess.Popen(
        [*command, "--project", project, *words], env=job_environment(server.address, log.parent, **env),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def only_run(server: Running, project: str) -> dict[str, object] | None:
    params = {"project": project}
    items = httpx2.get(f"{server.address}/api/v1/runs", params=params, timeout=300).json()["items"]
    assert len(items) <= 1
    if not items:
        return None
    body: dict[str, object] = httpx2.get(f"{server.address}/api/v1/runs/{items[0]['id']}", timeout=300).json()
    return body


def sent(server: Running, project: str) -> int:
    run = only_run(server, project)
    return sum(file["size_bytes"] for file in run["files"]) if run else 0


def test_it_is_sent_as_it_comes_and_closed_at_its_marker(server: Running, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    process = following(server, log, "follow-marker", "--until-text", "training is over", "--wait")
    with log.open("ab", buffering=0) as job:
        job.write(b"".join(LINES[:30]))
        wait_for(lambda: sent(server, "follow-marker") == len(b"".join(LINES[:30])), "the first half")
        run = only_run(server, "follow-marker")
        assert run is not None
        assert run["receiving"]
        job.write(b"".join(LINES[30:]) + b"training is over\n")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 4
    assert "no baseline" in out
    assert "already uploaded" not in out
    run = only_run(server, "follow-marker")
    assert run is not None
    assert (run["reception"], run["health"]["iterations"]) == ("complete", 60)
    assert run["name"] == "train"


def test_kill_9_and_a_second_start_are_one_run_and_a_signal_closes_it(server: Running, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"".join(LINES[:20]))
    first = following(server, log, "follow-killed")
    wait_for(lambda: sent(server, "follow-killed") == log.stat().st_size, "what is there")
    first.kill()
    first.communicate()
    with log.open("ab") as job:
        job.write(b"".join(LINES[20:40]))
    second = following(server, log, "follow-killed")
    wait_for(lambda: sent(server, "follow-killed") == log.stat().st_size, "what came while nobody followed")
    with log.open("ab") as job:
        job.write(b"".join(LINES[40:]))
    second.send_signal(signal.SIGTERM)  # a scheduler's time limit
    _, output = second.communicate(timeout=300)
    assert second.returncode == 0, output
    assert "resuming at byte" in output
    run = only_run(server, "follow-killed")
    assert run is not None
    assert (run["reception"], sent(server, "follow-killed")) == ("complete", log.stat().st_size)


def test_it_ends_with_the_process_that_writes(server: Running, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    job = subprocess.Popen(["sh", "-c", f"cat > {log}"], stdin=subprocess.PIPE)
    process = following(server, log, "follow-pid", "--until-pid", str(job.pid))
    job.communicate(b"".join(LINES))
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert sent(server, "follow-pid") == len(b"".join(LINES))


def test_a_rewritten_log_is_another_log_of_the_run(server: Running, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"".join(LINES[:30]))
    process = following(server, log, "follow-anew", "--until-text", "the end")
    wait_for(lambda: sent(server, "follow-anew") == log.stat().st_size, "the first file")
    first = log.stat().st_size
    (tmp_path / "next").write_bytes(b"".join(LINES[30:]) + b"the end\n")
    (tmp_path / "next").rename(log)
    process.communicate(timeout=300)
    run = only_run(server, "follow-anew")
    assert run is not None
    files = {file["name"]: file["size_bytes"] for file in run["files"]}
    assert files == {"train.log": first, "train.log.2": log.stat().st_size}


@pytest.mark.parametrize(
    ("answer", "raised"),
    [(Answer(503), Unreachable), (Answer(401, {"title": "Who asks?", "detail": "Over."}), Refused)],
)
def test_while_the_service_takes_nothing_the_file_keeps_everything(
    answer: Answer, raised: type[Exception], tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"one\n")
    messages: list[str] = []
    pauses: list[float] = []
    with answering(answer) as house:
        settings = ClientSettings(house.url, retries=0)
        with Service(settings) as service:
            follower = Follower(
                quick=service, patient=service, path=log, meta={}, documents=Upload("", {}, ()), until=StopCondition(),
                interval=0.01, job_key="job", say=messages.append, sleep=pauses.append,
            )  # fmt: skip
            stopper = threading.Timer(0.2, lambda: setattr(follower, "stopped", True))
            stopper.start()
            follower.follow()
            stopper.join()
            with pytest.raises(raised):
                follower.finish()
    assert len(messages) == 1
    rest = follower.rest()
    assert [(file.name, file.path, file.in_pieces) for file in rest.files] == [("train.log", log, True)]


def test_a_tail_finishes_the_rotated_file_before_the_next(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    tail = Tail(log)
    assert (tail.read(10), tail.is_over(), tail.identity) == (b"", False, "")
    log.write_bytes(b"one\n")
    assert tail.read(10) == b"one\n"
    tail.offset = 2
    log.rename(tmp_path / "train.log.1")
    log.write_bytes(b"two\n")
    assert (tail.is_over(), tail.read(10)) == (False, b"e\n")
    tail.offset = 4
    assert tail.is_over()
    tail.next_file()
    assert (tail.name, tail.read(10)) == ("train.log.2", b"two\n")
    tail.offset = 4
    log.write_bytes(b"3\n")
    assert tail.is_over()
    tail.close()


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "not yet sent"])
def test_a_rewritten_file_that_is_already_longer_is_a_new_file(sent: bool, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(b"same head\n" + b"one\n" * 700)
    tail = Tail(log)
    tail.offset = len(tail.read(2000))
    piece = tail.read(100)
    tail.offset += len(piece) if sent else 0
    assert not tail.is_over()
    log.write_bytes(b"same head\n" + b"two\n" * 9000)
    assert (tail.read(100), tail.is_over()) == (b"", True)
    tail.next_file()
    assert (tail.name, tail.read(14), tail.is_over()) == ("train.log.2", b"same head\ntwo\n", False)
    tail.close()
