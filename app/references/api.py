"""Reference points at `/api/v1/references`: list, add, correct, withdraw, and find the nearest one."""

from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field, model_validator
from sqlalchemy import Engine
from sqlmodel import Session

from app.access.audit import EventOut
from app.domain.access.principal import Action
from app.domain.contract.fields import FIELDS
from app.domain.references.nearest import Cause, ReferenceDifference
from app.domain.run import Value
from app.errors import FieldError, InvalidChange, NotFound
from app.references.commands import (
    FACTS,
    ReferenceAuthor,
    ReferenceStatement,
    add_reference,
    change_reference,
    number_of,
    withdraw_reference,
)
from app.references.queries import (
    ReferenceComparison,
    ReferenceQuery,
    compare_with_references,
    find_references,
    reference_table,
    summary,
)
from app.storage import audit
from app.storage.audit import MAX_AUTHOR, MAX_NOTE, AuditEvent
from app.storage.database import ListPage, read_session
from app.storage.references import Reference, find_reference
from app.web import identity
from app.web.access_rule import requires
from app.web.dependencies import LARGEST_NUMBER, ApiValue, AppEngine, ListOut, ReadSession, api_router
from app.web.errors import as_content, documented
from app.web.lists import only_parameters, table_answer, table_format
from app.web.templating import public_address

# --- Types of the API's reference points; `docs/api.md` describes them. Fields may be added but not changed.

ReferenceId = Annotated[str, Path(max_length=200, description="The number of a team's figure, else its name.")]


class EnteredOut(ApiValue):
    """Who entered it, for which project and when. `withdrawn_at` null: in use."""

    project: str | None = Field(description="null: offered to every project.")
    added_by: str
    added_at: datetime
    changed_at: datetime = Field(description="Send it as `seen` with a change.")
    withdrawn_at: datetime | None


class ReferenceOut(ApiValue):
    """A published figure of another lab, never ranked with runs."""

    id: str
    url: str = Field(description="Its page.")
    label: str
    kind: str
    family: str = Field(description="The model family.")
    contract: dict[str, Value] = Field(description="Fields that the publisher states; others are unknown.")
    tokens_per_s_per_gpu: float | None
    tflops_per_gpu: float | None
    step_time_ms: float | None
    mfu_pct: float | None = Field(description="`tflops_per_gpu` in percent of the dense peak; null if that is unknown.")
    rounded: bool = Field(description="Published as an approximate number.")
    untuned: bool = Field(description="The publisher says that the job is not tuned for speed.")
    measured_by: str
    source: str
    source_url: str
    date: str = Field(description="Publication date: a day, or a month if only that is known.")
    window: str = Field(description="Iterations averaged; empty if not stated.")
    note: str
    entered: EnteredOut | None = Field(description="null: built-in.")

    @classmethod
    def of(cls, reference: Reference, base: str) -> Self:
        return cls.from_values(reference, reference.point, **_renamed(reference, base))


class ReferenceDetailOut(ReferenceOut):
    events: list[EventOut] = Field(description="Changes, oldest first; empty for built-in figures.")

    @classmethod
    def detail(cls, reference: Reference, events: tuple[AuditEvent, ...], base: str) -> Self:
        return cls.from_values(reference, reference.point, **_renamed(reference, base), events=events[::-1])


class ReferenceListOut(ListOut[ReferenceOut]):
    pages: int

    @classmethod
    def of(cls, page: ListPage[Reference], base: str) -> Self:
        return cls.from_values(page, items=[ReferenceOut.of(item, base) for item in page.items])


class ReferenceChange(BaseModel, extra="forbid"):
    """Omitted fields stay; null removes a value, also of a contract field."""

    author: str = Field("", max_length=MAX_AUTHOR, description="Author, if not logged in.")
    reason: str = Field("", max_length=MAX_NOTE, description="Reason of the change; stored in its history.")
    seen: datetime | None = Field(
        None, description="Its `changed_at` when you read it. Without it, changes are not checked for conflicts (409)."
    )
    project: str | None = Field(None, max_length=100, description="The project it is offered to; empty for all.")
    contract: dict[str, Any] = Field(
        default_factory=dict,
        description="By contract field. A new one needs model, gpu, gpus and precision.",
    )
    measured_by: str | None = None
    source: str | None = None
    url: str | None = Field(None, description="Its address.")
    date: str | None = Field(None, description="A day or a month: 2026-08-15, 2026-08.")
    window: str | None = None
    note: str | None = None
    rounded: bool | None = None
    untuned: bool | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    step_time_ms: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _point_to_the_contract(cls, sent: Any) -> Any:
        """Check the names of figures. Raises InvalidChange with the right place for contract fields."""
        inside = (
            [name for name in sent if name in FIELDS and name not in cls.model_fields] if isinstance(sent, dict) else []
        )
        if inside:
            errors = tuple(FieldError(name, "is a contract field: put it into `contract`") for name in inside)
            raise InvalidChange("Put contract fields into `contract`. Nothing was changed.", errors)
        return sent

    def statement(self) -> ReferenceStatement:
        return ReferenceStatement(
            self.contract, {name: getattr(self, name) for name in FACTS if name in self.model_fields_set}
        )

    def by(self) -> ReferenceAuthor:
        return ReferenceAuthor(identity.author(self.author), self.reason, self.seen)


class ReferenceDifferenceOut(ApiValue):
    field: str
    ours: Value
    theirs: Value
    known: bool = Field(description="false: one side does not state it, so it may differ.")

    @classmethod
    def of(cls, difference: ReferenceDifference) -> Self:
        return cls.from_values(difference, known=difference.is_known)


class OursOut(ApiValue):
    run_id: int = Field(description="The run, or the newest one behind the best result of the stack.")
    runs: int = Field(description="The figures are the mean of so many runs; 0 if the stack has no result.")
    stack_key: str
    dispatcher: str
    tokens_per_s_per_gpu: float | None
    tflops_per_gpu: float | None
    step_time_ms: float | None


class NearestOut(BaseModel):
    """The claim check. `reference` null: there is no published figure of this model on this GPU."""

    ours: OursOut
    reference: ReferenceOut | None
    summary: str
    more_pct: dict[str, float] = Field(
        description="Percent by which ours is higher, by figure; figures that are not comparable are missing."
    )
    differences: list[ReferenceDifferenceOut]
    regression: int | None = Field(description="Open regression that is a part of the gap.")
    rest_pct: dict[str, float] = Field(
        description="`more_pct` at the step time before this regression: the rest of the gap; empty without one."
    )
    causes: list[Cause] = Field(description="Likely causes of the gap, most specific first.")

    @classmethod
    def of(cls, comparison: ReferenceComparison, summary: str, base: str) -> Self:
        nearest, ours, rest = comparison.nearest, comparison.ours, comparison.without_regression
        return cls(
            ours=OursOut.from_values(ours, ours.figures),
            reference=comparison.reference and ReferenceOut.of(comparison.reference, base),
            summary=summary,
            more_pct=dict(nearest.more_pct) if nearest else {},
            differences=[
                ReferenceDifferenceOut.of(difference) for difference in (nearest.differences if nearest else ())
            ],
            regression=comparison.ongoing and comparison.ongoing.id,
            rest_pct=dict(rest.more_pct) if rest else {},
            causes=list(nearest.causes) if nearest else [],
        )


def _renamed(reference: Reference, base: str) -> dict[str, Any]:
    point, entered = reference.point, reference.entered
    return {
        "url": f"{base}/references/{reference.id}",
        "family": point.family.name,
        **point.figures,
        "source_url": point.url,
        "entered": entered and EnteredOut.from_values(entered, project=entered.project or None),
    }


router = api_router("references")


@router.get(
    "/references",
    dependencies=[only_parameters(*ReferenceQuery.names(), "page", "page_size", "format")],
    response_model=ReferenceListOut,
    responses=documented(406, 422, ok=as_content("text/csv")),
)
@requires(Action.READ)
def list_references(
    request: Request, session: ReadSession, query: Annotated[ReferenceQuery, Query()]
) -> Response | ReferenceListOut:
    """List reference points in use, newest first. They are measurements of other labs, never ranked with runs.

    CSV and Parquet (`format`) have all entries, not one page.
    """
    matching = find_references(session, query)
    chosen = table_format(request)
    if chosen != "json":
        columns, rows = reference_table(matching)
        return table_answer(chosen, columns, [rows], "references")
    return ReferenceListOut.of(ListPage.cut(matching, query.page, query.page_size), public_address(request))


@router.get("/references/nearest", dependencies=[only_parameters("run", "stack")], responses=documented(404, 422))
@requires(Action.READ)
def read_nearest(
    request: Request,
    session: ReadSession,
    run: Annotated[int | None, Query(ge=1, le=LARGEST_NUMBER, description="Number of the run.")] = None,
    stack: Annotated[str, Query(max_length=64, description="A stack key or its first digits, instead of a run.")] = "",
) -> NearestOut:
    """Claim check: the nearest published figure of the same model and GPU, what differs, and the likely causes."""
    comparison = compare_with_references(session, run=run, stack=stack)
    return NearestOut.of(comparison, summary(comparison), public_address(request))


@router.get("/references/{reference_id}", responses=documented(404, 422))
@requires(Action.READ)
def read_reference_point(request: Request, session: ReadSession, reference_id: ReferenceId) -> ReferenceDetailOut:
    """Return one reference point, including withdrawn ones, with its changes."""
    return _detail(session, reference_id, public_address(request))


@router.post("/references", status_code=201, responses=documented(422))
@requires(Action.CONTRIBUTE)
def add_reference_point(
    request: Request, response: Response, engine: AppEngine, change: ReferenceChange
) -> ReferenceDetailOut:
    """Add a reference point. Recorded with author and time."""
    if not change.project:
        identity.require_everything(request, Action.CONTRIBUTE)
    number = add_reference(engine, change.statement(), change.by(), change.project or "")
    response.headers["Location"] = f"/api/v1/references/{number}"
    return _read(engine, number, public_address(request))


@router.patch("/references/{number}", responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE, of="reference")
def change_reference_point(
    request: Request, engine: AppEngine, number: ReferenceId, change: ReferenceChange
) -> ReferenceDetailOut:
    """Correct a reference point of a team. Recorded with author, time and previous values."""
    if change.project == "":
        identity.require_everything(request, Action.CONTRIBUTE)
    changed = _number(engine, number)
    change_reference(engine, changed, change.statement(), change.by(), change.project)
    return _read(engine, changed, public_address(request))


@router.delete("/references/{number}", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="reference")
def withdraw_reference_point(
    request: Request,
    engine: AppEngine,
    number: ReferenceId,
    author: Annotated[str, Query(max_length=MAX_AUTHOR, description="Author, if not logged in.")] = "",
    reason: Annotated[str, Query(max_length=MAX_NOTE, description="Why.")] = "",
) -> ReferenceDetailOut:
    """Withdraw a reference point of a team: runs are no longer compared with it. Its URL and history stay."""
    withdrawn = _number(engine, number)
    withdraw_reference(engine, withdrawn, ReferenceAuthor(identity.author(author), reason))
    return _read(engine, withdrawn, public_address(request))


def _number(engine: Engine, reference_id: str) -> int:
    with read_session(engine) as session:
        return number_of(session, reference_id)


def _read(engine: Engine, number: int, base: str) -> ReferenceDetailOut:
    with read_session(engine) as session:
        return _detail(session, str(number), base)


def _detail(session: Session, reference_id: str, base: str) -> ReferenceDetailOut:
    page = find_reference(session, reference_id)
    if page is None:
        raise NotFound(f"Reference point {reference_id[:80]} does not exist. `GET /api/v1/references` lists all.")
    events = audit.events(session, "reference", reference_id) if page.entered else ()
    return ReferenceDetailOut.detail(page, events, base)
