"""Index leaderboards with the time of their last ranking, which decides whether a remembered result is current."""

from alembic import op

revision = "0076"
down_revision = "0075"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = ["hardware_slug", "family_slug", "project_id", "updated_at"]
    op.create_index("ix_standing_leaderboard", "standing", columns)
    op.drop_index("ix_standing_hardware_family", "standing")


def downgrade() -> None:
    op.create_index("ix_standing_hardware_family", "standing", ["hardware_slug", "family_slug"])
    op.drop_index("ix_standing_leaderboard", "standing")
