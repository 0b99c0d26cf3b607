"""What the API says of published figures, in types (`docs/api.md` in prose). Additions are welcome, changes are not."""

from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.domain.contract.fields import FIELDS
from app.domain.reference_points import Cause, ReferenceDifference, ReferencePoint
from app.domain.run import Value
from app.errors import FieldError, InvalidChange
from app.references.change import FACTS, By, Said
from app.references.list import ReferencePage
from app.references.nearest import Held
from app.storage.audit import MAX_AUTHOR, MAX_NOTE, AuditEvent
from app.storage.references import Reference
from app.web.access import acting

ReferenceId = Annotated[str, Path(max_length=200, description="Of one that a team added its number, else its name.")]


class ReferenceQuery(BaseModel):
    """Filters of the list; an empty one means any."""

    q: str = Field("", description="Words that must all occur: in the source, the note or the contract.")
    model: str = Field("", description="Name of the model family.")
    gpu: str = ""
    precision: str = ""
    routing: str = Field("", description="Routing mode.")
    kind: str = Field("", description="`own`, `release_table`, `verification_card`, `model_zoo`, `guide`, ...")
    project: str = Field("", description="What teams added for it or for all, beside what comes with the service.")
    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(50, ge=1, le=500)

    def filters(self) -> dict[str, str]:
        return {name: value for name, value in self.model_dump().items() if isinstance(value, str)}


class EnteredOut(BaseModel):
    """By whom, for whom and when. `withdrawn_at` null: it counts."""

    project: str | None = Field(description="null: offered to every project.")
    added_by: str
    added_at: datetime
    changed_at: datetime = Field(description="What a change must have seen.")
    withdrawn_at: datetime | None


class ReferenceOut(BaseModel):
    """A published figure: another lab's measurement, never ranked with runs."""

    id: str
    url: str = Field(description="Its page, for people.")
    label: str
    kind: str
    family: str = Field(description="The model family.")
    contract: dict[str, Value] = Field(description="As far as the publisher states it; what is left out is unknown.")
    tokens_per_s_per_gpu: float | None
    tflops_per_gpu: float | None
    step_time_ms: float | None
    rounded: bool = Field(description="Written as about so much.")
    measured_by: str
    source: str
    source_url: str
    date: str = Field(description="Of the publication: a day, or a month where no more is known.")
    window: str = Field(description="Iterations that it is a mean of; empty when not stated.")
    note: str
    entered: EnteredOut | None = Field(description="null: it comes with the service.")

    @classmethod
    def of(cls, one: Reference, base: str) -> Self:
        return cls.model_validate(_fields(one, base))


class EventOut(BaseModel):
    """What somebody did to it. `before` and `after` hold what changed, by name."""

    at: datetime
    who: str
    action: str
    before: dict[str, Any]
    after: dict[str, Any]
    note: str

    @classmethod
    def of(cls, event: AuditEvent) -> Self:
        return cls.model_validate(event, from_attributes=True)


class ReferenceDetailOut(ReferenceOut):
    events: list[EventOut] = Field(description="Who did what, oldest first; empty where it comes with the service.")

    @classmethod
    def detail(cls, one: Reference, events: tuple[AuditEvent, ...], base: str) -> Self:
        return cls.model_validate(_fields(one, base) | {"events": [EventOut.of(event) for event in reversed(events)]})


class ReferenceListOut(BaseModel):
    items: list[ReferenceOut]
    total: int
    page: int
    page_size: int
    pages: int

    @classmethod
    def of(cls, found: ReferencePage, base: str) -> Self:
        items = [ReferenceOut.of(one, base) for one in found.items]
        return cls(items=items, total=found.total, page=found.page, page_size=found.size, pages=found.pages)


class ReferenceChange(BaseModel):
    """What is left out stays as it is, and null takes it away; so does null for a contract field."""

    model_config = ConfigDict(extra="forbid")

    author: str = Field("", max_length=MAX_AUTHOR, description="Who says it, where nobody is logged in.")
    reason: str = Field("", max_length=MAX_NOTE, description="Why it is changed; kept in its record.")
    seen: datetime | None = Field(None, description="Its `changed_at` when it was read; else 409 is never answered.")
    project: str | None = Field(None, max_length=100, description="The project it is offered to; empty for all.")
    contract: dict[str, Any] = Field(
        default_factory=dict, description="By contract field. A new one needs model, gpu, gpus and precision."
    )
    measured_by: str | None = None
    source: str | None = None
    url: str | None = Field(None, description="Where it can be read.")
    date: str | None = Field(None, description="A day or a month: 2026-08-15, 2026-08.")
    window: str | None = None
    note: str | None = None
    rounded: bool | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    step_time_ms: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _point_to_the_contract(cls, sent: Any) -> Any:
        """Raises InvalidChange: that they are unknown here would not say where they belong."""
        inside = (
            [name for name in sent if name in FIELDS and name not in cls.model_fields] if isinstance(sent, dict) else []
        )
        if inside:
            errors = tuple(FieldError(name, "is a contract field: it belongs in `contract`") for name in inside)
            raise InvalidChange("Put what is known of the job into `contract`. Nothing was changed.", errors)
        return sent

    def said(self) -> Said:
        return Said(self.contract, {name: getattr(self, name) for name in FACTS if name in self.model_fields_set})

    def by(self) -> By:
        return By(acting.author(self.author), self.reason, self.seen)


class DifferenceOut(BaseModel):
    field: str
    ours: Value
    theirs: Value
    known: bool = Field(description="false: a side does not state it, so it may differ.")

    @classmethod
    def of(cls, one: ReferenceDifference) -> Self:
        return cls(field=one.field, ours=one.ours, theirs=one.theirs, known=one.is_known)


class CauseOut(BaseModel):
    field: str = Field(description="The contract field it rests on, or what it is about.")
    sentence: str

    @classmethod
    def of(cls, cause: Cause) -> Self:
        return cls(field=cause.field, sentence=cause.sentence)


class OursOut(BaseModel):
    run_id: int = Field(description="The run, or the newest one behind the best result of the stack.")
    stack_key: str
    dispatcher: str
    tokens_per_s_per_gpu: float | None
    tflops_per_gpu: float | None
    step_time_ms: float | None


class NearestOut(BaseModel):
    """The claim check. `reference` null: nobody published a figure of this model on this GPU."""

    ours: OursOut
    reference: ReferenceOut | None
    summary: str
    more_pct: dict[str, float] = Field(
        description="Ours is that much more, by figure; left out where they are not comparable."
    )
    differences: list[DifferenceOut]
    causes: list[CauseOut] = Field(description="What the gap may be made of, most telling first.")

    @classmethod
    def of(cls, held: Held, summary: str, base: str) -> Self:
        found, ours = held.nearest, held.ours
        return cls(
            ours=OursOut(
                run_id=ours.run_id,
                stack_key=ours.stack_key,
                dispatcher=ours.dispatcher,
                tokens_per_s_per_gpu=ours.figures.tokens_per_s_per_gpu,
                tflops_per_gpu=ours.figures.tflops_per_gpu,
                step_time_ms=ours.figures.step_time_ms,
            ),
            reference=held.reference and ReferenceOut.of(held.reference, base),
            summary=summary,
            more_pct=dict(found.more_pct) if found else {},
            differences=[DifferenceOut.of(one) for one in (found.differences if found else ())],
            causes=[CauseOut.of(cause) for cause in (found.causes if found else ())],
        )


def _fields(one: Reference, base: str) -> dict[str, Any]:
    point: ReferencePoint = one.point
    plain = ("label", "kind", "rounded", "measured_by", "source", "date", "window", "note")
    entered = one.entered
    return {
        "id": one.id,
        "url": f"{base}/references/{one.id}",
        "family": point.family.name,
        "contract": dict(point.contract),
        **point.figures,
        **{name: getattr(point, name) for name in plain},
        "source_url": point.url,
        "entered": entered
        and EnteredOut(
            project=entered.project or None,
            added_by=entered.added_by,
            added_at=entered.added_at,
            changed_at=entered.changed_at,
            withdrawn_at=entered.withdrawn_at,
        ),
    }
