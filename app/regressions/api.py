"""Regressions at `/api/v1/regressions`: the triage list, one regression, and changes of one or several."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Literal, Self

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session

from app.access.audit import EventOut
from app.domain.access.principal import Action
from app.domain.performance.cost import Cost
from app.domain.verdict.regression import Regression, RegressionMember
from app.domain.verdict.regression_text import summarize
from app.domain.verdict.triage import Proposal, State
from app.pipeline.regressions import costs_of
from app.regressions.commands import (
    MAX_AT_ONCE,
    MAX_NAME,
    MAX_NOTE,
    MAX_URL,
    Answer,
    RegressionChange,
    Seen,
    change_regressions,
)
from app.regressions.queries import (
    REGRESSION_COLUMNS,
    RegressionQuery,
    find_regressions,
    regression_rows,
)
from app.storage import audit
from app.storage.audit import AuditEvent
from app.storage.database import ListPage, read_session
from app.storage.regressions import get_regression
from app.storage.tables import utc_now
from app.web.access_rule import requires
from app.web.dependencies import (
    LARGEST_NUMBER,
    ApiValue,
    AppEngine,
    ListOut,
    ReadSession,
    RegressionId,
    api_router,
)
from app.web.errors import as_content, documented
from app.web.identity import Author, author_field
from app.web.lists import table_answer, table_format
from app.web.templating import public_address

# --- The API's types of regressions, which `docs/api.md` describes. Fields may be added but not changed.

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
    usual: float | None = Field(description="Mean level before, in the unit of the metric: ms or GiB.")
    slow: float | None = Field(description="Mean level of its slow runs.")
    delta_pct: float | None = Field(
        description="From `usual` to `slow`: its size. Until both are in the history, that of the first run."
    )
    first_delta_pct: float | None = Field(description="Change of the first slow run alone.")
    newest_pct: float | None = Field(
        description="Change of its newest run alone against `usual`; null if it has no figure."
    )
    is_once: bool = Field(description="Only one run of its job shows the slowdown; its node may have been slow.")
    gpu_hours_per_day: float | None = Field(description="Null if unknown; `costs` of one regression has the reason.")
    proposal: Literal["", "fixed"] = Field(description="State that the service proposes for this stack.")
    continued_by: int | None = Field(description="First run of the stack in which its job continues; else null.")
    joined_at: datetime

    @classmethod
    def of(cls, member: RegressionMember, base: str, continued_by: int | None) -> Self:
        # A stack whose job moved is closed like a fixed one, but nothing was fixed.
        proposal = "" if continued_by else member.proposal
        url = f"{base}/runs/{member.run_id}"
        return cls.from_values(member, run_url=url, proposal=proposal, continued_by=continued_by)


class SummaryOut(ApiValue):
    """What the page of a regression, reports and messages state about it."""

    state_text: str = Field(description="The state that pages name: `recovered` or `idle` with a proposal.")
    change: str = Field(description="Its size in words.")
    delta_pct: float | None = Field(description="The same in percent: `worst_delta_pct`.")
    gpu_hours_per_day: float | None
    jobs: int = Field(description="Jobs that give it its size.")
    since_run: int | None = Field(description="First slow run of its counted jobs.")
    recovered_run: int | None = Field(description="Run since which it has recovered.")
    last_run: int | None = Field(description="Newest run of its slow jobs, if nothing is lost now.")
    text: str = Field(description="The lead of its page.")


class RegressionOut(ApiValue):
    """A regression. `gpu_hours_per_day` covers all members."""

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
        description="A state that the service proposes: `fixed` if runs are back, `stale` if its jobs no longer run."
    )
    proposal_run_id: int | None = Field(description="First run that is back, for the proposal `fixed`; else null.")
    worst_delta_pct: float | None = Field(
        description="Its size, which pages name: the largest `delta_pct` of the members that are still slow. One with "
        "`is_once`, or with less than half of its change left in `newest_pct`, counts only if there is no other."
    )
    gpu_hours_per_day: float | None
    summary: SummaryOut
    members: list[SlowerStackOut]

    @classmethod
    def of(cls, regression: Regression, base: str, **others: object) -> Self:
        moves = {old.run_id: new.run_id for job in regression.jobs for old, new in pairwise(job.stacks)}
        members = [SlowerStackOut.of(member, base, moves.get(member.run_id)) for member in regression.members]
        url, summary = f"{base}/regressions/{regression.id}", summarize(regression)
        return cls.from_values(regression, **others, url=url, summary=summary, members=members)


class RegressionListOut(ListOut[RegressionOut]):
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
    nothing_because: str = Field(description="Why it no longer costs anything; empty otherwise.")


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
    id: int = Field(ge=1, le=LARGEST_NUMBER)
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


# --- The triage list, one regression, and changes of one or several.

router = api_router("regressions")


@router.get("/regressions", response_model=RegressionListOut, responses=documented(406, 422, ok=as_content("text/csv")))
@requires(Action.READ)
def list_regressions(
    request: Request, engine: AppEngine, session: ReadSession, query: Annotated[RegressionQuery, Query()]
) -> Response | RegressionListOut:
    """List regressions, by default of every state and the most costly first. Unknown costs come last.

    CSV and Parquet have all regressions, not one page.
    """
    RegressionQuery.check_names(request.query_params)
    chosen = table_format(request)
    if chosen != "json":
        return table_answer(chosen, REGRESSION_COLUMNS, regression_rows(engine, query), "regressions")
    return RegressionListOut.of(find_regressions(session, query), public_address(request))


@router.get("/regressions/{regression_id}", responses=documented(404, 422))
@requires(Action.READ, of="regression")
def read_regression(request: Request, session: ReadSession, regression_id: RegressionId) -> RegressionDetailOut:
    """Return one regression: its stacks, its cost with the factors, and its history."""
    return _detail(session, regression_id, public_address(request))


@router.patch("/regressions/{regression_id}", responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE, of="regression")
def change_regression(
    request: Request, engine: AppEngine, regression_id: RegressionId, change: OneChangeIn
) -> RegressionDetailOut:
    """Change state, assignee or link, add a note, or answer a proposal. Recorded with author, time and previous
    values."""
    change_regressions(engine, [Seen(regression_id, change.changed_at)], change.change())
    with read_session(engine) as session:
        return _detail(session, regression_id, public_address(request))


@router.patch("/regressions", responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE)
def change_many_regressions(request: Request, engine: AppEngine, change: ManyChangesIn) -> ManyChangedOut:
    """Apply the same change to several regressions, all or none."""
    seen = change.seen()
    changed = change_regressions(engine, seen, change.change())
    return ManyChangedOut(
        changed=len(changed), items=_read(engine, [regression.id for regression in seen], public_address(request))
    )


def _read(engine: Engine, ids: Sequence[int], base: str) -> list[RegressionOut]:
    with read_session(engine) as session:
        return [RegressionOut.of(get_regression(session, number), base) for number in dict.fromkeys(ids)]


def _detail(session: Session, regression_id: int, base: str) -> RegressionDetailOut:
    regression = get_regression(session, regression_id)
    events = list(reversed(audit.events(session, "regression", regression_id)))
    return detail_out(regression, costs_of(session, regression.id, utc_now()), events, base)
