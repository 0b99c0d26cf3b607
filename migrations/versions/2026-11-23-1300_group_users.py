"""Add groups of users, their members and their roles in projects."""

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0061"
down_revision = "0068"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "user_group",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(300), nullable=False),
        sa.Column("created_by", sa.String(100), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_user_group")),
        sa.UniqueConstraint("name", name=op.f("uq_user_group_name")),
    )
    op.create_table(
        "group_member",
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("by_provider", sa.Boolean(), nullable=False),
        sa.Column("added_by", sa.String(100), nullable=False),
        sa.Column("added_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"], ["user_group.id"], name=op.f("fk_group_member_group_id_user_group"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["account.id"], name=op.f("fk_group_member_user_id_account"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("group_id", "user_id", name=op.f("pk_group_member")),
    )
    op.create_index(op.f("ix_group_member_user_id"), "group_member", ["user_id"])
    op.create_table(
        "group_role",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("added_by", sa.String(100), nullable=False),
        sa.Column("added_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_group_role_project_id_project"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["group_id"], ["user_group.id"], name=op.f("fk_group_role_group_id_user_group"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "group_id", name=op.f("pk_group_role")),
    )
    op.create_index(op.f("ix_group_role_group_id"), "group_role", ["group_id"])


def downgrade() -> None:
    op.drop_table("group_role")
    op.drop_table("group_member")
    op.drop_table("user_group")
