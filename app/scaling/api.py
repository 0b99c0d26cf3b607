"""`GET /api/v1/scaling`: one workload at several sizes, as JSON."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse

from app.domain.report.values import storable
from app.scaling.export import scaling_values
from app.scaling.page import scaling_page
from app.scaling.query import ScalingQuery
from app.web.dependencies import ReadSession
from app.web.problems import documented

router = APIRouter(prefix="/api/v1", tags=["leaderboards"])


@router.get("/scaling", response_class=JSONResponse, responses=documented(422))
def read_scaling(
    *,
    session: ReadSession,
    project: Annotated[str, Query(max_length=100)] = "",
    hardware: Annotated[str, Query(max_length=100, description="As in the address of a leaderboard: `h100`.")] = "",
    family: Annotated[str, Query(max_length=100, description="As in its address: `qwen3-30b-a3b`.")] = "",
    container: Annotated[
        str, Query(max_length=500, description="Without it the one that ran last; `unknown`: where nobody says it.")
    ] = "",
    kind: Annotated[str, Query(description="weak, strong, sequence_batch or sequence_tokens.")] = "",
    dispatcher: Annotated[str, Query(description="`unknown`: where nobody says it.")] = "",
) -> JSONResponse:
    """Efficiency against the smallest size. Where these names fit several workloads, `offers` says which there are."""
    params = {"project": project, "hardware": hardware, "family": family, "container": container}
    query = ScalingQuery.from_params(params | {"kind": kind, "dispatcher": dispatcher})
    return JSONResponse(storable(scaling_values(scaling_page(session, query))))
