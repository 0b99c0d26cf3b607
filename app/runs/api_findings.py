"""What the API says of a run beside its figures: what failed, what ran, what took the time, what to supply."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.contract.fields import FIELDS
from app.domain.contract.fields.environment import PREFIX
from app.domain.run import Source, Value


class FromDomain(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class StatedOut(FromDomain):
    value: Value
    source: Source
    detail: str = ""


class EvidenceOut(FromDomain):
    """A line of the run's log number `file` (from 0, among its logs)."""

    file: int
    line: int
    text: str


class FailureOut(FromDomain):
    """The root cause of a chain comes first (docs/failures.md)."""

    kind: str
    title: str
    explanation: str
    advice: str = Field(description="What to do.")
    iteration: int | None
    rank: int | None
    evidence: list[EvidenceOut]


class ActivityOut(FromDomain):
    """A field as it was asked for and as it ran; null where nobody says."""

    requested: StatedOut | None
    active: StatedOut | None
    agrees: bool | None


class AvailabilityOut(FromDomain):
    dispatcher: str
    available: bool
    container: str | None
    evidence: list[EvidenceOut]


class TimerOut(FromDomain):
    name: str
    share_of_step: float = Field(description="0 to 1.")
    median_ms: float
    max_over_min: float | None = Field(description="Slowest over fastest rank.")


class LineExampleOut(FromDomain):
    """Lines that were seen and not understood: how many of the kind, and the first of them."""

    kind: str
    count: int
    example: str
    line: int
    file: int


class SliceOut(FromDomain):
    """One start of the job; iterations as printed, inclusive."""

    file: str
    kind: Literal["start", "resume", "retry"]
    first_iteration: int
    last_iteration: int
    first_row: int
    crash_loop: bool
    iterations_kept: int


class AmendmentOut(FromDomain):
    field: str
    value: Value
    removed: bool = Field(description="True when this took a correction back.")
    old_value: Value
    old_source: str = Field(description="Who stated the old value; empty when it was unknown.")
    author: str
    note: str
    created_at: datetime


class UnknownFieldOut(BaseModel):
    """A contract field that nobody stated and no log shows, and the ways to supply it."""

    name: str
    role: Literal["stack", "config", "info"] = Field(description="stack: figures that rest on it are provisional.")
    group: str
    meaning: str
    unit: str
    choices: list[str]
    meta: str = Field(description="Entry of `meta`, and of PATCH /api/v1/runs/{id}/contract.")
    megatron_lm: str = Field(description="Flag of Megatron-LM that states it; empty when there is none.")
    bridge: str = Field(description="Its place in a Megatron-Bridge configuration; empty when there is none.")

    @classmethod
    def of(cls, name: str) -> Self:
        known = FIELDS[name]
        return cls(
            name=name,
            role=known.role,
            group=known.group,
            meaning=known.meaning,
            unit=known.unit,
            choices=list(known.choices),
            meta=f"env.{name.removeprefix(PREFIX)}" if name.startswith(PREFIX) else name,
            megatron_lm=known.megatron_lm,
            bridge=known.bridge,
        )


def unknown_fields(names: Sequence[str]) -> list[UnknownFieldOut]:
    """In the order of what they hold up: fields of the stack key first."""
    found = [UnknownFieldOut.of(name) for name in names if name in FIELDS]
    return sorted(found, key=lambda unknown: unknown.role != "stack")
