"""Cost of a verdict compared with reading the run: `make setup`, then `.venv/bin/python -m bench.verdict`.

Alternates in one process, so that the ratios hold on a busy machine, between reading and storing a run of a 1 MB log
(100 iterations, 600 arguments) and judging the newest run of a stack. Judging includes everything for which a job
waits: the claim, reading the history, the judge, storing the verdict with regressions, notifications and experiments,
and both commits. Ranking the stack, which follows in a separate commit, has its own row. Histories have 20, 200 and
1,000 runs and a family of 8 other configurations. The last rows are a verdict without a baseline, and judging 1,000
runs again.

Exit code 1 if a verdict against 200 runs takes more than 10 ms of processor time. On a busy machine processor times
also grow, because cores and caches are shared, but the ratio to reading a run does not.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from sqlalchemy import Engine
from sqlmodel import col, select

from app.pipeline.judge import give_verdicts, judge_stack, rank_again
from app.pipeline.process import read_run
from app.pipeline.receive import UploadedFile, accept_upload
from app.pipeline.work import StackClaim, stack_queue
from app.settings import Settings
from app.storage.database import make_engine, migrate, read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import EVERYTHING, RunRow
from app.storage.visible import see_every_project
from bench.generate_log import cached_log
from bench.options import without_options
from tests.builders import FIRST_PLACE, make_stack
from tests.services.postgres_server import running_postgres

CACHE = Path(__file__).parent / ".cache"
ROUNDS = 31
MOST_MS = 10.0
FAMILY = 8
HISTORIES = (20, 200, 1000)
READING, NOTHING = "reading a run, 1 MB", "no baseline: nearest misses and a contrast"


Steps = Mapping[str, Callable[[], object]]
"""Names of the measurements of one round, in order."""
Times = dict[str, tuple[float, float]]
"""Median milliseconds of wall time and processor time."""


def measured(prepared: Sequence[Callable[[int], Steps]]) -> Times:
    """Run one round of each in turn, so that all have the same load. Preparing a round does not count."""
    times_by_name: dict[str, list[tuple[float, float]]] = {}
    for number in range(ROUNDS):
        for prepare in prepared:
            for name, act in prepare(number).items():
                began, worked = time.perf_counter(), time.process_time()
                act()
                spent = 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - worked)
                times_by_name.setdefault(name, []).append(spent)
    medians = {
        name: [statistics.median(side) for side in zip(*times, strict=True)] for name, times in times_by_name.items()
    }
    return {name: (clock, processor) for name, (clock, processor) in medians.items()}


def fill(engine: Engine, project: str, runs: int) -> None:
    """Create one stack with this number of runs, and its family."""
    with transaction(engine) as session:
        make_stack(session, level(runs), project=project, judged=False)
        for number in range(FAMILY):
            make_stack(session, level(20), project=project, fields={"gpus": 32 * (number + 1)}, judged=False)


def level(runs: int) -> list[float]:
    """Return step times (ms) at one level. Launches vary by 0.4 %."""
    return (1000 * np.exp(np.random.default_rng(runs).normal(0, 0.004, runs))).tolist()


def one_more(
    engine: Engine, settings: Settings, project: str, runs: int, names: tuple[str, str], **other: Any
) -> Callable[[int], Steps]:
    """Return a round that adds a run to a history, judges and ranks it, and deletes it. `names`: of the two steps."""

    def prepare(number: int) -> Steps:
        with transaction(engine) as session:
            session.execute(RunRow.__table__.delete().where(col(RunRow.name) == "candidate"))
            place = FIRST_PLACE + timedelta(days=runs, minutes=number)
            candidates = make_stack(
                session, [1001.0], project=project, started=place, judged=False, name="candidate", **other
            )
            row = session.get_one(RunRow, candidates[0])
            work_id = stack_queue.request(session, row.project_id, row.stack_key, judge_from=place)
        claims: list[StackClaim] = []

        def verdict() -> None:
            with transaction(engine) as session:
                claim = stack_queue.claim(session, work_id, settings)
            assert claim is not None
            assert give_verdicts(engine, settings, claim) is not None
            claims.append(claim)

        return {names[0]: verdict, names[1]: lambda: rank_again(engine, settings, claims[0])}

    return prepare


def whole(engine: Engine, settings: Settings) -> float:
    """Return the seconds to judge all runs of a stack again, in all passes."""
    with transaction(engine) as session:
        row = session.exec(select(RunRow).order_by(col(RunRow.id)).limit(1)).one()
        work_id = stack_queue.request(session, row.project_id, row.stack_key, judge_from=EVERYTHING)
    began = time.perf_counter()
    while judge_stack(engine, settings, work_id) is not None:
        pass
    return time.perf_counter() - began


def reading(engine: Engine, settings: Settings) -> Callable[[int], Steps]:
    """Return a round that reads and stores a run of a 1 MB log."""
    log, store = cached_log(CACHE, 10**6, 100).read_bytes(), LogFiles.from_settings(settings)

    def prepare(number: int) -> Steps:
        file = UploadedFile("log", "train.log", BytesIO(log))
        meta = f'{{"project": "read", "commit": "{number}"}}'.encode()
        run_id = accept_upload(engine, store, settings, files=[file], meta=meta).run_id
        return {READING: lambda: read_run(engine, store, settings, run_id)}

    return prepare


def compare(name: str, settings: Settings) -> float:
    """Print the table of one database. Return processor milliseconds of a verdict against 200 runs."""
    migrate(settings)
    engine = make_engine(settings)
    for runs in HISTORIES:
        fill(engine, f"of-{runs}", runs)
    with transaction(engine) as session:
        session.execute(RunRow.__table__.update().values(verdict="no_change"))
    histories = [
        one_more(engine, settings, f"of-{runs}", runs, (f"verdict, {runs:,} earlier runs", f"ranking {runs:,} runs"))
        for runs in HISTORIES
    ]
    alone = one_more(engine, settings, "of-20", 20, (NOTHING, "ranking one run"), fields={"seq_len": 8192})
    times_by_name = measured([reading(engine, settings), *histories, alone])
    print(f"{name}; medians of {ROUNDS}")
    print(f"  {'':44}{'clock':>8} {'processor':>9} {'of reading':>11}")
    for what in sorted(times_by_name, key=lambda what: (what.startswith("ranking"), what != READING)):
        clock, processor = times_by_name[what]
        print(f"  {what:44}{clock:8.1f} {processor:9.1f} {processor / times_by_name[READING][1]:10.2f}x")
    with read_session(engine) as session:
        assert session.exec(select(RunRow.verdict).where(col(RunRow.name) == "candidate")).all()
    engine.dispose()
    return times_by_name["verdict, 200 earlier runs"][1]


def main() -> int:
    see_every_project()
    without_options(__doc__)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; times in ms")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["THREEWALLS_DATA_DIR"] = str(folder)
        postgres = stack.enter_context(running_postgres())
        sqlite = compare("SQLite", Settings(data_dir=folder))
        postgresql = Settings(data_dir=folder, database_url=postgres.url(postgres.new_database()))
        slowest = max(sqlite, compare("PostgreSQL", postgresql))
        engine = make_engine(Settings(data_dir=folder / "whole"))
        migrate(Settings(data_dir=folder / "whole"))
        fill(engine, "whole", 1000)
        print(f"1,000 runs judged again (SQLite): {whole(engine, Settings(data_dir=folder)):.1f} s")
        engine.dispose()
    print(f"a verdict against 200 runs: {slowest:.1f} ms of the processor, at most {MOST_MS:.0f}")
    return int(slowest > MOST_MS)


if __name__ == "__main__":
    sys.exit(main())
