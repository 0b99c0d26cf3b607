"""A killed test run leaves no process and no folder behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.embedded.processes import is_alive, wait_for
from tests.services import janitor

ROOT = Path(__file__).resolve().parents[2]
INNER = """
    import os, subprocess, sys, time
    from pathlib import Path
    from tests.services import run

    def test_it_waits_to_be_killed(postgres_server, redis_server):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        redis = [p.parent for p in Path("/proc").glob("*/comm") if p.read_text() == "redis-server\\n"
                 and str((p.parent / "cwd").readlink()).startswith(str(run.folder()))]
        Path({told!r}).write_text(
            f"{{os.getpid()}} {{child.pid}} {{run.folder()}} {{os.environ['TEST_RUN']}} {{redis[0].name}}"
        )
        time.sleep(600)
"""


def test_a_killed_run_leaves_no_process_and_no_folder_behind(tmp_path: Path) -> None:
    report = tmp_path / "told"
    test = tmp_path / "test_inner.py"
    test.write_text(textwrap.dedent(INNER.format(told=str(report))))
    environment = {name: value for name, value in os.environ.items() if name != janitor.VARIABLE}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(test)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True) as run:
        wait_for(lambda: (report.exists() and report.read_text()) or run.poll() is not None, "the inner run")
        pid, child, folder, token, redis = report.read_text().split()
        assert int(pid) == run.pid
        assert len(janitor.processes_of(token, folder)) > 2  # the child, PostgreSQL's processes
        os.kill(run.pid, signal.SIGKILL)
    wait_for(lambda: not janitor.processes_of(token, folder) and not Path(folder).exists(), "the janitor")
    assert not is_alive(int(child))
    assert not is_alive(int(redis))
