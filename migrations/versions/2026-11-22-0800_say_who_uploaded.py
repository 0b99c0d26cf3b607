"""Add the name of a run's uploader. For existing runs it is known only if a token uploaded them."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_NAME = sa.String(length=100)


def upgrade() -> None:
    op.add_column("run", sa.Column("uploaded_by", _NAME, nullable=False, server_default=""))
    with op.batch_alter_table("run") as table:
        table.alter_column("uploaded_by", existing_type=_NAME, server_default=None)
    run = sa.table("run", sa.column("token_id", sa.Integer), sa.column("uploaded_by", sa.String))
    token = sa.table("token", sa.column("id", sa.Integer), sa.column("name", sa.String))
    name = sa.select(sa.func.substr("token " + token.c.name, 1, 100)).where(token.c.id == run.c.token_id)
    op.execute(run.update().where(run.c.token_id.in_(sa.select(token.c.id))).values(uploaded_by=name.scalar_subquery()))


def downgrade() -> None:
    op.drop_column("run", "uploaded_by")
