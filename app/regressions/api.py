"""`/api/v1/regressions`: the triage list, one regression, and what people do about one or several."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy import Engine
from sqlmodel import Session

from app.regressions.api_models import (
    ManyChangedOut,
    ManyChangesIn,
    OneChangeIn,
    RegressionDetailOut,
    RegressionId,
    RegressionListOut,
    RegressionOut,
    RegressionQuery,
    detail_out,
)
from app.regressions.costs import costs_of
from app.regressions.filters import RegressionFilters
from app.regressions.queries import find_regressions, get_regression
from app.regressions.triage import Seen, change_regressions
from app.storage import audit
from app.storage.database import read_session
from app.storage.tables import utc_now
from app.web.dependencies import AppEngine, ReadSession
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["regressions"])


@router.get("/regressions", responses=documented(422))
def list_regressions(
    request: Request, session: ReadSession, query: Annotated[RegressionQuery, Query()]
) -> RegressionListOut:
    """Regressions of every state, the most costly first unless asked otherwise; unknown costs come last."""
    filters = RegressionFilters.from_params(query.filters())
    return RegressionListOut.of(
        find_regressions(session, filters, query.page, query.page_size), public_address(request)
    )


@router.get("/regressions/{regression_id}", responses=documented(404, 422))
def read_regression(request: Request, session: ReadSession, regression_id: RegressionId) -> RegressionDetailOut:
    """One regression: its stacks, what it costs and how that number was made, and all that was done about it."""
    return _detail(session, regression_id, public_address(request))


@router.patch("/regressions/{regression_id}", responses=documented(404, 409, 422))
def change_regression(
    request: Request, engine: AppEngine, regression_id: RegressionId, change: OneChangeIn
) -> RegressionDetailOut:
    """Change state, assignee or link, add a note, or answer a proposal. Recorded with who, when and what was before."""
    change_regressions(engine, [Seen(regression_id, change.changed_at)], change.change())
    with read_session(engine) as session:
        return _detail(session, regression_id, public_address(request))


@router.patch("/regressions", responses=documented(404, 409, 422))
def change_many_regressions(request: Request, engine: AppEngine, change: ManyChangesIn) -> ManyChangedOut:
    """The same change of several: all of them, or none when one cannot be changed so."""
    seen = change.seen()
    changed = change_regressions(engine, seen, change.change())
    return ManyChangedOut(changed=changed, items=_read(engine, [one.id for one in seen], public_address(request)))


def _read(engine: Engine, ids: Sequence[int], base: str) -> list[RegressionOut]:
    with read_session(engine) as session:
        return [RegressionOut.of(get_regression(session, one), base) for one in dict.fromkeys(ids)]


def _detail(session: Session, regression_id: int, base: str) -> RegressionDetailOut:
    found = get_regression(session, regression_id)
    events = list(reversed(audit.events(session, "regression", regression_id)))
    return detail_out(found, costs_of(session, found, utc_now()), events, base)
