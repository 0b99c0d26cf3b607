"""Add the sweep of an experiment."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("experiment", sa.Column("sweep_id", sa.Integer(), nullable=True))
    op.create_index("ix_experiment_sweep_id", "experiment", ["sweep_id"])


def downgrade() -> None:
    op.drop_index("ix_experiment_sweep_id", "experiment")
    op.drop_column("experiment", "sweep_id")
