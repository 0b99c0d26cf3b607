"""Add the share of skipped iterations of a run. Recomputing the runs fills it."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("skipped_share", sa.Float(), nullable=False, server_default="0"))
    with op.batch_alter_table("run") as table:
        table.alter_column("skipped_share", existing_type=sa.Float(), existing_nullable=False, server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("run") as table:
        table.drop_column("skipped_share")
