"""Judge a stack: claim it, judge the runs that wait or that an earlier change affects, then rank it.

A verdict depends only on earlier runs, and a request stays in the stack's row until its result is stored. So the order
of arrival, the number of messages and killed workers do not matter. Verdicts are committed first, because jobs wait for
them; the standings do not need verdicts and follow in a second transaction. If a stack has no other work, a new run
needs no claim: it is judged in the transaction that stores it (`judge_at_once`).
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Engine, bindparam, delete, select
from sqlmodel import Session, col

from app.domain.definitions import VERDICT_VERSION
from app.domain.run import Stated
from app.domain.verdict.alarms import move_of
from app.domain.verdict.assess import changed_field
from app.domain.verdict.document import MeasuredContrast, VerdictDocument
from app.domain.verdict.evidence import value_text
from app.domain.verdict.step_time import StepTimeChange
from app.pipeline import rank
from app.pipeline.assess import (
    LOOK_BACK,
    Assessor,
    Candidate,
    Concerns,
    StackToJudge,
    read_stack,
    runs_since,
    stacks_to_judge_for_reference,
    upgrades_from,
    waiting_for_contrast,
)
from app.pipeline.experiments import follow_experiments
from app.pipeline.notify import notify_upgrade, notify_verdicts
from app.pipeline.regressions import follow_regressions
from app.pipeline.work import ELSEWHERE, StackChange, StackClaim, Work, stack_queue
from app.queue import JUDGE_STACK, enqueue
from app.settings import Settings
from app.storage import json_text
from app.storage.database import fault_of, read_session, transaction
from app.storage.json_text import to_json
from app.storage.stacks import newest_runs
from app.storage.tables import EVERYTHING, RunRow, StackWorkRow, UpgradeChangeRow, select_any, utc_now
from app.storage.verdicts import put_verdict, stored_documents
from app.storage.worker_activity import timed

# --- Store the effects of upgrades for lists, in the transaction of the verdicts.


def follow_upgrades(session: Session, stack: StackToJudge, judged: Sequence[tuple[Candidate, VerdictDocument]]) -> None:
    """Store the effect of the upgrade that started a stack, for each judged candidate. Later results replace earlier
    ones."""
    may_have_changes = stack.concerns.moved
    for candidate, document in judged:
        if document.upgrade is None and document.decision != "no_baseline":
            continue
        newest = candidate.newest
        same = (
            col(UpgradeChangeRow.project_id) == stack.project_id,
            col(UpgradeChangeRow.stack_key) == stack.stack_key,
            col(UpgradeChangeRow.config_key) == newest.config_key,
            col(UpgradeChangeRow.job) == newest.job,
        )
        contrast = move_of(document, newest.purpose)
        time = None if contrast is None else contrast.measured.step_time
        if contrast is None or time is None:
            if may_have_changes:
                session.execute(delete(UpgradeChangeRow).where(*same))
            continue
        values = _values(session, stack, candidate, contrast, time)
        row = session.execute(select(UpgradeChangeRow).where(*same)).scalar_one_or_none()
        before = "" if row is None else row.decision
        if row is None:
            row = UpgradeChangeRow(
                project_id=stack.project_id, stack_key=stack.stack_key, config_key=newest.config_key, job=newest.job,
                **values,
            )  # fmt: skip
            session.add(row)
            may_have_changes = True
        elif document.comparability is None:
            row.sqlmodel_update(values)
        else:  # keep the first run, which the measurement excludes if it is unsteady
            row.sqlmodel_update({name: value for name, value in values.items() if name not in ("run_id", "at")})
        if row.decision == "improvement" != before and not row.side_by_side:
            session.flush()
            notify_upgrade(session, row)


_STACK_OF_RUN = select_any(RunRow.stack_key).where(col(RunRow.id) == bindparam("run"))


def _values(
    session: Session, stack: StackToJudge, candidate: Candidate, contrast: MeasuredContrast, time: StepTimeChange
) -> dict[str, Any]:
    comparability, measured = contrast.comparability, contrast.measured
    difference = changed_field(comparability)
    first = next((run for run in stack.runs if run.facts.run in measured.candidates_used), candidate.runs[0])
    return {
        "from_stack_key": session.execute(_STACK_OF_RUN, {"run": int(contrast.runs[-1])}).scalar_one(),
        "run_id": first.id,
        "at": first.ordered_at,
        "field": difference.field,
        "from_value": value_text(difference.a),
        "to_value": value_text(difference.b),
        "others": len(comparability.stack) + len(comparability.knobs) - 1,
        "side_by_side": contrast.side_by_side,
        "decision": time.decision,
        "level": math.log(time.candidate_ms),
        "delta_pct": time.delta_pct,
        "ci_low_pct": time.ci_low_pct,
        "ci_high_pct": time.ci_high_pct,
        "runs": len(measured.candidates_used),
        "from_runs": len(measured.baseline_used),
        "measured": to_json(measured),
    }


# --- Judging a stack.

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1
_SHARE_OF_LEASE = 0.25
"""Share of the lease after which a pass ends and requests the next, so that the first verdicts appear early."""
_SHORT_SECONDS = 1.0

FIRST = "It was read."
"""Reason of a run's first verdict."""

Judged = tuple[Candidate, VerdictDocument]


@dataclass(frozen=True, slots=True)
class JudgingPass:
    """The verdicts of one claim. `go_on_from`: the history position at which the next pass continues; None if done.

    `contracts`: those that were read, by run.
    """

    stack: StackToJudge
    judged: tuple[Judged, ...]
    go_on_from: datetime | None
    seconds: float
    contracts: Mapping[int, Mapping[str, Stated]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`changed`: number of runs with a new verdict. `may_enqueue`: enqueue remaining work now; else the sweep does."""

    changed: int
    may_enqueue: bool


def judge_run(engine: Engine, settings: Settings, run_id: int) -> None:
    """Judge the stack of a run that was just read, unless another worker does or nothing waits."""
    with read_session(engine) as session:
        work_id = session.execute(
            select_any(StackWorkRow.id)
            .join(
                RunRow,
                (col(RunRow.project_id) == StackWorkRow.project_id) & (col(RunRow.stack_key) == StackWorkRow.stack_key),
            )
            .where(col(RunRow.id) == run_id, col(StackWorkRow.work) == "waiting")
        ).scalar_one_or_none()
    if work_id is not None:
        judge_stack(engine, settings, work_id)


def judge_stack(engine: Engine, settings: Settings, work_id: int) -> int | None:
    """Judge one stack, then rank it. Return the number of runs with a new verdict.

    Returns None if nothing waited or another worker has the stack. Any number of workers may call this any number of
    times; the result is stored once.
    """
    with transaction(engine) as session:
        claim = stack_queue.claim(session, work_id, settings)
    if claim is None:
        return None
    outcome: Outcome | None = None
    try:
        outcome = give_verdicts(engine, settings, claim)
        if outcome is not None and rank_again(engine, settings, claim) == "waiting" and outcome.may_enqueue:
            enqueue(JUDGE_STACK, work_id)
    except Exception as error:
        log.exception("stack_not_judged", work_id=work_id, stack_key=claim.stack_key, claim=claim.number)
        with transaction(engine) as session:
            again_at = utc_now() + timedelta(seconds=_RETRY_SECONDS)
            stack_queue.give_back(session, claim, again_at=again_at, counts=fault_of(error) is None)
    return None if outcome is None else outcome.changed


@timed("judge")
def give_verdicts(engine: Engine, settings: Settings, claim: StackClaim) -> Outcome | None:
    """Judge the claimed stack and commit the verdicts. Return None if the claim was lost."""
    with stack_queue.renewed(engine, claim, settings.lease_seconds), read_session(engine) as session:
        finished = _judge(session, read_stack(session, claim), settings)
        elsewhere = _elsewhere(session, claim, finished.stack) | stacks_to_judge_for_reference(
            session, finished.stack, finished.judged
        )
    # Before the claim ends, so that no request is lost; in its own transaction, so that two stacks never deadlock.
    for other in _request_elsewhere(engine, claim.project_id, elsewhere):
        enqueue(JUDGE_STACK, other)
    with transaction(engine) as session:
        changed = _write(session, claim, finished, settings)
    may_enqueue = finished.go_on_from is not None or finished.seconds < _SHORT_SECONDS
    return None if changed is None else Outcome(changed, may_enqueue)


@timed("rank")
def rank_again(engine: Engine, settings: Settings, claim: StackClaim) -> Work | None:
    """Rank the stack and end the claim. Return its new state; None if the claim was lost."""
    with stack_queue.renewed(engine, claim, settings.lease_seconds), read_session(engine) as session:
        ranked = rank.rank(session, claim.project_id, claim.stack_key)
    with transaction(engine) as session:
        work = stack_queue.finish(session, claim)
        if work is None:
            log.warning("standings_dropped", stack_key=claim.stack_key, claim=claim.number)
        else:
            rank.keep(session, ranked)
    return work


MOST_AT_ONCE = 4
"""Maximum candidates that are judged in the transaction that stores a run. More would block others for too long."""


@dataclass(frozen=True, slots=True)
class JudgedAtOnce:
    """The verdict of a run that was judged at once. `may_notify`: its project has receivers."""

    document: VerdictDocument
    may_notify: bool


@timed("judge")
def judge_at_once(session: Session, settings: Settings, change: StackChange) -> JudgedAtOnce | None:
    """Judge and rank the stack of a run that this transaction stored; the caller has locked the stack's idle row.

    Return None, with nothing written, if this would take too long or concerns other stacks.
    """
    newest = newest_runs(session, (change.project_id, change.stack_key), LOOK_BACK + MOST_AT_ONCE + 1)
    changed = len(runs_since(newest, change.judge_from))
    waiting = any(not run.verdict and run.reception != "receiving" for run in newest[: len(newest) - changed])
    if waiting or not 0 < changed <= MOST_AT_ONCE:
        return None
    stack = read_stack(session, change, newest)
    if not any(change.run_id in candidate.ids for candidate in stack.to_judge):
        return None
    concerned = stack.concerns
    if concerned.others and _elsewhere(session, change, stack):
        return None
    finished = _judge(session, stack, settings)
    if finished.go_on_from is not None or stacks_to_judge_for_reference(session, stack, finished.judged):
        return None
    _write_verdicts(session, change, finished, concerned)
    read = rank.InMemory(newest, finished.contracts, concerned.missing)
    ranked = rank.rank(session, change.project_id, change.stack_key, read=read)
    if change.is_new:
        rank.put(session, ranked)
    else:
        rank.keep(session, ranked)
    document = next(document for candidate, document in finished.judged if change.run_id in candidate.ids)
    return JudgedAtOnce(document, concerned.receivers)


def _judge(session: Session, stack: StackToJudge, settings: Settings) -> JudgingPass:
    began = time.monotonic()
    assessor = Assessor(session, stack)
    judged: list[Judged] = []
    for candidate in stack.to_judge:
        if judged and time.monotonic() - began > _SHARE_OF_LEASE * settings.lease_seconds:
            return JudgingPass(
                stack, tuple(judged), candidate.position[0], time.monotonic() - began, assessor.contracts
            )
        judged.append((candidate, assessor.document(candidate)))
    return JudgingPass(stack, tuple(judged), None, time.monotonic() - began, assessor.contracts)


def _elsewhere(session: Session, claim: StackClaim | StackChange, stack: StackToJudge) -> dict[str, datetime]:
    """Return the stacks whose contrasts may have changed because runs of this stack arrived late or changed."""
    is_own = claim.because != ELSEWHERE or any(
        not run.verdict for candidate in stack.to_judge for run in candidate.runs
    )
    positions = [candidate.position for candidate in stack.to_judge[:1]]
    if claim.judge_from is not None and not (positions and positions[0][0] <= claim.judge_from):
        positions = [(claim.judge_from, 0)]
    if not positions or claim.judge_from == EVERYTHING or not is_own:
        return {}
    upgraded = upgrades_from(session, stack)
    return upgraded | waiting_for_contrast(session, claim.project_id, claim.stack_key, positions[0])


def _request_elsewhere(engine: Engine, project_id: int, stacks: Mapping[str, datetime]) -> list[int]:
    if not stacks:
        return []
    with transaction(engine) as session:
        return [
            stack_queue.request(session, project_id, stack, judge_from=position, because=ELSEWHERE)
            for stack, position in sorted(stacks.items())
        ]


def _write(session: Session, claim: StackClaim, finished: JudgingPass, settings: Settings) -> int | None:
    """Store the verdicts and their consequences. Return the number of changed verdicts; None if the claim was lost."""
    if not stack_queue.write_verdicts(session, claim, settings, go_on_from=finished.go_on_from):
        log.warning("verdicts_dropped", stack_key=claim.stack_key, claim=claim.number)
        return None
    return _write_verdicts(session, claim, finished, finished.stack.concerns)


def _write_verdicts(
    session: Session, claim: StackClaim | StackChange, finished: JudgingPass, concerned: Concerns
) -> int:
    changed = list(_changed(session, claim, finished.judged))
    for run_id, document, stored, because in changed:
        put_verdict(session, run_id, document, because, is_first=because == FIRST, stored=stored)
    follow_regressions(session, finished.stack, finished.judged)
    follow_upgrades(session, finished.stack, finished.judged)
    if concerned.receivers:
        notify_verdicts(session, claim.project_id, claim.stack_key, [(run, document) for run, document, *_ in changed])
    if concerned.experiments:
        read_again = [run_id for candidate, _ in finished.judged for run_id in candidate.ids]
        follow_experiments(session, claim.project_id, claim.stack_key, read_again)
    log.info(
        "stack_judged",
        stack_key=claim.stack_key,
        judged=sum(len(candidate.runs) for candidate, _ in finished.judged),
        changed=len(changed),
        seconds=round(finished.seconds, 3),
    )
    return len(changed)


def _changed(
    session: Session, claim: StackClaim | StackChange, judged: Sequence[Judged]
) -> Iterator[tuple[int, VerdictDocument, Any, str]]:
    """Yield each run whose verdict differs from the stored one: id, verdict, its JSON, reason."""
    # Only this worker judges the stack, so a run that was read without a verdict still has none.
    stored = stored_documents(session, [run.id for candidate, _ in judged for run in candidate.runs if run.verdict])
    for candidate, document in judged:
        as_json = to_json(document)
        text = json_text.column_text(as_json) if stored else ""
        for run_id in candidate.ids:
            before = stored.get(run_id)
            if before is None:
                yield run_id, document, as_json, FIRST
            elif json_text.column_text(before[0]) != text or before[1] != VERDICT_VERSION:
                yield run_id, document, as_json, _because(claim, before[0].get("candidates", []), document)


def _because(claim: StackClaim | StackChange, before: Sequence[str], document: VerdictDocument) -> str:
    joined, left = set(document.candidates) - set(before), set(before) - set(document.candidates)
    if joined:
        return f"Run {', '.join(sorted(joined))}, a rerun of its commit, arrived."
    if left:
        return f"Run {', '.join(sorted(left))} no longer counts as a rerun of its commit."
    return claim.because or "Something earlier in its history changed."
