"""Drop the index of runs without a baseline: lists find them by the badge."""

from alembic import op
from sqlalchemy import text

from app.storage.upgrade import create_index_online

revision = "0088"
down_revision = "0087"
branch_labels = None
depends_on = None

_INDEX = "ix_run_no_baseline"
_ONLY = text("verdict = 'no_baseline'")


def upgrade() -> None:
    op.drop_index(_INDEX, "run")


def downgrade() -> None:
    create_index_online(_INDEX, "run", ["id"], sqlite_where=_ONLY, postgresql_where=_ONLY)
