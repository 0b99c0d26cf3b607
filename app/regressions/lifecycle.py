"""What verdicts do to regressions: one is opened for a cause, gets its members, is proposed as fixed, and comes back.

The service opens and reopens, and takes back what nobody has taken up and nothing shows any more. Everything else is
for people to decide. It runs in the transaction that writes the verdicts, and finding nothing new it changes nothing.
"""

from collections.abc import Sequence

from sqlmodel import Session

from app.domain.alarms import Alarm, alarms_of
from app.domain.triage import ACTIVE
from app.domain.verdict_document import VerdictDocument
from app.regressions.members import Member, Members
from app.regressions.stack import Candidate, Stack
from app.regressions.standing import Standing
from app.storage.run_regressions import keep_alarms
from app.storage.stack_runs import stack_runs

Judged = tuple[Candidate, VerdictDocument]


def follow_regressions(session: Session, stack: Stack, judged: Sequence[Judged]) -> None:
    """Bring the regressions of a stack up to date after candidates (oldest first) got their verdicts."""
    alarms = [(candidate, _alarms(stack, candidate, document)) for candidate, document in judged]
    members = Members(session, stack.project_id, stack.stack_key)
    explained: dict[int, dict[str, int]] = {run: {} for candidate, _ in judged for run in candidate.ids}
    if members.of_stack or any(found for _, found in alarms):
        members.lock()
        priors = {candidate.config_key: document.verdict.prior for candidate, document in judged}
        runs = stack_runs(session, stack.project_id, stack.stack_key, with_metrics=False)
        standing = Standing(runs, stack.rules, priors)
        for member in list(members.of_stack):
            if standing.place_of_run(member.row.run_id) is None:
                _replace(members, standing, member)  # its run is of another stack now
        for candidate, found in alarms:
            _withdraw_silent(members, standing, candidate, found)
            for alarm in found:
                regression = _place(members, standing, candidate, alarm).regression
                for run in candidate.ids:
                    explained[run][alarm.metric] = regression.id or 0
        for member in members.of_stack:
            if member.row.config_key in priors and standing.place_of_run(member.row.run_id) is not None:
                _follow(members, standing, member)
        members.write()
    keep_alarms(session, explained)


def _alarms(stack: Stack, candidate: Candidate, document: VerdictDocument) -> tuple[Alarm, ...]:
    """With the branch of those that were found off the baseline branch."""
    first, main = candidate.runs[0], stack.rules.branch
    branch = "" if main is None or main in candidate.branches else first.branch
    return alarms_of(document, stack_key=stack.stack_key, run=str(first.id), purpose=first.purpose, branch=branch)


def _place(members: Members, standing: Standing, candidate: Candidate, alarm: Alarm) -> Member:
    """An alarm belongs to the regression that explains it, else to another one of its cause, else it opens one."""
    same = [one for one in members.of_stack if _is_about(one, candidate, alarm)]
    own = next((one for one in same if one.row.run_id in candidate.ids), None)
    if own is not None:
        members.refresh(own, alarm)
        members.settle(own, standing.settled(own))
        return own
    for member in same:
        origin = standing.candidate_of(member.row.run_id)
        if origin is None or member.regression.state == "invalid":
            continue  # what was no regression explains no other run
        if origin.place > candidate.place:
            # What came in late shows it earlier.
            if standing.reaches(candidate, origin) and alarm.is_covered_by(member.slow_level, has_ended=True):
                members.move(member, candidate, alarm)
                members.settle(member, standing.settled(member))
                return member
        elif standing.reaches(origin, candidate) and _explains(standing, member, candidate, alarm):
            return member
    return members.add(candidate, alarm)


def _explains(standing: Standing, member: Member, candidate: Candidate, alarm: Alarm) -> bool:
    has_ended = standing.has_ended(member, before=candidate.place)
    return alarm.is_covered_by(member.slow_level, has_ended=has_ended)


def _is_about(member: Member, candidate: Candidate, alarm: Alarm) -> bool:
    return member.row.config_key == candidate.config_key and member.regression.metric == alarm.metric


def _withdraw_silent(members: Members, standing: Standing, candidate: Candidate, found: Sequence[Alarm]) -> None:
    """A run that made a regression is no alarm any more: quarantined, amended, or judged against other runs.

    Another run may show it still. Where none does, and nobody has taken it up, it is withdrawn.
    """
    metrics = {alarm.metric for alarm in found}
    for member in list(members.of_stack):
        if member.row.run_id in candidate.ids and member.regression.metric not in metrics:
            _replace(members, standing, member)


def _replace(members: Members, standing: Standing, member: Member) -> None:
    later = standing.next_slow(member)
    if later is not None:
        members.move(member, later, None)
    elif member.regression.state == "open":
        members.withdraw(member)


def _follow(members: Members, standing: Standing, member: Member) -> None:
    """How large its history says that it is, whether it is over, and whether it is back."""
    members.settle(member, standing.settled(member))
    regression = member.regression
    if regression.state == "fixed":
        back = standing.came_back(member, said_at=regression.changed_at)
        if back is not None:
            members.reopen(member, back)
    elif regression.state in (*ACTIVE, "expected"):
        members.propose(member, standing.returned(member))
