"""Speed of reading logs: `make setup`, then `.venv/bin/python -m bench.parse`.

Alternates on one generated log of 1 GB and 256 ranks: `grep -c` for one key, and `parse_log` for all fields. Then
measures the peak memory of a new process that reads this log, and the time for a 1 MB log. The reference figures come
from an idle 2-core machine and a reader that read only Megatron's lines; reading everything may cost twice as much.
Speed is relative to grep, which a busy machine also slows down. The file is in the page cache. Exit code 1 if a target
is missed.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app.domain.logs import parse_log
from bench.generate_log import cached_log
from bench.options import without_options

CACHE = Path(__file__).parent / ".cache"
LARGE, LARGE_ITERATIONS = 10**9, 20_000
SMALL, SMALL_ITERATIONS = 10**6, 100
"""Iterations of a CI job's log: 100, as in most MoE tests of Megatron-LM."""
CHUNK = 1 << 18
ROUNDS = 7
KEY = "elapsed time per iteration"

FIRST_SPEED, FIRST_SHARE, FIRST_MEMORY_MIB, FIRST_SMALL_MS, FIRST_LINE_US = 1671.0, 0.30, 51.6, 2.53, 4.5

LEAST_SHARE_OF_GREP = FIRST_SHARE / 2
MOST_MEMORY_MIB = 64.0
MOST_SMALL_MS = 2 * FIRST_SMALL_MS


def chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def processor_ms(call: Callable[[], object]) -> float:
    """Return the processor milliseconds of a call in this process."""
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1000


def grep(path: Path) -> None:
    output = subprocess.run(["grep", "-c", KEY, str(path)], check=True, capture_output=True, text=True).stdout
    assert int(output) == LARGE_ITERATIONS


def read(path: Path) -> None:
    assert parse_log(chunks(path)).n == LARGE_ITERATIONS


def compare(path: Path) -> tuple[float, float]:
    """Return MB/s of grep and of parse_log: medians of alternating rounds after a warm-up."""
    grep(path)
    read(path)
    times = [(seconds(lambda: grep(path)), seconds(lambda: read(path))) for _ in range(ROUNDS)]
    size = path.stat().st_size / 1e6
    greps, reads = zip(*times, strict=True)
    return size / statistics.median(greps), size / statistics.median(reads)


def peak_memory_mib(path: Path) -> float:
    """Return the peak memory of a new process that only reads the log. (Linux reports KiB.)"""
    code = f"from pathlib import Path; from bench.parse import read, peak; read(Path({str(path)!r})); peak()"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return float(output)


def peak() -> None:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def small_ms(path: Path) -> float:
    """Return the median milliseconds for reading a log from memory in chunks of the usual size."""
    parts = list(chunks(path))
    assert parse_log(parts).n == SMALL_ITERATIONS
    return statistics.median(processor_ms(lambda: parse_log(parts)) for _ in range(101))


def microseconds_a_line(path: Path) -> float:
    """Return the cost per iteration line, from parsing only the iteration lines of the large log."""
    output = subprocess.run(["grep", "-m", "2000", KEY, str(path)], check=True, capture_output=True).stdout
    return statistics.median(processor_ms(lambda: parse_log([output])) for _ in range(31)) / 2000 * 1000


def row(name: str, today: float, first: float, cost: float, unit: str) -> str:
    return f"  {name:24}{today:10,.2f} {first:9,.2f} {cost:7.2f}x {unit}"


def main() -> int:
    without_options(__doc__)
    large = cached_log(CACHE, LARGE, LARGE_ITERATIONS)
    small = cached_log(CACHE, SMALL, SMALL_ITERATIONS)
    grep_speed, read_speed = compare(large)
    share = read_speed / grep_speed
    memory = peak_memory_mib(large)
    milliseconds = small_ms(small)
    line = microseconds_a_line(large)
    print(
        f"{large.stat().st_size / 1e6:,.0f} MB, 256 ranks, {LARGE_ITERATIONS:,} iterations; medians of {ROUNDS} rounds"
    )
    print(f"  {'':24}{'today':>10} {'first':>9} {'cost':>8}")
    print(f"  {'grep -c, one key':24}{grep_speed:10,.0f} {'':>9} {'':>8} MB/s")
    print(row("parse_log, all fields", read_speed, FIRST_SPEED, FIRST_SPEED / read_speed, "MB/s"))
    print(row("share of grep's speed", share, FIRST_SHARE, FIRST_SHARE / share, f"at least {LEAST_SHARE_OF_GREP}"))
    print(
        row("peak memory", memory, FIRST_MEMORY_MIB, memory / FIRST_MEMORY_MIB, f"MiB, at most {MOST_MEMORY_MIB:.0f}")
    )
    print(f"{small.stat().st_size / 1e6:,.1f} MB, {SMALL_ITERATIONS} iterations, 600 arguments; median of 101")
    print(row("parse_log", milliseconds, FIRST_SMALL_MS, milliseconds / FIRST_SMALL_MS, f"ms, at most {MOST_SMALL_MS}"))
    print(row("an iteration line", line, FIRST_LINE_US, line / FIRST_LINE_US, "us"))
    return int(share < LEAST_SHARE_OF_GREP or memory > MOST_MEMORY_MIB or milliseconds > MOST_SMALL_MS)


if __name__ == "__main__":
    sys.exit(main())
