"""Store the decision that lists show of a run, and filter by it: a run without a baseline may be in a regression.

Judging again, which follows, tells such runs from the others.
"""

import sqlalchemy as sa
from alembic import op

from app.storage.upgrade import create_index_online

revision = "0084"
down_revision = "0083"
branch_labels = None
depends_on = None

_AT_ONCE = 5_000
_FIGURES = ("step_time_ms", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib")


def upgrade() -> None:
    for name in ("badge", "badge_label"):
        op.add_column("run", sa.Column(name, sa.String(length=20), nullable=False, server_default=""))
    last = op.get_bind().execute(sa.text("SELECT coalesce(max(id), 0) FROM run")).scalar_one()
    for first in range(1, last + 1, _AT_ONCE):  # a statement on all runs would exceed the time limit on PostgreSQL
        ids = {"first": first, "last": first + _AT_ONCE - 1}
        op.get_bind().execute(sa.text("UPDATE run SET badge = verdict WHERE id BETWEEN :first AND :last"), ids)
    _index("badge")
    op.drop_index("ix_run_verdict", "run")


def downgrade() -> None:
    _index("verdict")
    op.drop_index("ix_run_badge", "run")
    op.drop_column("run", "badge_label")
    op.drop_column("run", "badge")


def _index(badge: str) -> None:
    filtered = ("status", "purpose", "branch", "evidence_level", "outcome", badge, "model", "gpu", "dispatcher")
    filters = ("project_id", "created_at", *filtered)
    for name in (*filtered, *_FIGURES):
        create_index_online(f"ix_run_{name}", "run", list(dict.fromkeys((name, "id", *filters))))
    create_index_online("ix_run_lower_name", "run", [sa.text("lower(name)"), "id", *filters])
