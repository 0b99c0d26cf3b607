"""Add invitations to projects."""

import sqlalchemy as sa
from alembic import op

revision = "0072"
down_revision = "0071"
branch_labels = None
depends_on = None


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "invitation",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("project_id", sa.Integer(), sa.ForeignKey("project.id", ondelete="CASCADE"), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("email", sa.String(300), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("expires_at", time, nullable=False),
        sa.Column("accepted_at", time, nullable=True),
        sa.Column("accepted_by", sa.String(100), nullable=False),
        sa.Column("revoked_at", time, nullable=True),
        sa.Column("revoked_by", sa.String(100), nullable=False),
    )
    op.create_index("ix_invitation_project_id", "invitation", ["project_id"])


def downgrade() -> None:
    op.drop_table("invitation")
