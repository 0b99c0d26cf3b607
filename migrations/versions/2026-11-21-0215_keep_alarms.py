"""Add the regression that explains each alarm, and the first measured size of a regression."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_alarm",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("metric", sa.String(length=100), nullable=False),
        sa.Column("regression_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["regression_id"], ["regression.id"], name=op.f("fk_run_alarm_regression_id_regression"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_alarm_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "metric", name=op.f("pk_run_alarm")),
    )
    op.create_index(op.f("ix_run_alarm_regression_id"), "run_alarm", ["regression_id"], unique=False)
    op.add_column("regression_member", sa.Column("first_delta_pct", sa.Float(), nullable=True))
    op.execute("UPDATE regression_member SET first_delta_pct = delta_pct")


def downgrade() -> None:
    op.drop_column("regression_member", "first_delta_pct")
    op.drop_table("run_alarm")
