"""The memory bar of a run that ran out of memory."""

import pytest

from app.domain.performance.failures import FailedAllocation, failed_allocation
from app.runs.run_page import memory_bar

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB "
    "of which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the "
    "allocated memory 74.61 GiB is allocated by PyTorch, and 1.57 GiB is reserved by PyTorch but unallocated."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 79.15 GiB total capacity; 77.00 GiB "
    "already allocated; 256.00 MiB free; 78.00 GiB reserved in total by PyTorch)"
)


def test_the_line_of_a_failed_allocation_has_its_figures() -> None:
    assert failed_allocation(NEW) == FailedAllocation(1.5, 79.11, 1.02, 74.61, 1.57)
    assert failed_allocation(OLD) == FailedAllocation(0.5, 79.15, 0.25, 77.0)
    assert failed_allocation("CUDA out of memory. Tried to allocate 1.50 GiB.") is None


@pytest.mark.parametrize("line", [NEW, OLD])
def test_the_memory_bar_adds_up_to_the_error_line(line: str) -> None:
    bar = memory_bar({"outcome": "out_of_memory", "evidence": line, "peak_allocated_gib": 12.0}, 80)
    failed = failed_allocation(line)
    assert bar is not None
    assert failed is not None
    sizes = [size for _, _, size in bar.parts]
    assert bar.size == failed.total
    assert sum(sizes[:4]) == pytest.approx(failed.total)
    assert sizes[3:] == pytest.approx([failed.free, failed.requested - failed.free])
    assert sum(segment.ms for segment in bar.segments) == pytest.approx(failed.total + failed.requested - failed.free)


def test_a_line_without_figures_leaves_the_peak_of_the_log() -> None:
    bar = memory_bar({"outcome": "out_of_memory", "evidence": "CUDA error", "peak_allocated_gib": 70.0}, 80)
    assert bar is not None
    assert [size for _, _, size in bar.parts] == [70.0, 0.0, 10.0]
    assert memory_bar({"outcome": "completed", "peak_allocated_gib": 70.0}, 80) is None
