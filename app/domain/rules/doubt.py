"""What a run that ran says of the blockers that its contract fires: the trainer did not stop it.

A launch that a trainer refuses makes no iterations. One that made steady ones has other values than its contract says,
or an older trainer: then the blocker is in doubt, and holds nothing back.
"""

from collections.abc import Mapping

from app.domain.rules.facts import FACTS
from app.domain.rules.rule import Rule

_NOT_OF_RUNNING = ("framework", "semantic_class")
"""Facts that a log tells which are none of how the run went."""


def ran(values: Mapping[str, object]) -> bool:
    """It made steady steps, did not run out of memory, and its loss stayed finite."""
    sound = values.get("oom") is not True and values.get("loss_finite") is not False
    return values.get("fits") is True and sound and _steps(values) > 0


def ran_in_spite(rule: Rule, values: Mapping[str, object]) -> bool:
    """A blocker that the run disproves; not one that rests on what happened in it."""
    if rule.kind != "blocker" or not ran(values):
        return False
    return not any(
        name in FACTS and FACTS[name].section == "log" and name not in _NOT_OF_RUNNING for name in rule.when.names
    )


def doubt_of(rule: Rule, values: Mapping[str, object]) -> str:
    """Why a blocker is in doubt, with the evidence; empty where it is not, and of other kinds."""
    steps = _steps(values)
    if rule.kind != "blocker" or steps <= 0:
        return ""
    why = "a field is not what really ran, or its trainer does not check it. Correct the field if it is wrong."
    if ran_in_spite(rule, values):
        steady = f", {values['window']} of them steady" if "window" in values else ""
        return f"The run ran in spite of it, {steps} iterations{steady}, so this is a warning here: {why}"
    return f"The run made {steps} iterations in spite of this: {why}"


def _steps(values: Mapping[str, object]) -> int:
    steps = values.get("steps_done")
    return steps if isinstance(steps, int) else 0
