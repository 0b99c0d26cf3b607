"""Each worker has a folder for its temporary files; only the folders of dead workers are removed."""

import subprocess
import sys
from pathlib import Path

USE = "import sys, tempfile; from pathlib import Path; from workers.temporary import use_own_folder as use; "
MAKE = "use(Path(sys.argv[1])); print(tempfile.mkdtemp(prefix='pymp-'), flush=True); sys.stdin.read()"


def start(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that uses `parent` until it is killed, and the temporary folder that it made."""
    command = [sys.executable, "-c", USE + MAKE, parent]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_worker_leaves_nothing_that_the_next_does_not_remove(tmp_path: Path) -> None:
    workers = []
    try:
        workers = [start(tmp_path / "temporary") for _ in range(2)]
        (dead, its_folder), (_, of_the_living) = workers
        assert its_folder.is_dir()
        dead.kill()
        dead.wait()
        workers.append(start(tmp_path / "temporary"))
        assert (its_folder.parent.exists(), of_the_living.is_dir(), workers[-1][1].is_dir()) == (False, True, True)
    finally:
        for process, _ in workers:
            process.kill()
            process.communicate()
