"""Add the changes of step time after upgrades, by stack."""

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0067"
down_revision = "0066"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "upgrade_change",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(64), nullable=False),
        sa.Column("config_key", sa.String(64), nullable=False),
        sa.Column("job", sa.String(300), nullable=False),
        sa.Column("from_stack_key", sa.String(64), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("field", sa.String(100), nullable=False),
        sa.Column("from_value", sa.String(500), nullable=False),
        sa.Column("to_value", sa.String(500), nullable=False),
        sa.Column("others", sa.Integer(), nullable=False),
        sa.Column("side_by_side", sa.Boolean(), nullable=False),
        sa.Column("decision", sa.String(20), nullable=False),
        sa.Column("level", sa.Float(), nullable=False),
        sa.Column("delta_pct", sa.Float(), nullable=False),
        sa.Column("ci_low_pct", sa.Float(), nullable=False),
        sa.Column("ci_high_pct", sa.Float(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("from_runs", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_upgrade_change_project_id_project"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_upgrade_change_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upgrade_change")),
        sa.UniqueConstraint(
            "project_id",
            "stack_key",
            "config_key",
            "job",
            name=op.f("uq_upgrade_change_project_id_stack_key_config_key_job"),
        ),
    )
    op.create_index("ix_upgrade_change_project_at", "upgrade_change", ["project_id", "at"])
    op.create_index("ix_upgrade_change_from", "upgrade_change", ["project_id", "from_stack_key"])
    op.create_index("ix_upgrade_change_run_id", "upgrade_change", ["run_id"])


def downgrade() -> None:
    op.drop_table("upgrade_change")
