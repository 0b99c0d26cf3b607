"""The run that an advised run was judged against, for the rules about two runs that stand beside each other."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.rules.rule import Facts
from app.domain.rules.run_facts import facts_of_pair, memory_kinds
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
    window, kinds = _stored(session, beside[-1])
    facts = facts_of_pair(
        [one.field for one in (*found.stack, *found.knobs) if one.is_certain],
        step_time_pct=None if document.measured is None else document.measured.delta_pct,
        windows=(_window(run.steady_state), window),
        memory=(memory_kinds(run.health), kinds),
    )
    return AdvisedPair(beside, facts)


def _window(steady: SteadyState | None) -> tuple[int, int] | None:
    return None if steady is None else (steady.first_iteration, steady.last_iteration)


def _stored(session: Session, run_id: int) -> tuple[tuple[int, int] | None, frozenset[str]]:
    """Window of a run, and the kinds of its memory figures."""
    row = session.execute(select(RunRow.steady_state, RunRow.health).where(col(RunRow.id) == run_id)).one_or_none()  # type: ignore[call-overload]
    if row is None:
        return None, frozenset()
    window = (
        None if row.steady_state is None else (row.steady_state["first_iteration"], row.steady_state["last_iteration"])
    )
    return window, memory_kinds(row.health)
