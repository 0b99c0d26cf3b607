"""Index runs without a baseline, which a list of runs can show alone."""

from alembic import op
from sqlalchemy import text

from app.storage.upgrade import create_index_online

revision = "0087"
down_revision = "0086"
branch_labels = None
depends_on = None

_INDEX = "ix_run_no_baseline"
_ONLY = text("verdict = 'no_baseline'")


def upgrade() -> None:
    create_index_online(_INDEX, "run", ["id"], sqlite_where=_ONLY, postgresql_where=_ONLY)


def downgrade() -> None:
    op.drop_index(_INDEX, "run")
