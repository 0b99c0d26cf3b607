"""Types of the API's regressions; `docs/api.md` describes them. Fields may be added but not changed."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import Path
from pydantic import BaseModel, Field

from app.access.audit import EventOut
from app.domain.performance.cost import Cost
from app.domain.verdict.triage import Proposal, State
from app.regressions.commands import MAX_AT_ONCE, MAX_NAME, MAX_NOTE, MAX_URL, Answer, RegressionChange, Seen
from app.regressions.regression import Regression, RegressionMember
from app.storage.audit import AuditEvent
from app.storage.database import ListPage
from app.web.dependencies import ApiValue
from app.web.identity import Author, author_field

RegressionId = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of the regression.")]
Metric = Literal["step_time_ms", "peak_memory_gib", "lm_loss"]


class SlowerStackOut(ApiValue):
    """One slower stack."""

    run_id: int = Field(description="The first slow run.")
    run_url: str
    run_name: str
    branch: str
    commit: str
    ordered_at: datetime = Field(description="History position of the run.")
    quarantine: str = Field(description="Why the run does not count; empty if it does.")
    title: str = Field(description="Name of the stack.")
    stack_key: str
    config_key: str
    model: str | None
    gpu: str | None
    gpus: int | None
    dispatcher: str | None
    usual: float | None = Field(description="Level before, in the unit of the metric: ms or GiB.")
    slow: float | None
    delta_pct: float | None = Field(description="Change between the levels of the history, once available.")
    first_delta_pct: float | None = Field(description="Change measured in the first slow run.")
    gpu_hours_per_day: float | None = Field(description="Null if unknown; `costs` of one regression has the reason.")
    proposal: Literal["", "fixed"] = Field(description="State that the service proposes for this stack.")
    joined_at: datetime

    @classmethod
    def of(cls, member: RegressionMember, base: str) -> Self:
        return cls.from_values(member, run_url=f"{base}/runs/{member.run_id}")


class RegressionOut(ApiValue):
    """A regression. `gpu_hours_per_day` covers all members, `worst_delta_pct` those that have not recovered, if any."""

    id: int
    url: str = Field(description="Page of the regression.")
    project: str
    kind: Literal["run", "upgrade"] = Field(description="Opened by the verdict of a run, or by an upgrade.")
    state: State
    shown_state: str = Field(
        description="The state, or `fix claimed`: a user marked it fixed, and no run has confirmed it yet."
    )
    metric: Metric
    cause: str = Field(description="A sentence.")
    axis: str = Field(description="Axis of the cause; empty if unknown.")
    assignee: str
    note: str = Field(description="Newest note.")
    external_url: str
    opened_at: datetime
    changed_at: datetime = Field(description="Send it with a change to detect concurrent changes.")
    proposal: Proposal = Field(
        description="A state that the service proposes: `fixed` if runs are back, `stale` if its stacks no longer run."
    )
    proposal_run_id: int | None = Field(description="First run that is back, for the proposal `fixed`; else null.")
    worst_delta_pct: float | None
    gpu_hours_per_day: float | None
    members: list[SlowerStackOut]

    @classmethod
    def of(cls, regression: Regression, base: str, **others: object) -> Self:
        members = [SlowerStackOut.of(member, base) for member in regression.members]
        return cls.from_values(regression, **others, url=f"{base}/regressions/{regression.id}", members=members)


class RegressionListOut(ApiValue):
    items: list[RegressionOut]
    total: int
    page: int
    page_size: int
    pages: int

    @classmethod
    def of(cls, page: ListPage[Regression], base: str) -> Self:
        return cls.from_values(page, items=[RegressionOut.of(item, base) for item in page.items])


class CostOut(BaseModel):
    """GPU-hours per day of one member: the product of the factors."""

    run_id: int
    gpu_hours_per_day: float | None
    runs_per_day: float | None = Field(description="Over the last 14 days; after an upgrade, of both sides together.")
    extra_ms_per_step: float | None
    steps_per_run: int | None
    gpus: int | None
    unknown_because: str
    nothing_because: str = Field(description="Why it costs nothing any more; empty otherwise.")


class RegressionDetailOut(RegressionOut):
    costs: list[CostOut] = Field(description="Factors of each member's cost.")
    events: list[EventOut] = Field(description="Notes and changes, oldest first.")


class ChangeIn(BaseModel, extra="forbid"):
    """Omitted fields stay unchanged."""

    author: Author = author_field("Author of the change.", MAX_NAME)
    state: State | None = None
    assignee: str | None = Field(None, max_length=MAX_NAME, description='Assignee; "" unassigns.')
    note: str = Field("", max_length=MAX_NOTE, description="Added to the discussion; required for `expected`.")
    external_url: str | None = Field(None, max_length=MAX_URL, description="http(s) URL of an external issue.")
    proposal: Answer | None = Field(None, description="Answer to the proposal.")
    quarantine: bool = Field(
        False, description="With `invalid`: also quarantine the slow runs; the note is the reason."
    )

    def change(self) -> RegressionChange:
        return RegressionChange(
            author=self.author, state=self.state, assignee=self.assignee, note=self.note,
            external_url=self.external_url, answer=self.proposal, quarantine=self.quarantine,
        )  # fmt: skip


class OneChangeIn(ChangeIn):
    changed_at: datetime | None = Field(
        None, description="`changed_at` as read. After a concurrent change nothing is changed, and 409 names the user."
    )


class SeenIn(BaseModel, extra="forbid"):
    id: int = Field(ge=1, le=2**31 - 1)
    changed_at: datetime | None = None


class ManyChangesIn(ChangeIn):
    regressions: list[SeenIn] = Field(min_length=1, max_length=MAX_AT_ONCE, description="All or none are changed.")

    def seen(self) -> list[Seen]:
        return [Seen(item.id, item.changed_at) for item in self.regressions]


class ManyChangedOut(BaseModel):
    changed: int = Field(description="Number of regressions that changed; the others had this state already.")
    items: list[RegressionOut]


def detail_out(
    regression: Regression, costs: dict[int, Cost], events: list[AuditEvent], base: str
) -> RegressionDetailOut:
    factors = [{"run_id": run_id, **asdict(cost)} for run_id, cost in costs.items()]
    return RegressionDetailOut.of(regression, base, costs=factors, events=events)
