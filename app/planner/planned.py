"""A plan from what was asked: what the page and the API share."""

from collections.abc import Mapping

from sqlmodel import Session

from app.domain.planning import INPUTS, InvalidPlan, Plan, UsedLayout, make_plan, nearest_layouts, read_request
from app.errors import FieldError, InvalidQuery
from app.planner.queries import used_layouts

_REFUSED = "This cannot be planned as it is asked. Correct what is named, and ask again."


def asked(params: Mapping[str, str]) -> dict[str, str]:
    """The planner's inputs of a query string; anything else is refused by `plan_of`."""
    return {name: text.strip() for name, text in params.items()}


def plan_of(values: Mapping[str, str]) -> Plan:
    """Raises InvalidQuery with a sentence for each field."""
    try:
        return make_plan(read_request(values))
    except InvalidPlan as error:
        errors = tuple(FieldError(name, why) for name, why in error.fields.items())
        raise InvalidQuery(_REFUSED, errors) from None


def nearby(session: Session, plan: Plan) -> tuple[tuple[UsedLayout, tuple[str, ...]], ...]:
    """Layouts that were used for the same model, nearest first."""
    return nearest_layouts(plan.request, used_layouts(session, plan.request))


def is_asked(values: Mapping[str, str]) -> bool:
    """False for an empty form."""
    return any(values.get(name) for name in INPUTS) or any(name not in INPUTS for name in values)
