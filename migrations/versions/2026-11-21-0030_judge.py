"""Add verdicts, regressions with members, pins, quarantine, the audit log, and pending judging."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _run_columns() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("quarantine", sa.String(length=1000), nullable=False, server_default=""),
        sa.Column("quarantined_by", sa.String(length=100), nullable=False, server_default=""),
        sa.Column("quarantined_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=20), nullable=False, server_default=""),
        sa.Column("log_step_time", sa.Float(), nullable=True),
        sa.Column("step_time_se", sa.Float(), nullable=True),
        sa.Column("window_length", sa.Integer(), nullable=True),
        sa.Column("is_steady", sa.Boolean(), nullable=True),
        sa.Column("short", sa.Boolean(), nullable=True),
        sa.Column("not_finite", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("shape", sa.String(length=300), nullable=False, server_default=""),
        sa.Column("verdict", sa.String(length=20), nullable=False, server_default=""),
        sa.Column("verdict_delta_pct", sa.Float(), nullable=True),
    )


def _project_columns() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("baseline_branch", sa.String(length=300), nullable=False, server_default="main"),
        sa.Column("commit_url", sa.String(length=500), nullable=False, server_default=""),
        sa.Column("compare_url", sa.String(length=500), nullable=False, server_default=""),
    )


def upgrade() -> None:
    _add_columns("project", _project_columns())
    _add_columns("run", _run_columns())
    _order_runs()
    op.drop_index("ix_run_stack_key", "run")
    op.create_index("ix_run_stack_ordered", "run", ["stack_key", "ordered_at"])
    op.create_index("ix_run_family_ordered", "run", ["project_id", "gpu", "ordered_at"])
    _create_judging()
    _create_regressions()


def _order_runs() -> None:
    """Order existing runs by upload time."""
    op.add_column("run", sa.Column("ordered_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE run SET ordered_at = created_at")
    with op.batch_alter_table("run") as table:
        table.alter_column("ordered_at", existing_type=sa.DateTime(timezone=True), nullable=False)


def _create_judging() -> None:
    op.create_table(
        "verdict",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("current", sa.Boolean(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("because", sa.String(length=300), nullable=False),
        sa.Column("decision", sa.String(length=20), nullable=False),
        sa.Column("delta_pct", sa.Float(), nullable=True),
        sa.Column("ci_low_pct", sa.Float(), nullable=True),
        sa.Column("ci_high_pct", sa.Float(), nullable=True),
        sa.Column("baseline_kind", sa.String(length=20), nullable=False),
        sa.Column("comparison", sa.String(length=20), nullable=False),
        sa.Column("attributed_to", sa.String(length=100), nullable=False),
        sa.Column("from_value", sa.String(length=500), nullable=False),
        sa.Column("to_value", sa.String(length=500), nullable=False),
        sa.Column("definition_version", sa.Integer(), nullable=False),
        sa.Column("verdict_version", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_verdict_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdict")),
    )
    op.create_index("ix_verdict_attributed", "verdict", ["attributed_to", "comparison"])
    op.create_index("ix_verdict_run_current", "verdict", ["run_id", "current"])

    op.create_table(
        "pin",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("pinned_by", sa.String(length=100), nullable=False),
        sa.Column("pinned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("note", sa.String(length=1000), nullable=False),
        sa.Column("unpinned_by", sa.String(length=100), nullable=False),
        sa.Column("unpinned_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_pin_project_id_project")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_pin_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pin")),
    )
    op.create_index("ix_pin_run_id", "pin", ["run_id"])
    op.create_index("ix_pin_stack", "pin", ["project_id", "stack_key"])

    op.create_table(
        "stack_work",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(length=64), nullable=False),
        sa.Column("work", sa.String(length=10), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("claims", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("judge_from", sa.DateTime(timezone=True), nullable=True),
        sa.Column("because", sa.String(length=300), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_stack_work_project_id_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stack_work")),
        sa.UniqueConstraint("project_id", "stack_key", name=op.f("uq_stack_work_project_id_stack_key")),
    )
    op.create_index("ix_stack_work_work_lease", "stack_work", ["work", "lease_until"])


def _create_regressions() -> None:
    op.create_table(
        "regression",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("cause_key", sa.String(length=200), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("metric", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("assignee", sa.String(length=100), nullable=False),
        sa.Column("note", sa.String(length=2000), nullable=False),
        sa.Column("external_url", sa.String(length=2000), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("proposal", sa.String(length=20), nullable=False),
        sa.Column("proposal_run_id", sa.Integer(), nullable=True),
        sa.Column("worst_delta_pct", sa.Float(), nullable=True),
        sa.Column("gpu_hours_per_day", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_regression_project_id_project")),
        sa.ForeignKeyConstraint(
            ["proposal_run_id"], ["run.id"], name=op.f("fk_regression_proposal_run_id_run"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_regression")),
    )
    op.create_index("ix_regression_cause", "regression", ["project_id", "cause_key"])
    op.create_index("ix_regression_project_state", "regression", ["project_id", "state"])

    op.create_table(
        "regression_member",
        sa.Column("regression_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(length=64), nullable=False),
        sa.Column("config_key", sa.String(length=64), nullable=False),
        sa.Column("usual_level", sa.Float(), nullable=True),
        sa.Column("slow_level", sa.Float(), nullable=True),
        sa.Column("delta_pct", sa.Float(), nullable=True),
        sa.Column("gpu_hours_per_day", sa.Float(), nullable=True),
        sa.Column("proposal", sa.String(length=20), nullable=False),
        sa.Column("joined_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["regression_id"],
            ["regression.id"],
            name=op.f("fk_regression_member_regression_id_regression"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_regression_member_run_id_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("regression_id", "run_id", name=op.f("pk_regression_member")),
    )
    op.create_index("ix_regression_member_run_id", "regression_member", ["run_id"])
    op.create_index("ix_regression_member_stack", "regression_member", ["stack_key", "config_key"])

    op.create_table(
        "audit_event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("who", sa.String(length=100), nullable=False),
        sa.Column("subject", sa.String(length=20), nullable=False),
        sa.Column("subject_id", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_audit_event_project_id_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_event")),
    )
    op.create_index("ix_audit_event_subject", "audit_event", ["subject", "subject_id"])


def downgrade() -> None:
    for name in ("audit_event", "regression_member", "regression", "stack_work", "pin", "verdict"):
        op.drop_table(name)
    op.drop_index("ix_run_family_ordered", "run")
    op.drop_index("ix_run_stack_ordered", "run")
    with op.batch_alter_table("run") as table:
        for column in _run_columns():
            table.drop_column(column.name)
        table.drop_column("ordered_at")
    op.create_index("ix_run_stack_key", "run", ["stack_key"])
    with op.batch_alter_table("project") as table:
        for column in _project_columns():
            table.drop_column(column.name)


def _add_columns(table_name: str, columns: tuple[sa.Column[object], ...]) -> None:
    """Add columns with a value for existing rows; new rows must state one."""
    for column in columns:
        op.add_column(table_name, column)
    with op.batch_alter_table(table_name) as table:
        for column in columns:
            if column.server_default is not None:
                table.alter_column(column.name, existing_type=column.type, existing_nullable=False, server_default=None)
