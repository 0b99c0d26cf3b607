"""All that the page of one run shows. Parts are computed when a template asks for them: a block costs only itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sqlmodel import Session

from app.domain.contract_fields import METRICS
from app.domain.run import Metric
from app.errors import FieldError, InvalidQuery
from app.runs import chart_data, contract_view, log_view, sentences
from app.runs.charts import series_chart
from app.runs.health_view import HealthRow, health_rows
from app.runs.queries import get_run, get_series
from app.runs.run_view import RunView
from app.storage.log_files import LogFiles
from app.storage.run_records import ENDED_BADLY, RunDetail, Series
from app.web.numbers import counted, significant

TABLE_ROWS = 100


@dataclass(frozen=True, slots=True)
class Headline:
    """One of the five headline figures; `metric` is None when it is not known."""

    name: str
    label: str
    meaning: str
    metric: Metric | None


@dataclass(frozen=True, slots=True)
class TableRow:
    """One iteration in the table below the chart; `values` in the order of the columns, as text."""

    iteration: int
    role: str
    line: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[str, ...]
    items: tuple[TableRow, ...]
    page: int
    pages: int
    first: int
    last: int
    total: int


class RunPage:
    """Reads what it is asked for; keeps it for the length of one request."""

    def __init__(self, session: Session, log_files: LogFiles, run_id: int, view: RunView) -> None:
        self._session = session
        self._log_files = log_files
        self.view = view
        self.run: RunDetail = get_run(session, run_id)

    @property
    def answer(self) -> str:
        return sentences.answer(self.run)

    @property
    def headlines(self) -> list[Headline]:
        return [
            Headline(name, chart_data.series_label(name), field.meaning, self.run.metrics.get(name))
            for name, field in METRICS.items()
        ]

    @property
    def health(self) -> tuple[HealthRow, ...]:
        return health_rows(self.run.health)

    @property
    def contract(self) -> tuple[contract_view.ContractGroup, ...]:
        return contract_view.contract_groups(self.run.contract, self.run.unknown)

    @property
    def metadata_to_add(self) -> str:
        return contract_view.metadata_to_add(self.run.unknown)

    @cached_property
    def series(self) -> Series:
        return get_series(self._session, self.run.id)

    @property
    def has_series(self) -> bool:
        return bool(self.series_choices)

    @property
    def series_choices(self) -> list[tuple[str, str]]:
        return [(name, chart_data.series_label(name)) for name in chart_data.series_names(self.series.columns)]

    @property
    def shown_series(self) -> str:
        """What was asked for; where nothing was, step time, or the first series that the run has."""
        names = [name for name, _ in self.series_choices]
        asked = self.view.series
        return names[0] if asked == RunView().series and asked not in names and names else asked

    @cached_property
    def points(self) -> chart_data.Points:
        """The series that is shown, zoomed. Raises InvalidQuery when the run has none of that name."""
        if self.shown_series not in dict(self.series_choices):
            error = FieldError("series", f"this run has no {self.view.series[:60]!r}")
            raise InvalidQuery("The address of this run asks for what there is not.", (error,))
        whole = chart_data.points(self.series.columns, self.series.units, self.shown_series, self.run.steady_state)
        return chart_data.between(whole, self.view.first, self.view.last)

    @cached_property
    def drawn(self) -> chart_data.Points:
        return chart_data.drawable(self.points, self.view.scale == "log")

    @cached_property
    def scale(self) -> chart_data.Scale:
        return chart_data.fitting_scale(self.drawn, self.view.scale == "log")

    @property
    def lies_outside(self) -> bool:
        return chart_data.outside(self.points, self.scale) > 0

    @property
    def chart(self) -> Mapping[str, Any]:
        return series_chart(self.drawn, self.scale, self.run.steady_state, self.view.iteration)

    @property
    def chart_notes(self) -> list[str]:
        """What a reader of the chart must know and cannot see."""
        notes = []
        if outside := chart_data.outside(self.points, self.scale):
            verb = "lies" if outside == 1 else "lie"
            notes.append(f"{counted(outside, 'iteration')} {verb} off this scale, drawn at its edge.")
        if not self.scale.log and self.scale.low > 0:
            notes.append("The axis does not start at zero.")
        if len(self.drawn.iterations) < np.isfinite(self.points.values).sum():
            notes.append(f"{len(self.drawn.iterations):,} of {len(self.points.iterations):,} points are drawn.")
        return notes

    @cached_property
    def table(self) -> Table:
        """The same data as the chart, with the other series beside it."""
        whole = self.points
        pages = max(1, -(-len(whole.iterations) // TABLE_ROWS))
        start = (min(self.view.page, pages) - 1) * TABLE_ROWS
        shown = slice(start, start + TABLE_ROWS)
        rows = tuple(
            TableRow(int(iteration), role, int(line), (significant(float(value)),))
            for iteration, role, line, value in zip(
                whole.iterations[shown], whole.roles[shown], whole.log_lines[shown], whole.values[shown], strict=True
            )
        )
        return Table(
            columns=(whole.title,),
            items=rows,
            page=start // TABLE_ROWS + 1,
            pages=pages,
            first=start + 1 if rows else 0,
            last=start + len(rows),
            total=len(whole.iterations),
        )

    def table_address(self, page: int) -> str:
        return self.view.query(page=page)

    @cached_property
    def log(self) -> log_view.LogPage | None:
        """The shown page of the log, None when the run has no log file."""
        parts = log_view.log_parts(self._log_files, self.run.log_files)
        if not parts:
            return None
        marked = log_view.marks(
            self.series.columns if self.run.status == "ready" else {}, self.run.contract, self.run.health
        )
        ended_badly = self.run.status == "failed" or self.run.health.get("outcome") in ENDED_BADLY
        return log_view.log_page(self._log_files, parts, marked, self.view.line, seek_ending=ended_badly)
