"""Stored logs: frames, files or S3, and records of the objects that runs need."""

import hashlib
import io
import itertools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
import zstandard
from sqlalchemy import Engine, delete
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.errors import Unavailable
from app.settings import Settings
from app.storage import log_files, objects
from app.storage.database import read_session, transaction
from app.storage.log_files import (
    FRAME_BYTES,
    MAX_LINE_BYTES,
    LogFiles,
    StagedFile,
    StoredText,
    read_frames,
    read_index,
    write_frames,
)
from app.storage.tables import RunRow, StoredObjectRow, utc_now
from app.storage.visible import seeing
from tests.runs.uploading import LOG, traces, upload
from tests.services.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

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


def stored_paths(store: LogFiles) -> list[str]:
    return sorted(entry["path"] for batch in obstore.list(store._store) for entry in batch)


def test_a_file_is_stored_by_the_hash_of_its_content(store: LogFiles) -> None:
    stored = store.put([TEXT[:1000], TEXT[1000:]])
    assert stored.sha256 == hashlib.sha256(TEXT).hexdigest()
    assert stored.size_bytes == len(TEXT)
    assert b"".join(store.stream([stored.key])) == TEXT


def test_the_same_content_is_one_object(store: LogFiles) -> None:
    assert store.put([TEXT]) == store.put([TEXT[:5], TEXT[5:]])
    assert len(stored_paths(store)) == 1


def test_an_aborted_put_leaves_nothing(store: LogFiles) -> None:
    def broken() -> Iterator[bytes]:
        yield TEXT
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.put(broken())
    assert stored_paths(store) == []


def test_a_large_object_goes_in_parts(store: LogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_ONE_REQUEST_BYTES", 1000)
    stored = store.put([TEXT])
    assert store.put([TEXT]) == stored
    assert b"".join(store.stream([stored.key])) == TEXT


@pytest.mark.parametrize(
    ("first", "last"), [(1, 3), (1, 1), (10_000, 10_100), (39_999, 40_000), (39_999, 50_000), (40_001, 40_002), (5, 4)]
)
def test_lines_are_read_from_anywhere(store: LogFiles, first: int, last: int) -> None:
    keys = [store.put([TEXT]).key]
    assert store.lines(keys, first, last) == [line.decode() for line in TEXT.split(b"\n")[:-1]][first - 1 : last]
    assert store.line_count(keys) == 40_000


def test_every_frame_edge_is_read_right(store: LogFiles) -> None:
    keys = [store.put([TEXT]).key]
    for newlines in store.text(keys).newlines[1:-1]:
        assert [int(line[:7]) for line in store.lines(keys, newlines, newlines + 1)] == [newlines, newlines + 1]


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
    keys = [store.put([text]).key]
    assert store.lines(keys, 1, 10) == lines
    assert store.line_count(keys) == len(lines)


def test_a_giant_line_is_cut_and_the_lines_around_it_are_whole(store: LogFiles) -> None:
    keys = [store.put([b"before\n", b"g" * (3 * FRAME_BYTES), b" end\nafter\n"]).key]
    before, giant, after = store.lines(keys, 1, 3)
    assert (before, after) == ("before", "after")
    assert giant == "g" * MAX_LINE_BYTES + " …"
    assert store.lines(keys, 3, 3) == ["after"]
    assert store.lines(keys, 2, 2) == [giant]


def test_a_text_in_many_pieces_reads_as_one(store: LogFiles) -> None:
    cuts = [0, 7, 100_000, 100_050, 2_000_000, 2_000_001, len(TEXT)]
    keys = [store.put([TEXT[a:b]]).key for a, b in itertools.pairwise(cuts)]
    lines = [line.decode() for line in TEXT.split(b"\n")[:-1]]
    assert b"".join(store.stream(keys)) == TEXT
    assert store.line_count(keys) == 40_000
    for first, last in ((1, 2), (1000, 1030), (20_190, 20_220), (39_999, 41_000)):
        assert store.lines(keys, first, last) == lines[first - 1 : last]
    for start, end in ((0, 9), (6, 100_020), (1_999_999, 2_000_002), (len(TEXT) - 3, len(TEXT) + 5), (5, 5)):
        assert b"".join(store.stream_range(keys, start, end)) == TEXT[start:end]


def test_a_line_that_begins_at_the_end_of_a_frame_is_shown_whole(store: LogFiles) -> None:
    head = b"a\n" * 400_000 + b"x" * (FRAME_BYTES - 800_000 - 5)
    keys = [store.put([head + b"y" * (4 * FRAME_BYTES)]).key]
    assert store.lines(keys, 1, 400_001)[-1].startswith("x" * 1000)
    assert len(store.lines(keys, 400_001, 400_001)[0]) == MAX_LINE_BYTES + 2


def test_a_deleted_object_is_gone_and_can_be_deleted_again(store: LogFiles) -> None:
    key = store.put([TEXT]).key
    store.delete(key)
    store.delete(key)
    assert stored_paths(store) == []


def test_a_store_that_answers_is_ready(store: LogFiles) -> None:
    store.check()


def test_an_unreachable_store_is_reported(tmp_path: Path) -> None:
    away = LogFiles.from_settings(Settings(artifact_url="s3://bucket", s3_endpoint="http://127.0.0.1:9"))
    with pytest.raises(Unavailable, match="artifact store"):
        away.check()
    with pytest.raises(Unavailable):
        away.put([b"text"])


def test_a_lost_object_is_unavailable(store: LogFiles) -> None:
    with pytest.raises(Unavailable):
        list(store.stream(["ab/abc.zst"]))


LINES = b"".join(b"%07d %s\n" % (number, b"x" * 90) for number in range(40_000))  # about 4 frames


def written(text: bytes, chunk: int = 300_001) -> tuple[bytes, io.BytesIO]:
    out = io.BytesIO()
    write_frames((text[start : start + chunk] for start in range(0, len(text), chunk)), out)
    return out.getvalue(), out


@pytest.mark.parametrize(
    "text",
    [b"", b"one line\n", b"no end", LINES, LINES[:-1], b"a" * (3 * FRAME_BYTES + 17), b"\n" * FRAME_BYTES * 2],
    ids=["empty", "line", "open", "lines", "open lines", "one giant line", "empty lines"],
)
@pytest.mark.parametrize("chunk", [1000, 7_000_000])
def test_the_text_comes_back_from_chunks_of_any_size(text: bytes, chunk: int) -> None:
    stored, _ = written(text)
    index = read_index(stored)
    pieces = (stored[start : start + chunk] for start in range(0, len(stored), chunk))
    assert b"".join(read_frames(index, pieces)) == text
    assert index.size_bytes == len(text)
    assert index.newlines[-1] == text.count(b"\n")


def test_frames_end_with_lines_where_they_can() -> None:
    stored, _ = written(LINES)
    frames = list(read_frames(read_index(stored), [stored]))
    assert len(frames) == 4
    assert all(frame.endswith(b"\n") for frame in frames)


def test_the_object_is_an_ordinary_zstd_file() -> None:
    stored, _ = written(LINES)
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(stored), read_across_frames=True) as reader:
        assert reader.read() == LINES


@pytest.mark.parametrize("line", [1, 2, 9_999, 10_700, 25_000, 40_000])
def test_a_line_begins_in_the_frame_that_the_index_names_or_the_next(line: int) -> None:
    stored, _ = written(LINES)
    index = StoredText(["key"], [read_index(stored)])
    frame = index.frame_of_line(line)
    assert index.newlines[frame] <= line - 1 <= index.newlines[frame + 1]


def test_what_has_no_index_is_refused() -> None:
    with pytest.raises(ValueError, match="no frame index"):
        read_index(b"just some bytes")


NOW = timedelta(0)


def put(either_engine: Engine, store: LogFiles, text: bytes) -> str:
    """As an upload does that dies before it commits its run."""
    with StagedFile([text]) as staged:
        with transaction(either_engine) as session:
            objects.about_to_put(session, [staged.stored.key])
        store.keep(staged)
        return staged.stored.key


def recorded(either_engine: Engine) -> list[str]:
    with read_session(either_engine) as session:
        return list(session.exec(select(StoredObjectRow.key)))


def test_remnants_of_an_upload_are_deleted_after_a_while(either_engine: Engine, settings: Settings) -> None:
    store = LogFiles.from_settings(settings)
    key = put(either_engine, store, b"left behind")
    assert objects.forget_unused(either_engine, store) == 0
    assert objects.forget_unused(either_engine, store, NOW) == 1
    assert recorded(either_engine) == []
    with pytest.raises(Unavailable):
        list(store.stream([key]))


def test_objects_used_by_another_team_stay_after_a_deletion(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    assert upload(client, LOG).status_code == 202
    store, keys = LogFiles.from_settings(settings), recorded(engine)
    with seeing(frozenset()):
        assert objects.forget(engine, store, keys, utc_now()) == 0
        assert objects.forget_unused(engine, store, NOW) == 0
    assert recorded(engine) == keys


def test_requested_objects_stay(either_engine: Engine, settings: Settings) -> None:
    store = LogFiles.from_settings(settings)
    key = put(either_engine, store, b"wanted twice")
    with transaction(either_engine) as session:
        noted = objects.about_to_put(session, ["another"])
    assert put(either_engine, store, b"wanted twice") == key
    assert objects.forget(either_engine, store, [key], noted) == 0
    assert b"".join(store.stream([key])) == b"wanted twice"


def test_what_a_run_needs_stays_until_the_run_is_gone(
    client: TestClient, engine: Engine, log_files: LogFiles, settings: Settings
) -> None:
    upload(client, LOG)
    assert objects.forget_unused(engine, log_files, NOW) == 0
    with transaction(engine) as session:
        session.execute(delete(RunRow).where(col(RunRow.id) > 0))
    assert objects.forget_unused(engine, log_files, NOW) == 1
    assert traces(engine, settings) == {"messages": 1}


def test_a_store_that_fails_halfway_leaves_nothing(
    client: TestClient, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_keep, stored = LogFiles.keep, []

    def fail_at_the_second(store: LogFiles, staged: StagedFile) -> object:
        if stored:
            raise Unavailable("The artifact store did not answer.")
        stored.append(really_keep(store, staged))
        return stored[0]

    monkeypatch.setattr(LogFiles, "keep", fail_at_the_second)
    assert upload(client, LOG, b"another log\n").status_code == 503
    assert len(stored) == 1
    assert traces(engine, settings) == {}


def test_a_stored_object_is_synced_before_it_is_acknowledged(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    stored = LogFiles.from_settings(settings).put([LOG])
    folder = settings.data_dir / "artifacts"
    assert synced == [str(folder / stored.key), str((folder / stored.key).parent), str(folder)]
