"""The tables of notifications: where a project's news go, each delivery with its outcome, and how much may be sent.

No `from __future__ import annotations` here: it breaks SQLModel relationships.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column, ForeignKey, Index, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

from app.domain.notices.signature import new_message_id
from app.storage.tables import time_column, utc_now


class ReceiverRow(SQLModel, table=True):
    """Where news of a project go. `kind`: webhook, slack, teams or email; `target` its address.

    `secret` signs a webhook's bodies. `rules`: which verdicts, regression states and stacks it wants.
    """

    __tablename__ = "receiver"

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=Column(ForeignKey("project.id", ondelete="CASCADE"), nullable=False, index=True))
    kind: str = Field(max_length=20)
    name: str = Field(max_length=100)
    target: str = Field(max_length=2000)
    secret: str = Field(default="", max_length=100)
    rules: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    enabled: bool = True
    created_by: str = Field(max_length=100)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class DeliveryRow(SQLModel, table=True):
    """One message to one receiver; the row is the work to do, as with runs. `cause`: at most one message of each.

    `work` is waiting, rung, held or empty (done); `state` waiting, delivered or failed. `replay_of`: the one that it
    repeats. `message_id` goes with every attempt, and no other service has it. `subject`: what it is about; a receiver
    gets the messages of one in their order, and those without any as they come. `settled`: it failed, and somebody sent
    it again or wants it no more.
    """

    __tablename__ = "delivery"
    __table_args__ = (
        UniqueConstraint("receiver_id", "cause"),
        Index("ix_delivery_work_lease", "work", "lease_until"),
        Index("ix_delivery_receiver_subject", "receiver_id", "subject"),
    )

    id: int | None = Field(default=None, primary_key=True)
    receiver_id: int = Field(
        sa_column=Column(ForeignKey("receiver.id", ondelete="CASCADE"), nullable=False, index=True)
    )
    event: str = Field(max_length=40)
    cause: str = Field(max_length=200)
    message_id: str = Field(default_factory=new_message_id, max_length=60)
    subject: str = Field(default="", max_length=60)
    payload: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    state: str = Field(default="waiting", max_length=20)
    work: str = Field(default="waiting", max_length=10)
    attempts: int = 0
    lease_until: datetime | None = Field(default=None, sa_column=time_column())
    answer_status: int | None = None
    error: str = Field(default="", sa_column=Column(Text, nullable=False))
    settled: bool = False
    replay_of: int | None = Field(default=None, sa_column=Column(ForeignKey("delivery.id", ondelete="SET NULL")))
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    tried_at: datetime | None = Field(default=None, sa_column=time_column())
    delivered_at: datetime | None = Field(default=None, sa_column=time_column())


class AllowanceRow(SQLModel, table=True):
    """How much of `what` a project used since `began_at` (`app/storage/allowance.py`)."""

    __tablename__ = "allowance"

    project_id: int = Field(sa_column=Column(ForeignKey("project.id", ondelete="CASCADE"), primary_key=True))
    what: str = Field(primary_key=True, max_length=40)
    began_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    used: int = 0
