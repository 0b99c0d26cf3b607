"""Create notifications: one delivery row per subscribed receiver, in the transaction of the event itself.

There is at most one delivery per cause and receiver, so judging a run again does not report it again. Deliveries about
the same topic share a subject and arrive in the order of the events (`work.py`).
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.notifications.events import (
    Notification,
    Subscription,
    event_of_verdict,
    failed_notification,
    is_fresh,
    limit_notification,
    proposal_notification,
    regression_notification,
    rerun_notification,
    upgrade_notification,
    verdict_notification,
)
from app.domain.ranking.rank import head_text
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.policy import Policy, silent_for
from app.domain.verdict.regression_text import summarize
from app.pipeline.work import delivery_queue
from app.storage.regressions import get_regression
from app.storage.run_answer import run_answer
from app.storage.runs import WITH_RESULT, detail
from app.storage.stacks import names_of_stacks
from app.storage.standings import LeaderChange, leader_changes, named_changes
from app.storage.tables import (
    DeliveryRow,
    ProjectRow,
    ReceiverRow,
    RegressionMemberRow,
    RegressionRow,
    RunRow,
    UpgradeChangeRow,
    select_any,
    utc_now,
)
from app.storage.verdicts import rerun_request

MOST_CAUSE = 200


# Built once, because every pass executes it; most projects have no receiver.
_LISTENING: Select[Any] = (
    select(ReceiverRow)
    .where(col(ReceiverRow.project_id) == bindparam("project"), col(ReceiverRow.enabled))
    .order_by(col(ReceiverRow.id))
)


class Notifier:
    """Creates the notifications of one project."""

    def __init__(self, session: Session, project_id: int) -> None:
        self._session = session
        self._receivers: Sequence[ReceiverRow] = session.execute(_LISTENING, {"project": project_id}).scalars().all()
        self._project_id = project_id

    def wanted(self, event: str, stacks: Collection[str]) -> list[ReceiverRow]:
        return [receiver for receiver in self._receivers if Subscription.read(receiver.rules).takes(event, stacks)]

    def verdict(self, run_id: int, stack_key: str, document: VerdictDocument) -> None:
        """Report the verdict of a new run; a new verdict on an older run is not reported."""
        # Without receivers it reads nothing, so that judging thousands of runs again costs nothing here.
        if not self._receivers:
            return
        run = self._session.get_one(RunRow, run_id)
        self._rerun(run, document)
        self._limits(run, document)
        event = event_of_verdict(
            document.decision, raises_regression=document.alarms, purpose=run.purpose,
            quarantined=bool(document.quarantined),
        )  # fmt: skip
        receivers = self.wanted(event, [stack_key]) if event else []
        if not receivers or not is_fresh(run.created_at, utc_now()):
            return
        project = self._session.get_one(ProjectRow, self._project_id)
        answer = run_answer(self._session, detail(run, project, ()), document)
        notification = verdict_notification(
            event, answer.document, badge=answer.word, lead=answer.whole_lead,
            needs_confirmation=answer.needs_confirmation, project=project.slug, run_id=run_id, name=run.name,
            stack=(stack_key, self._name(run.stack_key)), branch=run.branch, commit=run.commit, at=utc_now(),
        )  # fmt: skip
        if event == "run.failed":
            self._put(receivers, notification, _failure(run), f"run:{run_id}")
        else:  # reruns of a commit are judged together: one message for all of them
            subject = f"run:{document.candidates[0]}"
            self._put(receivers, notification, f"{subject}:{event}", subject)

    def _rerun(self, run: RunRow, document: VerdictDocument) -> None:
        request = rerun_request(self._session, run.id or 0, document)
        if request is None or request.requested_by != run.id:
            return
        receivers = self.wanted("rerun.requested", [run.stack_key])
        if not receivers or not is_fresh(run.created_at, utc_now()):
            return
        notification = rerun_notification(
            request, project=self._slug(), run_id=run.id or 0, name=run.name,
            stack=(run.stack_key, self._name(run.stack_key)), at=utc_now(),
        )  # fmt: skip
        self._put(receivers, notification, f"run:{run.id}:rerun.requested", f"run:{run.id}")

    def _limits(self, run: RunRow, document: VerdictDocument) -> None:
        receivers = self.wanted("limit.broken", [run.stack_key]) if document.breaches else []
        if not receivers or document.quarantined or not is_fresh(run.created_at, utc_now()):
            return
        notification = limit_notification(
            [breach.text() for breach in document.breaches], project=self._slug(), name=run.name,
            path=f"/runs/{run.id}", stack=(run.stack_key, self._name(run.stack_key)), at=utc_now(),
        )  # fmt: skip
        self._put(receivers, notification, f"run:{run.id}:limit.broken", f"run:{run.id}")

    def silent(self, run: RunRow, hours: float) -> None:
        """Report once that a stack has had no run for more than `hours`. `run`: its newest run."""
        if receivers := self.wanted("limit.broken", [run.stack_key]):
            name = self._name(run.stack_key)
            notification = limit_notification(
                [f"No run for more than {hours:g} hours; the newest is run {run.id}."], project=self._slug(),
                name=name, path=f"/history/{run.stack_key}", stack=(run.stack_key, name), at=utc_now(),
            )  # fmt: skip
            self._put(receivers, notification, f"silent:{run.id}", f"stack:{run.stack_key[:40]}")

    def regression(self, row: RegressionRow, event: str, cause: str, note: str = "") -> None:
        """Report a change of a regression. `cause` distinguishes events that can recur; empty for others."""
        if not self._receivers:
            return
        members = select_any(RegressionMemberRow.stack_key).where(col(RegressionMemberRow.regression_id) == row.id)
        oldest_first = members.order_by(col(RegressionMemberRow.run_id))
        keys = tuple(dict.fromkeys(self._session.execute(oldest_first).scalars()))
        if receivers := self.wanted(event, keys):
            stacks = [(key, self._name(key)) for key in keys]
            regression = get_regression(self._session, row.id or 0)
            notification = regression_notification(
                event, project=regression.project, number=regression.id, metric=regression.metric,
                cause=regression.cause, summary=summarize(regression), stacks=stacks, note=note, at=utc_now(),
            )  # fmt: skip
            subject = f"regression:{row.id}"
            self._put(receivers, notification, f"{subject}:{event}{':' if cause else ''}{cause}", subject)

    def upgrade(self, row: UpgradeChangeRow) -> None:
        """Report a stack that an upgrade made faster."""
        run = self._session.get_one(RunRow, row.run_id)
        receivers = self.wanted("upgrade.improvement", [row.stack_key])
        if not receivers or not is_fresh(run.created_at, utc_now()):
            return
        notification = upgrade_notification(
            project=self._slug(), run_id=row.run_id, stack=(row.stack_key, self._name(run.stack_key)), field=row.field,
            values=(row.from_value, row.to_value), change=(row.delta_pct, row.ci_low_pct, row.ci_high_pct),
            runs=(row.runs, row.from_runs), at=utc_now(),
        )  # fmt: skip
        self._put(receivers, notification, f"upgrade:{row.run_id}", f"upgrade:{row.run_id}")

    def proposal(self, run: RunRow, number: int, who: str, note: str) -> None:
        """Report that a run was proposed as golden run. `number`: of the proposal."""
        if receivers := self.wanted("golden.proposed", [run.stack_key]):
            notification = proposal_notification(
                project=self._slug(), run_id=run.id or 0, name=run.name,
                stack=(run.stack_key, self._name(run.stack_key)), commit=run.commit, who=who, note=note, at=utc_now(),
            )  # fmt: skip
            self._put(receivers, notification, f"golden_proposal:{number}", f"run:{run.id}")

    def failed(self, run_id: int) -> None:
        """Report a run that could not be read."""
        run = self._session.get_one(RunRow, run_id, populate_existing=True)
        receivers = self.wanted("run.failed", [run.stack_key] if run.stack_key else [])
        if run.status != "failed" or not receivers or not is_fresh(run.created_at, utc_now()):
            return
        notification = failed_notification(
            project=self._slug(), run_id=run_id, name=run.name, error=run.error or "",
            stack=(run.stack_key, self._name(run.stack_key) if run.result.contract else ""),
            branch=run.branch, commit=run.commit, at=utc_now(),
        )  # fmt: skip
        self._put(receivers, notification, _failure(run), f"run:{run_id}")

    def _slug(self) -> str:
        return self._session.get_one(ProjectRow, self._project_id).slug

    def _name(self, stack_key: str) -> str:
        return names_of_stacks(self._session, [stack_key]).get(stack_key, stack_key[:12])

    def _put(self, receivers: Sequence[ReceiverRow], notification: Notification, cause: str, subject: str) -> None:
        ids = [receiver.id or 0 for receiver in receivers]
        same = col(DeliveryRow.cause) == cause[:MOST_CAUSE]
        if notification.event == "run.failed":  # when read again, a run may fail in another way
            same = or_(same, and_(col(DeliveryRow.subject) == subject, col(DeliveryRow.event) == notification.event))
        notified = set(
            self._session.execute(
                select_any(DeliveryRow.receiver_id).where(col(DeliveryRow.receiver_id).in_(ids), same)
            ).scalars()
        )
        for receiver in ids:
            if receiver not in notified:
                put_delivery(self._session, receiver, notification, cause, subject=subject)


def put_delivery(
    session: Session,
    receiver_id: int,
    notification: Notification,
    cause: str,
    *,
    subject: str = "",
    replay_of: int | None = None,
) -> int | None:
    """Create a delivery and return its id; None if the receiver already has one of this cause."""
    row = DeliveryRow(
        receiver_id=receiver_id, event=notification.event, cause=cause[:MOST_CAUSE], subject=subject,
        payload=notification.as_json(), replay_of=replay_of,
    )  # fmt: skip
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:  # another worker created it concurrently
        return None
    if subject:  # otherwise it could wait for hours behind an older delivery, although the receiver is back
        delivery_queue.make_due(session, receiver_id, subject)
    return row.id


def notify_verdicts(
    session: Session, project_id: int, stack_key: str, judged: Iterable[tuple[int, VerdictDocument]]
) -> None:
    notifier = Notifier(session, project_id)
    for run_id, document in judged:
        notifier.verdict(run_id, stack_key, document)


def notify_regression(session: Session, row: RegressionRow, event: str, cause: str, note: str) -> None:
    Notifier(session, row.project_id).regression(row, event, cause, note)


def notify_upgrade(session: Session, row: UpgradeChangeRow) -> None:
    Notifier(session, row.project_id).upgrade(row)


def notify_proposal(session: Session, run: RunRow, number: int, who: str, note: str) -> None:
    Notifier(session, run.project_id).proposal(run, number, who, note)


def notify_silent_stacks(session: Session, now: datetime) -> int:
    """Report stacks without a run for longer than their project allows. Return the number of silent stacks.

    A stack without a run for ten times as long has ended and is not reported.
    """
    silent = 0
    for project in session.execute(select(ProjectRow)).scalars():
        policy = Policy.read(project.verdict_policy)
        if not policy.has_fixed:
            continue
        newest = select(func.max(col(RunRow.id))).where(
            col(RunRow.project_id) == project.id, col(RunRow.purpose) == "ci", col(RunRow.stack_key) != ""
        )
        ids = list(session.execute(newest.group_by(col(RunRow.stack_key))).scalars())
        runs = session.execute(select(RunRow).where(col(RunRow.id).in_(ids)).options(WITH_RESULT)).scalars()
        notifier = Notifier(session, project.id or 0)
        for run in runs:
            hours = silent_for(policy.of_stack(run.stack_key).fixed)
            waited = (now - run.created_at).total_seconds() / 3600
            if hours is not None and hours < waited < _ENDED_AFTER * hours:
                silent += 1
                notifier.silent(run, hours)
    return silent


_ENDED_AFTER = 10


def notify_failed(session: Session, run_id: int) -> None:
    run = session.execute(select_any(RunRow.project_id).where(col(RunRow.id) == run_id)).scalar_one()
    Notifier(session, run).failed(run_id)


def _failure(run: RunRow) -> str:
    """Return the cause of a failure notification: commit, configuration and kind of failure.

    A job that is retried and fails in the same way is therefore reported once. A run without a commit is always
    reported.
    """
    if not run.commit:
        return f"run:{run.id}:run.failed"
    kinds = [str(failure.get("kind", "")) for failure in run.result.failures]
    # Without a kind, use the text without numbers, because line numbers and times differ each time.
    what = (kinds and kinds[0]) or run.outcome or re.sub(r"\d+", "#", run.error or "")
    parts = "\0".join((run.commit, run.config_key or run.stack_key, what))
    return f"failure:{hashlib.sha256(parts.encode()).hexdigest()}"


# --- Changes of leaders for the overview: one line per board, dated by history positions.

_MOST_READ = 100
"""Maximum changes that are read."""


@dataclass(frozen=True, slots=True)
class LeaderUpdate:
    """The changes of one board as one entry. `first`, `newest`: the oldest and the latest of them."""

    newest: LeaderChange
    first: LeaderChange
    changes: int

    @property
    def at(self) -> datetime:
        return self.newest.happened_at

    @property
    def leader(self) -> str:
        """Return a description of the current leader."""
        return head_text(self.newest.change.after)

    @property
    def is_first(self) -> bool:
        """Return whether the board had no leader before."""
        return self.first.change.before is None

    @property
    def is_back(self) -> bool:
        """Return whether the current leader led before these changes."""
        return self.first.change.before == self.newest.change.after


def leader_updates(
    session: Session, *, project: str = "", noticed_since: datetime | None = None, most: int = 10
) -> tuple[LeaderUpdate, ...]:
    """Return the boards whose leader changed, latest change first."""
    read = leader_changes(session, project=project, since=noticed_since, newest=_MOST_READ, is_named=False)
    updates = sorted(_folded(read), key=lambda update: update.at, reverse=True)[:most]
    named = named_changes(session, [update.newest for update in updates])
    return tuple(replace(update, newest=newest) for update, newest in zip(updates, named, strict=True))


def _folded(changes: Iterable[LeaderChange]) -> Iterable[LeaderUpdate]:
    """Yield one entry per board from changes (newest first), without those that no run caused."""
    boards: dict[tuple[str, str, str], list[LeaderChange]] = {}
    for change in changes:
        head = change.change.after
        if not head.by_runs:
            continue
        boards.setdefault((change.stack_key, head.routing_mode, head.semantic_class), []).append(change)
    return (LeaderUpdate(own[0], own[-1], len(own)) for own in boards.values())
