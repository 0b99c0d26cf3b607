"""Add the job of a run to its row, from the metadata of its upload."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("job", sa.String(length=300), nullable=False, server_default=""))
    run = sa.table("run", sa.column("job", sa.String), sa.column("metadata_stated", sa.JSON))
    stated = run.c.metadata_stated["job"].as_string()
    op.execute(run.update().where(stated.is_not(None)).values(job=sa.func.substr(stated, 1, 300)))


def downgrade() -> None:
    op.drop_column("run", "job")
