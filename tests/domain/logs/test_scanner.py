"""Blocks, line numbers and the independence of the result from how the bytes arrived."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.logs import parse_log, parse_text
from app.domain.logs import scanner as scanner_module
from app.domain.logs.scanner import Scanner, blocks
from app.domain.run import ParsedLog

LINES = (
    b" [2026-05-11 02:59:22.912300] iteration        1/      20 | consumed samples:          896 | elapsed time per "
    b"iteration (ms): 78258.5 | global batch size:   896 | lm loss: 1.186185E+01 | loss scale: 1.0 |\n",
    b"[default7]: [2026-05-11 02:59:55.145289] iteration        2/      20 | consumed samples:         1792 | elapsed "
    b"time per iteration (ms): 55245.7 | global batch size:   896 | loss scale: 1.0 |\n",
    b"iteration 3/ 20 | elapsed time per iteration (s): 32.2 |",
    b"\n",
    b"------------------------ arguments ------------------------\n",
    b"  num_experts ..................................... 64\n",
    b"  world_size ...................................... 8\n",
    b"-------------------- end of arguments ---------------------\n",
    b"Configuration Summary (Non-Default Values vs Megatron Core)\n" + b"=" * 70 + b"\n[model] Non-default values "
    b"(vs Mcore TransformerConfig):\n  num_moe_experts: 128  (Mcore default: None)\n" + b"=" * 70 + b"\n",
    b"Step Time : 2.26s GPU utilization: 1156.2MODEL_TFLOP/s/GPU\n",
    b"[Rank 3] (after 2 iterations) memory (MB) | allocated: 10.5 | max allocated: 20.5 | reserved: 1\n",
    b"[before the start of training step] datetime: 2026-05-11 02:58:04.653576 \n",
    b"  successfully loaded checkpoint from /c [ t 1/2, p 1/2 ] at iteration 45\n",
    b"[rank428]: RuntimeError: DeepEP error: timeout (dispatch CPU)\n",
    b"7: node-1:1:2 [0] NCCL INFO Connected all rings\n",
    b"\x00\xff\xfe|||\r\x1b[31m",
)


@contextmanager
def small_blocks() -> Iterator[None]:
    """Blocks and lines so small that every log crosses their borders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner_module, "BLOCK", 64)
        patch.setattr(scanner_module, "MAX_LINE", 300)
        yield


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def same(a: ParsedLog, b: ParsedLog) -> bool:
    if set(a.columns) != set(b.columns):
        return False
    columns = all(np.array_equal(a.columns[name], b.columns[name], equal_nan=True) for name in a.columns)
    rest = [name for name in ParsedLog.__dataclass_fields__ if name not in ("columns", "line_numbers")]
    return (
        columns and list(a.line_numbers) == list(b.line_numbers) and all(getattr(a, n) == getattr(b, n) for n in rest)
    )


@given(st.lists(st.sampled_from(LINES), max_size=30), st.lists(st.integers(0, 10_000), max_size=20))
def test_chunk_borders_never_change_the_result(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(lines)
    assert same(parse_text(data), parse_log(pieces(data, cuts)))


@pytest.mark.parametrize("step", [1, 2, 7, 63, 64, 65, 300, 1000])
def test_block_borders_never_change_the_result(step: int) -> None:
    data = b"".join(LINES) * 3
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    with small_blocks():
        assert same(parse_text(data), parse_log(chunks))


@given(st.lists(st.integers(0, 1000), max_size=8), st.lists(st.integers(0, 10_000), max_size=30))
def test_blocks_hold_all_bytes_and_cut_long_lines_at_fixed_places(lengths: list[int], cuts: list[int]) -> None:
    data = b"\n".join(b"x" * length for length in lengths)
    with small_blocks():
        result = list(blocks(pieces(data, cuts)))
    assert b"".join(result) == data
    assert all(result)
    assert max(map(len, result), default=0) <= 300 + 2 * 64
    long_pieces = [piece for piece in result if b"\n" not in piece[:-1] and len(piece) == 300]
    assert len(long_pieces) >= sum(length // 300 for length in lengths)


def test_blocks_of_nothing_are_nothing() -> None:
    assert list(blocks([])) == list(blocks([b"", b""])) == []


class Recorder:
    """A reader that writes down what it is given."""

    keys: Sequence[bytes] = (b"key", b"other")

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, int]] = []

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        self.seen.append((data[start:end], line))
        return max(hit, end)


def test_a_reader_gets_its_lines_once_with_their_numbers() -> None:
    recorder = Recorder()
    scanner = Scanner([recorder])
    for block in (b"a\nkey and key\n\nb\n", b"c\nother\n", b"no break: key"):
        scanner.scan(block)
    assert recorder.seen == [(b"key and key", 2), (b"other", 6), (b"no break: key", 7)]
    assert scanner.line_breaks == 6
