"""Store the whole measurement of an upgrade, which the upgrade report shows. Judging again fills it."""

import sqlalchemy as sa
from alembic import op

revision = "0082"
down_revision = "0081"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("upgrade_change", sa.Column("measured", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("upgrade_change", "measured")
