"""Add profiles (traces of the GPU work of runs), and their files until they are read."""

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "profile",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("content_key", sa.String(length=64), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("uploaded_by", sa.String(length=100), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("work", sa.String(length=10), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("claims", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_until", UTCDateTime(), nullable=True),
        sa.Column("processed_at", UTCDateTime(), nullable=True),
        sa.Column("read_seconds", sa.Float(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("document", sa.LargeBinary(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("identity", sa.JSON(), nullable=False),
        sa.Column("confirmed_by", sa.String(length=100), nullable=False),
        sa.Column("confirmed_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_profile_run_id_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_profile"),
        sa.UniqueConstraint("run_id", "content_key", name="uq_profile_run_id_content_key"),
    )
    op.create_index("ix_profile_run_id", "profile", ["run_id"])
    op.create_index("ix_profile_work_lease", "profile", ["work", "lease_until"])
    op.create_table(
        "profile_file",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("profile_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("stage", sa.Integer(), nullable=True),
        sa.Column("object_key", sa.String(length=300), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profile.id"], name="fk_profile_file_profile_id_profile", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_profile_file"),
    )
    op.create_index("ix_profile_file_profile_id", "profile_file", ["profile_id"])
    op.create_index("ix_profile_file_object_key", "profile_file", ["object_key"])


def downgrade() -> None:
    op.drop_table("profile_file")
    op.drop_table("profile")
