"""Decisions of users about runs and stacks: quarantine, pins, their proposals, and baseline rules.

Each function writes the decision and its audit record in one transaction, requests that the affected stacks are judged
again, and returns the ids to pass to `enqueue(JUDGE_STACK, id)` after the commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.text import one_line
from app.domain.verdict.history_view import Pin
from app.errors import FieldError, InvalidChange, NotFound
from app.pipeline.notify import notify_proposal
from app.pipeline.work import stack_queue
from app.storage import audit
from app.storage.audit import MAX_NOTE
from app.storage.runs import ENDED_BADLY, get_run
from app.storage.tables import (
    EVERYTHING,
    GoldenProposalRow,
    PinRow,
    ProjectRow,
    RunRow,
    StackWorkRow,
    from_row,
    select_any,
    utc_now,
)

MAX_BRANCH = 300


def quarantine(session: Session, run_id: int, who: str, reason: str) -> list[int]:
    """Exclude a run from all baselines, segments and rankings. Raises NotFound, InvalidChange."""
    who, reason = checked(who, reason, needed=True)
    run = get_run(session, run_id)
    work_ids = _judge_again(session, run, f"Run {run_id} was quarantined: {reason}")
    before = {"quarantine": run.quarantine}
    run.quarantine, run.quarantined_by, run.quarantined_at = reason, who, utc_now()
    _record(session, run, who, "quarantine", reason, before=before, after={"quarantine": reason})
    return work_ids


def release(session: Session, run_id: int, who: str, note: str = "") -> list[int]:
    """Release a run from quarantine, if it is quarantined. Raises NotFound, InvalidChange."""
    who, note = checked(who, note)
    run = get_run(session, run_id)
    if not run.quarantine:
        return []
    work_ids = _judge_again(session, run, f"Run {run_id} was released from quarantine.")
    before = {"quarantine": run.quarantine}
    run.quarantine, run.quarantined_by, run.quarantined_at = "", "", None
    _record(session, run, who, "release", note, before=before, after={"quarantine": ""})
    return work_ids


def pin(session: Session, run_id: int, who: str, note: str = "") -> list[int]:
    """Make a run the golden baseline of its stack, replacing the previous one. Raises NotFound, InvalidChange.

    This decides all open proposals of the stack.
    """
    who, note = checked(who, note)
    run = get_run(session, run_id)
    _require_eligible(run)
    others = _in_force(session, run.project_id, run.stack_key)
    if [pin.run_id for pin in others] == [run_id]:
        return []
    before = {"pinned": [pin.run_id for pin in others]}
    positions = [run.ordered_at, *(session.get_one(RunRow, pin.run_id).ordered_at for pin in others)]
    work_ids = _judge_again(session, run, f"Run {run_id} was pinned as the golden baseline.", min(positions))
    for pin in others:
        pin.unpinned_by, pin.unpinned_at = who, utc_now()
    session.add(PinRow(project_id=run.project_id, stack_key=run.stack_key, run_id=run_id, pinned_by=who, note=note))
    for proposal in _open_proposals(session, run):
        _decide(proposal, "approved" if proposal.run_id == run_id else "superseded", who, note)
    _record(session, run, who, "pin", note, before=before, after={"pinned": [run_id]})
    return work_ids


def unpin(session: Session, pin_id: int, who: str, note: str) -> list[int]:
    """End a pin if it is active. Raises NotFound, InvalidChange."""
    who, note = checked(who, note)
    pin = session.get(PinRow, pin_id)
    if pin is None:
        raise NotFound(f"Pin {pin_id} does not exist. The run may have been deleted.")
    if pin.unpinned_at is not None:
        return []
    run = get_run(session, pin.run_id)
    because = f"Run {run.id} is no longer pinned as the golden baseline."
    position = run.ordered_at
    work_ids = [stack_queue.request(session, pin.project_id, pin.stack_key, judge_from=position, because=because)]
    pin.unpinned_by, pin.unpinned_at = who, utc_now()
    _record(session, run, who, "unpin", note, before={"pinned": [run.id]}, after={"pinned": []})
    return work_ids


# --- Proposals of golden runs: a job or a user proposes, and another user decides.


@dataclass(frozen=True, slots=True)
class GoldenProposal:
    """A proposed golden run. `state` as in `GoldenProposalRow`; `decided_at` is None while it is open."""

    id: int
    run_id: int
    run_name: str
    state: str
    proposed_by: str
    proposed_at: datetime
    note: str
    decided_by: str
    decided_at: datetime | None
    reason: str


def propose(session: Session, run_id: int, who: str, note: str = "") -> list[int]:
    """Propose a run as golden run unless it is already proposed or pinned. Raises NotFound, InvalidChange."""
    who, note = checked(who, note)
    run = get_run(session, run_id)
    _require_eligible(run)
    session.refresh(run, with_for_update=True)
    pinned = [pin.run_id for pin in _in_force(session, run.project_id, run.stack_key)]
    if run_id in pinned or any(other.run_id == run_id for other in _open_proposals(session, run)):
        return []
    proposal = GoldenProposalRow(
        project_id=run.project_id, stack_key=run.stack_key, run_id=run_id, proposed_by=who, note=note
    )
    session.add(proposal)
    _record(session, run, who, "propose_pin", note, before={"pinned": pinned}, after={"proposed": [run_id]})
    session.flush()
    notify_proposal(session, run, proposal.id or 0, who, note)
    return []


def approve(session: Session, run_id: int, who: str, note: str = "") -> list[int]:
    """Pin a run that another user proposed. Raises NotFound, InvalidChange."""
    who, note = checked(who, note)
    run = get_run(session, run_id)
    own = _open_proposal(session, run)
    if own.proposed_by == who:
        raise InvalidChange.of_field("author", f"must be a user other than {who}, who proposed the run")
    return pin(session, run_id, who, note or own.note)


def decline(session: Session, run_id: int, who: str, note: str = "") -> list[int]:
    """Decline a proposal, or withdraw one's own; a reason is required. Raises NotFound, InvalidChange."""
    who, note = checked(who, note, needed=True)
    run = get_run(session, run_id)
    _decide(_open_proposal(session, run), "declined", who, note)
    _record(session, run, who, "decline_pin", note, before={"proposed": [run_id]}, after={"proposed": []})
    return []


def proposals(session: Session, project_id: int, stack_key: str) -> tuple[GoldenProposal, ...]:
    """Return all proposals of the stack, open and decided, newest first."""
    rows = session.execute(
        select_any(GoldenProposalRow, RunRow.name)
        .join(RunRow, col(RunRow.id) == GoldenProposalRow.run_id)
        .where(col(GoldenProposalRow.project_id) == project_id, col(GoldenProposalRow.stack_key) == stack_key)
        .order_by(col(GoldenProposalRow.id).desc())
    )
    return tuple(from_row(GoldenProposal, row, run_name=name) for row, name in rows)


def _require_eligible(run: RunRow) -> None:
    """Raise InvalidChange for a run that can never be a baseline, or that belongs to an experiment."""
    if run.status != "ready" or not run.stack_key:
        raise InvalidChange.of_field("run", "has no figures yet, so it cannot be a baseline")
    if run.outcome in ENDED_BADLY or run.quarantine:
        raise InvalidChange.of_field("run", "failed or is quarantined, so it is never part of a baseline")
    if run.purpose == "experiment":
        raise InvalidChange.of_field(
            "run",
            "has the purpose experiment, so it cannot be the golden baseline. "
            "Run its configuration with the purpose ci, and propose that run",
        )


def _open_proposals(session: Session, run: RunRow) -> Sequence[GoldenProposalRow]:
    chosen = select(GoldenProposalRow).where(
        col(GoldenProposalRow.project_id) == run.project_id,
        col(GoldenProposalRow.stack_key) == run.stack_key,
        col(GoldenProposalRow.state) == "open",
    )
    return session.execute(chosen).scalars().all()


def _open_proposal(session: Session, run: RunRow) -> GoldenProposalRow:
    for proposal in _open_proposals(session, run):
        if proposal.run_id == run.id:
            return proposal
    raise InvalidChange.of_field("run", "has no open proposal to be the golden baseline")


def _decide(proposal: GoldenProposalRow, state: str, who: str, reason: str) -> None:
    proposal.state, proposal.decided_by, proposal.decided_at, proposal.reason = state, who, utc_now(), reason


def set_baseline_rules(session: Session, project: ProjectRow, who: str, *, baseline_branch: str) -> list[int]:
    """Set the branch whose `ci` runs serve as baselines of the project; `*` for any branch. Raises InvalidChange."""
    who, _ = checked(who, "")
    branch = one_line(baseline_branch)
    if not 0 < len(branch) <= MAX_BRANCH:
        raise InvalidChange.of_field(
            "baseline_branch", f"must name a branch in 1 to {MAX_BRANCH} characters, or * for any"
        )
    if branch == project.baseline_branch:
        return []
    because = f"The baseline branch was changed from {project.baseline_branch} to {branch}."
    work_ids = judge_project_again(session, project.id or 0, because)
    before, after = {"baseline_branch": project.baseline_branch}, {"baseline_branch": branch}
    project.baseline_branch = branch
    session.add(project)
    audit.record_project(session, project.id, "baseline_branch", who=who, before=before, after=after)
    return work_ids


def judge_project_again(session: Session, project_id: int, because: str) -> list[int]:
    """Request that all runs of all stacks of a project are judged again."""
    keys = session.execute(
        select_any(StackWorkRow.stack_key)
        .where(col(StackWorkRow.project_id) == project_id)
        .order_by(col(StackWorkRow.stack_key))
    ).scalars()
    return [stack_queue.request(session, project_id, key, judge_from=EVERYTHING, because=because) for key in keys]


def pins(session: Session, project_id: int, stack_keys: Sequence[str]) -> dict[str, list[Pin]]:
    """Return all pins of stacks of one project by stack key, active and ended, newest first."""
    rows = session.execute(
        select_any(PinRow, RunRow.name)
        .join(RunRow, col(RunRow.id) == PinRow.run_id)
        .where(col(PinRow.project_id) == project_id, col(PinRow.stack_key).in_(stack_keys))
        .order_by(col(PinRow.id).desc())
    )
    of_stacks: dict[str, list[Pin]] = {}
    for row, name in rows:
        of_stacks.setdefault(row.stack_key, []).append(from_row(Pin, row, run_name=name))
    return of_stacks


def _in_force(session: Session, project_id: int, stack_key: str) -> list[PinRow]:
    chosen = select(PinRow).where(
        col(PinRow.project_id) == project_id, col(PinRow.stack_key) == stack_key, col(PinRow.unpinned_at).is_(None)
    )
    return list(session.execute(chosen.order_by(col(PinRow.id))).scalars())


def _judge_again(session: Session, run: RunRow, because: str, judge_from: datetime | None = None) -> list[int]:
    if not run.stack_key:
        return []
    # All code locks the stack before the run, so that two transactions never wait for each other.
    position = judge_from or run.ordered_at
    work_id = stack_queue.request(session, run.project_id, run.stack_key, judge_from=position, because=because)
    session.refresh(run, with_for_update=True)
    return [work_id]


def checked(who: str, note: str, *, needed: bool = False) -> tuple[str, str]:
    """Return author and note as stored. `needed`: a note is required. Raises InvalidChange naming the fields."""
    who, note = one_line(who), one_line(note)
    errors = audit.author_errors(who)
    if len(note) > MAX_NOTE or (needed and not note):
        errors.append(FieldError("note", f"must have {'1 to' if needed else 'at most'} {MAX_NOTE:,} characters"))
    if errors:
        raise InvalidChange.of(*errors)
    return who, note


def _record(session: Session, run: RunRow, who: str, action: str, note: str, **sides: Mapping[str, object]) -> None:
    """Write the audit record with `before` and `after`: about the run for a quarantine, about the stack for a pin."""
    audit.record(
        session, who=who, action=action, project_id=run.project_id, note=note,
        subject="stack" if "pin" in action else "run",
        subject_id=run.stack_key if "pin" in action else run.id or 0, **sides,
    )  # fmt: skip
