"""Add second factors, the expiry of first passwords, and when a session last confirmed its password."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_SECRET = sa.String(length=64)
_FIRST_PASSWORD_LASTS = timedelta(hours=72)


def upgrade() -> None:
    op.add_column("account", sa.Column("password_ends_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("account", sa.Column("totp_secret", _SECRET, nullable=False, server_default=""))
    op.add_column("account", sa.Column("totp_step", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("login_session", sa.Column("confirmed_at", sa.DateTime(timezone=True), nullable=True))
    account = sa.table(
        "account",
        sa.column("must_change_password", sa.Boolean()),
        sa.column("password_ends_at", sa.DateTime(timezone=True)),
    )
    ends = datetime.now(UTC) + _FIRST_PASSWORD_LASTS
    op.execute(account.update().where(account.c.must_change_password).values(password_ends_at=ends))
    login_session = sa.table("login_session", sa.column("confirmed_at"), sa.column("created_at"))
    op.execute(login_session.update().values(confirmed_at=login_session.c.created_at))
    with op.batch_alter_table("account") as table:
        table.alter_column("totp_secret", existing_type=_SECRET, server_default=None)
        table.alter_column("totp_step", existing_type=sa.Integer(), server_default=None)
    with op.batch_alter_table("login_session") as table:
        table.alter_column("confirmed_at", existing_type=sa.DateTime(timezone=True), nullable=False)


def downgrade() -> None:
    with op.batch_alter_table("login_session") as table:
        table.drop_column("confirmed_at")
    with op.batch_alter_table("account") as table:
        for name in ("totp_step", "totp_secret", "password_ends_at"):
            table.drop_column(name)
