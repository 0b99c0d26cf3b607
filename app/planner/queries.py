"""Layouts that were used for a model: published figures, and runs of this service on the same hardware."""

from collections.abc import Iterable

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.planning import PlanRequest, UsedLayout
from app.domain.ranking.families import family_of
from app.storage.findings import stated
from app.storage.references import references
from app.storage.tables import RunRow

_RUNS = 40
"""The newest runs that are looked at: a contract is 15 KB of JSON."""


def used_layouts(session: Session, request: PlanRequest) -> list[UsedLayout]:
    """Published ones and our own."""
    return [*_published(session, request), *_runs(session, request)]


def _published(session: Session, request: PlanRequest) -> Iterable[UsedLayout]:
    family = family_of(request.model.name)
    for reference in references(session):
        point = reference.point
        if point.family == family:
            yield UsedLayout(
                title=f"{point.contract['gpus']} x {point.contract['gpu']}, {point.contract['precision']}",
                href=f"/references/{reference.id}",
                whose=f"{point.measured_by}: {point.source}, {point.date}",
                values=point.contract,
                figure=f"{point.tflops_per_gpu:.0f} TFLOP/s/GPU" if point.tflops_per_gpu else "",
            )


def _runs(session: Session, request: PlanRequest) -> Iterable[UsedLayout]:
    """Of every project; a run without figures shows no layout that works."""
    columns = (RunRow.id, RunRow.name, RunRow.contract, RunRow.tflops_per_gpu)
    rows = session.execute(
        select(*columns)  # type: ignore[call-overload]
        .where(
            col(RunRow.model) == request.model.name,
            col(RunRow.gpu) == request.gpu,
            col(RunRow.status) == "ready",
            col(RunRow.quarantine) == "",
        )
        .order_by(col(RunRow.id).desc())
        .limit(_RUNS)
    )
    for row in rows:
        values = {name: stated(entry).value for name, entry in (row.contract or {}).items()}
        yield UsedLayout(
            title=f"run #{row.id} {row.name[:60]}",
            href=f"/runs/{row.id}",
            whose="this service",
            values=values,
            figure=f"{row.tflops_per_gpu:.0f} TFLOP/s/GPU" if row.tflops_per_gpu else "",
        )
