"""What the rules say against a configuration that nobody ran yet: the same blockers as for a run of it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from app.domain.rules.engine import Evaluation, evaluate
from app.domain.run import Stated
from app.storage.advised_runs import AdvisedRun
from app.storage.rules_in_force import RulesInForce


def blockers_of(
    advised: AdvisedRun, candidate: Mapping[str, Stated], rules: RulesInForce, told: Evaluation
) -> Iterator[str]:
    """A sentence for each blocker that the change brings; those of the run itself (`told`) are no news."""
    planned = replace(advised, reading=replace(advised.reading, contract=candidate))
    known = {one.rule.id for one in told.fired}
    for one in evaluate(planned.facts, rules.book, settings=rules.thresholds).fired:
        if one.rule.kind == "blocker" and one.rule.id not in known:
            yield f"Such a job does not start, by the rule {one.rule.id}: {one.why}"
