"""The built-in rules over the shared logs: none is broken by a real contract, and the stepper has its reasons."""

from collections.abc import Iterator

from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_log
from app.domain.performance.summary import summarise
from app.domain.rules.change import change_of
from app.domain.rules.engine import evaluate
from app.domain.rules.journey import journey
from app.domain.rules.load import built_in_rules, places
from app.domain.rules.run_facts import facts_of, reading_of
from app.domain.run import ParsedLog
from tests.shared_papers import shared_folder

LOGS = 20


def logs() -> Iterator[ParsedLog]:
    paths = sorted((shared_folder("corpus") / "logs").rglob("*.log"), key=lambda path: path.name[::-1])
    for path in paths[:LOGS]:
        yield parse_log([path.read_bytes()])


def test_no_rule_is_broken_by_a_real_contract() -> None:
    for log in logs():
        summary = summarise(log, read_metadata({}))
        told = evaluate(facts_of(reading_of(summary, arguments=log.arguments)), built_in_rules())

        assert told.broken == ()
        assert all(one.doubt for one in told.blockers if log.n)
        for one in told.fired:
            assert set(places(one.rule.why)) <= told.facts.keys(), one.rule.id
        assert all(step.because.endswith(".") for step in journey(told).steps)
        for one in told.fired:
            assert change_of(one, told.facts).megatron_lm.command == ""
