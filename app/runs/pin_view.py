"""Whether a run is the golden baseline of its stack, and what would drift out of sight if it were made so."""

from dataclasses import dataclass

from sqlalchemy import or_
from sqlmodel import Session, col

from app.domain.history_view.pins import Drift, drift
from app.domain.history_view.standing import has_figure
from app.storage.decisions import Pin, pins
from app.storage.run_records import RunDetail
from app.storage.stack_runs import StackRun, stack_runs
from app.storage.tables import RunRow


@dataclass(frozen=True, slots=True)
class PinView:
    """`pin`: of this run, `other`: of another run of its stack, in force. Drifts are those of this run.

    `since_pin`: against the run that is pinned, or was pinned last before this one; `since_release`: against the newest
    release before it. None: no such run, or no figure.
    """

    pin: Pin | None
    other: Pin | None
    since_pin: Drift | None
    since_release: Drift | None


def pin_view(session: Session, run: RunDetail) -> PinView:
    all_pins = pins(session, run.project_id, run.stack_key)
    in_force = [one for one in all_pins if one.in_force]
    others = [one for one in all_pins if one.run_id != run.id]
    wanted = {run.id, *(one.run_id for one in others[:1])}
    # The pinned run, this one and the releases: a history may have thousands of others.
    found = stack_runs(
        session,
        run.project_id,
        run.stack_key,
        or_(col(RunRow.id).in_(wanted), col(RunRow.purpose) == "release"),
        with_metrics=False,
    )
    by_id = {one.id: one for one in found}
    this = by_id.get(run.id)
    return PinView(
        pin=next((one for one in in_force if one.run_id == run.id), None),
        other=next((one for one in in_force if one.run_id != run.id), None),
        since_pin=drift(this, by_id.get(others[0].run_id)) if others else None,
        since_release=drift(this, _release_before(found, run.id)),
    )


def _release_before(found: list[StackRun], run_id: int) -> StackRun | None:
    places = [one.id for one in found]
    before = found[: places.index(run_id)] if run_id in places else []
    return next((one for one in reversed(before) if one.purpose == "release" and has_figure(one)), None)
