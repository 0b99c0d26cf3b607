"""Whoever else has an account on the machine reads nothing of what the service keeps."""

import json
import stat
import urllib.request
from pathlib import Path

import pytest

from app.embedded.service import keep_private
from tests.embedded.processes import Running, running

META = (
    '--x\r\nContent-Disposition: form-data; name="meta"\r\n\r\n{"project": "own-files", "complete": false}\r\n--x--\r\n'
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def send_a_log(house: Running) -> None:
    """A run with a log, so that there are objects, messages and a database."""
    begin = urllib.request.Request(
        f"{house.address}/api/v1/runs", META.encode(), {"Content-Type": "multipart/form-data; boundary=x"}
    )
    with urllib.request.urlopen(begin, timeout=300) as answer:
        run = json.load(answer)["id"]
    more = urllib.request.Request(
        f"{house.address}/api/v1/runs/{run}/logs?complete=true", b"hello\n", {"Content-Type": "text/plain"}
    )
    with urllib.request.urlopen(more, timeout=300) as answer:
        assert answer.status == 200


def test_only_the_account_of_the_service_reads_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with running("serve", folder) as house:
        send_a_log(house)
        files = [folder, *folder.rglob("*")]
        open_ones = {str(path): oct(mode(path)) for path in files if mode(path) & 0o077}
    assert {"threewalls.db", "artifacts", "serve.lock"} <= {path.name for path in files}
    assert not open_ones
    assert "data_folder_closed" in house.output


@pytest.mark.parametrize(("before", "after"), [(0o755, 0o700), (0o777, 0o700), (0o750, 0o750), (0o1777, 0o1777)])
def test_a_wide_folder_is_narrowed_but_for_a_group_that_was_let_in_and_for_shared_ones(
    tmp_path: Path, before: int, after: int
) -> None:
    tmp_path.chmod(before)
    keep_private(tmp_path)
    assert mode(tmp_path) == after
    tmp_path.chmod(0o700)
