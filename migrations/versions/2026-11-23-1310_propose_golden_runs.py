"""Add proposals of golden runs."""

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0071"
down_revision = "0062"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "golden_proposal",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(64), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("proposed_by", sa.String(100), nullable=False),
        sa.Column("proposed_at", UTCDateTime(), nullable=False),
        sa.Column("note", sa.String(1000), nullable=False),
        sa.Column("decided_by", sa.String(100), nullable=False),
        sa.Column("decided_at", UTCDateTime(), nullable=True),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_golden_proposal_project_id_project"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_golden_proposal_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_golden_proposal")),
    )
    op.create_index("ix_golden_proposal_stack", "golden_proposal", ["project_id", "stack_key"])
    op.create_index("ix_golden_proposal_run_id", "golden_proposal", ["run_id"])


def downgrade() -> None:
    op.drop_table("golden_proposal")
