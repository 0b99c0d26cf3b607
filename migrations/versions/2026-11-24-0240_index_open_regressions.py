"""Index regressions by state, with what the number of open ones on every page reads."""

from alembic import op

revision = "0077"
down_revision = "0076"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_regression_state", "regression", ["state", "project_id", "gpu_hours_per_day"])


def downgrade() -> None:
    op.drop_index("ix_regression_state", "regression")
