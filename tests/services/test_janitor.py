"""A killed test run leaves no process and no folder behind."""

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.embedded.processes import is_alive, wait_for
from tests.services import janitor, run

ROOT = Path(__file__).resolve().parents[2]
INNER = """
    import os, subprocess, time
    from pathlib import Path
    from redis import Redis
    from tests.services import run

    def test_it_waits_to_be_killed(postgres_server, redis_server):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        redis = Redis.from_url(redis_server).info("server")["process_id"]
        Path({told!r}).write_text(
            f"{{os.getpid()}} {{child.pid}} {{redis}} {{run.folder()}} {{os.environ['TEST_RUN']}}"
        )
        time.sleep(600)
"""


def test_a_killed_run_leaves_no_process_and_no_folder_behind(tmp_path: Path) -> None:
    report = tmp_path / "told"
    test = tmp_path / "test_inner.py"
    test.write_text(textwrap.dedent(INNER.format(told=str(report))))
    environment = {name: value for name, value in os.environ.items() if name != janitor.VARIABLE}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(test)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as inner:
        wait_for(lambda: (report.exists() and report.read_text()) or inner.poll() is not None, "the inner run")
        pid, child, redis, folder, token = report.read_text().split()
        assert int(pid) == inner.pid
        processes = janitor.processes_of(token, folder)
        assert {int(child), int(redis)} < set(processes)  # and PostgreSQL's
        os.kill(inner.pid, signal.SIGKILL)
    wait_for(lambda: not janitor.processes_of(token, folder) and not Path(folder).exists(), "the janitor")
    assert not is_alive(int(child))
    assert not is_alive(int(redis))


def test_a_run_that_was_killed_with_its_janitor_is_ended_by_the_next(tmp_path: Path) -> None:
    lost, living, starting = (tmp_path / f"{run.PREFIX}{name}" for name in ("lost", "living", "starting"))
    for folder, token in ((lost, "lost-token"), (living, "living-token"), (starting, "")):
        folder.mkdir()
        (folder / run.ALIVE).write_text(token)
    environment = os.environ | {janitor.VARIABLE: "lost-token"}
    with (
        subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True) as left,
        (living / run.ALIVE).open() as alive,
    ):
        fcntl.flock(alive, fcntl.LOCK_EX)
        run.end_lost_runs(tmp_path)
        assert left.wait(60) == -signal.SIGKILL
    assert [folder.exists() for folder in (lost, living, starting)] == [False, True, True]
