"""The work that a run's row asks for: to be read, once for any number of changes since.

`wanted` counts the changes (an append, a correction, another default). A worker notes it when it begins; if it has
grown by the time it ends, the run waits again. So at most one reading is pending, however many changes there are.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, cast

import structlog
from sqlalchemy import ColumnElement, CursorResult, Engine, and_, case, or_, select, update
from sqlmodel import Session, col

from app.domain.definitions import DEFINITION_VERSION
from app.pipeline.leases import renewed
from app.pipeline.notify import tell_failed
from app.settings import Settings
from app.storage.definition_progress import has_old_figures
from app.storage.tables import RunRow, utc_now

Work = Literal["", "waiting", "held"]

REST = 4
"""A run that grows is read again after so many times what its last reading took, so that others have their turn."""

SHORT_SECONDS = 1.0
"""A reading that takes less needs no rest."""


def ask_to_read(session: Session, *conditions: ColumnElement[bool], due_at: datetime | None = None) -> int:
    """Have the runs that meet all `conditions` read (again), from `due_at` on, else now. Returns how many."""
    idle = col(RunRow.work) == ""
    statement = update(RunRow).where(*conditions)
    statement = statement.values(
        wanted=RunRow.wanted + 1,
        work=case((idle, "waiting"), else_=RunRow.work),
        attempts=case((idle, 0), else_=RunRow.attempts),
        lease_until=case((idle, due_at or utc_now()), else_=RunRow.lease_until),
    )
    done = session.execute(statement.execution_options(synchronize_session=False))
    return cast("CursorResult[Any]", done).rowcount


def rest(read_seconds: float) -> timedelta:
    """How long a run waits after a reading that took so long, until it is read again."""
    return timedelta(seconds=REST * read_seconds if read_seconds >= SHORT_SECONDS else 0)


def rested_at(run: RunRow) -> datetime:
    """When a run that grows may be read again: at once, or later when it is long and was read just now."""
    now = utc_now()
    return now if run.processed_at is None else max(now, run.processed_at + rest(run.read_seconds))


def is_abandoned(now: datetime, settings: Settings) -> ColumnElement[bool]:
    """Its worker was given up: the lease is over, or was made before the clock was set back."""
    longest = now + timedelta(seconds=2 * settings.lease_seconds)
    return and_(col(RunRow.work) == "held", or_(col(RunRow.lease_until) < now, col(RunRow.lease_until) > longest))


def is_due(now: datetime, settings: Settings) -> ColumnElement[bool]:
    """It waits, and the time has come, or is further away than any rest: the clock was set back."""
    longest = now + timedelta(seconds=2 * (REST + 1) * settings.task_hard_limit_seconds)
    return and_(
        col(RunRow.work) == "waiting",
        or_(col(RunRow.lease_until).is_(None), col(RunRow.lease_until) <= now, col(RunRow.lease_until) > longest),
    )


# --- Who works on a run. The row is the record: a worker claims it, renews its lease while it works, and gives it back.
#
# A claim is numbered (`run.claims`). Whatever a worker writes, it writes only while the row still carries its number:
# one that was given up for dead can wake and finish, and changes nothing.

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Claim:
    """`attempt` counts since the last change of the run, `wanted` is the change up to which it is read.

    `recomputes`: it has figures, of an earlier version of the definitions.
    """

    run_id: int
    number: int
    attempt: int = 1
    wanted: int = 0
    recomputes: bool = False


def claim(session: Session, run_id: int, settings: Settings) -> Claim | None:
    """Take a run that waits, or whose worker was given up. None when another has it, or it is done.

    A run that was given up `max_attempts` times is parked as failed: it would take down one worker after another.
    """
    now = utc_now()
    mine = and_(col(RunRow.id) == run_id, or_(col(RunRow.work) == "waiting", is_abandoned(now, settings)))
    taken = _update(
        session,
        and_(mine, col(RunRow.attempts) < settings.max_attempts),
        work="held",
        status=case((col(RunRow.status) == "received", "processing"), else_=RunRow.status),
        claims=RunRow.claims + 1,
        attempts=RunRow.attempts + 1,
        lease_until=now + timedelta(seconds=settings.lease_seconds),
    )
    if taken:
        columns = select(RunRow.claims, RunRow.attempts, RunRow.wanted, has_old_figures())  # type: ignore[call-overload]
        return Claim(run_id, *session.execute(columns.where(col(RunRow.id) == run_id)).one())
    parked = _update(
        session,
        mine,
        work="",
        processed_at=now,
        lease_until=None,
        **given_up(
            f"Reading this run was interrupted {settings.max_attempts} times, so it is not tried again. Its files are "
            "kept. The worker's log says what happened; too little memory is the usual cause."
        ),
    )
    if parked:
        log.error("run_parked", run_id=run_id, attempts=settings.max_attempts)
        tell_failed(session, run_id)
    return None


def renew(session: Session, held: Claim, until: datetime) -> bool:
    """False when the claim was lost."""
    return _update(session, _is_held(held), lease_until=until)


def finish(session: Session, held: Claim, **columns: Any) -> bool:
    """Write the result and end the claim. False, and nothing written, when the claim was lost.

    When the run changed meanwhile it waits to be read again, after a rest.
    """
    now = utc_now()
    unchanged = col(RunRow.wanted) == held.wanted
    return _update(
        session,
        _is_held(held),
        work=case((unchanged, ""), else_="waiting"),
        attempts=case((unchanged, RunRow.attempts), else_=0),
        lease_until=case((unchanged, None), else_=now + rest(columns.get("read_seconds", 0.0))),
        processed_at=now,
        **columns,
    )


def given_up(reason: str) -> dict[str, Any]:
    """What becomes of a run that cannot be read: it has failed, or it keeps its figures, which are then old."""
    return {
        "status": case((has_old_figures(), RunRow.status), else_="failed"),
        "error": case((has_old_figures(), RunRow.error), else_=reason),
        "recompute_error": case((has_old_figures(), reason), else_=None),
        "recompute_failed": DEFINITION_VERSION,
    }


def give_back(session: Session, held: Claim, *, again_at: datetime, counts: bool) -> bool:
    """Let it be tried again, from `again_at` on. An attempt that was nobody's fault does not count."""
    return _update(
        session,
        _is_held(held),
        work="waiting",
        status=case((col(RunRow.status) == "processing", "received"), else_=RunRow.status),
        lease_until=again_at,
        attempts=held.attempt - (0 if counts else 1),
    )


def void_leases(session: Session) -> None:
    """Give up the workers of all runs. For the start of the embedded mode, where no other worker can be alive."""
    _update(session, col(RunRow.work) == "held", lease_until=utc_now() - timedelta(seconds=1))


def due(session: Session, settings: Settings, *, limit: int) -> list[int]:
    """The runs to process now: first those whose worker was given up, then those that are due longest."""
    now = utc_now()
    runs: list[int] = []
    for condition in (is_abandoned(now, settings), is_due(now, settings)):
        chosen = select(RunRow.id).where(condition).order_by(col(RunRow.lease_until), RunRow.id)  # type: ignore[call-overload]
        runs += session.execute(chosen.limit(limit - len(runs))).scalars()
    return runs


def kept(engine: Engine, held: Claim, lease_seconds: float) -> AbstractContextManager[None]:
    """Renew the lease until the block ends."""
    return renewed(
        engine, lambda session, until: renew(session, held, until), lease_seconds, run_id=held.run_id, claim=held.number
    )


def _update(session: Session, condition: ColumnElement[bool], **values: Any) -> bool:
    statement = update(RunRow).where(condition).values(**values).execution_options(synchronize_session=False)
    return cast("CursorResult[Any]", session.execute(statement)).rowcount > 0


def _is_held(held: Claim) -> ColumnElement[bool]:
    return and_(col(RunRow.id) == held.run_id, col(RunRow.work) == "held", col(RunRow.claims) == held.number)
