"""Feasible layouts of a model over GPUs, by the identities of both meshes of Parallel Folding.

read_request(texts) -> PlanRequest          what is asked, checked
make_plan(request) -> Plan                  layouts best first, a given one judged, why others are out
spelled(request, layout) -> Spelled         flags of Megatron-LM and overrides of Megatron-Bridge
nearest_layouts(request, used)              layouts that somebody ran for the same model
"""

from app.domain.planning.constraints import CONSTRAINTS, Constraint, Violation, judge
from app.domain.planning.layout import Layout
from app.domain.planning.nearby import UsedLayout, nearest_layouts
from app.domain.planning.plan import Offer, Plan, make_plan
from app.domain.planning.request import INPUTS, InvalidPlan, PlanRequest, read_request
from app.domain.planning.spelled import Spelled, spelled

__all__ = [
    "CONSTRAINTS",
    "INPUTS",
    "Constraint",
    "InvalidPlan",
    "Layout",
    "Offer",
    "Plan",
    "PlanRequest",
    "Spelled",
    "UsedLayout",
    "Violation",
    "judge",
    "make_plan",
    "nearest_layouts",
    "read_request",
    "spelled",
]
