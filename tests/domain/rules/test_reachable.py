"""Every rule can fire for an upload: its facts come from a log, metadata, a profile, the database or a person."""

from app.domain.contract.fields import FIELDS
from app.domain.rules.derive import RULES, derive
from app.domain.rules.expression import FactContext
from app.domain.rules.facts import FACTS
from app.domain.rules.load import built_in_rules
from app.domain.rules.run_facts import facts_of_pair
from app.domain.rules.stated import STATEABLE
from tests.cases import every_case

OF_A_RUN = {
    *("framework", "semantic_class", "evidence_level", "fair_for_timing", "unknown_fields", "unknown_names"),
    *("is_baseline", "steps_done", "window", "window_first", "window_last", "fits", "step_s", "tokens_s_gpu"),
    *("tflops_gpu", "comm_timer_frac", "failure", "failure_text", "time_from_profile", "headroom_frac"),
}
"""What `run_facts.py` reads from figures, health and activity."""
OF_THE_SERVICE = {
    *("regression_pct", "regression_cause", "regression_undo"),
    *("fitted_run", "fitted_differs", "fitted_undo"),
}
"""What `storage/setbacks.py` finds in earlier runs."""
OF_A_PAIR = set(facts_of_pair(["tp"], step_time_pct=1.0, windows=((1, 9), (1, 9)), memory=(frozenset({"a"}),) * 2))
FOLLOWS = {name for name, _ in RULES}
STATED = {*FIELDS, *STATEABLE, *OF_A_RUN, *OF_THE_SERVICE, *OF_A_PAIR, "env"}


def can_be_supplied(name: str) -> bool:
    return name in STATED or name.startswith("env.") or FACTS[name].default is not None


def test_every_rule_fires_on_facts_that_an_upload_can_have() -> None:
    """Facts of the examples that only follow from others are left out first: they have to follow here, too."""
    with every_case() as case:
        for rule in built_in_rules().rules.values():
            with case(rule.id):
                assert any(
                    FactContext(derive(supplied)).ask(rule.when) is True
                    for example in rule.examples.fires
                    if (supplied := {name: value for name, value in example.items() if can_be_supplied(name)})
                )


def test_the_lists_name_facts() -> None:
    assert FACTS.keys() >= OF_A_RUN | OF_THE_SERVICE | OF_A_PAIR
    assert FACTS.keys() >= FOLLOWS
