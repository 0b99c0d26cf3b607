"""Index the runs of a configuration in the order of its history."""

from app.storage.upgrade import create_index_online

revision = "0079"
down_revision = "0078"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index_online("ix_run_config_key", "run", ["config_key", "ordered_at", "id"])


def downgrade() -> None:
    create_index_online("ix_run_config_key", "run", ["config_key"])
