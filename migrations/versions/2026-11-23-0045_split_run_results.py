"""Move columns that lists do not read from `run` to `run_result`, and store the commit time in a column.

Runs are copied in batches of ids, so that no statement exceeds the time limit for statements on PostgreSQL.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_AT_ONCE = 5_000
_MOVED: tuple[tuple[str, bool], ...] = (
    ("metadata_stated", False),
    ("warnings", False),
    ("contract", False),
    ("unknown", False),
    ("steady_state", True),
    ("metrics", False),
    ("health", False),
    ("definitions", False),
    ("failures", False),
    ("activity", False),
    ("availability", False),
    ("timers", False),
    ("not_understood", False),
    ("slices", False),
)
"""Names of the JSON columns, and whether they may be NULL."""
_LISTS = ("warnings", "unknown", "failures", "availability", "timers", "not_understood", "slices")
_run = sa.table("run", sa.column("id"), sa.column("outcome"), sa.column("commit_time", UTCDateTime()))
_stated = sa.table("run_result", sa.column("run_id"), sa.column("metadata_stated"), sa.column("health"))


def upgrade() -> None:
    op.create_table(
        "run_result",
        sa.Column("run_id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.JSON(), nullable=nullable) for name, nullable in _MOVED),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_result_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_result")),
    )
    names = ", ".join(name for name, _ in _MOVED)
    copy = sa.text(f"INSERT INTO run_result (run_id, {names}) SELECT id, {names} FROM run WHERE id BETWEEN :a AND :b")  # noqa: S608  our names
    for first, last in _batches():
        op.get_bind().execute(copy, {"a": first, "b": last})
    with op.batch_alter_table("run") as table:
        table.add_column(sa.Column("commit_time", UTCDateTime(), nullable=True))
        for name, _ in _MOVED:
            table.drop_column(name)
    _fill_columns()


def downgrade() -> None:
    with op.batch_alter_table("run") as table:
        for name, nullable in _MOVED:
            empty = None if nullable else "[]" if name in _LISTS else "{}"
            table.add_column(sa.Column(name, sa.JSON(), nullable=nullable, server_default=empty))
        table.drop_column("commit_time")
    names = ", ".join(name for name, _ in _MOVED)
    source = f"SELECT {names} FROM run_result WHERE run_id = run.id"  # noqa: S608  our names
    move = f"UPDATE run SET ({names}) = ({source}) WHERE id BETWEEN :a AND :b"  # noqa: S608  our names
    for first, last in _batches():
        op.get_bind().execute(sa.text(move), {"a": first, "b": last})
    with op.batch_alter_table("run") as table:
        for name, nullable in _MOVED:
            if not nullable:
                table.alter_column(name, existing_type=sa.JSON(), existing_nullable=False, server_default=None)
    op.drop_table("run_result")


def _batches() -> Iterator[tuple[int, int]]:
    last = op.get_bind().execute(sa.select(sa.func.max(_run.c.id))).scalar() or 0
    for first in range(1, last + 1, _AT_ONCE):
        yield first, first + _AT_ONCE - 1


def _fill_columns() -> None:
    """Set `commit_time`, and `outcome` of runs that were stored before this column, from the JSON documents."""
    connection = op.get_bind()
    wanted = (_run.c.id, _run.c.outcome, _stated.c.metadata_stated, _stated.c.health)
    chosen = sa.select(*wanted).join(_stated, _stated.c.run_id == _run.c.id)
    change = _run.update().where(_run.c.id == sa.bindparam("run"))
    for first, last in _batches():
        rows = connection.execute(chosen.where(_run.c.id.between(first, last))).all()
        times = [{"run": row.id, "commit_time": time} for row in rows if (time := _commit_time(_read(row[2])))]
        outcomes = [
            {"run": row.id, "outcome": str(outcome)[:20]}
            for row in rows
            if not row.outcome and (outcome := _read(row.health).get("outcome"))
        ]
        for changes in (times, outcomes):
            if changes:
                connection.execute(change, changes)


def _read(stored: Any) -> dict[str, Any]:
    document = json.loads(stored) if isinstance(stored, str) else stored
    return document if isinstance(document, dict) else {}


def _commit_time(document: dict[str, Any]) -> datetime | None:
    """Return the stated time as `read_metadata` reads it at this revision; None if missing or invalid."""
    stated = document.get("commit_time")
    try:
        time = datetime.fromisoformat(stated.strip()) if isinstance(stated, str) else None
    except ValueError:
        return None
    if time is None:
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
