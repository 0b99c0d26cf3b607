"""The rows of the regressions that a stack takes part in, and each change of them with its record."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, bindparam, delete, select, update
from sqlmodel import Session, col

from app.domain.alarms import Alarm
from app.domain.cost import total_cost
from app.domain.triage import ACTIVE
from app.regressions.stack import Candidate
from app.storage import audit
from app.storage.judging_tables import RegressionMemberRow, RegressionRow
from app.storage.news import tell_regression
from app.storage.slowdown_cost import member_cost
from app.storage.stack_runs import StackRun
from app.storage.tables import ProjectRow, utc_now

_NEWS = {
    "opened": "regression.opened",
    "joined": "regression.opened",
    "reopened": "regression.reopened",
    "proposal_made": "regression.recovered",
}
"""What is told of a change, by its action in the record."""


# Made once: putting it together takes longer than running it, and every pass asks.
_OF_STACK: Select[RegressionMemberRow, RegressionRow] = (
    select(RegressionMemberRow, RegressionRow)
    .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
    .where(
        col(RegressionMemberRow.stack_key) == bindparam("stack"), col(RegressionRow.project_id) == bindparam("project")
    )
    .order_by(col(RegressionRow.id), col(RegressionMemberRow.run_id))
)


@dataclass(slots=True)
class Member:
    row: RegressionMemberRow
    regression: RegressionRow

    @property
    def usual_level(self) -> float:
        return self.row.usual_level or 0.0

    @property
    def slow_level(self) -> float:
        return self.row.slow_level or 0.0


class Members:
    """`of_stack`: the members that this stack has in regressions of any state, oldest first."""

    def __init__(self, session: Session, project_id: int, stack_key: str) -> None:
        self._session, self._project_id, self._stack_key = session, project_id, stack_key
        self.of_stack = self._read()
        self._news: dict[tuple[int, str, str], RegressionRow] = {}

    def lock(self) -> None:
        """Until the transaction ends, no other stack of the project opens a regression, and nobody changes these."""
        project = select(ProjectRow.id).where(col(ProjectRow.id) == self._project_id)  # type: ignore[call-overload]
        self._session.execute(project.with_for_update(key_share=True))
        ids = {member.regression.id for member in self.of_stack}
        rows = select(RegressionRow).where(col(RegressionRow.id).in_(ids)).order_by(col(RegressionRow.id))
        self._session.execute(rows.with_for_update().execution_options(populate_existing=True)).all()
        self.of_stack = self._read()

    def add(self, candidate: Candidate, alarm: Alarm) -> Member:
        """A member of the active regression of this cause, else of a new one."""
        regression = self._of_cause(alarm) or self._open(candidate, alarm)
        run = candidate.runs[0]
        row = RegressionMemberRow(
            regression_id=regression.id or 0,
            run_id=run.id,
            stack_key=self._stack_key,
            config_key=candidate.config_key,
            usual_level=alarm.usual_level,
            slow_level=alarm.slow_level,
            delta_pct=alarm.delta_pct,
            first_delta_pct=alarm.delta_pct,
        )
        self._session.add(row)
        self._session.flush()
        self.of_stack.append(Member(row, regression))
        return self.of_stack[-1]

    def refresh(self, member: Member, alarm: Alarm) -> None:
        """The same run, judged again: reruns or another baseline made its levels more exact."""
        row = member.row
        row.usual_level, row.slow_level, row.delta_pct = alarm.usual_level, alarm.slow_level, alarm.delta_pct
        row.first_delta_pct = alarm.delta_pct
        if member.regression.state == "invalid" and self._was_withdrawn(member.regression):
            self._set_state(member.regression, "open", "reopened", f"Run {row.run_id} shows it again.")

    def settle(self, member: Member, levels: tuple[float, float] | None) -> None:
        """Its size is that between the levels of its history, once there are such; what was first seen is kept."""
        if levels is None:
            return
        row = member.row
        row.usual_level, row.slow_level = levels
        row.delta_pct = 100 * math.expm1(row.slow_level - row.usual_level)

    def move(self, member: Member, candidate: Candidate, alarm: Alarm | None) -> None:
        """Another run is the first slow one. Without an alarm of its own the levels stay."""
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
        others = [one for one in self._all_of(member.regression) if one.run_id != run_id]
        if alarm is not None and not others:
            member.regression.cause, member.regression.cause_key = alarm.cause.text, alarm.cause.key
        self._record(member.regression, "moved", {"run": before}, {"run": run_id}, "The first slow run is another one.")

    def withdraw(self, member: Member) -> None:
        """Nothing shows it any more, and nobody has taken it up."""
        note = f"Run {member.row.run_id} is no regression any more, and no later run is one at its level."
        others = [one for one in self._all_of(member.regression) if one.run_id != member.row.run_id]
        if not others:
            self._set_state(member.regression, "invalid", "withdrawn", note)
            return
        self._session.execute(delete(RegressionMemberRow).where(*_is_row(member.row)))
        self._session.expunge(member.row)
        self.of_stack = [one for one in self.of_stack if one is not member]
        self._record(member.regression, "left", {"run": member.row.run_id}, {}, note)

    def reopen(self, member: Member, run: StackRun) -> None:
        note = f"It is back at the slow level since run {run.id}."
        member.regression.proposal_run_id = run.id
        for row in self._all_of(member.regression):
            row.proposal = ""
        self._set_state(member.regression, "open", "reopened", note)

    def propose(self, member: Member, returned: StackRun | None) -> None:
        """That it is fixed, once all its members are back. What somebody declined is not proposed again."""
        regression = member.regression
        member.row.proposal = "fixed" if returned is not None else ""
        self._session.flush()
        all_back = all(one.proposal == "fixed" for one in self._all_of(regression))
        if returned is not None and all_back and not regression.proposal and regression.proposal_run_id != returned.id:
            regression.proposal, regression.proposal_run_id = "fixed", returned.id
            note = f"Back at the usual level since run {returned.id}."
            self._record(regression, "proposal_made", {"proposal": ""}, {"proposal": "fixed"}, note)
        elif regression.proposal == "fixed" and not all_back:
            regression.proposal, regression.proposal_run_id = "", None
            note = "It is slow again." if returned is None else "Another of its stacks is slow again."
            self._record(regression, "proposal_withdrawn", {"proposal": "fixed"}, {"proposal": ""}, note)

    def write(self) -> None:
        """Costs and the worst change of all regressions of the stack, and the news of them with these figures."""
        for member in self.of_stack:
            cost = member_cost(self._session, member.regression, member.row, utc_now())
            member.row.gpu_hours_per_day = cost.gpu_hours_per_day
        self._session.flush()
        for regression in {id(member.regression): member.regression for member in self.of_stack}.values():
            rows = list(self._all_of(regression))
            regression.gpu_hours_per_day = total_cost([row.gpu_hours_per_day for row in rows])
            regression.worst_delta_pct = max((row.delta_pct for row in rows if row.delta_pct is not None), default=None)
        self._session.flush()
        for (_, event, note), regression in self._news.items():
            if regression.state != "invalid":
                # It is opened once; whatever else happens to it may happen again, for another run.
                once = event == "regression.opened"
                tell_regression(self._session, regression, event, "" if once else note, note)
        self._news.clear()

    def _read(self) -> list[Member]:
        rows = self._session.execute(_OF_STACK, {"project": self._project_id, "stack": self._stack_key})
        return [Member(row, regression) for row, regression in rows]

    def _of_cause(self, alarm: Alarm) -> RegressionRow | None:
        """One that is not closed takes more members; after that the same cause is another matter."""
        chosen = (
            select(RegressionRow)
            .where(
                col(RegressionRow.project_id) == self._project_id,
                col(RegressionRow.cause_key) == alarm.cause.key,
                col(RegressionRow.metric) == alarm.metric,
                col(RegressionRow.state).in_((*ACTIVE, "expected")),
            )
            .order_by(col(RegressionRow.id).desc())
            .limit(1)
        )
        found: RegressionRow | None = self._session.execute(chosen.with_for_update()).scalar_one_or_none()
        if found is not None:
            after = {"stack": self._stack_key}
            self._record(found, "joined", {}, after, "Another stack became slower by the same cause.")
        return found

    def _open(self, candidate: Candidate, alarm: Alarm) -> RegressionRow:
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
        after = {"state": "open", "run": candidate.runs[0].id}
        self._record(regression, "opened", {}, after, alarm.cause.text, changed=False)
        return regression

    def _all_of(self, regression: RegressionRow) -> Iterator[RegressionMemberRow]:
        self._session.flush()
        chosen = select(RegressionMemberRow).where(col(RegressionMemberRow.regression_id) == regression.id)
        return iter(self._session.execute(chosen).scalars().all())

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
        if changed:
            regression.changed_at = utc_now()
        if action in _NEWS:
            told = "" if action == "opened" else note  # its cause stands in the message already
            self._news[regression.id or 0, _NEWS[action], told] = regression
        audit.record(
            self._session, who=audit.SERVICE, subject="regression", subject_id=regression.id or 0, action=action,
            project_id=self._project_id, before=before, after=after, note=note,
        )  # fmt: skip

    def _was_withdrawn(self, regression: RegressionRow) -> bool:
        """By the service itself: what a person calls invalid stays so."""
        newest = next((one for one in audit.events(self._session, "regression", regression.id or 0)), None)
        return newest is not None and newest.by_service and newest.action == "withdrawn"


def _is_row(row: RegressionMemberRow) -> tuple[ColumnElement[bool], ...]:
    return (
        col(RegressionMemberRow.regression_id) == row.regression_id,
        col(RegressionMemberRow.run_id) == row.run_id,
    )
