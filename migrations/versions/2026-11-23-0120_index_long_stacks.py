"""Index the runs of a stack by configuration, so that counting runs and finding paused configurations reads no rows."""

from alembic import op

from app.storage.upgrade import create_index_online

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = ["stack_key", "config_key", "ordered_at", "status", "reception"]
    create_index_online("ix_run_stack_config", "run", columns)


def downgrade() -> None:
    op.drop_index("ix_run_stack_config", table_name="run")
