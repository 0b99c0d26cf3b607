"""Evidence about the suspects of a verdict, from earlier A/Bs and other stacks of the project."""

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any, Literal, Protocol

from sqlalchemy import ColumnElement, Row, Select, case, func, select, tuple_, union_all
from sqlmodel import Session, col

from app.domain.ranking.pairwise import DISPATCHER_AXIS, Knobs, PairwiseComparison, knobs_without
from app.domain.ranking.runs import headroom_pct
from app.domain.ranking.scaling import ScalingRuns, compare_configurations
from app.domain.rules.engine import can_apply, is_decided_by_contract, was_met
from app.domain.rules.evidence import OwnResult
from app.domain.rules.rule import Knob, Rule
from app.domain.rules.run_facts import RunReading, facts_of
from app.domain.run import LogEvidence
from app.domain.verdict.comparability import COMMIT, FOLLOWS, Difference, Suspect
from app.domain.verdict.document import ALTERNATES, UNCONFIRMED, VerdictDocument
from app.domain.verdict.evidence import (
    EARLIEST,
    MOVE_OF,
    WINDOW,
    OtherStacks,
    PastResult,
    PastResults,
    RankedSuspect,
    StackMove,
    alternates,
    alternating_runs,
    change_pct,
    no_likelier,
    node_text,
    of_job_that_alternates,
    other_stacks,
    past_results,
    rank_suspects,
    shared_suspects,
    suspects_of,
    value_text,
    without_likely,
)
from app.domain.verdict.policy import EQUAL_PCT
from app.domain.verdict.step_time import RELEVANT_SHIFT, shows_no_difference
from app.domain.verdict.triage import counted_jobs
from app.domain.verdict.words import side_text
from app.storage.experiments import experiment_sides
from app.storage.json_text import column_value, from_json
from app.storage.remembered import Remembered, WhileSlow
from app.storage.runs import RunListItem, entries_of, stored_contracts
from app.storage.stacks import changed_knobs
from app.storage.tables import (
    AvailabilityRow,
    ExperimentRow,
    ExperimentRunRow,
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunLabelRow,
    RunRow,
    StandingRow,
    VerdictRow,
    from_row,
    in_batches,
    not_indexed,
    select_any,
)
from app.storage.upgrade_changes import jobs_of_upgrade
from app.storage.verdicts import current_verdict, current_verdicts, is_in_regression, jobs_of_regressions
from app.storage.visible import EVERY_PROJECT, seeing, visible_projects

MOST_EVIDENCE = 200
"""Maximum A/Bs of a field, and maximum runs of other stacks, that are read, newest first."""


def suspects_with_evidence(
    session: Session, run_id: int, document: VerdictDocument, metric: str = ""
) -> tuple[RankedSuspect, ...]:
    """Return the suspects of a run's verdict with their evidence, best supported first.

    `metric`: the one that changed; empty: that of the verdict. A/Bs and other stacks are evidence about step time only.
    An unconfirmed slowdown has no likely suspect: nothing is more certain than the slowdown itself.
    """
    suspects, run = suspects_of(document), session.get(RunRow, run_id)
    if run is None or not suspects:
        return ()
    metric = metric or document.leading_metric(in_regression=())
    is_of_time = metric == "step_time_ms" and document.decision != "failed"
    if is_of_time and document.measured is not None and shows_no_difference(document.measured):
        # Without a change there is no last good run: the commits stay those of the compared runs.
        return without_likely(rank_suspects(None, [(suspect, None, None) for suspect in suspects]))
    good, bad = None, (run.ordered_at, run.commit)
    if any(suspect.field == COMMIT for suspect in suspects):
        good = last_good(session, run, document, metric)
        slow = first_slow(session, run, document, metric, good)
        bad = (slow.ordered_at, run.commit) if slow else bad
        suspects = tuple(_since(suspect, run, good, slow) for suspect in suspects)
    good_at = good.ordered_at if good else EARLIEST
    unaffected = _unaffected_before(session, run, document, metric)
    if not is_of_time:
        return rank_suspects(None, [(suspect, None, None) for suspect in suspects], unaffected, good_at, bad)
    direction: Literal["slower", "faster"] = "slower" if (change_pct(document) or 0.0) >= 0 else "faster"
    at_the_time = _at_the_time(session, run, document, suspects)

    def elsewhere(suspect: Suspect) -> OtherStacks | None:
        if suspect.difference is None or not suspect.difference.is_certain:
            return None
        if suspect.difference.role == "info":
            return _without_alternating(
                session, other_stacks(_moves(_with_same_change(at_the_time, suspect)), direction)
            )
        others = tuple(_upgraded(session, run, suspect)) if suspect.difference.role == "stack" else ()
        return _without_alternating(session, OtherStacks(others, direction, "job") if others else None)

    evidence = [(suspect, _past(session, run, suspect), elsewhere(suspect)) for suspect in suspects]
    upgraded = next((others for _, _, others in evidence if others and others.noun == "job"), None)
    shares_code = upgraded is not None and good is not None and _code_explains(session, upgraded, good_at, run)
    ranked = rank_suspects(
        change_pct(document), evidence, unaffected, good_at, bad, code_explains_upgrade=shares_code
    )  # fmt: skip
    is_doubtful = document.badge(in_regression=())[1] == UNCONFIRMED and not is_in_regression(session, run_id)
    change = document.measured_metrics.get(metric)
    if change is not None and change.delta_pct > 0:
        levels = alternation(session, run, change.baseline, change.baseline * (1 + change.delta_pct / 100))
        if levels is not None:
            return of_job_that_alternates(ranked, levels)
    return without_likely(ranked) if is_doubtful else ranked


def alternation(session: Session, run: RunRow, usual: float, slow: float) -> tuple[float, float] | None:
    """Return the two levels of step time (ms) between which the job of a run alternates, around this run; else None.

    In any container or cluster and on any branch. Runs of one commit count once.
    """
    if not run.job:
        return None
    chosen = select_any(RunRow.commit, RunRow.id, RunRow.step_time_ms, RunRow.ordered_at).where(
        col(RunRow.project_id) == run.project_id, col(RunRow.job) == run.job, col(RunRow.purpose) == "ci",
        *(col(getattr(RunRow, name)) == getattr(run, name) for name in ("model", "gpu", "gpus")),
        col(RunRow.quarantine) == "", col(RunRow.short).is_(False), col(RunRow.step_time_ms) > 0,
    )  # fmt: skip
    position = tuple_(col(RunRow.ordered_at), col(RunRow.id))
    before = chosen.where(position <= (run.ordered_at, run.id))
    before = before.order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    after = chosen.where(position > (run.ordered_at, run.id)).order_by(col(RunRow.ordered_at), col(RunRow.id))
    rows = [*reversed(session.execute(before.limit(2 * WINDOW)).all()), *session.execute(after.limit(2 * WINDOW)).all()]
    commits: dict[str | int, list[float]] = {}
    for row in rows:
        commits.setdefault(row.commit or row.id, []).append(row.step_time_ms)
    key = run.commit or run.id or 0
    if key not in commits:
        return None  # the run itself does not count
    own = list(commits).index(key)
    values = [median(values) for values in commits.values()][max(0, own - WINDOW + 1) : own + WINDOW]
    middle, most = math.sqrt(usual * slow), slow + (slow - usual) / 2
    near = [value for value in values if value <= most]
    is_slow = [value > middle for value in near]
    if not alternates(is_slow):
        return None
    return median(v for v in near if v <= middle), median(v for v in near if v > middle)


def alternations_of_runs(session: Session, run_ids: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return, by run, the two levels (ms) between which its job alternates around it, of CI runs that are as slow as a
    regression of their job in any stack."""
    of_job = [getattr(RunRow, name) for name in ("project_id", "job", "model", "gpu", "gpus")]
    runs = session.execute(
        select(RunRow).where(
            col(RunRow.id).in_(run_ids), col(RunRow.purpose) == "ci", col(RunRow.quarantine) == "",
            col(RunRow.job) != "", col(RunRow.step_time_ms) > 0,
        )
    ).scalars().all()  # fmt: skip
    if not runs:
        return {}
    slowed = session.execute(
        select_any(*of_job, RegressionMemberRow.usual_level, RegressionMemberRow.slow_level)
        .join(RegressionMemberRow, col(RegressionMemberRow.run_id) == RunRow.id)
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .where(
            col(RegressionRow.project_id).in_({run.project_id for run in runs}),
            col(RegressionRow.metric) == "step_time_ms", col(RegressionRow.state) != "invalid",
            col(RegressionMemberRow.slow_level) > col(RegressionMemberRow.usual_level),
            # From the members to their runs, not from all runs of a job.
            not_indexed(col(RunRow.job)).in_({run.job for run in runs}),
        )
        .order_by(col(RegressionRow.id).desc())
    ).all()  # fmt: skip
    alternations = {}
    for run in runs:
        own, value = tuple(getattr(run, column.key) for column in of_job), math.log(run.step_time_ms or 1)
        of_it = (row for row in slowed if tuple(row[:5]) == own)
        slow = ((row[5], row[6]) for row in of_it if value > (row[5] + row[6]) / 2)
        levels = (alternation(session, run, math.exp(usual), math.exp(slow)) for usual, slow in dict.fromkeys(slow))
        if both := next(filter(None, levels), None):
            alternations[run.id or 0] = both
    return alternations


def with_alternation(session: Session, items: Sequence[RunListItem]) -> tuple[RunListItem, ...]:
    """Return the runs of a list; an undecided contrast of a job that alternates has that as label, and no change."""
    undecided = [item.id for item in items if (item.badge, item.contrast_decision) == ("inconclusive",) * 2]
    alternations = alternations_of_runs(session, undecided) if undecided else {}
    return tuple(
        replace(item, label=ALTERNATES, contrast_pct=None) if item.id in alternations else item for item in items
    )


def _without_alternating(session: Session, elsewhere: OtherStacks | None) -> OtherStacks | None:
    """Set apart those that alternate between two levels, as their own evidence says."""
    if elsewhere is None:
        return None
    changed = [move for move in elsewhere.moves if move.move != "same" and abs(move.delta_pct) >= 100 * RELEVANT_SHIFT]
    verdicts = current_verdicts(session, [int(move.run) for move in changed])
    alternating = []
    for move in changed:
        verdict = verdicts.get(int(move.run))
        measured = verdict.document.measured if verdict else None
        if measured is not None and not shows_no_difference(measured):
            levels = sorted((measured.baseline_ms, measured.candidate_ms))
            if alternation(session, session.get_one(RunRow, int(move.run)), *levels) is not None:
                alternating.append(move)
    counted = tuple(move for move in elsewhere.moves if move not in alternating)
    return replace(elsewhere, moves=counted, alternating=tuple(alternating))


def _since(suspect: Suspect, run: RunRow, good: Row[Any] | None, slow: Row[Any] | None) -> Suspect:
    """Return a suspected change of commit as that from the last good to the first slow run; others as they are."""
    difference = suspect.difference
    if suspect.field != COMMIT or difference is None or difference.a is None or good is None:
        return suspect
    if good.commit == run.commit:
        return suspect
    difference = replace(difference, a=replace(difference.a, value=good.commit))
    if slow is not None and difference.b is not None:
        difference = replace(difference, b=replace(difference.b, value=slow.commit))
    return replace(suspect, difference=difference)


def last_good(session: Session, run: RunRow, document: VerdictDocument, metric: str) -> Row[Any] | None:
    """Return the newest run before the metric changed; None without one that states its commit.

    It is a run of the same job, like those that this run was compared with, that is nearer to them than to this run.
    It need not be steady: a drift does not hide a change of more than its own size.
    """
    change = document.measured_metrics.get(metric)
    names = document.contrast.runs if document.comparability is None and document.contrast else document.baseline
    columns = (RunRow.stack_key, RunRow.config_key, RunRow.job, RunRow.purpose, RunRow.branch)
    alike = session.execute(select_any(*columns).where(col(RunRow.id).in_([int(name) for name in names]))).all()
    if not alike:
        return None
    earlier = [
        col(RunRow.project_id) == run.project_id,
        col(RunRow.config_key).in_({run.config_key, *(row.config_key for row in alike)}),
        col(RunRow.stack_key).in_({run.stack_key, *(row.stack_key for row in alike)}),
        *(col(getattr(RunRow, name)).in_({getattr(row, name) for row in (run, *alike)}) for name in _ALIKE),
        col(RunRow.ordered_at) < run.ordered_at, col(RunRow.quarantine) == "", col(RunRow.commit) != "",
    ]  # fmt: skip
    if change is not None:
        value = col(RunRow.peak_memory_gib if metric == "peak_memory_gib" else RunRow.step_time_ms)
        middle = change.baseline * math.sqrt(1 + change.delta_pct / 100)
        earlier.append(value < middle if change.delta_pct > 0 else value > middle)
    newest = select_any(RunRow.id, RunRow.commit, RunRow.branch, RunRow.ordered_at).where(*earlier)
    return session.execute(newest.order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc()).limit(1)).first()


_ALIKE = ("job", "purpose", "branch")


class _OfJob(Protocol):
    """A run, as a row or as a page's value."""

    @property
    def job(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def gpu(self) -> str | None: ...
    @property
    def gpus(self) -> int | None: ...
    @property
    def stack_key(self) -> str: ...


def slow_in_other_stacks(
    project_id: int, run: _OfJob, metric: str, above: float, since: datetime
) -> tuple[ColumnElement[bool], ...]:
    """Select the runs of a job after `since` whose metric is above a value in another container or cluster.

    They need not be steady: a drift does not hide a change of more than its own size.
    """
    value = col(RunRow.peak_memory_gib if metric == "peak_memory_gib" else RunRow.step_time_ms)
    return (
        col(RunRow.project_id) == project_id, col(RunRow.job) == run.job, col(RunRow.purpose) == "ci",
        *(col(getattr(RunRow, name)) == getattr(run, name) for name in ("model", "gpu", "gpus")),
        col(RunRow.stack_key) != run.stack_key, col(RunRow.quarantine) == "", col(RunRow.ordered_at) > since,
        value > above,
    )  # fmt: skip


def first_slow(
    session: Session, run: RunRow, document: VerdictDocument, metric: str, good: Row[Any] | None
) -> Row[Any] | None:
    """Return commit and position of the first run after the last good one that is as slow; None for this run itself.

    It ran the same job earlier in another container or cluster, so code that explains both was slow by then.
    """
    change = document.measured_metrics.get(metric)
    if good is None or good.commit == run.commit or change is None or change.delta_pct <= 0 or not run.job:
        return None
    middle = change.baseline * math.sqrt(1 + change.delta_pct / 100)
    earlier = select_any(RunRow.commit, RunRow.ordered_at).where(
        *slow_in_other_stacks(run.project_id, run, metric, middle, good.ordered_at),
        col(RunRow.branch).in_((run.branch, good.branch)), col(RunRow.ordered_at) < run.ordered_at,
        col(RunRow.commit).not_in(("", good.commit, run.commit)),
    )  # fmt: skip
    return session.execute(earlier.order_by(col(RunRow.ordered_at), col(RunRow.id)).limit(1)).first()


def _unaffected_before(session: Session, run: RunRow, document: VerdictDocument, metric: str) -> tuple[int, ...]:
    """Return earlier runs of the job after the same upgrade without the change, newest first.

    Runs that are not steady count as well: a drift does not hide a slowdown of more than its own size.
    """
    change = document.measured_metrics.get(metric)
    if document.suspects or change is None or change.delta_pct <= 0:
        return ()
    ratio = math.sqrt(1 + change.delta_pct / 100)
    if metric == "step_time_ms" and document.measured is not None:
        ratio = min(ratio, 1 + document.measured.ci_low_pct / 100)
    value = col(RunRow.peak_memory_gib if metric == "peak_memory_gib" else RunRow.step_time_ms)
    earlier = (
        col(RunRow.project_id) == run.project_id, col(RunRow.stack_key) == run.stack_key,
        col(RunRow.config_key) == run.config_key, col(RunRow.job) == run.job, col(RunRow.purpose) == run.purpose,
        col(RunRow.ordered_at) < run.ordered_at, col(RunRow.quarantine) == "", value < change.baseline * ratio,
    )  # fmt: skip
    newest = select_any(RunRow.id).where(*earlier).order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    return tuple(session.execute(newest.limit(MOST_EVIDENCE)).scalars())


class _Caused(Protocol):
    """A regression, as a row or as a page's value."""

    @property
    def id(self) -> int | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def cause_key(self) -> str: ...


_MOST_JOBS = 8
"""Maximum jobs of a regression whose suspects are read to find its cause."""
_CAUSE_SECONDS = 120
"""How long a cause is remembered, because reading its evidence takes 4 ms per regression."""


@dataclass(frozen=True, slots=True)
class _Cause:
    """The cause of a regression in words, and its suspects, as its page lists them.

    `code`: the suspected commits that all jobs share, None if the code is not likely; `bisected`: the run they are of.
    """

    text: str
    suspects: tuple[RankedSuspect, ...]
    code: RankedSuspect | None
    bisected: int


_causes = Remembered[_Cause](most=1000)


def shown_cause(session: Session, regression: _Caused, run_ids: Sequence[int]) -> str:
    """Return the cause that pages, the API and messages state. `run_ids`: the first slow run of each counted job.

    This is the cause recorded when the regression opened, unless it is unlikely or another suspect is likely; the node
    if a job alternates between two levels.
    """
    return _cause(session, regression, run_ids).text


def cleared_fields(session: Session, regression: RegressionRow) -> frozenset[str]:
    """Return the fields that changed with a regression but, by its evidence, did not cause it."""
    suspects = suspects_of_regression(session, regression)
    return frozenset(item.suspect.field for item in suspects if item.support == "unlikely")


def suspects_of_regression(session: Session, regression: RegressionRow) -> tuple[RankedSuspect, ...]:
    """Return the suspects that the counted jobs of a regression share, best supported first."""
    return _cause(session, regression, _first_slow_runs(session, regression)).suspects


def _cause(session: Session, regression: _Caused, run_ids: Sequence[int]) -> _Cause:
    """Return the cause, remembered for up to `_CAUSE_SECONDS` as long as the regression has the same jobs."""
    runs = tuple(run_ids[:_MOST_JOBS])
    question = (str(session.get_bind().engine.url), visible_projects(), regression.id, regression.cause, runs)
    period = int(time.monotonic() + 37 * (regression.id or 0)) // _CAUSE_SECONDS  # they expire at different times
    cause = _causes.find(question, period)
    if cause is None:
        cause = _read_cause(session, regression, runs)
        _causes.keep(question, period, cause)
    return cause


def cause_of(session: Session, regression: RegressionRow) -> str:
    """Return the shown cause of a regression whose jobs are not known yet."""
    return shown_cause(session, regression, _first_slow_runs(session, regression))


def _first_slow_runs(session: Session, regression: RegressionRow) -> list[int]:
    number = regression.id or 0
    return [job[0].run_id for job in counted_jobs(jobs_of_regressions(session, [number])[number])]


def _read_cause(session: Session, regression: _Caused, run_ids: Sequence[int]) -> _Cause:
    jobs = _suspects_by_run(session, regression.kind, regression.metric, run_ids)
    shared = _shared_suspects(jobs)
    ranked = tuple(item for _, item in shared)
    code = next(((run, item) for run, item in shared if item.suspect.field == COMMIT and item.is_likely), (0, None))
    run = next(iter(alternating_runs(jobs)), None)
    node = "" if run is None else f"{node_text(run)}{'' if states_node(session, run) else ', not stated'}."
    return _Cause(node or _cause_text(regression, ranked), ranked, code[1], code[0])


def states_node(session: Session, run_id: int) -> bool:
    """Return whether a document of a run states its nodes, so that a rerun can choose another node."""
    return bool(value_text(stored_contracts(session, [run_id]).get(run_id, {}).get("nodes")))


def _cause_text(regression: _Caused, ranked: Sequence[RankedSuspect]) -> str:
    name, _, rest = regression.cause_key.partition(":")
    field = rest.partition(":")[0]
    own = [item for item in ranked if item.suspect.axis == name or item.suspect.field == field]
    best = ranked[0] if ranked else None
    difference = best.suspect.difference if best else None
    if best is None or difference is None:
        return regression.cause
    is_other = best not in own and (best.support == "supported" or bool(own and own[0].support == "unlikely"))
    if not is_other and not (best in own and best.ends_earlier and best.support != "unlikely"):
        return regression.cause
    before, after = (side_text(difference.field, side) for side in (difference.a, difference.b))
    unlikely = f" ({own[0].suspect.field} unlikely)" if own and own[0].support == "unlikely" else ""
    what = "" if difference.field in (COMMIT, "container") else f"{difference.field} "
    return f"{difference.axis.capitalize()}: {what}{before} → {after}{unlikely}."


def _suspects_by_run(
    session: Session, kind: str, metric: str, run_ids: Sequence[int]
) -> list[tuple[int, tuple[RankedSuspect, ...]]]:
    return [
        (run_id, suspects_with_evidence(session, run_id, document_of_member(verdict.document, kind), metric))
        for run_id in run_ids
        if (verdict := current_verdict(session, run_id))
    ]


def _shared_suspects(jobs: Sequence[tuple[int, tuple[RankedSuspect, ...]]]) -> list[tuple[int, RankedSuspect]]:
    """Return the suspects as the page of a regression lists them, each with the run that names it so."""
    return [
        (
            next(jobs[job][0] for job, item in shared.by_job.items() if item.suspect == shared.ranked.suspect),
            shared.ranked,
        )
        for shared in shared_suspects([suspects for _, suspects in jobs])
    ]


def within_regression(
    session: Session, run_id: int, metric: str, ranked: Sequence[RankedSuspect]
) -> tuple[tuple[RankedSuspect, ...], int]:
    """Return the suspects of a run, likely code with the commits that all jobs of its regression share; and whose.

    None is likely that is only possible in its regression. The second value is the run to bisect: the one with the
    shortest range of commits.
    """
    of_run = (
        select(RegressionRow)
        .join(RegressionMemberRow, col(RegressionMemberRow.regression_id) == RegressionRow.id)
        .where(col(RegressionMemberRow.run_id) == run_id, col(RegressionRow.metric) == metric)
    )
    has_likely = any(item.is_likely for item in ranked)
    newest = of_run.order_by(col(RegressionRow.id).desc()).limit(1)
    regression = session.execute(newest).scalar() if has_likely else None
    if regression is None:
        return tuple(ranked), run_id
    cause = _cause(session, regression, _first_slow_runs(session, regression))
    ranked, shared = no_likelier(ranked, cause.suspects), cause.code
    own = next((item for item in ranked if item.suspect.field == COMMIT and item.is_likely), None)
    if own is None or shared is None or shared.bad != own.bad:
        return ranked, run_id
    if shared.bad_at - shared.good_at >= own.bad_at - own.good_at:
        return ranked, run_id
    narrowed = replace(own, suspect=shared.suspect, good_at=shared.good_at, bad_at=shared.bad_at)
    return tuple(narrowed if item is own else item for item in ranked), cause.bisected


def document_of_member(document: VerdictDocument, kind: str) -> VerdictDocument:
    """Return the verdict as a regression of this kind shows it.

    An upgrade is judged by its contrast with the stack before, not by the baseline of the new stack.
    """
    if kind != "upgrade" or document.upgrade is None or document.comparability is None:
        return document
    return replace(document, comparability=None, contrast=document.upgrade, suspects=())


def _past(session: Session, run: RunRow, suspect: Suspect) -> PastResults | None:
    """Return the project's other A/Bs on the suspect's field between the same two values."""
    if suspect.difference is None or not suspect.difference.is_certain or suspect.axis == "code":
        return None
    own = (run.stack_key, run.config_key, run.commit or run.id)
    side = experiment_sides(session, [run.id]).get(run.id) if run.id and run.purpose == "experiment" else None
    results = (
        PastResult(str(ab.run_id), ab.stack_key, ab.from_value, ab.to_value, ab.delta_pct)
        for ab in matched_abs(session, (suspect.field,), run.project_id, MOST_EVIDENCE, gpu=run.gpu)
        if ab.candidate != own and (side is None or ab.experiment_id != side.experiment_id)
    )
    return past_results(results, value_text(suspect.difference.a), value_text(suspect.difference.b))


def _at_the_time(
    session: Session, run: RunRow, document: VerdictDocument, suspects: Iterable[Suspect]
) -> Sequence[Row[Any]]:
    """Return CI runs of other stacks in the same commit range, with verdict documents if a version is a suspect."""
    versions = {
        suspect.field for suspect in suspects if suspect.difference is not None and suspect.difference.role == "info"
    }
    if not versions:
        return ()
    wanted = _in_commit_range(session, run, document)
    return session.execute(wanted.add_columns(col(VerdictRow.document)) if versions - {COMMIT} else wanted).all()


def _with_same_change(rows: Iterable[Row[Any]], suspect: Suspect) -> Iterator[Row[Any]]:
    """Yield the runs whose own verdict has the same difference. All runs in the range share a change of commit.

    A stack whose verdict is a contrast changed its container or cluster as well, so it says nothing about the commit.
    """
    assert suspect.difference is not None  # noqa: S101  # the caller looked
    difference = suspect.difference
    sides = tuple(None if side is None else side.value for side in (difference.a, difference.b))
    for row in rows:
        if suspect.field == COMMIT:
            if row.comparison != "contrast":
                yield row
        elif (suspect.field, *sides) in _info_differences(row.document):
            yield row


def _info_differences(document: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return field and both values of each `info` difference in a stored document."""
    fields = (document.get("comparability") or {}).get("beside") or ()
    return [(field["field"], *((field.get(side) or {}).get("value") for side in ("a", "b"))) for field in fields]


def _in_commit_range(session: Session, run: RunRow, document: VerdictDocument) -> Select[Any]:
    """Return CI runs of other stacks between the newest baseline run and this run, by commit."""
    newest = session.get(RunRow, int(document.baseline[-1])) if document.baseline else None
    numbers = [
        select_any(RunLabelRow.run_id).where(col(RunLabelRow.field) == COMMIT, col(RunLabelRow.value) == run.commit)
    ]
    if newest is not None:
        between = (
            select_any(RunRow.id)
            .where(
                *_same_project_and_gpu(run),
                col(RunRow.ordered_at) > newest.ordered_at, col(RunRow.ordered_at) <= run.ordered_at,
                col(RunRow.stack_key) != run.stack_key, col(RunRow.purpose) == "ci",
            )
            .order_by(col(RunRow.ordered_at).desc())
            .limit(MOST_EVIDENCE)
            .subquery()
        )  # fmt: skip
        numbers.append(select(between.c.id))
    return (
        _current(run)
        # A union of numbers, because with `or` the database would read all runs of the project on this GPU.
        .where(
            col(RunRow.id).in_(union_all(*numbers)), col(RunRow.stack_key) != run.stack_key, col(RunRow.purpose) == "ci"
        )
        .order_by(col(RunRow.ordered_at).desc())
        .limit(MOST_EVIDENCE)
    )


def _upgraded(session: Session, run: RunRow, suspect: Suspect) -> Iterator[StackMove]:
    """Yield the other jobs with the same upgrade, as its report counts them."""
    assert suspect.difference is not None  # noqa: S101  # the caller looked
    sides = value_text(suspect.difference.a), value_text(suspect.difference.b)
    for job in jobs_of_upgrade(session, run.project_id, suspect.field, *sides):
        if (job.stack_key, job.job) != (run.stack_key, run.job):
            yield StackMove(str(job.run_id), job.stack_key, job.move, job.delta_pct, job.job, job.gpu)


def _code_explains(session: Session, upgraded: OtherStacks, good_at: datetime, run: RunRow) -> bool:
    """Return whether some commit is new in this run and in every job that the upgrade moved alike.

    The commits of a job are those between the newest run that its contrast used and its first run after the upgrade.
    """
    documents = [row.document for row in current_verdicts(session, [int(m.run) for m in upgraded.moved]).values()]
    contrasts = [document.upgrade or document.contrast for document in documents]
    if len(contrasts) < len(upgraded.moved) or not all(item and item.comparability.other_code for item in contrasts):
        return False
    before = [max(int(name) for name in item.runs) for item in contrasts if item]
    chosen = select_any(RunRow.id, RunRow.ordered_at).where(
        col(RunRow.id).in_([*before, *(int(move.run) for move in upgraded.moved)])
    )
    at: dict[int, datetime] = {row.id: row.ordered_at for row in session.execute(chosen)}
    begins = [good_at, *(at[number] for number in before if number in at)]
    ends = [run.ordered_at, *(at[int(move.run)] for move in upgraded.moved)]
    return max(begins) < min(ends)


def _current(run: RunRow) -> Select[Any]:
    """Return a select of current verdicts of the project on the run's GPU model, without quarantined runs."""
    columns = (
        VerdictRow.run_id, VerdictRow.decision, VerdictRow.delta_pct, VerdictRow.comparison, RunRow.stack_key,
    )  # fmt: skip
    chosen: Select[Any] = select_any(*columns)
    return (
        chosen.select_from(VerdictRow)
        .join(RunRow, col(RunRow.id) == col(VerdictRow.run_id))
        .where(
            col(VerdictRow.current),
            *_same_project_and_gpu(run),
            col(RunRow.quarantine) == "",
        )
    )


def _same_project_and_gpu(run: RunRow) -> tuple[ColumnElement[bool], ...]:
    return col(RunRow.project_id) == run.project_id, col(RunRow.gpu) == run.gpu


def _moves(rows: Iterable[Row[Any]]) -> Iterator[StackMove]:
    for row in rows:
        if row.delta_pct is not None:
            move = MOVE_OF.get(row.decision, "inconclusive")
            yield StackMove(str(row.run_id), row.stack_key, move, row.delta_pct)


# --- Matched A/Bs on a knob: finished experiments, and verdicts on other runs. An experiment counts once, so the
# verdicts on its runs about the same knob do not count.

MOST_RESULTS = 500
"""Maximum A/Bs that are read for the suggestions of one run, newest first."""
_LEVELS = ("matched_ab", "validated")
_STATES = ("done", "accepted", "rejected")


@dataclass(frozen=True, slots=True)
class AB:
    """One A/B on one field.

    Changes are of step time, in percent. `run_id`: the newest run of the candidate. `experiment_id`: None if the A/B is
    the verdict on that run, or of all ranked runs of two configurations. `against`, `ep`: then the newest run of the
    other, and the expert parallelism of the candidate.
    """

    run_id: int
    attributed_to: str
    delta_pct: float
    ci_low_pct: float | None
    ci_high_pct: float | None
    from_value: str
    to_value: str
    stack_key: str
    config_key: str
    commit: str
    ordered_at: datetime
    project_id: int
    experiment_id: int | None = None
    against: int | None = None
    ep: int | None = None

    @property
    def candidate(self) -> tuple[object, ...]:
        """Return the identity of the candidate, which its reruns share."""
        return self.stack_key, self.config_key, self.commit or self.run_id


_COLUMNS = (
    VerdictRow.run_id, VerdictRow.attributed_to, VerdictRow.delta_pct, VerdictRow.ci_low_pct, VerdictRow.ci_high_pct,
    VerdictRow.from_value, VerdictRow.to_value, RunRow.stack_key, RunRow.config_key, RunRow.commit, RunRow.ordered_at,
    RunRow.project_id,
)  # fmt: skip


def matched_abs(
    session: Session,
    fields: Sequence[str],
    project_id: int | None = None,
    most: int = MOST_RESULTS,
    *,
    gpu: str | None = None,
) -> list[AB]:
    """Return A/Bs on these fields, newest first, without quarantined runs.

    `project_id`: None for all projects. `gpu`: only those on this GPU model.
    """
    on_gpu = () if gpu is None else (col(RunRow.gpu) == gpu,)
    planned = _experiments(session, fields, project_id, most, *on_gpu)
    runs = _runs_of(session, planned)
    verdicts = _verdicts(session, fields, project_id, most, *on_gpu)
    planned_candidates = {ab.candidate for ab in verdicts if (ab.run_id, ab.attributed_to) in runs}
    alone = _newest_of_each_candidate(ab for ab in verdicts if ab.candidate not in planned_candidates)
    return sorted([*planned, *alone], key=lambda ab: ab.run_id, reverse=True)


def _verdicts(
    session: Session, names: Sequence[str], project_id: int | None, most: int, *conditions: ColumnElement[bool]
) -> list[AB]:
    """Return the A/Bs that current verdicts found."""
    chosen = (
        select_any(*_COLUMNS)
        .join(RunRow, col(RunRow.id) == col(VerdictRow.run_id))
        .where(
            col(VerdictRow.current),
            col(VerdictRow.comparison) == "matched_ab",
            col(VerdictRow.attributed_to).in_(names),
            col(VerdictRow.delta_pct).is_not(None),
            col(RunRow.quarantine) == "",
            *conditions,
        )
        .order_by(col(VerdictRow.run_id).desc())
        .limit(most)
    )
    if project_id is not None:  # SQLite shall look up the verdicts instead of reading all of the project
        chosen = chosen.where(not_indexed(col(RunRow.project_id)) == project_id)
    return [AB(**row) for row in session.execute(chosen).mappings()]


def _experiments(
    session: Session, names: Sequence[str], project_id: int | None, most: int, *conditions: ColumnElement[bool]
) -> list[AB]:
    """Return finished experiments that one field explains, with the needed part of their results.

    `conditions`: on the baseline run.
    """
    result: Any = col(ExperimentRow.result)

    def of_time(name: str) -> Any:
        return result["verdict", "step_time", name].as_float().label(name)

    chosen = (
        select_any(
            ExperimentRow.id, ExperimentRow.project_id, ExperimentRow.stack_key, ExperimentRow.candidate_key,
            ExperimentRow.result_at, ExperimentRow.created_at, of_time("delta_pct"), of_time("ci_low_pct"),
            of_time("ci_high_pct"), result["candidate"].label("candidate"),
            *(result[name].as_string().label(name) for name in ("attributed_to", "from_value", "to_value")),
        )
        .join(RunRow, col(RunRow.id) == ExperimentRow.baseline_run_id)
        .where(
            col(ExperimentRow.state).in_(_STATES),
            result["finished"].as_boolean(),
            result["evidence_level"].as_string().in_(_LEVELS),
            result["attributed_to"].as_string().in_(names),
            *conditions,
        )
        .order_by(col(ExperimentRow.id).desc())
        .limit(most)
    )  # fmt: skip
    if project_id is not None:
        chosen = chosen.where(col(ExperimentRow.project_id) == project_id)
    return [
        from_row(
            AB,
            row,
            run_id=int(row.candidate[-1]),
            config_key=row.candidate_key,
            commit="",
            ordered_at=row.result_at or row.created_at,
            experiment_id=row.id,
        )
        for row in session.execute(chosen)
        if row.candidate and row.delta_pct is not None
    ]


def _runs_of(session: Session, planned: Sequence[AB]) -> set[tuple[int, str]]:
    """Return all runs of these experiments, each with the field of its experiment."""
    field_of = {ab.experiment_id: ab.attributed_to for ab in planned}
    if not field_of:
        return set()
    rows = session.execute(
        select_any(ExperimentRunRow.experiment_id, ExperimentRunRow.run_id).where(
            col(ExperimentRunRow.experiment_id).in_(field_of)
        )
    )
    return {(row.run_id, field_of[row.experiment_id]) for row in rows}


def _newest_of_each_candidate(comparisons: Iterable[AB]) -> list[AB]:
    first: dict[tuple[object, ...], AB] = {}
    for ab in comparisons:
        first.setdefault(ab.candidate, ab)
    return list(first.values())


# --- The gain that each matched A/B on a knob measured, in the direction of a suggestion.


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """The gain of one A/B in percent of throughput, with its interval. `experiment_id` None: a verdict on that run.

    `before`: the value that the suggestion replaces with `after`. `forwards`: whether the candidate `run_id` has
    `after`, not `before`. `against`: as in `AB`. `gpu`, `ep`: the GPU and the expert parallelism of its runs; empty and
    None if unknown.
    """

    pct: float
    low: float
    high: float
    run_id: int
    stack_key: str
    at: datetime
    before: str
    after: str
    forwards: bool
    experiment_id: int | None = None
    against: int | None = None
    ep: int | None = None
    gpu: str = ""

    @property
    def paid_off(self) -> bool:
        """Return whether the whole interval is a gain."""
        return self.low > 0

    @property
    def is_decided(self) -> bool:
        """Return whether its interval excludes zero."""
        return self.low > 0 or self.high < 0

    @property
    def says_nothing(self) -> bool:
        """Return whether it could not detect a relevant difference: its interval contains one of either sign."""
        return self.low < -EQUAL_PCT and self.high > EQUAL_PCT

    def turned(self) -> "MeasuredGain":
        """Return the same A/B as the gain of the other value."""
        middle, low, high = (_throughput(pct) for pct in (self.pct, self.high, self.low))
        return replace(
            self, pct=middle, low=low, high=high, before=self.after, after=self.before, forwards=not self.forwards
        )


@dataclass(frozen=True, slots=True)
class MeasuredHere:
    """`result`: the gain on one or several stacks.

    `runs`: candidates of the A/Bs. `experiments`: those planned as experiments. `before`: the values that the change
    replaced with `after`.
    """

    result: OwnResult
    runs: tuple[int, ...]
    experiments: tuple[int, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def gains_of(rows: Iterable[AB], knob: Knob) -> list[MeasuredGain]:
    """Return the gains of the A/Bs that changed this knob, in either direction."""
    return [gain for row in rows if (gain := _gain(row, knob)) is not None]


def gains_by_rule(
    session: Session, rows: Sequence[AB], knobs: Iterable[tuple[Rule, Iterable[Knob]]]
) -> dict[str, list[MeasuredGain]]:
    """Return the gains of each rule's change in runs that its condition does not exclude, for rules with one.

    If the contract alone can meet the condition, only gains where it did, or where it did with the free memory before
    the change, count: what else was measured there is unknown. An A/B between two values of the rule counts as it was
    made. The newest run tells the facts of its configuration.
    """
    rows = over_all_runs(session, rows)
    newest: dict[tuple[str, str], int] = {}
    alike = {row.run_id: newest.setdefault((row.stack_key, row.config_key), row.run_id) for row in rows}
    by_field: dict[str, list[AB]] = {}
    for row in rows:
        by_field.setdefault(row.attributed_to, []).append(row)
    matches: list[tuple[Rule, Knob, MeasuredGain]] = [
        (rule, knob, gain)
        for rule, of_rule in knobs
        for knob in of_rule
        for gain in gains_of(by_field.get(knob.field, ()), knob)
    ]
    stated = {
        run_id: facts_of(RunReading(contract=contract))
        for run_id, contract in stored_contracts(session, sorted({alike[gain.run_id] for *_, gain in matches})).items()
    }
    matched = {rule.id: rule for rule, *_ in matches}
    by_contract = {name for name, rule in matched.items() if is_decided_by_contract(rule)}
    by_memory = [gain for rule, _, gain in matches if rule.id in by_contract and "headroom_frac" in rule.when.names]
    memory = _memory_before(session, by_memory)

    def headroom(gain: MeasuredGain, contract: Mapping[str, object]) -> float | None:
        free = headroom_pct(str(contract.get("gpu")), memory[gain]) if gain in memory else None
        return None if free is None else free / 100

    gains: dict[str, dict[tuple[int, frozenset[str]], MeasuredGain]] = {}
    for rule, knob, gain in matches:
        run_id = alike[gain.run_id]
        contract = stated.get(run_id, {})
        if can_apply(rule, contract, knob.field, gain.before) and (
            rule.id not in by_contract or was_met(rule, contract, knob.field, gain.before, headroom(gain, contract))
        ):
            once, pair = gains.setdefault(rule.id, {}), (gain.run_id, frozenset((gain.before, gain.after)))
            if gain.forwards or pair not in once:
                ep, gpu = contract.get("ep"), contract.get("gpu")
                once[pair] = replace(gain, ep=ep if isinstance(ep, int) else None, gpu=str(gpu or ""))
    return {rule: list(once.values()) for rule, once in gains.items()}


def over_all_runs(session: Session, rows: Sequence[AB]) -> list[AB]:
    """Return A/Bs over all ranked runs of two configurations, as boards state them, in place of verdicts on a run.

    A verdict compares a run with its baseline only. Where one found an A/B on a field, any two configurations of its
    stack that differ in this field alone are an A/B: a sweep has one at each degree. The one that began later is the
    candidate. An experiment keeps its own result: its runs alternate, and more runs of one side do not change it. So
    does a verdict on configurations that no segment of the stack's history has runs of.
    """
    of_fields = {(row.stack_key, row.attributed_to): row for row in rows if row.experiment_id is None}
    ranked = _ranked_runs(session, {row.stack_key for row in of_fields.values()})
    offered = [
        (row, sides) for row in of_fields.values() for sides in _sides(ranked.get(row.stack_key, ()), row.attributed_to)
    ]
    knobs = changed_knobs(session, {(int(a.runs[-1]), int(b.runs[-1])) for _, (a, b) in offered})
    planned = {_pair_of(row, row.config_key) for row in rows if row.experiment_id is not None}
    judged = {_pair_of(row, row.config_key) for row in rows if row.experiment_id is None}
    pooled, covered = [], set[tuple[object, ...]]()
    for row, (a, b) in offered:
        changed = knobs[int(a.runs[-1]), int(b.runs[-1])]
        comparison = compare_configurations(b, a) if [item.field for item in changed] == [row.attributed_to] else None
        if comparison is None or not changed[0].is_certain:
            continue
        ab = _ab_of_pair(row, a, b, changed[0], comparison)
        own = {_pair_of(ab, runs.config_key) for runs in (a, b)}
        if own & judged or not (comparison.directional or own & planned):
            pooled.append(ab)
            covered |= own
    others = [row for row in rows if row.experiment_id is not None or _pair_of(row, row.config_key) not in covered]
    return sorted([*others, *pooled], key=lambda ab: ab.run_id, reverse=True)


def _pair_of(ab: AB, config_key: str) -> tuple[object, ...]:
    return ab.stack_key, ab.attributed_to, config_key, frozenset((ab.from_value, ab.to_value))


def _sides(configurations: Iterable[ScalingRuns], field: str) -> Iterator[tuple[ScalingRuns, ScalingRuns]]:
    """Yield any two configurations that differ in the field and its followers at most, the earlier one first."""
    followers = frozenset(follower for follower, switch in FOLLOWS.items() if switch == field)
    axis = DISPATCHER_AXIS if field == "dispatcher" else followers | {field}
    groups: dict[Knobs, list[ScalingRuns]] = {}
    for runs in configurations:
        groups.setdefault(knobs_without(axis, runs.known), []).append(runs)
    for group in groups.values():
        yield from combinations(sorted(group, key=lambda runs: runs.position(0))[-_MOST_IN_SWEEP:], 2)


_MOST_IN_SWEEP = 12
"""Maximum values of a field that are compared with each other, newest first."""


def _ab_of_pair(row: AB, a: ScalingRuns, b: ScalingRuns, knob: Difference, comparison: PairwiseComparison) -> AB:
    """Return the A/B of two configurations in place of `row`. `comparison`: the gain of `b` over `a` in throughput."""
    gain = comparison.gain_pct
    low, high = (gain if end is None else end for end in (comparison.low_pct, comparison.high_pct))
    return replace(
        row,
        run_id=int(b.runs[-1]),
        against=int(a.runs[-1]),
        delta_pct=_throughput(gain),
        ci_low_pct=_throughput(high),
        ci_high_pct=_throughput(low),
        from_value=value_text(knob.a),
        to_value=value_text(knob.b),
        config_key=b.config_key,
        ep=ep if isinstance(ep := b.known.get("ep"), int) else None,
        commit="",
        ordered_at=datetime.fromtimestamp(b.at[-1], UTC),
    )


def _ranked_runs(session: Session, stack_keys: Collection[str]) -> dict[str, tuple[ScalingRuns, ...]]:
    """Return the ranked runs of the configurations of stacks, by stack key."""
    configurations: dict[str, tuple[ScalingRuns, ...]] = {}
    for some in in_batches(sorted(stack_keys)):
        scaling = col(StandingRow.document)["scaling"].as_string().label("scaling")
        chosen = select_any(StandingRow.stack_key, scaling).where(col(StandingRow.stack_key).in_(some))
        for stack_key, runs in session.execute(chosen):
            configurations[stack_key] = tuple(map(partial(from_json, ScalingRuns), column_value(runs or "[]")))
    return configurations


def _gain(row: AB, knob: Knob) -> MeasuredGain | None:
    """Return the A/B in the direction of the suggestion; None if it compares other values."""
    if row.attributed_to != knob.field or knob.wanted not in (row.from_value, row.to_value):
        return None
    forwards = row.to_value == knob.wanted
    before = row.from_value if forwards else row.to_value
    if knob.now and knob.now != before:
        return None
    low = row.delta_pct if row.ci_low_pct is None else row.ci_low_pct
    high = row.delta_pct if row.ci_high_pct is None else row.ci_high_pct
    if forwards:  # longer steps mean less throughput
        middle, least, most = _throughput(row.delta_pct), _throughput(high), _throughput(low)
    else:
        middle, least, most = row.delta_pct, low, high
    return MeasuredGain(
        middle,
        least,
        most,
        row.run_id,
        row.stack_key,
        row.ordered_at,
        before,
        knob.wanted,
        forwards,
        row.experiment_id,
        row.against,
        row.ep,
    )


def memory_changes(session: Session, gains: Iterable[MeasuredGain]) -> dict[MeasuredGain, float]:
    """Return the changes of peak memory in these A/Bs, in percent, in the direction of the suggestion."""
    return {
        gain: change["delta_pct"] if gain.forwards else _throughput(change["delta_pct"])
        for gain, change in _memory(session, gains)
        if change["delta_pct"] is not None
    }


def _memory_before(session: Session, gains: Iterable[MeasuredGain]) -> dict[MeasuredGain, float]:
    """Return the peak memory in GiB before the change of each A/B, in the direction of the suggestion."""
    sides = {gain: change["baseline" if gain.forwards else "candidate"] for gain, change in _memory(session, gains)}
    return {gain: gib for gain, gib in sides.items() if gib is not None}


def _memory(session: Session, gains: Iterable[MeasuredGain]) -> Iterator[tuple[MeasuredGain, Mapping[str, Any]]]:
    """Yield these A/Bs with their peak memory on both sides and its change, as far as they have it."""

    def by(key: Any, document: Any, names: Set[int], *conditions: ColumnElement[bool]) -> dict[int, Mapping[str, Any]]:
        change = (document["metrics", "peak_memory_gib", name].as_float().label(name) for name in _CHANGE)
        chosen = select_any(key.label("id"), *change).where(key.in_(names), *conditions)
        return {row["id"]: dict(row) for row in session.execute(chosen).mappings()} if names else {}

    gains = tuple(gains)
    planned = {gain.experiment_id for gain in gains if gain.experiment_id is not None}
    judged = {gain.run_id for gain in gains if gain.experiment_id is None and gain.against is None}
    ranked = {run for gain in gains if gain.against is not None for run in (gain.run_id, gain.against)}
    of_experiment = by(col(ExperimentRow.id), col(ExperimentRow.result), planned)
    of_verdict = by(col(VerdictRow.run_id), col(VerdictRow.document), judged, col(VerdictRow.current).is_(True))
    peaks = select_any(RunRow.id, RunRow.peak_memory_gib).where(
        col(RunRow.id).in_(ranked), col(RunRow.peak_memory_gib) > 0
    )
    of_run: dict[int, float] = {row.id: row.peak_memory_gib for row in session.execute(peaks)} if ranked else {}
    for gain in gains:
        if gain.against is not None:
            if gain.run_id in of_run and gain.against in of_run:
                peak, before = of_run[gain.run_id], of_run[gain.against]
                yield gain, {"baseline": before, "candidate": peak, "delta_pct": 100 * (peak / before - 1)}
            continue
        change = of_verdict.get(gain.run_id) if gain.experiment_id is None else of_experiment.get(gain.experiment_id)
        if change is not None:
            yield gain, change


_CHANGE = ("baseline", "candidate", "delta_pct")


def _throughput(step_time_pct: float) -> float:
    """Convert a change of step time to one of throughput, both in percent."""
    return 100 * (1 / max(1 + step_time_pct / 100, 1e-3) - 1)


def measured(
    rule: str,
    gains: Sequence[MeasuredGain],
    contract: Mapping[str, object] | None = None,
    *,
    same_contract: bool,
    at_gpus: tuple[int, ...] = (),
    on_gpu: str = "",
    same_model: bool = True,
) -> MeasuredHere:
    """Combine gains (at least one) into one result. `contract`: of the newest measurement."""
    result = OwnResult(
        rule=rule,
        n=len(gains),
        median_gain_pct=median(gain.pct for gain in gains),
        low_pct=min(gain.low for gain in gains),
        high_pct=max(gain.high for gain in gains),
        stacks=tuple(dict.fromkeys(gain.stack_key for gain in gains)),
        newest=f"{max(gain.at for gain in gains):%Y-%m-%d}",
        contract=contract or {},
        same_contract=same_contract,
        at_gpus=at_gpus,
        on_gpu=on_gpu,
        same_model=same_model,
        decided=sum(gain.is_decided for gain in gains),
    )
    experiments = tuple(gain.experiment_id for gain in gains if gain.experiment_id is not None)
    before = tuple(dict.fromkeys(gain.before for gain in gains))
    after = tuple(dict.fromkeys(gain.after for gain in gains))
    runs = tuple(dict.fromkeys(gain.run_id for gain in gains))
    return MeasuredHere(result, runs, experiments, before, after)


# --- Availability of dispatchers in containers, from all runs whose logs show it.


@dataclass(frozen=True, slots=True)
class ContainerDispatcher:
    """Availability in a container.

    `available`, `generated` and `evidence` come from the newest run; `container` is None if not stated.
    """

    container: str | None
    dispatcher: str
    available: bool
    runs_with: int
    runs_without: int
    run_id: int
    seen_at: datetime
    generated: bool
    evidence: tuple[LogEvidence, ...]

    @property
    def inferred(self) -> bool:
        """Return whether the evidence is completed iterations rather than a log line."""
        return self.available and bool(self.evidence) and all(line.inferred for line in self.evidence)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Runs of a project, container and dispatcher. `newest`: the last number. `runs_with`: those that show it works."""

    newest: int
    runs_with: int
    runs: int

    def __add__(self, other: "_Counted") -> "_Counted":
        return _Counted(max(self.newest, other.newest), self.runs_with + other.runs_with, self.runs + other.runs)


_Groups = dict[str, dict[tuple[int, str], _Counted]]
"""Container -> (project, dispatcher) -> counts."""


_UNSETTLED = 1000
"""Number of newest runs that are always counted again, because workers do not finish runs in numerical order."""
_counted_before = WhileSlow[tuple[int, _Groups]](most=10)
"""The counts over the runs up to a number. Newer runs are added to them; changes of older runs are missed meanwhile."""


def find_availability(
    session: Session, containers: Collection[str], *, project: str = ""
) -> tuple[ContainerDispatcher, ...]:
    """Return availability by container and dispatcher, optionally in one project. "" is an unknown container."""
    if not containers:
        return ()
    counts = _count_availability(session, set(containers), project)
    newest_rows = _availability_rows(session, {(counted.newest, name) for (_, name), counted in counts.items()})
    generated = set(session.execute(select_any(ProjectRow.id).where(col(ProjectRow.generated))).scalars())
    return tuple(
        _joined(counted, newest_rows[counted.newest, dispatcher], generated)
        for (container, dispatcher), counted in sorted(counts.items(), key=lambda item: (item[0][0] == "", item[0]))
        if (counted.newest, dispatcher) in newest_rows  # otherwise it was deleted since
    )


def newest_containers(session: Session, project: str = "") -> list[str]:
    """Return the containers with known availability, by newest run. "" is an unknown container."""
    newest: dict[str, int] = {}
    for (container, _), counted in _count_availability(session, None, project).items():
        newest[container] = max(counted.newest, newest.get(container, 0))
    return sorted(newest, key=lambda container: -newest[container])


def _count_availability(
    session: Session, containers: Collection[str] | None, project: str
) -> dict[tuple[str, str], _Counted]:
    """Return counts over the visible projects by container and dispatcher. `containers` None: all."""
    chosen = select_any(ProjectRow.id).where(*([col(ProjectRow.slug) == project] if project else []))
    is_restricted = bool(project) or visible_projects() is not None
    projects = set(session.execute(chosen).scalars()) if is_restricted else None
    counts: dict[tuple[str, str], _Counted] = {}
    for groups in _counted_groups(session):
        for container in groups if containers is None else containers:
            for (project_id, dispatcher), counted in groups.get(container, {}).items():
                if projects is None or project_id in projects:
                    before = counts.get((container, dispatcher))
                    counts[container, dispatcher] = counted if before is None else before + counted
    return counts


def _counted_groups(session: Session) -> tuple[_Groups, _Groups]:
    """Return the remembered counts over all containers, and the counts over newer runs."""

    def count() -> tuple[int, _Groups]:
        last = (session.execute(select(func.max(col(AvailabilityRow.run_id)))).scalar() or 0) - _UNSETTLED
        return last, _groups(session, col(AvailabilityRow.run_id) <= last)

    with seeing(EVERY_PROJECT):
        last, groups = _counted_before.get(session, (), count)
        return groups, _newer_groups(session, last)


def _newer_groups(session: Session, last: int) -> _Groups:
    """Count the runs after number `last` here, because the database would read the index of all runs to group them."""
    columns = (
        AvailabilityRow.container, AvailabilityRow.project_id, AvailabilityRow.dispatcher, AvailabilityRow.run_id,
        AvailabilityRow.available,
    )  # fmt: skip
    newer = select_any(*columns).where(col(AvailabilityRow.run_id) > last).order_by(col(AvailabilityRow.run_id))
    groups: _Groups = {}
    for container, project_id, dispatcher, run_id, available in session.execute(newer):
        group = groups.setdefault(container, {})
        counted = _Counted(run_id, int(available), 1)
        before = group.get((project_id, dispatcher))
        group[project_id, dispatcher] = counted if before is None else before + counted
    return groups


def _groups(session: Session, *conditions: ColumnElement[bool]) -> _Groups:
    group = (col(AvailabilityRow.project_id), col(AvailabilityRow.container), col(AvailabilityRow.dispatcher))
    with_it = func.sum(case((col(AvailabilityRow.available), 1), else_=0))
    # Uses columns of an index only, so that no row with its JSON evidence is read.
    counted = select_any(*group, func.max(col(AvailabilityRow.run_id)), with_it, func.count()).where(*conditions)
    groups: _Groups = {}
    for project, container, name, *figures in session.execute(counted.group_by(*group)):
        groups.setdefault(container, {})[project, name] = _Counted(*figures)
    return groups


def _availability_rows(session: Session, keys: Collection[tuple[int, str]]) -> dict[tuple[int, str], AvailabilityRow]:
    rows: dict[tuple[int, str], AvailabilityRow] = {}
    for some in in_batches(sorted({run_id for run_id, _ in keys})):
        chosen = select(AvailabilityRow).where(col(AvailabilityRow.run_id).in_(some))
        rows |= {(row.run_id, row.dispatcher): row for row in session.execute(chosen).scalars()}
    return rows


def _joined(counts: _Counted, newest: AvailabilityRow, generated: Collection[int]) -> ContainerDispatcher:
    """Combine the counts of one container and dispatcher with what the newest run shows.

    `generated`: projects whose logs are generated.
    """
    return from_row(
        ContainerDispatcher,
        newest,
        container=newest.container or None,
        runs_with=counts.runs_with,
        runs_without=counts.runs - counts.runs_with,
        generated=newest.project_id in generated,
        evidence=tuple(LogEvidence(**entries_of(LogEvidence, line)) for line in newest.evidence),
    )
