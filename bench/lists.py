"""Measure the list of runs in a small and a large database: `.venv/bin/python -m bench.lists --runs 100000`.

Both databases are filled by `bench.seed` and read in turn, so that the ratio holds on a busy machine. They are SQLite
files, or the empty PostgreSQL databases that `--database` (large) and `--small-database` name.
"""

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.overview.queries import OverviewQuery, overview
from app.runs.queries import RunQuery, filter_options, find_runs
from app.settings import Settings
from app.storage.database import make_engine, migrate, read_session
from app.storage.tables import utc_now
from app.storage.visible import see_every_project
from bench import options
from bench.seed import fill

SMALL = 10_000
Ask = Callable[[Session], object]


def main() -> int:
    see_every_project()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = options.parser(__doc__)
    parser.add_argument("--runs", type=options.count, default=100_000, help="runs of the large database (100,000)")
    parser.add_argument("--rounds", type=options.count, default=30, help="times that each list is read (30)")
    parser.add_argument("--data", type=Path, action="append", default=[], help="a data folder filled by bench.seed; "
                        "given twice: the small and the large one")  # fmt: skip
    parser.add_argument("--database", default="", help="URL of an empty PostgreSQL database for the large one")
    parser.add_argument("--small-database", default="", help="URL of an empty PostgreSQL database for the small one")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if chosen.data:
            engines = [make_engine(Settings(data_dir=data)) for data in chosen.data[:2]]
        else:
            sizes = ((SMALL, chosen.small_database), (chosen.runs, chosen.database))
            engines = [_filled(folder / str(runs), url, runs) for runs, url in sizes]
        small, large = engines
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {large.dialect.name}; {chosen.rounds} rounds")
        print(f"{'':24} small p50   p95 ms   large p50   p95 ms   ratio of p50   processor ms (large)")
        for name, ask in _LISTS.items():
            few, many = _measure(engines, ask, chosen.rounds)
            line = f"{few.p50:9.1f} {few.p95:8.1f} {many.p50:11.1f} {many.p95:8.1f} {many.p50 / few.p50:14.2f}"
            print(f"{name:24} {line} {many.processor:22.1f}")
        for engine in (small, large):
            engine.dispose()
    return 0


def _filled(folder: Path, url: str, runs: int) -> Engine:
    folder.mkdir()
    settings = Settings(data_dir=folder, **({"database_url": url} if url else {}))
    migrate(settings)
    engine = make_engine(settings)
    fill(engine, settings, runs)
    return engine


class _Times:
    def __init__(self, seconds: Iterable[float], processor: Iterable[float]) -> None:
        milliseconds = sorted(1000 * value for value in seconds)
        self.p50 = statistics.median(milliseconds)
        self.p95 = milliseconds[min(len(milliseconds) - 1, round(0.95 * len(milliseconds)))]
        self.processor = 1000 * statistics.median(processor)


def _measure(engines: Sequence[Engine], ask: Ask, rounds: int) -> list[_Times]:
    seconds: list[list[float]] = [[] for _ in engines]
    processor: list[list[float]] = [[] for _ in engines]
    for number in range(rounds + 1):
        for k, engine in enumerate(engines):
            began, used = time.perf_counter(), _used()
            with read_session(engine) as session:
                ask(session)
            if number:  # the first round compiles statements
                seconds[k].append(time.perf_counter() - began)
                processor[k].append(_used() - used)
    return [_Times(*both) for both in zip(seconds, processor, strict=True)]


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _list(**query: str | int) -> Ask:
    return lambda session: find_runs(session, RunQuery.model_validate(query))


_LISTS: dict[str, Ask] = {
    "page 1": _list(),
    "page 200 by number": _list(page=200),
    "last page by cursor": _list(after="51"),
    "by step time": _list(sort="step_time_ms"),
    "failed": _list(outcome="failed"),
    "one model": _list(model="DeepSeek-V3"),
    "one project": _list(project="kernels"),
    "model and verdict": _list(model="DeepSeek-V3", verdict="regression"),
    "search, frequent word": _list(q="DeepSeek"),
    "search, no match": _list(q="nothing-has-this-name"),
    "choices of the filters": filter_options,
    "overview": lambda session: overview(session, OverviewQuery(), utc_now()),
}


if __name__ == "__main__":
    sys.exit(main())
