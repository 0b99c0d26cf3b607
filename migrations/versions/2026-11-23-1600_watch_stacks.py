"""Add watches of users, and the keys of their feeds."""

import sqlalchemy as sa
from alembic import op

revision = "0073"
down_revision = "0072"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "watch",
        sa.Column("user_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("project_id", sa.Integer(), sa.ForeignKey("project.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("kind", sa.String(20), primary_key=True),
        sa.Column("target", sa.String(64), primary_key=True),
        sa.Column("watched_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.add_column("account", sa.Column("feed_digest", sa.String(64), nullable=True))
    op.create_index("ix_account_feed_digest", "account", ["feed_digest"])


def downgrade() -> None:
    op.drop_index("ix_account_feed_digest", "account")
    op.drop_column("account", "feed_digest")
    op.drop_table("watch")
