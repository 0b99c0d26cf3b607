"""Add deletions, retention and usage. From now on, SQLite does not reuse the numbers of deleted runs."""

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0046"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deletion",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("selection", sa.JSON(), nullable=False),
        sa.Column("title", sa.String(300), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("requested_by", sa.String(100), nullable=False),
        sa.Column("note", sa.String(1000), nullable=False),
        sa.Column("requested_at", UTCDateTime(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", UTCDateTime(), nullable=True),
        sa.Column("undone_by", sa.String(100), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_deletion_project_id_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deletion")),
    )
    op.create_index("ix_deletion_state", "deletion", ["state", "ends_at"])
    op.create_index("ix_deletion_project", "deletion", ["project_id", "id"])
    op.create_table(
        "deletion_part",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("deletion_id", sa.Integer(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["deletion_id"], ["deletion.id"], name=op.f("fk_deletion_part_deletion_id_deletion"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deletion_part")),
    )
    op.create_index("ix_deletion_part_deletion_id", "deletion_part", ["deletion_id"])
    op.create_table(
        "deletion_object",
        sa.Column("object_key", sa.String(300), nullable=False),
        sa.Column("part_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["part_id"], ["deletion_part.id"], name=op.f("fk_deletion_object_part_id_deletion_part"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("object_key", "part_id", name=op.f("pk_deletion_object")),
    )
    op.create_table(
        "usage",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_usage_project_id_project"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "day", name=op.f("pk_usage")),
    )
    op.add_column("project", sa.Column("retention", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("project", sa.Column("archived_at", UTCDateTime(), nullable=True))
    with op.batch_alter_table("project") as table:
        table.alter_column("retention", existing_type=sa.JSON(), existing_nullable=False, server_default=None)
    op.add_column("segment", sa.Column("removed_at", UTCDateTime(), nullable=True))
    _copy_runs(numbers_are_final=True)


def downgrade() -> None:
    _copy_runs(numbers_are_final=False)
    op.drop_column("segment", "removed_at")
    op.drop_column("project", "archived_at")
    op.drop_column("project", "retention")
    for name in ("usage", "deletion_object", "deletion_part", "deletion"):
        op.drop_table(name)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER IF EXISTS run_derived_delete ON run")
        op.execute("DROP FUNCTION IF EXISTS run_derived_deleted()")


def _copy_runs(*, numbers_are_final: bool) -> None:
    """Copy the table `run` on SQLite, because AUTOINCREMENT cannot be added to a table. Its triggers are created again
    after the migrations."""
    if op.get_bind().dialect.name != "sqlite":
        return
    for name in ("insert", "search", "value", "stack", "delete"):
        op.execute(f"DROP TRIGGER IF EXISTS run_derived_{name}")
    op.execute("DROP INDEX IF EXISTS ix_run_lower_name")
    with op.batch_alter_table("run", recreate="always", table_kwargs={"sqlite_autoincrement": numbers_are_final}):
        pass
    op.create_index("ix_run_lower_name", "run", [sa.text("lower(name)"), "id"])
