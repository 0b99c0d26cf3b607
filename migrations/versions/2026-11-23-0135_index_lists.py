"""Index the columns by which the list of runs is filtered or sorted, each with the number of the run."""

from alembic import op

from app.storage.upgrade import create_index_online

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_COLUMNS = (
    *("status", "purpose", "branch", "evidence_level", "outcome", "verdict", "model", "gpu", "dispatcher"),
    *("step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib"),
)
_INDEXED_BEFORE = ("model", "gpu", "dispatcher")


def upgrade() -> None:
    create_index_online("ix_run_project", "run", ["project_id", "id"])
    for name in _COLUMNS:
        create_index_online(f"ix_run_{name}", "run", [name, "id"])


def downgrade() -> None:
    for name in _COLUMNS:
        op.drop_index(f"ix_run_{name}", "run")
    op.drop_index("ix_run_project", "run")
    for name in _INDEXED_BEFORE:
        op.create_index(f"ix_run_{name}", "run", [name])
