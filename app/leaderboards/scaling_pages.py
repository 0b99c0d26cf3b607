"""`/scaling?project=&hardware=&family=&kind=&dispatcher=`: the page, its charts and its table as CSV."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from app.domain.access.principal import Action
from app.domain.numbers import plural
from app.domain.ranking.runs import slug
from app.domain.ranking.standings import Interval
from app.domain.report.values import storable
from app.errors import FieldError, InvalidQuery
from app.leaderboards.api import interval_cells
from app.leaderboards.scaling_charts import LOOKS, MARKS, MOST_DRAWN, scaling_chart, shown_sizes
from app.leaderboards.scaling_queries import (
    ScalingQuery,
    Workloads,
    check_names,
    comparable_workloads,
    container_of,
    measure,
    workloads,
)
from app.leaderboards.scaling_views import (
    KINDS,
    NearSizesRow,
    ScalingPointRow,
    Section,
    SeriesView,
    answer,
    common_range,
    lead,
    near_rows,
    sections,
    worst_first,
)
from app.leaderboards.words import GAIN_LEVEL
from app.web.access_rule import requires
from app.web.dependencies import ReadSession, api_router
from app.web.errors import as_content, documented
from app.web.lists import CellKind, only_parameters, table_answer, table_format
from app.web.templating import render

# --- The scaling page: the filters of the address, the available workloads, and the answer.


@dataclass(frozen=True, slots=True)
class ScalingPage:
    """`offers`: workloads at several sizes, of the asked project or of all. `chosen`: the only one that matches.

    `near`: the nearest sizes of a workload whose sizes cannot be compared. `comparable`: the offers with a series.
    """

    query: ScalingQuery
    offers: tuple[Workloads, ...]
    matching: tuple[Workloads, ...]
    chosen: Workloads | None
    sections: tuple[Section, ...]
    answer: str
    lead: str
    near: tuple[NearSizesRow, ...] = ()
    comparable: tuple[Workloads, ...] = ()

    @property
    def worst(self) -> Section | None:
        """Return the kind of scaling that loses most."""
        return next(iter(worst_first(self.sections)), None)

    @property
    def container(self) -> str:
        return container_of(self.chosen, self.query) if self.chosen else ""

    @property
    def dispatchers(self) -> tuple[str, ...]:
        names = {view.series.dispatcher or "unknown" for section in self.sections for view in section.series}
        return tuple(sorted(names))


def scaling_page(session: Session, query: ScalingQuery) -> ScalingPage:
    offers = tuple(offer for offer in workloads(session) if query.project in ("", offer.project))
    matching = tuple(offer for offer in offers if _matches(offer, query))
    names = comparable_workloads(session)
    comparable = tuple(offer for offer in offers if offer.names in names)
    if len(matching) != 1:
        asked = _asked(offers, len(matching))
        return ScalingPage(query, offers, matching, None, (), asked, asked, comparable=comparable)
    chosen = matching[0]
    measured = measure(session, chosen, query)
    shown, near = sections(measured), near_rows(measured)
    return ScalingPage(query, offers, matching, chosen, shown, answer(shown, near), lead(shown, near), near, comparable)


def _matches(workloads: Workloads, query: ScalingQuery) -> bool:
    asked = (
        (query.project, workloads.project),
        (query.hardware and slug(query.hardware), workloads.hardware_slug),
        (query.family and slug(query.family), workloads.family_slug),
    )
    return all(not wanted or wanted == has for wanted, has in asked)


def _asked(offers: tuple[Workloads, ...], matching: int) -> str:
    if not offers:
        return "No workload ran at several sizes yet."
    if not matching:
        return "No matching workload ran at several sizes. Choose another."
    return f"{plural(matching, 'workload')} ran at several sizes. Choose one."


# --- Scaling as values: the JSON of the API, and the same points as CSV.

SCHEMA = "threewalls.scaling/1"
_KEYS = ("project", "hardware", "hardware_slug", "family", "family_slug")


def scaling_values(page: ScalingPage) -> dict[str, Any]:
    """Return everything that the page shows. Efficiencies in percent of the smallest size, with deciding intervals.

    They are null for a size that was not measured on the code that is `compared`; `changed_at` says when that changed.
    `nearest`: without a series, the sizes that differ in the fewest fields.
    """
    chosen = page.chosen
    return {
        "schema": SCHEMA,
        **{name: getattr(chosen, name) if chosen else None for name in _KEYS},
        "container": page.container or None,
        "summary": page.answer,
        "series": [_series(view) for section in page.sections for view in section.series],
        "nearest": [_near(row) for row in page.near],
        "offers": [
            {name: getattr(offer, name) for name in (*_KEYS, "stacks")}
            | {"containers": list(offer.containers), "sizes": dict(offer.sizes)}
            for offer in page.offers
        ],
    }


_INTERVALS = ("step_time_ms", "efficiency_pct", "tokens_pct")
POINT_COLUMNS: Mapping[str, CellKind] = {
    "kind": "text", "series": "text", "dispatcher": "text", "size": "int", "cp": "int",
    **{f"{name}{part}": "float" for name in _INTERVALS for part in ("", "_low", "_high")},
    "directional": "flag", "compared": "flag", "first_at": "time", "last_at": "time", "days_apart": "float",
    "changed_at": "text", "stack_key": "text", "config_key": "text", "runs": "text",
}  # fmt: skip


def point_rows(page: ScalingPage) -> list[tuple[Any, ...]]:
    return [
        (
            view.series.kind, view.name, view.series.dispatcher, row.point.size, row.point.cp,
            *(bound for name in _INTERVALS for bound in interval_cells(getattr(row.point, name))),
            row.point.directional, row.point.compared, row.point.first_at, row.point.last_at,
            round(row.point.days_apart, 2), " ".join(at.isoformat() for at in row.point.changed_at), row.stack_key,
            row.point.config_key, " ".join(row.point.runs),
        )
        for section in page.sections
        for view in section.series
        for row in view.points
    ]  # fmt: skip


def _near(row: NearSizesRow) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "sizes": list(row.sizes),
        "runs": [int(run) for run in row.runs],
        "differs_in": {name: list(values) for name, *values in row.fields},
    }


def _series(view: SeriesView) -> dict[str, Any]:
    series = view.series
    return {
        "kind": series.kind,
        "name": view.name,
        "along": series.along,
        "dispatcher": series.dispatcher or None,
        "routing_mode": series.routing_mode or None,
        "semantic_class": series.semantic_class,
        "summary": view.sentence,
        "provisional": series.provisional,
        "unknown": list(series.unknown),
        "differs_in": dict(view.apart),
        "points": [_point(row) for row in view.points],
    }


def _point(row: ScalingPointRow) -> dict[str, Any]:
    point = row.point
    return {
        "size": point.size,
        "cp": point.cp,
        "step_time_ms": _interval(point.step_time_ms),
        "efficiency_pct": _interval(point.efficiency_pct),
        "tokens_pct": _interval(point.tokens_pct),
        "directional": point.directional,
        "compared": point.compared,
        "first_at": point.first_at.isoformat(),
        "last_at": point.last_at.isoformat(),
        "days_apart": round(point.days_apart, 2),
        "changed_at": [at.isoformat() for at in point.changed_at],
        "stack_key": row.stack_key,
        "config_key": point.config_key,
        "runs": [int(run) for run in point.runs],
    }


def _interval(value: Interval | None) -> dict[str, float | None] | None:
    return None if value is None else {"value": value.value, "low": value.low, "high": value.high}


router = APIRouter(include_in_schema=False)


def get_page(request: Request, session: ReadSession) -> ScalingPage:
    query = ScalingQuery.from_params(request.query_params)
    check_names(session, query)
    return scaling_page(session, query)


Page = Annotated[ScalingPage, Depends(get_page)]


@router.get("/scaling")
@requires(Action.READ)
def show_scaling(request: Request, page: Page) -> Response:
    """Show one workload: of several that match, the one with the most sizes and stacks whose sizes compare."""
    if page.chosen is None and page.matching:
        widest_first = sorted(page.matching, key=lambda workload: (-max(workload.sizes.values()), -workload.stacks))
        shown = next((workload for workload in widest_first if workload in page.comparable), widest_first[0])
        hardware, family = shown.hardware_slug, shown.family_slug
        same = [other for other in page.matching if (other.hardware_slug, other.family_slug) == (hardware, family)]
        project = shown.project if len(same) > 1 else page.query.project
        query = page.query.query(project=project, hardware=hardware, family=family)
        return RedirectResponse(f"/scaling?{query}", status_code=303)
    return _render(request, page)


@router.get("/scaling/chart")
@requires(Action.READ)
def show_chart(request: Request, page: Page, draw: str, first: int = 0, last: int = 0) -> HTMLResponse:
    """Return the chart of one kind alone: it loads after the figures, so that drawing does not delay them.

    `first` and `last`: the sizes at the ends of the zoom.
    """
    section = next((section for section in page.sections if section.kind == draw and section.drawn), None)
    if section is None:
        kinds = ", ".join(section.kind for section in page.sections if section.drawn) or "none"
        raise InvalidQuery("Invalid chart.", (FieldError("draw", f"must be one of {kinds}"),))
    _, is_zoomed = shown_sizes(section, first, last)
    return _render(
        request,
        page,
        drawn=section,
        chart=scaling_chart(section, common_range(page.sections), first, last),
        is_zoomed=is_zoomed,
    )


@router.get("/scaling.csv")
@requires(Action.READ)
def export_scaling(page: Page) -> Response:
    return table_answer("csv", POINT_COLUMNS, [point_rows(page)], "scaling")


def _render(request: Request, page: ScalingPage, drawn: Section | None = None, **of_chart: Any) -> HTMLResponse:
    return render(
        request,
        "leaderboards/scaling.html",
        block="scaling_chart" if drawn else None,
        page=page,
        q=page.query,
        kinds=KINDS,
        drawn=drawn,
        most_drawn=MOST_DRAWN,
        looks=LOOKS,
        marks=MARKS,
        gain_level=GAIN_LEVEL,
        **of_chart,
    )


# --- `GET /api/v1/scaling`: one workload at several sizes, as JSON.

api = api_router("leaderboards")


@api.get(
    "/scaling",
    response_class=JSONResponse,
    dependencies=[only_parameters(*ScalingQuery.names(), "format")],
    responses=documented(404, 406, 422, ok=as_content("text/csv")),
)
@requires(Action.READ)
def read_scaling(
    *,
    request: Request,
    session: ReadSession,
    project: Annotated[str, Query(max_length=100)] = "",
    hardware: Annotated[str, Query(max_length=100, description="`h100`, or its display name: `H100`.")] = "",
    family: Annotated[
        str, Query(max_length=100, description="`qwen3-30b-a3b`, or its display name: `Qwen3-30B-A3B`.")
    ] = "",
    container: Annotated[
        str,
        Query(max_length=500, description="Default: the container with the most sizes; `unknown`: where unknown."),
    ] = "",
    kind: Annotated[str, Query(description="weak, strong, sequence_batch or sequence_tokens.")] = "",
    dispatcher: Annotated[str, Query(description="`unknown`: where unknown.")] = "",
) -> Response:
    """Return the efficiency against the smallest size. If several workloads match, `offers` lists them.

    CSV and Parquet (`format`) have one row per point.
    """
    chosen = table_format(request)
    params = {"project": project, "hardware": hardware, "family": family, "container": container}
    query = ScalingQuery.from_params(params | {"kind": kind, "dispatcher": dispatcher})
    check_names(session, query)
    page = scaling_page(session, query)
    if chosen != "json":
        return table_answer(chosen, POINT_COLUMNS, [point_rows(page)], "scaling")
    return JSONResponse(storable(scaling_values(page)))
