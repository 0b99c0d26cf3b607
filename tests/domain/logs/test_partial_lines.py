"""Lines that a container's runtime broke in two are whole again, and stand where they stood."""

import json
from collections.abc import Iterator

import pytest

from app.domain.logs import parse_log, parse_text
from app.domain.logs.lines import whole_lines
from tests.domain.logs.lines import column, iteration

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
def test_a_broken_line_is_read_as_one(runtime, place: int) -> None:  # type: ignore[no-untyped-def]
    text = iteration(1, 12.5, tail="lm loss: 2.5 | grad norm: 0.5").rstrip("\n")
    whole = iteration(2, 14.5, tail="lm loss: 2.0 | grad norm: 0.5").rstrip("\n")
    warning = next(runtime("a warning", stream="stderr"))
    first, *rest = runtime(text[:place], text[place : place + 7], text[place + 7 :])
    log = parse_text("".join((*runtime("start"), first, warning, *rest, *runtime(whole))))
    assert column(log, "step_time_ms") == [12.5, 14.5]
    assert column(log, "lm_loss") == [2.5, 2.0]
    assert (list(log.line_numbers), log.line_count) == ([5, 6], 6)


@pytest.mark.parametrize("runtime", [cri, docker])
def test_how_the_bytes_arrive_changes_nothing(runtime) -> None:  # type: ignore[no-untyped-def]
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
