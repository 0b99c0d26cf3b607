"""How often each rule was tried here, and paid off: matched A/Bs on the knob it turns, and experiments from it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.domain.rules.knob import Knob, knob_of_rule
from app.domain.rules.rule import Rule
from app.storage.experiment_tables import ExperimentRow, ExperimentRunRow
from app.storage.knob_gains import Gain, MeasuredHere, gains_of, matched_abs, measured
from app.storage.tables import ProjectRow

MOST_ABS = 5_000
"""Newest matched A/Bs that are counted."""
ENDED = ("done", "accepted", "rejected")


@dataclass(frozen=True, slots=True)
class RuleResults:
    """`gains`: of the matched A/Bs. `tried` and `paid_off` count an experiment and its own A/B once."""

    tried: int = 0
    paid_off: int = 0
    gains: tuple[Gain, ...] = ()
    experiments: int = 0

    def by_stack(self, rule: str) -> tuple[MeasuredHere, ...]:
        """What was gained on each stack, the best first."""
        stacks: dict[str, list[Gain]] = {}
        for gain in self.gains:
            stacks.setdefault(gain.stack_key, []).append(gain)
        found = [measured(rule, gains, same_contract=True) for gains in stacks.values()]
        return tuple(sorted(found, key=lambda one: -one.result.median_gain_pct))

    def together(self, rule: str) -> MeasuredHere | None:
        """All stacks as one; None where nothing was measured."""
        return measured(rule, self.gains, same_contract=True) if self.gains else None


NOTHING = RuleResults()


@dataclass(frozen=True, slots=True)
class _Experiment:
    id: int
    state: str
    runs: frozenset[int]


def rule_results(session: Session, rules: Iterable[Rule], project_id: int | None = None) -> Mapping[str, RuleResults]:
    """Those that were tried, by rule. `project_id` None: in all projects."""
    rules = tuple(rules)
    knobs = {rule.id: knob for rule in rules if rule.kind == "candidate" and (knob := knob_of_rule(rule)) is not None}
    experiments = _experiments(session, project_id)
    gains = _gains(session, knobs, project_id)
    names = [rule.id for rule in rules if rule.id in gains or rule.id in experiments]
    return {name: _together(gains.get(name, ()), experiments.get(name, ())) for name in names}


def project_id_of(session: Session, slug: str) -> int | None:
    """The number of a project; None where there is none of that name."""
    found: int | None = session.execute(
        select(ProjectRow.id).where(col(ProjectRow.slug) == slug)  # type: ignore[call-overload]
    ).scalar_one_or_none()
    return found


def _gains(session: Session, knobs: Mapping[str, Knob], project_id: int | None) -> dict[str, tuple[Gain, ...]]:
    fields = sorted({knob.field for knob in knobs.values()})
    rows = matched_abs(session, fields, project_id, MOST_ABS) if fields else []
    by_field: dict[str, list[object]] = {}
    for row in rows:
        by_field.setdefault(row.attributed_to, []).append(row)
    found = {name: gains_of(by_field.get(knob.field, ()), knob) for name, knob in knobs.items()}  # type: ignore[arg-type]
    return {name: tuple(gains) for name, gains in found.items() if gains}


def _experiments(session: Session, project_id: int | None) -> dict[str, list[_Experiment]]:
    """Ended ones by rule, with their candidates' runs."""
    chosen = (
        select(ExperimentRow.id, ExperimentRow.rule_id, ExperimentRow.state, ExperimentRunRow.run_id)  # type: ignore[call-overload]
        .outerjoin(
            ExperimentRunRow,
            (col(ExperimentRunRow.experiment_id) == ExperimentRow.id) & (col(ExperimentRunRow.side) == "candidate"),
        )
        .where(col(ExperimentRow.rule_id) != "", col(ExperimentRow.state).in_(ENDED))
        .order_by(ExperimentRow.id)
    )
    if project_id is not None:
        chosen = chosen.where(col(ExperimentRow.project_id) == project_id)
    runs: dict[tuple[int, str, str], set[int]] = {}
    for row in session.execute(chosen):
        known = runs.setdefault((row.id, row.rule_id, row.state), set())
        known |= set() if row.run_id is None else {row.run_id}
    found: dict[str, list[_Experiment]] = {}
    for (number, rule, state), candidates in runs.items():
        found.setdefault(rule, []).append(_Experiment(number, state, frozenset(candidates)))
    return found


def _together(gains: Sequence[Gain], experiments: Sequence[_Experiment]) -> RuleResults:
    runs = {gain.run_id for gain in gains}
    apart = [one for one in experiments if not one.runs & runs]
    return RuleResults(
        tried=len(gains) + len(apart),
        paid_off=sum(gain.paid_off for gain in gains) + sum(one.state == "accepted" for one in apart),
        gains=tuple(gains),
        experiments=len(experiments),
    )


def planned(session: Session, rule: str) -> int:
    """Experiments that were planned from a rule, in whatever state."""
    count = select(func.count()).select_from(ExperimentRow).where(col(ExperimentRow.rule_id) == rule)
    return int(session.execute(count).scalar_one())
