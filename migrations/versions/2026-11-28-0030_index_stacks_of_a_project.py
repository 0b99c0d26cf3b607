"""Index the stacks of a project in the order of their newest runs."""

from alembic import op

revision = "0080"
down_revision = "0079"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_stack_project_last", "stack", ["project_id", "last_at"])


def downgrade() -> None:
    op.drop_index("ix_stack_project_last", "stack")
