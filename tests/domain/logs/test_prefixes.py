"""Launcher prefixes, colours, carriage returns and wrappings, one or several at once."""

import json

import pytest

from app.domain.logs import parse_text
from app.domain.logs.lines import unwrap
from tests.domain.logs.lines import column, iteration

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


def test_a_cut_line_of_docker_gives_what_it_has() -> None:
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
