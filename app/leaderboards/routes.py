"""`/leaderboards` and `/leaderboards/{hardware}/{family}`: pages, their charts, their tables as CSV."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Path, Request
from starlette.responses import HTMLResponse, Response

from app.domain.ranking.families import slug
from app.domain.ranking.incremental import told
from app.leaderboards import gains, words
from app.leaderboards.configurations import against_best
from app.leaderboards.export import gains_csv, leaders_csv, standings_csv
from app.leaderboards.filters import RANKINGS, BoardFilters, page_number
from app.leaderboards.index import leaderboard_index
from app.leaderboards.leaders import told_class
from app.leaderboards.page import LeaderboardPage
from app.leaderboards.summary_view import gain_text as gain_range
from app.leaderboards.view import MOST_COMPARED
from app.web.dependencies import ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False)

Slug = Annotated[str, Path(max_length=230)]


def get_page(request: Request, session: ReadSession, hardware: Slug, family: Slug) -> LeaderboardPage:
    """Names as they are shown, `H100/Qwen3-30B-A3B`, lead to the address with their slugs."""
    if (slug(hardware), slug(family)) != (hardware, family):
        parts = ("leaderboards", slug(hardware), slug(family), *request.scope["path"].split("/")[4:])
        query = f"?{request.url.query}" if request.url.query else ""
        moved = "".join(f"/{quote(part)}" for part in parts) + query
        raise HTTPException(308, "The address of this leaderboard is written otherwise.", {"Location": moved})
    params = request.query_params
    return LeaderboardPage(session, hardware, family, BoardFilters.from_params(params), page_number(params))


Page = Annotated[LeaderboardPage, Depends(get_page)]


@router.get("/leaderboards")
def list_leaderboards(request: Request, session: ReadSession, project: str = "") -> HTMLResponse:
    return render(request, "leaderboards/index.html", index=leaderboard_index(session, project[:100]))


@router.get("/leaderboards/{hardware}/{family}")
def show_leaderboard(request: Request, page: Page) -> HTMLResponse:
    return _render(request, page, "board")


@router.get("/leaderboards/{hardware}/{family}/gains")
def show_gains(request: Request, page: Page) -> HTMLResponse:
    """Charts come after the figures: drawing must not keep them waiting."""
    return _render(request, page, "gain_chart")


@router.get("/leaderboards/{hardware}/{family}/leaders")
def show_leaders(request: Request, page: Page) -> HTMLResponse:
    return _render(request, page, "leader_chart")


@router.get("/leaderboards/{hardware}/{family}/standings.csv")
def export_standings(page: Page) -> Response:
    return _csv("standings", standings_csv(page.found.items))


@router.get("/leaderboards/{hardware}/{family}/gains.csv")
def export_gains(page: Page) -> Response:
    return _csv("gains", gains_csv(page.found.items))


@router.get("/leaderboards/{hardware}/{family}/leaders.csv")
def export_leaders(page: Page) -> Response:
    return _csv("leaders", leaders_csv(page.changes))


def _csv(name: str, text: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(text, media_type="text/csv", headers=headers)


def _render(request: Request, page: LeaderboardPage, block: str) -> HTMLResponse:
    is_page = block == "board"
    return render(
        request,
        "leaderboards/board.html",
        block=block,
        address=page.address + page.asked if is_page else None,
        p=page,
        f=page.filters,
        rankings=RANKINGS,
        words=words,
        gain_range=gain_range,
        gain_of=gains.gain_text,
        memory_of=gains.memory_text,
        against_best=against_best,
        told_class=told_class,
        told_head=told,
        most_compared=MOST_COMPARED,
    )
