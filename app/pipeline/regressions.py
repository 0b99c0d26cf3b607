"""Update regressions from verdicts: open one per cause, add members, propose it as fixed, reopen it.

The service opens and reopens regressions, and withdraws unassigned ones that no run shows any longer. Users decide
everything else. This runs in the transaction that stores the verdicts; repeating it changes nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, delete, exists, func, or_, select, update
from sqlmodel import Session, col

from app.domain.numbers import days_text, is_worse, slow_or_affected
from app.domain.performance.cost import CONTINUES, Cost, stored_cost, total_cost
from app.domain.verdict.alarms import Alarm, alarms_of, upgrade_cause
from app.domain.verdict.assess import UPGRADES, changed_field
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.history import (
    SAME_LEVEL,
    FollowUp,
    History,
    OpenedRegression,
    ends_back,
    find_changes,
    follow_up,
    settled_levels,
)
from app.domain.verdict.policy import ANY_BRANCH
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior
from app.domain.verdict.triage import ACTIVE, ENDED, NOT_CLOSED, Proposal, counted_jobs, size_pct
from app.pipeline.assess import LOOK_BACK, YOUNG, Candidate, HistoryPosition, StackToJudge, candidates, history_position
from app.pipeline.notify import notify_regression
from app.storage import audit
from app.storage.json_text import from_json
from app.storage.stacks import RUNS_BY_NUMBER, StackRun, read_runs
from app.storage.tables import (
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunRow,
    UpgradeChangeRow,
    select_any,
    utc_now,
)
from app.storage.verdicts import (
    IS_CLAIM,
    Costs,
    LaterRun,
    back_since,
    jobs_of_regressions,
    keep_alarms,
    last_own_runs,
    later_runs,
    newest_runs,
    show_badges,
    slow_again,
    stored_documents,
)

# --- The rows of a stack's regressions. Each change writes an audit record.

_EVENTS = {
    "opened": "regression.opened",
    "joined": "regression.opened",
    "reopened": "regression.reopened",
    "proposal_made": "regression.recovered",
}
"""Notification events by the action in the audit record."""


_ONE_COMMIT = timedelta(days=30)
"""Maximum time between runs of the same commit in two stacks of a project."""
_MOST_UPGRADED = 100
"""Newest slower stacks after an upgrade that are read to confirm a drifting run."""

# Built once, because building it takes longer than running it, and every pass executes it.
_OF_STACK: Select[RegressionMemberRow, RegressionRow] = (
    select(RegressionMemberRow, RegressionRow)
    .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .where(
        col(RegressionMemberRow.stack_key) == bindparam("stack"),
        col(RegressionRow.project_id) == bindparam("project"),
        or_(col(RegressionRow.state).in_(NOT_CLOSED), IS_CLAIM, col(RunRow.ordered_at) >= bindparam("since")),
    )
    .order_by(col(RegressionRow.id), col(RegressionMemberRow.run_id))
)


@dataclass(slots=True)
class StackMember:
    row: RegressionMemberRow
    regression: RegressionRow

    @property
    def is_claim(self) -> bool:
        """Return whether a user marked the regression fixed and no run of this stack has confirmed it yet."""
        return self.regression.state == "fixed" and self.row.proposal != "fixed"

    def is_of(self, alarm: Alarm) -> bool:
        """Return whether an alarm of the slow run shows this regression, not another metric or cause."""
        same_kind = self.regression.kind == alarm.cause.kind
        same_upgrade = alarm.cause.kind != "upgrade" or self.regression.cause_key == alarm.cause.key
        return self.regression.metric == alarm.metric and same_kind and same_upgrade

    def is_of_upgrade(self, alarm: Alarm) -> bool:
        """Return whether an alarm is a new measurement of this member's upgrade."""
        return alarm.cause.kind == "upgrade" and self.is_of(alarm)

    @property
    def usual_level(self) -> float:
        return self.row.usual_level or 0.0

    @property
    def slow_level(self) -> float:
        return self.row.slow_level or 0.0


class RegressionMembers:
    """The members that this stack has in regressions (`of_stack`, oldest first).

    Closed regressions whose slow run precedes `since` are left out, so that judging does not become slower with each
    past regression. If the stack returns to such a level, that is a new regression.
    """

    def __init__(self, session: Session, project_id: int, stack_key: str, since: datetime) -> None:
        self._session, self._project_id, self._stack_key = session, project_id, stack_key
        self._since = since
        self._changed: set[int] = set()
        self.of_stack = self._read()
        self.runs = {member.row.run_id for member in self.of_stack}
        """The runs that are or were members, of this stack and of others that it joined."""
        self._notifications: dict[tuple[int, str, str], RegressionRow] = {}

    def lock(self) -> None:
        """Lock the project until the commit, so that no other stack opens a regression or changes these.

        On SQLite nothing is read again, because no other transaction can have written since this one began.
        """
        if self._session.get_bind().dialect.name == "sqlite":
            return
        project = select_any(ProjectRow.id).where(col(ProjectRow.id) == self._project_id)
        self._session.execute(project.with_for_update(key_share=True))
        ids = {member.regression.id for member in self.of_stack}
        rows = select(RegressionRow).where(col(RegressionRow.id).in_(ids)).order_by(col(RegressionRow.id))
        self._session.execute(rows.with_for_update().execution_options(populate_existing=True)).all()
        self.of_stack = self._read()

    def add(self, candidate: Candidate, alarm: Alarm) -> StackMember:
        """Add a candidate to the regression of this cause that is not closed, else to a new one."""
        run = candidate.runs[0]
        regression = self._join(alarm) or self._open(run.id, alarm)
        row = self._insert(regression, run.id, (self._stack_key, candidate.config_key), alarm)
        self.of_stack.append(StackMember(row, regression))
        return self.of_stack[-1]

    def continue_job(self, candidate: Candidate, alarm: Alarm) -> StackMember | None:
        """Add a candidate after an upgrade to the regression that made its job as slow in an earlier stack, if any.

        The upgrade is measured against the newest stack with enough runs, so the job may have been slow before it.
        """
        first = candidate.runs[0]
        if alarm.cause.kind != "upgrade" or not first.facts.job:
            return None
        chosen = (
            select(RegressionMemberRow, RegressionRow)
            .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
            .join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)
            .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
            .where(
                col(RegressionRow.project_id) == self._project_id,
                col(RegressionRow.metric) == alarm.metric,
                col(RegressionRow.state).in_(NOT_CLOSED),
                col(RegressionMemberRow.stack_key) != self._stack_key,
                col(RegressionMemberRow.proposal) == "",
                col(RunRow.job) == first.facts.job,
                col(RunRow.ordered_at) < candidate.position[0],
                or_(
                    col(ProjectRow.baseline_branch) == ANY_BRANCH,
                    col(RunRow.branch).in_((col(ProjectRow.baseline_branch), first.branch)),
                ),
            )
            .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        )
        for old, regression in self._session.execute(chosen.with_for_update(of=RegressionRow)).all():
            is_same = abs((old.usual_level or 0.0) - alarm.usual_level) <= SAME_LEVEL
            if not is_same or not alarm.is_covered_by(old.slow_level or 0.0, has_ended=False):
                continue
            last = self._last_before(old, alarm.metric, first)
            if last is not None and math.log(last) <= alarm.middle:
                continue  # a good run in between: it is slow again, not still
            row = self._insert(regression, first.id, (self._stack_key, candidate.config_key), alarm)
            if _next_run(self._session, self._project_id, old.stack_key, first.ordered_at) is None:
                _record_continued(self._session, old, row)
            else:
                after = {"stack": self._stack_key}
                self._record(regression, "joined", {}, after, "Its job is as slow in another stack.")
            self.of_stack.append(StackMember(row, regression))
            return self.of_stack[-1]
        return None

    def _last_before(self, member: RegressionMemberRow, metric: str, run: StackRun) -> float | None:
        """Return the newest value of the metric in the member's stack and the job of a run, before that run."""
        value = col(RunRow.step_time_ms if metric == "step_time_ms" else RunRow.peak_memory_gib)
        earlier = select_any(value).where(
            col(RunRow.project_id) == self._project_id,
            col(RunRow.stack_key) == member.stack_key,
            col(RunRow.config_key) == member.config_key,
            col(RunRow.job) == run.facts.job,
            col(RunRow.quarantine) == "",
            col(RunRow.ordered_at) < run.ordered_at,
            value > 0,
        )
        newest_first = earlier.order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        newest: float | None = self._session.execute(newest_first.limit(1)).scalar_one_or_none()
        return newest

    def _insert(
        self, regression: RegressionRow, run_id: int, keys: tuple[str, str], alarm: Alarm
    ) -> RegressionMemberRow:
        """Insert a run as member. `keys`: its stack key and config key."""
        row = RegressionMemberRow(
            regression_id=regression.id or 0,
            run_id=run_id,
            stack_key=keys[0],
            config_key=keys[1],
            usual_level=alarm.usual_level,
            slow_level=alarm.slow_level,
            delta_pct=alarm.delta_pct,
            first_delta_pct=alarm.delta_pct,
        )
        self._session.add(row)
        self._session.flush()
        self.runs.add(run_id)
        return row

    def refresh(self, member: StackMember, alarm: Alarm) -> None:
        """Update the levels of a member after its run was judged again, with reruns or another baseline."""
        row = member.row
        row.usual_level, row.slow_level, row.delta_pct = alarm.usual_level, alarm.slow_level, alarm.delta_pct
        row.first_delta_pct = alarm.delta_pct
        if member.regression.state == "invalid" and self._was_withdrawn(member.regression):
            self._set_state(member.regression, "open", "reopened", f"Run {row.run_id} shows the regression again.")

    def set_levels(self, member: StackMember, levels: tuple[float, float] | None) -> None:
        """Set the size of the change from the levels of the history, if any. The first measured size is kept, too."""
        if levels is None:
            return
        row = member.row
        row.usual_level, row.slow_level = levels
        row.delta_pct = 100 * math.expm1(row.slow_level - row.usual_level)

    def move(self, member: StackMember, candidate: Candidate, alarm: Alarm | None) -> None:
        """Make another run the first slow run. Without an alarm of its own, the levels stay."""
        run_id, before = candidate.runs[0].id, member.row.run_id
        self._session.flush()
        values: dict[str, object] = {"run_id": run_id}
        if alarm is not None:
            values |= {"slow_level": alarm.slow_level, "usual_level": alarm.usual_level}
            values |= {"delta_pct": alarm.delta_pct, "first_delta_pct": alarm.delta_pct}
        self._session.execute(
            update(RegressionMemberRow)
            .where(*_is_row(member.row))
            .values(**values)
            .execution_options(synchronize_session=False)
        )
        self._session.expunge(member.row)
        regression_id = member.row.regression_id
        member.row = self._session.get_one(RegressionMemberRow, (regression_id, run_id))
        self.runs.add(run_id)
        others = [row for row in self._all_of(member.regression) if row.run_id != run_id]
        if alarm is not None and not others:
            member.regression.cause, member.regression.cause_key = alarm.cause.text, alarm.cause.key
        self._record(
            member.regression, "moved", {"run": before}, {"run": run_id}, "Another run is now the first slow one."
        )

    def withdraw(self, member: StackMember, why: str) -> None:
        """Withdraw a member that no run shows any longer."""
        note = f"Run {member.row.run_id} {why}."
        others = [row for row in self._all_of(member.regression) if row.run_id != member.row.run_id]
        if not others:
            self._set_state(member.regression, "invalid", "withdrawn", note)
            return
        self._session.execute(delete(RegressionMemberRow).where(*_is_row(member.row)))
        self._session.expunge(member.row)
        self.of_stack = [row for row in self.of_stack if row is not member]
        self._record(member.regression, "left", {"run": member.row.run_id}, {}, note)

    def reopen(self, member: StackMember, run: StackRun) -> None:
        note = f"It is back at the slow level since run {run.id}."
        member.regression.proposal_run_id = run.id
        for row in self._all_of(member.regression):
            row.proposal = ""
        self._set_state(member.regression, "open", "reopened", note)

    def propose(self, member: StackMember, returned: StackRun | None) -> None:
        """Propose the regression as fixed when all members have recovered, unless a user declined this proposal."""
        regression = member.regression
        proposal = "fixed" if returned is not None else ""
        if member.row.proposal == proposal:
            return
        member.row.proposal = proposal
        self._changed.add(regression.id or 0)
        members = self._all_of(regression)
        all_back = all(row.proposal == "fixed" for row in members)
        is_new = regression.proposal != "fixed" and returned is not None and regression.proposal_run_id != returned.id
        if returned is not None and all_back and is_new:
            before = {"proposal": regression.proposal}
            regression.proposal, regression.proposal_run_id = "fixed", returned.id
            note = _back_note(members, returned.id)
            self._record(regression, "proposal_made", before, {"proposal": "fixed"}, note)
        elif regression.proposal == "fixed" and not all_back:
            regression.proposal, regression.proposal_run_id = "", None
            note = f"{'It' if returned is None else 'Another of its stacks'} {is_worse(regression.metric)} again."
            self._record(regression, "proposal_withdrawn", {"proposal": "fixed"}, {"proposal": ""}, note)

    def confirm(self, member: StackMember, returned: StackRun | None) -> None:
        """Record that a stack recovered after a user marked the regression fixed. `returned`: its first usual run."""
        if returned is None or member.row.proposal == "fixed":
            return
        member.row.proposal = "fixed"
        self._changed.add(member.regression.id or 0)
        members = self._all_of(member.regression)
        if all(row.proposal == "fixed" for row in members):
            note = _back_note(members, returned.id)
            self._record(member.regression, "fix_confirmed", {}, {"run": returned.id}, note, changed=False)

    def write(self) -> None:
        """Store cost and size of the stack's regressions that are not closed or changed just now.

        Then create the notifications, which contain these figures.
        """
        costs = Costs(self._session, utc_now())
        regressions: dict[int, RegressionRow] = {}
        for member in self.of_stack:
            number = member.regression.id or 0
            if member.regression.state in NOT_CLOSED or member.is_claim or number in self._changed:
                member.row.gpu_hours_per_day = costs.of_member(member.regression, member.row).gpu_hours_per_day
                regressions[number] = member.regression
        members = self._of_regressions(list(regressions))
        jobs = jobs_of_regressions(self._session, regressions) if regressions else {}
        for number, regression in regressions.items():
            regression.gpu_hours_per_day = total_cost([row.gpu_hours_per_day for row in members[number]])
            regression.worst_delta_pct = size_pct(jobs[number])
        self._session.flush()
        for (_, event, note), regression in self._notifications.items():
            if regression.state != "invalid":
                # A regression is opened once. Other events can recur for another run.
                once = event == "regression.opened"
                notify_regression(self._session, regression, event, "" if once else note, note)
        self._notifications.clear()

    def _read(self) -> list[StackMember]:
        key = {"project": self._project_id, "stack": self._stack_key, "since": self._since}
        rows = self._session.execute(_OF_STACK, key)
        return [StackMember(row, regression) for row, regression in rows]

    def has_regression_elsewhere(self, candidate: Candidate, alarm: Alarm) -> bool:
        """Return whether another stack is slow for the same cause; that stack then has a regression.

        If the other stack has only a single slow launch of the same commit, or a drifting one after the same upgrade,
        this opens a regression for it. The same job in a newer container or cluster at about the same level also
        counts: both are slow, so the upgrade is not the cause.
        """
        if self._not_closed(alarm) is not None or self._is_as_slow_elsewhere(candidate, alarm):
            return True
        commit = candidate.newest.commit
        is_member = (
            exists()
            .where(col(RegressionMemberRow.run_id) == RunRow.id)
            .where(col(RegressionMemberRow.regression_id) == RegressionRow.id)
            .where(col(RegressionRow.metric) == alarm.metric)
        )
        chosen = (
            select_any(RunRow.id, RunRow.stack_key, RunRow.config_key, RunRow.branch, RunRow.purpose)
            .where(
                col(RunRow.project_id) == self._project_id,
                col(RunRow.stack_key) != self._stack_key,
                col(RunRow.quarantine) == "",
                ~is_member,
            )
            .order_by(col(RunRow.id))
        )
        if commit and alarm.cause.key.startswith("code:"):
            chosen = chosen.where(
                col(RunRow.commit) == commit,
                col(RunRow.verdict) == "regression",
                col(RunRow.ordered_at) >= candidate.position[0] - _ONE_COMMIT,
                col(RunRow.ordered_at) <= candidate.position[0] + _ONE_COMMIT,
            )
        elif alarm.cause.kind == "upgrade" and alarm.metric == "step_time_ms":
            slower = (
                select(col(UpgradeChangeRow.run_id))
                .where(
                    col(UpgradeChangeRow.project_id) == self._project_id,
                    col(UpgradeChangeRow.decision) == "regression",
                )
                .order_by(col(UpgradeChangeRow.at).desc())
                .limit(_MOST_UPGRADED)
            )
            chosen = chosen.where(col(RunRow.id).in_(slower))
        else:
            return False
        stacks: set[str] = set()
        for run in self._session.execute(chosen).all():
            document = from_json(VerdictDocument, stored_documents(self._session, [run.id])[run.id][0])
            own = alarms_of(document, stack_key=run.stack_key, run=str(run.id), purpose=run.purpose)
            same = [other for other in own if (other.metric, other.cause.key) == (alarm.metric, alarm.cause.key)]
            if same and run.stack_key not in stacks:
                stacks.add(run.stack_key)
                regression = self._join(alarm) or self._open(run.id, same[0])
                self._insert(regression, run.id, (run.stack_key, run.config_key), same[0])
        return bool(stacks)

    def _is_as_slow_elsewhere(self, candidate: Candidate, alarm: Alarm) -> bool:
        if alarm.metric != "step_time_ms":
            return False
        levels = self._session.execute(
            select(col(UpgradeChangeRow.level)).where(
                col(UpgradeChangeRow.project_id) == self._project_id,
                col(UpgradeChangeRow.from_stack_key) == self._stack_key,
                col(UpgradeChangeRow.job) == candidate.newest.job,
                col(UpgradeChangeRow.decision) == "regression",
                col(UpgradeChangeRow.at) <= candidate.position[0],
                col(UpgradeChangeRow.at) >= candidate.position[0] - _ONE_COMMIT,
            )
        ).scalars()
        return any(alarm.is_confirmed_by(replace(alarm, slow_level=level)) for level in levels)

    def _not_closed(self, alarm: Alarm) -> RegressionRow | None:
        """Return the regression of this cause that is not closed. Closed ones accept no members."""
        chosen = (
            select(RegressionRow)
            .where(
                col(RegressionRow.project_id) == self._project_id,
                col(RegressionRow.cause_key) == alarm.cause.key,
                col(RegressionRow.metric) == alarm.metric,
                col(RegressionRow.state).in_(NOT_CLOSED),
            )
            .order_by(col(RegressionRow.id).desc())
            .limit(1)
        )
        regression: RegressionRow | None = self._session.execute(chosen.with_for_update()).scalar_one_or_none()
        return regression

    def _join(self, alarm: Alarm) -> RegressionRow | None:
        """Return the regression of this cause that is not closed, and record that this stack joins it."""
        regression = self._not_closed(alarm)
        if regression is not None:
            after, why = {"stack": self._stack_key}, f"Another stack {is_worse(alarm.metric)}"
            self._record(regression, "joined", {}, after, f"{why} for the same reason.")
            if regression.proposal:
                before, regression.proposal = {"proposal": regression.proposal}, ""
                self._record(regression, "proposal_withdrawn", before, {"proposal": ""}, f"{why}.")
        return regression

    def _open(self, run_id: int, alarm: Alarm) -> RegressionRow:
        regression = RegressionRow(
            project_id=self._project_id,
            kind=alarm.cause.kind,
            cause_key=alarm.cause.key,
            cause=alarm.cause.text,
            metric=alarm.metric,
            worst_delta_pct=alarm.delta_pct,
        )
        self._session.add(regression)
        self._session.flush()
        after = {"state": "open", "run": run_id}
        self._record(regression, "opened", {}, after, alarm.cause.text, changed=False)
        return regression

    def _all_of(self, regression: RegressionRow) -> list[RegressionMemberRow]:
        """Return the members of a regression in all stacks."""
        return self._of_regressions([regression.id or 0])[regression.id or 0]

    def _of_regressions(self, ids: Sequence[int]) -> dict[int, list[RegressionMemberRow]]:
        members: dict[int, list[RegressionMemberRow]] = {number: [] for number in ids}
        if ids:
            self._session.flush()
            chosen = select(RegressionMemberRow).where(col(RegressionMemberRow.regression_id).in_(ids))
            for row in self._session.execute(chosen).scalars():
                members[row.regression_id].append(row)
        return members

    def _set_state(self, regression: RegressionRow, state: str, action: str, note: str) -> None:
        before = {"state": regression.state}
        regression.state, regression.proposal = state, ""
        self._record(regression, action, before, {"state": state}, note)

    def _record(
        self,
        regression: RegressionRow,
        action: str,
        before: Mapping[str, object],
        after: Mapping[str, object],
        note: str,
        *,
        changed: bool = True,
    ) -> None:
        self._changed.add(regression.id or 0)
        if changed:
            regression.changed_at = utc_now()
        if action in _EVENTS:
            detail = "" if action == "opened" else note  # the message states the cause anyway
            self._notifications[regression.id or 0, _EVENTS[action], detail] = regression
        audit.record(
            self._session, who=audit.SERVICE, subject="regression", subject_id=regression.id or 0, action=action,
            project_id=self._project_id, before=before, after=after, note=note,
        )  # fmt: skip

    def _was_withdrawn(self, regression: RegressionRow) -> bool:
        """Return whether the service withdrew the regression. If a user marked it invalid, it stays invalid."""
        newest = next((event for event in audit.events(self._session, "regression", regression.id or 0)), None)
        return newest is not None and newest.by_service and newest.action == "withdrawn"


def _is_row(row: RegressionMemberRow) -> tuple[ColumnElement[bool], ...]:
    return (
        col(RegressionMemberRow.regression_id) == row.regression_id,
        col(RegressionMemberRow.run_id) == row.run_id,
    )


# --- The state of a stack's regressions, from the levels of its history after the slow run.

_MEMORY_PRIOR = Prior(variance=0.001**2, degrees_of_freedom=4)
"""Peak memory is almost deterministic: in most adjacent versions of a job it is equal within 0.1 %."""


class StackHistory:
    """The newest part of a stack's history, up to its newest run.

    `origins`: slow runs of open regressions that precede that part. `judged`: the new verdicts. `priors`: by config
    key, the same as verdicts use.
    """

    def __init__(
        self, stack: StackToJudge, origins: Sequence[StackRun], judged: Mapping[int, str], priors: Mapping[str, Prior]
    ) -> None:
        self._runs, self._rules, self._judged, self._priors = stack.runs, stack.rules, judged, priors
        runs = (*origins, *stack.runs)
        self._positions = {run.id: history_position(run) for run in runs}
        self._candidates = {run.id: candidate for candidate in candidates(runs) for run in candidate.runs}
        self._levels: dict[tuple[object, ...], tuple[list[StackRun], History] | None] = {}

    def position_of_run(self, run_id: int) -> HistoryPosition | None:
        """Return the history position of a run; None if it was deleted or now belongs to another stack."""
        return self._positions.get(run_id)

    def candidate_of(self, run_id: int) -> Candidate | None:
        """Return the run with its reruns; None if it was deleted or now belongs to another stack."""
        return self._candidates.get(run_id)

    def reaches(self, origin: Candidate, other: Candidate) -> bool:
        """Return whether `other` may contain the cause of `origin`.

        A change on the baseline branch may be in any branch; a change on another branch only in that branch and commit.
        """
        main = self._rules.branch
        if main is None or main in origin.branches or origin.branches & other.branches:
            return True
        return bool(origin.newest.commit) and origin.newest.commit == other.newest.commit

    def has_ended(self, member: StackMember, before: HistoryPosition) -> bool:
        """Return whether it ended before that position: a user closed it, or three runs were at the usual level."""
        if member.regression.state in ENDED:
            return True
        followed = self._follow_up(member, before=before)
        return followed is not None and followed[0].state == "fixed"

    def returned(self, member: StackMember) -> StackRun | None:
        """Return the first run of the segment at the usual level; None while the stack is slow."""
        followed = self._follow_up(member)
        return followed[1][followed[0].run] if followed is not None and followed[0].state == "fixed" else None

    def ends_back(self, member: StackMember) -> bool:
        """Return whether the newest run is later than the slow one and back at the usual level."""
        opened = self._opened(member)
        return opened is not None and ends_back(opened[0], opened[1][1])

    def came_back(self, member: StackMember, fixed_at: datetime) -> StackRun | None:
        """Return the first run of a slow segment after `fixed_at`, the time at which a user marked it fixed."""
        followed = self._follow_up(member, fixed_at=fixed_at)
        return followed[1][followed[0].run] if followed is not None and followed[0].state == "reopened" else None

    def next_slow(self, member: StackMember) -> Candidate | None:
        """Return the next candidate whose verdict is a regression to about the same level."""
        position = self._positions.get(member.row.run_id)
        origin = self.candidate_of(member.row.run_id)
        config = [run for run in self._runs if self.is_of_history(run, member)]
        for candidate in candidates(config):
            newest = candidate.newest
            slow = self._judged.get(newest.id, newest.verdict) == "regression" and not newest.quarantine
            later = (position is None or candidate.position > position) and (
                origin is None or self.reaches(origin, candidate)
            )
            if slow and later and self._is_as_slow(candidate.newest, member):
                return candidate
        return None

    def slow_before(self, candidate: Candidate, alarm: Alarm) -> Iterator[Candidate]:
        """Yield the candidates before this one, newest first, up to the first that was not slow."""
        own = candidate.newest
        runs = [
            run
            for run in self._runs
            if run.config_key == own.config_key
            and own.facts.is_of_job(run.facts)
            and not run.facts.unfit_because
            and math.isfinite(_value(run, alarm.metric))
        ]
        earlier = [other for other in candidates(runs) if other.position < candidate.position]
        for other in reversed(earlier):
            if self.reaches(other, candidate):
                if min(_value(run, alarm.metric) for run in other.runs) <= alarm.middle:
                    return
                yield other

    def young(self, candidate: Candidate) -> list[Candidate]:
        """Return the first `YOUNG` candidates with the candidate's job and configuration; they measure an upgrade."""
        own = candidate.newest
        runs = (run for run in self._runs if run.config_key == own.config_key and own.facts.is_of_job(run.facts))
        return candidates([run for run in runs if run.counts_in_segments])[:YOUNG]

    def _is_as_slow(self, run: StackRun, member: StackMember) -> bool:
        usual, slow = member.usual_level, member.slow_level
        value = _value(run, member.regression.metric)
        return abs(value - slow) <= max(SAME_LEVEL, (slow - usual) / 2)

    def settled(self, member: StackMember) -> tuple[float, float] | None:
        """Return the usual and the slow level (ln of the metric) from the history; None if it does not show both yet.

        Also None if the slow run precedes the part of the history that was read; its levels were settled before.
        """
        opened = self._opened(member)
        return None if opened is None or opened[0].run < 0 else settled_levels(opened[0], opened[1][1])

    def _follow_up(
        self, member: StackMember, before: HistoryPosition | None = None, fixed_at: datetime | None = None
    ) -> tuple[FollowUp, list[StackRun]] | None:
        """Return the follow-up and its runs; None without such runs, or if the slow run no longer exists."""
        opened_with_levels = self._opened(member, before)
        if opened_with_levels is None:
            return None
        opened, (runs, history) = opened_with_levels
        runs_before = None if fixed_at is None else sum(run.created_at <= fixed_at for run in runs)
        if fixed_at is None and opened.run < 0 and member.row.proposal == "fixed":
            runs_before = 0  # it recovered before the part of the history that was read
        return follow_up(opened, history, runs_before), runs

    def _opened(
        self, member: StackMember, before: HistoryPosition | None = None
    ) -> tuple[OpenedRegression, tuple[list[StackRun], History]] | None:
        position = self._positions.get(member.row.run_id)
        levels = None if position is None else self._levels_of(member, before)
        if position is None or levels is None:
            return None
        slow = sum(history_position(run) <= position for run in levels[0]) - 1  # -1: the slow run precedes all of them
        return OpenedRegression(slow, member.usual_level, member.slow_level), levels

    def _levels_of(self, member: StackMember, before: HistoryPosition | None) -> tuple[list[StackRun], History] | None:
        """Return the first run of each commit and the history of their levels. Computed once for all members."""
        metric = member.regression.metric
        key = (member.row.config_key, self._job_of(member), metric, self.branches_of(member), before)
        if key not in self._levels:
            runs = [run for run in self._runs if self._makes_levels(run, member, metric)]
            commits = _commits([run for run in runs if before is None or history_position(run) < before])
            firsts = [launches[0] for launches in commits]
            self._levels[key] = (firsts, self._history(commits, member, metric)) if commits else None
        return self._levels[key]

    def _makes_levels(self, run: StackRun, member: StackMember, metric: str) -> bool:
        branches = self.branches_of(member)
        return (
            self.is_of_history(run, member)
            and run.counts_in_segments
            and (branches is None or run.branch in branches)
            and math.isfinite(_value(run, metric))
        )

    def is_of_history(self, run: StackRun, member: StackMember) -> bool:
        """Return whether a run has the configuration and the job of the member."""
        job, own = self._job_of(member), run.facts.job
        return run.config_key == member.row.config_key and not (job and own and job != own)

    def _job_of(self, member: StackMember) -> str:
        origin = self.candidate_of(member.row.run_id)
        return origin.newest.facts.job if origin else ""

    def branches_of(self, member: StackMember) -> frozenset[str] | None:
        """Return the branches whose runs decide: the baseline branch, or those of the slow run; None for any."""
        main, origin = self._rules.branch, self.candidate_of(member.row.run_id)
        if main is None:
            return None
        return frozenset((main,)) if origin is None or main in origin.branches else origin.branches

    def _history(self, commits: Sequence[Sequence[StackRun]], member: StackMember, metric: str) -> History:
        prior = self._priors.get(member.row.config_key, DEFAULT_PRIOR) if metric == "step_time_ms" else _MEMORY_PRIOR
        values = [fmean(_value(run, metric) for run in launches) for launches in commits]
        return find_changes(values, prior)


def _commits(runs: Sequence[StackRun]) -> list[list[StackRun]]:
    """Group runs by commit, in the order of their first runs. Reruns count once in a level."""
    groups: dict[tuple[str, int], list[StackRun]] = {}
    for run in runs:
        groups.setdefault((run.commit, 0 if run.commit else run.id), []).append(run)
    return list(groups.values())


def _value(run: StackRun, metric: str) -> float:
    """Return ln of the metric; NaN if unknown."""
    if metric == "step_time_ms":
        return run.log_step_time
    return math.log(run.peak_memory_gib) if run.peak_memory_gib else math.nan


Judged = tuple[Candidate, VerdictDocument]


def follow_regressions(session: Session, stack: StackToJudge, judged: Sequence[Judged]) -> None:
    """Update the regressions of a stack from new verdicts. `judged`: candidates, oldest first."""
    alarms = [(candidate, _alarms(stack, candidate, document)) for candidate, document in judged]
    _take_over(session, stack, judged)
    since = stack.runs[0].ordered_at if stack.runs else utc_now()
    members = RegressionMembers(session, stack.project_id, stack.stack_key, since)
    # A run that was never judged has no stored alarms to delete.
    explained: dict[int, dict[str, int]] = {
        run.id: {} for candidate, _ in judged for run in candidate.runs if run.verdict
    }
    if members.of_stack or any(raised for _, raised in alarms):
        members.lock()
        handed_over = _take_back(session, stack, members)
        priors = {candidate.config_key: document.verdict.prior for candidate, document in judged}
        decisions = {run: document.decision for candidate, document in judged for run in candidate.ids}
        stack_history = StackHistory(stack, _origins(session, stack, members), decisions, priors)
        for member in list(members.of_stack):
            if stack_history.position_of_run(member.row.run_id) is None:
                _replace(members, stack_history, member)  # its slow run now belongs to another stack
        of_candidates = CandidateAlarms(session, stack, {candidate.ids[0]: raised for candidate, raised in alarms})
        for (candidate, raised), (_, document) in zip(alarms, judged, strict=True):
            _withdraw_if_not_shown(members, stack_history, candidate, of_candidates, document)
            for alarm in raised:
                placed = _place(members, stack_history, of_candidates, candidate, alarm)
                if placed is None:
                    continue
                member, first = placed
                for run in {*candidate.ids, *(decisions.keys() & first.ids)}:
                    explained.setdefault(run, {})[alarm.metric] = member.regression.id or 0
        for member in members.of_stack:
            is_followed = member.row.config_key in priors and member not in handed_over
            if is_followed and stack_history.position_of_run(member.row.run_id) is not None:
                _follow(members, stack_history, of_candidates, member)
        members.write()
    changed = keep_alarms(session, explained)
    # A verdict was stored with the badge of a run in no regression.
    changed |= {run for run, by_metric in explained.items() if by_metric}
    changed |= members.runs
    changed |= {run for candidate, document in judged if document.decision == "improvement" for run in candidate.ids}
    show_badges(session, changed)


# --- A stack ends when its job moves to another container or cluster. The new stack then continues its regressions.


def _take_back(session: Session, stack: StackToJudge, members: RegressionMembers) -> list[StackMember]:
    """Take back this stack's regressions from another stack if this one runs again before the other has five commits.

    In that case the job did not move, so the runs of the other stack are not evidence. Return the members that stay
    with the other stack; runs of this stack no longer affect them.
    """
    handed_over = []
    ended = [member for member in members.of_stack if member.row.proposal == "fixed"]
    for member in ended if stack.runs else ():
        continued = next(
            (
                event
                for event in audit.events(session, "regression", member.regression.id or 0)
                if event.action in ("continued", "taken_back") and event.before.get("stack") == stack.stack_key
            ),
            None,
        )
        if continued is None or continued.action == "taken_back":
            continue
        first = session.get(RunRow, continued.after["run"])
        taken = session.get(RegressionMemberRow, (member.row.regression_id, continued.after["run"]))
        if first is None or taken is None:
            continue
        again = _next_run(session, stack.project_id, stack.stack_key, first.ordered_at)
        if again is None or _commits_until(session, first, again) >= YOUNG:
            handed_over.append(member)
            continue
        session.delete(taken)
        members.propose(member, None)
        audit.record(
            session, who=audit.SERVICE, subject="regression", subject_id=member.row.regression_id,
            action="taken_back", project_id=stack.project_id, before={"stack": stack.stack_key},
            after={"run": first.id, "stack": taken.stack_key},
            note="Its stack runs again, so the job did not move to the other one.",
        )  # fmt: skip
    return handed_over


def _take_over(session: Session, stack: StackToJudge, judged: Sequence[Judged]) -> None:
    """Take over the regressions of the stack that this one continues, because its runs now show whether they recover.

    A contrast names the stack in which the job of this stack's first run ran before. That stack has ended if it has no
    later run and this one has a second run.
    """
    documents = {candidate.ids[0]: document for candidate, document in judged}
    for candidate, _ in judged:
        first = _first_of_job(stack, candidate)
        document = None if first is None else documents.get(first.id) or _stored(session, first.id)
        contrast = None if document is None else document.contrast
        if first is None or contrast is None or contrast.side_by_side:
            continue
        comparability = contrast.comparability
        if not (contrast.same_job or comparability.is_clean) or changed_field(comparability).field not in UPGRADES:
            continue
        before = session.execute(_STACK_OF_RUN, {"run": int(contrast.runs[-1])}).scalar_one()
        rows = session.execute(_MEMBERS_BEFORE, {"project": stack.project_id, "stack": before}).all()
        if rows and _next_run(session, stack.project_id, before, first.ordered_at) is None:
            of_job = [row[:2] for row in rows if not (row.job and first.facts.job and row.job != first.facts.job)]
            for member in _largest(of_job):
                if not member.proposal:
                    _continue_in(session, stack, member, first)


def _largest(members: Sequence[Sequence[Any]]) -> list[RegressionMemberRow]:
    """Leave out members from whose usual level another rose further: the job goes on, or recovered, with that one."""
    return [
        member
        for member, metric in members
        if not any(
            metric == other_metric
            and abs((other.usual_level or 0.0) - (member.usual_level or 0.0)) <= SAME_LEVEL
            and (other.slow_level or 0.0, other.regression_id) > (member.slow_level or 0.0, member.regression_id)
            for other, other_metric in members
        )
    ]


def _stored(session: Session, run_id: int) -> VerdictDocument | None:
    stored = stored_documents(session, [run_id]).get(run_id)
    return None if stored is None else from_json(VerdictDocument, stored[0])


_STACK_OF_RUN = select_any(RunRow.stack_key).where(col(RunRow.id) == bindparam("run"))
_MEMBERS_BEFORE: Select[Any] = (
    select_any(RegressionMemberRow, RegressionRow.metric, RunRow.job)
    .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .where(
        col(RegressionRow.project_id) == bindparam("project"),
        col(RegressionRow.state).in_(NOT_CLOSED),
        col(RegressionMemberRow.stack_key) == bindparam("stack"),
    )
)


def _first_of_job(stack: StackToJudge, candidate: Candidate) -> StackRun | None:
    """Return the first run of the candidate's job and configuration if these have two to four commits up to it."""
    own = candidate.newest
    runs = [
        run
        for run in stack.runs
        if run.config_key == own.config_key
        and run.facts.is_of_job(own.facts)
        and run.counts_in_segments
        and history_position(run) <= history_position(own)
    ]
    return runs[0] if 2 <= len(_commits(runs)) <= _YOUNG else None


_YOUNG = 4
"""Maximum commits of a new stack at which it can take over the regressions of its predecessor."""


def _next_run(session: Session, project_id: int, stack_key: str, since: datetime) -> datetime | None:
    """Return the history position of the first run of a stack after `since`; None without one."""
    chosen = select(func.min(col(RunRow.ordered_at))).where(
        col(RunRow.project_id) == project_id,
        col(RunRow.stack_key) == stack_key,
        col(RunRow.purpose) == "ci",
        col(RunRow.quarantine) == "",
        col(RunRow.ordered_at) >= since,
    )
    position: datetime | None = session.execute(chosen).scalar_one()
    return position


def _commits_until(session: Session, first: RunRow, until: datetime) -> int:
    """Return the number of commits in the stack of `first` from that run up to a position, among 100 runs."""
    chosen = select_any(RunRow.commit, RunRow.id).where(
        col(RunRow.project_id) == first.project_id,
        col(RunRow.stack_key) == first.stack_key,
        col(RunRow.config_key) == first.config_key,
        col(RunRow.purpose) == "ci",
        col(RunRow.quarantine) == "",
        col(RunRow.ordered_at) >= first.ordered_at,
        col(RunRow.ordered_at) < until,
    )
    return len({row.commit or row.id for row in session.execute(chosen.limit(LOOK_BACK))})


def _continue_in(session: Session, stack: StackToJudge, old: RegressionMemberRow, first: StackRun) -> None:
    """Add the first run of this stack as member, with the levels of the member whose stack ended."""
    if session.get(RegressionMemberRow, (old.regression_id, first.id)) is not None:
        return
    member = RegressionMemberRow(
        regression_id=old.regression_id,
        run_id=first.id,
        stack_key=stack.stack_key,
        config_key=first.config_key,
        usual_level=old.usual_level,
        slow_level=old.slow_level,
        delta_pct=old.delta_pct,
        first_delta_pct=old.first_delta_pct,
    )
    session.add(member)
    _record_continued(session, old, member)


def _record_continued(session: Session, old: RegressionMemberRow, member: RegressionMemberRow) -> None:
    """Record that the job of a member whose stack ended continues in the stack of another."""
    old.proposal = "fixed"
    session.flush()
    project_id = session.get_one(RegressionRow, old.regression_id).project_id
    audit.record(
        session, who=audit.SERVICE, subject="regression", subject_id=old.regression_id, action="continued",
        project_id=project_id, before={"stack": old.stack_key},
        after={"run": member.run_id, "stack": member.stack_key},
        note="Its stack ended; the job continues in this one.",
    )  # fmt: skip


def _origins(session: Session, stack: StackToJudge, members: RegressionMembers) -> list[StackRun]:
    """Return the slow runs of members that judging did not read."""
    read = {run.id for run in stack.runs}
    older = [member.row.run_id for member in members.of_stack if member.row.run_id not in read]
    return read_runs(session, RUNS_BY_NUMBER, (stack.project_id, stack.stack_key), run_ids=older) if older else []


def _alarms(stack: StackToJudge, candidate: Candidate, document: VerdictDocument) -> tuple[Alarm, ...]:
    """Return the alarms of a candidate. Off the baseline branch, they name their branch."""
    first, main = candidate.runs[0], stack.rules.branch
    branch = "" if main is None or main in candidate.branches else first.branch
    return alarms_of(document, stack_key=stack.stack_key, run=str(first.id), purpose=first.purpose, branch=branch)


@dataclass(frozen=True, slots=True)
class CandidateAlarms:
    """The alarms of candidates: from new verdicts (`judged`), or from stored ones."""

    session: Session
    stack: StackToJudge
    judged: Mapping[int, tuple[Alarm, ...]]

    def of(self, candidate: Candidate) -> tuple[Alarm, ...]:
        first = candidate.ids[0]
        if first in self.judged:
            return self.judged[first]
        document = _stored(self.session, candidate.newest.id)
        return () if document is None else _alarms(self.stack, candidate, document)


def _place(
    members: RegressionMembers, stack_history: StackHistory, raised: CandidateAlarms, candidate: Candidate, alarm: Alarm
) -> tuple[StackMember, Candidate] | None:
    """Assign the alarm to the regression that explains it, else to one of its cause, else open one.

    Return the member and its first slow candidate. None for a single slow launch, which may have had a slow node. It
    opens a regression only when a rerun, the next run or another stack confirms it.
    """
    same = [
        member
        for member in members.of_stack
        if stack_history.is_of_history(candidate.newest, member) and member.regression.metric == alarm.metric
    ]
    own = next((member for member in same if member.row.run_id in candidate.ids and member.is_of(alarm)), None)
    if own is not None:
        members.refresh(own, alarm)
        members.set_levels(own, stack_history.settled(own))
        return own, candidate
    for member in same:
        origin = stack_history.candidate_of(member.row.run_id)
        if origin is None or member.regression.state == "invalid":
            continue  # an invalid regression explains no other run
        if origin.position > candidate.position:
            # A late upload can show the regression earlier.
            if stack_history.reaches(candidate, origin) and alarm.is_covered_by(member.slow_level, has_ended=True):
                members.move(member, candidate, alarm)
                members.set_levels(member, stack_history.settled(member))
                return member, candidate
        elif stack_history.reaches(origin, candidate) and (
            member.is_of_upgrade(alarm) or _explains(stack_history, member, candidate, alarm)
        ):
            return member, candidate
    taken = {member.row.run_id for member in same}
    # An upgrade is slow from its first run on, although that run alone may not show it.
    young = stack_history.young(candidate) if alarm.cause.kind == "upgrade" else []
    origin = young[0] if candidate in young and taken.isdisjoint(young[0].ids) else candidate
    placed = members.continue_job(origin, alarm)
    if placed is None and (members.has_regression_elsewhere(candidate, alarm) or alarm.confirmed):
        placed = members.add(origin, alarm)
    if placed is not None:
        return placed, origin
    for earlier in stack_history.slow_before(candidate, alarm):
        first = next((other for other in raised.of(earlier) if other.metric == alarm.metric), None)
        if first is not None and taken.isdisjoint(earlier.ids) and first.is_confirmed_by(alarm):
            return members.add(earlier, first), earlier
    return None


def _explains(stack_history: StackHistory, member: StackMember, candidate: Candidate, alarm: Alarm) -> bool:
    has_ended = stack_history.has_ended(member, before=candidate.position)
    return alarm.is_covered_by(member.slow_level, has_ended=has_ended)


def _withdraw_if_not_shown(
    members: RegressionMembers,
    stack_history: StackHistory,
    candidate: Candidate,
    raised: CandidateAlarms,
    document: VerdictDocument,
) -> None:
    """Update regressions whose first slow run no longer has an alarm: quarantined, amended, or with a new baseline.

    If no other run shows the regression, it is withdrawn, provided that it is unassigned.
    """
    of_candidate = raised.of(candidate)
    for member in list(members.of_stack):
        silent = member.row.run_id in candidate.ids and not any(member.is_of(alarm) for alarm in of_candidate)
        if (
            silent
            and not _was_taken_over(member, document)
            and not _is_shown_later(member, stack_history, candidate, raised)
        ):
            is_in_turn = member.regression.kind == "upgrade" and document.upgrade and document.upgrade.side_by_side
            _replace(members, stack_history, member, _IN_TURN if is_in_turn else _NOT_JUDGED)


def _is_shown_later(
    member: StackMember, stack_history: StackHistory, candidate: Candidate, raised: CandidateAlarms
) -> bool:
    """Return whether the first runs after an upgrade together still show its regression."""
    if member.regression.kind != "upgrade":
        return False
    return any(member.is_of(alarm) for young in stack_history.young(candidate) for alarm in raised.of(young))


def _was_taken_over(member: StackMember, document: VerdictDocument) -> bool:
    """Return whether the stack continues a regression of another stack; its first run need not show it."""
    contrast, regression = document.contrast, member.regression
    if document.decision != "no_baseline" or contrast is None or document.quarantined:
        return False
    return regression.kind != "upgrade" or regression.cause_key != upgrade_cause(contrast.comparability).key


_NOT_JUDGED = "is no longer a regression, and no later run is one at its level"
_IN_TURN = "does not count as an upgrade, because the stack before ran again later"


def _replace(
    members: RegressionMembers, stack_history: StackHistory, member: StackMember, why: str = _NOT_JUDGED
) -> None:
    later = stack_history.next_slow(member)
    if later is not None:
        members.move(member, later, None)
    elif member.regression.state == "open":
        members.withdraw(member, why)


def _follow(
    members: RegressionMembers, stack_history: StackHistory, raised: CandidateAlarms, member: StackMember
) -> None:
    """Update from its history the size of a member, and whether it recovered or became slow again."""
    members.set_levels(member, stack_history.settled(member) or _measured_again(stack_history, raised, member))
    regression = member.regression
    if regression.state in ENDED:
        back = stack_history.came_back(member, fixed_at=regression.changed_at)
        if back is not None:
            members.reopen(member, back)
        elif regression.state == "fixed":
            members.confirm(member, stack_history.returned(member))
    elif regression.state in NOT_CLOSED:
        returned = stack_history.returned(member)
        if returned is not None or not stack_history.ends_back(member):  # no run has contradicted a proposal
            members.propose(member, returned)


def _measured_again(
    stack_history: StackHistory, raised: CandidateAlarms, member: StackMember
) -> tuple[float, float] | None:
    """Return the levels by the newest measurement of the member's upgrade, which lists of upgrades also show."""
    origin = stack_history.candidate_of(member.row.run_id)
    young = stack_history.young(origin) if origin is not None and member.regression.kind == "upgrade" else []
    alarms = (alarm for candidate in reversed(young) for alarm in raised.of(candidate) if member.is_of_upgrade(alarm))
    return next(((alarm.usual_level, alarm.slow_level) for alarm in alarms), None)


def _back_note(members: Sequence[RegressionMemberRow], run_id: int) -> str:
    if len({(member.stack_key, member.config_key) for member in members}) == 1:
        return f"Back at the usual level since run {run_id}."
    what = "stacks" if len({member.stack_key for member in members}) > 1 else "configurations"
    return f"All its {what} are back at the usual level, the last since run {run_id}."


# --- Costs of regressions: per member with factors for pages, and in the rows for lists.


def costs_of(session: Session, regression_id: int, now: datetime) -> dict[int, Cost]:
    """Return the cost of each member with its factors, by the member's run."""
    regression = session.get_one(RegressionRow, regression_id)
    costs = Costs(session, now)
    left = {
        member.run_id for job in jobs_of_regressions(session, [regression_id])[regression_id] for member in job[:-1]
    }
    result = {}
    for member in _members(session, regression_id):
        cost = stored_cost(costs.of_member(regression, member), member.gpu_hours_per_day)
        is_moved = member.run_id in left and cost.nothing_because
        result[member.run_id] = replace(cost, nothing_because=CONTINUES) if is_moved else cost
    return result


def refresh_costs(session: Session, now: datetime) -> int:
    """Recompute the costs of regressions that are not closed or not confirmed as fixed. Return how many changed.

    A stack that no longer runs is not judged, so its cost would otherwise never change.
    """
    claimed = exists().where(col(RegressionMemberRow.regression_id) == col(RegressionRow.id), IS_CLAIM)
    active = select(RegressionRow).where(or_(col(RegressionRow.state).in_(NOT_CLOSED), claimed))
    rows = session.execute(active.order_by(col(RegressionRow.id)).with_for_update(skip_locked=True)).scalars().all()
    costs = Costs(session, now)
    return sum(_refresh(session, row, costs) for row in rows)


SILENT_DAYS = 30


def _propose_closing(
    session: Session, regression: RegressionRow, members: Sequence[RegressionMemberRow], now: datetime
) -> None:
    """Propose to close a regression whose slow stacks no longer run, unless a user declined this.

    Its jobs are followed into later containers and clusters: as fixed if their last runs are back, as stale if nothing
    has run for a month. Nothing is proposed while a job is slow again there.
    """
    if not members:
        return
    slow = [member for member in members if member.proposal != "fixed"] or members
    later = later_runs(session, [regression.id or 0])
    of_slow = {member.run_id: later.get((member.regression_id, member.run_id), []) for member in slow}
    in_stacks = {number: at for (_, number), (at, _) in last_own_runs(session, [regression.id or 0]).items()}
    silent = now - timedelta(days=SILENT_DAYS)
    has_ended = all(in_stacks[member.run_id] < silent for member in slow if member.run_id in in_stacks)
    if regression.proposal == "fixed" and all(member.proposal == "fixed" for member in members):
        streaks = [streak for runs in of_slow.values() if (streak := slow_again(runs))]
        again = [streak[0] for streak in streaks if has_ended or len(streak) > 1]
        if not again or regression.state not in ACTIVE:
            return
        first = min(again, key=lambda run: run.ordered_at)
        note = f"Run {first.id}, in another container or cluster, {is_worse(regression.metric)} again."
        _set_proposal(session, regression, "", note)
    jobs = jobs_of_regressions(session, [regression.id or 0])[regression.id or 0]
    # Pages do not count a job as slow that one run shows or that is nearly back: it keeps no regression open.
    counted = {member.run_id for job in counted_jobs(jobs) for member in job} & of_slow.keys() or of_slow.keys()
    last_in_stacks = max((in_stacks[number] for number in counted if number in in_stacks), default=None)
    later_at = (of_slow[number][-1].ordered_at for number in counted if of_slow[number])
    last = max((at for at in (last_in_stacks, *later_at) if at is not None), default=None)
    back = _last_that_is_back(session, regression, of_slow) if has_ended and regression.state in ACTIVE else None
    if back is not None:
        if back.id != regression.proposal_run_id:  # a declined proposal is not repeated
            for member in slow:
                member.proposal = "fixed"
            regression.proposal_run_id = back.id
            note = f"Back at the usual level in run {back.id}, in the last stack of its jobs."
            _set_proposal(session, regression, "fixed", note)
            notify_regression(session, regression, "regression.recovered", note, note)
    elif last is not None and last >= silent:
        if regression.proposal == "stale":
            is_here = last_in_stacks is not None and last_in_stacks >= silent
            where = "again" if is_here else "in another container or cluster"
            _set_proposal(session, regression, "", f"Its jobs run {where}.")
    elif regression.state in ACTIVE and regression.proposal != "stale":
        events = audit.events(session, "regression", regression.id or 0)
        answer = next((event for event in events if "proposal" in {**event.before, **event.after}), None)
        if answer is None or answer.action != "proposal_declined" or answer.before.get("proposal") != "stale":
            since = f" since {days_text(last, last)}" if last else ""
            which = "jobs" if len(counted) == len(members) else f"{slow_or_affected(regression.metric)} jobs"
            _set_proposal(session, regression, "stale", f"None of its {which} has run{since}.")


def _last_that_is_back(
    session: Session, regression: RegressionRow, later: Mapping[int, Sequence[LaterRun]]
) -> RunRow | None:
    """Return the run since which the last of these members is back at the usual level; None unless each is.

    One run cannot show that a job that goes on is back, but no later one will. `later`: by the member's run.
    """
    newest = newest_runs(session, regression.id or 0)
    runs = []
    for member in _members(session, regression.id or 0):
        if member.run_id not in later:
            continue
        if later[member.run_id]:
            back = back_since(later[member.run_id])
            if back is None:
                return None
            runs.append(session.get_one(RunRow, back.id))
            continue
        run = session.get_one(RunRow, newest.get(member.run_id, member.run_id))
        value = run.step_time_ms if regression.metric == "step_time_ms" else run.peak_memory_gib
        if run.id == member.run_id or not value or member.usual_level is None:
            return None
        if math.log(value) > member.usual_level + SAME_LEVEL:
            return None
        runs.append(run)
    return max(runs, key=lambda run: (run.ordered_at, run.id or 0))


def _set_proposal(session: Session, regression: RegressionRow, proposal: Proposal, note: str) -> None:
    before = {"proposal": regression.proposal}
    regression.proposal, regression.changed_at = proposal, utc_now()
    audit.record(
        session, who=audit.SERVICE, subject="regression", subject_id=regression.id or 0,
        action="proposal_made" if proposal else "proposal_withdrawn", project_id=regression.project_id, before=before,
        after={"proposal": proposal}, note=note,
    )  # fmt: skip


def _refresh(session: Session, regression: RegressionRow, costs: Costs) -> bool:
    before = regression.gpu_hours_per_day
    members = _members(session, regression.id or 0)
    _propose_closing(session, regression, members, costs.clock_of(regression.project_id))
    for member in members:
        member.gpu_hours_per_day = costs.of_member(regression, member).gpu_hours_per_day
    regression.gpu_hours_per_day = total_cost([member.gpu_hours_per_day for member in members])
    regression.worst_delta_pct = size_pct(jobs_of_regressions(session, [regression.id or 0])[regression.id or 0])
    return regression.gpu_hours_per_day != before


def _members(session: Session, regression_id: int) -> list[RegressionMemberRow]:
    chosen = select(RegressionMemberRow).where(col(RegressionMemberRow.regression_id) == regression_id)
    return list(session.execute(chosen.order_by(col(RegressionMemberRow.run_id))).scalars())
