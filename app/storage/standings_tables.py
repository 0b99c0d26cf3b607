"""The tables of the leaderboards: what is kept of each stack, who led when, and the priors that they were ranked with.

No `from __future__ import annotations` here: it breaks SQLModel relationships.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column, ForeignKey, ForeignKeyConstraint, Index
from sqlmodel import Field, SQLModel

from app.storage.tables import time_column, utc_now


class StandingRow(SQLModel, table=True):
    """The standings of one stack, made again as a whole whenever a run of it changed (`app/leaderboards/rank.py`).

    `document` is the `StackStandings` without its boards, which have rows of their own; its `scaling` are the runs of
    its configurations (`ScalingRuns`), as text, because the scaling view alone reads them. `title` to `about` tell the
    stack in a list: they are of its newest run, `newest_run_id`, which stands in the history at `newest_at`. `about`:
    contract fields of the stack by name, where known. `gpu` and `prior_version`: the prior that it was ranked
    with, by its key; "" and 0 where the GPU is unknown.
    """

    __tablename__ = "standing"
    __table_args__ = (
        Index("ix_standing_hardware_family", "hardware_slug", "family_slug"),
        Index("ix_standing_ranking_version", "ranking_version"),
    )

    project_id: int = Field(foreign_key="project.id", primary_key=True)
    stack_key: str = Field(primary_key=True, max_length=64)
    hardware: str = Field(max_length=100)
    hardware_slug: str = Field(max_length=60)
    family: str = Field(max_length=230)
    family_slug: str = Field(max_length=60)
    precision: str = Field(default="", max_length=50)
    title: str = Field(max_length=1000)
    container: str = Field(default="", max_length=500)
    gpus: int | None = None
    about: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    runs: int
    newest_run_id: int
    newest_at: datetime = Field(sa_column=time_column(nullable=False))
    updated_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    ranking_version: int
    gpu: str = Field(default="", max_length=100)
    prior_version: int = 0
    document: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class StandingBoardRow(SQLModel, table=True):
    """One board of a stack. `results`: how each dispatcher did (`BoardResults`), for what is told across stacks."""

    __tablename__ = "standing_board"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project_id", "stack_key"], ["standing.project_id", "standing.stack_key"], ondelete="CASCADE"
        ),
    )

    project_id: int = Field(primary_key=True)
    stack_key: str = Field(primary_key=True, max_length=64)
    floor: str = Field(primary_key=True, max_length=20)
    routing_mode: str = Field(primary_key=True, max_length=50)
    semantic_class: str = Field(primary_key=True, max_length=30)
    reading: str = Field(max_length=20)
    is_ranking: bool
    results: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    document: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class LeaderChangeRow(SQLModel, table=True):
    """The head of a board as it became (`Head`); `before` null for the first that was known. Rows are only added.

    `run_id`: the run that made it; None when none did, or it is gone.
    """

    __tablename__ = "leader_change"
    __table_args__ = (
        Index("ix_leader_change_stack", "project_id", "stack_key"),
        Index("ix_leader_change_at", "at"),
    )

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    stack_key: str = Field(max_length=64)
    floor: str = Field(max_length=20)
    routing_mode: str = Field(max_length=50)
    semantic_class: str = Field(max_length=30)
    at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    before: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    after: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    run_id: int | None = Field(sa_column=Column(ForeignKey("run.id", ondelete="SET NULL"), index=True))


class RankingPriorRow(SQLModel, table=True):
    """How much launches of a family vary: what its stacks are ranked with, until it moved (`ranking_priors.py`).

    `priors`: semantic class -> `Prior`. `version` grows with every change; a stack that was ranked with another one
    (`StandingRow.prior_version`) is ranked again.
    """

    __tablename__ = "ranking_prior"

    project_id: int = Field(foreign_key="project.id", primary_key=True)
    gpu: str = Field(primary_key=True, max_length=100)
    version: int
    priors: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    changed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
