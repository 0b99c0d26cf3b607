"""The rules in use: built-in rules, the rule files of a team, and the configured thresholds.

The team's folder is checked on each use and its files are read again after a change, so no restart is needed.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import structlog
from sqlalchemy import CursorResult, Select, bindparam, delete, func, insert, or_, select, update
from sqlmodel import Session, col

from app.domain.contract.fields import FLEX_BACKENDS
from app.domain.documents.metadata import extra_of
from app.domain.numbers import plural
from app.domain.rules.facts import FOLDER as FACTS_FOLDER
from app.domain.rules.facts import SETTINGS
from app.domain.rules.launch import without_secrets
from app.domain.rules.load import FOLDER, TeamRules, built_in_rules, with_team
from app.domain.rules.rule import Facts, Rule, RuleBook, knobs_of_rule
from app.domain.rules.run_facts import RunReading, facts_of, facts_of_pair, memory_kinds
from app.domain.run import SteadyState, Value
from app.domain.verdict.comparability import Comparability
from app.domain.verdict.document import VerdictDocument
from app.errors import NotFound, NotReady
from app.settings import Settings
from app.storage import readings
from app.storage.profiles import NO_PROFILE, MeasuredFacts, measured_facts
from app.storage.readings import StatedFact, StatedFactRow, in_force, statements_of
from app.storage.remembered import WhileSlow
from app.storage.runs import WITH_RESULT, RunDetail, RunFile, detail, files_of
from app.storage.setbacks import Setbacks, setbacks_of
from app.storage.suspect_evidence import (
    MeasuredGain,
    MeasuredHere,
    find_availability,
    gains_by_rule,
    matched_abs,
    measured,
)
from app.storage.tables import (
    ExperimentRow,
    ExperimentRunRow,
    PinRow,
    ProfileRow,
    ProjectRow,
    RegressionMemberRow,
    RuleFiringRow,
    RunAlarmRow,
    RunResultRow,
    RunRow,
    from_row,
    select_any,
    table_of,
    utc_now,
)
from app.storage.verdicts import current_verdict

log = structlog.get_logger(__name__)

READING_VERSION = 4
"""Increase when the code that derives facts from a run (`domain/rules/run_facts.py`, `derive.py`) changes its results.
"""

Seen = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class RulesInForce:
    """Rules and thresholds.

    `folder`: of the team, or empty. `version` changes with everything that may change which rules fire.
    """

    team: TeamRules
    thresholds: Mapping[str, float]
    folder: str
    version: str

    @property
    def book(self) -> RuleBook:
        return self.team.book


def rules_in_force(settings: Settings) -> RulesInForce:
    """Return the rules in use. Fast: files are read only after the folder changed."""
    thresholds = tuple(getattr(settings, name.lower()) for name in SETTINGS)
    return _rules(settings.rules_dir, _seen(settings.rules_dir), thresholds)


def read_folder(folder: Path) -> dict[str, str]:
    """Return the rule files of a team by name. Invalid UTF-8 becomes U+FFFD, which validation reports."""
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.yaml"))}


def _seen(folder: str) -> Seen:
    """Return the current state of the files in the folder; empty if the folder is missing."""
    if not folder:
        return ()
    files = ((path, path.stat()) for path in sorted(Path(folder).glob("*.yaml")))
    return tuple((path.name, state.st_mtime_ns, state.st_size) for path, state in files)


@lru_cache(maxsize=4)
def _rules(folder: str, seen: Seen, thresholds: tuple[float, ...]) -> RulesInForce:
    texts = read_folder(Path(folder)) if seen else {}
    team = with_team(built_in_rules(), texts)
    for mistake in team.mistakes:
        log.warning(
            "team_rules_left_out", file=mistake.file, line=mistake.line, rule=mistake.rule, message=mistake.message
        )
    values = dict(zip(SETTINGS, thresholds, strict=True))
    identity = json.dumps([READING_VERSION, _own_files(), texts, values], sort_keys=True)
    return RulesInForce(team, values, folder, hashlib.sha256(identity.encode()).hexdigest()[:16])


@lru_cache(maxsize=1)
def _own_files() -> str:
    """Return a hash of the built-in rules and facts."""
    files = [*sorted(FOLDER.glob("*.yaml")), *sorted(FACTS_FOLDER.glob("*.yaml"))]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


# --- The runs for which each rule fired: stored after reading a run, replaced when the run or the rules change.

DONE = ("ready", "failed")
"""Statuses of runs that the rules are evaluated for."""


@dataclass(frozen=True, slots=True)
class FiredIn:
    """A run in which a rule fired."""

    run_id: int
    name: str
    project: str
    purpose: str
    status: str
    ordered_at: datetime


# As Core tables, built once: every run that is read executes them, for every caller.
_RUNS, _FIRINGS = table_of(RunRow), table_of(RuleFiringRow)
_OF_RUN = update(_RUNS).where(_RUNS.c.id == bindparam("of_run")).values(rules_asked=bindparam("version"))
_ASKED = _OF_RUN.where(_RUNS.c.processed_at == bindparam("read_at"))
_ASKED_UNREAD = _OF_RUN.where(_RUNS.c.processed_at.is_(None))
_FIRED = insert(_FIRINGS)


def keep_firings(
    session: Session,
    run_id: int,
    rules: Sequence[str],
    version: str,
    *,
    processed_at: datetime | None,
    is_first: bool = False,
) -> bool:
    """Replace the rules that fired for a run. Return False if the run was read again since `processed_at`.

    `version`: of the evaluated rules (`rules_in_force`). Locks the run's row, so that concurrent evaluations replace
    each other in order. `is_first`: it has no firings yet.
    """
    statement = _ASKED_UNREAD if processed_at is None else _ASKED
    done = session.execute(statement, {"of_run": run_id, "read_at": processed_at, "version": version})
    if cast("CursorResult[Any]", done).rowcount == 0:
        return False
    if not is_first:
        session.execute(delete(RuleFiringRow).where(col(RuleFiringRow.run_id) == run_id))
    if rules:
        now = utc_now()
        session.execute(_FIRED, [{"run_id": run_id, "rule_id": rule[:100], "fired_at": now} for rule in rules])
    return True


def due(session: Session, version: str, most: int) -> Sequence[int]:
    """Return runs that were read but not evaluated with these rules, newest first."""
    other = or_(col(RunRow.rules_asked) < version, col(RunRow.rules_asked) > version)  # uses the index
    chosen = select_any(RunRow.id).where(other, col(RunRow.status).in_(DONE)).order_by(col(RunRow.id).desc())
    return cast("Sequence[int]", session.execute(chosen.limit(most)).scalars().all())


def is_due(session: Session, run_id: int, version: str) -> bool:
    """Return whether a run was read but not evaluated with these rules."""
    asked = select_any(RunRow.rules_asked).where(col(RunRow.id) == run_id, col(RunRow.status).in_(DONE))
    evaluated = session.execute(asked).scalar_one_or_none()
    return evaluated is not None and evaluated != version


_waiting = WhileSlow[int](most=10)
_fired = WhileSlow[Mapping[str, int]](most=100)


def waiting(session: Session, version: str) -> int:
    """Return the number of runs that are not yet evaluated."""
    other = or_(col(RunRow.rules_asked) < version, col(RunRow.rules_asked) > version)
    count = select(func.count()).select_from(RunRow).where(other, col(RunRow.status).in_(DONE))
    return _waiting.get(session, (version,), lambda: int(session.execute(count).scalar_one()))


def fired_counts(session: Session, project_id: int | None) -> Mapping[str, int]:
    """Return in how many runs each rule fired. `project_id` None: all visible projects."""
    counted = (
        select_any(RuleFiringRow.rule_id, func.count())
        .join(RunRow, col(RunRow.id) == RuleFiringRow.run_id)  # for the visibility filter (`visible.py`)
        .group_by(col(RuleFiringRow.rule_id))
    )
    if project_id is not None:
        counted = counted.where(col(RunRow.project_id) == project_id)
    return _fired.get(session, (project_id,), lambda: {row[0]: row[1] for row in session.execute(counted)})


def last_fired(session: Session, rule: str, most: int, project_id: int | None) -> tuple[FiredIn, ...]:
    """Return the runs in which a rule fires, newest first."""
    chosen = (
        select_any(RunRow.id, RunRow.name, RunRow.purpose, RunRow.status, RunRow.ordered_at, ProjectRow.slug)
        .join(RuleFiringRow, col(RuleFiringRow.run_id) == RunRow.id)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RuleFiringRow.rule_id) == rule)
        .order_by(col(RuleFiringRow.run_id).desc())
        .limit(most)
    )
    if project_id is not None:
        chosen = chosen.where(col(RunRow.project_id) == project_id)
    return tuple(
        FiredIn(row.id, row.name, row.slug, row.purpose, row.status, row.ordered_at) for row in session.execute(chosen)
    )


# --- How often each rule was tried here and paid off: experiments based on it, and matched A/Bs of its knob where it
# can apply, whether or not it fires in their runs: the same A/Bs as those that next steps name for this change.

MOST_ABS = 5_000
"""Maximum number of matched A/Bs counted, newest first."""
ENDED = ("done", "accepted", "rejected")


@dataclass(frozen=True, slots=True)
class RuleResults:
    """Results of a rule. `gains`: of its matched A/Bs, those of two values in one direction.

    `tried` and `paid_off` count an experiment and its A/B once.

    A rule that seeks no gain pays off only in accepted experiments.
    """

    tried: int = 0
    paid_off: int = 0
    gains: tuple[MeasuredGain, ...] = ()
    experiments: int = 0

    @property
    def kinds(self) -> list[str]:
        """Return what `tried` counts."""
        matched = sum(gain.experiment_id is None for gain in self.gains)
        return kinds_of(self.tried - matched, matched)

    @property
    def suggests_it(self) -> bool:
        """Return whether the results speak for trying it again: none so far, or at least half paid off."""
        return 2 * self.paid_off >= self.tried

    def by_stack(self, rule: str) -> tuple[MeasuredHere, ...]:
        """Return the gain of each contrast on each stack, best first."""
        groups: dict[tuple[str, str, str], list[MeasuredGain]] = {}
        for gain in self.gains:
            groups.setdefault((gain.stack_key, gain.before, gain.after), []).append(gain)
        results = [measured(rule, gains, same_contract=True) for gains in groups.values()]
        return tuple(sorted(results, key=lambda own: -own.result.median_gain_pct))

    @property
    def contrasts(self) -> Mapping[tuple[str, str], tuple[MeasuredGain, ...]]:
        """Return the gains by the values before and after, that with the most A/Bs first."""
        groups: dict[tuple[str, str], list[MeasuredGain]] = {}
        for gain in self.gains:
            groups.setdefault((gain.before, gain.after), []).append(gain)
        return {values: tuple(groups[values]) for values in sorted(groups, key=lambda own: -len(groups[own]))}

    def together(self, rule: str) -> MeasuredHere | None:
        """Return the gain over all stacks; None without a measurement."""
        return measured(rule, self.gains, same_contract=True) if self.gains else None


NOTHING = RuleResults()


def degrees_of(gains: Iterable[MeasuredGain]) -> str:
    """Format the expert parallelism at which A/Bs ran: `EP8`, or the range with an en dash; empty if it is unknown."""
    degrees = sorted({gain.ep for gain in gains if gain.ep is not None})
    return "EP" + "\u2013".join(map(str, dict.fromkeys((degrees[0], degrees[-1])))) if degrees else ""


def places_of(gains: Iterable[MeasuredGain]) -> str:
    """Format the GPUs and the expert parallelism of A/Bs: `H100, EP8`; empty if both are unknown."""
    gains = tuple(gains)
    gpus = sorted({gain.gpu for gain in gains if gain.gpu})
    return ", ".join(filter(None, (*gpus, degrees_of(gains))))


def kinds_of(experiments: int, matched: int) -> list[str]:
    """Return what tries are: `1 experiment`, `3 matched A/Bs`."""
    kinds = ((experiments, "experiment"), (matched, "matched A/B"))
    return [plural(count, kind) for count, kind in kinds if count]


@dataclass(frozen=True, slots=True)
class _Experiment:
    id: int
    state: str
    runs: frozenset[int]


def rule_results(session: Session, rules: Iterable[Rule], project_id: int | None) -> Mapping[str, RuleResults]:
    """Return the results of rules that were tried. `project_id` None: all projects.

    Rules that make opposite changes share no A/B: it counts for the one that seeks a gain.
    """
    rules = tuple(rules)
    knobs = [(rule, of_rule) for rule in rules if rule.kind == "candidate" and (of_rule := knobs_of_rule(rule))]
    fields = sorted({knob.field for _, of_rule in knobs for knob in of_rule})
    experiments = _experiments(session, project_id)
    gains = gains_by_rule(session, matched_abs(session, fields, project_id, MOST_ABS) if fields else (), knobs)
    seeking = [gain for rule in rules if rule.seeks_gain for gain in gains.get(rule.id, ())]
    sought = {(gain.run_id, gain.after, gain.before) for gain in seeking}
    for rule in rules:
        if rule.id in gains and not rule.seeks_gain:
            gains[rule.id] = [gain for gain in gains[rule.id] if (gain.run_id, gain.before, gain.after) not in sought]
    tried = [rule for rule in rules if rule.id in gains or rule.id in experiments]
    return {rule.id: _together(rule, gains.get(rule.id, ()), experiments.get(rule.id, ())) for rule in tried}


def results_of_rule(session: Session, rule: Rule, rules: Iterable[Rule], project_id: int | None) -> RuleResults:
    """Return the results of one rule. Of `rules`, only those that may claim its A/Bs are read."""
    fields = {knob.field for knob in knobs_of_rule(rule)}
    claiming = (
        other
        for other in rules
        if other.seeks_gain and not rule.seeks_gain and any(knob.field in fields for knob in knobs_of_rule(other))
    )
    return rule_results(session, (rule, *claiming), project_id).get(rule.id, NOTHING)


def project_id_of(session: Session, slug: str) -> int | None:
    """Return the number of a project; None if there is no project of this name."""
    project_id: int | None = session.execute(
        select_any(ProjectRow.id).where(col(ProjectRow.slug) == slug)
    ).scalar_one_or_none()
    return project_id


def _experiments(session: Session, project_id: int | None) -> dict[str, list[_Experiment]]:
    """Return finished experiments by rule, with the runs of their candidates."""
    chosen = (
        select_any(ExperimentRow.id, ExperimentRow.rule_id, ExperimentRow.state, ExperimentRunRow.run_id)
        .outerjoin(
            ExperimentRunRow,
            (col(ExperimentRunRow.experiment_id) == ExperimentRow.id) & (col(ExperimentRunRow.side) == "candidate"),
        )
        .where(col(ExperimentRow.rule_id) != "", col(ExperimentRow.state).in_(ENDED))
        .order_by(col(ExperimentRow.id))
    )
    if project_id is not None:
        chosen = chosen.where(col(ExperimentRow.project_id) == project_id)
    runs: dict[tuple[int, str, str], set[int]] = {}
    for row in session.execute(chosen):
        runs_of_rule = runs.setdefault((row.id, row.rule_id, row.state), set())
        runs_of_rule |= set() if row.run_id is None else {row.run_id}
    experiments: dict[str, list[_Experiment]] = {}
    for (number, rule, state), candidates in runs.items():
        experiments.setdefault(rule, []).append(_Experiment(number, state, frozenset(candidates)))
    return experiments


def _together(rule: Rule, gains: Sequence[MeasuredGain], experiments: Sequence[_Experiment]) -> RuleResults:
    runs = {gain.run_id for gain in gains}
    apart = [experiment for experiment in experiments if not experiment.runs & runs]
    faster = sum(gain.paid_off for gain in gains) if rule.seeks_gain else 0
    decided = apart if rule.seeks_gain else experiments
    return RuleResults(
        tried=len(gains) + len(apart),
        paid_off=faster + sum(experiment.state == "accepted" for experiment in decided),
        gains=in_one_direction(gains),
        experiments=len(experiments),
    )


def in_one_direction(gains: Sequence[MeasuredGain]) -> tuple[MeasuredGain, ...]:
    """Return the A/Bs of each two values in the direction of most of them, so that a pair has one gain."""
    directions = Counter((gain.before, gain.after) for gain in gains).most_common()
    direction = {frozenset(values): values for values, _ in reversed(directions)}
    return tuple(
        gain if direction[frozenset((gain.before, gain.after))] == (gain.before, gain.after) else gain.turned()
        for gain in gains
    )


def planned(session: Session, rule: str) -> int:
    """Return the number of experiments planned from a rule, in any state."""
    count = select(func.count()).select_from(ExperimentRow).where(col(ExperimentRow.rule_id) == rule)
    return int(session.execute(count).scalar_one())


# --- The input of the rules: a stored run, its launch arguments, and the dispatchers of its container.


@dataclass(frozen=True, slots=True)
class AdvisedRun:
    """A run with its facts.

    `launch`: its stated arguments without credentials; None if unknown. `statements`: facts that users stated, newest
    first.
    """

    run: RunDetail
    reading: RunReading
    launch: object
    statements: tuple[StatedFact, ...] = ()
    setbacks: Setbacks = field(default_factory=Setbacks)
    profile: MeasuredFacts = NO_PROFILE

    @property
    def facts(self) -> Facts:
        """Return the facts of the run alone. Rules about pairs need a second run."""
        return {"compared": False, **facts_of(self.reading), **self.setbacks.facts}


@dataclass(frozen=True, slots=True)
class RunInMemory:
    """Data that the transaction that reads a run has in memory: its files, launch arguments and verdict.

    `is_new`: the run was never read before.
    """

    is_new: bool
    files: tuple[RunFile, ...]
    arguments: Mapping[str, Value]
    verdict: VerdictDocument


# Built once, because building it takes as much time as running it.
_EXTRAS: Select[Any] = select_any(
    *(
        select_any(column).where(column == bindparam("run_id"), *conditions).exists().label(name)
        for name, column, conditions in (
            ("stated", col(StatedFactRow.run_id), ()),
            ("profile", col(ProfileRow.run_id), ()),
            ("pinned", col(PinRow.run_id), (col(PinRow.unpinned_at).is_(None),)),
            ("alarm", col(RunAlarmRow.run_id), ()),
        )
    ),
    # A later run of a configuration may continue its regression.
    select_any(RegressionMemberRow.run_id)
    .where(
        col(RegressionMemberRow.stack_key) == bindparam("stack_key"),
        col(RegressionMemberRow.config_key) == bindparam("config_key"),
    )
    .exists()
    .label("regressed"),
)
"""Data that only few runs have. One query finds out which exist, so most runs need no further query."""


def read_run(session: Session, run_id: int, in_memory: RunInMemory | None = None) -> AdvisedRun:
    """Return the run with its facts. Raises NotFound, and NotReady until the run was read."""
    row = session.execute(
        select(RunRow, ProjectRow)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .options(WITH_RESULT)
        .where(col(RunRow.id) == run_id)
        .execution_options(populate_existing=True)  # a session that writes runs through Core tables has old values
    ).one_or_none()
    if row is None:
        raise NotFound.of(f"Run {run_id}")
    run = detail(row[0], row[1], files_of(session, run_id) if in_memory is None else in_memory.files)
    if not run.done:
        raise NotReady(f"Run {run_id} is {run.status}. Suggestions are available once it has been read.")
    extra = extra_of(run.metadata_stated)
    launch = without_secrets(extra.get("launch_args"))
    extras = session.execute(
        _EXTRAS, {"run_id": run_id, "stack_key": row[0].stack_key, "config_key": row[0].config_key}
    ).one()
    statements = statements_of(session, run_id) if extras.stated else ()
    profile = measured_facts(session, run_id, run.contract) if extras.profile else NO_PROFILE
    verdict = in_memory.verdict if in_memory is not None else None
    reading = from_row(
        RunReading,
        run,
        steady=run.steady_state,
        unknown=run.unknown if run.contract else None,
        fair_for_timing=run.fair_for_timing if run.status == "ready" else None,
        arguments=_arguments(session, run) if in_memory is None else in_memory.arguments,
        extra={name: value for name, value in extra.items() if name not in ("launch_args", "env")},
        stated={name: statement.value for name, statement in in_force(statements).items()},
        launch=launch,
        installed=_installed(session, run),
        is_baseline=True if extras.pinned else None,
        profile=profile.values,
    )
    setbacks = setbacks_of(session, run, verdict, in_regressions=extras.regressed or extras.alarm)
    return AdvisedRun(run, reading, launch, statements, setbacks, profile)


def _arguments(session: Session, run: RunDetail) -> Mapping[str, Value]:
    """Return the trainer's argument dump from the last reading of the run's files."""
    read = (*run.log_files, *(file for file in run.files if file.kind != "log" and file.document))
    return readings.arguments_of(session, run.id, read)


def _installed(session: Session, run: RunDetail) -> list[str] | None:
    """Return the flex dispatchers that runs of the project show to work in this container; None without evidence."""
    container = run.contract.get("container")
    if container is None or not isinstance(container.value, str):
        return None
    states = {
        availability.dispatcher: availability.available
        for availability in find_availability(session, [container.value[:500]], project=run.project)
    }
    working = [name for name in FLEX_BACKENDS if states.get(name)]
    return working if working or all(states.get(name) is False for name in FLEX_BACKENDS[:2]) else None


# --- The baseline runs of a run, for the rules about two runs.


@dataclass(frozen=True, slots=True)
class AdvisedPair:
    """Facts about a run and other runs: `others`, oldest first. `of_baseline`: they are its baseline."""

    others: tuple[int, ...]
    facts: Facts
    of_baseline: bool = True


def read_pair(session: Session, run: RunDetail) -> AdvisedPair | None:
    """Return facts about the run and, from its verdict, its baseline, contrast or closest run of its model.

    None without any.
    """
    verdict = current_verdict(session, run.id)
    if verdict is None:
        return None
    document = verdict.document
    comparability, other = document.compared, document.baseline
    if document.comparability is None and document.contrast is not None:
        other = document.contrast.runs
    if comparability is None:
        for miss in document.misses:
            if not any(
                difference.field == "model" and difference.is_certain for difference in miss.comparability.stack
            ):
                comparability, other = miss.comparability, (miss.run,)
                break
    others = tuple(int(number) for number in other if number.isdigit())
    if comparability is None or not others:
        return None
    window, kinds = _stored(session, others[-1])
    change = document.measured.delta_pct if document.measured is not None and document.compared is not None else None
    facts = pair_facts(comparability, run, change, window=window, memory=kinds)
    return AdvisedPair(others, facts, of_baseline=document.compared is not None)


def pair_facts(
    comparability: Comparability,
    run: RunDetail,
    step_time_pct: float | None,
    *,
    window: tuple[int, int] | None,
    memory: frozenset[str],
) -> Facts:
    """Return facts of `run` compared with another run of that steady window and those memory figures."""
    return facts_of_pair(
        [difference.field for difference in (*comparability.stack, *comparability.knobs) if difference.is_certain],
        beside=[difference.field for difference in comparability.beside if difference.is_certain],
        step_time_pct=step_time_pct,
        windows=(window_of(run.steady_state), window),
        memory=(memory_kinds(run.health), memory),
    )


def window_of(steady: SteadyState | None) -> tuple[int, int] | None:
    return None if steady is None else (steady.first_iteration, steady.last_iteration)


def _stored(session: Session, run_id: int) -> tuple[tuple[int, int] | None, frozenset[str]]:
    """Return the window of a run and the kinds of its memory figures."""
    row = session.execute(
        select_any(RunResultRow.steady_state, RunResultRow.health).where(col(RunResultRow.run_id) == run_id)
    ).one_or_none()
    if row is None:
        return None, frozenset()
    window = (
        None if row.steady_state is None else (row.steady_state["first_iteration"], row.steady_state["last_iteration"])
    )
    return window, memory_kinds(row.health)
