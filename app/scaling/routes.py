"""`/scaling?project=&hardware=&family=&kind=&dispatcher=`: the page, its charts and its table as CSV."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import HTMLResponse, Response

from app.errors import FieldError, InvalidQuery
from app.scaling.charts import LOOKS, MARKS, MOST_DRAWN, scaling_chart
from app.scaling.export import points_csv
from app.scaling.page import ScalingPage, scaling_page
from app.scaling.query import ScalingQuery, check_names
from app.scaling.view import Section
from app.scaling.words import KINDS
from app.web.dependencies import ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False)


def get_page(request: Request, session: ReadSession) -> ScalingPage:
    query = ScalingQuery.from_params(request.query_params)
    check_names(session, query)
    return scaling_page(session, query)


Page = Annotated[ScalingPage, Depends(get_page)]


@router.get("/scaling")
def show_scaling(request: Request, page: Page) -> HTMLResponse:
    return _render(request, page)


@router.get("/scaling/chart")
def show_chart(request: Request, page: Page, draw: str) -> HTMLResponse:
    """The chart of one kind comes after the figures: drawing must not keep them waiting."""
    section = next((one for one in page.sections if one.kind == draw and one.drawn), None)
    if section is None:
        kinds = ", ".join(one.kind for one in page.sections if one.drawn) or "none"
        raise InvalidQuery("There is no such chart.", (FieldError("draw", f"must be one of {kinds}"),))
    return _render(request, page, drawn=section)


@router.get("/scaling.csv")
def export_scaling(page: Page) -> Response:
    headers = {"Content-Disposition": 'attachment; filename="scaling.csv"'}
    return Response(points_csv(page), media_type="text/csv", headers=headers)


def _render(request: Request, page: ScalingPage, drawn: Section | None = None) -> HTMLResponse:
    return render(
        request,
        "scaling/index.html",
        block="scaling_chart" if drawn else None,
        page=page,
        q=page.query,
        kinds=KINDS,
        drawn=drawn,
        chart=scaling_chart(drawn) if drawn else None,
        most_drawn=MOST_DRAWN,
        looks=LOOKS,
        marks=MARKS,
    )
