"""Add the share of a profile that was read, for the page that waits for it."""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("profile", sa.Column("progress", sa.Float(), nullable=False, server_default="0"))
    op.execute("UPDATE profile SET progress = 1 WHERE status = 'ready'")
    with op.batch_alter_table("profile") as table:
        table.alter_column("progress", existing_type=sa.Float(), existing_nullable=False, server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("profile") as table:
        table.drop_column("progress")
