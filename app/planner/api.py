"""`/api/v1/plan`: feasible layouts as JSON. Only GET: a plan changes nothing, and its address can be shared."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.planner.api_models import PlanOut, PlanQuery
from app.planner.planned import nearby, plan_of
from app.web.dependencies import ReadSession
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["plan"])


@router.get("/plan", responses=documented(422))
def read_plan(request: Request, session: ReadSession, query: Annotated[PlanQuery, Query()]) -> PlanOut:
    """Feasible layouts of a model over GPUs, best first; a layout that is stated in full is judged. 422 names each
    field that cannot be understood.
    """
    values = query.values
    plan = plan_of(values)
    return PlanOut.of(plan, values, nearby(session, plan), public_address(request))
