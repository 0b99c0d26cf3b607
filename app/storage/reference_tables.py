"""The table of the published figures that teams add.

No `from __future__ import annotations` here: it breaks SQLModel relationships.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column
from sqlmodel import Field, SQLModel

from app.storage.tables import time_column, utc_now


class ReferencePointRow(SQLModel, table=True):
    """A published figure as `domain/reference_points` reads it. Who did what to it stands in the audit.

    `project_id` None: it is offered to every project. A withdrawn one counts no more, and stays readable.
    """

    __tablename__ = "reference_point"

    id: int | None = Field(default=None, primary_key=True)
    project_id: int | None = Field(default=None, foreign_key="project.id")
    point: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    added_by: str = Field(max_length=100)
    added_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    changed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    withdrawn_at: datetime | None = Field(default=None, sa_column=time_column())
