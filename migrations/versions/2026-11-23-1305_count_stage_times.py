"""Add the processor seconds of workers by stage and day."""

import sqlalchemy as sa
from alembic import op

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stage_time",
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("stage", sa.String(20), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("day", "stage", name=op.f("pk_stage_time")),
    )


def downgrade() -> None:
    op.drop_table("stage_time")
