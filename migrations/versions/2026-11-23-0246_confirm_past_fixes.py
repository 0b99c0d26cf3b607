"""Treat existing regressions that are marked fixed as confirmed. From now on, runs confirm a fix."""

from alembic import op

revision = "0043"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "UPDATE regression_member SET proposal = 'fixed' "
        "WHERE regression_id IN (SELECT id FROM regression WHERE state = 'fixed')"
    )


def downgrade() -> None:
    op.execute(
        "UPDATE regression_member SET proposal = '' "
        "WHERE regression_id IN (SELECT id FROM regression WHERE state = 'fixed')"
    )
