"""Rank suggestions, with the reasons as data.

The order: what stops the run; what invalidates its figures; a rerun; a regression with its cause; what the figures
lack to be judged; gains measured in this project; expected gains by evidence (level x gain x likeness); the workflow by
phase; everything else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.rules.derive import WallReading, kind_of_gpu
from app.domain.rules.evidence import LOWEST, RuleEvidence, Statement
from app.domain.rules.expression import Expression, FactContext, RuleError
from app.domain.rules.rule import PHASES, Confidence, Rule

Values = Mapping[str, object]

# --- The expected gain: by the best evidence, reduced by how much the setting differs.

STRENGTH = {1: 1.0, 2: 1.0, 3: 0.8, 4: 0.5, 5: 0.3, LOWEST: 0.2}
"""Weight of each evidence level. Our own choice; no source states weights."""
LIKENESS = {"family": 3.0, "gpu": 3.0, "ep": 1.0, "precision": 1.0, "dispatcher": 1.0, "gpus": 1.0, "seq_len": 1.0}
"""Weight of each fact in the similarity of two settings: model and GPU count most."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """Similarity of this run and the setting of a published result: `score` from 0 to 1, with the facts behind it."""

    score: float
    same: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected change of throughput in percent, positive is faster.

    `low`, `high`: of A/Bs the ends of all their intervals; of published results the range over all of that level.
    """

    pct: float
    low: float
    high: float
    statement: Statement
    likeness: Likeness

    @property
    def is_settled(self) -> bool:
        """Return whether all intervals exclude zero."""
        return not self.low <= 0 <= self.high

    @property
    def is_no_gain(self) -> bool:
        """Return whether it shows no gain, or allows a loss of at least half its size."""
        return self.pct <= 0 or -self.low >= self.pct / 2


def likeness(at: Values, values: Values) -> Likeness:
    """Compare a run with the setting `at` of a result. Unknown facts count half."""
    groups: dict[str, list[str]] = {"same": [], "differs": [], "unknown": []}
    score = 0.0
    for name, weight in LIKENESS.items():
        if name not in at or name not in values:
            group, share = "unknown", 0.5
        elif at[name] == values[name]:
            group, share = "same", 1.0
        else:
            group, share = "differs", 0.0
        groups[group].append(name)
        score += weight * share
    return Likeness(score / sum(LIKENESS.values()), *(tuple(names) for names in groups.values()))


def expected_gain(evidence: RuleEvidence, values: Values) -> Expected | None:
    """Return the gain by the strongest evidence with a figure; None without one."""
    measured = [statement for statement in evidence.statements if _gain(statement, values)]
    if not measured:
        return None
    # The run's own workload at another GPU count says more than other stacks and published results.
    nearest = [statement for statement in measured if statement.own is not None and statement.own.at_gpus]
    if measured[0].is_of_run:
        nearest = measured[:1]
    rivals = []
    for statement in nearest if nearest and nearest[0].level == measured[0].level else measured:
        if statement.level == measured[0].level:
            low, high = _gain(statement, values)
            middle = (low + high) / 2 if statement.pct is None else statement.pct
            rivals.append(Expected(middle, low, high, statement, _likeness(statement, values)))
    # A result of the same model is shown, even if that of another model has more in common.
    best = max(rivals, key=lambda expected: ("family" in expected.likeness.same, expected.likeness.score))
    if (own := best.statement.own) is not None:
        return replace(best, pct=own.median_gain_pct)
    published = [expected for expected in rivals if expected.statement.own is None]
    low, high = min(expected.low for expected in published), max(expected.high for expected in published)
    return replace(best, low=low, high=high)


def _gain(statement: Statement, values: Values) -> tuple[float, ...]:
    """Return the ends of a gain; empty without a figure for this kind of GPU."""
    own = statement.own
    if own is not None:
        return () if own.on_gpu else (own.low_pct, own.high_pct)
    gpu, here = statement.at.get("gpu", statement.at.get("sku")), values.get("gpu")
    return () if gpu and here and kind_of_gpu(gpu) != kind_of_gpu(here) else statement.gain


def _likeness(statement: Statement, values: Values) -> Likeness:
    if statement.own is not None and statement.own.same_contract and not statement.expired:
        return Likeness(1.0, ("stack",))
    return likeness(statement.own.contract if statement.own is not None else statement.at, values)


# --- The rank of a suggestion, with its reasons.

Tier = Literal[
    "stops", "health", "rerun", "regression", "unjudged", "measured", "evidence", "workflow", "other", "slower"
]
TIERS: Mapping[Tier, str] = {
    "stops": "It stops the launch or makes its result wrong.",
    "health": "The run failed or is not healthy, so its figures support no tuning.",
    "rerun": "A rerun decides whether the run is slower, so all else comes later.",
    "regression": "It tests or undoes a suspect of a regression.",
    "unjudged": "The run is too short or too small, so tuning comes later.",
    "measured": "It was faster in an A/B or another run of this project.",
    "evidence": "It addresses a limit that was measured here.",
    "workflow": "It is the next step of the workflow.",
    "other": "It applies to nearly every run, so suggestions specific to this run come first.",
    "slower": "The strongest evidence shows no clear gain.",
}
"""The tiers in order, each with its reason."""
_OTHER_WALL = "It addresses a wall other than the measured one."
_GAINED = "Matched A/Bs on this model and GPU gained from it."
_GAINED_ELSEWHERE = "Matched A/Bs of other models on this kind of GPU gained from it."
_TIER_ORDER: Mapping[Tier, int] = {tier: place for place, tier in enumerate(TIERS)}
_KINDS = {"blocker": 0, "warning": 1, "gate": 2, "sizing": 3, "candidate": 4}
_PHASES = {phase: 2 * place for place, phase in enumerate(PHASES)}
_BRING_UP = 1
"""First bring-up defaults rank between contract and fit, if they are needed."""
DEFAULT_ORDER = 50
"""Order of a rule whose order depends on unknown facts."""
_LEAST_WORTH = 0.001
_SURE_LEVEL, _SURE_LIKENESS, _FAIR_LEVEL = 3, 0.6, 4

Key = tuple[int, int, int, float, int, float, int, str]


@dataclass(frozen=True, slots=True)
class Place:
    """The rank of a suggestion and its reason.

    `key`: sort key, ascending. `expected`: None without a figure. `worth`: level x gain x likeness, 0 without a figure.
    `confidence`: in the expected gain, not in the rule. `because`: the reason of the tier.
    `forecast_gain_pct`: the planner's prediction for another layout.
    """

    key: Key
    tier: Tier
    worth: float
    expected: Expected | None
    confidence: Confidence
    because: str
    forecast_gain_pct: float | None = None


def place_of(
    rule: Rule,
    context: FactContext,
    wall: WallReading,
    evidence: RuleEvidence,
    *,
    forecast_gain_pct: float | None = None,
) -> Place:
    """Return the rank of a rule among all that fire in this run."""
    values = context.values
    order = _order(rule.hints.order, context)
    expected = None if rule.kind == "blocker" else expected_gain(evidence, values)  # first make it run
    worth = forecast_gain_pct or 0.0
    if expected is not None:
        worth = STRENGTH[expected.statement.level] * expected.pct * expected.likeness.score
    tier, because = _tier(rule, context, wall, evidence, expected)

    # Within a tier: the remaining workflow by phase and kind; memory by its ladder, narrowest first; speed by worth,
    # without a figure last; then the number of the rule as a tie-breaker.
    by_phase = _phase(rule, values) if tier in ("workflow", "other", "slower") else 0
    by_kind = _KINDS[rule.kind] if tier in ("health", "unjudged", "workflow", "other", "slower") else 0
    is_ladder = rule.kind != "candidate" or rule.phase == "fit" or tier == "health"
    by_worth = 0.0 if is_ladder else -round(worth, 3)
    if rule.hints.urgency == "evidence":  # a record changes several knobs, so it follows all figures of single knobs
        by_worth = max(by_worth, -_LEAST_WORTH)
    key = (_TIER_ORDER[tier], by_phase, by_kind, by_worth, order, evidence.own_order, evidence.level, rule.id)
    return Place(key, tier, worth, expected, _confidence(expected, evidence), because, forecast_gain_pct)


def _tier(
    rule: Rule, context: FactContext, wall: WallReading, evidence: RuleEvidence, expected: Expected | None
) -> tuple[Tier, str]:
    values, candidate = context.values, rule.kind == "candidate"
    general = rule.hints.general if isinstance(rule.hints.general, bool) else context.ask(rule.hints.general) is True
    loses = expected is not None and expected.pct <= 0 and rule.phase != "fit"
    gains_nothing = expected is not None and expected.is_no_gain and rule.phase != "fit"
    other_wall = wall.certainty == "measured" and rule.wall not in (wall.wall, "none") and not rule.hints.bring_up
    tiers: tuple[tuple[bool, Tier], ...] = (
        (rule.kind == "blocker", "stops"),
        (rule.hints.urgency == "health", "health"),
        (values.get("oom") is True and rule.saves_memory, "health"),
        (rule.hints.urgency == "unjudged", "unjudged"),
        (rule.hints.urgency == "rerun", "rerun"),
        (rule.hints.urgency == "regression" and not loses, "regression"),
        (
            (rule.hints.urgency == "measured" and not gains_nothing) or (candidate and evidence.own_order < 0),
            "measured",
        ),
        (rule.hints.urgency == "evidence", "evidence"),
        (candidate and gains_nothing, "slower"),
        (general or (candidate and other_wall), "other"),
        (candidate and values.get("steps_done") != 0 and _moves_the_wall(rule, wall, evidence, expected), "evidence"),
    )
    tier: Tier = next((tier for applies, tier in tiers if applies), "workflow")
    if tier == "evidence" and rule.hints.urgency != "evidence" and expected and not _is_of_wall(rule, wall):
        own = expected.statement.own
        return tier, _GAINED if own is None or own.same_contract or own.same_model else _GAINED_ELSEWHERE
    return tier, _OTHER_WALL if tier == "other" and not general else TIERS[tier]


def _is_of_wall(rule: Rule, wall: WallReading) -> bool:
    return wall.certainty == "measured" and rule.wall == wall.wall and rule.phase in ("fit", "retune")


def _moves_the_wall(rule: Rule, wall: WallReading, evidence: RuleEvidence, expected: Expected | None) -> bool:
    """Return whether it addresses the measured wall, or a matched A/B on this kind of GPU found it faster."""
    if rule.hints.bring_up:
        return False
    if _is_of_wall(rule, wall):
        return True
    return rule.changes_something and expected is not None and expected.pct > 0 and evidence.level <= _SURE_LEVEL


def _phase(rule: Rule, values: Values) -> int:
    """Return the position of the phase: another layout for a job that fits and runs comes after the profile."""
    if rule.hints.bring_up:
        return _BRING_UP
    runs = values.get("fits") is True or values.get("profiled") is True
    if runs and rule.phase == "scale" and rule.kind == "candidate":
        return _PHASES["profile"] + 1
    if rule.is_step_of_the_profile:
        return _PHASES["retune"] + 1
    return _PHASES[rule.phase]


def _order(order: int | Expression, context: FactContext) -> int:
    if isinstance(order, int):
        return order
    try:
        answer = context.ask(order)
    except RuleError:
        return DEFAULT_ORDER
    return answer if isinstance(answer, int) else DEFAULT_ORDER


def _confidence(expected: Expected | None, evidence: RuleEvidence) -> Confidence:
    """Return how sure the expected gain is. An own A/B without a clear result rules out `high`."""
    if expected is None or not expected.is_settled:
        return "low"
    level = expected.statement.level
    unclear = any(
        entry.own is not None and not entry.own.on_gpu and not entry.own.settled for entry in evidence.statements
    )
    if level <= _SURE_LEVEL and expected.likeness.score >= _SURE_LIKENESS and not unclear:
        return "high"
    return "medium" if level <= _FAIR_LEVEL else "low"


def follow(ids: Sequence[str], after: Mapping[str, Sequence[str]]) -> list[str]:
    """Move each id behind the ids that must come first, if they are in the list."""
    ordered = list(ids)
    for name, before in after.items():
        last = max((ordered.index(other) for other in before if other in ordered), default=-1)
        if name in ordered and ordered.index(name) < last:
            ordered.remove(name)
            ordered.insert(last, name)
    return ordered
