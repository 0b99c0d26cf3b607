"""Index open regressions, which every page counts, and runs by model, GPU and dispatcher."""

from alembic import op

from app.storage.upgrade import create_index_online

revision = "0077"
down_revision = "0076"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_online("ix_run_workload", "run", ["model", "gpu", "dispatcher", "id"])
    op.create_index("ix_regression_state", "regression", ["state", "project_id", "gpu_hours_per_day"])


def downgrade() -> None:
    op.drop_index("ix_regression_state", "regression")
    op.drop_index("ix_run_workload", "run")
