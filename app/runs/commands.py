"""Change an existing run: corrected contract fields, described step lines, decisions. Recorded, then read again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import structlog
from sqlalchemy import Engine
from sqlmodel import Session, col

from app.domain.contract.statements import TAKE_BACK, read_statements, refused
from app.domain.logs.line_template import read_template
from app.domain.run import Stated
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange, InvalidMetadata
from app.pipeline import decisions
from app.pipeline.correction import Corrected, correct_runs
from app.pipeline.process import READ_AS, amended_fields
from app.pipeline.work import run_queue
from app.queue import JUDGE_STACK, PROCESS_RUN, enqueue
from app.storage import audit
from app.storage.audit import MAX_AUTHOR, MAX_NOTE
from app.storage.database import transaction
from app.storage.runs import get_run
from app.storage.tables import AmendmentRow, RunRow

log = structlog.get_logger(__name__)


def amend_contract(engine: Engine, run_id: int, *, fields: Mapping[str, object], author: str, note: str) -> None:
    """Record the corrections, all or none, and request that the run is read again.

    Raises NotFound, and InvalidMetadata naming `fields.NAME`, `author` or `note`.
    """
    author, note = one_line(author), one_line(note)
    stated = _checked(fields, author, note)
    with transaction(engine, durable=True) as session:
        row = get_run(session, run_id, lock=True)
        _check_taken_back(session, run_id, stated)
        for name, fact in stated.items():
            before = row.result.contract.get(name) or {}
            session.add(
                AmendmentRow(
                    run_id=run_id,
                    field=name,
                    value=None if fact is None else fact.value,
                    removed=fact is None,
                    old_value=before.get("value"),
                    old_source=before.get("source", ""),
                    author=author,
                    note=note,
                )
            )
        audit.record(
            session, who=author, subject="run", subject_id=run_id, action="contract", project_id=row.project_id,
            before={name: (row.result.contract.get(name) or {}).get("value") for name in stated},
            after={name: None if fact is None else fact.value for name, fact in stated.items()}, note=note,
        )  # fmt: skip
        session.flush()
        run_queue.request(session, col(RunRow.id) == run_id)
    log.info("run_amended", run_id=run_id, fields=list(stated))
    enqueue(PROCESS_RUN, run_id)


def _checked(fields: Mapping[str, object], author: str, note: str) -> dict[str, Stated | None]:
    """Return the statement for each field; None where a correction is withdrawn."""
    errors: list[FieldError] = []
    if not fields:
        errors.append(FieldError("fields", "must name at least one contract field"))
    errors += _wrong_author(author, note)
    values = {name: value for name, value in fields.items() if value != TAKE_BACK}
    stated: dict[str, Stated | None] = {name: None for name in fields if name not in values}
    try:
        stated |= read_statements(values, "fields")
    except InvalidMetadata as error:
        errors += error.errors
    if errors:
        raise refused(errors)
    return stated


def _wrong_author(author: str, note: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if not 0 < len(author) <= MAX_AUTHOR:
        errors.append(FieldError("author", f"must say who states it, in 1 to {MAX_AUTHOR} characters"))
    if len(note) > MAX_NOTE:
        errors.append(FieldError("note", f"must have at most {MAX_NOTE:,} characters"))
    return errors


def _check_taken_back(session: Session, run_id: int, stated: Mapping[str, Stated | None]) -> None:
    amended = amended_fields(session, run_id)
    wrong = [name for name, fact in stated.items() if fact is None and name not in amended]
    if wrong:
        raise refused([FieldError(f"fields.{name}", "has no correction to undo") for name in wrong])


# --- The description of the step lines of a log that no reader understands (`domain/logs/line_template.py`).


def describe_lines(engine: Engine, run_id: int, *, read_as: str, author: str, note: str) -> None:
    """Record how the log is to be read, and request that it is. An empty description withdraws the earlier one.

    Raises NotFound, and InvalidMetadata naming `read_as`, `author` or `note`.
    """
    read_as, author, note = one_line(read_as), one_line(author), one_line(note)
    errors = _wrong_author(author, note)
    try:
        if read_as:
            read_template(read_as)
    except ValueError as problem:
        errors.append(FieldError(READ_AS, str(problem)))
    if errors:
        raise refused(errors)
    with transaction(engine, durable=True) as session:
        row = get_run(session, run_id, lock=True)
        before = amended_fields(session, run_id).get(READ_AS)
        if before is None and not read_as:
            raise refused([FieldError(READ_AS, "has no description to withdraw")])
        old = None if before is None else before.value
        session.add(
            AmendmentRow(
                run_id=run_id,
                field=READ_AS,
                value=read_as or None,
                removed=not read_as,
                old_value=old,
                old_source="" if before is None else "metadata",
                author=author,
                note=note,
            )
        )
        audit.record(
            session, who=author, subject="run", subject_id=run_id, action="contract", project_id=row.project_id,
            before={READ_AS: old}, after={READ_AS: read_as or None}, note=note,
        )  # fmt: skip
        session.flush()
        run_queue.request(session, col(RunRow.id) == run_id)
    log.info("run_lines_described", run_id=run_id, withdrawn=not read_as)
    enqueue(PROCESS_RUN, run_id)


# --- Corrections of labels that the upload stated.


def correct(engine: Engine, run_ids: Sequence[int], changes: Mapping[str, Any], *, author: str, note: str) -> int:
    """Correct runs, all or none, and request what follows. Return how many changed.

    Raises NotFound, Conflict, and InvalidChange naming fields.
    """
    who, note = decisions.checked(author, note)
    with transaction(engine, durable=True) as session:
        corrected = correct_runs(session, sorted(set(run_ids)), changes, who=who, note=note)
    log.info("runs_corrected", runs=corrected.changed, fields=sorted(changes))
    for run_id in corrected.runs:
        enqueue(PROCESS_RUN, run_id)
    for work in corrected.stacks:
        enqueue(JUDGE_STACK, work)
    return corrected.changed


def tag_runs(engine: Engine, run_ids: Sequence[int], tag: str, *, author: str) -> None:
    """Add a tag to runs, all or none, and request what follows. Raises NotFound, Conflict, and InvalidChange."""
    who, _ = decisions.checked(author, "")
    if not tag:
        raise InvalidChange("Name the tag.", (FieldError("tag", "must not be empty"),))
    work: list[Corrected] = []
    with transaction(engine, durable=True) as session:
        for run_id in run_ids:
            row = session.get(RunRow, run_id)
            tags = [] if row is None else [other for other in row.tags if other != tag]
            work.append(correct_runs(session, [run_id], {"tags": [*tags, tag]}, who=who))
    log.info("runs_tagged", runs=len(run_ids))
    for corrected in work:
        for run_id in corrected.runs:
            enqueue(PROCESS_RUN, run_id)
    for stack in sorted({stack for corrected in work for stack in corrected.stacks}):
        enqueue(JUDGE_STACK, stack)


def quarantine_runs(engine: Engine, run_ids: Sequence[int], *, author: str, note: str) -> None:
    """Quarantine runs, all or none. Raises NotFound, and InvalidChange naming fields."""
    with transaction(engine, durable=True) as session:
        stacks = {work for run_id in run_ids for work in decisions.quarantine(session, run_id, author, note)}
    log.info("runs_quarantined", runs=len(run_ids))
    for work in sorted(stacks):
        enqueue(JUDGE_STACK, work)


# --- Decisions of users about a run: quarantine, pins and their proposals. Recorded, then judged again.

RunDecision = Literal["quarantine", "release", "pin", "unpin", "propose", "approve", "decline"]
RUN_DECISIONS: tuple[RunDecision, ...] = get_args(RunDecision)


def decide(engine: Engine, run_id: int, action: RunDecision, *, author: str, note: str = "") -> None:
    """Carry out a decision. `note` is required for a quarantine. Raises NotFound, and InvalidChange naming fields."""
    with transaction(engine, durable=True) as session:
        asked = _DO[action](session, run_id, author, note)
    log.info("run_decided", run_id=run_id, action=action)
    for work in asked:
        enqueue(JUDGE_STACK, work)


def _unpin(session: Session, run_id: int, author: str, note: str) -> list[int]:
    run = get_run(session, run_id)
    pins = decisions.pins(session, run.project_id, [run.stack_key]).get(run.stack_key, ())
    in_force = [pin.id for pin in pins if pin.run_id == run_id and pin.in_force]
    return [work for pin in in_force for work in decisions.unpin(session, pin, author, note)]


_DO: Mapping[RunDecision, Callable[[Session, int, str, str], list[int]]] = {
    "quarantine": decisions.quarantine,
    "release": decisions.release,
    "pin": decisions.pin,
    "unpin": _unpin,
    "propose": decisions.propose,
    "approve": decisions.approve,
    "decline": decisions.decline,
}
