"""All that the page of a comparison shows. A part is computed when a template asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlmodel import Session

from app.compare import differences_view, distribution_chart, metrics_view, series_chart
from app.compare.aligned import Overlay, overlay
from app.compare.aligned_table import AlignedTable, aligned_table
from app.compare.comparison import Comparison
from app.compare.queries import ComparedRun, read_columns, series_of
from app.compare.selection import Selection, Side
from app.compare.timers_view import TimerTable, timer_table
from app.domain.comparison.sentences import KINDS
from app.domain.numbers import counted
from app.errors import FieldError, InvalidQuery
from app.web.series_groups import grouped_series


@dataclass(frozen=True, slots=True)
class SideCard:
    """One side as the head of the page shows it. `left_out`: why a run counts for nothing, by its number."""

    side: Side
    letter: str
    role: str
    runs: tuple[ComparedRun, ...]
    left_out: Mapping[int, str]
    no_reruns: tuple[str, ...]


class ComparePage:
    """Reads what it is asked for; keeps it for the length of one request."""

    def __init__(self, session: Session, selection: Selection) -> None:
        self._session = session
        self.selection = selection
        self.comparison = Comparison(session, selection)

    @property
    def kind(self) -> str:
        return KINDS[self.comparison.sides.kind]

    @property
    def answer(self) -> str:
        same = len(self.comparison.same)
        return f"{self.comparison.told.differs} {counted(same, 'field')} {'is' if same == 1 else 'are'} the same."

    @property
    def title(self) -> str:
        a, b = (
            f"#{side[0]}" if len(side) == 1 else f"{len(side)} runs" for side in (self.selection.a, self.selection.b)
        )
        return f"{a} against {b}"

    @property
    def cards(self) -> tuple[SideCard, SideCard]:
        sides = self.comparison.sides
        left_out = self.comparison.left_out
        return (
            SideCard("a", "A", "baseline", self.comparison.a, left_out, sides.sets[0].fields),
            SideCard("b", "B", "candidate", self.comparison.b, left_out, sides.sets[1].fields),
        )

    @cached_property
    def axes(self) -> tuple[differences_view.AxisGroup, ...]:
        return differences_view.axis_groups(self.comparison)

    @property
    def missing(self) -> tuple[differences_view.Missing, ...]:
        return differences_view.missing_fields(self.comparison)

    @property
    def same(self) -> tuple[tuple[str, str, str], ...]:
        return differences_view.same_rows(self.comparison.same)

    @cached_property
    def environment(self) -> tuple[differences_view.DifferenceRow, ...]:
        return differences_view.environment_rows(self.comparison)

    @property
    def environment_same(self) -> int:
        return differences_view.environment_same(self.comparison)

    @property
    def metrics(self) -> tuple[metrics_view.MetricRow, ...]:
        return metrics_view.metric_rows(self.comparison)

    @property
    def timers(self) -> TimerTable:
        return timer_table(self.comparison)

    @property
    def has_windows(self) -> bool:
        return any(found is not None for found in self.comparison.distributions.values())

    @property
    def distribution_chart(self) -> Mapping[str, Any]:
        return distribution_chart.distribution_chart(self.comparison)

    @property
    def distribution_height(self) -> int:
        return distribution_chart.chart_height(self.comparison)

    @property
    def beyond_axis(self) -> int:
        return distribution_chart.beyond_axis(self.comparison)

    @cached_property
    def series(self) -> Mapping[str, str]:
        """Names and units of the series that can be chosen."""
        return series_of(self._session, self.selection.runs)

    @property
    def series_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return grouped_series(self.series)

    @property
    def shown_series(self) -> str:
        """What was asked for; where nothing was, step time, or the first series that a run has."""
        asked = self.selection.series
        return next(iter(self.series), asked) if asked == Selection().series and asked not in self.series else asked

    def check_series(self) -> None:
        """Raises InvalidQuery at once for a series that the chart would only miss when it is drawn."""
        if self.series and self.shown_series not in self.series:
            error = FieldError("series", f"must be one of {', '.join(self.series)}, not {self.shown_series[:60]!r}")
            raise InvalidQuery("The address of this comparison asks for what there is not.", (error,))

    @cached_property
    def overlay(self) -> Overlay:
        self.check_series()
        name = self.shown_series
        columns = read_columns(self._session, self.selection.runs, [name])
        return overlay(self.comparison, columns, name, self.series.get(name, ""))

    @property
    def series_chart(self) -> Mapping[str, Any]:
        return series_chart.series_chart(self.overlay)

    @cached_property
    def table(self) -> AlignedTable:
        return aligned_table(self.overlay, self.selection.page)

    def table_address(self, page: int) -> str:
        return self.selection.query(page=page)

    @property
    def chart_notes(self) -> list[str]:
        """What a reader of the chart must know and cannot see."""
        shown, notes = self.overlay, []
        stretch = series_chart.stretch_of(shown)
        if stretch > 1:
            notes.append(
                f"A point stands for {stretch} iterations: the line is their median, the band reaches from the lowest "
                "to the highest."
            )
        if shown.outside:
            verb = "lies" if shown.outside == 1 else "lie"
            notes.append(f"{counted(shown.outside, 'value')} {verb} off this axis, drawn at its edge.")
        if shown.low > 0:
            notes.append("The axis does not start at zero.")
        if shown.missing:
            named = ", ".join(f"#{number}" for number in shown.missing)
            notes.append(f"{named} {'has' if len(shown.missing) == 1 else 'have'} no such series.")
        return notes
