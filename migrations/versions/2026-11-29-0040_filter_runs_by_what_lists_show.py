"""Store the decision that lists show of a run, and filter by it: a run without a baseline may be in a regression."""

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
    op.add_column("run", sa.Column("badge", sa.String(length=20), nullable=False, server_default=""))
    last = op.get_bind().execute(sa.text("SELECT coalesce(max(id), 0) FROM run")).scalar_one()
    for first in range(1, last + 1, _AT_ONCE):  # a statement on all runs would exceed the time limit on PostgreSQL
        ids = {"first": first, "last": first + _AT_ONCE - 1}
        op.get_bind().execute(sa.text("UPDATE run SET badge = verdict WHERE id BETWEEN :first AND :last"), ids)
    _judge_contrasts()
    _index("badge")
    op.drop_index("ix_run_verdict", "run")


def downgrade() -> None:
    _index("verdict")
    op.drop_index("ix_run_badge", "run")
    op.drop_column("run", "badge")


def _index(badge: str) -> None:
    filtered = ("status", "purpose", "branch", "evidence_level", "outcome", badge, "model", "gpu", "dispatcher")
    filters = ("project_id", "created_at", *filtered)
    for name in (*filtered, *_FIGURES):
        create_index_online(f"ix_run_{name}", "run", list(dict.fromkeys((name, "id", *filters))))
    create_index_online("ix_run_lower_name", "run", [sa.text("lower(name)"), "id", *filters])


def _judge_contrasts() -> None:
    """Mark the runs without a baseline that are slower than those before their upgrade, or may be."""
    verdict = sa.table("verdict", *map(sa.column, ("run_id", "decision", "current", "delta_pct")))
    document = sa.column("document", sa.JSON)
    alarm = sa.table("run_alarm", sa.column("run_id"), sa.column("metric"))
    in_regression = sa.exists().where(alarm.c.run_id == verdict.c.run_id, alarm.c.metric == "step_time_ms")
    measured = document["contrast"]["measured"]
    judged = (
        sa.select(verdict.c.run_id, verdict.c.delta_pct, measured.label("measured"), in_regression.label("alarm"))
        .select_from(verdict)
        .where(verdict.c.current.is_(sa.true()), verdict.c.decision == "no_baseline")
        .where(measured["step_time"]["decision"].as_string().in_(("regression", "inconclusive")) | in_regression)
    )
    badges = []
    for row in op.get_bind().execute(judged):
        time = (row.measured or {}).get("step_time") or {}
        is_slower = row.alarm and (row.delta_pct or 0) > 0
        alone = len((row.measured or {}).get("candidates_used") or ()) == 1
        unconfirmed = time.get("decision") == "regression" and time.get("not_steady") and alone
        if is_slower or unconfirmed:
            badges.append({"of_run": row.run_id, "shown": "regression"})
        elif time.get("decision") == "inconclusive":
            badges.append({"of_run": row.run_id, "shown": "inconclusive"})
    if badges:
        op.get_bind().execute(sa.text("UPDATE run SET badge = :shown WHERE id = :of_run"), badges)
