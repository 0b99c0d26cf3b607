"""Add the token that uploaded a run. It is unknown for existing runs."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("token_id", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("run", "token_id")
