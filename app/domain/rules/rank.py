"""In which order suggestions stand, and which are kept back for now.

Blockers first; then by phase: gates, sizing, candidates for the measured wall. Candidates for another wall than the
measured one stand last. Defaults of the bring-up come between contract and fit, for that is when they are needed.
What gained in this project's own A/Bs on this contract stands, whatever its phase and wall, before every prior: behind
the gates that say whether a measurement can be trusted, before another layout. Steps of a profile change nothing, so
they come behind what there is to try.
"""

from collections.abc import Mapping

from app.domain.rules.expression import Expression, Known, RuleError
from app.domain.rules.precedence import Standing
from app.domain.rules.rule import PHASES, Rule
from app.domain.rules.wall import WallReading

ORDER = 50
"""Place of a rule whose order depends on facts that nobody stated."""
_KINDS = {"blocker": 0, "warning": 1, "gate": 2, "sizing": 3, "candidate": 4}
_PHASES = {phase: 2 * place for place, phase in enumerate(PHASES)}
_BRING_UP = 1
_GAINED = _PHASES["profile"]
"""Its kind puts it behind the gates of the profile."""

Key = tuple[int, int, int, int, float, int, int, str]


def order_of(rule: Rule, known: Known, wall: WallReading, standing: Standing) -> Key:
    """The key by which suggestions are sorted, small first."""
    gained = rule.kind == "candidate" and standing.own_order < 0
    measured = wall.certainty == "measured" and rule.kind == "candidate" and not gained
    return (
        0 if rule.kind == "blocker" else 1,
        1 if measured and rule.wall not in (wall.wall, "none") and not rule.hints.bring_up else 0,
        _BRING_UP if rule.hints.bring_up else _GAINED if gained else _phase(rule, known),
        _KINDS[rule.kind],
        standing.own_order,
        _order(rule.hints.order, known),
        standing.level,
        rule.id,
    )


def _phase(rule: Rule, known: Known) -> int:
    """A profile says whether another layout is worth it, for a job that fits and runs: its gates come before."""
    runs = known.values.get("fits") is True or known.values.get("profiled") is True
    if runs and rule.phase == "scale" and rule.kind == "candidate":
        return _PHASES["profile"] + 1
    if rule.is_step_of_the_profile:
        return _PHASES["retune"] + 1
    return _PHASES[rule.phase]


def _order(order: int | Expression, known: Known) -> int:
    if isinstance(order, int):
        return order
    try:
        answer = known.ask(order)
    except RuleError:
        return ORDER
    return answer if isinstance(answer, int) else ORDER


def withheld_because(rule: Rule, values: Mapping[str, object], blocked: bool) -> str:
    """Why a suggestion is kept back; "" when it is not. Retuning takes a launch that is valid, and a profile."""
    if rule.kind != "candidate" or rule.phase != "retune" or rule.hints.bring_up:
        return ""
    if blocked:
        return "Clear the blockers first."
    if not values.get("profiled"):
        return "Profile first: before the wall is known there is nothing to retune."
    return ""
