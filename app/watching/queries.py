"""The changes of what a user watches, in one list."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fastapi import Request
from sqlmodel import Session

from app.domain.numbers import change_text
from app.errors import NotAllowed
from app.storage.audit import AuditEvent
from app.storage.watches import RunChange, Watch, events_of, run_changes_of
from app.web.identity import access_of

MOST_CHANGES = 50
_ACTIONS = {
    "opened": "opened",
    "reopened": "open again",
    "joined": "another stack joined",
    "moved": "its first slow run changed",
    "continued": "followed its job to another stack",
    "taken_back": "returned to its stack",
    "left": "a stack left",
    "withdrawn": "withdrawn",
    "proposal_made": "seems fixed",
    "proposal_withdrawn": "no longer seems fixed",
    "noted": "new note",
    "fix_confirmed": "fix confirmed",
    "proposal_accepted": "fixed",
    "proposal_declined": "proposal declined",
    "undone": "last change undone",
    "pin": "golden run pinned",
    "unpin": "golden run unpinned",
}
_OF_STALE = {"proposal_made": "stale?", "proposal_accepted": "closed as stale", "proposal_withdrawn": "not stale"}
_ENDS = {"failed": "failed", "out_of_memory": "ran out of memory", "not_finite": "has figures that are not finite"}


@dataclass(frozen=True, slots=True)
class WatchedChange:
    """A change. `who`: the user who made it, or the service."""

    at: datetime
    kind: str
    title: str
    detail: str
    path: str
    who: str


def watcher_of(request: Request) -> int:
    """Return the id of the user who watches. Raises NotAllowed for tokens and callers without a log-in."""
    if (user_id := access_of(request).watcher) is None:
        raise NotAllowed("Only users can watch stacks and regressions. Nothing was saved. Log in with a browser.")
    return user_id


def changes_of(session: Session, watches: Sequence[Watch]) -> list[WatchedChange]:
    """Return the newest changes of what is watched, newest first."""
    if not watches:
        return []
    changes = [_of_event(event) for event in events_of(session, watches, MOST_CHANGES)]
    changes += [_of_run(run) for run in run_changes_of(session, watches, MOST_CHANGES)]
    return sorted(changes, key=lambda change: change.at, reverse=True)[:MOST_CHANGES]


def _of_event(event: AuditEvent) -> WatchedChange:
    action = _ACTIONS.get(event.action, event.action.replace("_", " "))
    if "stale" in (event.before.get("proposal"), event.after.get("proposal")):
        action = _OF_STALE.get(event.action, action)
    before, after = event.before.get("state"), event.after.get("state")
    if event.action == "changed" and after and before != after:
        action = f"{before} → {after}"
    if event.subject == "regression":
        title, path = f"Regression {event.subject_id}: {action}", f"/regressions/{event.subject_id}"
    else:
        title, path = action.capitalize(), f"/history/{event.subject_id}"
    return WatchedChange(event.at, event.subject, title, event.note, path, event.who)


def _of_run(run: RunChange) -> WatchedChange:
    if run.verdict and run.delta_pct is not None:
        change = change_text(run.delta_pct)
        what = f"{change.size} {change.word}"
    else:
        what = _ENDS.get(run.outcome, run.verdict or run.outcome)
    return WatchedChange(run.at, "run", f"Run #{run.run_id}: {what}", run.name, f"/runs/{run.run_id}", "")
