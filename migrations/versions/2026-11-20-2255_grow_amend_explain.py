"""Store files in segments, work separately from status, failures and activity, amendments, and defaults."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NEW_RUN_COLUMNS = (
    ("reception", sa.String(length=20), "whole"),
    ("work", sa.String(length=10), ""),
    ("wanted", sa.Integer(), "0"),
    ("claims", sa.Integer(), "0"),
    ("read_seconds", sa.Float(), "0"),
    ("definitions", sa.JSON(), "{}"),
    ("failures", sa.JSON(), "[]"),
    ("activity", sa.JSON(), "{}"),
    ("availability", sa.JSON(), "[]"),
    ("timers", sa.JSON(), "[]"),
    ("fair_for_timing", sa.Boolean(), sa.true()),
    ("not_understood", sa.JSON(), "[]"),
    ("slices", sa.JSON(), "[]"),
)


def upgrade() -> None:
    _add_columns("run", _NEW_RUN_COLUMNS)
    op.add_column("run", sa.Column("heard_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE run SET claims = attempts")
    op.execute("UPDATE run SET work = 'waiting' WHERE status = 'received'")
    op.execute("UPDATE run SET work = 'held' WHERE status = 'processing'")
    op.drop_index("ix_run_status_lease", "run")
    op.create_index("ix_run_work_lease", "run", ["work", "lease_until"])
    op.create_index("ix_run_reception_heard", "run", ["reception", "heard_at"])
    _create_objects()
    _create_statements()


def _create_objects() -> None:
    op.create_table(
        "segment",
        sa.Column("file_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("object_key", sa.String(length=300), nullable=False),
        sa.ForeignKeyConstraint(
            ["file_id"], ["run_file.id"], name=op.f("fk_segment_file_id_run_file"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("file_id", "position", name=op.f("pk_segment")),
    )
    op.create_index("ix_segment_object_key", "segment", ["object_key"])
    op.create_table(
        "stored_object",
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("touched_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_stored_object")),
    )
    op.execute("INSERT INTO segment SELECT id, 0, size_bytes, object_key FROM run_file")
    op.execute("INSERT INTO stored_object SELECT DISTINCT object_key, CURRENT_TIMESTAMP FROM run_file")
    _add_columns("run_file", (("document", sa.String(length=30), ""), ("cut", sa.String(length=10), "")))
    with op.batch_alter_table("run_file") as table:
        table.drop_column("object_key")


def _create_statements() -> None:
    op.create_table(
        "amendment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("field", sa.String(length=100), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("old_value", sa.JSON(), nullable=False),
        sa.Column("old_source", sa.String(length=20), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("note", sa.String(length=1000), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_amendment_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_amendment")),
    )
    op.create_index("ix_amendment_run_id", "amendment", ["run_id"])
    op.create_table(
        "project_default",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_project_default_project_id_project")),
        sa.PrimaryKeyConstraint("project_id", "name", name=op.f("pk_project_default")),
    )
    op.create_table(
        "dispatcher_availability",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("dispatcher", sa.String(length=30), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("container", sa.String(length=500), nullable=False),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_dispatcher_availability_project_id_project")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_dispatcher_availability_run_id_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "dispatcher", name=op.f("pk_dispatcher_availability")),
    )
    op.create_index("ix_dispatcher_availability_container", "dispatcher_availability", ["project_id", "container"])


def downgrade() -> None:
    for name in ("dispatcher_availability", "project_default", "amendment"):
        op.drop_table(name)
    # The old tables cannot store a file in pieces, so only its first piece remains.
    _add_columns("run_file", (("object_key", sa.String(length=300), ""),))
    op.execute(
        "UPDATE run_file SET object_key = coalesce((SELECT segment.object_key FROM segment"
        " WHERE segment.file_id = run_file.id ORDER BY position LIMIT 1), '')"
    )
    op.drop_table("stored_object")
    op.drop_table("segment")
    with op.batch_alter_table("run_file") as table:
        for name in ("document", "cut"):
            table.drop_column(name)
    for index in ("ix_run_reception_heard", "ix_run_work_lease"):
        op.drop_index(index, "run")
    with op.batch_alter_table("run") as table:
        for name in (*(name for name, _, _ in _NEW_RUN_COLUMNS), "heard_at"):
            table.drop_column(name)
    op.create_index("ix_run_status_lease", "run", ["status", "lease_until"])


def _add_columns(table_name: str, columns: tuple[tuple[str, sa.types.TypeEngine[object], object], ...]) -> None:
    """Add columns that are not null, with a value for existing rows; new rows must state one."""
    for name, kind, value in columns:
        op.add_column(table_name, sa.Column(name, kind, nullable=False, server_default=value))
    with op.batch_alter_table(table_name) as table:
        for name, kind, _ in columns:
            table.alter_column(name, existing_type=kind, existing_nullable=False, server_default=None)
