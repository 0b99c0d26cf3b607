"""The run that an advised run was judged against, for the rules about two runs that stand beside each other."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.rules.rule import Facts
from app.domain.rules.run_facts import facts_of_pair
from app.domain.run import SteadyState
from app.storage.run_records import RunDetail
from app.storage.tables import RunRow
from app.storage.verdicts import current_verdict


@dataclass(frozen=True, slots=True)
class AdvisedPair:
    """`beside`: the runs on the other side, oldest first."""

    beside: tuple[int, ...]
    facts: Facts


def read_pair(session: Session, run: RunDetail) -> AdvisedPair | None:
    """By the run's own verdict; None where it was compared with nothing."""
    verdict = current_verdict(session, run.id)
    found = None if verdict is None else verdict.document.compared
    if verdict is None or found is None:
        return None
    document = verdict.document
    other = document.contrast.runs if document.comparability is None and document.contrast else document.baseline
    if not (beside := tuple(int(number) for number in other if number.isdigit())):
        return None
    facts = facts_of_pair(
        [one.field for one in (*found.stack, *found.knobs) if one.is_certain],
        step_time_pct=None if document.measured is None else document.measured.delta_pct,
        windows=(_window(run.steady_state), _stored_window(session, beside[-1])),
    )
    return AdvisedPair(beside, facts)


def _window(steady: SteadyState | None) -> tuple[int, int] | None:
    return None if steady is None else (steady.first_iteration, steady.last_iteration)


def _stored_window(session: Session, run_id: int) -> tuple[int, int] | None:
    kept = session.execute(select(RunRow.steady_state).where(col(RunRow.id) == run_id)).scalar_one_or_none()  # type: ignore[call-overload]
    return None if kept is None else (kept["first_iteration"], kept["last_iteration"])
