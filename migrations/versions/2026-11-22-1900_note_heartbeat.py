"""Add the time of the last activity of a worker, so that the service can report that none is running."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    heartbeat = op.create_table(
        "heartbeat",
        sa.Column("name", sa.String(length=20), nullable=False),
        sa.Column("seen_at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_heartbeat"),
    )
    op.bulk_insert(heartbeat, [{"name": "worker", "seen_at": datetime.now(UTC)}])


def downgrade() -> None:
    op.drop_table("heartbeat")
