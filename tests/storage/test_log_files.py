"""The artifact store, on a folder and on a server that speaks S3."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from app.errors import Unavailable
from app.settings import Settings
from app.storage import log_files as module
from app.storage.frames import FRAME_BYTES
from app.storage.log_files import MAX_LINE_BYTES, LogFiles
from tests.services.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

pytestmark = pytest.mark.xdist_group("s3")

TEXT = b"".join(b"%07d %s\n" % (number, b"x" * 90) for number in range(1, 40_001))


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogFiles:
    if request.param == "folder":
        return LogFiles.from_settings(Settings(data_dir=tmp_path))
    server: S3Server = request.getfixturevalue("s3_server")
    return LogFiles.from_settings(
        Settings(
            artifact_url=f"s3://{server.new_bucket()}/some/prefix",
            s3_endpoint=server.endpoint,
            s3_access_key_id=ACCESS_KEY,
            s3_secret_access_key=SECRET_KEY,
        )
    )


def kept(store: LogFiles) -> list[str]:
    return sorted(entry["path"] for batch in obstore.list(store._store) for entry in batch)


def test_a_file_is_kept_by_the_hash_of_what_it_says(store: LogFiles) -> None:
    stored = store.put([TEXT[:1000], TEXT[1000:]])
    assert stored.sha256 == hashlib.sha256(TEXT).hexdigest()
    assert stored.size_bytes == len(TEXT)
    assert b"".join(store.stream(stored.key)) == TEXT


def test_the_same_content_is_one_object(store: LogFiles) -> None:
    assert store.put([TEXT]) == store.put([TEXT[:5], TEXT[5:]])
    assert len(kept(store)) == 1


def test_an_aborted_put_leaves_nothing(store: LogFiles) -> None:
    def broken() -> Iterator[bytes]:
        yield TEXT
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.put(broken())
    assert kept(store) == []


def test_a_large_object_goes_in_parts(store: LogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ONE_REQUEST_BYTES", 1000)
    stored = store.put([TEXT])
    assert store.put([TEXT]) == stored
    assert b"".join(store.stream(stored.key)) == TEXT


@pytest.mark.parametrize(
    ("first", "last"), [(1, 3), (1, 1), (10_000, 10_100), (39_999, 40_000), (39_999, 50_000), (40_001, 40_002), (5, 4)]
)
def test_lines_are_read_from_anywhere(store: LogFiles, first: int, last: int) -> None:
    key = store.put([TEXT]).key
    assert store.lines(key, first, last) == [line.decode() for line in TEXT.split(b"\n")[:-1]][first - 1 : last]
    assert store.line_count(key) == 40_000


def test_every_frame_edge_is_read_right(store: LogFiles) -> None:
    key = store.put([TEXT]).key
    for newlines in store.index(key).newlines[1:-1]:
        assert [int(line[:7]) for line in store.lines(key, newlines, newlines + 1)] == [newlines, newlines + 1]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\r\nb", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        ("größer\n".encode("latin-1"), ["gr��er"]),
    ],
)
def test_odd_ends_and_odd_bytes(store: LogFiles, text: bytes, lines: list[str]) -> None:
    key = store.put([text]).key
    assert store.lines(key, 1, 10) == lines
    assert store.line_count(key) == len(lines)


def test_a_giant_line_is_cut_and_the_lines_around_it_are_whole(store: LogFiles) -> None:
    key = store.put([b"before\n", b"g" * (3 * FRAME_BYTES), b" end\nafter\n"]).key
    before, giant, after = store.lines(key, 1, 3)
    assert (before, after) == ("before", "after")
    assert giant == "g" * MAX_LINE_BYTES + " …"
    assert store.lines(key, 3, 3) == ["after"]
    assert store.lines(key, 2, 2) == [giant]


def test_a_store_that_answers_is_ready(store: LogFiles) -> None:
    store.check()


def test_a_store_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    away = LogFiles.from_settings(Settings(artifact_url="s3://bucket", s3_endpoint="http://127.0.0.1:9"))
    with pytest.raises(Unavailable, match="artifact store"):
        away.check()
    with pytest.raises(Unavailable):
        away.put([b"text"])


def test_a_lost_object_is_unavailable(store: LogFiles) -> None:
    with pytest.raises(Unavailable):
        list(store.stream("ab/abc.zst"))
