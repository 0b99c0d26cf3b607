"""Add the columns of all filters to the indexes of the list of runs, so that an index alone answers a combination.

Add the number to the index of configurations, so that their newest run is read in its order.
"""

import sqlalchemy as sa
from alembic import op

from app.storage.upgrade import create_index_online

revision = "0083"
down_revision = "0082"
branch_labels = None
depends_on = None

_FILTERED = ("status", "purpose", "branch", "evidence_level", "outcome", "verdict", "model", "gpu", "dispatcher")
_FIGURES = ("step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib")
_FILTERS = ("project_id", "created_at", *_FILTERED)
_TOGETHER = ("project_id", "model", "gpu", "dispatcher", "verdict", "outcome", "status", "purpose", "branch")


def upgrade() -> None:
    for name in (*_FILTERED, *_FIGURES):
        create_index_online(f"ix_run_{name}", "run", list(dict.fromkeys((name, "id", *_FILTERS))))
    create_index_online(
        "ix_run_stack_config", "run", ["stack_key", "config_key", "ordered_at", "id", "status", "reception"]
    )
    create_index_online("ix_run_lower_name", "run", [sa.text("lower(name)"), "id", *_FILTERS])


def downgrade() -> None:
    op.drop_index("ix_run_stack_config", "run")
    op.create_index("ix_run_stack_config", "run", ["stack_key", "config_key", "ordered_at", "status", "reception"])
    op.drop_index("ix_run_lower_name", "run")
    op.create_index("ix_run_lower_name", "run", [sa.text("lower(name)"), "id"])
    for name in (*_FILTERED, *_FIGURES):
        together = _TOGETHER if name in ("model", "gpu", "dispatcher", "verdict", "outcome", "status") else ()
        op.drop_index(f"ix_run_{name}", "run")
        op.create_index(f"ix_run_{name}", "run", list(dict.fromkeys((name, "id", *together))))
