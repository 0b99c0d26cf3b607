"""Add the version of the rules that were last evaluated for a run, to find outdated runs."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("rules_asked", sa.String(length=16), nullable=False, server_default=""))
    with op.batch_alter_table("run") as table:
        table.alter_column("rules_asked", existing_type=sa.String(length=16), server_default=None)
    op.create_index(op.f("ix_run_rules_asked"), "run", ["rules_asked"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_run_rules_asked"), table_name="run")
    op.drop_column("run", "rules_asked")
