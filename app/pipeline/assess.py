"""Assess the candidates of a stack: choose a baseline, or else the nearest contrast, and reach the verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, or_, select
from sqlmodel import Session, col

from app.domain.contract.values import shown
from app.domain.run import Metric, Stated
from app.domain.verdict.assess import (
    UPGRADES,
    Assessment,
    changed_field,
    conclude,
    is_contrast,
    measure_contrast,
    nearest_contrast,
)
from app.domain.verdict.baseline import (
    BaselineChoice,
    BaselineRules,
    LeftOut,
    Selection,
    left_out,
    nearest_misses,
    nearest_run,
    offered_to_experiment,
    select_baseline,
    unfit_because,
    with_reruns,
)
from app.domain.verdict.comparability import Comparability, Difference, compare_contracts
from app.domain.verdict.document import (
    MeasuredContrast,
    OtherBranch,
    VerdictDocument,
    measured_contrast,
    verdict_document,
)
from app.domain.verdict.policy import ANY_BRANCH, NO_POLICY, Policy, ReferenceMove, StackPolicy
from app.domain.verdict.record import RunFacts, RunRecord, current_level, launches_of_commits
from app.domain.verdict.step_time import Prior
from app.domain.verdict.step_time import select_baseline as select_clean
from app.pipeline.work import StackChange, StackClaim
from app.storage.stacks import (
    COMPARED,
    RUNS_BY_NUMBER,
    FamilyPrior,
    RunReader,
    StackRun,
    facts_of,
    read_runs,
    runs_where,
    stack_runs,
)
from app.storage.tables import (
    AvailabilityRow,
    ExperimentRow,
    PinRow,
    ProjectRow,
    ReceiverRow,
    RunFileRow,
    RunResultRow,
    RunRow,
    UpgradeChangeRow,
    select_any,
)

# --- The part of a stack that judging needs: its relevant runs, grouped into candidates, and its rules.
#
# Of a history of any length, only the runs to judge and some hundreds before them are read.

LOOK_BACK = 100
"""Number of runs before the first one to judge that are read."""
LEAST_OF_CONFIGURATION = 40
"""If these include fewer runs of a configuration to judge, this many of its earlier runs are read, too."""

# Built once, because building a statement takes as long as running it.
_IS_UNJUDGED = and_(col(RunRow.verdict) == "", col(RunRow.reception) != "receiving")
_IS_LATER = col(RunRow.ordered_at) >= bindparam("first")
_IS_EARLIER = col(RunRow.ordered_at) < bindparam("first")
_UNJUDGED = runs_where(_IS_UNJUDGED)
_FROM = runs_where(_IS_LATER)
_TO_JUDGE = runs_where(or_(_IS_UNJUDGED, _IS_LATER))
_BEFORE = runs_where(_IS_EARLIER, newest=LOOK_BACK)
_LIKE = runs_where(_IS_EARLIER, col(RunRow.config_key) == bindparam("config"), newest=LEAST_OF_CONFIGURATION)
_UNTIL = runs_where(col(RunRow.ordered_at) <= bindparam("point"), newest=LOOK_BACK)
_RULES: Select[Any] = (
    select_any(ProjectRow.slug, ProjectRow.baseline_branch, ProjectRow.verdict_policy, PinRow.run_id)
    .join(
        PinRow,
        and_(
            col(PinRow.project_id) == ProjectRow.id,
            col(PinRow.stack_key) == bindparam("stack"),
            col(PinRow.unpinned_at).is_(None),
        ),
        isouter=True,
    )
    .where(col(ProjectRow.id) == bindparam("project"))
)

HistoryPosition = tuple[datetime, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run with its reruns (same commit and configuration), oldest first. A quarantined run has no reruns."""

    runs: tuple[StackRun, ...]

    @property
    def position(self) -> HistoryPosition:
        return history_position(self.runs[0])

    @property
    def newest(self) -> StackRun:
        return self.runs[-1]

    @property
    def config_key(self) -> str:
        return self.newest.config_key

    @property
    def branches(self) -> frozenset[str]:
        """Return the branches of its runs. A commit may run on its own branch and later on the baseline branch."""
        return frozenset(run.branch for run in self.runs)

    @property
    def ids(self) -> list[int]:
        return [run.id for run in self.runs]


@dataclass(frozen=True, slots=True)
class Concerns:
    """Whether the project has anything else that a change of a stack may affect.

    `others`: verdicts in other stacks. `receivers`: of notifications. `missing`: dispatchers without their packages.
    `moved`: jobs that moved to this stack from another one.
    """

    others: bool = True
    receivers: bool = True
    experiments: bool = True
    missing: bool = True
    moved: bool = True


@dataclass(frozen=True, slots=True)
class StackToJudge:
    """The relevant part of a stack. `runs`: in history order. `to_judge`: oldest first.

    `policy`, `reference_job` and `upgrades` are settings of the project (`app/domain/verdict/policy.py`).
    """

    project_id: int
    project: str
    stack_key: str
    rules: BaselineRules
    runs: tuple[StackRun, ...]
    to_judge: tuple[Candidate, ...]
    policy: StackPolicy = NO_POLICY
    reference_job: str = ""
    upgrades: tuple[str, ...] = ()
    concerns: Concerns = field(default_factory=Concerns)

    def before(self, candidate: Candidate) -> list[StackRun]:
        """Return the runs before a candidate: the newest of its stack and of its configuration, and pinned runs."""
        own, position = set(candidate.ids), candidate.position
        earlier = [run for run in self.runs if history_position(run) < position and run.id not in own]
        pinned = self.rules.pinned
        if len(earlier) <= LOOK_BACK:
            return earlier
        recent = {run.id for run in earlier[-LOOK_BACK:]}
        same = [run for run in earlier if run.config_key == candidate.config_key][-LOOK_BACK:]
        relevant = recent | {run.id for run in same}
        return [run for run in earlier if run.id in relevant or run.facts.run in pinned]


def history_position(run: StackRun) -> HistoryPosition:
    return run.ordered_at, run.id


def read_stack(
    session: Session, claim: StackClaim | StackChange, newest: Sequence[StackRun] | None = None
) -> StackToJudge:
    """Read what judging needs. `newest`: the newest runs of the stack, including those to judge, if already read."""
    key: dict[str, Any] = {"project": claim.project_id, "stack": claim.stack_key}
    if newest is None:
        rows = session.execute(_RULES, key).all()
        concerns = Concerns()
    else:
        first = runs_since(newest, claim.judge_from)[0]
        rows = session.execute(_RULES_AND_CONCERNS, key | {"at": first.ordered_at, "first": first.id}).all()
        row = rows[0]
        concerns = Concerns(row.contrasts or row.upgrades, row.receivers, row.experiments, row.missing, row.moved)
    project, branch = rows[0].slug, rows[0].baseline_branch
    pinned = frozenset(str(row.run_id) for row in rows if row.run_id is not None)
    policy = Policy.read(rows[0].verdict_policy)
    own = policy.of_stack(claim.stack_key)
    rules = BaselineRules(None if branch == ANY_BRANCH else branch, pinned, own.thresholds)
    runs = _runs(session, claim, rules, newest)
    wanted = [candidate for candidate in candidates(runs) if _is_wanted(candidate, claim.judge_from)]
    return StackToJudge(
        claim.project_id,
        project,
        claim.stack_key,
        rules,
        tuple(runs),
        tuple(wanted),
        own,
        policy.reference_job,
        policy.upgrades,
        concerns,
    )


def candidates(runs: Sequence[StackRun]) -> list[Candidate]:
    """Return all runs that can be judged as candidates (reruns pooled), in history order.

    Runs with different experiment tags are not reruns of each other.
    """
    groups: dict[tuple[str, str, str, str, tuple[str, ...], int], list[StackRun]] = {}
    for run in runs:
        if run.reception != "receiving":
            alone = run.id if run.quarantine or not run.commit else 0
            key = (run.config_key, run.facts.job, run.commit, run.purpose, run.experiment_tags, alone)
            groups.setdefault(key, []).append(run)
    return sorted((Candidate(tuple(group)) for group in groups.values()), key=lambda candidate: candidate.position)


def _is_wanted(candidate: Candidate, judge_from: datetime | None) -> bool:
    again = judge_from is not None and candidate.position[0] >= judge_from
    return again or any(not run.verdict for run in candidate.runs)


def _runs(
    session: Session, claim: StackClaim | StackChange, rules: BaselineRules, newest: Sequence[StackRun] | None
) -> list[StackRun]:
    key = claim.project_id, claim.stack_key
    since = _since(session, claim) if newest is None else runs_since(newest, claim.judge_from)
    if not since:
        return []
    first = since[0].ordered_at
    if newest is None:
        before = read_runs(session, _BEFORE, key, first=first)
    else:
        before = list(newest[: -len(since)])[-LOOK_BACK:]
    by_id = {run.id: run for run in (*before, *since)}
    if len(before) == LOOK_BACK:
        for config in {run.config_key for run in since}:
            if sum(run.config_key == config for run in before) < LEAST_OF_CONFIGURATION:
                by_id |= {run.id: run for run in read_runs(session, _LIKE, key, first=first, config=config)}
        if rules.pinned:
            pinned = [int(run) for run in rules.pinned]
            by_id |= {run.id: run for run in read_runs(session, RUNS_BY_NUMBER, key, run_ids=pinned)}
    return sorted(by_id.values(), key=history_position)


def runs_since(runs: Sequence[StackRun], position: datetime | None) -> list[StackRun]:
    return [run for run in runs if position is None or run.ordered_at >= position]


def _since(session: Session, claim: StackClaim | StackChange) -> list[StackRun]:
    """Read the runs from the first run to judge on."""
    key = claim.project_id, claim.stack_key
    if claim.judge_from is None:
        runs = read_runs(session, _UNJUDGED, key)
        return read_runs(session, _FROM, key, first=runs[0].ordered_at) if runs else []
    runs = read_runs(session, _TO_JUDGE, key, first=claim.judge_from)
    earlier = runs and runs[0].ordered_at < claim.judge_from
    return read_runs(session, _FROM, key, first=runs[0].ordered_at) if earlier else runs


# --- Runs of other stacks and configurations, with which a run without a baseline is compared.

MOST_RUNS = 1000
"""Maximum earlier runs of the project that are read, newest first."""
MOST_CONFIGURATIONS = 60
"""Maximum configurations whose contracts are compared: the closest to the run by model, GPU and GPU count."""


# Built once, because building it takes as long as running it, and every pass executes it.
_WITHOUT_BASELINE: Select[Any] = (
    select_any(RunRow.stack_key, RunRow.id, RunRow.ordered_at)
    .where(
        col(RunRow.project_id) == bindparam("project"),
        col(RunRow.stack_key) != bindparam("stack"),
        col(RunRow.verdict) == "no_baseline",
        col(RunRow.ordered_at) >= bindparam("at"),  # an index range; the next condition alone would not use the index
        or_(
            col(RunRow.ordered_at) > bindparam("at"),
            and_(col(RunRow.ordered_at) == bindparam("at"), col(RunRow.id) > bindparam("first")),
        ),
    )
    .order_by(col(RunRow.ordered_at), col(RunRow.id))
    .limit(MOST_RUNS)
)


# Most projects lack these data. This query tells which exist, so most changes of a stack need no further query.
_RULES_AND_CONCERNS = _RULES.add_columns(
    _WITHOUT_BASELINE.exists().label("contrasts"),
    select_any(UpgradeChangeRow.id)
    .where(
        col(UpgradeChangeRow.project_id) == bindparam("project"),
        col(UpgradeChangeRow.from_stack_key) == bindparam("stack"),
        col(UpgradeChangeRow.side_by_side).is_(False),
    )
    .exists()
    .label("upgrades"),
    select_any(UpgradeChangeRow.id)
    .where(
        col(UpgradeChangeRow.project_id) == bindparam("project"),
        col(UpgradeChangeRow.stack_key) == bindparam("stack"),
    )
    .exists()
    .label("moved"),
    select_any(ReceiverRow.id)
    .where(col(ReceiverRow.project_id) == bindparam("project"), col(ReceiverRow.enabled))
    .exists()
    .label("receivers"),
    select_any(ExperimentRow.id)
    .where(col(ExperimentRow.project_id) == bindparam("project"))
    .exists()
    .label("experiments"),
    select_any(AvailabilityRow.run_id)
    .where(col(AvailabilityRow.project_id) == bindparam("project"), col(AvailabilityRow.available).is_(False))
    .exists()
    .label("missing"),
)


@dataclass(frozen=True, slots=True)
class Newest:
    """One run per configuration, oldest first: the newest that can serve for comparison, else the newest.

    `counts`: number of runs by config key.
    """

    runs: list[RunRecord]
    counts: Mapping[str, int]


# Built once, because building it takes as long as running it.
_COMPARED: Select[Any] = (
    select_any(*COMPARED, RunRow.model, RunRow.gpu, RunRow.gpus)
    .where(
        col(RunRow.project_id) == bindparam("project"),
        col(RunRow.status) == "ready",
        # Excludes runs that never received a file.
        or_(
            col(RunRow.step_time_ms).is_not(None),
            select_any(RunFileRow.id).where(col(RunFileRow.run_id) == RunRow.id).exists(),
        ),
        col(RunRow.id).not_in(bindparam("own", expanding=True)),
        or_(
            col(RunRow.ordered_at) < bindparam("at"),
            and_(col(RunRow.ordered_at) == bindparam("at"), col(RunRow.id) < bindparam("first")),
        ),
        col(RunRow.ordered_at) <= bindparam("until"),
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    .limit(MOST_RUNS)
)


def newest_of_each_configuration(
    session: Session,
    reading: RunReader,
    project_id: int,
    candidate: Candidate,
    rules: BaselineRules,
) -> Newest:
    run = candidate.newest
    same = run.row.model, run.row.gpu, run.row.gpus
    at, first = candidate.position
    position = {"at": at, "first": first, "until": rules.branch_point or at}
    rows = session.execute(_COMPARED, {"project": project_id, "own": candidate.ids, **position}).all()
    # By job and config key: position in the newest-first list, the run, and the distance of its columns.
    best: dict[tuple[str, str], tuple[int, RunFacts, int]] = {}
    fitting: set[tuple[str, str]] = set()
    for age, row in enumerate(rows):
        key = row.job, row.config_key
        if key in fitting:
            continue
        facts = facts_of(row)
        if not unfit_because(facts, run.facts, rules):
            fitting.add(key)
        elif key in best:
            continue
        apart = sum(a != b for a, b in zip((row.model, row.gpu, row.gpus), same, strict=True))
        best[key] = (age, facts, apart + (not facts.is_of_job(run.facts)))
    nearest = sorted(best.values(), key=lambda entry: (entry[2], entry[0]))[:MOST_CONFIGURATIONS]
    oldest_first = sorted(nearest, key=lambda entry: -entry[0])
    return Newest(reading.records([facts.run for _, facts, _ in oldest_first]), Counter(row.config_key for row in rows))


def waiting_for_contrast(
    session: Session, project_id: int, stack_key: str, since: HistoryPosition
) -> dict[str, datetime]:
    """Return the stacks that differ from this one in one field and have runs without a baseline after `since`.

    Their contrasts may have changed. Values: the history position of the first such run.
    """
    at, first = since
    later = session.execute(
        _WITHOUT_BASELINE, {"project": project_id, "stack": stack_key, "at": at, "first": first}
    ).all()
    firsts: dict[str, tuple[str, datetime]] = {}
    for stack, run_id, position in later:
        firsts.setdefault(stack, (str(run_id), position))
    own = select(col(RunRow.id)).where(col(RunRow.project_id) == project_id, col(RunRow.stack_key) == stack_key)
    run = session.execute(own.limit(1)).scalar_one_or_none() if firsts else None
    if run is None:
        return {}
    chosen = dict(list(firsts.items())[:MOST_CONFIGURATIONS])
    record, *others = RunReader(session).records([str(run), *(name for name, _ in chosen.values())])
    return {
        stack: position
        for (stack, (_, position)), other in zip(chosen.items(), others, strict=True)
        if is_contrast(record, other)
    }


def runs_like(
    session: Session, project_id: int, run: RunRecord, candidate: Candidate, rules: BaselineRules
) -> list[StackRun]:
    """Return the earlier runs of another stack with the configuration of `run`, oldest first."""
    runs = stack_runs(
        session,
        project_id,
        run.stack_key,
        col(RunRow.config_key) == run.config_key,
        col(RunRow.ordered_at) <= min(candidate.position[0], rules.branch_point or candidate.position[0]),
        with_metrics=False,
        newest=LOOK_BACK,
    )
    return [run_of_stack for run_of_stack in runs if (run_of_stack.ordered_at, run_of_stack.id) < candidate.position]


def upgrades_from(session: Session, stack: StackToJudge) -> dict[str, datetime]:
    """Return the stacks to which jobs of this one apparently moved, with the history position of the first run there.

    If such a job now runs in this stack again, it did not move.
    """
    runs = [run for candidate in stack.to_judge for run in candidate.runs if run.purpose == "ci"]
    if not runs:
        return {}
    jobs = {run.job for run in runs}
    chosen = select_any(UpgradeChangeRow.stack_key, UpgradeChangeRow.at).where(
        col(UpgradeChangeRow.project_id) == stack.project_id,
        col(UpgradeChangeRow.from_stack_key) == stack.stack_key,
        col(UpgradeChangeRow.side_by_side).is_(False),
        col(UpgradeChangeRow.at) <= max(run.ordered_at for run in runs),
    )
    if "" not in jobs:
        chosen = chosen.where(col(UpgradeChangeRow.job).in_((*jobs, "")))
    firsts: dict[str, datetime] = {}
    for row in session.execute(chosen):
        firsts[row.stack_key] = min(firsts.get(row.stack_key, row.at), row.at)
    return firsts


REFERENCE_DAYS = 7
"""Maximum age of the last run of a reference job for its slowdown to explain other slow runs."""


def start_of_day(time: datetime) -> datetime:
    """Return midnight, UTC."""
    return time.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def stacks_to_judge_for_reference(
    session: Session, stack: StackToJudge, judged: Sequence[tuple[Candidate, VerdictDocument]]
) -> dict[str, datetime]:
    """Return the stacks to judge again because the reference job became slower or recovered, with the first day."""
    days = [
        start_of_day(candidate.position[0])
        for candidate, document in judged
        if stack.reference_job
        and candidate.newest.facts.job == stack.reference_job
        and (document.decision == "regression") != (candidate.newest.verdict == "regression")
    ]
    if not days:
        return {}
    others = select_any(RunRow.stack_key).where(
        col(RunRow.project_id) == stack.project_id,
        col(RunRow.job) != stack.reference_job,
        col(RunRow.stack_key) != "",
        col(RunRow.verdict) != "",
        col(RunRow.ordered_at) >= min(days),
        col(RunRow.ordered_at) < max(days) + timedelta(days=REFERENCE_DAYS + 1),
    )
    return dict.fromkeys(session.execute(others.distinct()).scalars(), min(days))


MOST_LEFT_OUT = 20
"""Maximum runs that are listed with the reason why they cannot serve as baseline."""


YOUNG = 5
"""Number of commits at the start of a stack within which the upgrade that started it is measured. If the stack before
does not run in that time, it has ended, and a later run there is a rollback or a check."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The stack of a job before an upgrade. `runs`: of its last segment. `side_by_side`: jobs still run in it."""

    runs: tuple[StackRun, ...]
    comparability: Comparability
    side_by_side: bool


class Assessor:
    """Assesses the candidates of one stack in any order: a verdict depends on earlier runs, not on other verdicts."""

    def __init__(self, session: Session, stack: StackToJudge) -> None:
        self._session, self._stack = session, stack
        self._reading = RunReader(session)
        self._families: dict[tuple[str, str], FamilyPrior] = {}
        self._elsewhere: dict[str, Mapping[str, Metric | None]] = {}
        self._predecessors: dict[tuple[int, str], Predecessor | None] = {}

    @property
    def contracts(self) -> dict[int, Mapping[str, Stated]]:
        """Return the contracts read so far, by run."""
        return self._reading.contracts

    def document(self, candidate: Candidate) -> VerdictDocument:
        names = tuple(run.facts.run for run in candidate.runs)
        prior = self._prior(candidate)
        before = self._stack.before(candidate)
        rules = self._rules(candidate, before)
        before = self._until_branch_point(before, rules.branch_point)
        earlier = [run.facts for run in before]
        selection = self._selection(candidate, earlier, prior, rules)
        candidates = self._reading.records([*names, *(run_facts.run for run_facts in selection.runs[-1:])])[
            : len(names)
        ]
        with_losses = self._reading.with_losses([*candidates, *selection.runs])
        reruns, baseline = with_losses[: len(names)], tuple(with_losses[len(names) :])
        chosen = self._reading.record(baseline[-1].run) if baseline else None
        listed, more = self._left_out(selection, earlier)
        choice = BaselineChoice(
            selection.kind, baseline, listed, compare_contracts(chosen, candidates[-1]) if chosen else None
        )
        thresholds = self._stack.rules.thresholds
        assessment = conclude(candidates[-1], reruns, choice, prior=prior, thresholds=thresholds)
        if choice.comparability is None:
            assessment = self._without_baseline(assessment, candidate, candidates, prior=prior, rules=rules)
        compared = {*names, *(run.run for run in baseline)}
        figures = self._elsewhere | {
            run.facts.run: run.metrics for run in (*before, *candidate.runs) if run.facts.run in compared
        }
        document = verdict_document(assessment, names, figures, candidates[-1].definition_version)
        if choice.comparability is not None:
            document = replace(document, since_upgrade=self._since_upgrade(candidate, before, prior))
        other_branch = None if selection.runs else self._other_branch(candidate.newest.facts, earlier)
        return replace(
            document,
            more_left_out=more,
            quarantined=candidate.newest.quarantine,
            other_branch=other_branch,
            breaches=self._stack.policy.breaches(candidate.newest.metrics),
            reference=self._reference(candidate, candidates[-1]),
            branch_point="" if rules.branch_point is None else candidate.newest.row.merge_base,
        )

    def _until_branch_point(self, before: list[StackRun], point: datetime | None) -> list[StackRun]:
        """Return `before`; if few of its runs precede the branch point, with the newest runs up to that point."""
        few = point is not None and sum(run.ordered_at <= point for run in before) < LEAST_OF_CONFIGURATION
        if not few or len(before) < LOOK_BACK:
            return before
        older = read_runs(self._session, _UNTIL, (self._stack.project_id, self._stack.stack_key), point=point)
        return sorted({run.id: run for run in (*older, *before)}.values(), key=history_position)

    def _branch_point(self, candidate: Candidate, before: Sequence[StackRun]) -> datetime | None:
        """Return the history position at which the branch of a change left its target; None if unknown or not a change.

        The position of a run of that commit is preferred to the commit time, because runs without a commit time have
        their upload time as position.
        """
        newest = candidate.newest.row
        if not newest.merge_base or self._stack.rules.branch in candidate.branches:
            return None
        if own := [run.ordered_at for run in before if run.commit == newest.merge_base]:
            return own[-1]
        position: datetime | None = newest.merge_base_time
        if position is None:
            of_commit = select(func.max(col(RunRow.ordered_at))).where(
                col(RunRow.project_id) == self._stack.project_id, col(RunRow.commit) == newest.merge_base
            )
            position = self._session.execute(of_commit).scalar_one()
        return position

    def _since_upgrade(self, candidate: Candidate, before: Sequence[StackRun], prior: Prior) -> MeasuredContrast | None:
        """Measure the upgrade that started a young stack over all runs of the stack.

        The first run alone often cannot show a change. It counts as a look of its own; all later runs share the error
        probability of one look.
        """
        newest, branch = candidate.newest, self._stack.rules.branch
        own = [
            run
            for run in (*before, *candidate.runs)
            if run.config_key == newest.config_key
            and run.facts.is_of_job(newest.facts)
            and run.counts_in_segments
            and branch in (None, run.branch)
        ]
        counts = newest.counts_in_segments and branch in (None, newest.branch)
        if not (counts and 2 <= len(launches_of_commits([run.facts for run in own])) <= YOUNG):
            return None
        first = own[0]
        has_moved = first.verdict == "no_baseline" and self._stack.concerns.moved
        if first.verdict and not has_moved:
            return None
        key = first.id, newest.semantic_class
        if key not in self._predecessors:
            self._predecessors[key] = self._predecessor(Candidate((first,)), prior)
        predecessor = self._predecessors[key]
        if predecessor is None:
            return None
        fit = select_clean([run.facts.estimate for run in own], prior.variance).used
        used = {estimate.run for estimate in fit}
        contrast = measure_contrast(
            [run.facts for run in own if run.facts.run in used],
            [run.facts for run in predecessor.runs],
            predecessor.comparability,
            prior,
            self._stack.rules.thresholds,
            looks=YOUNG - 1,
        )
        if contrast is None:
            return None
        contrast = replace(contrast, side_by_side=predecessor.side_by_side)
        return measured_contrast(contrast, {run.facts.run: run.metrics for run in (*own, *predecessor.runs)})

    def _predecessor(self, first: Candidate, prior: Prior) -> Predecessor | None:
        """Return the stack in which the job of a run ran before an upgrade; None without an upgrade."""
        rules = self._stack.rules
        (record,) = self._reading.records([first.newest.facts.run])
        elsewhere = newest_of_each_configuration(self._session, self._reading, self._stack.project_id, first, rules)
        usable = [run for run in elsewhere.runs if not unfit_because(run, record, rules)]
        contrast = nearest_contrast(record, usable)
        if contrast is None or changed_field(contrast[1]).field not in UPGRADES:
            return None
        runs = self._runs_before(contrast[0], record, first, rules)
        level = {run.run for run in current_level([run.facts for run in runs], prior)}
        still_runs = self._still_runs(contrast[0], contrast[1], first)
        return Predecessor(tuple(run for run in runs if run.facts.run in level), contrast[1], still_runs)

    def _runs_before(
        self, other: RunRecord, run: RunRecord, candidate: Candidate, rules: BaselineRules
    ) -> list[StackRun]:
        """Return the usable runs of another stack with the job and configuration of `other`."""
        runs = runs_like(self._session, self._stack.project_id, other, candidate, rules)
        return [
            earlier
            for earlier in runs
            if earlier.facts.is_of_job(other) and not unfit_because(earlier.facts, run, rules)
        ]

    def _rules(self, candidate: Candidate, before: Sequence[StackRun]) -> BaselineRules:
        """Return the rules of the project; for a change, with its branch point."""
        point = self._branch_point(candidate, before)
        if point is None:
            return self._stack.rules
        newer = (run.facts.run for run in before if run.ordered_at > point and run.branch not in candidate.branches)
        return replace(self._stack.rules, branch_point=point, after_it=frozenset(newer))

    def _reference(self, candidate: Candidate, run: RunRecord) -> ReferenceMove | None:
        """Return the slowdown of the project's reference job on the cluster and day of a run; None without one."""
        job, cluster = self._stack.reference_job, run.contract.get("cluster")
        if not job or run.job == job or cluster is None:
            return None
        day = start_of_day(candidate.position[0])
        newest = (
            select_any(RunRow.id, RunRow.verdict, RunRow.verdict_delta_pct)
            .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
            .where(
                col(RunRow.project_id) == self._stack.project_id,
                col(RunRow.job) == job,
                col(RunRow.purpose) == "ci",
                col(RunRow.quarantine) == "",
                col(RunRow.verdict).not_in(("", "failed")),
                col(RunRow.ordered_at) >= day - timedelta(days=REFERENCE_DAYS),
                col(RunRow.ordered_at) < day + timedelta(days=1),
                col(RunResultRow.contract)["cluster"]["value"].as_string() == str(cluster.value),
            )
            .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
            .limit(1)
        )
        row = self._session.execute(newest).one_or_none()
        if row is None or row.verdict != "regression":
            return None
        return ReferenceMove(str(row.id), job, str(cluster.value), row.verdict_delta_pct)

    def _prior(self, candidate: Candidate) -> Prior:
        newest = candidate.newest
        key = newest.config_key, newest.semantic_class
        if key not in self._families:
            positions = [other.position[0] for other in self._stack.to_judge if other.config_key == newest.config_key]
            self._families[key] = FamilyPrior(self._session, newest, positions[0], positions[-1])
        return self._families[key].prior(candidate.position[0])

    def _selection(
        self, candidate: Candidate, earlier: Sequence[RunFacts], prior: Prior, rules: BaselineRules
    ) -> Selection[RunFacts]:
        facts = candidate.newest.facts
        later = (run for run in self._stack.runs if history_position(run) > candidate.position)
        of_commit = [run.facts for run in later if run.commit == facts.commit]
        selection = select_baseline(facts, earlier, rules, prior, of_commit)
        if selection.runs or facts.purpose != "experiment":
            return selection
        run = self._reading.record(facts.run)
        offered = offered_to_experiment(run, earlier)
        newest = {other.config_key: other.run for other in offered}
        order = [other.run for other in offered if newest[other.config_key] == other.run]
        nearest = nearest_run(run, self._reading.records(order))
        if nearest is None:
            return selection
        runs = tuple(with_reruns(next(other for other in offered if other.run == nearest.run), offered))
        return Selection("nearest", runs, selection.refused, selection.passed_over)

    def _left_out(self, selection: Selection[RunFacts], earlier: Sequence[RunFacts]) -> tuple[tuple[LeftOut, ...], int]:
        used = {other.run for other in selection.runs}
        names = [other.run for other in earlier if other.run not in used]
        shown = names[-MOST_LEFT_OUT:]
        wanted = {other.config_key: other.run for other in earlier if other.run in {*shown, *used}}
        others = {other.config_key for other in selection.passed_over if other.run in shown} | {
            other.config_key for other in selection.runs[-1:]
        }
        newest = {key: self._reading.record(name) for key, name in wanted.items() if key in others}
        return left_out(selection, shown, newest), len(names) - len(shown)

    def _other_branch(self, facts: RunFacts, earlier: Sequence[RunFacts]) -> OtherBranch | None:
        """Return the branches of usable runs if none of them is on the baseline branch (it may be called `master`)."""
        branch = self._stack.rules.branch
        if branch is None:
            return None
        usable = select_baseline(facts, earlier, replace(self._stack.rules, branch=None)).runs
        branches = tuple(sorted({run.branch for run in usable}))
        return OtherBranch(branch, branches, len(usable)) if usable else None

    def _still_runs(self, run: RunRecord, comparability: Comparability, candidate: Candidate) -> bool:
        """Return whether the other side of a contrast ran after the candidate, before this stack had five commits.

        Another cluster also counts as in use if it ran the same commit. A declared upgrade is never side by side.
        """
        is_later = col(RunRow.ordered_at) > candidate.position[0]
        field = changed_field(comparability)
        if field.b is not None and shown(field.b.value) in self._stack.upgrades:
            return False
        if field.field == "cluster":
            is_later = col(RunRow.ordered_at) >= candidate.position[0]
            if self._were_in_use_together(run, field):
                return True
        conditions = [is_later]
        if (established := self._established_at(candidate)) is not None:
            conditions.append(col(RunRow.ordered_at) < established)
        rows = self._session.execute(
            select(col(RunRow.job)).where(
                col(RunRow.project_id) == self._stack.project_id,
                col(RunRow.stack_key) == run.stack_key,
                col(RunRow.purpose) == "ci",
                col(RunRow.status) == "ready",
                col(RunRow.quarantine) == "",
                *conditions,
            )
        ).scalars()
        return any(not (job and run.job) or job == run.job for job in rows)

    def _established_at(self, candidate: Candidate) -> datetime | None:
        """Return the history position of the fifth commit, from the candidate on, of its job and configuration in this
        stack; None if there are fewer.
        """
        positions: dict[str, datetime] = {}
        for run in self._stack.runs:
            own = run.config_key == candidate.config_key and run.facts.is_of_job(candidate.newest.facts)
            if own and run.counts_in_segments and history_position(run) >= candidate.position:
                positions.setdefault(run.commit or run.facts.run, run.ordered_at)
        return list(positions.values())[YOUNG - 1] if len(positions) >= YOUNG else None

    def _were_in_use_together(self, run: RunRecord, cluster: Difference) -> bool:
        """Return whether any job of the project ran on the new cluster before this job ended on the old cluster."""
        position = select(col(RunRow.ordered_at)).where(col(RunRow.id) == int(run.run)).scalar_subquery()
        new = "" if cluster.b is None else str(cluster.b.value)
        earlier = (
            select(col(RunRow.id))
            .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
            .where(
                col(RunRow.project_id) == self._stack.project_id,
                col(RunRow.ordered_at) <= position,
                col(RunResultRow.contract)["cluster"]["value"].as_string() == new,
            )
        )
        return self._session.execute(earlier.limit(1)).first() is not None

    def _without_baseline(
        self,
        assessment: Assessment,
        candidate: Candidate,
        candidates: Sequence[RunRecord],
        *,
        prior: Prior,
        rules: BaselineRules,
    ) -> Assessment:
        newest = candidates[-1]
        elsewhere = newest_of_each_configuration(self._session, self._reading, self._stack.project_id, candidate, rules)
        misses = nearest_misses(newest, elsewhere.runs, counts=elsewhere.counts)
        usable = [run for run in elsewhere.runs if not unfit_because(run, newest, rules)]
        contrast = nearest_contrast(newest, usable)
        if contrast is None:
            return replace(assessment, misses=misses)
        runs = self._runs_before(contrast[0], newest, candidate, rules)
        self._elsewhere = {run.facts.run: run.metrics for run in runs}
        level = current_level([run.facts for run in runs], prior)
        measured = measure_contrast(candidates, level, contrast[1], prior, rules.thresholds)
        if measured is not None and self._still_runs(contrast[0], contrast[1], candidate):
            measured = replace(measured, side_by_side=True)
        return replace(assessment, misses=misses, contrast=measured)
