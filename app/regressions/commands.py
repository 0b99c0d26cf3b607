"""Triage regressions: state, assignee, note, link, and answers to proposals. Each change is audited.

A change states the version that it is based on (`changed_at`), so that it cannot overwrite a concurrent change. Several
regressions are changed together or not at all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal
from urllib.parse import urlsplit

import structlog
from sqlalchemy import Engine, func, select, update
from sqlmodel import Session, col

from app.domain.text import one_line
from app.domain.verdict.triage import ACTIVE, NEEDS_NOTE, STATES, refused_because
from app.errors import EditConflict, FieldError, InvalidChange, NotFound
from app.pipeline import decisions
from app.pipeline.notify import notify_regression
from app.pipeline.work import delivery_queue, stack_queue
from app.queue import JUDGE_STACK, enqueue
from app.storage import audit
from app.storage.audit import AuditEvent
from app.storage.database import transaction
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow, select_any, utc_now

log = structlog.get_logger(__name__)

MAX_NAME = 100
MAX_NOTE = 2000
MAX_URL = 2000
MAX_AT_ONCE = 200

Answer = Literal["accept", "decline"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A regression to change, with `changed_at` as read; None skips the check."""

    id: int
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RegressionChange:
    """The requested changes. None leaves a field unchanged.

    `note`: is added to the discussion; the list shows the newest note. `answer`: to the service's proposal.
    `quarantine`: also quarantine the slow runs, with the note as reason; only with the state `invalid`.
    """

    author: str
    state: str | None = None
    assignee: str | None = None
    note: str = ""
    external_url: str | None = None
    answer: Answer | None = None
    quarantine: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.note and (self.state, self.assignee, self.external_url, self.answer) == (None,) * 4


def change_regressions(engine: Engine, seen: Sequence[Seen], change: RegressionChange) -> tuple[int, ...]:
    """Change all regressions in `seen`. Return the ids of the audit entries, one per regression that changed.

    Raises NotFound, InvalidChange naming fields, and EditConflict naming the other user and the change.
    """
    change = _trimmed(change)
    if errors := tuple(_errors(change)):
        raise InvalidChange("Nothing was changed.", errors)
    if not 0 < len(seen) <= MAX_AT_ONCE:
        error = FieldError("regressions", f"must name 1 to {MAX_AT_ONCE} regressions")
        raise InvalidChange("Nothing was changed.", (error,))
    with transaction(engine, durable=True) as session:
        # Locks stacks and runs before regressions, as judging does, to avoid deadlocks. An error rolls everything back.
        ids = [regression.id for regression in seen]
        work = {
            *_request_judging(session, ids if change.state == "invalid" else []),
            *_quarantined(session, seen, change),
        }
        rows = _locked(session, seen)
        _check_unchanged(session, rows, seen)
        if errors := tuple(_refused_rows(rows, seen, change)):
            raise InvalidChange("Nothing was changed.", errors)
        changed = tuple(event for row in rows if (event := _apply(session, row, change)) is not None)
    log.info("regressions_changed", ids=ids, changed=len(changed))
    for work_id in sorted(work):
        enqueue(JUDGE_STACK, work_id)
    if changed:
        delivery_queue.enqueue_due(engine)
    return changed


def is_undoable(event: AuditEvent) -> bool:
    """Return whether `undo_changes` can restore the values that a change replaced.

    It cannot restore a proposal that was declined or dropped, because proposals are made from runs.
    """
    if event.action == "proposal_accepted":
        return True
    return event.action == "changed" and "proposal" not in event.before and event.before.get("state") != "fixed"


def undo_changes(engine: Engine, event_ids: Sequence[int], author: str) -> int:
    """Undo the changes with these audit entries, all or none. Return their number. Notes stay.

    Raises NotFound, InvalidChange naming fields, and EditConflict if a regression has changed since.
    """
    author = one_line(author)
    if errors := audit.author_errors(author):
        raise InvalidChange("Nothing was changed.", tuple(errors))
    if not 0 < len(event_ids) <= MAX_AT_ONCE:
        raise InvalidChange(
            "Nothing was changed.", (FieldError("event", f"must name 1 to {MAX_AT_ONCE} changes of regressions"),)
        )
    with transaction(engine, durable=True) as session:
        undone = _undoable(session, event_ids)
        moved = {number: {event.before.get("state"), event.after.get("state")} for number, event in undone.items()}
        work = set(_request_judging(session, [number for number, states in moved.items() if "invalid" in states]))
        for row in _locked(session, [Seen(number) for number in undone]):
            _undo(session, row, undone[row.id or 0], author)
    log.info("regressions_undone", ids=sorted(undone))
    for work_id in sorted(work):
        enqueue(JUDGE_STACK, work_id)
    delivery_queue.enqueue_due(engine)
    return len(undone)


def _undoable(session: Session, event_ids: Sequence[int]) -> dict[int, AuditEvent]:
    """Return the audit entries by regression. Raises NotFound, InvalidChange."""
    events = [event for event in audit.events_by_id(session, event_ids) if event.subject == "regression"]
    if len(events) < len(set(event_ids)):
        raise NotFound("The change to undo does not exist. It may have been deleted with its regression.")
    if not all(map(is_undoable, events)):
        raise InvalidChange("Nothing was changed.", (FieldError("event", "is a change that cannot be undone"),))
    return {int(event.subject_id): event for event in events}


def _undo(session: Session, row: RegressionRow, event: AuditEvent, author: str) -> None:
    newest, *earlier = audit.events(session, "regression", row.id or 0)
    if newest.id != event.id:
        error = FieldError("event", _who_changed(session, row))
        raise EditConflict("The regression changed in the meantime, so nothing was undone. Reload the page.", (error,))
    for name, value in event.before.items():
        setattr(row, name, value)
    if event.note:
        row.note = next((other.note for other in earlier if other.note and not other.by_service), "")
    row.changed_at = utc_now()
    audit.record(
        session, project_id=row.project_id, who=author, subject="regression", subject_id=str(row.id), action="undone",
        before=event.after, after=event.before,
    )  # fmt: skip
    session.flush()
    _notify(session, row, RegressionChange(author), event.after.get("state"), event.before.get("state"))


def _trimmed(change: RegressionChange) -> RegressionChange:
    return replace(
        change,
        author=one_line(change.author),
        assignee=None if change.assignee is None else one_line(change.assignee),
        note=change.note.strip(),
        external_url=None if change.external_url is None else change.external_url.strip(),
    )


def _errors(change: RegressionChange) -> Iterator[FieldError]:
    """Yield the errors of a change that do not depend on the regression."""
    yield from audit.author_errors(change.author)
    if change.is_empty:
        yield FieldError("state", "must be given, or another change: an assignee, a link, a note or an answer")
    if change.state is not None and change.state not in STATES:
        yield FieldError("state", f"must be one of {', '.join(STATES)}; {change.state[:40]!r} is not")
    if change.state is not None and change.answer is not None:
        yield FieldError("proposal", "must not be combined with an answer, which sets the state")
    if change.assignee is not None and len(change.assignee) > MAX_NAME:
        yield FieldError("assignee", f"must have at most {MAX_NAME} characters")
    if len(change.note) > MAX_NOTE:
        yield FieldError("note", f"must have at most {MAX_NOTE:,} characters")
    elif "\0" in change.note:
        yield FieldError("note", "contains a control character")
    elif not change.note and change.state in NEEDS_NOTE:
        yield FieldError("note", f"must explain why the regression is {change.state}")
    if change.quarantine and change.state != "invalid":
        yield FieldError("quarantine", "requires the state invalid")
    elif change.quarantine and not change.note:
        yield FieldError("note", "must explain why the runs are quarantined")
    if change.external_url and (why := _link_error(change.external_url)):
        yield FieldError("external_url", why)


def _link_error(address: str) -> str:
    """Return why a URL cannot be shown as a link; empty if it can."""
    if len(address) > MAX_URL:
        return f"must have at most {MAX_URL:,} characters"
    if any(c.isspace() or not c.isprintable() for c in address):
        return "must be one URL without spaces"
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        return "must be a complete URL starting with https:// or http://"
    return "must not contain a user name or password" if "@" in parts.netloc else ""


def _locked(session: Session, seen: Sequence[Seen]) -> Sequence[RegressionRow]:
    """Return the rows in numerical order, so that concurrent changes wait instead of deadlocking."""
    ids = {regression.id for regression in seen}
    wanted = select(RegressionRow).where(col(RegressionRow.id).in_(ids)).order_by(col(RegressionRow.id))
    rows = session.execute(wanted.with_for_update()).scalars().all()
    gone = sorted(ids - {row.id for row in rows})
    if gone:
        names = ", ".join(map(str, gone))
        raise NotFound(f"Regression {names} does not exist. It may have been deleted.")
    return rows


def _check_unchanged(session: Session, rows: Sequence[RegressionRow], seen: Sequence[Seen]) -> None:
    expected = {regression.id: regression.changed_at for regression in seen}
    wrong = [row for row in rows if (at := expected[row.id or 0]) and at != row.changed_at]
    if wrong:
        errors = tuple(FieldError(_place(row, seen, "changed_at"), _who_changed(session, row)) for row in wrong)
        raise EditConflict(
            "The regression changed in the meantime, so nothing was saved. Reload and try again.", errors
        )


def _who_changed(session: Session, row: RegressionRow) -> str:
    newest = audit.events(session, "regression", str(row.id))
    who = f" by {newest[0].who}" if newest else ""
    return f"regression {row.id} was changed{who} at {row.changed_at:%Y-%m-%d %H:%M:%S} UTC; it is {row.state}"


def _refused_rows(
    rows: Sequence[RegressionRow], seen: Sequence[Seen], change: RegressionChange
) -> Iterator[FieldError]:
    for row in rows:
        if change.state and (why := refused_because(row.state, change.state)):
            yield FieldError(_place(row, seen, "state"), f"regression {row.id} cannot become {change.state}: {why}")
        if change.answer and not row.proposal:
            yield FieldError(_place(row, seen, "proposal"), f"regression {row.id} has no proposal")


def _place(row: RegressionRow, seen: Sequence[Seen], field: str) -> str:
    """Return the path of the field in the request, whether that changes one regression or a list."""
    position = next(k for k, regression in enumerate(seen) if regression.id == row.id)
    return field if len(seen) == 1 else f"regressions.{position}.{field}"


def _apply(session: Session, row: RegressionRow, change: RegressionChange) -> int | None:
    """Store the change and its audit entry. Return the id of the entry; None if nothing changes."""
    wanted = _wanted(row, change)
    after = {name: value for name, value in wanted.items() if value != getattr(row, name)}
    if not after and not change.note:
        return None
    before = {name: getattr(row, name) for name in after}
    for name, value in after.items():
        setattr(row, name, value)
    if change.note:
        row.note = change.note
    # A fix that runs have confirmed stays confirmed. Reopening, or another answer, requires runs to confirm it again.
    if row.state != "fixed" and ("proposal" in after or before.get("state") == "fixed"):
        _clear_proposals(session, row)
    row.changed_at = utc_now()
    event = audit.record(
        session,
        project_id=row.project_id,
        who=change.author,
        subject="regression",
        subject_id=str(row.id),
        action=_action(change, after),
        before=before,
        after=after,
        note=change.note,
    )
    session.flush()
    _notify(session, row, change, before.get("state"), after.get("state"))
    return event.id


def _notify(
    session: Session, row: RegressionRow, change: RegressionChange, before: str | None, after: str | None
) -> None:
    """Create a notification if the regression is now fixed or open again. Each time is a separate event."""
    event = "regression.fixed" if after == "fixed" else "regression.reopened"
    if after == "fixed" or (after in ACTIVE and before not in (None, *ACTIVE)):
        reason = f"{change.author}: {change.note}" if change.note else f"{change.author} says so."
        notify_regression(session, row, event, row.changed_at.isoformat(), reason)


def _wanted(row: RegressionRow, change: RegressionChange) -> dict[str, str]:
    """Return the columns to change, with their new values."""
    wanted: dict[str, str] = {}
    if change.state is not None:
        wanted["state"] = change.state
    if change.assignee is not None:
        wanted["assignee"] = change.assignee
    if change.external_url is not None:
        wanted["external_url"] = change.external_url
    if change.answer == "accept":
        wanted["state"] = row.proposal
    # A closed regression needs no proposal. `proposal_run_id` stays, because it identifies a declined proposal.
    if change.answer is not None or wanted.get("state", row.state) not in (*ACTIVE, "expected"):
        wanted["proposal"] = ""
    return wanted


def _clear_proposals(session: Session, row: RegressionRow) -> None:
    members = update(RegressionMemberRow).where(col(RegressionMemberRow.regression_id) == row.id)
    session.execute(members.values(proposal="").execution_options(synchronize_session=False))


def _action(change: RegressionChange, after: dict[str, str]) -> str:
    if change.answer is not None:
        return "proposal_accepted" if change.answer == "accept" else "proposal_declined"
    return "changed" if after else "noted"


def _request_judging(session: Session, regression_ids: Sequence[int]) -> Iterator[int]:
    """Request judging of the runs since these regressions, because invalid ones explain nothing. Yield stack work."""
    if not regression_ids:
        return
    member = RegressionMemberRow
    places = (
        select(col(RunRow.project_id), col(member.stack_key), func.min(col(RunRow.ordered_at)))
        .join(RunRow, col(RunRow.id) == col(member.run_id))
        .where(col(member.regression_id).in_(regression_ids))
        .group_by(col(RunRow.project_id), col(member.stack_key))
        .order_by(col(RunRow.project_id), col(member.stack_key))
    )
    because = "A regression in its history was marked invalid, or no longer is."
    for project_id, stack_key, place in session.execute(places).all():
        yield stack_queue.request(session, project_id, stack_key, judge_from=place, because=because)


def _quarantined(session: Session, seen: Sequence[Seen], change: RegressionChange) -> Iterator[int]:
    """Quarantine the slow runs of all stacks. Yield the stack work to enqueue after the commit."""
    if not change.quarantine:
        return
    slow = select_any(RegressionMemberRow.run_id).distinct().order_by(col(RegressionMemberRow.run_id))
    mine = slow.where(col(RegressionMemberRow.regression_id).in_([regression.id for regression in seen]))
    for run_id in session.execute(mine).scalars().all():
        yield from decisions.quarantine(session, run_id, change.author, change.note)
