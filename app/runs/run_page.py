"""All that the page of one run shows. Parts are computed when a template asks for them: a block costs only itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from fastapi import Request
from sqlmodel import Session
from starlette.responses import HTMLResponse

from app.domain.contract.fields import FIELDS, METRICS
from app.domain.planning.link import plan_address
from app.domain.planning.request import REQUIRED
from app.domain.run import Metric, Timer
from app.errors import FieldError, InvalidQuery, Unavailable
from app.runs import chart_data, contract_view, log_view, sentences, slices_view, timer_chart
from app.runs.activity_view import ActivityRow, activity_rows, differing
from app.runs.amend_form import AmendForm
from app.runs.charts import series_chart
from app.runs.decision_form import DecisionForm
from app.runs.health_view import HealthRow, health_rows
from app.runs.news import Token, is_settled, token_of
from app.runs.pin_view import PinView, pin_view
from app.runs.queries import get_run, get_series
from app.runs.run_table import Table, table_of
from app.runs.run_view import RunView
from app.runs.verdict_view import VerdictView, rerun_command, verdict_view
from app.storage.audit import AuditEvent, events
from app.storage.experiments import ExperimentFilter, ExperimentPage, find_experiments
from app.storage.log_files import LogFiles
from app.storage.run_records import ENDED_BADLY, RunDetail, Series
from app.web.contract_inputs import ContractInput
from app.web.numbers import counted
from app.web.series_groups import grouped_series, series_label
from app.web.templating import render

MOST_EXPERIMENTS = 3
"""Of a run that are named on its page."""


@dataclass(frozen=True, slots=True)
class Headline:
    """One of the five headline figures; `metric` is None when it is not known."""

    name: str
    label: str
    meaning: str
    metric: Metric | None


class RunPage:
    """Reads what it is asked for; keeps it for the length of one request."""

    def __init__(
        self,
        session: Session,
        log_files: LogFiles,
        run_id: int,
        view: RunView,
        *,
        form: AmendForm | None = None,
        decision: DecisionForm | None = None,
    ) -> None:
        self._session = session
        self._log_files = log_files
        self.view = view
        self.form = form or AmendForm()
        self.decision = decision or DecisionForm()
        self.run: RunDetail = get_run(session, run_id)
        self.log_problem = ""

    @property
    def token(self) -> Token:
        return token_of(self.run)

    @property
    def answer(self) -> str:
        return sentences.answer(self.run)

    @property
    def headlines(self) -> list[Headline]:
        return [
            Headline(name, series_label(name), field.meaning, self.run.metrics.get(name))
            for name, field in METRICS.items()
        ]

    @cached_property
    def verdict(self) -> VerdictView | None:
        return verdict_view(self._session, self.run)

    @property
    def judging(self) -> bool:
        return self.run.judged.waiting

    @cached_property
    def pins(self) -> PinView | None:
        """None for a run that cannot be pinned."""
        return pin_view(self._session, self.run) if self.run.status == "ready" and self.run.stack_key else None

    @cached_property
    def decided(self) -> tuple[AuditEvent, ...]:
        """Who quarantined and released the run, newest first."""
        return events(self._session, "run", self.run.id)

    def rerun_command(self, base_url: str) -> str:
        return rerun_command(base_url, self.run)

    @property
    def health(self) -> tuple[HealthRow, ...]:
        return health_rows(self.run.health)

    @property
    def contract(self) -> tuple[contract_view.ContractGroup, ...]:
        return contract_view.contract_groups(self.run.contract, self.run.unknown)

    @property
    def plan_address(self) -> str:
        """The planner, filled in with the run's own facts; "" while too little is known to plan with."""
        values = {name: stated.value for name, stated in self.run.contract.items()}
        return plan_address(values) if all(values.get(name) for name in ("model", *REQUIRED)) else ""

    @cached_property
    def experiments(self) -> ExperimentPage:
        """The newest planned A/Bs that the run belongs to, or is the baseline of."""
        return find_experiments(self._session, ExperimentFilter(run_id=self.run.id), page_size=MOST_EXPERIMENTS)

    @property
    def unknown_stack(self) -> list[str]:
        """Members of the stack key that nobody states: while there is one, comparisons are provisional."""
        return [name for name in self.run.unknown if name in FIELDS and FIELDS[name].role == "stack"]

    @property
    def unknown_others(self) -> list[str]:
        return [name for name in self.run.unknown if name not in self.unknown_stack]

    def amend_inputs(self, names: list[str]) -> tuple[ContractInput, ...]:
        return self.form.inputs(names, self.run.contract)

    @property
    def corrected(self) -> list[str]:
        """Fields that are known and asked for all the same: somebody wants to correct them."""
        typed = (name for name in self.form.stated() if name in self.run.contract)
        asked = (self.view.amend,) if self.view.amend in self.run.contract and self.view.amend in FIELDS else ()
        return list(dict.fromkeys((*asked, *typed)))

    @property
    def taken_back(self) -> set[str]:
        """Fields whose correction stands, and can be taken back."""
        newest = {change.field: change for change in self.run.amendments}
        return {name for name, change in newest.items() if not change.removed}

    def amend_command(self, base_url: str) -> str:
        return contract_view.amend_command(base_url, self.run.id, self.unknown_stack)

    @property
    def settled(self) -> bool:
        return is_settled(self.token)

    @property
    def activity(self) -> tuple[ActivityRow, ...]:
        return activity_rows(self.run.activity)

    @property
    def differing(self) -> tuple[str, ...]:
        return differing(self.run.activity)

    @property
    def slices(self) -> tuple[slices_view.SliceRow, ...]:
        lines = self.series.columns.get("log_line", np.empty(0))
        return slices_view.slice_rows(self.run.slices, [file.name for file in self.run.log_files], lines)

    @property
    def slices_told(self) -> str:
        return slices_view.told(self.run.slices)

    @property
    def timers(self) -> list[tuple[str, Timer]]:
        return [(timer_chart.timer_name(timer.name), timer) for timer in timer_chart.sorted_timers(self.run.timers)]

    @property
    def timer_chart(self) -> Mapping[str, Any]:
        return timer_chart.timer_chart(self.run.timers)

    @property
    def not_understood(self) -> int:
        return sum(example.count for example in self.run.not_understood)

    @property
    def report(self) -> str:
        """The lines that were not understood, as a text to send to whoever maintains the reader."""
        return sentences.report(self.run)

    @cached_property
    def series(self) -> Series:
        return get_series(self._session, self.run.id)

    @property
    def has_series(self) -> bool:
        return bool(self.series_choices)

    @property
    def series_choices(self) -> tuple[str, ...]:
        return chart_data.series_names(self.series.columns)

    @property
    def series_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return grouped_series(self.series_choices)

    @property
    def shown_series(self) -> str:
        """What was asked for; where nothing was, step time, or the first series that the run has."""
        names = self.series_choices
        asked = self.view.series
        return names[0] if asked == RunView().series and asked not in names and names else asked

    @cached_property
    def points(self) -> chart_data.Points:
        """The series that is shown, zoomed. Raises InvalidQuery when the run has none of that name."""
        if self.shown_series not in self.series_choices:
            choices = ", ".join(self.series_choices) or "none: this run has no series yet"
            error = FieldError("series", f"must be one of {choices}, not {self.view.series[:60]!r}")
            raise InvalidQuery("The address of this run asks for what there is not.", (error,))
        starts = [piece.first_row for piece in self.run.slices]
        whole = chart_data.points(
            self.series.columns, self.series.units, self.shown_series, self.run.steady_state, starts
        )
        return chart_data.between(whole, self.view.first, self.view.last)

    def check_series(self) -> None:
        """Raises InvalidQuery at once for a series that the chart would only miss when it is drawn."""
        if self.view.series != RunView().series and self.run.status == "ready":
            _ = self.points

    @cached_property
    def drawn(self) -> chart_data.Points:
        return chart_data.drawable(self.points, self.view.scale == "log")

    @cached_property
    def scale(self) -> chart_data.Scale:
        return chart_data.fitting_scale(self.drawn, self.view.scale == "log", self.baseline_band)

    @cached_property
    def baseline_band(self) -> chart_data.Band | None:
        """Behind the step times: where the runs of the baseline lie."""
        if self.verdict is None or self.shown_series != "step_time_ms":
            return None
        return chart_data.baseline_band(self.verdict.baseline_times, self.verdict.baseline_ms, self.points.unit)

    @property
    def lies_outside(self) -> bool:
        return chart_data.outside(self.points, self.scale) > 0

    @property
    def chart(self) -> Mapping[str, Any]:
        return series_chart(self.drawn, self.scale, self.run.steady_state, self.view.iteration, self.baseline_band)

    @property
    def restarts(self) -> int:
        return len(self.drawn.starts)

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
        return table_of(self.points, self.view.page)

    def table_address(self, page: int) -> str:
        return self.view.query(page=page)

    @cached_property
    def log(self) -> log_view.LogPage | None:
        """The shown page of the log; None when the run has no log file, or it cannot be read (`log_problem`)."""
        try:
            return self._read_log()
        except Unavailable as error:
            self.log_problem = error.detail
            return None

    def _read_log(self) -> log_view.LogPage | None:
        run, files = self.run, self.run.log_files
        if not files:
            return None
        ended_badly = run.status == "failed" or run.health.get("outcome") in ENDED_BADLY
        seek_ending = ended_badly and not self.view.line and not self.view.file
        file = (run.health.get("evidence_file") or 0) if seek_ending else self.view.file
        file = min(file, len(files) - 1)
        marked = log_view.marks(self.series.columns if run.status == "ready" else {}, run, file)
        return log_view.log_page(self._log_files, files, marked, file, self.view.line, seek_ending=seek_ending)


def render_run(
    request: Request,
    page: RunPage,
    *,
    block: str | None,
    anchor: str = "",
    status: int = 200,
    whole: bool = True,
    announce: str = "",
) -> HTMLResponse:
    """The page, or one part of it to htmx.

    `anchor`: where in the page the part stands, for the address. `whole`: news changed the shape of the page.
    """
    query = page.view.query()
    return render(
        request,
        "runs/run.html",
        block=block,
        address=f"/runs/{page.run.id}{'?' + query if query else ''}#{anchor}" if anchor else None,
        p=page,
        run=page.run,
        view=page.view,
        status=status,
        whole=whole,
        announce=announce,
    )
