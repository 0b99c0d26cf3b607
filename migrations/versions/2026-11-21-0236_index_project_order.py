"""Index the runs of a project by history position."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_run_project_ordered"), "run", ["project_id", "ordered_at"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_run_project_ordered"), table_name="run")
