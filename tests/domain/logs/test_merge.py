"""Files of one run, distinguished and joined by their content."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.logs import parse_log, parse_text
from app.domain.logs.merge import merge_logs
from app.domain.run import LogPart, ParsedLog
from tests.shared_papers import shared_folder

START = "[before the start of training step] datetime: 2026-05-11 {stamp}.000000 \n"
LOADED = "  successfully loaded checkpoint from /ckpt [ t 1/2, p 1/2 ] at iteration {iteration}\n"
ARGUMENTS = """------------------------ arguments ------------------------
  num_layers ...................................... 4
  seed ............................................ {seed}
  train_iters ..................................... 100
  world_size ...................................... {gpus}
-------------------- end of arguments ---------------------
"""


def iterations(first: int, last: int, *, minute: int = 0, add: float = 0.0, total: int = 100) -> str:
    """Iteration lines as Megatron-LM's last rank prints them, a second apart; times differ from line to line."""
    return "".join(
        f" [2026-05-11 {3 + (minute + i // 60) // 60:02}:{(minute + i // 60) % 60:02}:{i % 60:02}] iteration {i:8d}/"
        f"{total:8d} | consumed samples: {i * 8:12d} | elapsed time per iteration (ms): {100 + i + add:.1f} | "
        f"global batch size:     8 | lm loss: {5 - i / 100:.6E} | number of skipped iterations:   0 |\n"
        for i in range(first, last + 1)
    )


def merged(*texts: str, names: Sequence[str] = "abcdefgh") -> ParsedLog:
    return merge_logs([LogPart(f"{name}.log", parse_text(text)) for name, text in zip(names, texts, strict=False)])


def printed(log: ParsedLog) -> list[float]:
    return [float(value) for value in log.columns["iteration"]]


def kinds(log: ParsedLog) -> set[str]:
    return {problem.kind for problem in log.problems}


def test_one_file_is_itself() -> None:
    whole = parse_text(iterations(1, 9))
    log = merged(iterations(1, 9))
    assert printed(log) == printed(whole)
    assert log.files == ("a.log",)
    assert [(piece.kind, piece.first_iteration, piece.last_iteration) for piece in log.slices] == [("start", 1, 9)]
    assert set(log.columns["log_file"]) == {0.0}


def test_rank_zero_prints_the_arguments_and_the_last_rank_the_iterations() -> None:
    memory = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0\n"
    log = merged(iterations(1, 9), ARGUMENTS.format(seed=1, gpus=16) + START.format(stamp="03:00:00") + memory)
    assert log.stated["gpus"].value == 16
    assert printed(log) == list(range(1, 10))
    assert [(report.rank, report.file) for report in log.memory] == [(0, 1)]
    assert not kinds(log)


def test_a_log_of_all_ranks_given_twice_counts_once() -> None:
    text = ARGUMENTS.format(seed=1, gpus=8) + START.format(stamp="03:00:00") + iterations(1, 9)
    prefixed = "".join(f"[default7]:{line}" for line in text.splitlines(keepends=True))
    log = merged(prefixed, text, iterations(1, 9))
    assert printed(log) == list(range(1, 10))
    assert log.segment_starts == (0,)
    assert len(log.events) == 1


def test_a_resumed_slice_wins_the_overlap_and_marks_the_restart() -> None:
    first = START.format(stamp="03:00:00") + iterations(1, 60)
    second = LOADED.format(iteration=50) + START.format(stamp="04:00:00") + iterations(51, 100, minute=60, add=0.5)
    for texts in ((first, second), (second, first)):
        log = merged(*texts)
        assert printed(log) == list(range(1, 101))
        assert log.segment_starts == (0, 50)
        assert log.columns["step_time_ms"][50] == 151.5
        assert log.columns["log_file"][49] == texts.index(first)
        assert log.columns["log_file"][50] == texts.index(second)
        assert [(piece.kind, piece.first_iteration, piece.last_iteration, piece.first_row, piece.iterations_kept)
                for piece in log.slices] == [("start", 1, 60, 0, 50), ("resume", 51, 100, 50, 50)]  # fmt: skip
        assert not any(piece.crash_loop for piece in log.slices)


def test_the_last_rank_alone_shows_a_resume_that_rank_zero_logs() -> None:
    log = merged(iterations(1, 50), iterations(51, 100, minute=60), LOADED.format(iteration=50))
    assert log.segment_starts == (0, 50)


def test_a_log_cut_in_two_with_lines_in_both_has_no_restart() -> None:
    log = merged(iterations(1, 30), iterations(25, 60))
    assert printed(log) == list(range(1, 61))
    assert log.segment_starts == (0,)


def test_a_retry_starts_over_and_unreached_iterations_are_reported() -> None:
    log = merged(iterations(1, 30), iterations(1, 20, minute=5, add=0.5))
    assert printed(log) == list(range(1, 21))
    assert [problem.kind for problem in log.slices] == ["start", "retry"]
    (problem,) = (problem for problem in log.problems if problem.kind == "went back")
    assert problem.message.startswith("Iterations 21 to 30 of a.log")


def test_without_stamps_the_longer_of_two_that_begin_together_came_later() -> None:
    def bare(first: int, last: int, add: float) -> str:
        return "".join(f" {line.partition('] ')[2]}\n" for line in iterations(first, last, add=add).splitlines())

    for texts in ((bare(1, 3, 0.5), bare(1, 20, 0)), (bare(1, 20, 0), bare(1, 3, 0.5))):
        assert printed(merged(*texts)) == list(range(1, 21))


@pytest.mark.parametrize("from_checkpoint", [0, 10])
def test_three_starts_that_get_no_further_are_a_crash_loop(from_checkpoint: int) -> None:
    def start(hour: int) -> str:
        loaded = LOADED.format(iteration=from_checkpoint) if from_checkpoint else ""
        rows = iterations(from_checkpoint + 1, from_checkpoint + 3, minute=60 * hour, add=hour / 10)
        return loaded + START.format(stamp=f"{3 + hour:02}:00:00") + rows

    loop = merged(start(2), start(0), start(1))
    assert "crash loop" in kinds(loop)
    assert all(piece.crash_loop for piece in loop.slices)
    assert "crash loop" in kinds(merged(start(0) + start(1) + start(2)))
    assert "crash loop" not in kinds(merged(start(0), start(1)))


def test_slices_that_continue_from_checkpoints_are_not_a_crash_loop() -> None:
    texts = [
        LOADED.format(iteration=10 * i)
        + START.format(stamp=f"{3 + i:02}:00:00")
        + iterations(10 * i + 1, 10 * i + 10, minute=60 * i)
        for i in range(1, 6)
    ]
    log = merged(*texts)
    assert "crash loop" not in kinds(log)
    assert len(log.segment_starts) == 5


@pytest.mark.parametrize(("other", "named"), [((1, 8), ""), ((2, 8), "seed is 1"), ((1, 16), "world_size is 8")])
def test_files_of_different_jobs_get_a_warning(other: tuple[int, int], named: str) -> None:
    seed, gpus = other
    first = ARGUMENTS.format(seed=1, gpus=8) + iterations(1, 9)
    second = ARGUMENTS.format(seed=seed, gpus=gpus) + iterations(10, 19)
    messages = [problem.message for problem in merged(first, second).problems if problem.kind == "different jobs"]
    assert (named in messages[0]) if named else not messages


@pytest.mark.parametrize(
    ("last", "minute", "are_two"), [(100, 120, True), (100, 0, False), (60, 120, False)], ids=["later", "rank", "retry"]
)
def test_two_logs_with_all_iterations_one_after_the_other_are_different_jobs(
    last: int, minute: int, are_two: bool
) -> None:
    log = merged(iterations(1, last), iterations(1, 100, minute=minute, add=7.0))
    assert ("different jobs" in kinds(log)) is are_two


def test_step_lines_of_rank_zero_give_their_tflops_to_the_iterations_of_the_last_rank() -> None:
    times = [1500.0, 1200.0, 1210.0]
    steps = "".join(f"Step Time : {ms / 1000:.2f}s GPU utilization: {900 + i}.5MODEL_TFLOP/s/GPU\n"
                    for i, ms in enumerate(times))  # fmt: skip
    rows = "".join(
        f" [2026-01-02 03:04:{i:02}] iteration {i}/ 3 | elapsed time per iteration (ms): {ms} | lm loss: 1.0 |\n"
        for i, ms in enumerate(times, 1)
    )
    log = merged(steps, rows)
    assert log.columns["tflops_per_gpu"].tolist() == [900.5, 901.5, 902.5]
    assert printed(log) == [1, 2, 3]


def test_a_failure_before_the_first_iteration_of_the_last_start_is_that_of_the_last_process() -> None:
    failed = "[2026-05-11 09:00:00] ImportError: DeepEP is not installed. Please install DeepEP package from x.\n"
    log = merged(ARGUMENTS.format(seed=1, gpus=8) + failed, iterations(1, 30))
    assert log.process_lines[0] == 0
    assert log.process_lines[1] > 30


def test_lines_of_another_file_after_the_last_iteration_belong_to_the_same_process() -> None:
    done = "[after training is done] datetime: 2026-05-11 03:00:31 \n"
    log = merged("[2026-05-11 09:00:00] NCCL error: teardown\n", iterations(1, 30, total=90) + done)
    assert log.process_lines == (0, 1)


def test_a_run_needs_a_log() -> None:
    with pytest.raises(ValueError, match="at least one"):
        merge_logs([])


@lru_cache
def corpus_log(index: int) -> tuple[tuple[bytes, ...], ParsedLog]:
    folder = shared_folder("corpus") / "logs"
    paths = sorted([*folder.glob("rendered/*.log"), *folder.glob("real-full/*.log")])
    data = Path(paths[index % len(paths)]).read_bytes()
    return tuple(data.splitlines(keepends=True)), merge_logs([LogPart("whole", parse_log([data]))])


def assert_same_series(log: ParsedLog, other: ParsedLog) -> None:
    assert log.segment_starts == other.segment_starts
    # Megatron-Bridge's step lines have no iteration number: a cut between a pair may pair the next ones wrongly
    unsure = {"tflops_per_gpu"} if log.trainer == "Megatron-Bridge" else set()
    for name in log.columns.keys() - {"log_file"} - unsure:
        assert np.array_equal(log.columns[name], other.columns[name], equal_nan=True), name


def assert_split_is_whole(index: int, cut: int, *, swapped: bool) -> None:
    """Check a log that is cut before line `cut` (from 0).

    A known limit: a cut between a restart and its second line can leave the time of that line as it was printed.
    """
    lines, whole = corpus_log(index)
    parts = [LogPart("head", parse_log(lines[:cut])), LogPart("tail", parse_log(lines[cut:]))]
    split = merge_logs(parts[::-1] if swapped else parts)
    true = split.columns["step_time_true_ms"]
    for row in (start + 1 for start in whole.segment_starts[1:] if start + 1 < whole.n):
        is_at_restart = whole.line_numbers[row - 1] - 1 <= cut < whole.line_numbers[row]
        if is_at_restart and true[row] == whole.columns["step_time_ms"][row]:
            true[row] = whole.columns["step_time_true_ms"][row]
    assert_same_series(whole, split)


@settings(max_examples=60, deadline=None)
@given(index=st.integers(0, 51), share=st.floats(0, 1), swapped=st.booleans())
def test_a_log_split_anywhere_yields_the_series_of_the_whole(index: int, share: float, swapped: bool) -> None:
    assert_split_is_whole(index, round(share * len(corpus_log(index)[0])), swapped=swapped)


def test_a_log_split_around_a_restart_yields_the_series_of_the_whole() -> None:
    restarted = [k for k in range(52) if len(corpus_log(k)[1].segment_starts) > 1]
    assert restarted
    for index in restarted:
        whole = corpus_log(index)[1]
        line = int(whole.line_numbers[whole.segment_starts[1]])
        for cut in range(line - 4, line + 3):
            assert_split_is_whole(index, cut, swapped=False)


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(4)))
def test_the_order_of_the_files_changes_nothing_but_their_indexes(order: list[int]) -> None:
    texts = [
        ARGUMENTS.format(seed=1, gpus=8) + START.format(stamp="03:00:00"),
        iterations(1, 40),
        LOADED.format(iteration=30) + START.format(stamp="04:00:00"),
        iterations(31, 60, minute=60, add=0.5),
    ]
    first = merged(*texts)
    other = merged(*(texts[i] for i in order), names=["abcd"[i] for i in order])
    assert_same_series(first, other)
    assert [replaced.file for replaced in first.slices] == [replaced.file for replaced in other.slices]
    assert {n: s.value for n, s in first.stated.items()} == {n: s.value for n, s in other.stated.items()}
    assert [event.text for event in first.events] == [event.text for event in other.events]
