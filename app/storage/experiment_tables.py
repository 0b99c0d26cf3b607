"""The tables of experiments, and of how often each rule fired.

No `from __future__ import annotations` here: it breaks SQLModel relationships.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column, ForeignKey, Index, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

from app.storage.tables import time_column, utc_now


class ExperimentRow(SQLModel, table=True):
    """A planned A/B on one knob: a baseline run, what is changed, and how many runs a side decide it.

    `rule_id` is the suggestion that it came from, empty for a person's own idea. `knobs` holds, by contract field, the
    values `from` and `to`; `change` the flags and variables to set. Uploads join by `tag`, or by `candidate_key`, the
    config key that the change leads to; that is empty where it cannot be told beforehand. `sequence` is the interleaved
    order of the sides. `state`: planned, waiting, done, accepted, rejected or withdrawn. `parent_id`: the experiment
    whose winner is the baseline here. `result` is the A/B as it was last computed.
    """

    __tablename__ = "experiment"
    __table_args__ = (
        UniqueConstraint("project_id", "tag"),
        Index("ix_experiment_project_state", "project_id", "state"),
        Index("ix_experiment_rule", "rule_id"),
        Index("ix_experiment_stack", "stack_key"),
        Index("ix_experiment_candidate", "candidate_key"),
    )

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    parent_id: int | None = Field(
        default=None, sa_column=Column(ForeignKey("experiment.id", ondelete="SET NULL"), nullable=True, index=True)
    )
    baseline_run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), nullable=False, index=True))
    rule_id: str = Field(default="", max_length=100)
    title: str = Field(max_length=300)
    stack_key: str = Field(max_length=64)
    baseline_key: str = Field(max_length=64)
    candidate_key: str = Field(default="", max_length=64)
    knobs: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    change: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    tag: str = Field(max_length=100)
    runs_each: int = 1
    sequence: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    plan: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    state: str = Field(default="planned", max_length=20)
    result: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    result_at: datetime | None = Field(default=None, sa_column=time_column())
    note: str = Field(default="", sa_column=Column(Text, nullable=False))
    created_by: str = Field(max_length=100)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    decided_by: str = Field(default="", max_length=100)
    decided_at: datetime | None = Field(default=None, sa_column=time_column())


class ExperimentRunRow(SQLModel, table=True):
    """A run of an experiment. `side` is baseline or candidate; `joined_by` is plan, tag or config."""

    __tablename__ = "experiment_run"

    experiment_id: int = Field(
        sa_column=Column(ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True, nullable=False)
    )
    run_id: int = Field(
        sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, nullable=False, index=True)
    )
    side: str = Field(max_length=20)
    joined_by: str = Field(max_length=20)
    joined_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class RuleFiringRow(SQLModel, table=True):
    """That a rule of the workflow fired for a run, when the run was last judged."""

    __tablename__ = "rule_firing"
    __table_args__ = (Index("ix_rule_firing_rule", "rule_id", "run_id"),)

    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True, nullable=False))
    rule_id: str = Field(primary_key=True, max_length=100)
    fired_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
