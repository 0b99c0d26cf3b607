"""Add the tables that triggers derive from `run`, and indexes that pages over many runs read instead of rows.

The triggers, the derived rows and the search index are created after the migrations, in batches of runs
(`app/storage/derived.py`), because later migrations that copy `run` on SQLite drop its triggers.
"""

import sqlalchemy as sa
from alembic import op
from sqlmodel.sql.sqltypes import UTCDateTime

from app.storage.upgrade import create_index_online

revision = "0030"
down_revision = "0034"
branch_labels = None
depends_on = None

_USABLE = "purpose = 'ci' AND status = 'ready' AND is_steady AND NOT short AND fair_for_timing AND quarantine = ''"
_FILTERS = ("model", "gpu", "dispatcher", "verdict", "outcome", "status")
_TOGETHER = ("project_id", "model", "gpu", "dispatcher", "verdict", "outcome", "status", "purpose", "branch")


def upgrade() -> None:
    create_index_online("ix_run_created", "run", ["created_at", "id", "project_id", "branch", "status", "outcome"])
    for name in _FILTERS:
        create_index_online(f"ix_run_{name}", "run", [name, "id", *(other for other in _TOGETHER if other != name)])
    columns = ["definition_version", "recompute_failed", "status", "work", "processed_at"]
    create_index_online("ix_run_definition_version", "run", columns)
    columns = ["container", "dispatcher", "project_id", "available", "run_id"]
    create_index_online("ix_dispatcher_availability_counts", "dispatcher_availability", columns)
    create_index_online("ix_run_lower_name", "run", [sa.text("lower(name)"), "id"])
    where = sa.text(_USABLE)
    columns = ["project_id", "config_key", "ordered_at", "id"]
    create_index_online("ix_run_usable", "run", columns, sqlite_where=where, postgresql_where=where)
    op.create_table(
        "run_value",
        sa.Column("field", sa.String(20), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("value", sa.String(300), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_run_value_project_id_project")),
        sa.PrimaryKeyConstraint("field", "project_id", "value", name=op.f("pk_run_value")),
    )
    op.create_table(
        "stack",
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("stack_key", sa.String(64), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("last_at", UTCDateTime(), nullable=False),
        sa.Column("verdict", sa.String(20), nullable=False),
        sa.Column("dispatchers", sa.Text(), nullable=False),
        sa.Column("model", sa.String(200), nullable=True),
        sa.Column("gpu", sa.String(100), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_stack_project_id_project")),
        sa.PrimaryKeyConstraint("project_id", "stack_key", name=op.f("pk_stack")),
    )
    op.create_index("ix_stack_last", "stack", ["last_at", "stack_key"])
    op.create_index("ix_stack_key", "stack", ["stack_key"])
    op.create_index("ix_stack_hardware", "stack", ["project_id", "model", "gpu", "gpus", "last_at"])


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for name in ("insert", "search", "value", "stack"):
            op.execute(f"DROP TRIGGER IF EXISTS run_derived_{name}")
        op.execute("DROP TABLE IF EXISTS run_search")
    else:
        op.execute("DROP TRIGGER IF EXISTS run_derived_insert ON run")
        op.execute("DROP TRIGGER IF EXISTS run_derived_update ON run")
        op.execute("DROP FUNCTION IF EXISTS run_derived()")
        op.execute("DROP INDEX IF EXISTS run_search")
    op.drop_index("ix_run_usable", "run")
    op.drop_index("ix_run_lower_name", "run")
    op.drop_index("ix_dispatcher_availability_counts", "dispatcher_availability")
    op.drop_index("ix_run_definition_version", "run")
    op.create_index("ix_run_definition_version", "run", ["definition_version"])
    for name in _FILTERS:
        op.drop_index(f"ix_run_{name}", "run")
        op.create_index(f"ix_run_{name}", "run", [name, "id"])
    op.drop_index("ix_run_created", "run")
    op.drop_table("stack")
    op.drop_table("run_value")
