"""Add links that open one page without a log-in."""

import sqlalchemy as sa
from alembic import op

revision = "0056"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "share_link",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("project_id", sa.Integer(), sa.ForeignKey("project.id", ondelete="CASCADE"), nullable=False),
        sa.Column("page", sa.String(300), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("expires_at", time, nullable=False),
        sa.Column("opened_at", time, nullable=True),
        sa.Column("opened", sa.Integer(), nullable=False),
        sa.Column("revoked_at", time, nullable=True),
        sa.Column("revoked_by", sa.String(100), nullable=False),
    )
    op.create_index("ix_share_link_project_id", "share_link", ["project_id"])


def downgrade() -> None:
    op.drop_table("share_link")
