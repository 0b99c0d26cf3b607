"""Fill a database with many runs: `.venv/bin/python -m bench.seed --runs 100000 --data DIR` (or `--database URL`).

The code of the service uploads, reads, judges and ranks some runs. All others are copies of their rows, written by Core
inserts. Each run has its own commit, time and step time; each stack has its own contract and keys. The sizes of stacks
follow a Zipf law. Every ten stacks are one workload in ten containers. Every history has change points. Each slowdown
has a regression; the newest regressions are open.

Other benches and tests call `fill`. Only the newest runs of each stack have series, readings and files, because lists,
histories and verdicts do not read these.
"""

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from sqlalchemy import JSON, Connection, Engine, Table, column, func, insert, select, table
from sqlmodel import SQLModel

from app.domain.contract.fields import STACK_FIELDS
from app.domain.contract.resolve import config_key, stack_key
from app.domain.naming import stack_title
from app.domain.ranking.runs import family_of, hardware_of
from app.domain.run import Stated, Value
from app.pipeline.judge import judge_run
from app.pipeline.process import read_run
from app.pipeline.receive import UploadedFile, accept_upload
from app.pipeline.suggest import evaluate_rules
from app.settings import Settings
from app.storage import derived, json_text
from app.storage.database import make_engine, migrate
from app.storage.log_files import LogFiles
from app.storage.runs import stated
from app.storage.tables import ProjectRow, utc_now
from app.storage.visible import EVERY_PROJECT, see_every_project, seeing
from bench import options
from bench.generate_log import cached_log
from tests.training_logs import training_log

MODELS = ("Qwen3-30B-A3B", "Qwen3-235B-A22B", "DeepSeek-V3", "Kimi-K2", "Mixtral-8x7B", "gpt-oss-120b", "Llama-4-Scout")
GPUS = ("H100", "H200", "B200", "GB200", "A100", "MI300X")
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
DISPATCHERS = ("alltoall", "deepep", "hybridep")
PROJECTS = ("pretraining", "kernels", "nightly", "research", "upgrades", "partners")
YEARS = 3
RUNS_PER_STACK = 50
CONTAINERS = 10
"""Containers of a project. Each workload ran in all of them, in stacks that differ only in the container."""
ZIPF = 0.8
"""Zipf exponent of stack sizes: the largest of 200 stacks has 7 % of all runs."""
SEGMENT_RUNS = 40
"""Runs between the change points of a history. Every third change point is a slowdown."""
SLOW = 1.05
NOISE = 0.004
DETAILED = 5
"""Number of newest runs of a stack that have series, readings and files."""
BATCH = 2000

_EVERY_RUN = ("run_result", "verdict", "rule_firing", "dispatcher_availability")
_DETAILS = ("series", "reading", "run_file")


@dataclass(frozen=True, slots=True)
class Seeded:
    """Result of `fill`. `stacks`: (project id, stack key, number of runs), largest first."""

    runs: int
    stacks: tuple[tuple[int, str, int], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Template:
    """The rows of a processed run by table, with JSON as text. `metrics`: its figures, which each copy scales."""

    run: Mapping[str, Any]
    rows: Mapping[str, list[dict[str, Any]]]
    metrics: Mapping[str, Any]
    contract: Mapping[str, Stated]
    standing: Mapping[str, Any]
    boards: list[dict[str, Any]]
    leader_changes: list[dict[str, Any]]


@dataclass(slots=True)
class _Stack:
    """A stack. `columns`: of its runs. `described`: columns of its standing."""

    project_id: int
    key: str
    config_key: str
    template: _Template
    columns: Mapping[str, Any]
    described: Mapping[str, Any]
    runs: int = 0
    factor: float = 1.0
    newest: tuple[int, datetime] = (0, datetime.min.replace(tzinfo=UTC))
    rng: np.random.Generator = field(default_factory=np.random.default_rng)


def fill(
    engine: Engine,
    settings: Settings,
    runs: int,
    *,
    stacks: int | None = None,
    detailed: int = DETAILED,
    seed: int = 7,
) -> Seeded:
    """Add `runs` runs to a migrated database. Equal arguments write equal histories."""
    began = time.monotonic()
    rng = np.random.default_rng(seed)
    with seeing(EVERY_PROJECT):
        templates = _templates(engine, settings)
    count = stacks or max(10, runs // RUNS_PER_STACK)
    with engine.execution_options(writes=True).begin() as connection:
        projects = _projects(connection)
    stacks = _stacks(projects, templates, count, seed)
    weights = np.arange(1, count + 1, dtype=float) ** -ZIPF
    order = rng.choice(count, size=runs, p=weights / weights.sum())
    totals = np.bincount(order, minlength=count)
    start, step = utc_now() - timedelta(days=365 * YEARS), timedelta(days=365 * YEARS) / max(1, runs)
    next_id = {name: _last_id(engine, table_of_name(name)) for name in ("run", "run_file", "regression")}
    with _without_indexes(engine):
        for first in range(0, runs, BATCH):
            batch = _Batch(next_id, rng)
            for number in range(first, min(first + BATCH, runs)):
                stack = stacks[order[number]]
                is_detailed = totals[order[number]] - stack.runs <= detailed
                _add_run(batch, stack, start + number * step, number, runs=runs, detailed=bool(is_detailed))
            with engine.execution_options(writes=True).begin() as connection:
                batch.write(connection)
    standings = _standings([stack for stack in stacks if stack.runs])
    with engine.execution_options(writes=True).begin() as connection:
        standings.write(connection)
        if connection.dialect.name == "postgresql":
            for name in next_id:  # copies get their ids here
                sequence = func.setval(f"{name}_id_seq", select(func.max(table_of_name(name).c.id)).scalar_subquery())
                connection.execute(select(sequence))
    _analyse(engine)
    largest = sorted((stack for stack in stacks if stack.runs), key=lambda stack: -stack.runs)
    return Seeded(runs, tuple((stack.project_id, stack.key, stack.runs) for stack in largest), time.monotonic() - began)


def table_of_name(name: str) -> Table:
    return SQLModel.metadata.tables[name]


# --- Templates: runs that the whole pipeline has processed.


def _templates(engine: Engine, settings: Settings) -> list[_Template]:
    log_files = LogFiles.from_settings(settings)
    rank_log = cached_log(Path(__file__).parent / ".cache", 10**6, 100).read_bytes()
    logs = [
        (training_log(60, 380), 0, {"dispatcher": "allgather"}),
        (training_log(60), 0, {"dispatcher": "alltoall"}),
        (training_log(200), 1, {"dispatcher": "deepep", "ep": 8}),
        (rank_log, 2, {}),
    ]
    last: dict[int, int] = {}
    for log, number, fields in logs:
        for rerun in range(3):  # gives the last one a baseline and a ranking
            meta = {"project": PROJECTS[0], "purpose": "ci", "name": f"nightly-{number}-{rerun}", "branch": "main"}
            meta |= {"commit": f"{number}{rerun}" * 20, "model": MODELS[0], "gpu": GPUS[0], "gpus_per_node": 8} | fields
            text = b"seed %d, run %d\n" % (time.time_ns(), rerun) + log
            file = UploadedFile("log", "train.log", BytesIO(text))
            meta_bytes = json.dumps(meta).encode()
            run_id = accept_upload(engine, log_files, settings, files=[file], meta=meta_bytes).run_id
            read_run(engine, log_files, settings, run_id)
            judge_run(engine, settings, run_id)
            evaluate_rules(engine, settings, run_id)
        last[number] = run_id
    with engine.connect() as connection:
        return [_template(connection, run_id) for run_id in last.values()]


def _template(connection: Connection, run_id: int) -> _Template:
    def rows(name: str, **conditions: Any) -> list[dict[str, Any]]:
        source = table_of_name(name)
        chosen = select(source).where(*(source.c[column] == value for column, value in conditions.items()))
        return [dict(row._mapping) for row in connection.execute(chosen)]

    run = rows("run", id=run_id)[0]
    of_run = {name: rows(name, run_id=run_id) for name in (*_EVERY_RUN, *_DETAILS) if name in SQLModel.metadata.tables}
    of_run["verdict"] = [row for row in of_run["verdict"] if row["current"]]
    of_run["segment"] = [row for file in of_run["run_file"] for row in rows("segment", file_id=file["id"])]
    key = {"project_id": run["project_id"], "stack_key": run["stack_key"]}
    result = run | (of_run.get("run_result") or [{}])[0]
    return _Template(
        run=_as_text("run", run),
        rows={name: [_as_text(name, row) for row in rows] for name, rows in of_run.items()},
        metrics=result["metrics"],
        contract={name: stated(entry) for name, entry in result["contract"].items()},
        standing=_as_text("standing", rows("standing", **key)[0]),
        boards=[_as_text("standing_board", row) for row in rows("standing_board", **key)],
        leader_changes=[_as_text("leader_change", row) for row in rows("leader_change", **key)],
    )


def _as_text(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    columns = table_of_name(name).c
    return {key: _json(value) if isinstance(columns[key].type, JSON) else value for key, value in row.items()}


# --- Stacks: templates with other models, GPUs, sizes and containers, and therefore other keys.


def _stacks(projects: Mapping[str, int], templates: list[_Template], count: int, seed: int) -> list[_Stack]:
    stacks = []
    for number in range(count):
        workload = number // CONTAINERS
        template = templates[workload % len(templates)]
        slug = PROJECTS[workload % len(PROJECTS)]
        values: dict[str, Value] = {
            "model": MODELS[workload * 5 % len(MODELS)],
            "gpu": GPUS[workload // len(MODELS) % len(GPUS)],
            "gpus": SIZES[workload // 3 % len(SIZES)],
            "gbs": 64 * (1 + workload // 168),  # the other values repeat
            "dispatcher": DISPATCHERS[workload % len(DISPATCHERS)],
            "container": f"registry.example.org/{slug}:{seed}.{number % CONTAINERS}",
        }
        contract = dict(template.contract) | {name: Stated(value, "metadata") for name, value in values.items()}
        columns = {
            "contract": _json({name: asdict(entry) for name, entry in contract.items()}),
            **{name: values[name] for name in ("model", "gpu", "gpus", "dispatcher")},
        }
        hardware, family = (
            hardware_of(str(values["gpu"])),
            family_of(str(values["model"]), {name: entry.value for name, entry in contract.items()}),
        )
        described = {
            "hardware": hardware.name, "hardware_slug": hardware.slug, "family": family.name,
            "family_slug": family.slug, "container": values["container"], "gpus": values["gpus"],
            "title": stack_title(contract, dispatcher=False)[:1000],
            "about": _json({name: contract[name].value for name in STACK_FIELDS if name in contract}),
        }  # fmt: skip
        stacks.append(
            _Stack(
                projects[slug], stack_key(slug, contract), config_key(slug, contract), template, columns, described,
                rng=np.random.default_rng(number),
            )
        )  # fmt: skip
        stacks[-1].factor = float(stacks[-1].rng.uniform(0.5, 4.0))
    return stacks


def _projects(connection: Connection) -> dict[str, int]:
    projects = table_of_name("project")
    ids = {row.slug: row.id for row in connection.execute(select(projects.c.slug, projects.c.id))}
    missing = [slug for slug in PROJECTS if slug not in ids]
    for slug in missing:
        row = ProjectRow(slug=slug, badge_secret=hashlib.sha256(slug.encode()).hexdigest())
        connection.execute(insert(projects).values({k: v for k, v in row.model_dump().items() if v is not None}))
    return {row.slug: row.id for row in connection.execute(select(projects.c.slug, projects.c.id))}


# --- The runs.


@dataclass
class _Batch:
    """Rows to write, by table. Copies get their ids here, because rows of other tables refer to them."""

    next_id: dict[str, int] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, name: str, row: dict[str, Any]) -> None:
        self.rows.setdefault(name, []).append(row)

    def new_id(self, name: str) -> int:
        self.next_id[name] += 1
        return self.next_id[name]

    def write(self, connection: Connection) -> None:
        """Write the rows in the order of their foreign keys."""
        for source in SQLModel.metadata.sorted_tables:
            if rows := self.rows.get(source.name):
                _write(connection, source, rows)


def _add_run(batch: _Batch, stack: _Stack, at: datetime, number: int, *, runs: int, detailed: bool) -> None:
    run_id = batch.new_id("run")
    position, stack.runs, stack.newest = stack.runs, stack.runs + 1, (run_id, at)
    part = position // SEGMENT_RUNS % 3
    is_first_slow = part == 1 and position % SEGMENT_RUNS == 0
    level = stack.factor * (SLOW if part == 1 else 1.0) * math.exp(NOISE * batch.rng.standard_normal())
    kind = number % 10
    purpose, branch = ("experiment", "main") if kind == 9 else ("ci", "feature/fast" if kind == 8 else "main")
    decision = "regression" if is_first_slow else "no_baseline" if position == 0 else "no_change"
    delta = 100 * (SLOW - 1) if is_first_slow else None if position == 0 else 0.1
    commit = hashlib.sha1(b"%d" % run_id).hexdigest()  # noqa: S324  # as commits are
    own = dict(stack.columns) | _scaled(stack.template, level) | {
        "id": run_id, "run_id": run_id, "project_id": stack.project_id, "name": f"{purpose}-{run_id}",
        "purpose": purpose, "branch": branch, "commit": commit, "created_at": at, "ordered_at": at, "heard_at": at,
        "processed_at": at, "content_key": hashlib.sha256(b"seed %d" % run_id).hexdigest(), "idempotency_key": None,
        "stack_key": stack.key, "config_key": stack.config_key, "verdict": decision, "badge": decision,
        "verdict_delta_pct": delta,
    }  # fmt: skip
    template = stack.template
    batch.add("run", {name: own.get(name, value) for name, value in template.run.items()})
    verdict = {"decision": decision, "delta_pct": delta, "made_at": at}
    for name in _EVERY_RUN:
        for row in template.rows.get(name, ()):
            of_run = {"run_id": run_id} | ({"project_id": stack.project_id} if "project_id" in row else {})
            of_run |= verdict if name == "verdict" else own if name == "run_result" else {}
            of_run |= {"container": stack.described["container"]} if name == "dispatcher_availability" else {}
            copy = {column: of_run.get(column, value) for column, value in row.items()}
            if name == "verdict":
                del copy["id"]
            batch.add(name, copy)
    if is_first_slow:
        _add_regression(batch, stack, run_id, at, is_open=number > 0.97 * runs)
    if detailed:
        _add_details(batch, template, run_id)


def _scaled(template: _Template, level: float) -> dict[str, Any]:
    """Return the figures of a template at another speed. `level`: step time relative to the template."""
    base = template.run
    figures: dict[str, Any] = {"step_time_ms": level, "log_step_time": 1.0}
    figures |= dict.fromkeys(("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"), 1 / level)
    columns = {name: base[name] * scale for name, scale in figures.items() if base.get(name) is not None}
    if base.get("log_step_time") is not None:
        columns["log_step_time"] = base["log_step_time"] + math.log(level)
    metrics = {
        name: entry
        and entry
        | {side: entry[side] * figures.get(name, 1.0) for side in ("value", "ci_low", "ci_high") if entry.get(side)}
        for name, entry in template.metrics.items()
    }
    return columns | {"metrics": _json(metrics)}


def _add_regression(batch: _Batch, stack: _Stack, run_id: int, at: datetime, *, is_open: bool) -> None:
    regression_id = batch.new_id("regression")
    usual = math.log(stack.factor * float(stack.template.run["step_time_ms"]))
    cost = float(stack.rng.lognormal(1, 1)) if is_open else 0.0
    shared = {"delta_pct": 100 * (SLOW - 1), "gpu_hours_per_day": cost, "proposal": ""}
    batch.add(
        "regression",
        {
            "id": regression_id, "project_id": stack.project_id, "kind": "run", "cause_key": f"code:{run_id}",
            "cause": "The code changed.", "metric": "step_time_ms", "state": "open" if is_open else "fixed",
            "assignee": "", "note": "", "external_url": "", "opened_at": at, "changed_at": at, "proposal": "",
            "worst_delta_pct": 100 * (SLOW - 1), "gpu_hours_per_day": cost,
        },
    )  # fmt: skip
    batch.add(
        "regression_member",
        {
            "regression_id": regression_id, "run_id": run_id, "stack_key": stack.key, "config_key": stack.config_key,
            "usual_level": usual, "slow_level": usual + math.log(SLOW), "first_delta_pct": 100 * (SLOW - 1),
            "joined_at": at, **shared,
        },
    )  # fmt: skip
    batch.add("run_alarm", {"run_id": run_id, "metric": "step_time_ms", "regression_id": regression_id})


def _add_details(batch: _Batch, template: _Template, run_id: int) -> None:
    for name in ("series", "reading"):
        for row in template.rows[name]:
            batch.add(name, dict(row) | {"run_id": run_id})
    for row in template.rows["run_file"]:
        file_id = batch.new_id("run_file")
        batch.add("run_file", dict(row) | {"id": file_id, "run_id": run_id})
        for piece in template.rows["segment"]:
            if piece["file_id"] == row["id"]:
                batch.add("segment", dict(piece) | {"file_id": file_id})


def _standings(stacks: Iterable[_Stack]) -> _Batch:
    batch = _Batch()
    for stack in stacks:
        key = {"project_id": stack.project_id, "stack_key": stack.key}
        newest = {"newest_run_id": stack.newest[0], "newest_at": stack.newest[1], "runs": stack.runs}
        own = key | newest | stack.described | {"prior_version": 0, "gpu": ""}
        batch.add("standing", dict(stack.template.standing) | own)
        for board in stack.template.boards:
            batch.add("standing_board", dict(board) | key)
        for row in stack.template.leader_changes:
            change = {name: value for name, value in row.items() if name != "id"}
            batch.add("leader_change", change | key | {"at": stack.newest[1], "run_id": stack.newest[0]})
    return batch


# --- Fast inserts: rows go directly to the driver, and indexes are built at the end.


def _write(connection: Connection, source: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows whose JSON is already text, without SQLAlchemy statements, which take three times as long."""
    names = tuple(rows[0])
    kinds = [source.c[name].type.dialect_impl(connection.dialect) for name in names]
    encode = [kind.bind_processor(connection.dialect) or (lambda value: value) for kind in kinds]
    is_json = [isinstance(kind, JSON) for kind in kinds]
    values = (
        tuple(
            row[name] if as_text and isinstance(row[name], str) else code(row[name])
            for name, code, as_text in zip(names, encode, is_json, strict=True)
        )
        for row in rows
    )
    if connection.dialect.name == "sqlite":
        statement = insert(table(source.name, *map(column, names))).compile(dialect=connection.dialect)
        connection.exec_driver_sql(str(statement), list(values))
        return
    columns = ", ".join(f'"{name}"' for name in names)
    with (
        connection.connection.cursor() as cursor,
        cursor.copy(f"COPY {source.name} ({columns}) FROM STDIN") as copied,
    ):
        for row in values:
            copied.write_row(row)


_FOR_LONG_STATEMENTS = {
    "sqlite": ("PRAGMA cache_size = -500000",),
    "postgresql": ("SET LOCAL statement_timeout = 0",),
}


@contextmanager
def _without_indexes(engine: Engine) -> Iterator[None]:
    """Drop the triggers and indexes of the filled tables and rebuild them afterwards, which is faster."""
    with engine.execution_options(writes=True).begin() as connection:
        derived.remove(connection)
        indexes = _indexes(connection)
        for name in indexes:
            connection.exec_driver_sql(f"DROP INDEX {name}")
    yield
    with engine.execution_options(writes=True).begin() as connection:
        for setting in _FOR_LONG_STATEMENTS[connection.dialect.name]:
            connection.exec_driver_sql(setting)
        for definition in indexes.values():
            connection.exec_driver_sql(definition)
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE run")  # so that the planner uses the new indexes
        derived.install(connection)


def _indexes(connection: Connection) -> dict[str, str]:
    """Return the definition of each index of the filled tables by name, except constraints."""
    filled = ("run", *_EVERY_RUN, *_DETAILS, "segment")
    query = (
        "SELECT name, sql, tbl_name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        if connection.dialect.name == "sqlite"
        else "SELECT indexname, indexdef, tablename FROM pg_indexes WHERE schemaname = current_schema() "
        "AND indexname NOT IN (SELECT conname FROM pg_constraint)"
    )
    return {name: text for name, text, table_name in connection.exec_driver_sql(query) if table_name in filled}


def _json(value: object) -> str:
    return json_text.dumps(value)


def _last_id(engine: Engine, source: Table) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.max(source.c.id))).scalar_one() or 0)


def _analyse(engine: Engine) -> None:
    """Update the planner statistics of PostgreSQL, as autovacuum would. The service collects none on SQLite."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")


def main() -> int:
    see_every_project()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = options.parser(__doc__)
    parser.add_argument("--runs", type=options.count, default=10_000, help="runs to add (10,000)")
    parser.add_argument("--stacks", type=options.count, help=f"stacks (one for {RUNS_PER_STACK} runs)")
    parser.add_argument("--detailed", type=options.count, default=DETAILED,
                        help=f"newest runs of a stack that have series, readings and files ({DETAILED})")  # fmt: skip
    parser.add_argument("--data", type=Path, default=Path("data"), help="data folder (data)")
    parser.add_argument("--database", default="", help="URL of a PostgreSQL database; else SQLite in the data folder")
    chosen = parser.parse_args()
    settings = Settings(data_dir=chosen.data, **({"database_url": chosen.database} if chosen.database else {}))
    migrate(settings)
    engine = make_engine(settings)
    seeded = fill(engine, settings, chosen.runs, stacks=chosen.stacks, detailed=chosen.detailed)
    engine.dispose()
    print(
        f"{seeded.runs:,} runs in {len(seeded.stacks):,} stacks, the largest of {seeded.stacks[0][2]:,} runs: ", end=""
    )
    print(f"{seeded.seconds:.0f} s, {time.process_time():.0f} s of the processor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
