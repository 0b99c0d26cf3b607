"""The leased work queue: which rows wait, which worker has claimed a row, and when another worker may take over.

The row is the record. A Celery message only wakes a worker, so a lost or repeated message changes nothing. Four tables
are queues with the same columns: runs and profiles to read, stacks to judge and rank, and deliveries to send.

* `work`: empty (nothing to do), `waiting` or `claimed`. Stacks and deliveries have one more state.
* `wanted` counts the requests. A worker notes the count when it claims the row. If the count has grown when the worker
  finishes, the row waits again. So any number of new requests leads to one more pass.
* `claims` numbers the claims and is the fencing token: a worker writes only while the row has its number, so a worker
  that was presumed dead and wakes up changes nothing. Deliveries use `attempts` instead.
* `lease_until`: for a claimed row, when its worker is presumed dead unless it renews the lease; for a waiting row, when
  it is due. NULL means now. A time further in the future than any lease or wait means that the clock was set back; it
  counts as over.
* `attempts` counts the claims since the last request. A run or stack without attempts left is parked until the next
  request, because it could take down one worker after another.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, cast

import structlog
from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Engine,
    Select,
    Table,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import aliased
from sqlmodel import Session, SQLModel, col

from app.domain.definitions import DEFINITION_VERSION
from app.domain.notifications.messages import ATTEMPTS, LONGEST_WAIT
from app.queue import DELIVER, enqueue
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.readings import outdated_projects
from app.storage.tables import DeliveryRow, ProfileRow, ReceiverRow, RunRow, StackWorkRow, select_any, table_of, utc_now

log = structlog.get_logger(__name__)

Work = Literal["", "waiting", "claimed", "ranking", "enqueued"]
"""`ranking`: the verdicts of a stack are stored, and its standings are being computed. `enqueued`: a message for the
delivery is in the Celery queue."""

_RENEWALS_PER_LEASE = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's claim on a row. `number`: the fencing token. `wanted`: number of the last request of this pass."""

    row_id: int
    number: int
    attempt: int = 1
    wanted: int = 0

    @property
    def parameters(self) -> dict[str, int]:
        return {"row_id": self.row_id, "number": self.number, "covered": self.wanted}


class WorkQueue:
    """The statements that all queues share.

    They are built once, as Core statements with parameters, because building one takes longer than running it. They
    see the rows of all projects. Web requests use the mapped class instead, which shows only rows of visible projects.
    """

    def __init__(
        self,
        row_type: type[SQLModel],
        *,
        claimed: Sequence[Work] = ("claimed",),
        claimable: Work = "waiting",
        number: str = "claims",
        limits_attempts: bool = True,
        only_if: ColumnElement[bool] | None = None,
        returning: Sequence[str] = (),
        on_claim: Mapping[str, ColumnElement[Any]] | None = None,
        on_give_back: Mapping[str, ColumnElement[Any]] | None = None,
    ) -> None:
        self.table: Table = table_of(row_type)
        columns = self.table.c
        self._only_if = true() if only_if is None else only_if
        self._claimed = claimed
        self._is_active = columns.work.in_({*claimed, claimable} - {"waiting"})
        self._is_expired = or_(columns.lease_until < bindparam("now"), columns.lease_until > bindparam("latest_lease"))
        is_claimed = columns.work.in_(claimed)
        self.is_abandoned = and_(self._is_active, self._is_expired)
        self.is_waiting_and_due = and_(
            columns.work == "waiting",
            or_(
                columns.lease_until.is_(None),
                columns.lease_until <= bindparam("now"),
                columns.lease_until > bindparam("latest_due"),
            ),
        )
        self.is_claimable = and_(
            columns.id == bindparam("row_id"),
            or_(columns.work == claimable, and_(is_claimed, self._is_expired)),
            self._only_if,
        )
        self.is_own = and_(columns.id == bindparam("row_id"), is_claimed, columns[number] == bindparam("number"))
        self.is_unchanged = columns.wanted == bindparam("covered") if "wanted" in columns else true()

        numbered = {name: columns[name] + 1 for name in {number, "attempts"}}
        has_attempts_left = columns.attempts < bindparam("max_attempts") if limits_attempts else true()
        self._claim = (
            update(self.table)
            .where(self.is_claimable, has_attempts_left)
            .values(work=claimed[0], lease_until=bindparam("until"), **numbered, **(on_claim or {}))
            .returning(*(columns[name] for name in (number, "attempts", *returning)))
        )
        self._renew = update(self.table).where(self.is_own).values(lease_until=bindparam("until"))
        self._give_back = (
            update(self.table)
            .where(self.is_own)
            .values(
                work="waiting",
                lease_until=bindparam("until"),
                attempts=columns.attempts - bindparam("uncounted"),
                **(on_give_back or {}),
            )
        )
        self._due = [
            select(columns.id)
            .where(condition, self._only_if)
            .order_by(columns.lease_until, columns.id)
            .limit(bindparam("most"))
            for condition in (self.is_abandoned, self.is_waiting_and_due)
        ]

    def requested(self, due_at: Any) -> dict[str, Any]:
        """Return the column values that request a pass. `due_at` applies unless a pass is already pending or active."""
        columns = self.table.c
        is_idle = columns.work == ""
        return {
            "wanted": columns.wanted + 1,
            "work": case((is_idle, "waiting"), (columns.work == "waiting", "waiting"), else_=self._claimed[0]),
            "attempts": case((is_idle, 0), else_=columns.attempts),
            "lease_until": case((is_idle, due_at), else_=columns.lease_until),
        }

    def finished(self, is_done: ColumnElement[bool], again_at: Any) -> dict[str, Any]:
        """Return the column values that end a claim: the row waits until `again_at` unless `is_done`."""
        return {
            "work": case((is_done, ""), else_="waiting"),
            "attempts": 0,
            "lease_until": case((is_done, None), else_=again_at),
        }

    def park(self, session: Session, row_id: int, times: Mapping[str, Any], **values: Any) -> bool:
        """Park a row that could be claimed but has no attempts left. Call this after `claim` returned None."""
        parking = update(self.table).where(self.is_claimable).values(work="", lease_until=None, **values)
        return _changes(session, parking, {"row_id": row_id, **times})

    def write(self, session: Session, claim: Claim, **values: Any) -> bool:
        """Write to the claimed row. Return False, with nothing written, if the claim was lost."""
        return _changes(session, update(self.table).where(self.is_own).values(**values), claim.parameters)

    def renew(self, session: Session, claim: Claim, until: datetime) -> bool:
        """Extend the lease. Return False if the claim was lost."""
        return _changes(session, self._renew, claim.parameters | {"until": until})

    def give_back(self, session: Session, claim: Claim, *, again_at: datetime, counts: bool) -> bool:
        """End the claim; the row can be claimed again from `again_at` on. `counts`: whether this uses up an attempt."""
        parameters = claim.parameters | {"until": again_at, "uncounted": int(not counts)}
        return _changes(session, self._give_back, parameters)

    def void_leases(self, session: Session) -> None:
        """End all leases. For the start of the embedded mode, when no other worker can be alive."""
        past = utc_now() - timedelta(seconds=1)
        session.execute(update(self.table).where(self._is_active).values(lease_until=past))

    @contextmanager
    def renewed(self, engine: Engine, claim: Claim, lease_seconds: float) -> Iterator[None]:
        """Renew the lease in a thread during the block, so that a slow worker keeps its claim."""
        stopped = threading.Event()
        context = {"queue": self.table.name, "row_id": claim.row_id, "claim": claim.number}

        def renew_until_stopped() -> None:
            while not stopped.wait(lease_seconds / _RENEWALS_PER_LEASE):
                try:
                    with transaction(engine) as session:
                        if not self.renew(session, claim, utc_now() + timedelta(seconds=lease_seconds)):
                            log.warning("claim_lost", **context)
                            return
                except SQLAlchemyError as error:
                    # If all three renewals fail, another worker takes over, and this one writes nothing.
                    log.warning("lease_not_renewed", **context, error=str(error))

        thread = threading.Thread(target=renew_until_stopped, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _take(self, session: Session, row_id: int, times: Mapping[str, Any]) -> Any | None:
        """Claim a row and return its columns; None if another worker has it or there is nothing to do."""
        return session.execute(self._claim, {"row_id": row_id, **times}).one_or_none()

    def times(self, settings: Settings) -> dict[str, Any]:
        """Return the parameters of the statements that claim and park rows."""
        lease = timedelta(seconds=settings.lease_seconds)
        return _times(lease, lease) | {"max_attempts": settings.max_attempts}

    def due(self, session: Session, settings: Settings, *, limit: int) -> list[int]:
        """Return up to `limit` ids of rows to claim: abandoned rows first, then waiting rows, longest due first."""
        times = self.times(settings)
        ids: list[int] = []
        for statement in self._due:
            ids += session.execute(statement, {**times, "most": limit - len(ids)}).scalars()
        return ids


def _changes(session: Session, statement: Any, parameters: Mapping[str, Any] | None = None) -> bool:
    """Execute an UPDATE; return whether it matched a row."""
    return cast("CursorResult[Any]", session.execute(statement, parameters)).rowcount > 0


def _times(lease: timedelta, longest_wait: timedelta) -> dict[str, Any]:
    now = utc_now()
    return {"now": now, "until": now + lease, "latest_lease": now + 2 * lease, "latest_due": now + 2 * longest_wait}


# --- Runs to read. A run whose log grows is read again only after a pause, so that other runs get their turn.

REST_FACTOR = 4
"""A growing run pauses for this multiple of the duration of its last reading."""

SHORT_SECONDS = 1.0
"""A shorter reading needs no pause."""


@dataclass(frozen=True, slots=True)
class RunClaim(Claim):
    """`recomputes`: the run has figures of older definitions."""

    recomputes: bool = False


class RunQueue(WorkQueue):
    def __init__(self) -> None:
        status = table_of(RunRow).c.status
        super().__init__(
            RunRow,
            returning=("wanted", "definition_version"),
            on_claim={"status": case((status == "received", "processing"), else_=status)},
            on_give_back={"status": case((status == "processing", "received"), else_=status)},
        )

    def request(self, session: Session, *conditions: ColumnElement[bool], due_at: datetime | None = None) -> int:
        """Request that all runs that meet the conditions are read (again), now or at `due_at`. Return their number.

        This affects only runs of projects that the caller may see.
        """
        statement = update(RunRow).where(*conditions).values(**self.requested(due_at or utc_now()))
        result = session.execute(statement.execution_options(synchronize_session=False))
        return cast("CursorResult[Any]", result).rowcount

    def claim(self, session: Session, run_id: int, settings: Settings) -> RunClaim | None:
        """Claim a waiting or abandoned run; None if another worker has it or there is nothing to do."""
        row = self._take(session, run_id, self.times(settings))
        if row is None:
            return None
        recomputes = 0 < row.definition_version < DEFINITION_VERSION
        return RunClaim(run_id, row.claims, row.attempts, row.wanted, recomputes)

    def finish(self, session: Session, claim: Claim, **columns: Any) -> Work | None:
        """Write the result and end the claim. Return the new state; None, with nothing written, if the claim was lost.

        A run with a new request waits to be read again after a pause.
        """
        now = utc_now()
        values = columns | {"processed_at": now}
        again_at = now + rest(columns.get("read_seconds", 0.0))
        plain = {name: value for name, value in values.items() if not isinstance(value, ColumnElement)}
        statement = self._finishing(tuple(plain))
        if computed := {name: value for name, value in values.items() if name not in plain}:
            statement = statement.values(**computed)
        parameters = {f"new_{name}": value for name, value in plain.items()} | {"again_at": again_at}
        work: Work | None = session.execute(statement, claim.parameters | parameters).scalar_one_or_none()
        return work

    @lru_cache(maxsize=4)  # noqa: B019  there is one queue of runs in a process
    def _finishing(self, names: tuple[str, ...]) -> Any:
        """Return the statement that writes these columns and ends a claim, built once per set of columns."""
        columns = self.table.c
        # Kept, because the API shows the number of attempts of the last reading.
        attempts = case((self.is_unchanged, columns.attempts), else_=0)
        ended = self.finished(self.is_unchanged, bindparam("again_at")) | {"attempts": attempts}
        values = {name: bindparam(f"new_{name}", type_=columns[name].type) for name in names}
        return update(self.table).where(self.is_own).values(**ended | values).returning(columns.work)

    def times(self, settings: Settings) -> dict[str, Any]:
        longest_rest = timedelta(seconds=(REST_FACTOR + 1) * settings.task_hard_limit_seconds)
        times = _times(timedelta(seconds=settings.lease_seconds), longest_rest)
        return times | {"max_attempts": settings.max_attempts}


def rest(read_seconds: float) -> timedelta:
    """Return how long a growing run pauses after a reading that took `read_seconds`."""
    return timedelta(seconds=REST_FACTOR * read_seconds if read_seconds >= SHORT_SECONDS else 0)


def rested_at(run: RunRow) -> datetime:
    """Return when a growing run may be read again: now, or later if its last reading was recent and long."""
    now = utc_now()
    return now if run.processed_at is None else max(now, run.processed_at + rest(run.read_seconds))


# --- Stacks to judge and rank.
#
# A claim has two steps, each with its own commit: `write_verdicts` first, because jobs wait for verdicts, then `finish`
# with the standings. If a worker dies between them, the next worker finds nothing to judge, and ranks.

WAITS_FOR_VERDICTS = ("waiting", "claimed")

ELSEWHERE = "Runs of a stack that differs in one field changed."
"""Reason if a stack is judged again only because the contrast that replaces its baseline changed."""

_MAX_REASON = 300
_SEVERAL_REASONS = "Several things changed earlier in its history."


@dataclass(frozen=True, slots=True, kw_only=True)
class StackChange:
    """A run that this transaction stored, of a stack without a pending request, whose row it has locked.

    The transaction judges the stack from this run on, without a claim. `is_new`: the run was never read before.
    """

    run_id: int
    is_new: bool
    project_id: int
    stack_key: str
    judge_from: datetime
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackClaim(Claim):
    """`judge_from`: None to judge only the runs without a verdict."""

    project_id: int
    stack_key: str
    judge_from: datetime | None
    because: str


class StackQueue(WorkQueue):
    """The queue of stacks. A stack cannot be claimed while runs of its project wait for recomputation."""

    def __init__(self) -> None:
        columns = table_of(StackWorkRow).c
        super().__init__(
            StackWorkRow,
            claimed=("claimed", "ranking"),
            only_if=columns.project_id.not_in(outdated_projects()),
            returning=("wanted", "project_id", "stack_key", "judge_from", "because"),
        )
        own = update(self.table).where(self.is_own)
        is_done = and_(self.is_unchanged, columns.judge_from.is_(None))
        self._request = (
            update(self.table)
            .where(columns.id == bindparam("row_id"))
            .values(**self.requested(bindparam("now")), judge_from=bindparam("since"), because=bindparam("reason"))
        )
        self._write_verdicts = own.values(
            work=case((self.is_unchanged, bindparam("then")), else_="claimed"),
            judge_from=case(
                (self.is_unchanged, bindparam("go_on_from", type_=columns.judge_from.type)), else_=columns.judge_from
            ),
            lease_until=bindparam("until"),
        )
        self._finish = own.values(**self.finished(is_done, bindparam("now"))).returning(columns.work)
        self._lock_idle: Select[Any] = (
            select_any(columns.id)
            .where(
                columns.project_id == bindparam("project"),
                columns.stack_key == bindparam("stack"),
                columns.work == "",
                columns.attempts == 0,
                columns.judge_from.is_(None),
                self._only_if,
            )
            .with_for_update()
        )

    def request(
        self,
        session: Session,
        project_id: int,
        stack_key: str,
        *,
        judge_from: datetime | None = None,
        because: str = "",
    ) -> int:
        """Request judging of all runs from `judge_from` on, and of runs without a verdict. Return the row's id.

        The stack's row stays locked until the transaction ends. Code that also changes runs locks the stack first, so
        that two transactions never wait for each other.
        """
        row = self.lock(session, project_id, stack_key)
        pending = row.judge_from
        since, reason = pending, row.because
        if judge_from is not None:
            # Keep the reason that concerns the most runs: that of the earliest history position. A change of the stack
            # itself takes priority, because it must be passed on to other stacks (`judge.py`).
            if pending is not None and because == ELSEWHERE:
                pass
            elif pending is None or judge_from < pending or reason == ELSEWHERE:
                reason = because[:_MAX_REASON] or reason
            elif judge_from == pending and because not in ("", reason):
                reason = _SEVERAL_REASONS
            since = judge_from if pending is None else min(pending, judge_from)
        row_id = cast("int", row.id)
        session.execute(self._request, {"row_id": row_id, "now": utc_now(), "since": since, "reason": reason})
        session.expire(row)
        return row_id

    def lock_idle(self, session: Session, project_id: int, stack_key: str) -> bool:
        """Lock the stack's row until the transaction ends if nothing is requested. The caller may then judge it.

        Return False if the stack waits, is being judged, is parked, or has no row yet.
        """
        key = {"project": project_id, "stack": stack_key}
        return session.execute(self._lock_idle, key).first() is not None

    def lock(self, session: Session, project_id: int, stack_key: str) -> StackWorkRow:
        """Lock the stack's row until the transaction ends. Create the row if it is missing."""
        statement = (
            select(StackWorkRow)
            .where(col(StackWorkRow.project_id) == project_id, col(StackWorkRow.stack_key) == stack_key)
            .with_for_update()
            .execution_options(populate_existing=True)
        )
        row: StackWorkRow | None = session.execute(statement).scalar_one_or_none()
        if row is not None:
            return row
        try:
            with session.begin_nested():
                session.add(StackWorkRow(project_id=project_id, stack_key=stack_key))
        except IntegrityError:  # another worker created it concurrently
            pass
        return cast("StackWorkRow", session.execute(statement).scalar_one())

    def claim(self, session: Session, row_id: int, settings: Settings) -> StackClaim | None:
        """Claim a waiting or abandoned stack; None if another worker has it or there is nothing to do."""
        times = self.times(settings)
        row = self._take(session, row_id, times)
        if row is None:
            if self.park(session, row_id, times):
                # The request stays in the row, so the next change of the stack repeats it.
                log.error("stack_parked", work_id=row_id, attempts=settings.max_attempts)
            return None
        return StackClaim(
            row_id, row.claims, row.attempts, row.wanted,
            project_id=row.project_id, stack_key=row.stack_key, judge_from=row.judge_from, because=row.because,
        )  # fmt: skip

    def write_verdicts(
        self, session: Session, claim: StackClaim, settings: Settings, *, go_on_from: datetime | None
    ) -> bool:
        """End the first step of a claim in the transaction that stores its verdicts, and renew the lease.

        `go_on_from`: the position at which the next pass continues; None if all runs were judged. Return False if the
        claim was lost; the caller must then write nothing.
        """
        until = utc_now() + timedelta(seconds=settings.lease_seconds)
        then = "ranking" if go_on_from is None else "claimed"
        parameters = claim.parameters | {"then": then, "go_on_from": go_on_from, "until": until}
        return _changes(session, self._write_verdicts, parameters)

    def finish(self, session: Session, claim: StackClaim) -> Work | None:
        """End the claim. Return the new state; None if the claim was lost, and the caller must then write nothing.

        A stack with a new request, or that was judged only in part, waits to be judged again.
        """
        state: Work | None = session.execute(self._finish, claim.parameters | {"now": utc_now()}).scalar_one_or_none()
        return state

    def parked(self, session: Session) -> int:
        """Return the number of parked stacks, whose attempts all ended without a result."""
        columns = self.table.c
        statement = select(func.count()).where(columns.work == "", columns.attempts > 0)
        return int(session.execute(statement).scalar_one())

    def pending_id(self, session: Session, project_id: int, stack_key: str) -> int | None:
        """Return the row's id if the stack waits or is being judged or ranked, else None."""
        columns = self.table.c
        statement = select(columns.id).where(
            columns.project_id == project_id, columns.stack_key == stack_key, columns.work != ""
        )
        return cast("int | None", session.execute(statement).scalar_one_or_none())


# --- Deliveries to send.
#
# A waiting delivery becomes `enqueued` when a message for it is put into the Celery queue. If a worker is killed, the
# delivery is sent again; at worst it arrives twice, with the same message id. A receiver gets the messages of one
# subject in order: a message is enqueued when the one before it has arrived or was given up. An arrival shows that the
# receiver is back, so all its waiting deliveries become due.

LEASE_SECONDS = 60
"""Much longer than the time limit of an attempt, so that leases need no renewal."""
_LEASE = timedelta(seconds=LEASE_SECONDS)
_BATCH = 100
PAUSED, PAUSED_THEN = "The receiver was paused.", "Then the receiver was paused."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryClaim(Claim):
    """`message_id` is the same in every attempt. `replay_of`: the message id of the delivery that this one repeats."""

    message_id: str
    created_at: datetime
    payload: dict[str, Any]
    replay_of: str | None
    project_id: int
    receiver_id: int
    kind: str
    target: str
    secret: str
    rules: dict[str, Any]


class DeliveryQueue(WorkQueue):
    """The queue of deliveries. Users also change it (pause, send now). Those statements use the mapped class, which
    shows only rows of projects that the caller may see.
    """

    def __init__(self) -> None:
        super().__init__(
            DeliveryRow,
            claimable="enqueued",
            number="attempts",
            limits_attempts=False,
            only_if=self._is_next(),
            on_claim={"tried_at": bindparam("now")},
        )
        columns = self.table.c
        is_due = and_(or_(self.is_abandoned, self.is_waiting_and_due), self._only_if)
        self._anything_due = select(columns.id).where(is_due).limit(1)
        self._all_due = (
            select(columns.id, columns.work)
            .where(is_due)
            .order_by(columns.id)
            .limit(_BATCH)
            .with_for_update(skip_locked=True)
        )

    def mark_due(self, session: Session) -> list[int]:
        """Mark the due deliveries as enqueued. Return their ids, to enqueue after the commit."""
        times = _times(_LEASE, LONGEST_WAIT)
        rows = session.execute(self._all_due, times).all()
        marked = [row.id for row in rows if row.work != "claimed"]  # an abandoned delivery can be claimed as it is
        columns = self.table.c
        session.execute(
            update(self.table).where(columns.id.in_(marked)).values(work="enqueued", lease_until=times["until"])
        )
        return [row.id for row in rows]

    def enqueue_due(self, engine: Engine) -> None:
        """Enqueue the due deliveries; call this after the commit that created them. Without any, it writes nothing."""
        with read_session(engine) as session:
            if session.execute(self._anything_due, _times(_LEASE, LONGEST_WAIT)).first() is None:
                return
        with transaction(engine) as session:
            ids = self.mark_due(session)
        for delivery_id in ids:
            enqueue(DELIVER, delivery_id)

    def claim(self, session: Session, delivery_id: int) -> DeliveryClaim | None:
        """Claim an enqueued or abandoned delivery; None if another worker has it, or it is done or not due."""
        if self._take(session, delivery_id, _times(_LEASE, LONGEST_WAIT)) is None:
            return None
        repeated = aliased(DeliveryRow)
        row, receiver, replay_of = session.execute(
            select_any(DeliveryRow, ReceiverRow, repeated.message_id)
            .join(ReceiverRow, col(ReceiverRow.id) == col(DeliveryRow.receiver_id))
            .outerjoin(repeated, col(repeated.id) == DeliveryRow.replay_of)
            .where(col(DeliveryRow.id) == delivery_id)
            .execution_options(populate_existing=True)
        ).one()
        return DeliveryClaim(
            delivery_id, row.attempts, row.attempts,
            message_id=row.message_id, created_at=row.created_at, payload=row.payload, replay_of=replay_of,
            project_id=receiver.project_id, receiver_id=receiver.id or 0, kind=receiver.kind, target=receiver.target,
            secret=receiver.secret, rules=receiver.rules,
        )  # fmt: skip

    def delivered(self, session: Session, claim: DeliveryClaim, *, status: int | None, note: str) -> bool:
        """Record the arrival; all waiting deliveries of the receiver become due. Return False if the claim was lost."""
        if not self.write(
            session, claim, work="", state="delivered", lease_until=None, answer_status=status, error=note,
            delivered_at=utc_now(),
        ):  # fmt: skip
            return False
        _update_deliveries(
            session, and_(col(DeliveryRow.receiver_id) == claim.receiver_id, _may_be_due_early()), lease_until=None
        )
        return True

    def postponed(
        self, session: Session, claim: DeliveryClaim, *, again_at: datetime, status: int | None, error: str
    ) -> bool:
        """Try again at `again_at`. The receiver's other deliveries also wait, because one attempt shows if it is back.

        They do not wait if the receiver has accepted another delivery since, because then it refuses only this one.
        Return False, with nothing written, if the claim was lost.
        """
        if not self.write(session, claim, work="waiting", lease_until=again_at, answer_status=status, error=error):
            return False
        columns = self.table.c
        is_same_receiver = columns.receiver_id == claim.receiver_id
        arrived = select(columns.id).where(is_same_receiver, columns.delivered_at > claim.created_at).limit(1)
        if session.execute(arrived).first() is not None:
            return True
        is_earlier = or_(columns.lease_until.is_(None), columns.lease_until < again_at)
        others = and_(
            is_same_receiver,
            columns.id != claim.row_id,
            or_(columns.work == "enqueued", and_(columns.work == "waiting", is_earlier)),
        )
        session.execute(update(self.table).where(others).values(work="waiting", lease_until=again_at))
        return True

    def given_up(self, session: Session, claim: DeliveryClaim, *, status: int | None, error: str) -> bool:
        """Record the failure. Users can send the delivery again from the list. Return False if the claim was lost."""
        return self.write(session, claim, work="", state="failed", lease_until=None, answer_status=status, error=error)

    def stop(self, session: Session, receiver_id: int) -> int:
        """Fail the pending deliveries of a paused receiver, with the reason. Return their number."""
        is_pending = and_(col(DeliveryRow.receiver_id) == receiver_id, col(DeliveryRow.work) != "")
        why = case((col(DeliveryRow.error) == "", PAUSED), else_=col(DeliveryRow.error) + f" {PAUSED_THEN}")
        return _update_deliveries(session, is_pending, work="", state="failed", lease_until=None, error=why)

    def make_due(self, session: Session, receiver_id: int, subject: str) -> None:
        """Make the waiting deliveries of the subject due now; they keep their order."""
        is_same = and_(col(DeliveryRow.receiver_id) == receiver_id, col(DeliveryRow.subject) == subject)
        _update_deliveries(session, and_(is_same, _may_be_due_early()), lease_until=None)

    def send_now(self, session: Session, row: DeliveryRow) -> None:
        """Make a waiting delivery due now, regardless of past attempts, together with those that must precede it."""
        before = and_(
            col(DeliveryRow.receiver_id) == row.receiver_id, col(DeliveryRow.subject) == row.subject,
            col(DeliveryRow.subject) != "", col(DeliveryRow.id) < row.id,
        )  # fmt: skip
        is_chosen = and_(col(DeliveryRow.work) == "waiting", or_(col(DeliveryRow.id) == row.id, before))
        _update_deliveries(session, is_chosen, lease_until=None)

    @staticmethod
    def _is_next() -> ColumnElement[bool]:
        """Return the condition that no older delivery of the same subject to the same receiver is pending."""
        table: Table = table_of(DeliveryRow)
        columns, older = table.c, table.alias("older").c
        before = select(older.id).where(
            older.receiver_id == columns.receiver_id, older.subject == columns.subject, older.work != "",
            older.id < columns.id,
        )  # fmt: skip
        return or_(columns.subject == "", ~before.correlate(table).exists())


def _may_be_due_early() -> ColumnElement[bool]:
    """Return the condition for deliveries that may become due early: waiting, and with attempts left."""
    return and_(col(DeliveryRow.work) == "waiting", col(DeliveryRow.attempts) < ATTEMPTS)


def _update_deliveries(session: Session, condition: ColumnElement[bool], **values: Any) -> int:
    statement = update(DeliveryRow).where(condition).values(**values).execution_options(synchronize_session=False)
    return cast("CursorResult[Any]", session.execute(statement)).rowcount


# --- Profiles to read.


class ProfileQueue(WorkQueue):
    def __init__(self) -> None:
        status = table_of(ProfileRow).c.status
        super().__init__(
            ProfileRow,
            returning=("wanted",),
            on_claim={"status": case((status == "received", "processing"), else_=status)},
            on_give_back={"status": case((status == "processing", "received"), else_=status)},
        )

    def claim(self, session: Session, profile_id: int, settings: Settings) -> Claim | None:
        """Claim a waiting or abandoned profile; None if another worker has it or there is nothing to do."""
        row = self._take(session, profile_id, self.times(settings))
        return None if row is None else Claim(profile_id, row.claims, row.attempts, row.wanted)

    def finish(self, session: Session, claim: Claim, **columns: Any) -> bool:
        """Write the result and end the claim. Return False, with nothing written, when the claim was lost."""
        ended = self.finished(self.is_unchanged, utc_now())
        return self.write(session, claim, **ended, processed_at=utc_now(), **columns)


run_queue = RunQueue()
profile_queue = ProfileQueue()
stack_queue = StackQueue()
delivery_queue = DeliveryQueue()
