"""Create the tables of projects, runs with claims and results, uploaded files, and series."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "project",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("slug", sa.String(length=100), nullable=False),
        sa.Column("generated", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
        sa.UniqueConstraint("slug", name=op.f("uq_project_slug")),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("branch", sa.String(length=300), nullable=False),
        sa.Column("commit", sa.String(length=100), nullable=False),
        sa.Column("ci_url", sa.String(length=2000), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("content_key", sa.String(length=64), nullable=False),
        sa.Column("metadata_stated", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("processed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("warnings", sa.JSON(), nullable=False),
        sa.Column("trainer", sa.String(length=50), nullable=False),
        sa.Column("contract", sa.JSON(), nullable=False),
        sa.Column("unknown", sa.JSON(), nullable=False),
        sa.Column("stack_key", sa.String(length=64), nullable=False),
        sa.Column("config_key", sa.String(length=64), nullable=False),
        sa.Column("provisional", sa.Boolean(), nullable=False),
        sa.Column("steady_state", sa.JSON(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("health", sa.JSON(), nullable=False),
        sa.Column("evidence_level", sa.String(length=20), nullable=False),
        sa.Column("semantic_class", sa.String(length=30), nullable=False),
        sa.Column("definition_version", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("gpu", sa.String(length=100), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.Column("dispatcher", sa.String(length=30), nullable=True),
        sa.Column("step_time_ms", sa.Float(), nullable=True),
        sa.Column("tokens_per_s_per_gpu", sa.Float(), nullable=True),
        sa.Column("tflops_per_gpu", sa.Float(), nullable=True),
        sa.Column("mfu_pct", sa.Float(), nullable=True),
        sa.Column("peak_memory_gib", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_run_project_id_project")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("project_id", "content_key", name=op.f("uq_run_project_id_content_key")),
        sa.UniqueConstraint("project_id", "idempotency_key", name=op.f("uq_run_project_id_idempotency_key")),
    )
    op.create_index("ix_run_config_key", "run", ["config_key"])
    op.create_index("ix_run_dispatcher", "run", ["dispatcher"])
    op.create_index("ix_run_gpu", "run", ["gpu"])
    op.create_index("ix_run_model", "run", ["model"])
    op.create_index("ix_run_project_created", "run", ["project_id", "created_at"])
    op.create_index("ix_run_stack_key", "run", ["stack_key"])
    op.create_index("ix_run_status_lease", "run", ["status", "lease_until"])

    op.create_table(
        "run_file",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("object_key", sa.String(length=300), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_file_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run_file")),
    )
    op.create_index("ix_run_file_run_id", "run_file", ["run_id"])

    op.create_table(
        "series",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("metric", sa.String(length=100), nullable=False),
        sa.Column("unit", sa.String(length=30), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_series_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "metric", name=op.f("pk_series")),
    )


def downgrade() -> None:
    op.drop_table("series")

    op.drop_table("run_file")

    op.drop_table("run")
    op.drop_table("project")
