"""Ask the rules of a run that was read, and keep which of them fire: what the playbook counts."""

import time

import structlog
from sqlalchemy import Engine

from app.domain.rules.engine import evaluate
from app.errors import NotFound, NotReady
from app.settings import Settings
from app.storage import rules as rule_firings
from app.storage.database import read_session, transaction
from app.storage.rules import AdvisedRun, RulesInForce, read_run, rules_in_force

log = structlog.get_logger(__name__)

BATCH_RUNS = 200
BATCH_SECONDS = 2.0
"""An upload waits for one batch at most: this many runs, or what is done after this time."""


def ask_rules(engine: Engine, settings: Settings, run_id: int) -> None:
    """Ask the rules of a run, when it was read since, or was asked others. May be called any number of times."""
    rules = rules_in_force(settings)
    with read_session(engine) as session:
        if not rule_firings.is_due(session, run_id, rules.version):
            return
    _ask(engine, rules, run_id)


def ask_next_runs(engine: Engine, settings: Settings) -> int:
    """Ask runs that nobody asked these rules yet: what a killed worker left, and all of them when rules changed."""
    rules = rules_in_force(settings)
    with read_session(engine) as session:
        runs = rule_firings.due(session, rules.version, BATCH_RUNS)
    began = time.monotonic()
    for number, run_id in enumerate(runs, start=1):
        _ask(engine, rules, run_id)
        if time.monotonic() - began > BATCH_SECONDS:
            return number
    return len(runs)


def _ask(engine: Engine, rules: RulesInForce, run_id: int) -> None:
    try:
        with read_session(engine) as session:
            advised = read_run(session, run_id)
    except (NotFound, NotReady):  # deleted, or asked to be read again, in this moment
        return
    fired = _fired(advised, rules)
    with transaction(engine) as session:
        rule_firings.keep_firings(session, run_id, fired, rules.version, processed_at=advised.run.processed_at)


def _fired(advised: AdvisedRun, rules: RulesInForce) -> list[str]:
    run_id = advised.run.id
    try:
        told = evaluate(advised.facts, rules.book, settings=rules.thresholds)
    except ValueError:  # a fact that does not suit its kind: nothing fires, and nobody asks it again and again
        log.exception("rules_not_asked", run_id=run_id)
        return []
    for rule, said in told.broken:
        log.warning("rule_broken", rule=rule.id, origin=rule.origin, run_id=run_id, said=said)
    return [one.rule.id for one in told.fired]
