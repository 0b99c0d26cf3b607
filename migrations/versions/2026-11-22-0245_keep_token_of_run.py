"""Keep with each run the token that brought it. Of the runs that are there already nobody knows it."""

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
