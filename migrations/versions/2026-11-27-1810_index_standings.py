"""Index standings by stack and title, and the changes of leaders of a project."""

from alembic import op

revision = "0078"
down_revision = "0077"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_standing_stack", "standing", ["stack_key"])
    op.create_index("ix_standing_title", "standing", ["title"], postgresql_using="hash")
    op.create_index("ix_leader_change_project_at", "leader_change", ["project_id", "at"])


def downgrade() -> None:
    op.drop_index("ix_leader_change_project_at", "leader_change")
    op.drop_index("ix_standing_title", "standing")
    op.drop_index("ix_standing_stack", "standing")
