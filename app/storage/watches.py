"""The stacks and regressions that users watch, and their changes."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import and_, delete, func, or_, select, update
from sqlmodel import Session, col

from app.domain.access.secrets import digest
from app.domain.text import short_cause
from app.domain.verdict.regression import Regression
from app.errors import InvalidChange
from app.storage import audit
from app.storage.audit import AuditEvent, to_event
from app.storage.regressions import add_evidence, joined_regressions, regressions_of_rows
from app.storage.runs import ENDED_BADLY
from app.storage.stacks import names_of_stacks
from app.storage.suspect_evidence import cause_of
from app.storage.tables import (
    AuditEventRow,
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunRow,
    StackRow,
    UserRow,
    WatchRow,
    select_any,
)

Kind = Literal["stack", "regression"]

NO_USER = 0
"""`user_id` of watches on a service without log-ins."""
MAX_WATCHES = 100
_MAX_REGRESSIONS = 500
_CHANGES = ("regression", "improvement")
"""Verdicts that count as changes of a watched stack."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch of a user. `target`: a stack key or the number of a regression. `title`: its name on pages."""

    kind: Kind
    target: str
    project: str
    title: str
    watched_at: datetime

    @property
    def path(self) -> str:
        return f"/history/{self.target}" if self.kind == "stack" else f"/regressions/{self.target}"


@dataclass(frozen=True, slots=True)
class RunChange:
    """A run of a watched stack that failed, or whose verdict is a change."""

    run_id: int
    name: str
    project: str
    at: datetime
    stack_key: str
    outcome: str
    verdict: str
    delta_pct: float | None


def is_watched(session: Session, user_id: int | None, project_id: int, kind: Kind, target: str) -> bool:
    """Return whether the user watches the target. `user_id`: None for a caller who cannot watch."""
    return user_id is not None and session.get(WatchRow, (user_id, project_id, kind, target)) is not None


def watch(session: Session, user_id: int, project_id: int, kind: Kind, target: str) -> None:
    """Watch a stack or regression; a second call has no effect. Raises InvalidChange at the limit."""
    if is_watched(session, user_id, project_id, kind, target):
        return
    watched = select(func.count()).select_from(WatchRow).where(col(WatchRow.user_id) == user_id)
    if session.execute(watched).scalar_one() >= MAX_WATCHES:
        raise InvalidChange(f"Nothing was saved: at most {MAX_WATCHES} stacks and regressions. Stop watching others.")
    session.add(WatchRow(user_id=user_id, project_id=project_id, kind=kind, target=target))


def stop_watching(session: Session, user_id: int, project_id: int, kind: Kind, target: str) -> None:
    session.execute(
        delete(WatchRow).where(
            col(WatchRow.user_id) == user_id,
            col(WatchRow.project_id) == project_id,
            col(WatchRow.kind) == kind,
            col(WatchRow.target) == target,
        )
    )


def list_watches(session: Session, user_id: int) -> list[Watch]:
    """Return what the user watches in the visible projects, newest first."""
    rows = session.execute(
        select_any(WatchRow, ProjectRow.slug)
        .join(ProjectRow, col(ProjectRow.id) == WatchRow.project_id)
        .where(col(WatchRow.user_id) == user_id)
        .order_by(col(WatchRow.watched_at).desc())
    ).all()
    return [
        Watch(row.kind, row.target, slug, _title(session, row), row.watched_at)
        for row, slug in rows
    ]  # fmt: skip


def _title(session: Session, row: WatchRow) -> str:
    if row.kind == "regression":
        regression = session.execute(select(RegressionRow).where(col(RegressionRow.id) == int(row.target))).scalar()
        cause = f": {short_cause(cause_of(session, regression))}" if regression else ""
        return f"Regression {row.target}{cause}"
    return names_of_stacks(session, [row.target]).get(row.target, row.target[:12])


def offered_regressions(session: Session, most: int) -> tuple[Regression, ...]:
    """Return the regressions that a user without watches may follow: open ones, the costliest first."""
    chosen = joined_regressions(select(RegressionRow, ProjectRow)).where(
        col(RegressionRow.state) == "open", col(RegressionRow.proposal) == ""
    )
    cost = func.coalesce(col(RegressionRow.gpu_hours_per_day), 0.0)
    rows = session.execute(chosen.order_by(cost.desc(), col(RegressionRow.id).desc()).limit(most)).all()
    return tuple(add_evidence(session, item) for item in regressions_of_rows(session, rows))


def offered_stacks(session: Session, most: int) -> list[Watch]:
    """Return the stacks that a user without watches may follow: the newest with several runs."""
    rows = session.execute(
        select_any(StackRow.stack_key, ProjectRow.slug, StackRow.last_at)
        .join(ProjectRow, col(ProjectRow.id) == StackRow.project_id)
        .where(col(StackRow.runs) > 1)
        .order_by(col(StackRow.last_at).desc(), col(StackRow.stack_key))
        .limit(most)
    ).all()
    names = names_of_stacks(session, [row.stack_key for row in rows])
    return [
        Watch("stack", row.stack_key, row.slug, names.get(row.stack_key, row.stack_key[:12]), row.last_at)
        for row in rows
    ]


def events_of(session: Session, watches: Collection[Watch], limit: int) -> list[AuditEvent]:
    """Return the newest audit entries about watched regressions, and about regressions and pins of watched stacks."""
    stacks = [item.target for item in watches if item.kind == "stack"]
    regressions = [item.target for item in watches if item.kind == "regression"]
    members = (
        select(col(RegressionMemberRow.regression_id))
        .where(col(RegressionMemberRow.stack_key).in_(stacks))
        .distinct()
        .order_by(col(RegressionMemberRow.regression_id).desc())
        .limit(_MAX_REGRESSIONS)
    )
    regressions += [str(number) for number in session.execute(members).scalars()]
    event, subject_id = col(AuditEventRow.subject), col(AuditEventRow.subject_id)
    chosen = (
        select(AuditEventRow)
        .where(
            or_(
                and_(event == "regression", subject_id.in_(regressions)),
                and_(event == "stack", subject_id.in_(stacks)),
            )
        )
        .order_by(col(AuditEventRow.id).desc())
        .limit(limit)
    )
    return [to_event(row) for row in session.execute(chosen).scalars()]


def run_changes_of(session: Session, watches: Collection[Watch], limit: int) -> list[RunChange]:
    """Return the newest runs of watched stacks that failed or have a change as verdict; without experiments."""
    stacks = [item.target for item in watches if item.kind == "stack"]
    rows = session.execute(
        select_any(
            RunRow.id, RunRow.name, ProjectRow.slug, RunRow.created_at, RunRow.stack_key, RunRow.outcome,
            RunRow.verdict, RunRow.verdict_delta_pct,
        )
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(
            col(RunRow.stack_key).in_(stacks),
            col(RunRow.quarantine) == "",
            col(RunRow.purpose) != "experiment",
            or_(col(RunRow.outcome).in_(ENDED_BADLY), col(RunRow.verdict).in_(_CHANGES)),
        )
        .order_by(col(RunRow.created_at).desc(), col(RunRow.id).desc())
        .limit(limit)
    )  # fmt: skip
    return [
        RunChange(number, name, slug, at, stack, outcome, verdict, delta)
        for number, name, slug, at, stack, outcome, verdict, delta in rows
    ]


# --- The key of a user's feed.


def set_feed_key(session: Session, user_id: int, key: str, *, by: str) -> None:
    """Replace the key of the user's feed. The old one stops working."""
    session.execute(update(UserRow).where(col(UserRow.id) == user_id).values(feed_digest=digest(key)))
    audit.record(session, who=by, subject="account", subject_id=user_id, action="feed_key_set")


def user_of_feed(session: Session, key: str) -> int | None:
    """Return the id of the user whose feed this key opens."""
    chosen = select_any(UserRow.id).where(col(UserRow.feed_digest) == digest(key))
    number: int | None = session.execute(chosen).scalar_one_or_none()
    return number
