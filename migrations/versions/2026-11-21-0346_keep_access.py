"""Add users with sessions and roles, tokens, and quotas of projects."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "account",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("email", sa.String(length=300), nullable=False),
        sa.Column("password_hash", sa.String(length=300), nullable=False),
        sa.Column("must_change_password", sa.Boolean(), nullable=False),
        sa.Column("administrator", sa.Boolean(), nullable=False),
        sa.Column("issuer", sa.String(length=300), nullable=False),
        sa.Column("subject", sa.String(length=300), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_login_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_account")),
        sa.UniqueConstraint("name", name=op.f("uq_account_name")),
    )
    op.create_index("ix_account_issuer_subject", "account", ["issuer", "subject"], unique=False)
    op.create_table(
        "login_session",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("address", sa.String(length=100), nullable=False),
        sa.Column("agent", sa.String(length=300), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["account.id"], name=op.f("fk_login_session_user_id_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_session")),
    )
    op.create_index(op.f("ix_login_session_user_id"), "login_session", ["user_id"], unique=False)
    op.create_table(
        "member",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("added_by", sa.String(length=100), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_member_project_id_project"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["account.id"], name=op.f("fk_member_user_id_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "user_id", name=op.f("pk_member")),
    )
    op.create_index(op.f("ix_member_user_id"), "member", ["user_id"], unique=False)
    op.create_table(
        "token",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("shown", sa.String(length=20), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_token_project_id_project"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_token_digest")),
    )
    op.create_index(op.f("ix_token_project_id"), "token", ["project_id"], unique=False)
    with op.batch_alter_table("project") as project:
        project.add_column(sa.Column("public", sa.Boolean(), server_default=sa.false(), nullable=False))
        project.add_column(sa.Column("quota_bytes", sa.BigInteger(), nullable=True))
        project.add_column(sa.Column("quota_runs_a_day", sa.Integer(), nullable=True))
    with op.batch_alter_table("project") as project:
        project.alter_column("public", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("project") as project:
        for column in ("quota_runs_a_day", "quota_bytes", "public"):
            project.drop_column(column)
    op.drop_table("token")
    op.drop_table("member")
    op.drop_table("login_session")
    op.drop_table("account")
