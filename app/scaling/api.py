"""`GET /api/v1/scaling`: one workload at several sizes, as JSON."""

from dataclasses import fields
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse

from app.domain.report.values import storable
from app.scaling.export import scaling_values
from app.scaling.page import scaling_page
from app.scaling.query import ScalingQuery, check_names
from app.web.dependencies import ReadSession
from app.web.problems import documented
from app.web.query_checks import only_these

router = APIRouter(prefix="/api/v1", tags=["leaderboards"])


@router.get(
    "/scaling",
    response_class=JSONResponse,
    dependencies=[only_these(*(field.name for field in fields(ScalingQuery)))],
    responses=documented(404, 422),
)
def read_scaling(
    *,
    session: ReadSession,
    project: Annotated[str, Query(max_length=100)] = "",
    hardware: Annotated[str, Query(max_length=100, description="`h100`, or as it is shown: `H100`.")] = "",
    family: Annotated[
        str, Query(max_length=100, description="`qwen3-30b-a3b`, or as it is shown: `Qwen3-30B-A3B`.")
    ] = "",
    container: Annotated[
        str,
        Query(max_length=500, description="Without it the one with the most sizes; `unknown`: where nobody says it."),
    ] = "",
    kind: Annotated[str, Query(description="weak, strong, sequence_batch or sequence_tokens.")] = "",
    dispatcher: Annotated[str, Query(description="`unknown`: where nobody says it.")] = "",
) -> JSONResponse:
    """Efficiency against the smallest size. Where these names fit several workloads, `offers` says which there are."""
    params = {"project": project, "hardware": hardware, "family": family, "container": container}
    query = ScalingQuery.from_params(params | {"kind": kind, "dispatcher": dispatcher})
    check_names(session, query)
    return JSONResponse(storable(scaling_values(scaling_page(session, query))))
