"""`/upgrade?project=&field=&from=&to=`: the page, its chart and its table as CSV."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response

from app.domain.upgrade import UPGRADE_FIELDS
from app.upgrade.charts import chart_height, upgrade_chart
from app.upgrade.page import UpgradePage, UpgradeQuery, upgrade_page
from app.upgrade.view import StackRow, lonely_rows, near_rows, stack_rows
from app.web.csv_text import csv_text
from app.web.dependencies import ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False)

COLUMNS = (
    *("stack", "decision", "from_ms", "to_ms", "delta_pct", "ci_low_pct", "ci_high_pct", "memory_delta_pct"),
    *("from_runs", "to_runs", "gpu_hours_per_day"),
)


def get_page(request: Request, session: ReadSession) -> UpgradePage:
    return upgrade_page(session, UpgradeQuery.from_params(request.query_params))


Page = Annotated[UpgradePage, Depends(get_page)]


@router.get("/upgrade")
def show_upgrade(request: Request, page: Page) -> HTMLResponse:
    return _render(request, page)


@router.get("/upgrade/chart")
def show_chart(request: Request, page: Page) -> HTMLResponse:
    """The chart comes after the figures: drawing must not keep them waiting."""
    return _render(request, page, block="upgrade_chart")


@router.get("/upgrade.csv")
def export_upgrade(page: Page) -> Response:
    rows = stack_rows(page.measured) if page.measured else ()
    headers = {"Content-Disposition": 'attachment; filename="upgrade.csv"'}
    return Response(csv_text([COLUMNS, *map(_cells, rows)]), media_type="text/csv", headers=headers)


def _cells(row: StackRow) -> tuple[object, ...]:
    time, memory = row.time, row.memory
    speed = (
        (time.baseline_ms, time.candidate_ms, time.delta_pct, time.ci_low_pct, time.ci_high_pct)
        if time is not None
        else (None,) * 5
    )
    tail = (memory and memory.delta_pct, " ".join(row.old_runs), " ".join(row.new_runs), row.cost)
    return (row.title, row.word, *speed, *tail)


def _render(request: Request, page: UpgradePage, block: str | None = None) -> HTMLResponse:
    measured = page.measured
    rows = stack_rows(measured) if measured else ()
    return render(
        request,
        "upgrade/index.html",
        block=block,
        page=page,
        q=page.query,
        fields=UPGRADE_FIELDS,
        rows=rows,
        near=near_rows(measured.report) if measured else (),
        lonely=lonely_rows(measured.report) if measured else (),
        chart=upgrade_chart(rows) if block else None,
        chart_height=chart_height(rows),
    )
