"""Add stored readings of the files of a run, and the reason if its figures could not be recomputed."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("recompute_failed", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("run", sa.Column("recompute_error", sa.Text(), nullable=True))
    with op.batch_alter_table("run") as table:
        table.alter_column("recompute_failed", existing_type=sa.Integer(), server_default=None)
    op.create_index("ix_run_definition_version", "run", ["definition_version"])
    op.create_index("ix_verdict_verdict_version", "verdict", ["verdict_version"])
    op.create_table(
        "reading",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("files", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_reading_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_reading")),
    )


def downgrade() -> None:
    op.drop_table("reading")
    op.drop_index("ix_verdict_verdict_version", "verdict")
    op.drop_index("ix_run_definition_version", "run")
    with op.batch_alter_table("run") as table:
        table.drop_column("recompute_error")
        table.drop_column("recompute_failed")
