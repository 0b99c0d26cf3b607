"""Memory lines: units, glued reports, torn reports."""

import pytest

from app.domain.logs import memory, parse_text

MEGATRON = (
    "[Rank {rank}] (after {at} iterations) memory (MB) | allocated: 1464.33154296875 | max allocated: {most} | "
    "reserved: 1576.0 | max reserved: 1600.0"
)
BRIDGE = (
    "[Rank 0] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 51.072 | mem-active-gigabytes: 51.072 | "
    "mem-reserved-gigabytes: 216.89 | mem-max-allocated-gigabytes: 194.41 | mem-max-reserved-gigabytes: 216.9 | "
    "mem-alloc-retires: 3 | mem-allocated-count: 571\n"
)


def test_megatron_lm_says_mb_and_means_mib() -> None:
    log = parse_text("noise\n" + MEGATRON.format(rank=7, at=10, most="1464.5") + "\n")
    (report,) = log.memory
    assert (report.line, report.rank, report.iteration) == (2, 7, 10)
    assert report.max_allocated_bytes == 1464.5 * 2**20
    assert report.allocated_bytes == 1464.33154296875 * 2**20
    assert (report.reserved_bytes, report.max_reserved_bytes) == (1576 * 2**20, 1600 * 2**20)
    assert report.alloc_retries is None


def test_megatron_bridge_says_gb_and_means_it() -> None:
    log = parse_text(BRIDGE)
    (report,) = log.memory
    assert report.max_allocated_bytes == pytest.approx(194.41e9)
    assert report.max_reserved_bytes == pytest.approx(216.9e9)
    assert report.alloc_retries == 3
    assert log.trainer == "Megatron-Bridge"


def test_reports_glued_together_are_told_apart() -> None:
    glued = MEGATRON.format(rank=0, at=2, most="10.0") + MEGATRON.format(rank=8, at=2, most="20.0") + "\n"
    log = parse_text(glued)
    assert [(report.rank, report.max_allocated_bytes) for report in log.memory] == [(0, 10 * 2**20), (8, 20 * 2**20)]
    assert log.unrecognised_lines == 0


def test_a_torn_report_is_counted() -> None:
    log = parse_text("[Rank 0] (after 2 iterations) memory (MB) | allocated: 1[default3]: noise\n")
    assert (log.memory, log.unrecognised_lines) == ((), 1)


@pytest.mark.parametrize("text", ["out of (some) memory (very bad)", "memory (MB) is a unit", "(all) memory (MB) used"])
def test_other_words_on_memory_are_no_reports(text: str) -> None:
    log = parse_text(text + "\n")
    assert (log.memory, log.unrecognised_lines) == ((), 0)


def test_after_very_many_reports_only_the_top_of_each_rank_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_REPORTS", 2)
    text = "\n".join(MEGATRON.format(rank=0, at=n, most=float(n)) for n in (1, 2, 9, 5)) + "\n"
    log = parse_text(text)
    assert [report.max_allocated_bytes / 2**20 for report in log.memory] == [1, 2, 9]
    assert [problem.kind for problem in log.problems] == ["many memory lines"] * 2
