"""Add an index that covers counts of recent runs of a project and branch."""

from alembic import op

from app.storage.upgrade import create_index_online

revision = "0081"
down_revision = "0080"
branch_labels = None
depends_on = None

_INDEX = "ix_run_project_created"


def upgrade() -> None:
    create_index_online(_INDEX, "run", ["project_id", "created_at", "id", "branch", "status", "outcome", "purpose"])


def downgrade() -> None:
    op.drop_index(_INDEX, "run")
    op.create_index(_INDEX, "run", ["project_id", "created_at"])
