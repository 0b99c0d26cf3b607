"""Add standings of stacks, leadership periods, and the priors of rankings."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_standings()
    op.create_table(
        "leader_change",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(length=64), nullable=False),
        sa.Column("floor", sa.String(length=20), nullable=False),
        sa.Column("routing_mode", sa.String(length=50), nullable=False),
        sa.Column("semantic_class", sa.String(length=30), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_leader_change_project_id_project")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_leader_change_run_id_run"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leader_change")),
    )
    op.create_index("ix_leader_change_at", "leader_change", ["at"])
    op.create_index("ix_leader_change_run_id", "leader_change", ["run_id"])
    op.create_index("ix_leader_change_stack", "leader_change", ["project_id", "stack_key"])

    op.create_table(
        "ranking_prior",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("gpu", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("priors", sa.JSON(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_ranking_prior_project_id_project")),
        sa.PrimaryKeyConstraint("project_id", "gpu", name=op.f("pk_ranking_prior")),
    )
    # Every stack is requested once: no run is judged again, but its standings are computed.
    op.execute(
        "UPDATE stack_work SET work = 'waiting', wanted = wanted + 1, attempts = 0, lease_until = NULL WHERE work = ''"
    )


def _create_standings() -> None:
    op.create_table(
        "standing",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(length=64), nullable=False),
        sa.Column("hardware", sa.String(length=100), nullable=False),
        sa.Column("hardware_slug", sa.String(length=60), nullable=False),
        sa.Column("family", sa.String(length=230), nullable=False),
        sa.Column("family_slug", sa.String(length=60), nullable=False),
        sa.Column("precision", sa.String(length=50), nullable=False),
        sa.Column("title", sa.String(length=1000), nullable=False),
        sa.Column("container", sa.String(length=500), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.Column("about", sa.JSON(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("newest_run_id", sa.Integer(), nullable=False),
        sa.Column("newest_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ranking_version", sa.Integer(), nullable=False),
        sa.Column("gpu", sa.String(length=100), nullable=False),
        sa.Column("prior_version", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_standing_project_id_project")),
        sa.PrimaryKeyConstraint("project_id", "stack_key", name=op.f("pk_standing")),
    )
    op.create_index("ix_standing_hardware_family", "standing", ["hardware_slug", "family_slug"])
    op.create_index("ix_standing_ranking_version", "standing", ["ranking_version"])

    op.create_table(
        "standing_board",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(length=64), nullable=False),
        sa.Column("floor", sa.String(length=20), nullable=False),
        sa.Column("routing_mode", sa.String(length=50), nullable=False),
        sa.Column("semantic_class", sa.String(length=30), nullable=False),
        sa.Column("reading", sa.String(length=20), nullable=False),
        sa.Column("is_ranking", sa.Boolean(), nullable=False),
        sa.Column("results", sa.JSON(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "stack_key"],
            ["standing.project_id", "standing.stack_key"],
            name=op.f("fk_standing_board_project_id_standing"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "project_id", "stack_key", "floor", "routing_mode", "semantic_class", name=op.f("pk_standing_board")
        ),
    )


def downgrade() -> None:
    for name in ("ranking_prior", "leader_change", "standing_board", "standing"):
        op.drop_table(name)
