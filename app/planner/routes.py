"""The planner's page. All of a plan is in its address, so that it can be shared."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from app.domain.planning import INPUTS, Plan, UsedLayout
from app.domain.planning.nearby import LAYOUT
from app.errors import InvalidQuery
from app.planner.page import PlanForm, PlanPage, Used, with_degrees
from app.planner.planned import asked, is_asked, nearby, plan_of
from app.web.dependencies import ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False)


@router.get("/plan")
def show_plan(request: Request, session: ReadSession) -> HTMLResponse:
    values = asked(request.query_params)
    if not is_asked(values):
        return render(request, "planner/plan.html", p=PlanPage(PlanForm({"mbs": "1", "precision": "bf16"})), unknown=())
    try:
        plan = plan_of(values)
    except InvalidQuery as error:
        errors = {one.field: one.message for one in error.errors}
        unknown = tuple(name[:60] for name in errors if name not in INPUTS)
        page = PlanPage(PlanForm(values, errors))
        return render(request, "planner/plan.html", status=422, p=page, unknown=unknown)
    page = PlanPage(PlanForm(values), plan, _used(session, plan, values))
    return render(request, "planner/plan.html", p=page, unknown=())


def _used(session: ReadSession, plan: Plan, values: dict[str, str]) -> tuple[Used, ...]:
    found = nearby(session, plan)
    return tuple(Used(one, differs, with_degrees(values, _stated(one))) for one, differs in found)


def _stated(one: UsedLayout) -> dict[str, str]:
    """The inputs that state its layout; a layout string says VPP by itself."""
    names = [name for name in LAYOUT if name != "vpp" or not one.values.get("pp_layout")]
    return {name: str(one.values[name]) for name in names if one.values.get(name) is not None}
