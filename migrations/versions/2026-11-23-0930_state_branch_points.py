"""Add the merge base of a change to its runs."""

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0066"
down_revision = "0070"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("merge_base", sa.String(length=100), nullable=False, server_default=""))
    op.add_column("run", sa.Column("merge_base_time", UTCDateTime(), nullable=True))
    # A copy of the table would lose AUTOINCREMENT, so that numbers of deleted runs would be reused.
    with op.batch_alter_table("run", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.alter_column(
            "merge_base", existing_type=sa.String(length=100), existing_nullable=False, server_default=None
        )


def downgrade() -> None:
    with op.batch_alter_table("run", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.drop_column("merge_base_time")
        table.drop_column("merge_base")
