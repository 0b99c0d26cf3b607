"""Charts on the overview of a project, in order. The audit log is written in the same transaction."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlmodel import Session, col

from app.errors import FieldError, InvalidChange, NotFound
from app.storage import audit
from app.storage.runs import aware
from app.storage.tables import DashboardChartRow

MAX_CHARTS = 12
"""Charts of a project."""
MAX_PAGE, MAX_TITLE = 300, 200


@dataclass(frozen=True, slots=True)
class DashboardChart:
    """`page`: the address of the page it shows; `position`: from 1."""

    id: int
    page: str
    title: str
    position: int
    added_by: str
    added_at: datetime

    @property
    def picture(self) -> str:
        """Return the address of the chart as an image."""
        path, _, query = self.page.partition("?")
        return f"{path}/picture.svg{'?' + query if query else ''}"

    @property
    def dark_picture(self) -> str:
        return f"{self.picture}{'&' if '?' in self.picture else '?'}theme=dark"


def list_charts(session: Session, project_id: int) -> list[DashboardChart]:
    """Return the charts of a project in order."""
    return [
        DashboardChart(row.id or 0, row.page, row.title, place, row.added_by, aware(row.added_at))
        for place, row in enumerate(_rows(session, project_id), 1)
    ]


def add_chart(session: Session, project_id: int, *, page: str, title: str, by: str) -> DashboardChart:
    """Add a chart at the end; one that is there already stays where it is. Raises InvalidChange."""
    rows = _rows(session, project_id)
    if len(page) > MAX_PAGE:
        raise _refused(f"has more than {MAX_PAGE} characters")
    if all(row.page != page for row in rows):
        if len(rows) >= MAX_CHARTS:
            raise _refused(f"exceeds the limit of {MAX_CHARTS} charts per project. Remove another chart first")
        last = max((row.position for row in rows), default=0)
        row = DashboardChartRow(
            project_id=project_id, page=page, title=title[:MAX_TITLE], position=last + 1, added_by=by
        )
        session.add(row)
        session.flush()
        _record(session, project_id, "chart_added", by, after={"page": page})
    return next(chart for chart in list_charts(session, project_id) if chart.page == page)


def move_chart(session: Session, project_id: int, chart_id: int, position: int, *, by: str) -> None:
    """Move a chart to a position from 1. Raises NotFound."""
    rows = _rows(session, project_id)
    row = _find(rows, chart_id)
    before = rows.index(row) + 1
    rows.remove(row)
    rows.insert(max(position, 1) - 1, row)
    for place, other in enumerate(rows, 1):
        other.position = place
        session.add(other)
    if row.position != before:
        after = {"position": row.position, "page": row.page}
        _record(session, project_id, "chart_moved", by, before={"position": before}, after=after)


def remove_chart(session: Session, project_id: int, chart_id: int, *, by: str) -> None:
    """Remove a chart. Raises NotFound."""
    row = _find(_rows(session, project_id), chart_id)
    session.delete(row)
    _record(session, project_id, "chart_removed", by, before={"page": row.page})


def _rows(session: Session, project_id: int) -> list[DashboardChartRow]:
    chosen = select(DashboardChartRow).where(col(DashboardChartRow.project_id) == project_id)
    ordered = chosen.order_by(col(DashboardChartRow.position), col(DashboardChartRow.id))
    return list(session.execute(ordered).scalars())


def _find(rows: list[DashboardChartRow], chart_id: int) -> DashboardChartRow:
    row = next((row for row in rows if row.id == chart_id), None)
    if row is None:
        raise NotFound("This chart is not on the overview of the project. Nothing was changed.")
    return row


def _record(
    session: Session,
    project_id: int,
    action: str,
    by: str,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> None:
    audit.record(
        session, who=by, subject="project", subject_id=project_id, action=action, project_id=project_id,
        before=before, after=after,
    )  # fmt: skip


def _refused(why: str) -> InvalidChange:
    return InvalidChange(f"No chart was added: the page {why}.", (FieldError("page", why),))
