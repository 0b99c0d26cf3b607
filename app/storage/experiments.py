"""Read and store experiments."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, or_, select
from sqlmodel import Session, col

from app.domain.experiments.values import (
    LETTERS,
    STATES,
    ExperimentPlan,
    ExperimentResult,
    JoinedBy,
    KnobChange,
    Side,
    State,
    state_text,
)
from app.domain.naming import SEPARATOR
from app.domain.ranking.experiments import DispatcherExperiment
from app.domain.ranking.pairwise import DISPATCHER_AXIS, Outcome, PairwiseComparison
from app.domain.ranking.runs import DISPATCHERS
from app.domain.run import Stated
from app.domain.verdict.step_time import Prior, Verdict
from app.errors import NotFound
from app.storage.database import ListPage
from app.storage.json_text import from_json, frozen, to_json
from app.storage.runs import EXPERIMENT_OF_RUN, stored_contract
from app.storage.stacks import FamilyKey, FamilyPrior
from app.storage.tables import (
    ExperimentRow,
    ExperimentRunRow,
    ProjectRow,
    RunResultRow,
    RunRow,
    from_row,
    not_indexed,
    select_any,
)


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """A run of an experiment. `why_not`: why it does not count; empty if it does."""

    run_id: int
    name: str
    side: Side
    joined_by: JoinedBy
    joined_at: datetime
    why_not: str
    status: str
    outcome: str
    commit: str
    created_at: datetime
    step_time_ms: float | None
    tokens_per_s_per_gpu: float | None
    peak_memory_gib: float | None
    evidence_level: str
    verdict: str

    @property
    def counts(self) -> bool:
        return not self.why_not


@dataclass(frozen=True, slots=True)
class ExperimentItem:
    """A row of the list. `workload`: model, GPUs and sequence length of the baseline run, as far as they are known.

    `counted`: number of runs that count, by side. `generated`: of a project with generated, not measured, figures.
    """

    id: int
    project_id: int
    project: str
    generated: bool
    title: str
    rule_id: str
    state: State
    tag: str
    knobs: tuple[KnobChange, ...]
    baseline_run_id: int
    baseline_run_name: str
    workload: str
    parent_id: int | None
    sweep_id: int | None
    stack_key: str
    runs_each: int
    result: ExperimentResult
    created_by: str
    created_at: datetime
    decided_by: str
    decided_at: datetime | None
    note: str

    @property
    def state_text(self) -> str:
        return state_text(self.state, self.result.evidence_level)

    @property
    def counted(self) -> Mapping[str, int]:
        return {"baseline": len(self.result.baseline), "candidate": len(self.result.candidate)}


@dataclass(frozen=True, slots=True)
class Experiment(ExperimentItem):
    """One experiment.

    `sequence`: the interleaved order of the sides. `runs`: in order of arrival. `candidate_key`: empty if it cannot be
    predicted. `winner_run_id`: the newest run that counts on the side that a user chose, else on the winning side; None
    without one.
    """

    baseline_key: str
    candidate_key: str
    sequence: tuple[Side, ...]
    plan: ExperimentPlan
    runs: tuple[ExperimentRun, ...]
    result_at: datetime | None

    def side(self, side: Side) -> tuple[ExperimentRun, ...]:
        return tuple(run for run in self.runs if run.side == side)

    @property
    def winner_run_id(self) -> int | None:
        decided: Mapping[str, Side] = {"accepted": "candidate", "rejected": "baseline"}
        winner = decided.get(self.state) or self.result.winner
        names = self.result.counted(winner) if winner else ()
        return int(names[-1]) if names else None


@dataclass(frozen=True, slots=True)
class ExperimentFilter:
    """Filters; empty means any. `run_id`: experiments with this run."""

    project: str = ""
    state: str = ""
    rule: str = ""
    run_id: int | None = None


@dataclass(frozen=True, slots=True)
class ExperimentListPage(ListPage[ExperimentItem]):
    """A page of experiments. `states` counts all states, regardless of the state filter."""

    states: Mapping[str, int]


def get_experiment(session: Session, experiment_id: int) -> Experiment:
    """Return an experiment. Raises NotFound."""
    joined = session.execute(_select().where(col(ExperimentRow.id) == experiment_id)).one_or_none()
    if joined is None:
        raise NotFound.of(f"Experiment {experiment_id}")
    row, item = joined[0], _item(joined)
    return from_row(
        Experiment,
        item,
        row,
        sequence=tuple(row.sequence),
        plan=from_json(ExperimentPlan, row.plan),
        runs=_runs(session, experiment_id, {left.run: left.why for left in item.result.left_out}),
    )


_NEXT_FIRST = case(
    {state: place for place, state in enumerate(("done", "waiting", "planned", "accepted", "rejected"))},
    value=col(ExperimentRow.state),
    else_=len(STATES),
)


def find_experiments(
    session: Session, wanted: ExperimentFilter, page: int = 1, page_size: int = 50, *, next_first: bool = False
) -> ExperimentListPage:
    """Return a page of experiments, newest first; with `next_first`, those that need a decision or runs come first."""
    conditions = _conditions(wanted)
    states = session.execute(
        select_any(ExperimentRow.state, func.count().label("n"))
        .join(ProjectRow, col(ProjectRow.id) == ExperimentRow.project_id)
        .where(*conditions)
        .group_by(ExperimentRow.state)
    ).all()
    counts = {row.state: row.n for row in states}
    chosen = _select().where(*conditions)
    if wanted.state:
        chosen = chosen.where(col(ExperimentRow.state) == wanted.state)
    order = [_NEXT_FIRST] if next_first else []
    rows = session.execute(
        chosen.order_by(*order, col(ExperimentRow.id).desc()).limit(page_size).offset((page - 1) * page_size)
    ).all()
    items = tuple(_item(row) for row in rows)
    total = counts.get(wanted.state, 0) if wanted.state else sum(counts.values())
    return ExperimentListPage(items, total, page, page_size, counts)


def experiments_of_stacks(session: Session, stack_keys: Collection[str]) -> tuple[ExperimentItem, ...]:
    """Return the experiments on stacks, of any project, that were not withdrawn, newest first."""
    rows = session.execute(
        _select()
        .where(col(ExperimentRow.stack_key).in_(stack_keys), col(ExperimentRow.state) != "withdrawn")
        .order_by(col(ExperimentRow.id).desc())
    )
    return tuple(_item(row) for row in rows)


def experiments_by_id(session: Session, ids: Sequence[int]) -> list[ExperimentItem]:
    """Return these experiments in their order."""
    rows = session.execute(_select().where(col(ExperimentRow.id).in_(ids))) if ids else ()
    return sorted((_item(row) for row in rows), key=lambda item: ids.index(item.id))


def experiment_between(session: Session, project_id: int, keys: tuple[str, str]) -> ExperimentItem | None:
    """Return the newest experiment, not withdrawn, from the first configuration to the second; None without one."""
    row = session.execute(
        _select()
        .where(
            col(ExperimentRow.project_id) == project_id,
            col(ExperimentRow.baseline_key) == keys[0],
            col(ExperimentRow.candidate_key) == keys[1],
            col(ExperimentRow.state) != "withdrawn",
        )
        .order_by(col(ExperimentRow.id).desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else _item(row)


def verdict_of_sides(session: Session, baseline: Collection[int], candidate: Collection[int]) -> Verdict | None:
    """Return the verdict of the newest experiment whose result rests on exactly these runs; None without one."""
    sides = {str(run) for run in baseline}, {str(run) for run in candidate}
    rows = session.execute(
        select_any(ExperimentRow.result)
        .join(ExperimentRunRow, col(ExperimentRunRow.experiment_id) == ExperimentRow.id)
        .where(col(ExperimentRunRow.run_id) == min(candidate), col(ExperimentRunRow.side) == "candidate")
        .order_by(col(ExperimentRow.id).desc())
    ).scalars()
    results = (from_json(ExperimentResult, stored or {}) for stored in rows)
    return next((result.verdict for result in results if (set(result.baseline), set(result.candidate)) == sides), None)


def prior_of_sides(session: Session, baseline: Collection[int], candidate: Collection[int], newest: int) -> Prior:
    """Return the prior that decided: that of the experiment with these runs, else that of the verdict on `newest`."""
    experiment = verdict_of_sides(session, baseline, candidate)
    if experiment is not None:
        return experiment.prior
    row = session.get_one(RunRow, newest)
    place = row.ordered_at
    family = FamilyKey(row.project_id, row.gpu, row.semantic_class, row.definition_version, row.config_key)
    return FamilyPrior(session, family, place, place).prior(place)


def sweep_of(session: Session, sweep_id: int) -> tuple[Experiment, ...]:
    """Return the experiments of a sweep in the order of its values. Raises NotFound."""
    ids = session.execute(
        select_any(ExperimentRow.id).where(col(ExperimentRow.sweep_id) == sweep_id).order_by(col(ExperimentRow.id))
    )
    sweep = tuple(get_experiment(session, number) for number in ids.scalars())
    if not sweep:
        raise NotFound(f"Experiment {sweep_id} does not begin a sweep.")
    return sweep


@dataclass(frozen=True, slots=True)
class ExperimentSide:
    """The experiment that a run was made for, which decides in place of a verdict on the run: its side, the result."""

    experiment_id: int
    side: Side
    result: ExperimentResult

    @property
    def letter(self) -> str:
        return LETTERS[self.side]


def experiment_sides(session: Session, run_ids: Sequence[int]) -> dict[int, ExperimentSide]:
    """Return the side of those of the runs that were made for an experiment."""
    rows = session.execute(
        select_any(col(RunRow.id).label("run_id"), ExperimentRow.id, ExperimentRunRow.side, ExperimentRow.result)
        .join(ExperimentRunRow, col(ExperimentRunRow.run_id) == RunRow.id)
        .join(ExperimentRow, col(ExperimentRow.id) == ExperimentRunRow.experiment_id)
        .where(
            col(RunRow.id).in_(run_ids),
            col(RunRow.purpose) == "experiment",
            col(ExperimentRow.id) == EXPERIMENT_OF_RUN,
        )
    )
    return {row.run_id: ExperimentSide(row.id, row.side, from_json(ExperimentResult, row.result or {})) for row in rows}


def experiments_of_candidates(session: Session, runs: Sequence[int]) -> dict[int, ExperimentItem]:
    """Return the newest experiment of those of the runs that are candidates of one."""
    sides = session.execute(
        select_any(ExperimentRunRow.run_id, ExperimentRunRow.experiment_id)
        .where(col(ExperimentRunRow.run_id).in_(runs), col(ExperimentRunRow.side) == "candidate")
        .order_by(col(ExperimentRunRow.experiment_id))
    ).all()
    chosen = {row.experiment_id for row in sides}
    rows = session.execute(_select().where(col(ExperimentRow.id).in_(chosen))) if chosen else ()
    items = {item.id: item for item in (_item(row) for row in rows)}
    return {row.run_id: items[row.experiment_id] for row in sides if row.experiment_id in items}


def experiment_leading_to(session: Session, run_id: int) -> ExperimentItem | None:
    """Return the newest experiment of the run's project with a candidate of its configuration; None without one.

    All runs of a configuration have the same one, whether they are candidates of it or were made later.
    """
    run = session.get_one(RunRow, run_id)
    # From the runs of experiments, which are few, not from all runs of the configuration.
    same = and_(
        not_indexed(col(RunRow.project_id)) == run.project_id, not_indexed(col(RunRow.config_key)) == run.config_key
    )
    candidates = (
        select_any(ExperimentRunRow.experiment_id)
        .join(RunRow, col(RunRow.id) == ExperimentRunRow.run_id)
        .where(same if run.config_key else col(RunRow.id) == run_id, col(ExperimentRunRow.side) == "candidate")
    )
    chosen = _select().where(col(ExperimentRow.id).in_(candidates)).order_by(col(ExperimentRow.id).desc()).limit(1)
    row = session.execute(chosen).first()
    return _item(row) if row else None


def _conditions(wanted: ExperimentFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.project:
        conditions.append(col(ProjectRow.slug) == wanted.project)
    if wanted.rule:
        conditions.append(col(ExperimentRow.rule_id) == wanted.rule)
    if wanted.run_id is not None:
        joined = select_any(ExperimentRunRow.experiment_id).where(col(ExperimentRunRow.run_id) == wanted.run_id)
        conditions.append(or_(col(ExperimentRow.baseline_run_id) == wanted.run_id, col(ExperimentRow.id).in_(joined)))
    return conditions


def _select() -> Any:
    seq_len = col(RunResultRow.contract)["seq_len"]["value"].as_string()
    return (
        select_any(
            ExperimentRow,
            ProjectRow.slug,
            ProjectRow.generated,
            RunRow.name,
            RunRow.model,
            RunRow.gpu,
            RunRow.gpus,
            seq_len,
        )
        .join(ProjectRow, col(ProjectRow.id) == ExperimentRow.project_id)
        .join(RunRow, col(RunRow.id) == ExperimentRow.baseline_run_id)
        .outerjoin(RunResultRow, col(RunResultRow.run_id) == ExperimentRow.baseline_run_id)
    )


def _item(joined: Sequence[Any]) -> ExperimentItem:
    row, project, generated, run_name, model, gpu, gpus, seq_len = joined
    hardware = f"{gpus} × {gpu or 'unknown GPU'}" if gpus else gpu
    workload = [model, hardware, f"seq {seq_len}" if seq_len else ""]
    return from_row(
        ExperimentItem,
        row,
        project=project,
        generated=generated,
        knobs=knobs_of(row.knobs),
        baseline_run_name=run_name,
        workload=SEPARATOR.join(part for part in workload if part),
        result=from_json(ExperimentResult, row.result or {}),
    )


def knobs_of(stored: Mapping[str, Any]) -> tuple[KnobChange, ...]:
    return tuple(
        KnobChange(name, frozen(entry.get("from")), frozen(entry.get("to")), entry.get("known", True))
        for name, entry in stored.items()
    )


def knobs_json(knobs: Sequence[KnobChange]) -> dict[str, Any]:
    return {
        knob.field: {"from": to_json(knob.before), "to": to_json(knob.after), "known": knob.known} for knob in knobs
    }


def _runs(session: Session, experiment_id: int, why_not: Mapping[str, str]) -> tuple[ExperimentRun, ...]:
    rows = session.execute(
        select_any(
            ExperimentRunRow.side, ExperimentRunRow.joined_by, ExperimentRunRow.joined_at, RunRow.id, RunRow.name,
            RunRow.status, RunRow.outcome, RunRow.commit, RunRow.created_at, RunRow.step_time_ms,
            RunRow.tokens_per_s_per_gpu, RunRow.peak_memory_gib, RunRow.evidence_level, RunRow.verdict,
        )
        .join(RunRow, col(RunRow.id) == ExperimentRunRow.run_id)
        .where(col(ExperimentRunRow.experiment_id) == experiment_id)
        .order_by(col(RunRow.created_at), col(RunRow.id))
    )  # fmt: skip
    return tuple(from_row(ExperimentRun, row, run_id=row.id, why_not=why_not.get(str(row.id), "")) for row in rows)


# --- The contract of a config key: that of its newest run.


def contracts_of(session: Session, config_keys: Collection[str]) -> dict[str, dict[str, Stated]]:
    if not config_keys:
        return {}
    newest = (
        select(func.max(RunRow.id))
        .where(col(RunRow.config_key).in_(sorted(config_keys)))
        .group_by(col(RunRow.config_key))
    )
    chosen = (
        select_any(RunRow.config_key, RunResultRow.contract)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(col(RunRow.id).in_(newest))
    )
    return {key: stored_contract(contract) for key, contract in session.execute(chosen)}


# --- A/Bs of dispatchers, which leaderboards name where they contradict a ranking.


def dispatcher_experiments(
    session: Session, stack_keys: Collection[str], project: str = ""
) -> Mapping[tuple[int, str], list[DispatcherExperiment]]:
    """Return, by project and stack, the newest finished A/B of each two dispatchers that changes nothing else.

    `project`: its slug; empty for all.
    """
    newest: dict[tuple[tuple[int, str], frozenset[str]], DispatcherExperiment] = {}
    for item in experiments_of_stacks(session, stack_keys) if stack_keys else ():
        sides = _dispatchers_of(item.knobs)
        if item.result.finished and item.result.verdict and sides and project in ("", item.project):
            key = (item.project_id, item.stack_key)
            newest.setdefault((key, frozenset(sides)), _experiment(item, sides))
    by_stack: dict[tuple[int, str], list[DispatcherExperiment]] = {}
    for (key, _), experiment in newest.items():
        by_stack.setdefault(key, []).append(experiment)
    return by_stack


_OUTCOMES: Mapping[str, Outcome] = {"improvement": "first", "regression": "second", "no_change": "equal"}


def _experiment(item: ExperimentItem, sides: tuple[str, str]) -> DispatcherExperiment:
    result, gain = item.result, item.result.gain
    time = result.verdict.step_time if result.verdict else None
    comparison = None
    if gain is not None:
        outcome = _OUTCOMES.get(result.decision, "undecided")
        more = time.need_runs if time and outcome == "undecided" else None
        comparison = PairwiseComparison(*sides, outcome, gain.pct, gain.low_pct, gain.high_pct, more_runs=more)
    runs = dict(zip(sides, (result.candidate, result.baseline), strict=True))
    level_pct = time.interval_level_pct if time else 0.0
    return DispatcherExperiment(item.id, sides, comparison, runs, level_pct, result.excluded_gain_pct)


def _dispatchers_of(knobs: Sequence[KnobChange]) -> tuple[str, str] | None:
    """Return the dispatchers of the candidate and of the baseline of an A/B that changes nothing else; else None."""
    if not {knob.field for knob in knobs} <= DISPATCHER_AXIS:
        return None
    candidate, baseline = (
        {str(value) for value in values if value in DISPATCHERS}
        for values in ([knob.after for knob in knobs], [knob.before for knob in knobs])
    )
    return (candidate.pop(), baseline.pop()) if len(candidate) == len(baseline) == 1 else None
