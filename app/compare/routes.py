"""The page of a comparison: HTTP in, template out."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.compare.chosen import chosen_runs
from app.compare.page import ComparePage
from app.compare.picker import Picker
from app.compare.selection import Selection
from app.errors import InvalidQuery, NotFound, NotReady, ThreewallsError
from app.web.dependencies import ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False)

_STATUS = {NotFound: 404, NotReady: 409, InvalidQuery: 422}


@router.get("/compare")
def show_comparison(request: Request, session: ReadSession, run: Annotated[Sequence[str], Query()] = ()) -> Response:
    """`run`, as often as it stands there: what was ticked in the list of runs."""
    if run:
        return RedirectResponse(chosen_runs(session, run).address(), status_code=303)
    try:
        selection = Selection.from_params(request.query_params)
    except InvalidQuery as error:
        return _choose(request, session, Selection(), error)
    if not selection.complete:
        return _choose(request, session, selection)
    try:
        page = ComparePage(session, selection)
        page.check_series()
    except (NotFound, NotReady) as error:
        return _choose(request, session, selection, error)
    return _shown(request, session, page, "compare_picker")


@router.get("/compare/distributions")
def show_distributions(request: Request, session: ReadSession) -> HTMLResponse:
    return _part(request, session, "compare_distributions")


@router.get("/compare/series")
def show_series(request: Request, session: ReadSession) -> HTMLResponse:
    return _part(request, session, "compare_series", anchor="series")


def _part(request: Request, session: Session, block: str, anchor: str = "") -> HTMLResponse:
    selection = Selection.from_params(request.query_params)
    if not selection.complete:
        raise InvalidQuery("A comparison has two sides: name at least one run for `a` and one for `b`.")
    return _shown(request, session, ComparePage(session, selection), block, anchor)


def _shown(request: Request, session: Session, page: ComparePage, block: str, anchor: str = "") -> HTMLResponse:
    address = page.selection.address()
    return render(
        request,
        "compare/comparison.html",
        block=block,
        address=f"{address}#{anchor}" if anchor else None,
        p=page,
        s=page.selection,
        picker=Picker(session, page.selection),
    )


def _choose(
    request: Request, session: Session, selection: Selection, error: ThreewallsError | None = None
) -> HTMLResponse:
    """The page on which runs are chosen: nothing is yet, or what was asked for cannot be compared."""
    context: dict[str, Any] = {
        "s": selection,
        "picker": Picker(session, selection, offer_pairs=True, gone=isinstance(error, NotFound)),
        "error": error,
        "retry": isinstance(error, NotReady),
    }
    status = 200 if error is None else next(code for kind, code in _STATUS.items() if isinstance(error, kind))
    return render(request, "compare/choose.html", block="compare_picker", status=status, **context)
