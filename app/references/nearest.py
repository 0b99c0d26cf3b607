"""The published figure nearest to a run, or to the head of a stack: how far, what differs, the likely causes.

It is another lab's measurement. It stands beside our figures, and is never ranked with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.ranking import Entry, family_of
from app.domain.reference_points import Nearest, OurFigures, nearest_reference
from app.domain.run import Stated
from app.errors import FieldError, InvalidQuery, NotFound
from app.storage.findings import stated
from app.storage.leaderboard_names import one_stack_named
from app.storage.references import Reference, references
from app.storage.standings import KeptStandings, stack_standings
from app.storage.tables import ProjectRow, RunRow

FLOORS = ("screen", "smoke")
"""The leader of a stack stands for it: on evidence that a leaderboard shows, else on any."""


@dataclass(frozen=True, slots=True)
class Ours:
    """What is held against published figures: a run, or the best result of a stack, which is that of `dispatcher`.

    `run_id`: of a stack, the newest run behind the result. `model`, `gpu` empty: unknown.
    """

    run_id: int
    stack_key: str
    dispatcher: str
    project: str
    contract: Mapping[str, Stated]
    figures: OurFigures
    of_stack: bool

    @property
    def model(self) -> str:
        return self._text("model")

    @property
    def gpu(self) -> str:
        return self._text("gpu")

    @property
    def family(self) -> str:
        values = {name: one.value for name, one in self.contract.items()}
        return family_of(self.model or None, values).name

    def _text(self, name: str) -> str:
        value = self.contract[name].value if name in self.contract else None
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Held:
    """Ours against the nearest published figure; `nearest` and `reference` None where there is none."""

    ours: Ours
    nearest: Nearest | None
    reference: Reference | None


def hold(session: Session, *, run: int | None = None, stack: str = "") -> Held:
    """The claim check of a run, or of a stack. Raises InvalidQuery when neither or both are named, NotFound."""
    if (run is None) == (not stack):
        error = FieldError("run", "or `stack` must say what is held against published figures, and not both")
        raise InvalidQuery("Name a run or a stack.", (error,))
    ours = _run(session, run) if run is not None else our_stack(session, one_stack_named(session, stack))
    return held_against(ours, references(session, ours.project))


def held_against(ours: Ours, known: Sequence[Reference]) -> Held:
    """`known`: the figures that are offered to the project of ours."""
    found = nearest_reference(ours.contract, ours.figures, [one.point for one in known])
    if found is None:
        return Held(ours, None, None)
    return Held(ours, found, next(one for one in known if one.point is found.point))


def _run(session: Session, run_id: int) -> Ours:
    row = _read(session, run_id)
    if row is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    figures = OurFigures(row.tokens_per_s_per_gpu, row.tflops_per_gpu, row.step_time_ms)
    return _ours(row, figures, of_stack=False)


def our_stack(session: Session, stack_key: str) -> Ours:
    """Its fastest result; of a stack where nothing can be ranked, the contract alone."""
    kept: KeptStandings | None = None
    for floor in FLOORS:
        kept = stack_standings(session, stack_key, floor)
        best = next((board.entries[0] for board in kept.standings.boards if board.entries), None) if kept else None
        if best is not None and (row := _read(session, int(best.runs[-1]))) is not None:
            return _ours(row, _figures(best), of_stack=True)
    row = _read(session, kept.newest_run_id) if kept else None
    if row is None:
        raise NotFound(
            "There is no such stack on the leaderboards. It has no run that was read yet, or the key is wrong."
        )
    return _ours(row, OurFigures(), of_stack=True)


def _figures(entry: Entry) -> OurFigures:
    tokens, tflops = entry.tokens_per_s_per_gpu, entry.tflops_per_gpu
    return OurFigures(
        None if tokens is None else tokens.value, None if tflops is None else tflops.value, entry.step_time_ms.value
    )


def _ours(row: Any, figures: OurFigures, *, of_stack: bool) -> Ours:
    contract = {name: stated(entry) for name, entry in (row.contract or {}).items()}
    return Ours(row.id, row.stack_key, row.dispatcher or "", row.slug, contract, figures, of_stack)


def _read(session: Session, run_id: int) -> Any:
    columns = (
        RunRow.id, RunRow.stack_key, RunRow.dispatcher, RunRow.contract, RunRow.step_time_ms,
        RunRow.tokens_per_s_per_gpu, RunRow.tflops_per_gpu, ProjectRow.slug,
    )  # fmt: skip
    chosen = select(*columns).join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)  # type: ignore[call-overload]
    return session.execute(chosen.where(col(RunRow.id) == run_id)).one_or_none()
