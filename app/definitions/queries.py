"""How far the figures and verdicts of all runs are those of the current rules, and which figures stay behind."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Engine, case, func, select, update
from sqlmodel import Session, col

from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS, VERDICT_VERSION, changes
from app.storage.database import transaction
from app.storage.definition_progress import Progress, could_not_be_computed, progress
from app.storage.judging_tables import VerdictRow
from app.storage.tables import RunRow

MOST_LISTED = 100


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A run that keeps older figures. `changed`: the rules that they lack; `reason`: why they could not be computed."""

    run_id: int
    name: str
    definition_version: int
    definitions: Mapping[str, int]
    reason: str

    @property
    def changed(self) -> str:
        return changes(self.definitions, DEFINITIONS)


@dataclass(frozen=True, slots=True)
class DefinitionState:
    """`left_behind`: the newest MOST_LISTED of them. `verdicts_outdated` wait to be made again."""

    runs: Progress
    left_behind: tuple[LeftBehind, ...]
    verdicts: int
    verdicts_outdated: int

    @property
    def is_running(self) -> bool:
        return bool(self.runs.waiting or self.verdicts_outdated)


def definition_state(session: Session) -> DefinitionState:
    counted = (
        select(func.count(), func.count(case((_is_outdated_verdict(), 1))))
        .select_from(VerdictRow)
        .join(RunRow, col(RunRow.id) == VerdictRow.run_id)  # tells whose it is (`visible.py`)
        .where(col(VerdictRow.current))
    )
    verdicts, outdated = session.execute(counted).one()
    runs = progress(session)
    return DefinitionState(runs, _left_behind(session) if runs.failed else (), verdicts, outdated)


def _is_outdated_verdict() -> ColumnElement[bool]:
    """Made by earlier rules, or of figures of earlier definitions."""
    return (col(VerdictRow.verdict_version) < VERDICT_VERSION) | (
        col(VerdictRow.definition_version) < DEFINITION_VERSION
    )


def _left_behind(session: Session) -> tuple[LeftBehind, ...]:
    chosen = (
        select(RunRow.id, RunRow.name, RunRow.definition_version, RunRow.definitions, RunRow.recompute_error)  # type: ignore[call-overload]
        .where(could_not_be_computed())
        .order_by(col(RunRow.id).desc())
        .limit(MOST_LISTED)
    )
    return tuple(
        LeftBehind(row.id, row.name, row.definition_version, row.definitions, row.recompute_error or "")
        for row in session.execute(chosen)
    )


def try_again(engine: Engine) -> None:
    """Have the runs that were left behind computed again; the sweep finds them."""
    with transaction(engine) as session:
        session.execute(
            update(RunRow)
            .where(could_not_be_computed())
            .values(recompute_failed=0, recompute_error=None)
            .execution_options(synchronize_session=False)
        )
