"""What this project measured itself: matched A/Bs on the one knob that a suggestion would turn."""

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.rules.engine import Suggestion
from app.domain.rules.knob import knob_of
from app.storage.knob_gains import Gain, MeasuredHere, gains_of, matched_abs, measured
from app.storage.run_records import RunDetail
from app.storage.tables import RunRow

__all__ = ["MeasuredHere", "measured_here"]


def measured_here(session: Session, run: RunDetail, found: Iterable[Suggestion]) -> tuple[MeasuredHere, ...]:
    """For each suggestion that turns one knob, what matched A/Bs of the project say of it."""
    knobs = {one.rule.id: knob for one in found if (knob := knob_of(one.set, run.contract)) is not None}
    if not knobs:
        return ()
    rows = matched_abs(session, sorted({knob.field for knob in knobs.values()}), run.project_id)
    groups = [(rule, own, gains) for rule, knob in knobs.items() for own, gains in _by_stack(run, gains_of(rows, knob))]
    contracts = _contracts(session, {gains[0].run_id for _, _, gains in groups})
    return tuple(
        measured(rule, gains, contracts.get(gains[0].run_id, {}), same_contract=own) for rule, own, gains in groups
    )


def _by_stack(run: RunDetail, gains: Sequence[Gain]) -> Iterator[tuple[bool, list[Gain]]]:
    """Those on the stack of the run, and those on others: the former outrank everything but code."""
    for own in (True, False):
        group = [gain for gain in gains if (gain.stack_key == run.stack_key) is own]
        if group:
            yield own, group


def _contracts(session: Session, run_ids: set[int]) -> dict[int, dict[str, object]]:
    """Of the newest candidates: under which contract they were measured."""
    rows = session.execute(select(RunRow.id, RunRow.contract).where(col(RunRow.id).in_(run_ids)))  # type: ignore[call-overload]
    return {row.id: {name: one["value"] for name, one in (row.contract or {}).items()} for row in rows}
