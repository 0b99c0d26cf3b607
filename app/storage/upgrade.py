"""The plan of a database upgrade (`threewalls upgrade --check`), and index creation that does not block writes.

The plan runs the pending migrations on an empty copy of the tables and records their statements: in memory for SQLite,
in a schema that is rolled back for PostgreSQL. Of the service's own tables it only counts the rows.
"""

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError

from app.domain.numbers import plural
from app.errors import Unavailable
from app.settings import Settings
from app.storage import derived
from app.storage.database import explained, make_engine, migration_scripts, upgradable_revision

if TYPE_CHECKING:
    from alembic.script import Script

Action = Literal["create table", "copy table", "build index", "change table", "check rows", "change rows", "drop"]
Blocks = Literal["nothing", "writes", "everything"]

_SECONDS_PER_ROW: Mapping[Action, float] = {
    "copy table": 40e-6,
    "build index": 2e-6,
    "check rows": 1e-6,
    "change rows": 150e-6,
}
"""Measured with 100,000 runs (docs/scale.md). The time of other actions does not depend on the number of rows."""
_SECONDS_PER_DERIVED_RUN = 50e-6
_SCRATCH = "threewalls_upgrade_check"


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """What a migration does to one table. `rows`: the database's estimate. `blocks`: the operations that must wait."""

    action: Action
    table: str
    blocks: Blocks
    count: int = 1
    rows: int = 0

    @property
    def seconds(self) -> float:
        return self.count * self.rows * _SECONDS_PER_ROW.get(self.action, 0)


@dataclass(frozen=True, slots=True)
class PendingMigration:
    revision: str
    title: str
    steps: tuple[MigrationStep, ...]

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The pending migrations in order. `derived_runs`: number of runs from which triggers then derive tables again."""

    database: Literal["sqlite", "postgresql"]
    revision: str
    newest: str
    migrations: tuple[PendingMigration, ...]
    derived_runs: int

    @property
    def seconds(self) -> float:
        return sum(migration.seconds for migration in self.migrations) + self.derived_runs * _SECONDS_PER_DERIVED_RUN


def plan_upgrade(settings: Settings) -> UpgradePlan:
    """Return what `migrate` would do. Changes nothing.

    Raises Unavailable if the database is not ours, does not answer, or its role may not create a schema (PostgreSQL).
    """
    engine = make_engine(settings)
    try:
        with explained(engine):
            current = upgradable_revision(engine)
            scripts = [*reversed([*migration_scripts(engine).walk_revisions()])]
            done = 0 if current is None else 1 + [script.revision for script in scripts].index(current)
            statements = _record(engine, scripts, scripts[done:]) if done < len(scripts) else {}
            migrations, runs = _against_tables(engine, scripts[done:], statements)
    finally:
        engine.dispose()
    is_sqlite = engine.dialect.name == "sqlite"
    newest = scripts[-1].revision
    return UpgradePlan("sqlite" if is_sqlite else "postgresql", current or "", newest, migrations, runs)


def _against_tables(
    engine: Engine, pending: "Sequence[Script]", statements: Mapping[str, Sequence[str]]
) -> tuple[tuple[PendingMigration, ...], int]:
    with engine.connect() as connection:
        tables = set(inspect(connection).get_table_names())
        migrations = tuple(
            PendingMigration(script.revision, script.doc, _steps(connection, tables, statements[script.revision]))
            for script in pending
        )
        steps = [step for migration in migrations for step in migration.steps]
        copies_runs = any((step.action, step.table) == ("copy table", "run") for step in steps)
        derives = pending and "run" in tables and (copies_runs or not derived.is_installed(connection))
        return migrations, _rows(connection, "run") if derives else 0


# --- The statements of the pending migrations, on empty tables.


def _record(engine: Engine, scripts: "Sequence[Script]", pending: "Sequence[Script]") -> Mapping[str, Sequence[str]]:
    """Return the statements of each pending migration by its revision."""
    from alembic.operations import Operations  # noqa: PLC0415  # it takes 0.2 s
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415

    recorded: dict[str, list[str]] = {script.revision: [] for script in pending}
    target: list[str] = []

    def record(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        target.append(statement)
        return statement.replace(" CONCURRENTLY", ""), parameters  # not allowed in a transaction

    with _empty_database(engine) as connection:
        event.listen(connection, "before_cursor_execute", record, retval=True)
        context = MigrationContext.configure(connection, opts={"render_as_batch": True})
        context.autocommit_block = nullcontext  # type: ignore[assignment, method-assign]  # all of it is rolled back
        with Operations.context(context), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Skipped unsupported reflection of expression-based index")
            for script in scripts:
                target = recorded.get(script.revision, [])
                script.module.upgrade()
    return recorded


@contextmanager
def _empty_database(engine: Engine) -> Iterator[Connection]:
    if engine.dialect.name == "sqlite":
        memory = create_engine("sqlite://")
        with memory.connect() as connection:
            yield connection
        memory.dispose()
        return
    with engine.connect() as connection:
        try:
            connection.execute(text(f"CREATE SCHEMA {_SCRATCH}"))
        except DatabaseError as error:
            raise Unavailable(
                "The upgrade cannot be checked: the role of the service may not create a schema, or another check is "
                f"running ({str(error.orig).strip()}). Nothing was changed."
            ) from error
        connection.execute(text(f"SET LOCAL search_path TO {_SCRATCH}"))
        try:
            yield connection
        finally:
            connection.rollback()


# --- What a statement does to a table.

_NAME = r'(?:IF (?:NOT )?EXISTS )?"?(\w+)"?'
_KINDS: tuple[tuple[str, Action, Blocks], ...] = (
    (rf"CREATE TABLE {_NAME}", "create table", "nothing"),
    (rf"CREATE (?:UNIQUE )?INDEX CONCURRENTLY {_NAME} ON (?:ONLY )?\"?(\w+)", "build index", "nothing"),
    (rf"CREATE (?:UNIQUE )?INDEX {_NAME} ON (?:ONLY )?\"?(\w+)", "build index", "writes"),
    (rf"ALTER TABLE {_NAME} ALTER COLUMN \S+ TYPE", "copy table", "everything"),
    (rf"ALTER TABLE {_NAME} (?:ALTER COLUMN \S+ SET NOT NULL|ADD CONSTRAINT)", "check rows", "everything"),
    (rf"ALTER TABLE {_NAME}", "change table", "nothing"),
    (rf"DROP TABLE {_NAME}", "drop", "nothing"),
    (rf"(?:UPDATE|DELETE FROM|INSERT INTO) {_NAME}", "change rows", "writes"),
    (rf"SELECT .* FROM {_NAME}", "change rows", "writes"),  # noqa: S608  # a pattern
)
"""Patterns of statements with action and blocked operations. A SELECT counts as a change of rows, because on empty
tables a migration that changes the selected rows executes nothing more."""
_COPY = "_alembic_tmp_"


def _steps(connection: Connection, tables: set[str], statements: Sequence[str]) -> tuple[MigrationStep, ...]:
    """Return the steps of a migration: equal steps merged with a count, steps on tables that it creates left out."""
    steps: dict[tuple[str, str], MigrationStep] = {}
    copied: set[str] = set()
    for statement in statements:
        step = _step(" ".join(statement.split()))
        if step is None or (step.table in copied and step.action not in ("build index", "change rows")):
            continue
        if step.table.startswith(_COPY):
            copied |= {step.table, step.table.removeprefix(_COPY)}
            step = MigrationStep("copy table", step.table.removeprefix(_COPY), "everything")
        if step.action != "create table" and step.table not in tables:
            continue
        key = (step.action, step.table)
        if (before := steps.get(key)) is None:
            rows = 0 if step.action == "create table" else _rows(connection, step.table)
            steps[key] = replace(step, rows=rows)
        elif step.action not in ("copy table", "change rows"):
            steps[key] = replace(
                before, count=before.count + 1, blocks=max(before.blocks, step.blocks, key=_BLOCKS.index)
            )
    return tuple(steps.values())


_BLOCKS: tuple[Blocks, ...] = ("nothing", "writes", "everything")


def _step(statement: str) -> MigrationStep | None:
    for pattern, action, blocks in _KINDS:
        if match := re.match(pattern, statement, re.IGNORECASE):
            return MigrationStep(action, match[match.lastindex or 1], blocks)
    return None


def _rows(connection: Connection, table: str) -> int:
    """Return the approximate number of rows of a table without reading them."""
    if connection.dialect.name == "sqlite":
        return int(connection.execute(text(f'SELECT max(rowid) FROM "{table}"')).scalar() or 0)  # noqa: S608  # our names
    estimated = "SELECT reltuples FROM pg_class WHERE oid = to_regclass(:table)"
    estimate = connection.execute(text(estimated), {"table": f'"{table}"'}).scalar() or 0
    if estimate >= 0:
        return int(estimate)
    return int(connection.execute(text(f'SELECT count(*) FROM "{table}"')).scalar() or 0)  # noqa: S608  # never analysed


# --- The plan as text.

_WORDS: Mapping[Action, tuple[str, str]] = {
    "create table": ("create the table", "create the tables"),
    "copy table": ("copy the table", "copy the tables"),
    "build index": ("build an index on", "build {} indexes on"),
    "change table": ("change columns of", "change columns of"),
    "check rows": ("check all rows of", "check all rows of"),
    "change rows": ("read or change rows of", "read or change rows of"),
    "drop": ("drop the table", "drop the tables"),
}


def describe(plan: UpgradePlan) -> Iterator[str]:
    """Yield the lines that `threewalls upgrade --check` prints."""
    if not plan.migrations:
        yield f"The database has the newest revision, {plan.newest}. Nothing to migrate."
        return
    yield f"Revision {plan.revision or 'none'} → {plan.newest}, {plural(len(plan.migrations), 'migration')}:"
    for migration in plan.migrations:
        yield f"{migration.revision}  {migration.title}"
        for step in migration.steps:
            words = _WORDS[step.action][step.count > 1].format(step.count)
            rows = f", about {plural(step.rows, 'row')}" if step.seconds else ""
            waits = f"; {step.blocks} on it waits" if plan.database == "postgresql" and step.blocks != "nothing" else ""
            yield f"      {words} {step.table}{rows}{_takes(step.seconds)}{waits}"
    if plan.derived_runs:
        seconds = plan.derived_runs * _SECONDS_PER_DERIVED_RUN
        yield f"then  derive filters, stacks and search from about {plural(plan.derived_runs, 'run')}{_takes(seconds)}"
    estimate = f"Estimate: {_seconds(plan.seconds)} of one core, from rates measured on one machine."
    if plan.database == "sqlite":
        yield f"{estimate} Stop the service first; it migrates at its next start."
    else:
        yield f"{estimate} The service may keep running; the operations listed above wait."
    yield "Nothing was changed. Make a backup before you migrate: docs/backup.md."


def _takes(seconds: float) -> str:
    return f": {_seconds(seconds)}" if seconds else ""


def _seconds(seconds: float) -> str:
    return "less than a second" if seconds < 1 else f"about {plural(math.ceil(seconds), 'second')}"


# --- Indexes that are built while others write.


def create_index_online(name: str, table: str, columns: Sequence[Any], **options: Any) -> None:
    """Create an index in a migration; on PostgreSQL outside the transaction and without blocking writes.

    Replaces an index of this name, because an interrupted attempt leaves an invalid one. Commits everything before it
    in the migration, so online indexes come first.
    """
    from alembic import op  # noqa: PLC0415

    if op.get_bind().dialect.name == "sqlite":
        op.drop_index(name, table, if_exists=True)
        op.create_index(name, table, columns, **options)
        return
    with op.get_context().autocommit_block():
        before = op.get_bind().execute(text("SELECT current_setting('lock_timeout')")).scalar_one()
        op.execute("SET lock_timeout = 0")  # waiting for other transactions blocks nothing here
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)
        op.create_index(name, table, columns, postgresql_concurrently=True, **options)
        op.execute(f"SET lock_timeout = '{before}'")
