"""Evaluate the rules for a stored run from its facts and the A/Bs of its project, and store which rules fire."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Engine
from sqlmodel import Session, col

from app.domain.contract.fields import STACK_FIELDS
from app.domain.contract.values import comparable, shown
from app.domain.experiments.plan import DEFAULT_AIM, Aim, effect_of, size
from app.domain.experiments.values import Sizing
from app.domain.numbers import gain_change, gpu_hours, plural
from app.domain.planning.forecast import LayoutForecaster
from app.domain.planning.hardware import in_gib
from app.domain.rules.derive import PROFILE_SHARES, WallReading, derive, kind_of_gpu, read_wall
from app.domain.rules.engine import Evaluation, Suggestion, evaluate, rules_of_two
from app.domain.rules.evidence import changed_since
from app.domain.rules.facts import FACTS
from app.domain.rules.phases import TuningPhases, tuning_phases
from app.domain.rules.ranking import Likeness
from app.domain.rules.rule import Knob, RuleBook, knob_of
from app.domain.rules.run_facts import memory_kinds
from app.domain.text import some_of
from app.domain.verdict.comparability import compare_contracts
from app.domain.verdict.evidence import value_text
from app.domain.verdict.record import RunRecord, current_level
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior, RunEstimate
from app.errors import NotFound, NotReady
from app.settings import Settings
from app.storage import rules as rule_firings
from app.storage.database import read_session, transaction
from app.storage.experiments import ExperimentItem, experiment_leading_to, experiments_of_stacks
from app.storage.faster_runs import faster_work
from app.storage.profiles import lent_facts
from app.storage.readings import StatedFact, in_force
from app.storage.rules import (
    AdvisedRun,
    RulesInForce,
    RunInMemory,
    pair_facts,
    read_pair,
    read_run,
    rules_in_force,
    window_of,
)
from app.storage.runs import RunDetail
from app.storage.stacks import FamilyKey, FamilyPrior, full_record, stack_runs
from app.storage.suspect_evidence import (
    AB,
    MeasuredGain,
    MeasuredHere,
    gains_by_rule,
    gains_of,
    matched_abs,
    measured,
    over_all_runs,
)
from app.storage.tables import RunResultRow, RunRow, from_row, select_any, utc_now
from app.storage.worker_activity import timed

# --- Run-to-run variation of a job: pages, plans and reports compute from it how many runs an A/B takes.

_HISTORY = 60


@dataclass(frozen=True, slots=True)
class JobVariation:
    """The known variation between launches of a run's job.

    `history`: runs of its configuration in the current segment. `family`: the prior of its family. `noise`: standard
    error of ln(step time) within the run.
    """

    history: Sequence[RunEstimate]
    family: Prior
    noise: float
    step_s: float | None
    gpus: int | None

    def size(self, aim: Aim = DEFAULT_AIM, runs_each: int | None = None) -> Sizing:
        """Return the size of an A/B that detects an effect. `runs_each`: runs per side, if the user chose them."""
        return size(
            self.history, self.family, noise=self.noise, aim=aim, runs_each=runs_each,
            step_s=self.step_s, gpus=self.gpus,
        )  # fmt: skip


def job_variation(session: Session, record: RunRecord) -> JobVariation:
    """Return the variation from the current segment of the run's configuration, and from its family."""
    row = session.get_one(RunRow, int(record.run))
    now = utc_now()
    relative = FamilyKey(row.project_id, row.gpu, row.semantic_class, row.definition_version, row.config_key)
    family = FamilyPrior(session, relative, now, now).prior(now)
    runs = stack_runs(
        session, row.project_id, row.stack_key, col(RunRow.config_key) == row.config_key, with_metrics=False,
        newest=_HISTORY,
    )  # fmt: skip
    usable = [
        run.facts
        for run in runs
        if run.id != row.id and not run.facts.never_a_baseline_because and run.facts.has_shape_of(record)
        and run.definition_version == record.definition_version and run.semantic_class == record.semantic_class
    ]  # fmt: skip
    level = current_level(usable, family) if usable else []
    log_step_time, gpus = record.estimate.log_step_time, record.contract.get("gpus")
    return JobVariation(
        [run.estimate for run in level],
        family,
        record.estimate.se,
        None if log_step_time is None else math.exp(log_step_time) / 1000,
        gpus.value if gpus is not None and isinstance(gpus.value, int) else None,
    )


def unplannable_because(record: RunRecord) -> str:
    """Return why a run cannot be the baseline of an experiment; empty if it can."""
    return record.unfit_because or record.estimate.unusable_because


SHOWN_FIRST = 3
"""Number of suggestions that pages show first."""

# --- Matched A/Bs of this project on the knob that a suggestion changes.


def measured_here(session: Session, run: RunDetail, suggestions: Iterable[Suggestion]) -> tuple[MeasuredHere, ...]:
    """Return the results of the project's matched A/Bs for each suggestion that changes one knob.

    The verdict on the run itself is excluded, because such a suggestion would only undo the change that it measured.
    What stops a launch has none, because speed does not matter there.
    """
    knobs = [
        (suggestion.rule, [knob])
        for suggestion in suggestions
        if suggestion.kind != "blocker" and (knob := knob_of(suggestion.set, run.contract)) is not None
    ]
    if not knobs:
        return ()
    rows = _others(session, run, sorted({knob.field for _, (knob,) in knobs}))
    gains = gains_by_rule(session, rows, knobs)
    for rule, (knob,) in knobs:
        if rule.id in gains:
            gains[rule.id] = _at_own_degree(run, knob, gains[rule.id])
    return tuple(result for results in _by_likeness(session, run, gains.items()) for result in results)


def _at_own_degree(run: RunDetail, knob: Knob, gains: list[MeasuredGain]) -> list[MeasuredGain]:
    """Return the gains of a knob; of those on the run's stack only those at its expert parallelism, if any are."""
    ep, own = run.contract.get("ep"), [gain for gain in gains if gain.stack_key == run.stack_key]
    alike = [gain for gain in own if ep is not None and gain.ep == ep.value]
    if knob.field == "ep" or not alike:
        return gains
    return [gain for gain in gains if gain in alike or gain not in own]


def experiments_of(session: Session, run: RunDetail, knobs: Mapping[str, Knob]) -> Mapping[str, ExperimentItem]:
    """Return the newest experiment on the run's stack that makes the change, by the names of `knobs`."""
    if not knobs or not run.stack_key:
        return {}
    of_stack = experiments_of_stacks(session, [run.stack_key])
    experiments = [experiment for experiment in of_stack if experiment.project_id == run.project_id]
    return {
        name: experiment
        for name, knob in knobs.items()
        if (experiment := next((row for row in experiments if _makes(row, knob)), None)) is not None
    }


def _makes(experiment: ExperimentItem, knob: Knob) -> bool:
    result = experiment.result
    if result.attributed_to:
        return (result.attributed_to, result.from_value, result.to_value) == (knob.field, knob.now, knob.wanted)
    changes = [(change.field, shown(change.before), shown(change.after)) for change in experiment.knobs]
    return changes == [(knob.field, knob.now, knob.wanted)]


@dataclass(frozen=True, slots=True)
class MeasuredKnob:
    """Another value of a run's knob, with the project's A/Bs between it and the run's value on one stack."""

    knob: Knob
    measured: MeasuredHere


def measured_knobs(session: Session, run: RunDetail, fields: Sequence[str]) -> tuple[MeasuredKnob, ...]:
    """Return the values of these fields that the project measured against the run's values, best gain first.

    Where the run's own stack has no A/B, those of its workload at other GPU counts count, else those of other stacks,
    each apart: the most similar number of GPUs comes first.
    """
    rows = over_all_runs(session, _others(session, run, fields))
    knobs = [
        Knob(field, now, value)
        for field, value in sorted({(ab.attributed_to, value) for ab in rows for value in (ab.from_value, ab.to_value)})
        if value and value != (now := value_text(run.contract.get(field)))
    ]
    stated = [knob for knob in knobs if knob.now]
    results_by_knob = _by_likeness(
        session, run, [("", _at_own_degree(run, knob, gains_of(rows, knob))) for knob in stated], apart=True
    )
    results = [
        [MeasuredKnob(knob, stack) for stack in stacks if stack.result.is_like(stacks[0].result)]
        for knob, stacks in zip(stated, results_by_knob, strict=True)
        if stacks and not stacks[0].result.on_gpu
    ]
    results.sort(key=lambda rows: -rows[0].measured.result.median_gain_pct)
    return tuple(row for of_knob in results for row in of_knob)


def _others(session: Session, run: RunDetail, fields: Sequence[str]) -> list[AB]:
    """Return the project's A/Bs on these fields, without the verdict on the run itself."""
    own = run.stack_key, run.config_key, run.commit or run.id
    return [ab for ab in matched_abs(session, fields, run.project_id) if ab.candidate != own]


_OF_SIZE = ("gpus", "gbs")
_SAME_WORKLOAD = tuple(name for name in STACK_FIELDS if name not in (*_OF_SIZE, "container"))


def _by_likeness(
    session: Session,
    run: RunDetail,
    gains_of_rules: Iterable[tuple[str, Sequence[MeasuredGain]]],
    *,
    apart: bool = False,
) -> list[list[MeasuredHere]]:
    """Combine the gains of each rule: of the run's stack, of its workload at other GPU counts, of other stacks.

    Of the other stacks those of the run's model come first, then those of other models, of either those of a similar
    number of GPUs apart from the others. Those on another kind of GPU come last. `apart`: combine no two stacks.
    Without it, A/Bs of other stacks that say nothing are left out; those of the run's own stack tell that it was tried.
    """
    asked = []
    for rule, gains in gains_of_rules:
        by_stack: dict[str, list[MeasuredGain]] = {}
        for gain in gains:
            if apart or gain.stack_key == run.stack_key or not gain.says_nothing:
                by_stack.setdefault(gain.stack_key, []).append(gain)
        asked.append((rule, by_stack))
    newest = {key: gains[0].run_id for _, by_stack in asked for key, gains in by_stack.items()}
    contracts = _contracts(session, {gains[0].run_id for _, by_stack in asked for gains in by_stack.values()})
    ours = {name: stated.value for name, stated in run.contract.items()}
    groups = {key: _group(run, ours, key, contracts.get(run_id, {})) for key, run_id in newest.items()}
    if apart:
        groups = {
            key: group._replace(size=_times_as_large(ours, contracts.get(newest[key], {})), stack_key=key)
            for key, group in groups.items()
        }
    results = []
    for rule, by_stack in asked:
        by_group: dict[_Group, list[str]] = {}
        for key in by_stack:
            by_group.setdefault(groups[key], []).append(key)
        results.append(
            [
                measured(
                    rule,
                    gains := sorted((gain for key in keys for gain in by_stack[key]), key=lambda gain: -gain.run_id),
                    contracts.get(gains[0].run_id, {}),
                    same_contract=group.place == _OWN,
                    at_gpus=tuple(
                        sorted({_other_size(ours, contracts.get(newest[key], {})) for key in keys})
                        if group.place == _SCALED
                        else ()
                    ),
                    on_gpu=", ".join(sorted({str(contracts[newest[key]]["gpu"]) for key in keys}))
                    if group.place == _OTHER_GPU
                    else "",
                    same_model=not group.other_model,
                )
                for group, keys in sorted(by_group.items())
            ]
        )
    return results


class _Group(NamedTuple):
    """Which stacks are combined, in the order of what they say about a run. `size`, `stack_key`: of a stack alone."""

    place: int
    other_model: bool
    far: bool
    size: float = 1.0
    stack_key: str = ""


_OWN, _SCALED, _OTHER, _OTHER_GPU = range(4)


def _group(run: RunDetail, ours: Mapping[str, Any], stack_key: str, theirs: Mapping[str, Any]) -> _Group:
    if stack_key == run.stack_key:
        return _Group(_OWN, other_model=False, far=False)
    if _other_size(ours, theirs):
        return _Group(_SCALED, other_model=False, far=False)
    if "gpu" in ours and "gpu" in theirs and kind_of_gpu(ours["gpu"]) != kind_of_gpu(theirs["gpu"]):
        return _Group(_OTHER_GPU, other_model=True, far=False)
    return _Group(_OTHER, ours.get("model") != theirs.get("model"), far=_times_as_large(ours, theirs) > _SIMILAR_SIZE)


_SIMILAR_SIZE = 8
"""GPU counts that differ by at most this factor are similar. Our choice."""


def _times_as_large(ours: Mapping[str, Any], contract: Mapping[str, Any]) -> float:
    """Return by which factor the numbers of GPUs differ, in either direction."""
    gpus, theirs = ours.get("gpus"), contract.get("gpus")
    if not isinstance(gpus, int) or not isinstance(theirs, int):
        return math.inf
    return max(gpus, theirs) / min(gpus, theirs)


def _other_size(ours: Mapping[str, Any], contract: Mapping[str, Any]) -> int:
    """Return the number of GPUs if the contract is the run's workload at another number; else 0.

    The batch may grow with the GPUs, and the minor version of the container may differ.
    """
    theirs = {name: tuple(value) if isinstance(value, list) else value for name, value in contract.items()}
    gpus = theirs.get("gpus")
    if not isinstance(gpus, int) or gpus == ours.get("gpus") or changed_since(theirs, ours):
        return 0
    of_run, of_result = (
        [comparable(name, values[name]) if name in values else ... for name in _SAME_WORKLOAD]
        for values in (ours, theirs)
    )
    return gpus if of_run == of_result else 0


def _contracts(session: Session, run_ids: set[int]) -> dict[int, dict[str, object]]:
    rows = session.execute(
        select_any(RunResultRow.run_id, RunResultRow.contract).where(col(RunResultRow.run_id).in_(run_ids))
    )
    return {row.run_id: {name: entry["value"] for name, entry in (row.contract or {}).items()} for row in rows}


MOST_COMPARED = 20
"""Maximum baseline runs that the compare page accepts."""


@dataclass(frozen=True, slots=True)
class PairSuggestions:
    """Results of the rules that compare a run with its baseline runs, or without a baseline with the closest run.

    `others`: the runs that it is compared with, oldest first.
    """

    others: tuple[int, ...]
    evaluation: Evaluation
    of_baseline: bool

    def compare(self, run: int) -> str:
        """Return the URL of the page that compares them with `run`."""
        return f"/compare?a={','.join(map(str, self.others[-MOST_COMPARED:]))}&b={run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSuggestions(AdvisedRun):
    """Results of the rules for a run.

    `stated`: its facts without derived ones. `job`: how much its launches vary; None if it cannot be a baseline.
    `experiments`: by rule, the experiment on its stack that already makes the change.
    """

    stated: Mapping[str, object]
    evaluation: Evaluation
    phases: TuningPhases
    own: tuple[MeasuredHere, ...]
    rules: RulesInForce
    pair: PairSuggestions | None
    job: JobVariation | None
    experiments: Mapping[str, ExperimentItem]

    @property
    def book(self) -> RuleBook:
        """Return the built-in rules and those of the team."""
        return self.rules.book

    @property
    def ranked(self) -> tuple[Suggestion, ...]:
        """Return the blockers, then the other suggestions by rank."""
        return (*self.evaluation.blockers, *self.evaluation.suggestions)

    @property
    def leading(self) -> tuple[Suggestion, ...]:
        """Return the suggestions that pages show first: those specific to this run, else the first common ones."""
        useful = [
            row
            for row in self.ranked
            if not row.rule.is_step_of_the_profile and row.place.tier != "slower" and not self.is_rejected(row.rule.id)
        ]
        return tuple([row for row in useful if row.place.tier != "other"][:SHOWN_FIRST] or useful[:1])

    def is_rejected(self, rule: str) -> bool:
        """Return whether an experiment on this stack rejected the change of a rule."""
        return rule in self.experiments and self.experiments[rule].state == "rejected"

    def sizing(self, suggestion: Suggestion) -> Sizing | None:
        """Return the cost of a suggestion's A/B.

        None without a measurable change or a usable baseline, or if an experiment already measures it. A batch of
        another size is not measurable: its steps do other work.
        """
        gbs = self.stated.get("gbs")
        measurable = (suggestion.rule.changes_something or suggestion.set) and suggestion.set.get("gbs", gbs) == gbs
        if self.job is None or suggestion.kind != "candidate" or not measurable:
            return None
        if suggestion.rule.id in self.experiments:
            return None
        return self.job.size(effect_of(suggestion))

    def evaluation_of(self, rule: str) -> Evaluation:
        """Return the evaluation of the pair if the rule fires only there, else the evaluation of the run."""
        pair = self.pair
        return (
            pair.evaluation
            if pair is not None and pair.evaluation.find(rule) and not self.evaluation.find(rule)
            else self.evaluation
        )

    def stated_by(self, fact: str) -> StatedFact | None:
        """Return a user's statement of a fact; None without one, or if another value is in use."""
        statement = in_force(self.statements).get(fact)
        return statement if statement is not None and self.stated.get(fact) == statement.value else None

    def measured(self, rule: str) -> tuple[MeasuredHere, ...]:
        """Return the project's results for a rule's change, those of the run's own stack first."""
        return tuple(own_result for own_result in self.own if own_result.result.rule == rule)


def suggest(session: Session, run_id: int, rules: RulesInForce) -> RunSuggestions:
    """Evaluate the rules for a run. Raises NotFound, and NotReady if the run was not read yet."""
    advised = read_run(session, run_id)
    run, record = advised.run, full_record(session, run_id)
    job = None if unplannable_because(record) else job_variation(session, record)
    faster = faster_work(session, run, (DEFAULT_PRIOR if job is None else job.family).variance)
    advised, lent = _with_profile_of_same_configuration(session, advised)
    earlier = _NO_EARLIER if lent or advised.profile.values else _wall_before(session, run_id, rules)
    facts = {**lent, **advised.facts, **faster.facts, **earlier.facts}
    ask = partial(
        evaluate,
        facts,
        rules.book,
        settings=rules.thresholds,
        taken={**advised.setbacks.taken, **faster.taken},
        forecast=_forecaster(run, facts, rules),
    )
    evaluation = ask()
    own = measured_here(session, run, (*evaluation.fired, *evaluation.conditional))
    if own:
        evaluation = ask(own=[own_result.result for own_result in own])
    if lent:
        wall = _by_profile_of(evaluation.wall, advised.profile.run_id, "which has the same configuration")
        evaluation = replace(evaluation, wall=wall)
    elif evaluation.wall.certainty != "measured" and earlier.wall is not None:
        evaluation = replace(evaluation, wall=earlier.wall)
    knobs = {row.rule.id: knob for row in evaluation.fired if (knob := knob_of(row.set, run.contract)) is not None}
    experiments = experiments_of(session, run, knobs)
    return from_row(
        RunSuggestions,
        advised,
        stated=facts,
        evaluation=evaluation,
        phases=tuning_phases(evaluation, {rule for rule, item in experiments.items() if item.state == "accepted"}),
        own=own,
        rules=rules,
        pair=_pair(session, advised, rules, evaluation),
        job=job,
        experiments=experiments,
    )


def _forecaster(run: RunDetail, facts: Mapping[str, object], rules: RulesInForce) -> LayoutForecaster:
    return LayoutForecaster(run.contract, facts, rules.thresholds["T_headroom"])


_OF_ONE_PROFILE = ("profiled_step_s", "unprofiled_step_s", "profile_rank")
"""Facts about how a profile was recorded."""


def _with_profile_of_same_configuration(
    session: Session, advised: AdvisedRun
) -> tuple[AdvisedRun, Mapping[str, object]]:
    """Return the run, and the added facts. A run without a profile gets the profile of a run of its configuration."""
    run = advised.run
    if run.status != "ready" or any(name in advised.facts for name in PROFILE_SHARES):
        return advised, {}
    lent = lent_facts(session, run.id, run.project_id, run.config_key)
    facts = {
        name: value
        for name, value in lent.values.items()
        if name in FACTS and FACTS[name].section == "profile" and name not in _OF_ONE_PROFILE
    }
    return (replace(advised, profile=lent), facts) if facts else (advised, {})


@dataclass(frozen=True, slots=True)
class _EarlierWall:
    """The wall by the newest profile of a configuration that experiments led from to a run; None without one.

    The changes since then may have moved the wall, so it is only inferred.
    """

    wall: WallReading | None = None
    facts: Mapping[str, object] = field(default_factory=dict)


_NO_EARLIER = _EarlierWall()


def _wall_before(session: Session, run_id: int, rules: RulesInForce) -> _EarlierWall:
    seen = {run_id}
    changed: list[str] = []
    while (experiment := experiment_leading_to(session, run_id)) is not None:
        run_id = experiment.baseline_run_id
        if run_id in seen:
            break
        changed[:0] = [knob.field for knob in experiment.knobs]
        seen.add(run_id)
        try:
            advised, lent = _with_profile_of_same_configuration(session, read_run(session, run_id))
        except NotReady:
            continue
        wall = read_wall(derive({**lent, **advised.facts}, rules.thresholds))
        if advised.profile.profile_of and wall.certainty == "measured":
            measured, changes = advised.profile.run_id, some_of(changed, SHOWN_FIRST) or "the last changes"
            return _EarlierWall(
                _by_profile_of(replace(wall, certainty="inferred", evidence=()), measured, f"before {changes}"),
                {"earlier_wall": wall.wall, "earlier_profile_run": measured, "earlier_changes": changes},
            )
    return _NO_EARLIER


def _by_profile_of(wall: WallReading, run_id: int, which: str) -> WallReading:
    return replace(wall, because=f"{wall.because} Measured on run #{run_id}, {which}.", profile_of=run_id)


def _pair(session: Session, advised: AdvisedRun, rules: RulesInForce, evaluation: Evaluation) -> PairSuggestions | None:
    """Evaluate the rules about two runs; keep those that do not already fire for the run alone."""
    pair = read_pair(session, advised.run)
    if pair is None:
        return None
    fired = {suggestion.rule.id for suggestion in evaluation.fired}
    of_two = {name: rule for name, rule in rules_of_two(rules.book).rules.items() if name not in fired}
    book = RuleBook(of_two, rules.book.sources)
    results = evaluate({**advised.facts, **pair.facts}, book, settings=rules.thresholds)
    return PairSuggestions(pair.others, results, pair.of_baseline)


def suggest_for_sides(
    session: Session, sides: tuple[Sequence[int], Sequence[int]], rules: RulesInForce, step_time_pct: float | None
) -> tuple[Suggestion, ...]:
    """Return the suggestions of the rules that compare the newest run of the second side with that of the first.

    `window` and `steps_done` come from the run with the shortest steady window, which limits the evidence.
    """
    first, second = (side[-1] for side in sides)
    a, b = (read_run(session, run_id) for run_id in (first, second))
    comparability = compare_contracts(full_record(session, first), full_record(session, second))
    pair = pair_facts(
        comparability,
        b.run,
        step_time_pct,
        window=window_of(a.run.steady_state),
        memory=memory_kinds(a.run.health),
    )
    shortest = _shortest(session, [*sides[0], *sides[1]])
    length = read_run(session, shortest).facts if shortest not in (None, second) else b.facts
    lengths = {name: length[name] for name in ("window", "steps_done") if name in length}
    return evaluate({**b.facts, **pair, **lengths}, rules_of_two(rules.book), settings=rules.thresholds).fired


def _shortest(session: Session, run_ids: Sequence[int]) -> int | None:
    """Return the run with the shortest steady window; None if no run has one."""
    rows = session.execute(
        select_any(RunResultRow.run_id, RunResultRow.steady_state).where(col(RunResultRow.run_id).in_(run_ids))
    )
    windows = [(row.steady_state["n"], row.run_id) for row in rows if row.steady_state]
    return min(windows, default=(0, None))[1]


# --- The rank of a suggestion and the cost of its A/B, as text.


class FirstSuggestion(NamedTuple):
    """The first suggestion for a run. `place`: its rank, expected gain, and the cost of the A/B, as a sentence."""

    rule: str
    title: str
    why: str
    place: str


def first_suggestion(session: Session, settings: Settings, run_id: int) -> FirstSuggestion | None:
    """Return the first suggestion, for the report of a run; None without one."""
    try:
        advice = suggest(session, run_id, rules_in_force(settings))
    except NotReady:
        return None
    if not advice.leading:
        return None
    first = advice.leading[0]
    return FirstSuggestion(first.rule.id, first.title, first.why, place_text(first, advice.sizing(first)))


def place_text(suggestion: Suggestion, sizing: Sizing | None) -> str:
    """Format the rank, the expected effect and the cost of an A/B."""
    texts = [suggestion.place.because, expected_text(suggestion)]
    if sizing is not None:
        if not texts[-1]:
            texts.append("Its gain on this kind of GPU is unknown.")
        texts.append(f"An A/B takes {cost_text(sizing)}.")
    return " ".join(text for text in texts if text)


def expected_text(suggestion: Suggestion) -> str:
    """Format the expected gain with its range and confidence; empty without a figure."""
    place, expected, forecast = suggestion.place, suggestion.place.expected, suggestion.forecast
    texts = []
    if expected is not None:
        where = expected.statement.name or f"measured {_setting_text(expected.likeness)}"
        texts.append(
            f"Expected {gain_change(expected.pct, expected.low, expected.high).text}, {place.confidence} "
            f"confidence; {where}."
        )
    elif forecast is not None and forecast.gain_pct is not None:
        texts.append(f"The planner predicts {gain_change(forecast.gain_pct, *(forecast.gain_range_pct or ())).text}.")
    if forecast is not None and forecast.at_most_gb is not None:
        at_most_gib = in_gib(forecast.at_most_gb)
        texts.append(f"By the measured peak it needs at most about {at_most_gib:.0f}\u202fGiB per GPU.")
    return " ".join(texts)


def _setting_text(alike: Likeness) -> str:
    if alike.score == 1.0:
        return "on this stack" if "stack" in alike.same else "in the same setting"
    differs = f" (different {', '.join(alike.differs)})" if alike.differs else ""
    return f"in another setting{differs}"


def cost_text(sizing: Sizing) -> str:
    """Format the cost of an A/B: `5 runs per side, about 44 GPU-hours`."""
    hours = "" if sizing.gpu_hours is None else f", about {gpu_hours(sizing.gpu_hours)} GPU-hours"
    return f"{plural(sizing.runs_each, 'run')} per side{hours}"


# --- Storing which rules fire for a run that was read, for the counts of the playbook.

log = structlog.get_logger(__name__)

BATCH_RUNS = 200
BATCH_SECONDS = 2.0
"""Limits of a batch, because uploads wait for it: number of runs, and seconds."""


@timed("rules")
def evaluate_rules(engine: Engine, settings: Settings, run_id: int) -> None:
    """Evaluate the rules for a run, unless the current rules have already evaluated its current figures."""
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
    """Evaluate the rules for runs without an evaluation by the current rules. Return the number of runs.

    A killed worker leaves single runs; a change of the rules affects all runs.
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
    except (NotFound, NotReady):  # deleted, or requested again concurrently
        return
    fired = _fired(advised, rules)
    with transaction(engine) as session:
        rule_firings.keep_firings(session, run_id, fired, rules.version, processed_at=advised.run.processed_at)


def _fired(advised: AdvisedRun, rules: RulesInForce) -> list[str]:
    run_id = advised.run.id
    try:
        forecast = _forecaster(advised.run, advised.facts, rules)
        result = evaluate(advised.facts, rules.book, settings=rules.thresholds, forecast=forecast)
    except ValueError:  # a fact has the wrong type: store that nothing fires, so that the run is not evaluated again
        log.exception("rules_not_asked", run_id=run_id)
        return []
    for rule, error in result.broken:
        log.warning("rule_broken", rule=rule.id, origin=rule.origin, run_id=run_id, error=error)
    return [firing.rule.id for firing in result.offered]
