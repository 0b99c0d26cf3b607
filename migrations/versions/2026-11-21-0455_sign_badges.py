"""Give each project a secret that signs the addresses of its badges."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("project", sa.Column("badge_secret", sa.String(length=64), nullable=False, server_default=""))
    with op.batch_alter_table("project") as table:
        table.alter_column("badge_secret", existing_type=sa.String(length=64), server_default=None)
    project = sa.table("project", sa.column("id", sa.Integer), sa.column("badge_secret", sa.String))
    connection = op.get_bind()
    for (number,) in connection.execute(sa.select(project.c.id)).all():
        made = sa.update(project).where(project.c.id == number).values(badge_secret=secrets.token_hex(16))
        connection.execute(made)


def downgrade() -> None:
    op.drop_column("project", "badge_secret")
