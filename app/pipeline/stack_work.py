"""The judging that a stack waits for, and who does it. The row is the record, Celery only the doorbell.

As with runs (`run_work.py`): `wanted` counts the changes, a claim is numbered, and what a worker found is written only
while the row still carries its number. So a stack is judged by one worker at a time, and however many changes came
meanwhile, it is judged once more.

A claim has two steps, each with its commit: `judged` when the verdicts are written, which is what a job waits for, and
`finish` when the standings are. A worker that dies between them is replaced like any other, and the next one finds
nothing to judge and ranks.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, cast

import structlog
from sqlalchemy import ColumnElement, CursorResult, Engine, Table, and_, bindparam, case, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.pipeline.leases import renewed
from app.settings import Settings
from app.storage.definition_progress import outdated_projects
from app.storage.runs import aware
from app.storage.tables import StackWorkRow, utc_now

log = structlog.get_logger(__name__)

Work = Literal["", "waiting", "held", "ranking"]
"""`held`: somebody is at it, and verdicts are to come; `ranking`: they are written, and its standings are made."""
WAITS_FOR_VERDICTS = ("waiting", "held")

_MOST_BECAUSE = 300
ELSEWHERE = "Runs of a stack that differs in one field changed."
"""Why a stack is judged again of which no run changed: what stands in for its baseline did."""
_SEVERAL = "Several things changed earlier in its history."

# As a table, and made once: putting one of these together takes several times as long as running it.
_WORK: Table = StackWorkRow.__table__  # type: ignore[attr-defined]
_CLAIMED = _WORK.c.work.in_(("held", "ranking"))
_ABANDONED = and_(
    _CLAIMED, or_(_WORK.c.lease_until < bindparam("now"), _WORK.c.lease_until > bindparam("longest_lease"))
)
"""Its worker was given up: the lease is over, or was made before the clock was set back."""
_READY = and_(
    _WORK.c.id == bindparam("one"),
    or_(_WORK.c.work == "waiting", _ABANDONED),
    _WORK.c.project_id.not_in(outdated_projects()),
)
"""It waits or its worker was given up, and all runs of its project are of the current definitions."""
_OWN = and_(_WORK.c.id == bindparam("one"), _CLAIMED, _WORK.c.claims == bindparam("number"))
_UNCHANGED = _WORK.c.wanted == bindparam("judged_up_to")
_TAKE = (
    update(_WORK)
    .where(_READY, _WORK.c.attempts < bindparam("most_attempts"))
    .values(work="held", claims=_WORK.c.claims + 1, attempts=_WORK.c.attempts + 1, lease_until=bindparam("until"))
    .returning(*(_WORK.c[name] for name in ("project_id", "stack_key", "claims", "wanted", "judge_from", "because")))
)
_PARK = update(_WORK).where(_READY).values(work="", lease_until=None)
_GO_ON = case((_UNCHANGED, bindparam("go_on_from", type_=_WORK.c.judge_from.type)), else_=_WORK.c.judge_from)
_THEN = case((_UNCHANGED, bindparam("then")), else_="held")
_JUDGED = update(_WORK).where(_OWN).values(work=_THEN, judge_from=_GO_ON, lease_until=bindparam("until"))
_NOW = case((and_(_UNCHANGED, _WORK.c.judge_from.is_(None)), ""), else_="waiting")
_FINISH = update(_WORK).where(_OWN).values(work=_NOW, attempts=0, lease_until=None).returning(_WORK.c.work)
_GIVE_BACK = (
    update(_WORK)
    .where(_OWN)
    .values(work="waiting", lease_until=bindparam("until"), attempts=_WORK.c.attempts - bindparam("uncounted"))
)
_RENEW = update(_WORK).where(_OWN).values(lease_until=bindparam("until"))


@dataclass(frozen=True, slots=True)
class StackClaim:
    """`wanted` is the change up to which is judged; `judge_from` None: only the runs that were never judged."""

    work_id: int
    project_id: int
    stack_key: str
    number: int
    wanted: int
    judge_from: datetime | None
    because: str


def ask_to_judge(
    session: Session, project_id: int, stack_key: str, *, judge_from: datetime | None = None, because: str = ""
) -> int:
    """Have a stack judged: all runs from `judge_from` on again, and those never judged. The id to ring for.

    It locks the stack's row until the transaction ends. Whoever also changes runs does this first, so that two who
    change a run and its stack never wait for each other.
    """
    row = lock(session, project_id, stack_key)
    known = None if row.judge_from is None else aware(row.judge_from)
    if judge_from is not None:
        # The reason that concerns the most runs is told: the one with the earliest place. A change of its own comes
        # first, because other stacks are told of that (`app/pipeline/judge.py`).
        if known is not None and because == ELSEWHERE:
            pass
        elif known is None or judge_from < known or row.because == ELSEWHERE:
            row.because = because[:_MOST_BECAUSE] or row.because
        elif judge_from == known and because not in ("", row.because):
            row.because = _SEVERAL
        row.judge_from = judge_from if known is None else min(known, judge_from)
    row.wanted += 1
    if row.work == "":
        row.work, row.attempts, row.lease_until = "waiting", 0, None
    elif row.work == "ranking":
        row.work = "held"  # verdicts are to come again, once these standings are made
    session.flush()
    assert row.id is not None  # noqa: S101  # a row that was flushed has its key
    return row.id


def lock(session: Session, project_id: int, stack_key: str) -> StackWorkRow:
    """Hold the stack's row, made if need be, until the transaction ends."""
    chosen = (
        select(StackWorkRow)
        .where(col(StackWorkRow.project_id) == project_id, col(StackWorkRow.stack_key) == stack_key)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    found: StackWorkRow | None = session.execute(chosen).scalar_one_or_none()
    if found is not None:
        return found
    try:
        with session.begin_nested():
            session.add(StackWorkRow(project_id=project_id, stack_key=stack_key))
    except IntegrityError:  # another worker made it in the same moment
        pass
    made: StackWorkRow = session.execute(chosen).scalar_one()
    return made


def claim(session: Session, work_id: int, settings: Settings) -> StackClaim | None:
    """Take a stack that waits, or whose worker was given up. None when another has it, or there is nothing to do.

    None, too, while runs of its project are still to be computed by the current definitions: then it goes on waiting.
    """
    until = utc_now() + timedelta(seconds=settings.lease_seconds)
    limits = _times(settings) | {"one": work_id, "until": until, "most_attempts": settings.max_attempts}
    row = session.execute(_TAKE, limits).one_or_none()
    if row is not None:
        since = None if row.judge_from is None else aware(row.judge_from)
        return StackClaim(work_id, row.project_id, row.stack_key, row.claims, row.wanted, since, row.because)
    if cast("CursorResult[Any]", session.execute(_PARK, _times(settings) | {"one": work_id})).rowcount > 0:
        # What is asked for stays in the row: the next change of the stack has it tried again.
        log.error("stack_parked", work_id=work_id, attempts=settings.max_attempts)
    return None


def judged(session: Session, held: StackClaim, settings: Settings, *, go_on_from: datetime | None = None) -> bool:
    """The verdicts of a claim are written in this transaction. False when it was lost: then nothing may be.

    `go_on_from`: they are those up to there. The claim goes on, with a lease of its own for the standings.
    """
    until = utc_now() + timedelta(seconds=settings.lease_seconds)
    then = "ranking" if go_on_from is None else "held"
    done = session.execute(_JUDGED, _own(held) | {"then": then, "go_on_from": go_on_from, "until": until})
    return cast("CursorResult[Any]", done).rowcount > 0


def kept(engine: Engine, held: StackClaim, lease_seconds: float) -> AbstractContextManager[None]:
    """Renew the lease until the block ends."""

    def renew(session: Session, until: datetime) -> bool:
        done = session.execute(_RENEW, _own(held) | {"until": until})
        return cast("CursorResult[Any]", done).rowcount > 0

    return renewed(engine, renew, lease_seconds, stack_key=held.stack_key, claim=held.number)


def finish(session: Session, held: StackClaim) -> Work | None:
    """End the claim. None when it was lost: then nothing may be written in this transaction. Else what it does now.

    When the stack changed meanwhile, or was judged only up to some place, it waits to be judged again.
    """
    found: Work | None = session.execute(_FINISH, _own(held)).scalar_one_or_none()
    return found


def give_back(session: Session, held: StackClaim, *, again_at: datetime, counts: bool) -> bool:
    """Let it be tried again, from `again_at` on. `counts` is False when the database was away."""
    done = session.execute(_GIVE_BACK, _own(held) | {"until": again_at, "uncounted": int(not counts)})
    return cast("CursorResult[Any]", done).rowcount > 0


def void_leases(session: Session) -> None:
    """Give up the workers of all stacks. For the start of the embedded mode, where no other worker can be alive."""
    _update(session, col(StackWorkRow.work).in_(("held", "ranking")), lease_until=utc_now() - timedelta(seconds=1))


def due(session: Session, settings: Settings, *, limit: int) -> Sequence[int]:
    """The stacks to judge and rank now: first those whose worker was given up, then the oldest that wait."""
    again_at = _WORK.c.lease_until
    waits = and_(_WORK.c.work == "waiting", or_(again_at.is_(None), again_at < bindparam("now")))
    too_far = and_(_WORK.c.work == "waiting", again_at > bindparam("longest_lease"))
    chosen = (
        select(_WORK.c.id)
        .where(or_(_ABANDONED, waits, too_far), _WORK.c.project_id.not_in(outdated_projects()))
        .order_by(_WORK.c.work == "waiting", _WORK.c.id)
        .limit(limit)
    )
    return session.execute(chosen, _times(settings)).scalars().all()


def parked(session: Session) -> int:
    """Return how many stacks rest because judging them ended `max_attempts` times without a result."""
    chosen = select(func.count()).where(_WORK.c.work == "", _WORK.c.attempts > 0)
    return int(session.execute(chosen).scalar_one())


def waiting_for(session: Session, project_id: int, stack_key: str) -> int | None:
    """The id of a stack's work when it waits to be judged and ranked, or somebody is at it."""
    found: int | None = session.execute(
        select(StackWorkRow.id).where(  # type: ignore[call-overload]
            col(StackWorkRow.project_id) == project_id,
            col(StackWorkRow.stack_key) == stack_key,
            col(StackWorkRow.work) != "",
        )
    ).scalar_one_or_none()
    return found


def _times(settings: Settings) -> dict[str, datetime]:
    now = utc_now()
    return {"now": now, "longest_lease": now + timedelta(seconds=2 * settings.lease_seconds)}


def _own(held: StackClaim) -> dict[str, Any]:
    return {"one": held.work_id, "number": held.number, "judged_up_to": held.wanted}


def _update(session: Session, condition: ColumnElement[bool], **values: Any) -> bool:
    statement = update(StackWorkRow).where(condition).values(**values).execution_options(synchronize_session=False)
    return cast("CursorResult[Any]", session.execute(statement)).rowcount > 0
