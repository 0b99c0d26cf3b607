"""Evaluate the rules for a run that was read, and store which fire, for the counts of the playbook."""

import time

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.rules.engine import evaluate
from app.errors import NotFound, NotReady
from app.settings import Settings
from app.storage import rules as rule_firings
from app.storage.database import read_session, transaction
from app.storage.rules import AdvisedRun, RulesInForce, RunInMemory, read_run, rules_in_force
from app.storage.worker_activity import timed

log = structlog.get_logger(__name__)

BATCH_RUNS = 200
BATCH_SECONDS = 2.0
"""An upload waits for one batch at most: this many runs or this many seconds."""


@timed("rules")
def evaluate_rules(engine: Engine, settings: Settings, run_id: int) -> None:
    """Evaluate the rules for a run, unless its current figures were evaluated by the current rules already."""
    rules = rules_in_force(settings)
    with read_session(engine) as session:
        if not rule_firings.is_due(session, run_id, rules.version):
            return
    _evaluate(engine, rules, run_id)


@timed("rules")
def evaluate_at_once(session: Session, rules: RulesInForce, run_id: int, in_memory: RunInMemory) -> None:
    """Evaluate the rules for a run in the transaction that read and judged it."""
    advised = read_run(session, run_id, in_memory)
    if advised.run.status not in rule_firings.DONE:
        return
    fired = _fired(advised, rules)
    rule_firings.keep_firings(
        session, run_id, fired, rules.version, processed_at=advised.run.processed_at, is_first=in_memory.is_new
    )


def evaluate_next_runs(engine: Engine, settings: Settings) -> int:
    """Evaluate the rules for runs that still lack them: left by a killed worker, or all when the rules changed.

    Return the number of runs evaluated.
    """
    rules = rules_in_force(settings)
    with read_session(engine) as session:
        runs = rule_firings.due(session, rules.version, BATCH_RUNS)
    began = time.monotonic()
    for number, run_id in enumerate(runs, start=1):
        _evaluate(engine, rules, run_id)
        if time.monotonic() - began > BATCH_SECONDS:
            return number
    return len(runs)


def _evaluate(engine: Engine, rules: RulesInForce, run_id: int) -> None:
    try:
        with read_session(engine) as session:
            advised = read_run(session, run_id)
    except (NotFound, NotReady):  # deleted or requested again at this moment
        return
    fired = _fired(advised, rules)
    with transaction(engine) as session:
        rule_firings.keep_firings(session, run_id, fired, rules.version, processed_at=advised.run.processed_at)


def _fired(advised: AdvisedRun, rules: RulesInForce) -> list[str]:
    run_id = advised.run.id
    try:
        result = evaluate(advised.facts, rules.book, settings=rules.thresholds)
    except ValueError:  # a fact of the wrong type: nothing fires, and the run is not evaluated again and again
        log.exception("rules_not_asked", run_id=run_id)
        return []
    for rule, error in result.broken:
        log.warning("rule_broken", rule=rule.id, origin=rule.origin, run_id=run_id, error=error)
    return [firing.rule.id for firing in result.fired]
