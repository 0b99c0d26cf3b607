"""Lines: the scanner, prefixes of launchers, partial lines."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.logs import parse_log, parse_text
from app.domain.logs import scanner as scanner_module
from app.domain.logs.lines import unwrap, whole_lines
from app.domain.logs.scanner import Scanner, blocks
from app.domain.run import ParsedLog
from tests.domain.logs.lines import column, iteration

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
@settings(deadline=None)
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
@settings(deadline=None)
def test_blocks_hold_all_bytes_and_cut_long_lines_at_fixed_places(lengths: list[int], cuts: list[int]) -> None:
    data = b"\n".join(b"x" * length for length in lengths)
    with small_blocks():
        result = list(blocks(pieces(data, cuts)))
    assert b"".join(result) == data
    assert all(result)
    assert max(map(len, result), default=0) <= 300 + 2 * 64
    long_pieces = [piece for piece in result if b"\n" not in piece[:-1] and len(piece) == 300]
    assert len(long_pieces) >= sum(length // 300 for length in lengths)


def test_empty_blocks_yield_nothing() -> None:
    assert list(blocks([])) == list(blocks([b"", b""])) == []


class Recorder:
    """A reader that records its input."""

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


TEXT = " [2026-01-02 03:04:05] iteration 12"

PREFIXES = {
    "torchrun": (f"[default0]:{TEXT}", ("[default0]",), None),
    "torchrun of a fork": (f"[default7]: {TEXT}", ("[default7]",), None),
    "nemo-run": (f"_b200_bf16/0 {TEXT}", ("_b200_bf16/0",), None),
    "nemo-run and torchrun": (f"retraining/0 [default0]:{TEXT}", ("retraining/0", "[default0]"), None),
    "srun": (f"  0: {TEXT}", ("0",), 0),
    "srun, wide": (f"428: {TEXT}", ("428",), 428),
    "pdsh": (f"node-008: {TEXT}", ("node-008",), None),
    "site script": (f"[node0137:3] {TEXT}", ("[node0137:3]",), None),
    "failure handler": (f"[rank428]: {TEXT}", ("[rank428]",), 428),
    "Kubernetes": (f"2026-04-14T17:50:00.281177123Z stdout F {TEXT}", (), None),
    "log shipper": (f"[2026-01-02T03:04:05+08:00] {TEXT}", (), None),
    "Docker": (json.dumps({"log": TEXT + "\n", "stream": "stdout", "time": "2026-01-02T03:04:05Z"}), (), None),
    "Docker around torchrun": (json.dumps({"log": f"[default3]:{TEXT}\n", "stream": "stdout"}), ("[default3]",), None),
    "Primus": (f"[20260511 02:59:23][rank-7/8][DEBUG]    [-----utils.py:425] :{TEXT}", ("rank-7/8",), 7),
    "quoted": (f"# {TEXT}", ("#",), None),
    "colours": (f"\x1b[32m[default0]:\x1b[0m\x1b[1m{TEXT}\x1b[0m", ("[default0]",), None),
    "progress bar": (f" 10%|#   | 1/10 [00:01]\r 20%|##  | 2/10\r{TEXT}", (), None),
    "Windows": (f"{TEXT}\r", (), None),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_what_the_trainer_printed_is_left(name: str) -> None:
    raw, tags, rank = PREFIXES[name]
    line = unwrap(raw.encode())
    assert line.text.lstrip() == TEXT.lstrip()
    assert (line.tags, line.rank) == (tags, rank)


@pytest.mark.parametrize(
    "raw",
    [
        "using world size: 8",
        "{not json",
        '{"metric": 5}',
        '{"log": 5}',
        "INFO:megatron.core: text",
        "  num_experts: 8",
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1",
        "",
    ],
)
def test_text_without_a_prefix_stays_as_it_is(raw: str) -> None:
    assert unwrap(raw.encode()).text == raw


def test_a_truncated_docker_line_is_read_up_to_its_end() -> None:
    assert unwrap(b'{"log": " iteration 1/ 2 | elapsed').text == " iteration 1/ 2 | elapsed"


def test_what_no_page_can_show_is_taken_out() -> None:
    assert unwrap(b"a\x00b\xff\x07c").text == "ab\ufffdc"


@pytest.mark.parametrize("name", PREFIXES)
def test_iteration_lines_are_read_behind_any_prefix(name: str) -> None:
    wrapped = [PREFIXES[name][0]] * 2
    lines = [raw.replace(TEXT, iteration(n, 10.0 + n).rstrip("\n")) for n, raw in enumerate(wrapped, 1)]
    log = parse_text("\n".join(lines) + "\n")
    assert column(log, "step_time_ms") == [11.0, 12.0]
    assert column(log, "loss_scale") == [1.0, 1.0]
    assert log.unrecognised_lines == 0


def test_colours_inside_a_line_do_no_harm() -> None:
    line = iteration(1, 10.0, tail="lm loss: \x1b[31m2.5\x1b[0m | grad norm: 0.5")
    log = parse_text(line + line.replace(" 1/", " 2/"))
    assert column(log, "lm_loss") == [2.5, 2.5]


def test_an_iteration_line_behind_a_progress_bar_ends_at_the_next_carriage_return() -> None:
    line = iteration(1, 10.0).rstrip("\n")
    log = parse_text(f"1/5\r{line}\r2/5 | x: 7 |\n")
    assert column(log, "step_time_ms") == [10.0]
    assert "x" not in log.columns


STAMP = "2026-04-14T17:50:00.281177123Z"


def cri(*parts: str, stream: str = "stdout") -> Iterator[str]:
    for part in parts[:-1]:
        yield f"{STAMP} {stream} P {part}\n"
    yield f"{STAMP} {stream} F {parts[-1]}\n"


def docker(*parts: str, stream: str = "stdout") -> Iterator[str]:
    for part in parts[:-1]:
        yield json.dumps({"log": part, "stream": stream, "time": STAMP}, separators=(",", ":")) + "\n"
    yield json.dumps({"log": parts[-1] + "\n", "stream": stream, "time": STAMP}, separators=(",", ":")) + "\n"


@pytest.mark.parametrize("runtime", [cri, docker])
@pytest.mark.parametrize("place", [10, 40, 80, 110, 140])
def test_a_broken_line_is_read_as_one(runtime, place: int) -> None:
    text = iteration(1, 12.5, tail="lm loss: 2.5 | grad norm: 0.5").rstrip("\n")
    whole = iteration(2, 14.5, tail="lm loss: 2.0 | grad norm: 0.5").rstrip("\n")
    warning = next(runtime("a warning", stream="stderr"))
    first, *rest = runtime(text[:place], text[place : place + 7], text[place + 7 :])
    log = parse_text("".join((*runtime("start"), first, warning, *rest, *runtime(whole))))
    assert column(log, "step_time_ms") == [12.5, 14.5]
    assert column(log, "lm_loss") == [2.5, 2.0]
    assert (list(log.line_numbers), log.line_count) == ([5, 6], 6)


@pytest.mark.parametrize("runtime", [cri, docker])
def test_how_the_bytes_arrive_changes_nothing(runtime) -> None:
    text = "".join(
        line for n in range(1, 9) for line in runtime(iteration(n, 10.0 + n)[:50], iteration(n, 10.0 + n)[50:-1])
    )
    data = text.encode()
    log = parse_log([data[at : at + 13] for at in range(0, len(data), 13)])
    assert column(log, "step_time_ms") == [10.0 + n for n in range(1, 9)]


def test_other_logs_pass_unchanged() -> None:
    blocks = [b"", b"a stdout P b\n", b'{"log":"x"}\n', b"no break"]
    assert list(whole_lines(iter(blocks), pytest.fail)) == blocks


def test_parts_whose_end_never_came_are_not_lost() -> None:
    log = parse_text("".join(cri("start")) + f"{STAMP} stdout P iteration 1/ 2 | elapsed time per iter\n")
    assert log.last_lines[-1] == "iteration 1/ 2 | elapsed time per iter"
    assert log.line_count == 2
    assert parse_text(f"{STAMP} stdout P part").line_count == 1
    log = parse_text(f"{STAMP} stdout P part\n" + "".join(cri("warning", stream="stderr")))
    assert ([problem.kind for problem in log.problems], log.line_count) == (["broken line"], 2)
