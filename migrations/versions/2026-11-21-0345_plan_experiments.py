"""Add experiments (planned A/Bs) with their runs, and the rules that fired for each run."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "experiment",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.Integer(), nullable=True),
        sa.Column("baseline_run_id", sa.Integer(), nullable=False),
        sa.Column("rule_id", sa.String(length=100), nullable=False),
        sa.Column("title", sa.String(length=300), nullable=False),
        sa.Column("stack_key", sa.String(length=64), nullable=False),
        sa.Column("baseline_key", sa.String(length=64), nullable=False),
        sa.Column("candidate_key", sa.String(length=64), nullable=False),
        sa.Column("knobs", sa.JSON(), nullable=False),
        sa.Column("change", sa.JSON(), nullable=False),
        sa.Column("tag", sa.String(length=100), nullable=False),
        sa.Column("runs_each", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.JSON(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("result_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_by", sa.String(length=100), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["baseline_run_id"], ["run.id"], name=op.f("fk_experiment_baseline_run_id_run"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["experiment.id"], name=op.f("fk_experiment_parent_id_experiment"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_experiment_project_id_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiment")),
        sa.UniqueConstraint("project_id", "tag", name=op.f("uq_experiment_project_id_tag")),
    )
    op.create_index(op.f("ix_experiment_baseline_run_id"), "experiment", ["baseline_run_id"], unique=False)
    op.create_index("ix_experiment_candidate", "experiment", ["candidate_key"], unique=False)
    op.create_index(op.f("ix_experiment_parent_id"), "experiment", ["parent_id"], unique=False)
    op.create_index("ix_experiment_project_state", "experiment", ["project_id", "state"], unique=False)
    op.create_index("ix_experiment_rule", "experiment", ["rule_id"], unique=False)
    op.create_index("ix_experiment_stack", "experiment", ["stack_key"], unique=False)
    op.create_table(
        "experiment_run",
        sa.Column("experiment_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("side", sa.String(length=20), nullable=False),
        sa.Column("joined_by", sa.String(length=20), nullable=False),
        sa.Column("joined_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"],
            ["experiment.id"],
            name=op.f("fk_experiment_run_experiment_id_experiment"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_experiment_run_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("experiment_id", "run_id", name=op.f("pk_experiment_run")),
    )
    op.create_index(op.f("ix_experiment_run_run_id"), "experiment_run", ["run_id"], unique=False)
    op.create_table(
        "rule_firing",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("rule_id", sa.String(length=100), nullable=False),
        sa.Column("fired_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_rule_firing_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "rule_id", name=op.f("pk_rule_firing")),
    )
    op.create_index("ix_rule_firing_rule", "rule_firing", ["rule_id", "run_id"], unique=False)


def downgrade() -> None:
    op.drop_table("rule_firing")
    op.drop_table("experiment_run")
    op.drop_table("experiment")
