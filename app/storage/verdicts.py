"""Stored verdicts: the current verdict of each run, and the older ones that matter.

A run is judged again whenever earlier runs change, so users never saw most older verdicts. These older verdicts are
kept: the first, which the job's report showed; those whose decision differs from the next; and those that were current
when a user changed something about the run or its regressions.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    Select,
    String,
    Table,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from app.domain.contract.values import shown
from app.domain.definitions import VERDICT_VERSION
from app.domain.experiments.outcome import document_of_side
from app.domain.performance.cost import RATE_DAYS, Cost, clock, extra_ms, regression_cost, steps_of_run
from app.domain.verdict.comparability import Difference
from app.domain.verdict.document import RerunRequest, VerdictDocument
from app.domain.verdict.history import SAME_LEVEL
from app.domain.verdict.policy import ANY_BRANCH, Policy
from app.domain.verdict.triage import (
    ACTIVE,
    FIX_CLAIMED,
    OUTGROWN,
    change_of_job,
    is_half_gone,
    is_nearly_back,
    members_by_job,
    recovery_text,
    state_text,
)
from app.storage.audit import SERVICE, continuations
from app.storage.experiments import ExperimentSide, experiment_sides
from app.storage.json_text import from_json, to_json
from app.storage.tables import (
    AuditEventRow,
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunAlarmRow,
    RunResultRow,
    RunRow,
    VerdictRow,
    from_row,
    in_batches,
    not_indexed,
    select_any,
    table_of,
    utc_now,
)

_MOST_VALUE = 500


# Built once, because building these statements takes several times as long as running them.
_VERDICTS: Table = table_of(VerdictRow)
_RUNS: Table = table_of(RunRow)
_EVENTS: Table = table_of(AuditEventRow)
_MEMBERS: Table = table_of(RegressionMemberRow)
_INSERT = insert(_VERDICTS)
_EARLIER = _VERDICTS.alias()
_CHANGED_BY_USER = (
    select(_EVENTS.c.id)
    .where(
        _EVENTS.c.who != SERVICE,
        _EVENTS.c.at >= _VERDICTS.c.made_at,
        or_(
            and_(_EVENTS.c.subject == "run", _EVENTS.c.subject_id == cast(bindparam("of_run", type_=Integer), String)),
            and_(
                _EVENTS.c.subject == "regression",
                _EVENTS.c.subject_id.in_(
                    select(cast(_MEMBERS.c.regression_id, String)).where(_MEMBERS.c.run_id == bindparam("of_run"))
                ),
            ),
        ),
    )
    .correlate(_VERDICTS)
)
_FORGET = delete(_VERDICTS).where(
    _VERDICTS.c.run_id == bindparam("of_run"),
    _VERDICTS.c.current,
    _VERDICTS.c.decision == bindparam("decided"),
    exists().where(_EARLIER.c.run_id == _VERDICTS.c.run_id, _EARLIER.c.id < _VERDICTS.c.id),
    ~_CHANGED_BY_USER.exists(),
)
"""Delete the current verdict of a run if the next has the same decision and no user or report has referred to it."""
_SUPERSEDE = (
    update(_VERDICTS).where(_VERDICTS.c.run_id == bindparam("of_run"), _VERDICTS.c.current).values(current=False)
)
_SHOW = (
    update(_RUNS)
    .where(_RUNS.c.id == bindparam("of_run"))
    .values(
        verdict=bindparam("decision"),
        verdict_delta_pct=bindparam("delta"),
        badge=bindparam("shown"),
        badge_label=bindparam("label"),
    )
)


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """A stored verdict. `because`: why the run was judged, as a sentence.

    `side`: of a run that was made for an experiment. Its document is then that of the experiment's result.
    """

    id: int
    run_id: int
    made_at: datetime
    because: str
    document: VerdictDocument
    side: ExperimentSide | None = None


def current_verdict(session: Session, run_id: int) -> StoredVerdict | None:
    """Return the current verdict of a run; None if it was not judged."""
    return current_verdicts(session, [run_id]).get(run_id)


def current_verdicts(session: Session, run_ids: Sequence[int]) -> dict[int, StoredVerdict]:
    """Return current verdicts by run, without runs that were not judged."""
    verdicts: dict[int, StoredVerdict] = {}
    for some in in_batches(run_ids):
        rows = session.execute(_select().where(col(VerdictRow.run_id).in_(some), col(VerdictRow.current)))
        verdicts |= {verdict.run_id: verdict for verdict in _stored(session, rows.all())}
    return verdicts


def verdicts_of(session: Session, run_id: int) -> tuple[StoredVerdict, ...]:
    """Return the kept verdicts of a run, newest first; of an experiment's run only the result of the experiment."""
    rows = session.execute(_select().where(col(VerdictRow.run_id) == run_id).order_by(col(VerdictRow.id).desc()))
    stored = tuple(_stored(session, rows.all()))
    return stored[:1] if stored and stored[0].side else stored


def put_verdict(
    session: Session,
    run_id: int,
    document: VerdictDocument,
    because: str,
    *,
    is_first: bool = False,
    stored: Any = None,
) -> None:
    """Make `document` the current verdict of a run. Keep the previous verdict only if it matters (see above).

    Without a baseline, the columns repeat the result of a contrast. `is_first`: the run has no verdict yet. `stored`:
    the document as JSON, if the caller has it.
    """
    if not is_first:
        session.execute(_FORGET, {"of_run": run_id, "decided": document.decision})
        session.execute(_SUPERSEDE, {"of_run": run_id})
    time, comparability = document.measured, document.compared
    columns = {
        "run_id": run_id,
        "current": True,
        "made_at": utc_now(),
        "because": because[:300],
        "decision": document.decision,
        "delta_pct": None if time is None else time.delta_pct,
        "ci_low_pct": None if time is None else time.ci_low_pct,
        "ci_high_pct": None if time is None else time.ci_high_pct,
        "baseline_kind": document.baseline_kind,
        "comparison": "" if comparability is None else comparability.kind,
        "definition_version": document.definition_version,
        "verdict_version": VERDICT_VERSION,
        "document": to_json(document) if stored is None else stored,
    }
    session.execute(_INSERT, columns | _attribution(document))
    judged = document.verdict.step_time
    delta = None if judged is None else judged.delta_pct
    shown, label = document.badge(in_regression=())
    values = {"decision": document.decision, "delta": delta, "shown": shown or document.decision, "label": label}
    session.execute(_SHOW, {"of_run": run_id} | values)


def show_badges(session: Session, run_ids: Iterable[int]) -> None:
    """Store the badges of judged runs again, which depend on their regressions. Runs of experiments keep theirs."""
    for run_id, verdict in current_verdicts(session, sorted(run_ids)).items():
        if verdict.side is not None:
            continue
        metrics = metrics_in_regressions(session, run_id)
        is_back = recovery(session, run_id, verdict.document) is not None
        shown, label = run_badge(verdict.document, metrics, is_back=is_back)
        values = {"badge": shown or verdict.document.decision, "badge_label": label}
        differs = or_(_RUNS.c.badge != values["badge"], _RUNS.c.badge_label != label)
        session.execute(update(_RUNS).where(_RUNS.c.id == run_id, differs).values(values))


def stored_documents(session: Session, run_ids: Sequence[int]) -> dict[int, tuple[dict[str, Any], int]]:
    """Return, by judged run, its current verdict document and the version of the rules that made it."""
    documents: dict[int, tuple[dict[str, Any], int]] = {}
    for some in in_batches(run_ids):
        rows = session.execute(
            select_any(VerdictRow.run_id, VerdictRow.document, VerdictRow.verdict_version).where(
                col(VerdictRow.run_id).in_(some), col(VerdictRow.current)
            )
        )
        documents |= {row.run_id: (row.document, row.verdict_version) for row in rows}
    return documents


def rerun_request(session: Session, run_id: int, document: VerdictDocument) -> RerunRequest | None:
    """Return the reruns that a verdict requests.

    None if it requests none, a regression already confirms it, or the project's budget is used up.
    """
    if not document.requested_reruns:
        return None
    if document.decision == "regression" and metrics_in_regressions(session, run_id):
        return None
    row = session.execute(
        select_any(
            RunRow.project_id, RunRow.commit, RunRow.config_key, RunRow.job, RunResultRow.metadata_stated,
            ProjectRow.verdict_policy,
        )
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.id) == run_id)
    ).one()  # fmt: skip
    budget = Policy.read(row.verdict_policy).budget
    if budget.is_limited and not budget.allows(*reruns_since(session, row.project_id, utc_now() - timedelta(days=1))):
        return None
    command = row.metadata_stated.get("launch_args")
    stated = command if isinstance(command, str) else ""
    first = int(document.candidates[0])
    return RerunRequest(first, document.requested_reruns, row.commit, row.config_key, row.job, stated)


def reruns_since(session: Session, project_id: int, since: datetime) -> tuple[int, float]:
    """Return the number of reruns of `ci` runs that a project received since then, and the sum of known GPU-hours.

    A rerun has an earlier run with the same commit, configuration and job.
    """
    earlier = aliased(RunRow)
    is_rerun = exists().where(
        col(earlier.project_id) == RunRow.project_id,
        col(earlier.commit) == RunRow.commit,
        col(earlier.config_key) == RunRow.config_key,
        col(earlier.job) == RunRow.job,
        col(earlier.id) < RunRow.id,
    )
    rows = session.execute(
        select_any(RunRow.gpus, RunRow.step_time_ms, RunResultRow.slices, RunResultRow.health)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.project_id) == project_id,
            col(RunRow.created_at) >= since,
            col(RunRow.purpose) == "ci",
            col(RunRow.commit) != "",
            is_rerun,
        )
    ).all()
    hours = (gpu_hours(row.gpus, row.step_time_ms, steps_of_run(row.slices, row.health)) for row in rows)
    return len(rows), sum(value for value in hours if value is not None)


def gpu_hours(gpus: int | None, step_time_ms: float | None, steps: float | None) -> float | None:
    """Return the GPU-hours of a run's steps; None if a factor is unknown."""
    if gpus is None or step_time_ms is None or steps is None:
        return None
    return gpus * step_time_ms * steps / 3.6e6


def _attribution(document: VerdictDocument) -> dict[str, Any]:
    """Return the columns for the one field that explains the difference and its two values; empty without one."""
    comparability = document.compared
    field = None if comparability is None else comparability.attributed_to
    if comparability is None or field is None:
        return {"attributed_to": "", "from_value": "", "to_value": ""}
    difference: Difference = next(
        difference for difference in (*comparability.stack, *comparability.knobs) if difference.field == field
    )
    sides: Mapping[str, str] = {
        name: shown(side.value)[:_MOST_VALUE] if side is not None else ""
        for name, side in (("from_value", difference.a), ("to_value", difference.b))
    }
    return {"attributed_to": field[:100], **sides}


def _select() -> Select[Any]:
    return select_any(VerdictRow, RunRow.purpose).join(RunRow, col(RunRow.id) == VerdictRow.run_id)


def _stored(session: Session, rows: Sequence[Any]) -> Iterable[StoredVerdict]:
    of_experiments = [row.run_id for row, purpose in rows if purpose == "experiment"]
    sides = experiment_sides(session, of_experiments) if of_experiments else {}
    for row, _ in rows:
        document, side = from_json(VerdictDocument, row.document), sides.get(row.run_id)
        if side is not None:
            document = document_of_side(document, side.result)
        yield StoredVerdict(row.id or 0, row.run_id, row.made_at, row.because, document, side)


IS_CLAIM = and_(col(RegressionRow.state) == "fixed", col(RegressionMemberRow.proposal) != "fixed")
"""A user marked the regression of a member fixed, and no run of this stack has confirmed it yet."""
_Member = aliased(RegressionMemberRow)
"""An alias, so that conditions of the outer query on members do not apply to these members."""
SHOWN_STATE: Any = case(
    (
        exists().where(
            col(_Member.regression_id) == col(RegressionRow.id),
            col(RegressionRow.state) == "fixed",
            col(_Member.proposal) != "fixed",
        ),
        FIX_CLAIMED,
    ),
    else_=col(RegressionRow.state),
).label("shown_state")
"""The state of a regression for pages and the API: `fix claimed` replaces `fixed` until its runs have recovered."""


_Later = aliased(RunRow)
_OF_JOB = (
    not_indexed(col(_Later.project_id)) == RunRow.project_id,
    not_indexed(col(_Later.stack_key)) == RegressionMemberRow.stack_key,
    col(_Later.config_key) == RegressionMemberRow.config_key,
    not_indexed(col(_Later.job)) == RunRow.job,
    col(_Later.ordered_at) >= RunRow.ordered_at,
    col(_Later.quarantine) == "",
    col(_Later.is_steady).is_(True),
)
_BETWEEN = (col(RegressionMemberRow.usual_level) + col(RegressionMemberRow.slow_level)) / 2
# Selects one such run, because for `exists` PostgreSQL would read all runs of the stacks.
_AGAIN = (
    select_any(_Later.id)
    .where(
        *_OF_JOB,
        col(_Later.id) != RunRow.id,
        not_indexed(col(_Later.purpose)).in_(("ci", "release")),
        col(_Later.log_step_time) > _BETWEEN,
    )
    .order_by(col(_Later.ordered_at))
    .limit(1)
    .correlate(RunRow, RegressionMemberRow)
    .scalar_subquery()
)
# The job in another container or cluster, where no member of the regression is.
_ELSEWHERE = (
    select_any(_Later.id)
    .where(
        not_indexed(col(_Later.project_id)) == RunRow.project_id,
        col(_Later.job) == RunRow.job,
        col(RunRow.job) != "",
        *(col(getattr(_Later, name)) == getattr(RunRow, name) for name in ("model", "gpu", "gpus")),
        not_indexed(col(_Later.stack_key)) != RegressionMemberRow.stack_key,
        col(_Later.ordered_at) > RunRow.ordered_at,
        not_indexed(col(_Later.purpose)) == "ci",
        col(_Later.quarantine) == "",
        col(_Later.is_steady).is_(True),
        col(_Later.log_step_time) > _BETWEEN,
    )
    .limit(1)
    .correlate(RunRow, RegressionMemberRow)
    .scalar_subquery()
)
_VALUE = case(
    (col(RegressionRow.metric) == "step_time_ms", col(_Later.step_time_ms)),
    (col(RegressionRow.metric) == "peak_memory_gib", col(_Later.peak_memory_gib)),
)


def _of_newest(value: Any) -> Any:
    """Return the subquery of a value of the newest counted run of a member's job."""
    counted = (not_indexed(col(_Later.purpose)) == "ci", col(_Later.short).is_(False), _VALUE.is_not(None))
    newest_first = select_any(value).where(*_OF_JOB, *counted)
    newest_first = newest_first.order_by(col(_Later.ordered_at).desc(), col(_Later.id).desc())
    return newest_first.limit(1).correlate(RunRow, RegressionMemberRow, RegressionRow).scalar_subquery()


_MEASURED_MEMBERS: Select[Any] = (
    select_any(
        RegressionMemberRow,
        RunRow.job,
        # Number of slow runs: 0, 1, or 2 for more. 2 is also assumed if nothing is known; -1 means one in this stack
        # and more in others. The first run in a stack to which a job moved is not slow if the move made it as fast as
        # usual.
        case(
            (col(RegressionRow.metric) != "step_time_ms", 2),
            (or_(col(RegressionMemberRow.slow_level).is_(None), _AGAIN.is_not(None)), 2),
            (col(RunRow.log_step_time) <= _BETWEEN, 0),
            (_ELSEWHERE.is_not(None), -1),
            else_=1,
        ).label("slow_runs"),
        _of_newest(_VALUE).label("newest"),
    )
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
    .where(col(RegressionMemberRow.regression_id).in_(bindparam("ids", expanding=True)))
    .order_by(col(RegressionMemberRow.joined_at), col(RegressionMemberRow.run_id))
)


# The runs of a member's job in other stacks, after the last run of the job in the member's own.
_Own = aliased(RunRow)
_OF_OWN_STACK = (
    not_indexed(col(_Own.project_id)) == RunRow.project_id,
    col(_Own.stack_key) == RegressionMemberRow.stack_key,
    not_indexed(col(_Own.job)) == RunRow.job,
    not_indexed(col(_Own.purpose)) == "ci",
    col(_Own.quarantine) == "",
    # A run without a step time, such as a failed one, does not show that its job is slow.
    or_(col(RegressionRow.metric) != "step_time_ms", col(_Own.step_time_ms).is_not(None)),
)
_LAST_OWN = (
    select_any(func.max(col(_Own.ordered_at)))
    .where(*_OF_OWN_STACK)
    .correlate(RunRow, RegressionMemberRow, RegressionRow)
    .scalar_subquery()
)
_LAST_OWN_ID = (
    select_any(_Own.id)
    .where(*_OF_OWN_STACK)
    .order_by(col(_Own.ordered_at).desc(), col(_Own.id).desc())
    .limit(1)
    .correlate(RunRow, RegressionMemberRow, RegressionRow)
    .scalar_subquery()
)
_LATER_RUNS: Select[Any] = (
    select_any(
        RegressionMemberRow.regression_id, RegressionMemberRow.run_id, RegressionMemberRow.usual_level,
        RegressionMemberRow.slow_level, col(_Later.id).label("id"), col(_Later.ordered_at).label("ordered_at"),
        col(_Later.stack_key).label("stack_key"), col(_Later.is_steady).label("is_steady"), _VALUE.label("value"),
    )
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
    .join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)
    # Not a join, whose condition would bound the projects of the other side.
    .where(
        col(_Later.job) == RunRow.job,
        col(RegressionMemberRow.regression_id).in_(bindparam("ids", expanding=True)),
        col(RegressionMemberRow.usual_level).is_not(None),
        col(RegressionMemberRow.slow_level).is_not(None),
        col(RunRow.job) != "",
        not_indexed(col(_Later.project_id)) == RunRow.project_id,
        *(col(getattr(_Later, name)) == getattr(RunRow, name) for name in ("model", "gpu", "gpus")),
        not_indexed(col(_Later.stack_key)) != RegressionMemberRow.stack_key,
        col(_Later.ordered_at) > _LAST_OWN,
        not_indexed(col(_Later.purpose)) == "ci",
        col(_Later.quarantine) == "",
        col(_Later.short).is_(False),
        _VALUE > 0,
        or_(
            col(ProjectRow.baseline_branch) == ANY_BRANCH,
            col(_Later.branch) == ProjectRow.baseline_branch,
            col(_Later.branch) == RunRow.branch,
        ),
    )
    .order_by(col(_Later.ordered_at), col(_Later.id))
)  # fmt: skip


_LAST_OWN_RUNS: Select[Any] = (
    select_any(
        RegressionMemberRow.regression_id, RegressionMemberRow.run_id, _LAST_OWN.label("last"), _LAST_OWN_ID.label("id")
    )
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
    .where(col(RegressionMemberRow.regression_id).in_(bindparam("ids", expanding=True)))
)


_NEWEST_RUNS: Select[Any] = (
    select_any(RegressionMemberRow.run_id, _of_newest(col(_Later.id)).label("newest"))
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
    .where(col(RegressionMemberRow.regression_id) == bindparam("regression"))
)


def newest_runs(session: Session, regression_id: int) -> dict[int, int]:
    """Return the newest counted run of the job of each member, by the member's run."""
    rows = session.execute(_NEWEST_RUNS, {"regression": regression_id})
    return {row.run_id: row.newest for row in rows if row.newest is not None}


@dataclass(frozen=True, slots=True)
class LaterRun:
    """A run of a member's job in another container or cluster, after the last run of the member's stack.

    `change_pct`: against the usual level. `is_slow`: more than half of the member's change is left. `is_again`: and
    it is no further slowdown, which the regression would not cover.
    """

    id: int
    ordered_at: datetime
    stack_key: str
    change_pct: float
    is_slow: bool
    is_again: bool
    is_steady: bool | None


def later_runs(session: Session, ids: Collection[int]) -> dict[tuple[int, int], list[LaterRun]]:
    """Return the later runs of the job of each member, oldest first, by regression and the member's run.

    A job without a name has none, because any run may share it. Runs need not be steady: a drift does not hide a
    change of more than its own size.
    """
    later: dict[tuple[int, int], list[LaterRun]] = {}
    for row in session.execute(_LATER_RUNS, {"ids": list(ids)}):
        change, slow = math.log(row.value) - row.usual_level, row.slow_level - row.usual_level
        is_slow = change > slow / 2
        is_again = is_slow and math.expm1(change) <= OUTGROWN * math.expm1(slow)
        run = LaterRun(
            row.id, row.ordered_at, row.stack_key, 100 * math.expm1(change), is_slow, is_again, row.is_steady
        )  # fmt: skip
        later.setdefault((row.regression_id, row.run_id), []).append(run)
    return later


def last_own_runs(session: Session, ids: Collection[int]) -> dict[tuple[int, int], tuple[datetime, int]]:
    """Return position and number of the last run of each member's job in its stack, by regression and member's run.

    For a regression of the step time, runs without one do not count.
    """
    rows = session.execute(_LAST_OWN_RUNS, {"ids": list(ids)})
    return {(row.regression_id, row.run_id): (row.last, row.id) for row in rows if row.last is not None}


def back_since(runs: Sequence[LaterRun]) -> LaterRun | None:
    """Return the first later run since which a job is back: the first of two runs near the usual level, else the last.

    No run after it is slow. A single run must be at the level, because launches differ.
    """
    streak = runs[next((k + 1 for k in reversed(range(len(runs))) if runs[k].is_slow), 0) :]
    for run, following in pairwise(streak):
        if max(run.change_pct, following.change_pct) <= _NEAR_PCT:
            return run
    return streak[-1] if streak and streak[-1].change_pct <= _AT_PCT else None


_NEAR_PCT, _AT_PCT = 3.0, 1.0
"""Maximum changes (%) of two runs and of a single run that are back: twice the assumed variation of launches, and the
tolerance of a level."""


def slow_again(runs: Sequence[LaterRun]) -> Sequence[LaterRun]:
    """Return the newest later runs that are all slow; empty if the newest is not, or shows a further slowdown."""
    if not runs or not runs[-1].is_again:
        return ()
    return runs[next((k + 1 for k in reversed(range(len(runs))) if not runs[k].is_slow), 0) :]


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member with the facts that give a regression its size (`counted_jobs`).

    `follows`: the stack in which its job was already slow before; empty if it became slow here. `is_once`: only one
    run of its job, in any stack, shows the slowdown; its node may have been slow. `newest_pct`: change of its
    newest run, None if unknown.
    """

    regression_id: int
    run_id: int
    stack_key: str
    job: str
    follows: str
    usual_level: float | None
    delta_pct: float | None
    gpu_hours_per_day: float | None
    proposal: str
    is_once: bool
    newest_pct: float | None


def jobs_of_regressions(session: Session, ids: Collection[int]) -> dict[int, list[list[StoredMember]]]:
    """Return the members of these regressions by job, in the order in which they joined."""
    moved = continuations(session, ids)
    members: dict[int, list[StoredMember]] = {number: [] for number in ids}
    slow_runs: dict[tuple[int, int], int] = {}
    for row, job, slow, newest in session.execute(_MEASURED_MEMBERS, {"ids": list(ids)}):
        newest_pct = None
        if newest and row.usual_level is not None:
            newest_pct = 100 * math.expm1(math.log(newest) - row.usual_level)
        # Other stacks do not count once its own stack is back: they are slow for another reason.
        elsewhere = 1 if is_half_gone(row.delta_pct, newest_pct) else 2
        slow_runs[row.regression_id, row.run_id] = elsewhere if slow < 0 else slow
        members[row.regression_id].append(
            StoredMember(
                row.regression_id, row.run_id, row.stack_key, job, moved.get((row.regression_id, row.run_id), ""),
                row.usual_level, row.delta_pct, row.gpu_hours_per_day, row.proposal, False, newest_pct,
            )
        )  # fmt: skip
    jobs_of = {
        number: members_by_job(own, lambda member: (member.stack_key, member.follows, member.usual_level or 0.0))
        for number, own in members.items()
    }
    return {
        number: [
            [replace(member, is_once=sum(slow_runs[number, own.run_id] for own in job) < 2) for member in job]
            for job in jobs
        ]
        for number, jobs in jobs_of.items()
    }


def changes_of_jobs(session: Session, ids: Collection[int]) -> dict[tuple[int, int], float | None]:
    """Return the change of the job that each member belongs to, by regression and run, in percent."""
    return {
        (number, member.run_id): change_of_job(job)
        for number, jobs in (jobs_of_regressions(session, ids) if ids else {}).items()
        for job in jobs
        for member in job
    }


# --- The regressions of a run: those that it is a member of, that explain its alarms, or that it continues.

_ALARMS: Select[Any] = select_any(RunAlarmRow.run_id, RunAlarmRow.metric, RunAlarmRow.regression_id).where(
    col(RunAlarmRow.run_id).in_(bindparam("run_ids", expanding=True))
)


@dataclass(frozen=True, slots=True)
class RunRegression:
    """A regression of a run. `is_member`: the run is a member; otherwise it belongs to the segment of a member.
    `opened`: it is the first member.

    `continues`: the run made nothing worse: it is as fast as its baseline, which is already slow, or its job was as
    slow in an earlier stack.
    `since_run`: the slow run of its stack, if that became slower. `usual`: the level of the run's job before, in the
    unit of the metric; None if the regression has no member of its configuration and job.
    `delta_pct`: the mean change of the run's job, else the size of the regression. `first_delta_pct`: that of the first
    slow run of its stack. `job_gpu_hours_per_day`: the part of the run's job in the cost, None if that has one job.
    `is_past`: less than half of the change of the job is left. `over`: the period of a regression whose runs have
    recovered: `, 13 to 16 Sep; recovered since #79`; else empty. `cost_end`: when its cost ended, if that is not of
    now: `, last run 30 Sep`; read for the page of a run only.
    """

    id: int
    kind: str
    shown_state: str
    proposal: str
    cause: str
    metric: str
    assignee: str
    delta_pct: float | None
    first_delta_pct: float | None
    gpu_hours_per_day: float | None
    job_gpu_hours_per_day: float | None
    is_member: bool
    opened: bool
    continues: bool
    since_run: int | None
    usual: float | None
    is_past: bool
    over: str
    cost_end: str = ""

    @property
    def state_text(self) -> str:
        """Return the state that pages name."""
        return state_text(self.shown_state, self.proposal)


def is_in_regression(session: Session, run_id: int) -> bool:
    """Return whether a run is a member of a regression, or a regression explains its alarm."""
    own, explaining = _named(session, run_id)
    return bool(own or explaining)


def regressions_of_runs(session: Session, run_ids: Collection[int], metric: str) -> dict[int, int]:
    """Return the newest regression of each of these runs that is a member or has an alarm that one explains."""
    of_metric = col(RegressionRow.metric) == metric, col(RegressionRow.state) != "invalid"
    rows: list[Any] = []
    for table in (RegressionMemberRow, RunAlarmRow):
        numbers = select_any(table.run_id, table.regression_id).where(col(table.run_id).in_(run_ids))
        joined = numbers.join(RegressionRow, col(RegressionRow.id) == col(table.regression_id)).where(*of_metric)
        rows += session.execute(joined).all()
    return {row.run_id: row.regression_id for row in sorted(rows, key=lambda row: row.regression_id)}


_NAMED = union_all(
    *(
        select_any(table.regression_id, literal(table is RegressionMemberRow).label("is_member")).where(
            col(table.run_id) == bindparam("run")
        )
        for table in (RegressionMemberRow, RunAlarmRow)
    )
)


def _named(session: Session, run_id: int) -> tuple[set[int], set[int]]:
    """Return the regressions of which a run is a member, and those that explain its alarms."""
    rows = session.execute(_NAMED, {"run": run_id}).all()
    members = {row.regression_id for row in rows if row.is_member}
    return members, {row.regression_id for row in rows if not row.is_member}


def _joined(session: Session, run_id: int) -> tuple[set[int], set[int], set[int]]:
    """Return the regressions that a run is a member of, those that explain its alarms, and those that it only carries
    on, because its job was as slow in an earlier stack."""
    own, explaining = _named(session, run_id)
    carried = {number for number in own if _origin(session, session.get_one(RegressionMemberRow, (number, run_id)))}
    return own - carried, explaining - carried, carried


def metrics_in_regressions(session: Session, run_id: int) -> set[str]:
    """Return the metrics of the regressions of a run, without those that it continues."""
    own, explaining, _ = _joined(session, run_id)
    if not (numbers := own | explaining):
        return set()
    metrics = select_any(RegressionRow.metric).where(col(RegressionRow.id).in_(numbers))
    return set(session.execute(metrics).scalars())


def regressions_of(session: Session, run_id: int) -> tuple[RunRegression, ...]:
    """Return the regressions of a run, newest first."""
    own, explaining, carried = _joined(session, run_id)
    named = own | explaining
    continued = (_continued(session, run_id) | carried) - named
    openers = _openers(session, own)
    chosen = select(RegressionRow, SHOWN_STATE).where(col(RegressionRow.id).in_(named | continued))
    rows = session.execute(chosen.order_by(col(RegressionRow.id).desc())).all()
    explained = {row.metric for row, _ in rows if row.id in named}
    rows = [item for item in rows if item[0].id in named or item[0].metric not in explained]
    jobs_of = jobs_of_regressions(session, [row.id for row, _ in rows])
    jobs = {(number, member.run_id): job for number, of_it in jobs_of.items() for job in of_it for member in job}
    regressions = []
    config_key = session.get_one(RunRow, run_id).config_key
    for row, shown_state in rows:
        member = slow_member(session, row.id or 0, run_id)
        job = () if member is None else jobs[row.id, member.run_id]
        usual_level = member.usual_level if member is not None and member.config_key == config_key else None
        regressions.append(
            from_row(
                RunRegression,
                row,
                shown_state=shown_state,
                delta_pct=change_of_job(job) if job else row.worst_delta_pct,
                first_delta_pct=None if member is None else member.first_delta_pct,
                job_gpu_hours_per_day=job[-1].gpu_hours_per_day if job and len(jobs_of[row.id]) > 1 else None,
                is_member=row.id in own,
                opened=openers.get(row.id or 0) == run_id,
                continues=row.id in continued,
                since_run=member.run_id if member is not None and (member.delta_pct or 0.0) > 0 else None,
                usual=None if usual_level is None else math.exp(usual_level),
                is_past=bool(job) and is_nearly_back(job),
                over=_over(session, row, shown_state, of_many=len(jobs_of[row.id]) > 1),
            )
        )
    return tuple(regressions)


def _continued(session: Session, run_id: int) -> set[int]:
    """Return the active regressions of its configuration and job that began before the run, if it is as slow as they.

    Regressions of other branches count only if they are of the baseline branch.
    """
    run = session.get_one(RunRow, run_id)
    if run.purpose not in ("ci", "release") or run.quarantine or not run.is_steady:
        return set()
    rows = session.execute(
        select_any(RegressionMemberRow, RegressionRow.metric)
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)
        .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(
            col(RegressionMemberRow.stack_key) == run.stack_key,
            col(RegressionMemberRow.config_key) == run.config_key,
            col(RegressionMemberRow.proposal) != "fixed",
            col(RegressionRow.project_id) == run.project_id,
            col(RegressionRow.state).in_(ACTIVE),
            col(RunRow.job) == run.job,
            or_(
                col(ProjectRow.baseline_branch) == ANY_BRANCH,
                col(RunRow.branch).in_((col(ProjectRow.baseline_branch), run.branch)),
            ),
            tuple_(col(RunRow.ordered_at), col(RunRow.id)) < (run.ordered_at, run.id),
        )
    )
    figures = {"step_time_ms": run.step_time_ms, "peak_memory_gib": run.peak_memory_gib}
    return {
        member.regression_id
        for member, metric in rows
        if member.usual_level is not None and member.slow_level is not None and (figure := figures.get(metric))
        and math.log(figure) > (member.usual_level + member.slow_level) / 2
    }  # fmt: skip


def _over(session: Session, regression: RegressionRow, shown_state: str, *, of_many: bool) -> str:
    if regression.proposal != "fixed" and shown_state != "fixed":
        return ""
    of_it = col(RegressionMemberRow.regression_id) == regression.id
    starts = select_any(func.min(col(RunRow.ordered_at))).join_from(
        RegressionMemberRow, RunRow, col(RunRow.id) == RegressionMemberRow.run_id
    )
    since = session.execute(starts.where(of_it)).scalar_one()
    back = session.get(RunRow, regression.proposal_run_id) if regression.proposal_run_id else None
    run = (back.id or 0, back.ordered_at) if back else None
    return recovery_text(since, run, of_many=of_many) if since else ""


_SAME_LEVEL = 0.02
"""How much faster (ln) than before a regression a run may be, to be back at that level."""


RECOVERED = "recovered"
"""Label of an improvement that is only back at the level before a regression."""


def run_badge(document: VerdictDocument, in_regression: Collection[str], *, is_back: bool) -> tuple[str, str]:
    """Return decision and label of a run as `VerdictDocument.badge`. `is_back`: it has recovered."""
    return ("improvement", RECOVERED) if is_back else document.badge(in_regression=in_regression)


def recovery(session: Session, run_id: int, document: VerdictDocument) -> int | None:
    """Return the newest regression before a faster run whose slow level is its baseline, if the run is only back."""
    time, run = document.verdict.step_time, session.get_one(RunRow, run_id)
    if document.decision != "improvement" or time is None:
        return None
    members = session.execute(
        select_any(RegressionMemberRow)
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(
            col(RegressionMemberRow.stack_key) == run.stack_key,
            col(RegressionMemberRow.config_key) == run.config_key,
            col(RegressionRow.project_id) == run.project_id,
            col(RegressionRow.metric) == "step_time_ms",
            col(RunRow.job) == run.job,
            tuple_(col(RunRow.ordered_at), col(RunRow.id)) < (run.ordered_at, run.id),
        )
        .order_by(col(RegressionMemberRow.regression_id).desc())
    ).scalars()
    for member in members:
        if member.usual_level is None or member.slow_level is None:
            continue
        between = (member.usual_level + member.slow_level) / 2
        before, now = math.log(time.baseline_ms), math.log(time.candidate_ms)
        if member.usual_level - _SAME_LEVEL <= now <= between < before:
            return int(member.regression_id)
    return None


def slow_member(session: Session, regression_id: int, run_id: int) -> RegressionMemberRow | None:
    """Return the member of a regression that explains a slow run: the run itself, else a member of its configuration
    and job, else a member of its stack."""
    run = session.get_one(RunRow, run_id)
    wanted: Select[Any] = select_any(RegressionMemberRow, RunRow.job)
    rows = session.execute(
        wanted.join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id).where(
            col(RegressionMemberRow.regression_id) == regression_id,
            col(RegressionMemberRow.stack_key) == run.stack_key,
        )
    ).all()

    def likeness(row: Row[Any]) -> tuple[bool, bool, bool]:
        member: RegressionMemberRow = row.RegressionMemberRow
        return member.run_id == run.id, member.config_key == run.config_key, row.job == run.job

    best = max(rows, key=likeness, default=None)
    return None if best is None else _origin(session, best.RegressionMemberRow) or best.RegressionMemberRow


def _origin(session: Session, member: RegressionMemberRow) -> RegressionMemberRow | None:
    """Return the first member by which the job of this one was as slow in an earlier stack, if any."""
    run = session.get_one(RunRow, member.run_id)
    if not run.job:
        return None
    earlier = (
        select(RegressionMemberRow)
        .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(
            col(RegressionMemberRow.regression_id) == member.regression_id,
            col(RegressionMemberRow.stack_key) != member.stack_key,
            func.abs(col(RegressionMemberRow.usual_level) - member.usual_level) <= SAME_LEVEL,
            col(RunRow.job) == run.job,
            tuple_(col(RunRow.ordered_at), col(RunRow.id)) < (run.ordered_at, run.id),
        )
        .order_by(col(RunRow.ordered_at), col(RunRow.id))
        .limit(1)
    )
    return session.execute(earlier).scalar_one_or_none()


def _openers(session: Session, regression_ids: Collection[int]) -> dict[int, int]:
    """Return the first run of each regression."""
    rows = session.execute(
        select_any(RegressionMemberRow.regression_id, RegressionMemberRow.run_id)
        .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(col(RegressionMemberRow.regression_id).in_(regression_ids))
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    )
    return {row.regression_id: row.run_id for row in rows}


def keep_alarms(session: Session, alarms: Mapping[int, Mapping[str, int]]) -> set[int]:
    """Store the regressions that explain alarms, by run and metric. An empty entry deletes those of a run.

    Return the runs whose alarms changed.
    """
    changed_runs = set[int]()
    for some in in_batches(sorted(alarms)):
        stored = _stored_alarms(session, some)
        wanted = {(run, metric): regression for run in some for metric, regression in alarms[run].items()}
        changed = {run for run, _ in {*stored.items(), *wanted.items()} - (stored.items() & wanted.items())}
        if not changed:
            continue
        others = {run for run, _ in changed}
        session.execute(delete(RunAlarmRow).where(col(RunAlarmRow.run_id).in_(others)))
        session.add_all(
            RunAlarmRow(run_id=run, metric=metric, regression_id=regression)
            for (run, metric), regression in wanted.items()
            if run in others
        )
        session.flush()
        changed_runs |= others
    return changed_runs


def _stored_alarms(session: Session, runs: Sequence[int]) -> dict[tuple[int, str], int]:
    rows = session.execute(_ALARMS, {"run_ids": runs})
    return {(row.run_id, row.metric): row.regression_id for row in rows}


# --- Costs of active regressions, and the number of those to triage, which every page shows.

_COST: Any = col(RegressionRow.gpu_hours_per_day)
SUMS_OF_COSTS = (
    func.sum(_COST),
    func.sum(case((_COST > 0, 1), else_=0)),
    func.sum(case((and_(_COST.is_(None), col(RegressionRow.metric) == "step_time_ms"), 1), else_=0)),
)
"""Columns for the fields of `SumOfCosts`."""
_UNTRIAGED = "open"
"""The state of a regression that no user has handled yet."""


def regressions_to_triage(session: Session) -> int:
    """Return the number of open regressions without a proposal to close them, for the navigation."""
    counted = select(func.count()).where(col(RegressionRow.state) == _UNTRIAGED, col(RegressionRow.proposal) == "")
    return int(session.execute(counted).scalar_one())


# --- Proposals of the service to close regressions, which users accept together.

MOST_PROPOSED = 200
"""Maximum proposals that one button accepts."""


@dataclass(frozen=True, slots=True)
class ProposedClosing:
    """A regression that the service proposes to close, as `proposal` (`fixed` or `stale`).

    `slower_pct`: its size; None if it is not of step time.
    """

    id: int
    project_id: int
    changed_at: datetime
    proposal: str
    slower_pct: float | None


def proposed_closings(session: Session, *conditions: ColumnElement[bool]) -> tuple[ProposedClosing, ...]:
    """Return the active regressions with a proposal, newest first, at most MOST_PROPOSED. `conditions`: on the row and
    its project."""
    columns = (RegressionRow.id, RegressionRow.project_id, RegressionRow.changed_at, RegressionRow.proposal)
    size = case((col(RegressionRow.metric) == "step_time_ms", col(RegressionRow.worst_delta_pct)))
    rows = session.execute(
        select_any(*columns, size.label("slower_pct"))
        .join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)
        .where(col(RegressionRow.state).in_(ACTIVE), col(RegressionRow.proposal) != "", *conditions)
        .order_by(col(RegressionRow.id).desc())
        .limit(MOST_PROPOSED)
    )
    return tuple(ProposedClosing(row.id, row.project_id, row.changed_at, row.proposal, row.slower_pct) for row in rows)


# --- The cost of a slowdown, for regressions and upgrade reports.


class Costs:
    """Computes the cost of slowdowns at `now`. It reads shared data, such as the runs of a stack, once."""

    def __init__(self, session: Session, now: datetime) -> None:
        self._session, self._now = session, now
        self._clocks: dict[int, datetime] = {}
        self._positions: dict[tuple[object, ...], list[datetime]] = {}

    def of_member(self, regression: RegressionRow, member: RegressionMemberRow) -> Cost:
        """Return the cost of one stack of a regression. For metrics other than times it has only a reason."""
        extra = None
        if regression.metric == "step_time_ms" and member.usual_level is not None and member.slow_level is not None:
            extra = extra_ms(member.usual_level, member.slow_level)
        before = _before_upgrade(self._session, member.run_id) if regression.kind == "upgrade" else ()
        is_over = member.proposal == "fixed"
        return self.of_slowdown(member.run_id, {member.stack_key, *before}, extra, is_over=is_over)

    def of_slowdown(
        self, run_id: int, stack_keys: Collection[str], extra: float | None, *, is_over: bool = False
    ) -> Cost:
        """Return the cost since a slow run. `stack_keys`: its stack, and after an upgrade also the stack before.

        `extra`: additional ms per step. For a slowdown on another branch, only runs of that branch count.
        """
        run = self._session.execute(_SLOW_RUN, {"run": run_id}).one()
        main = run.baseline_branch
        is_aside = main not in (ANY_BRANCH, run.branch) and not _ran_on(self._session, run, main)
        here = self._clock(run.project_id, is_replay=run.generated)
        positions = self._runs(run.project_id, frozenset(stack_keys), run.branch if is_aside else None, here)
        return regression_cost(
            positions, extra, steps_of_run(run.slices, run.health), run.gpus, now=here, is_over=is_over
        )

    def clock_of(self, project_id: int) -> datetime:
        """Return the current time as a history position of a project. Histories of a replay end in the past."""
        generated = select_any(ProjectRow.generated).where(col(ProjectRow.id) == project_id)
        return self._clock(project_id, is_replay=self._session.execute(generated).scalar_one())

    def _runs(self, project_id: int, stacks: frozenset[str], branch: str | None, here: datetime) -> list[datetime]:
        """Return the history positions that determine the rate of measured runs: those of the last `RATE_DAYS`, and one
        before."""
        key = (project_id, stacks, branch)
        if key not in self._positions:
            times, earlier = (_TIMES, _EARLIER_TIME) if branch is None else (_TIMES_ON_BRANCH, _EARLIER_ON_BRANCH)
            values = {"project": project_id, "stacks": sorted(stacks), "here": here, "branch": branch}
            values["since"] = here - timedelta(days=RATE_DAYS)
            newest = self._session.execute(times, values).scalars()
            self._positions[key] = [*newest, *self._session.execute(earlier, values).scalars()]
        return self._positions[key]

    def _clock(self, project_id: int, *, is_replay: bool) -> datetime:
        if project_id not in self._clocks:
            position, newest = self._session.execute(_NEWEST, {"project": project_id, "now": self._now}).one()
            self._clocks[project_id] = clock(position, newest, self._now, is_replay=is_replay)
        return self._clocks[project_id]


# Built once, because building a statement takes longer than running it.
_OF_STACKS = (
    select_any(RunRow.ordered_at)
    # Makes SQLite look up the stacks instead of reading all runs of the project.
    .where(not_indexed(col(RunRow.project_id)) == bindparam("project"))
    .where(col(RunRow.stack_key).in_(bindparam("stacks", expanding=True)))
    # A run without a step time, such as a failed one, does not show that it lost time. An experiment does not recur,
    # and its variant may not be slow.
    .where(col(RunRow.step_time_ms).is_not(None), not_indexed(col(RunRow.purpose)) != "experiment")
)
_TIMES: Select[Any] = _OF_STACKS.where(
    col(RunRow.ordered_at) >= bindparam("since"), col(RunRow.ordered_at) <= bindparam("here")
)
_EARLIER_TIME: Select[Any] = _OF_STACKS.where(col(RunRow.ordered_at) < bindparam("since")).limit(1)
_IS_ON_BRANCH = col(RunRow.branch) == bindparam("branch")
_TIMES_ON_BRANCH, _EARLIER_ON_BRANCH = _TIMES.where(_IS_ON_BRANCH), _EARLIER_TIME.where(_IS_ON_BRANCH)
_IN_PROJECT = col(RunRow.project_id) == bindparam("project")
_NEWEST: Select[Any] = select_any(
    # Only runs with a step time, because the position of others can be their upload time.
    select(col(RunRow.ordered_at))
    .where(_IN_PROJECT, col(RunRow.ordered_at) <= bindparam("now"), col(RunRow.step_time_ms).is_not(None))
    .order_by(col(RunRow.ordered_at).desc())
    .limit(1)
    .scalar_subquery(),
    select(func.max(col(RunRow.created_at))).where(_IN_PROJECT).scalar_subquery(),
)
_SLOW_RUN: Select[Any] = (
    select_any(
        RunRow.project_id, RunRow.branch, RunRow.commit, RunRow.config_key, RunRow.gpus,
        RunResultRow.slices, RunResultRow.health, ProjectRow.baseline_branch, ProjectRow.generated,
    )
    .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
    .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
    .where(col(RunRow.id) == bindparam("run"))
)  # fmt: skip


def _ran_on(session: Session, run: Row[Any], branch: str) -> bool:
    """Return whether the same commit and configuration also ran on that branch."""
    same = select_any(RunRow.id).where(
        col(RunRow.project_id) == run.project_id,
        col(RunRow.config_key) == run.config_key,
        col(RunRow.commit) == run.commit,
        col(RunRow.branch) == branch,
    )
    return bool(run.commit) and session.execute(same.limit(1)).first() is not None


def _before_upgrade(session: Session, run_id: int) -> Collection[str]:
    """Return the key of the stack before the upgrade, from the run's contrast; empty without one."""
    verdict = current_verdict(session, run_id)
    contrast = None if verdict is None else verdict.document.contrast
    if contrast is None or not contrast.runs:
        return ()
    chosen = select_any(RunRow.stack_key).where(col(RunRow.id) == int(contrast.runs[-1]))
    return tuple(session.execute(chosen).scalars())
