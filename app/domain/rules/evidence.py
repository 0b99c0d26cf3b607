"""Which evidence counts if two pieces disagree.

1: enforced in code; 2: the project's own matched A/B on the same contract; 3: a published matched A/B on the same
model, GPU and shape, or the project's own on another stack; 4: published records; 5: guides without a measurement;
6: rules of thumb. A lower level may order candidates but never hides one. Evidence drops one level if the container,
the dispatcher's package, the precision or the layout changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.numbers import gain_change, grouped, plural
from app.domain.rules.rule import PublishedResult, Rule

Values = Mapping[str, object]

MEASURED_HERE = "measured here"
"""Source of evidence from runs of the project itself."""
LEVEL_NAMES = {
    1: "enforced in code",
    2: "measured here, same contract",
    3: "matched A/B on this model, GPU and shape",
    4: "published record",
    5: "guide",
    6: "rule of thumb",
}
_PUBLISHED = {"code": 1, "matched_ab": 3, "record": 4, "seed": 5, "heuristic": 6}
OWN_LEVEL, LOWEST = 2, 6
_OTHER_GPU = 4
"""Level of A/Bs of this project on another kind of GPU."""

EXPIRES_WITH = ("container", "deepep_build", "precision", "tp", "pp", "vpp", "pp_layout", "cp", "ep", "etp")
"""Fields whose change makes evidence older. For the container its major version counts."""


@dataclass(frozen=True, slots=True)
class OwnResult:
    """Matched A/Bs of this project on the knob of a rule. Gains in percent of throughput, positive is faster.

    `contract`: the contract they were measured under (as facts); `same_contract`: the run's own stack. `at_gpus`: the
    other GPU counts of the run's workload that they were measured at; empty for other stacks. `on_gpu`: the GPU models,
    if of another kind than the run's; then the result says nothing about the size of the gain here. `same_model`: all
    were measured on the run's model. `low_pct`, `high_pct`: the ends of all intervals, since gains of several stacks
    have no common mean. `decided`: A/Bs whose own interval excludes zero.
    """

    rule: str
    n: int
    median_gain_pct: float
    low_pct: float
    high_pct: float
    stacks: tuple[str, ...] = ()
    newest: str = ""
    contract: Mapping[str, object] = field(default_factory=dict)
    same_contract: bool = True
    at_gpus: tuple[int, ...] = ()
    on_gpu: str = ""
    same_model: bool = True
    decided: int = 0

    def is_like(self, other: "OwnResult") -> bool:
        """Return whether both say as much about the run: its stack, its workload, its model, or another model."""
        return (self.same_contract, bool(self.at_gpus), self.on_gpu, self.same_model) == (
            other.same_contract,
            bool(other.at_gpus),
            other.on_gpu,
            other.same_model,
        )

    @property
    def where(self) -> str:
        """Return `on this stack`, `at 16 GPUs`, `on H100`, `on 2 other stacks` or `on 2 stacks of other models`."""
        if self.same_contract:
            return "on this stack"
        if self.at_gpus:
            return f"at {', '.join(map(grouped, self.at_gpus))} GPUs"
        if self.on_gpu:
            return f"on {self.on_gpu}"
        if self.same_model:
            return f"on {plural(len(self.stacks), 'other stack')}"
        return (
            f"on {plural(len(self.stacks), 'stack')} of {'another model' if len(self.stacks) == 1 else 'other models'}"
        )

    @property
    def count(self) -> str:
        """Return `3 A/Bs`, or `1 of 3 A/Bs decided` if they leave open whether it is a gain."""
        if self.settled:
            return plural(self.n, "A/B")
        if self.decided == self.n:
            return f"{plural(self.n, 'A/B')} that disagree"
        return f"{self.decided} of {plural(self.n, 'A/B')} decided"

    @property
    def settled(self) -> bool:
        """Return whether all intervals exclude zero, on the same side."""
        return self.low_pct > 0 or self.high_pct < 0


@dataclass(frozen=True, slots=True)
class Statement:
    """One piece of evidence with its level after expiry and the reasons.

    `gain`: lowest and highest published gain of throughput in percent, empty without a figure; `at`: its setting.
    `pct`: the measured gain between them, None for the middle. `name`: what kind of evidence it is, if not that of its
    level.
    """

    level: int
    text: str
    setting: str
    source: str
    date: str
    expired: tuple[str, ...] = ()
    own: OwnResult | None = None
    gain: tuple[float, ...] = ()
    pct: float | None = None
    at: Values = field(default_factory=dict)
    name: str = ""

    @property
    def strength(self) -> str:
        """Return what kind of evidence it is, in words."""
        return self.name or LEVEL_NAMES[self.level]

    @property
    def is_of_run(self) -> bool:
        """Return whether it compares the run itself with another run: its baseline, or a faster run."""
        return self.own is None and self.source == MEASURED_HERE

    @property
    def standing(self) -> tuple[int, bool]:
        """Return its place: a comparison of the run itself follows A/Bs of its stack, and precedes all other stacks."""
        return (min(self.level, OWN_LEVEL) if self.is_of_run else self.level), self.is_of_run


@dataclass(frozen=True, slots=True)
class RuleEvidence:
    """The ranked evidence.

    `level`: of the best; `statements`: strongest first. `overridden`: how local measurements contradict published ones.
    `own_order`: sort key, measured gains first, measured losses last.
    """

    level: int
    statements: tuple[Statement, ...]
    own_order: float = 0.0
    overridden: str = ""


def rule_evidence(
    rule: Rule, values: Values, own: Sequence[OwnResult] = (), taken: Statement | None = None
) -> RuleEvidence:
    """Return the evidence of a rule for a run with these facts. `taken`: that of the run or record it takes over."""
    statements = [taken] if taken is not None else []
    statements += [_own(result, values) for result in own if result.rule == rule.id]
    statements += [_published(evidence, values) for evidence in rule.effect.evidence]
    ordered = tuple(sorted(statements, key=lambda statement: statement.standing))
    level = ordered[0].level if ordered else _unmeasured(rule)
    best = next((entry.own for entry in ordered if entry.own is not None and entry.level == OWN_LEVEL), None)
    return RuleEvidence(level, ordered, _own_order(best), _overridden(best, ordered))


def _unmeasured(rule: Rule) -> int:
    """Without a measurement, a rule has the level of its best source."""
    if any(key.startswith(("M-", "C-")) for key in rule.sources) and rule.kind == "blocker":
        return 1
    return 5 if any(key in ("S0", "S1", "S2", "S3", "S4") for key in rule.sources) else LOWEST


def _own(result: OwnResult, values: Values) -> Statement:
    expired = changed_since(result.contract, values)
    level = OWN_LEVEL if result.same_contract and not expired else _OTHER_GPU if result.on_gpu else 3
    text = f"{gain_change(result.median_gain_pct, result.low_pct, result.high_pct).text}, {result.count}"
    where = ", ".join(result.stacks) or "this project"
    name = "" if level == OWN_LEVEL else f"measured here {result.where}"
    return Statement(level, text, where, MEASURED_HERE, result.newest, expired, result, name=name)


def _published(evidence: PublishedResult, values: Values) -> Statement:
    level = _PUBLISHED[evidence.level]
    expired: tuple[str, ...] = ()
    if evidence.level == "matched_ab":
        expired = tuple(
            f"{name} is {_shown(values.get(name))}, there it was {_shown(wanted)}"
            for name, wanted in evidence.at.items()
            if values.get(name) != wanted
        )
        level = 4 if expired or not evidence.at else level
    return Statement(
        level,
        evidence.text,
        evidence.setting,
        evidence.source,
        evidence.date,
        expired,
        gain=evidence.gain,
        at=evidence.at,
    )


def changed_since(contract: Values, values: Values) -> tuple[str, ...]:
    """Return what makes evidence from `contract` older for a run with these facts. Unknown fields are ignored."""
    changes = []
    for name in EXPIRES_WITH:
        if name not in contract or name not in values:
            continue
        before, now = contract[name], values[name]
        same = container_major(before) == container_major(now) if name == "container" else before == now
        if not same:
            changes.append(f"{name} was {_shown(before)}, now it is {_shown(now)}")
    return tuple(changes)


def container_major(container: object) -> str:
    """Return image and first number of its tag: `nvcr.io/nvidia/nemo:26.06` is `nvcr.io/nvidia/nemo:26`."""
    image, colon, tag = str(container).rpartition(":")
    return f"{image}:{tag.split('.')[0]}" if colon else tag


def _own_order(best: OwnResult | None) -> float:
    """Return the sort key: negative for a gain, largest first; positive for a loss; 0 without a settled result."""
    return -best.median_gain_pct if best is not None and best.settled else 0.0


def _overridden(best: OwnResult | None, statements: Sequence[Statement]) -> str:
    published = next((statement for statement in statements if statement.own is None and statement.gain), None)
    if best is None or not best.settled or best.median_gain_pct > 0 or published is None:
        return ""
    return (
        f"Measured here: {gain_change(best.median_gain_pct).figure} (n = {best.n}). This outranks the published "
        f"result: {published.text} ({published.setting})."
    )


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)
