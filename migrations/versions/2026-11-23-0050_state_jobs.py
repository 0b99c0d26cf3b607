"""Add the job of a run as a column, filled from the metadata of its upload."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("run", sa.Column("job", sa.String(length=300), nullable=False, server_default=""))
    run = sa.table("run", sa.column("id"), sa.column("job", sa.String))
    result = sa.table("run_result", sa.column("run_id"), sa.column("metadata_stated", sa.JSON))
    stated = sa.func.substr(result.c.metadata_stated["job"].as_string(), 1, 300)
    job = sa.select(stated).where(result.c.run_id == run.c.id).scalar_subquery()
    op.execute(run.update().where(job.is_not(None)).values(job=job))
    with op.batch_alter_table("run") as table:
        table.alter_column("job", existing_type=sa.String(length=300), existing_nullable=False, server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("run") as table:
        table.drop_column("job")
