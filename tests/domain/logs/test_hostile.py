"""Hostile and damaged logs: bounded work, no exception, and lines that the parser does not understand."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import app.domain.logs
from app.domain.logs import iterations, parse_text
from app.domain.logs.iterations import MAX_NAMES, MAX_RECORD, RecordReader
from app.domain.logs.read import Reading
from app.domain.logs.scanner import BoolArray, LineReader, Scanner, blocks
from app.domain.logs.series import MAX_COLUMNS
from app.domain.run import UNKNOWN_STEP, LineExample, ParsedLog
from tests.cases import every_case, sized
from tests.domain.logs.lines import column, iteration

MEGABYTE = 1_000_000
OF_A_KEY = sized(20_000, MEGABYTE)
KEYS = tuple(key for reader in Reading()._readers() for key in reader.keys)


def repeated(piece: bytes, size: int = sized(400_000, 3 * MEGABYTE)) -> bytes:
    return piece * (size // len(piece))


HOSTILE = {
    "zeros": bytes(3 * MEGABYTE),
    "one endless line": repeated(b"a"),
    "bars": repeated(b"|"),
    "blanks": repeated(b" "),
    "brackets": repeated(b"["),
    "invalid UTF-8": repeated(b"\xff\xfe\n"),
    "carriage returns": repeated(b"\r"),
    "line breaks": repeated(b"\n"),
    "half records": repeated(b"iteration 1/ 2 | consumed samples: "),
    "heads without fields": repeated(b"iteration 1/ 2 |"),
    "step times without values": repeated(b"elapsed time per iteration ("),
    "records on one line": repeated(b" iteration 1/ 2 | elapsed time per iteration (ms): 1.0 |"),
    "prefixes": repeated(b"[default0]:") + b"\n" + repeated(b"[rank1]: KeyError: x "),
    "dumps without end": repeated(b"\n arguments ---\n  a ... b\n", sized(400_000, MEGABYTE)),
    "summaries": repeated(b"\nConfiguration Summary\n[model]:\n", sized(400_000, MEGABYTE)),
    "JSON": repeated(b'{"log": {"log": ') + repeated(b"[" * 100),
    "numbers": iteration(1, 1.0, tail="x: " + "9" * 5000).encode() * 50,
    **{f"key {key!r}": repeated(key, OF_A_KEY) for key in KEYS},
    **{f"lines of {key!r}": repeated(key + b"\n", OF_A_KEY) for key in KEYS},
}  # fmt: skip


def is_storable(log: ParsedLog) -> None:
    """Values from a log must fit into a database and a page: no control characters, no infinite numbers in JSON."""
    plain = asdict(log)
    plain["columns"] = {name: np.isfinite(column).sum().item() for name, column in log.columns.items()}
    plain["line_numbers"] = log.line_numbers.tolist()
    text = json.dumps(plain, allow_nan=False)
    assert "\\u0000" not in text
    assert len({len(column) for column in log.columns.values()} | {log.n}) == 1


def test_hostile_text_is_read_to_its_end() -> None:
    with every_case() as case:
        for name, text in HOSTILE.items():
            with case(name):
                log = parse_text(text)
                is_storable(log)
                assert log.line_count == text.count(b"\n") + (not text.endswith(b"\n"))
                assert len(log.problems) < 100
                assert len(log.events) <= 22 * 300


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(KEYS), st.sampled_from([b"\n", b"|", b": ", b"1"]))))
@settings(deadline=None)
def test_no_bytes_can_make_it_raise(parts: list[bytes]) -> None:
    is_storable(parse_text(b"".join(parts)))


class Work:
    """Counts the bytes that readers inspect: each call costs the bytes from its key to where it stops."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        original = Scanner._read_hits

        def counted(scanner: Scanner, data: bytes, hits: list[tuple[int, int]], is_break: BoolArray) -> int:
            scanner._readers = [Counted(reader, self) for reader in scanner._readers]
            return original(scanner, data, hits, is_break)

        patch.setattr(Scanner, "_read_hits", counted)


class Counted:
    """A reader that passes its input on in a buffer that counts the copied bytes."""

    def __init__(self, reader: LineReader, work: Work) -> None:
        self.keys, self.block = reader.keys, reader.block
        self._reader, self._work = reader, work

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        watched = Watched(data)
        watched.work = self._work
        return self._reader.read(watched, start, end, hit, line)


class Watched(bytes):
    """Bytes that count how much of them is sliced and searched."""

    work: Work

    def __getitem__(self, key):
        piece = super().__getitem__(key)
        self.work.bytes += len(piece) if isinstance(piece, bytes) else 1
        return piece

    def find(self, sub, start=0, end=None):
        position = super().find(sub, start, end)
        self.work.bytes += (position if position >= 0 else len(self) if end is None else min(end, len(self))) - start
        return position

    def rfind(self, sub, start=0, end=None):
        position = super().rfind(sub, start, end)
        self.work.bytes += max(0, (len(self) if end is None else end) - (position if position >= 0 else start))
        return position


def work_for(data: bytes) -> int:
    with pytest.MonkeyPatch.context() as patch:
        work = Work(patch)
        parse_text(data)
    return work.bytes


PIECES = st.lists(
    st.one_of(st.binary(max_size=20), st.sampled_from(KEYS), st.sampled_from([b"\n", b"|", b"iteration 1/ 2 |"])),
    min_size=1,
    max_size=6,
).map(b"".join)


@settings(max_examples=sized(20, 300), deadline=None)
@given(PIECES.filter(bool))
def test_twice_the_text_is_at_most_twice_the_work(piece: bytes) -> None:
    once, twice = (work_for(piece * (size // len(piece) + 1)) for size in (40_000, 80_000))
    assert twice <= 2.2 * once + 200_000


def test_no_key_makes_readers_look_far() -> None:
    """At most 8 KiB per key, on one endless line as well as on many short ones."""
    with every_case() as case:
        for key in KEYS:
            with case(key):
                for piece in (key, key + b"\n", b"iteration 1/ 2 | " + key):
                    count = sized(24_000, 100_000) // len(piece)
                    assert work_for(piece * count) <= count * 8_192


@pytest.mark.parametrize(
    "line",
    [
        b"x" * (10 * MEGABYTE),
        b"[rank0]: " * MEGABYTE + b"KeyError: x",
        b'{"log":' * MEGABYTE + b"rror: ",
        b"[" * MEGABYTE + b"rror: ",
        b"\x1b[31m" * MEGABYTE + b"rror: ",
        bytes(10 * MEGABYTE),
        b"\xff\xfe" * MEGABYTE,
    ],
    ids=["one line", "prefixes", "nested JSON", "brackets", "colours", "zeros", "invalid UTF-8"],
)
def test_a_line_of_megabytes_costs_little_and_hides_nothing(line: bytes) -> None:
    data = line + b"\n" + iteration(1, 10.0).encode()
    assert list(parse_text(data).line_numbers) == [2]
    assert work_for(data) <= 100_000


def test_a_line_of_ten_megabytes_does_not_hide_the_next_one() -> None:
    log = parse_text("x" * (10 * MEGABYTE) + "\n" + iteration(1, 10.0))
    assert list(log.line_numbers) == [2]


def test_an_iteration_line_behind_megabytes_of_progress_bar_is_read() -> None:
    log = parse_text("\r".join(["Loading 10%"] * 50_000) + "\r" + iteration(1, 10.0))
    assert (column(log, "step_time_ms"), list(log.line_numbers)) == ([10.0], [1])


def test_text_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing records inspects fewer than twice the bytes of the log, even if records are interleaved."""
    taken = 0
    original = iterations._record

    def counted(data: bytes, start: int, begin: int, stop: int, *, cut: bool) -> tuple[bytes, bool]:
        nonlocal taken
        taken += stop - begin
        return original(data, start, begin, stop, cut=cut)

    monkeypatch.setattr(iterations, "_record", counted)
    for name in ("half records", "records on one line", "step times without values", "bars"):
        taken = 0
        parse_text(HOSTILE[name])
        assert taken <= 2 * len(HOSTILE[name]) + MAX_RECORD


def test_blocks_stay_small_whatever_the_lines_are() -> None:
    assert max(len(block) for block in blocks([repeated(b"a", 5 * MEGABYTE), repeated(b"\n", 5 * MEGABYTE)])) <= 2 << 20


def test_ever_new_fields_make_neither_columns_nor_patterns_without_end() -> None:
    lines = "".join(iteration(n, 10.0 + n, tail=f"field {n}: {n} | grad norm: {n}") for n in range(1, 500))
    log = parse_text(lines)
    assert len(log.columns) <= MAX_COLUMNS + 1
    assert column(log, "step_time_ms") == [10.0 + n for n in range(1, 500)]
    assert column(log, "grad_norm") == list(range(1, 500))
    assert {problem.kind for problem in log.problems} == {"many names"}
    reading = Reading()
    reading.read(lines.encode())
    assert len(reading._rows.tables) <= MAX_NAMES + 1


def test_lines_of_known_kinds_with_new_names_are_not_parsed_field_by_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = 0
    original = RecordReader._read_slowly

    def counted(*arguments: Any) -> int:
        nonlocal slow
        slow += 1
        return original(*arguments)

    monkeypatch.setattr(RecordReader, "_read_slowly", counted)
    parse_text("".join(iteration(n, 10.0, tail=f"field {n}: {n}") for n in range(1, 2000)))
    assert slow <= 2 * MAX_NAMES


def test_values_of_known_names_are_read_among_ever_new_ones() -> None:
    new = "".join(iteration(n, 10.0, tail=f"field {n}: {n}") for n in range(1, 200))
    mixed = (iteration(n, 10.0, tail=f"{'lm loss' if n % 2 else f'field {n}'}: {n}") for n in range(200, 300))
    log = parse_text(iteration(0, 10.0, tail="lm loss: 0.0") + new + "".join(mixed))
    assert column(log, "lm_loss")[200:] == [n if n % 2 else None for n in range(200, 300)]


def test_iterations_beyond_the_limit_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterations, "MAX_ROWS", 3)
    log = parse_text("".join(iteration(n, 10.0) for n in range(1, 9)))
    assert column(log, "iteration") == [1, 2, 3]
    assert "too many iterations" in {problem.kind for problem in log.problems}


def module_patterns() -> Iterator[tuple[str, str | bytes]]:
    for module in pkgutil.walk_packages(app.domain.logs.__path__, "app.domain.logs."):
        for name, value in vars(importlib.import_module(module.name)).items():
            for pattern in value if isinstance(value, tuple) else (value,):
                if isinstance(pattern, re.Pattern):
                    yield f"{module.name}.{name}", pattern.pattern


def test_no_pattern_can_backtrack_badly() -> None:
    """No repetition contains another unbounded one, because matching would take exponential time."""
    with every_case() as case:
        for name, pattern in list(module_patterns()):
            with case((name, pattern)):
                from re import _parser  # noqa: PLC0415

                check_repeats(_parser.parse(pattern), inside_repeat=False)


def check_repeats(items: object, *, inside_repeat: bool) -> None:
    for kind, argument in items:
        word = str(kind)
        if "REPEAT" in word:
            _, most, body = argument
            assert not (inside_repeat and most > 10)
            check_repeats(body, inside_repeat=inside_repeat or most > 1)
        elif word == "SUBPATTERN":
            check_repeats(argument[3], inside_repeat=inside_repeat)
        elif word == "BRANCH":
            for branch in argument[1]:
                check_repeats(branch, inside_repeat=inside_repeat)


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("iteration 5/ 10 | elapsed time per iteration (ms): fast |\n", "an iteration line", 1),
        ("x\nStep Time : soon GPU utilization: 5MODEL_TFLOP/s/GPU\n", "a step line", 2),
        ("[Rank 3] (after 2 iterations) memory (MB) | max allocated: much |\n", "a memory line", 1),
        (" iteration 5/ 10 | consumed samples: 40 | elap[rank1]: warn\n", "half of an iteration line", 1),
        ("INFO | step x | step-time soon |\n", "a step of pith-train", 1),
    ],
)
def test_kinds_are_counted_with_the_first_example(text: str, kind: str, line: int) -> None:
    (example,) = parse_text(text * 2).not_understood
    assert (example.kind, example.count, example.line) == (kind, 2, line)
    assert example.example


STEPS = {
    "Hugging Face without a bar": "{'loss': 2.5523, 'grad_norm': 8.93, 'learning_rate': 4.99e-05, 'epoch': 0.01}",
    "progress bar": "  5%|5    | 1499/9000 [05:00<2:55:00, 5.00s/it]\r  5%|5    | 1500/9000 [05:05<2:54:55, 5.00s/it]",
    "Lightning at one state": "Epoch 0:  12%|#         | 12/100 [00:05<00:40,  2.20it/s, v_num=0]",
    "TensorFlow": "INFO:tensorflow:global step 3: loss = 67.3308 (16.534 sec/step)",
    "own": "2026 step 5 loss 2.5 time 0.3",
}
OTHER_LINES = (
    "Training starts at step 1.", "Loading shards:  50%", "INFO 2026-11-01 10:00:00 epoch", "loss function: mse",
    "NCCL INFO Channel 00/32 :    0   1", "took 5 seconds to build the model", "using 8 processes",
)  # fmt: skip


def test_lines_of_unknown_trainers_that_look_like_steps_are_shown_with_their_place() -> None:
    wrong = []
    for trainer, step in STEPS.items():
        for noise in (3, 9000):  # the beginning and the end of a long log are inspected separately
            lines = [*OTHER_LINES, step, step, *["noise"] * noise, *OTHER_LINES, step, step, "the end"]
            places = [at for at, line in enumerate(lines, 1) if line == step]
            examples = parse_text("\n".join(lines) + "\n").not_understood
            wanted = [(UNKNOWN_STEP, line, 1) for line in (places[0], places[1], places[-1])]
            others = {example.example for example in examples} - {step.rpartition("\r")[2].strip()}
            if [(example.kind, example.line, example.count) for example in examples] != wanted or others:
                wrong.append((trainer, noise, examples))
    assert wrong == []


def test_fields_without_a_number_are_reported_once_per_name() -> None:
    log = parse_text(iteration(1, 10.0, tail="mood: good | eta: 1:00:00") + iteration(2, 10.0, tail="mood: bad"))
    assert log.not_understood == (LineExample("the field mood of an iteration line", 2, "mood: good", 1),)


def test_half_a_line_of_one_rank_does_not_spoil_the_line_of_another() -> None:
    half = iteration(5, 99.0)[:60]
    log = parse_text(half + iteration(6, 10.0) + iteration(7, 11.0))
    assert (column(log, "iteration"), column(log, "step_time_ms")) == ([6, 7], [10.0, 11.0])
    assert [example.kind for example in log.not_understood] == ["half of an iteration line"]


def test_a_log_that_was_understood_says_so() -> None:
    assert parse_text("noise\n" + iteration(1, 10.0)).not_understood == ()
