"""`/api/v1/references`: published figures, those that teams add, and the nearest one to a run or a stack."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.access.roles import Action
from app.errors import NotFound
from app.references.api_models import (
    NearestOut,
    ReferenceChange,
    ReferenceDetailOut,
    ReferenceId,
    ReferenceListOut,
    ReferenceQuery,
)
from app.references.change import By, add_reference, change_reference, number_of, withdraw_reference
from app.references.filters import ReferenceFilters
from app.references.list import find_references, page_of
from app.references.nearest import hold
from app.references.sentences import summary
from app.storage import audit
from app.storage.audit import MAX_AUTHOR, MAX_NOTE
from app.storage.database import read_session
from app.storage.references import find_reference
from app.web.access import acting
from app.web.dependencies import AppEngine, ReadSession
from app.web.problems import documented
from app.web.query_checks import only_these
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["references"])


@router.get("/references", dependencies=[only_these(*ReferenceQuery.model_fields)], responses=documented(422))
def list_references(
    request: Request, session: ReadSession, query: Annotated[ReferenceQuery, Query()]
) -> ReferenceListOut:
    """Published figures that count, newest first. Each is another lab's measurement, and is never ranked with runs."""
    found = find_references(session, ReferenceFilters.from_params(query.filters()))
    return ReferenceListOut.of(page_of(found, query.page, query.page_size), public_address(request))


@router.get("/references/nearest", dependencies=[only_these("run", "stack")], responses=documented(404, 422))
def read_nearest(
    request: Request,
    session: ReadSession,
    run: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Number of the run.")] = None,
    stack: Annotated[str, Query(max_length=64, description="A stack key or its first digits, no run.")] = "",
) -> NearestOut:
    """The claim check: the nearest published figure of the same model and GPU, what differs, and the likely causes."""
    held = hold(session, run=run, stack=stack)
    return NearestOut.of(held, summary(held), public_address(request))


@router.get("/references/{reference_id}", responses=documented(404, 422))
def read_reference_point(request: Request, session: ReadSession, reference_id: ReferenceId) -> ReferenceDetailOut:
    """One published figure, also a withdrawn one, and who did what to it."""
    return _detail(session, reference_id, public_address(request))


@router.post("/references", status_code=201, responses=documented(422))
def add_reference_point(
    request: Request, response: Response, engine: AppEngine, change: ReferenceChange
) -> ReferenceDetailOut:
    """Add a published figure beside those that come with the service. It is recorded with who and when."""
    if not change.project:
        acting.require_everything(request, Action.CONTRIBUTE)
    number = add_reference(engine, change.said(), change.by(), change.project or "")
    response.headers["Location"] = f"/api/v1/references/{number}"
    return _read(engine, number, public_address(request))


@router.patch("/references/{number}", responses=documented(404, 409, 422))
def change_reference_point(
    request: Request, engine: AppEngine, number: ReferenceId, change: ReferenceChange
) -> ReferenceDetailOut:
    """Correct a figure that a team added. Recorded with who, when and what was before."""
    if change.project == "":
        acting.require_everything(request, Action.CONTRIBUTE)
    changed = _number(engine, number)
    change_reference(engine, changed, change.said(), change.by(), change.project)
    return _read(engine, changed, public_address(request))


@router.delete("/references/{number}", responses=documented(404, 422))
def withdraw_reference_point(
    request: Request,
    engine: AppEngine,
    number: ReferenceId,
    author: Annotated[str, Query(max_length=MAX_AUTHOR, description="Who does it, where nobody is logged in.")] = "",
    reason: Annotated[str, Query(max_length=MAX_NOTE, description="Why.")] = "",
) -> ReferenceDetailOut:
    """Withdraw a figure that a team added: it is held against nothing any more. Its address and its record stay."""
    withdrawn = _number(engine, number)
    withdraw_reference(engine, withdrawn, By(acting.author(author), reason))
    return _read(engine, withdrawn, public_address(request))


def _number(engine: Engine, reference_id: str) -> int:
    with read_session(engine) as session:
        return number_of(session, reference_id)


def _read(engine: Engine, number: int, base: str) -> ReferenceDetailOut:
    with read_session(engine) as session:
        return _detail(session, str(number), base)


def _detail(session: Session, reference_id: str, base: str) -> ReferenceDetailOut:
    found = find_reference(session, reference_id)
    if found is None:
        raise NotFound(f"There is no reference point {reference_id[:80]}. The list of them is at /references.")
    events = audit.events(session, "reference", reference_id) if found.entered else ()
    return ReferenceDetailOut.detail(found, events, base)
