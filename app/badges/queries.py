"""What the badges of a stack say: its newest verdict, and the newest step time that counts."""

from typing import Any

from sqlalchemy import ColumnElement, and_, select
from sqlmodel import Session, col

from app.domain.badges.key import opens
from app.domain.badges.picture import Badge
from app.domain.changes import signed
from app.domain.numbers import step_time
from app.domain.verdict_words import decision_word
from app.storage.tables import ProjectRow, RunRow

ANY_BRANCH = "*"
_MOVED = ("regression", "improvement")


def project_of_key(session: Session, stack_key: str, key: str) -> int | None:
    """The project whose badges of this stack the key opens. It is asked for before anything is known of the caller."""
    secrets = (
        select(ProjectRow.id, ProjectRow.badge_secret)  # type: ignore[call-overload]
        .join(RunRow, col(RunRow.project_id) == ProjectRow.id)
        .where(col(RunRow.stack_key) == stack_key)
        .distinct()
    )
    return next((row.id for row in session.execute(secrets) if opens(key, row.badge_secret, stack_key)), None)


def verdict_badge(session: Session, stack_key: str) -> Badge | None:
    """None when there is no such stack for the caller."""
    row = _newest(session, stack_key, col(RunRow.verdict) != "")
    if row is None:
        return Badge("threewalls", "not judged") if _exists(session, stack_key) else None
    moved = row.verdict in _MOVED and row.verdict_delta_pct is not None
    change = f" {signed(row.verdict_delta_pct)}" if moved else ""
    return Badge("threewalls", decision_word(row.verdict) + change, row.verdict)


def step_time_badge(session: Session, stack_key: str) -> Badge | None:
    """None when there is no such stack for the caller."""
    counts = and_(col(RunRow.step_time_ms).is_not(None), col(RunRow.is_steady).is_(True), col(RunRow.short).is_(False))
    row = _newest(session, stack_key, counts)
    if row is None:
        return Badge("step time", "unknown") if _exists(session, stack_key) else None
    return Badge("step time", step_time(row.step_time_ms))


def _newest(session: Session, stack_key: str, condition: ColumnElement[bool]) -> Any:
    """The newest run of the baseline branch's jobs that nobody left out; of any other but an experiment, if none."""
    own = (col(ProjectRow.baseline_branch) == ANY_BRANCH) | (col(RunRow.branch) == col(ProjectRow.baseline_branch))
    found = (
        select(RunRow.verdict, RunRow.verdict_delta_pct, RunRow.step_time_ms)  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.stack_key) == stack_key, col(RunRow.quarantine) == "", condition)
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(1)
    )
    of_branch = session.execute(found.where(col(RunRow.purpose) == "ci", own)).one_or_none()
    return of_branch or session.execute(found.where(col(RunRow.purpose) != "experiment")).one_or_none()


def _exists(session: Session, stack_key: str) -> bool:
    return session.execute(select(RunRow.id).where(col(RunRow.stack_key) == stack_key).limit(1)).first() is not None  # type: ignore[call-overload]
