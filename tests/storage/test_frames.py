"""Any line of a stored text can be found, wherever frames were cut."""

import io

import pytest
import zstandard

from app.storage.log_files import FRAME_BYTES, StoredText, read_frames, read_index, write_frames

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
