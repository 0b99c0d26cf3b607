"""Drop the index of runs without a baseline, and the filter `badge`: `verdict` finds what lists show."""

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
    # `=` within a value is escaped.
    op.execute("UPDATE saved_view SET query = replace(query, 'badge=', 'verdict=') WHERE query LIKE '%badge=%'")


def downgrade() -> None:
    create_index_online(_INDEX, "run", ["id"], sqlite_where=_ONLY, postgresql_where=_ONLY)
