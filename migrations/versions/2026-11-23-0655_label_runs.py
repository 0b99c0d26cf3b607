"""Add tables for searching runs by tag, job, user, commit, and contract field of the configuration.

Triggers and workers fill the tables after the migrations (`app/storage/derived.py`, `app/storage/search.py`).
"""

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_label",
        sa.Column("field", sa.String(20), nullable=False),
        sa.Column("value", sa.String(300), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_label_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("field", "value", "run_id", name=op.f("pk_run_label")),
    )
    op.create_index("ix_run_label_run", "run_label", ["run_id"])
    op.create_table(
        "config_value",
        sa.Column("field", sa.String(100), nullable=False),
        sa.Column("value", sa.String(200), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("config_key", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["project.id"], name=op.f("fk_config_value_project_id_project"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("field", "value", "project_id", "config_key", name=op.f("pk_config_value")),
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for name in ("label", "relabel"):
            op.execute(f"DROP TRIGGER IF EXISTS run_derived_{name}")
    else:
        op.execute("DROP TRIGGER IF EXISTS run_derived_label ON run")
        op.execute("DROP FUNCTION IF EXISTS run_labels()")
    op.drop_table("config_value")
    op.drop_table("run_label")
