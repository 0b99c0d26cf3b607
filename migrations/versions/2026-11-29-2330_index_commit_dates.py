"""Index runs by the date of their commit, by which the list of runs can be sorted."""

from alembic import op

from app.storage.upgrade import create_index_online

revision = "0086"
down_revision = "0085"
branch_labels = None
depends_on = None

_INDEX = "ix_run_commit_time"
_FILTERS = [
    *("project_id", "created_at", "status", "purpose", "branch", "evidence_level", "outcome"),
    *("badge", "model", "gpu", "dispatcher"),
]


def upgrade() -> None:
    create_index_online(_INDEX, "run", ["commit_time", "id", *_FILTERS])


def downgrade() -> None:
    op.drop_index(_INDEX, "run")
