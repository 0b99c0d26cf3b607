"""Add the verdict policy of a project: thresholds, fixed limits, reruns and the reference job."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("project", sa.Column("verdict_policy", sa.JSON(), nullable=False, server_default="{}"))
    with op.batch_alter_table("project") as table:
        table.alter_column("verdict_policy", existing_type=sa.JSON(), existing_nullable=False, server_default=None)


def downgrade() -> None:
    op.drop_column("project", "verdict_policy")
