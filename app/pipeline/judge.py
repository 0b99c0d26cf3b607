"""What a worker does with a stack: claim it, judge the runs that wait or that something earlier concerns, rank it.

A verdict follows from the runs before it and from nothing else. So it does not matter in which order runs come in, how
often the bell rings, or who is killed in the middle: what was asked for stays in the stack's row until it is written.
Verdicts are committed first, because a job waits for them; the standings, which need no verdict, follow at once.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Engine, select
from sqlmodel import Session, col

from app.domain.definitions import VERDICT_VERSION
from app.domain.verdict.document import VerdictDocument
from app.pipeline import rank, stack_work
from app.pipeline.assess import Assessor, Candidate, Stack, read_stack, waiting_for_contrast
from app.pipeline.experiments import follow_experiments
from app.pipeline.notify import tell_verdicts
from app.pipeline.regressions import follow_regressions
from app.pipeline.stack_work import ELSEWHERE, StackClaim, Work, ask_to_judge
from app.queue import JUDGE_STACK, enqueue
from app.settings import Settings
from app.storage import json_text
from app.storage.database import fault_of, read_session, transaction
from app.storage.json_text import to_json
from app.storage.tables import EVERYTHING, RunRow, StackWorkRow, utc_now
from app.storage.verdicts import put_verdict, stored_documents

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1
_SHARE_OF_LEASE = 0.25
"""A pass ends well before its first lease does, and asks itself to go on, so that verdicts come in good time."""
_SHORT_SECONDS = 1.0

FIRST = "It was read."
"""Why the first verdict of a run was made."""

Judged = tuple[Candidate, VerdictDocument]


@dataclass(frozen=True, slots=True)
class Pass:
    """What one claim found. `go_on_from`: the place of the first candidate that there was no time for."""

    stack: Stack
    judged: tuple[Judged, ...]
    go_on_from: datetime | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Given:
    """`changed`: runs that got another verdict. `may_ring`: at once, when there is more to do; else the sweep does."""

    changed: int
    may_ring: bool


def judge_run(engine: Engine, settings: Settings, run_id: int) -> None:
    """Judge the stack of a run that was just read, when it waits and nobody else judges it."""
    with read_session(engine) as session:
        work_id = session.execute(
            select(StackWorkRow.id)  # type: ignore[call-overload]
            .join(
                RunRow,
                (col(RunRow.project_id) == StackWorkRow.project_id) & (col(RunRow.stack_key) == StackWorkRow.stack_key),
            )
            .where(col(RunRow.id) == run_id, col(StackWorkRow.work) == "waiting")
        ).scalar_one_or_none()
    if work_id is not None:
        judge_stack(engine, settings, work_id)


def judge_stack(engine: Engine, settings: Settings, work_id: int) -> int | None:
    """Judge one stack, then rank it. How many runs got another verdict; None when there was nothing to do, or it is
    another's.

    May be called any number of times, by any number of workers: one of them writes the result, once.
    """
    with transaction(engine) as session:
        held = stack_work.claim(session, work_id, settings)
    if held is None:
        return None
    given: Given | None = None
    try:
        given = give_verdicts(engine, settings, held)
        if given is not None and rank_again(engine, settings, held) == "waiting" and given.may_ring:
            enqueue(JUDGE_STACK, work_id)
    except Exception as error:
        log.exception("stack_not_judged", work_id=work_id, stack_key=held.stack_key, claim=held.number)
        with transaction(engine) as session:
            again_at = utc_now() + timedelta(seconds=_RETRY_SECONDS)
            stack_work.give_back(session, held, again_at=again_at, counts=fault_of(error) is None)
    return None if given is None else given.changed


def give_verdicts(engine: Engine, settings: Settings, held: StackClaim) -> Given | None:
    """Judge what a claim is for, and commit it. None when the claim was lost."""
    with stack_work.kept(engine, held, settings.lease_seconds), read_session(engine) as session:
        found = _assess(session, held, settings)
        elsewhere = _elsewhere(session, held, found.stack)
    # Before the claim ends, so that it is not forgotten; apart from it, so that no two stacks wait for each other.
    for other in _ask(engine, held.project_id, elsewhere):
        enqueue(JUDGE_STACK, other)
    with transaction(engine) as session:
        changed = _write(session, held, found, settings)
    may_ring = found.go_on_from is not None or found.seconds < _SHORT_SECONDS
    return None if changed is None else Given(changed, may_ring)


def rank_again(engine: Engine, settings: Settings, held: StackClaim) -> Work | None:
    """Rank the stack and end the claim. What it does now; None when the claim was lost."""
    with stack_work.kept(engine, held, settings.lease_seconds), read_session(engine) as session:
        ranked = rank.rank(session, held.project_id, held.stack_key)
    with transaction(engine) as session:
        work = stack_work.finish(session, held)
        if work is None:
            log.warning("standings_dropped", stack_key=held.stack_key, claim=held.number)
        else:
            rank.keep(session, ranked)
    return work


def judge_within(session: Session, settings: Settings, work_id: int) -> int | None:
    """The same in one transaction of the caller's: for what fills a database."""
    held = stack_work.claim(session, work_id, settings)
    if held is None:
        return None
    changed = _write(session, held, _assess(session, held, settings), settings)
    stack_work.finish(session, held)
    rank.keep(session, rank.rank(session, held.project_id, held.stack_key))
    return changed


def _assess(session: Session, held: StackClaim, settings: Settings) -> Pass:
    began = time.monotonic()
    stack = read_stack(session, held)
    assessor = Assessor(session, stack)
    judged: list[Judged] = []
    for candidate in stack.to_judge:
        if judged and time.monotonic() - began > _SHARE_OF_LEASE * settings.lease_seconds:
            return Pass(stack, tuple(judged), candidate.place[0], time.monotonic() - began)
        judged.append((candidate, assessor.document(candidate)))
    return Pass(stack, tuple(judged), None, time.monotonic() - began)


def _elsewhere(session: Session, held: StackClaim, stack: Stack) -> dict[str, datetime]:
    """The stacks whose contrasts may be others now, because runs of this one came late or changed."""
    is_own = held.because != ELSEWHERE or any(not run.verdict for one in stack.to_judge for run in one.runs)
    places = [one.place for one in stack.to_judge[:1]]
    if held.judge_from is not None and not (places and places[0][0] <= held.judge_from):
        places = [(held.judge_from, 0)]
    if not places or held.judge_from == EVERYTHING or not is_own:
        return {}
    return waiting_for_contrast(session, held.project_id, held.stack_key, places[0])


def _ask(engine: Engine, project_id: int, stacks: Mapping[str, datetime]) -> list[int]:
    if not stacks:
        return []
    with transaction(engine) as session:
        return [
            ask_to_judge(session, project_id, stack, judge_from=place, because=ELSEWHERE)
            for stack, place in sorted(stacks.items())
        ]


def _write(session: Session, held: StackClaim, found: Pass, settings: Settings) -> int | None:
    """How many runs got another verdict; None when the claim was lost."""
    if not stack_work.judged(session, held, settings, go_on_from=found.go_on_from):
        log.warning("verdicts_dropped", stack_key=held.stack_key, claim=held.number)
        return None
    changed = list(_changed(session, held, found.judged))
    for run_id, document, stored, because in changed:
        put_verdict(session, run_id, document, because, is_first=because == FIRST, stored=stored)
    follow_regressions(session, found.stack, found.judged)
    tell_verdicts(session, held.project_id, held.stack_key, [(run, document) for run, document, *_ in changed])
    read_again = [run_id for candidate, _ in found.judged for run_id in candidate.ids]
    follow_experiments(session, held.project_id, held.stack_key, read_again)
    log.info(
        "stack_judged",
        stack_key=held.stack_key,
        judged=sum(len(candidate.runs) for candidate, _ in found.judged),
        changed=len(changed),
        seconds=round(found.seconds, 3),
    )
    return len(changed)


def _changed(
    session: Session, held: StackClaim, judged: Sequence[Judged]
) -> Iterator[tuple[int, VerdictDocument, Any, str]]:
    """Runs whose verdict is another one than the one they have, also as JSON, each with the reason why it was made."""
    # Nobody else judges this stack, so a run without a verdict when it was read still has none.
    stored = stored_documents(session, [run.id for candidate, _ in judged for run in candidate.runs if run.verdict])
    for candidate, document in judged:
        made = to_json(document)
        text = json_text.dumps(made) if stored else ""
        for run_id in candidate.ids:
            known = stored.get(run_id)
            if known is None:
                yield run_id, document, made, FIRST
            elif json_text.dumps(known[0]) != text or known[1] != VERDICT_VERSION:
                yield run_id, document, made, _because(held, known[0].get("candidates", []), document)


def _because(held: StackClaim, before: Sequence[str], document: VerdictDocument) -> str:
    came, left = set(document.candidates) - set(before), set(before) - set(document.candidates)
    if came:
        return f"Run {', '.join(sorted(came))}, a rerun of its commit, came in."
    if left:
        return f"Run {', '.join(sorted(left))} no longer counts as a rerun of its commit."
    return held.because or "Something earlier in its history changed."
