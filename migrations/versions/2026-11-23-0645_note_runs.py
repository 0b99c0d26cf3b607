"""Add notes of users to runs."""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("notes", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("run", "notes")
