"""Processor time, SQL statements and commits of one run, by step: `.venv/bin/python -m bench.run_cost`.

One process does the work of web server and worker: it accepts, reads, judges and ranks runs and evaluates their rules,
on SQLite or, with `--postgres`, on PostgreSQL. `--log` selects what is uploaded: to one stack a log of 1 MB, `ingest`
as in `bench/ingest.py` (1,000 iterations) or `ranks` with 256 ranks (100 iterations and 600 arguments), or `ci`, the
305 runs of the public CI, whose jobs move between containers and clusters. Prints medians, and the mean time.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

import structlog
from sqlalchemy import Connection, Engine, event

from app.demo.studies import public_runs
from app.domain.verdict.policy import ANY_BRANCH
from app.pipeline.receive import UploadedFile, accept_upload
from app.settings import Settings, get_settings
from app.storage.database import make_engine, migrate, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import ProjectRow
from app.storage.visible import see_every_project
from bench import options
from bench.generate_log import cached_log
from tests.services.postgres_server import running_postgres
from tests.training_logs import training_log
from workers import tasks

META = b'{"project": "bench", "purpose": "ci", "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "commit": "%040d"}'


class Counter:
    """Counts statements and commits of the engines in this process; read sessions, which store nothing, also commit."""

    def __init__(self) -> None:
        self.statements = self.commits = 0
        event.listen(Engine, "before_cursor_execute", self._execute)
        event.listen(Engine, "commit", self._commit)

    def _execute(self, *_: object) -> None:
        self.statements += 1

    def _commit(self, connection: Connection) -> None:
        self.commits += connection.get_execution_options().get("writes", False)


Cost = tuple[float, int, int]
"""Processor milliseconds, statements and commits."""


def logs(log: bytes, rounds: int) -> Iterator[tuple[bytes, UploadedFile]]:
    """Yield the metadata and the file of each run of one stack."""
    for number in range(rounds):
        yield META % number, UploadedFile("log", "train.log", BytesIO(b"run %d\n" % number + log))


def ci_runs() -> Iterator[tuple[bytes, UploadedFile]]:
    """Yield the metadata and the golden values of each run of the public CI, oldest first."""
    for run in public_runs():
        file = UploadedFile("config", "golden_values.json", BytesIO(json.dumps(run.document).encode()))
        yield json.dumps({**run.metadata, "project": "bench"}).encode(), file


def measure(settings: Settings, uploads: Iterator[tuple[bytes, UploadedFile]]) -> dict[str, list[Cost]]:
    engine, log_files = make_engine(settings), LogFiles.from_settings(settings)
    with transaction(engine) as session:  # the tests of the public CI run on several branches
        session.add(ProjectRow(slug="bench", baseline_branch=ANY_BRANCH))
    counter = Counter()
    costs: dict[str, list[Cost]] = {}
    for number, (meta, file) in enumerate(uploads):
        began = time.process_time(), counter.statements, counter.commits
        run_id = accept_upload(engine, log_files, settings, files=[file], meta=meta).run_id
        accepted = time.process_time(), counter.statements, counter.commits
        assert tasks.process_run(run_id) == "ready"
        done = time.process_time(), counter.statements, counter.commits
        if number >= 3:  # the first runs include imports and connections, and have no baseline
            for name, before, after in (("accept", began, accepted), ("process", accepted, done), ("all", began, done)):
                spent = 1000 * (after[0] - before[0]), after[1] - before[1], after[2] - before[2]
                costs.setdefault(name, []).append(spent)
    engine.dispose()
    return costs


def main() -> int:
    see_every_project()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = options.parser(__doc__)
    parser.add_argument("--rounds", type=options.count, default=21, help="runs of one stack (21)")
    parser.add_argument("--log", choices=("ingest", "ranks", "ci"), default="ingest", help="what is uploaded (ingest)")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL in place of SQLite")
    chosen = parser.parse_args()
    ranks = cached_log(Path(__file__).parent / ".cache", 10**6, 100).read_bytes
    log = ranks() if chosen.log == "ranks" else training_log(iterations=1000, noise_bytes=700_000)
    uploads = ci_runs() if chosen.log == "ci" else logs(log, chosen.rounds + 3)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["THREEWALLS_DATA_DIR"] = folder
        if chosen.postgres:
            server = stack.enter_context(running_postgres())
            os.environ["THREEWALLS_DATABASE_URL"] = server.url(server.new_database())
        get_settings.cache_clear()
        settings = get_settings()
        migrate(settings)
        costs = measure(settings, uploads)
        tasks._engine().dispose()
    what = "runs of the public CI" if chosen.log == "ci" else f"a log of {len(log) / 1e6:.2f} MB"
    print(f"{what}, medians of {len(costs['all'])}, load {os.getloadavg()[0]:.1f}")
    print(f"{'':8}  processor ms  statements  commits  mean ms")
    for name, rows in costs.items():
        spent, statements, commits = (statistics.median(column) for column in zip(*rows, strict=True))
        mean = statistics.mean(row[0] for row in rows)
        print(f"{name:8}  {spent:12.1f}  {statements:10.0f}  {commits:7.0f}  {mean:7.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
