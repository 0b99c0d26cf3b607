"""Index names in lower case again, because a migration that copied the runs on SQLite had lost the index."""

from alembic import op

revision = "0075"
down_revision = "0074"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("CREATE INDEX IF NOT EXISTS ix_run_lower_name ON run (lower(name), id)")


def downgrade() -> None:
    """Keep the index: earlier versions have it, too."""
