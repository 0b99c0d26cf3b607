"""The tables of judging: verdicts, regressions, pins, who changed what, and the judging that stacks wait for.

No `from __future__ import annotations` here: it breaks SQLModel relationships.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, Column, ForeignKey, Index, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

from app.storage.tables import time_column, utc_now


class VerdictRow(SQLModel, table=True):
    """What was said about a run. One of a run is `current`; which older ones stay: `verdicts.py`. `because`: why made.

    The columns from `decision` on repeat values of `document` (`domain/verdict_document.py`), for lists and for the
    evidence about a knob: `comparison` is the kind of comparability, `attributed_to` the one field that explains it.
    """

    __tablename__ = "verdict"
    __table_args__ = (
        Index("ix_verdict_run_current", "run_id", "current"),
        Index("ix_verdict_attributed", "attributed_to", "comparison"),
        Index("ix_verdict_verdict_version", "verdict_version"),
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), nullable=False))
    current: bool = True
    made_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    because: str = Field(default="", max_length=300)
    decision: str = Field(max_length=20)
    delta_pct: float | None = None
    ci_low_pct: float | None = None
    ci_high_pct: float | None = None
    baseline_kind: str = Field(default="", max_length=20)
    comparison: str = Field(default="", max_length=20)
    attributed_to: str = Field(default="", max_length=100)
    from_value: str = Field(default="", max_length=500)
    to_value: str = Field(default="", max_length=500)
    definition_version: int = 0
    verdict_version: int = 0
    document: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class RegressionRow(SQLModel, table=True):
    """What people triage: one cause, with every stack that it slowed down as a member.

    `kind` is run (a verdict opened it) or upgrade (single-field contrasts did); `cause_key` is what groups members.
    `state`: open, acknowledged, expected, fixed or invalid. `proposal` is a state that the service proposes, with the
    first run of the level that speaks for it.
    """

    __tablename__ = "regression"
    __table_args__ = (
        Index("ix_regression_project_state", "project_id", "state"),
        Index("ix_regression_cause", "project_id", "cause_key"),
    )

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    kind: str = Field(max_length=20)
    cause_key: str = Field(max_length=200)
    cause: str = Field(default="", sa_column=Column(Text, nullable=False))
    metric: str = Field(max_length=100)
    state: str = Field(default="open", max_length=20)
    assignee: str = Field(default="", max_length=100)
    note: str = Field(default="", max_length=2000)
    external_url: str = Field(default="", max_length=2000)
    opened_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    changed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    proposal: str = Field(default="", max_length=20)
    proposal_run_id: int | None = Field(
        default=None, sa_column=Column(ForeignKey("run.id", ondelete="SET NULL"), nullable=True)
    )
    worst_delta_pct: float | None = None
    gpu_hours_per_day: float | None = None


class RegressionMemberRow(SQLModel, table=True):
    """One stack of a regression, with the slow run that made it a member. Levels are ln of the metric (ms, GiB).

    They and `delta_pct` are those of the history, once it has them; `first_delta_pct` is what the slow run showed.
    """

    __tablename__ = "regression_member"
    __table_args__ = (Index("ix_regression_member_stack", "stack_key", "config_key"),)

    regression_id: int = Field(
        sa_column=Column(ForeignKey("regression.id", ondelete="CASCADE"), primary_key=True, nullable=False)
    )
    run_id: int = Field(
        sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, nullable=False, index=True)
    )
    stack_key: str = Field(max_length=64)
    config_key: str = Field(max_length=64)
    usual_level: float | None = None
    slow_level: float | None = None
    delta_pct: float | None = None
    first_delta_pct: float | None = None
    gpu_hours_per_day: float | None = None
    proposal: str = Field(default="", max_length=20)
    joined_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class RunAlarmRow(SQLModel, table=True):
    """Which regression explains the alarm of a run: the one that the run opened, or one at whose level it stands."""

    __tablename__ = "run_alarm"

    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, nullable=False))
    metric: str = Field(primary_key=True, max_length=100)
    regression_id: int = Field(
        sa_column=Column(ForeignKey("regression.id", ondelete="CASCADE"), nullable=False, index=True)
    )


class PinRow(SQLModel, table=True):
    """A run that a person made the golden baseline of its stack. In force until `unpinned_at`."""

    __tablename__ = "pin"
    __table_args__ = (Index("ix_pin_stack", "project_id", "stack_key"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    stack_key: str = Field(max_length=64)
    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), nullable=False, index=True))
    pinned_by: str = Field(max_length=100)
    pinned_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    note: str = Field(default="", max_length=1000)
    unpinned_by: str = Field(default="", max_length=100)
    unpinned_at: datetime | None = Field(default=None, sa_column=time_column())


class AuditEventRow(SQLModel, table=True):
    """Who changed what of a regression, run, stack or project. `who` is a person, or Threewalls itself."""

    __tablename__ = "audit_event"
    __table_args__ = (Index("ix_audit_event_subject", "subject", "subject_id"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int | None = Field(default=None, foreign_key="project.id")
    at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    who: str = Field(max_length=100)
    subject: str = Field(max_length=20)
    subject_id: str = Field(max_length=64)
    action: str = Field(max_length=40)
    before: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    after: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    note: str = Field(default="", sa_column=Column(Text, nullable=False))


EVERYTHING = datetime(1970, 1, 1, tzinfo=UTC)
"""As `StackWorkRow.judge_from`: the whole history."""


class StackWorkRow(SQLModel, table=True):
    """The judging and ranking that a stack waits for; the life of the work of a run, with one step more (`Work`).

    `judge_from`: every run from that place of the history on is judged again; without it only those not judged yet.
    """

    __tablename__ = "stack_work"
    __table_args__ = (
        UniqueConstraint("project_id", "stack_key"),
        Index("ix_stack_work_work_lease", "work", "lease_until"),
    )

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    stack_key: str = Field(max_length=64)
    work: str = Field(default="", max_length=10)
    wanted: int = 0
    claims: int = 0
    attempts: int = 0
    lease_until: datetime | None = Field(default=None, sa_column=time_column())
    judge_from: datetime | None = Field(default=None, sa_column=time_column())
    because: str = Field(default="", max_length=300)
