"""Timer blocks in all their shapes, and the iteration that they belong to."""

import pytest

from app.domain.logs import parse_log, parse_text, timers
from tests.domain.logs.lines import column, iteration

HEAD = "(min, max) time across ranks (ms):\n"


def entry(name: str, low: float, high: float, tag: str = "") -> str:
    return f"{tag}    {(name + ' ').ljust(48, '.')}: ({low:.2f}, {high:.2f})\n"


def block(low: float, tag: str = "") -> str:
    return f"{tag}{HEAD}" + entry("forward-backward", low, low + 1, tag) + entry("optimizer", 2.0, 3.0, tag)


@pytest.mark.parametrize("tag", ["", "15: ", "[default7]:", "node-001: "])
def test_a_block_belongs_to_the_iteration_above_it(tag: str) -> None:
    log = parse_text("".join(f"{tag}{iteration(n, 10.0)}{block(n * 10.0, tag)}" for n in (1, 2, 3)))
    assert column(log, "timer_forward_backward_ms") == [11.0, 21.0, 31.0]
    assert column(log, "timer_forward_backward_min_ms") == [10.0, 20.0, 30.0]
    assert column(log, "timer_optimizer_ms") == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("INFO:megatron.core.timers:" + HEAD + entry("optimizer", 1.0, 2.0), 1.0, 2.0),
        (HEAD.rstrip("\n") + entry("optimizer", 1.0, 2.0).strip() + "\n", 1.0, 2.0),
        ("max time across ranks (ms):\n    optimizer ....................: 2.00\n", None, 2.0),
        ("times across ranks (ms):\n  optimizer:\n     rank  0: 1.00\n     rank  1: 2.00\n", 1.0, 2.0),
        ("time (ms) | forward-compute: 1.00 | optimizer: 2.00\n", None, 2.0),
        (HEAD + "7: NCCL INFO noise\n" * 5 + entry("optimizer", 1.0, 2.0), 1.0, 2.0),
        ('{"log":"' + HEAD.rstrip("\n") + '\\n","stream":"stdout","time":"1"}\n{"log":"'
         + entry("optimizer", 1.0, 2.0).rstrip("\n") + '\\n","stream":"stdout","time":"2"}\n', 1.0, 2.0),
        ("\x1b[1m[timers.py:450] : " + HEAD + entry("optimizer", 1.0, 2.0).rstrip("\n") + "\x1b[0m\n", 1.0, 2.0),
    ],
)  # fmt: skip
def test_every_shape_of_a_block_is_read(text: str, low: float | None, high: float) -> None:
    log = parse_text(iteration(1, 10.0) + text)
    assert column(log, "timer_optimizer_ms") == [high]
    assert low is None or column(log, "timer_optimizer_min_ms") == [low]


def test_deepspeed_tells_its_times_before_the_iteration() -> None:
    head = "[2024-04-04 09:09:53,313] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
    log = parse_text("".join(f"{head}fwd: {n}.5 | step: 1.0\n{iteration(n, 10.0)}" for n in (1, 2)))
    assert column(log, "timer_fwd_ms") == [1.5, 2.5]


def test_a_block_can_have_more_timers_later() -> None:
    later = block(20.0) + entry("all-grads-sync", 0.5, 0.75)
    log = parse_text(iteration(1, 1.0) + block(10.0) + iteration(2, 1.0) + later + iteration(3, 1.0) + block(30.0))
    assert column(log, "timer_forward_backward_ms") == [11.0, 21.0, 31.0]
    assert column(log, "timer_all_grads_sync_ms") == [None, 0.75, None]


def test_timers_of_the_start_up_are_facts_of_the_run() -> None:
    log = parse_text(HEAD + entry("model-and-optimizer-setup", 1.0, 2.0) + iteration(1, 10.0))
    assert log.arguments == {"start-up timer: model_and_optimizer_setup (ms)": 2.0}
    assert not any(name.startswith("timer") for name in log.columns)


def test_timers_behind_a_doubled_line_stay_with_it() -> None:
    log = parse_text(iteration(1, 10.0) + iteration(1, 10.0) + block(10.0) + iteration(2, 10.0))
    assert column(log, "timer_forward_backward_ms") == [11.0, None]


@pytest.mark.parametrize("step", [1, 7, 100, 1000])
def test_how_the_bytes_arrive_changes_nothing(step: int) -> None:
    text = "".join(iteration(n, 10.0) + block(n * 10.0) + "x\n" * 30 for n in range(1, 6)).encode()
    log = parse_log([text[at : at + step] for at in range(0, len(text), step)])
    assert column(log, "timer_forward_backward_ms") == [11.0, 21.0, 31.0, 41.0, 51.0]


def test_no_log_makes_timers_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "MAX_TIMERS", 2)
    monkeypatch.setattr(timers, "MAX_VALUES", 5)
    text = "".join(iteration(n, 10.0) + HEAD + "".join(entry(f"t{i}-{n}", 1.0, 2.0) for i in range(5)) for n in (1, 2))
    log = parse_text(text)
    assert [name for name in log.columns if name.startswith("timer")] == [
        "timer_t0_1_min_ms", "timer_t0_1_ms", "timer_t1_1_min_ms", "timer_t1_1_ms"
    ]  # fmt: skip
    assert {problem.kind for problem in log.problems} == {"many timers"}
