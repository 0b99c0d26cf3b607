"""The SQLModel tables. They do not validate: values are checked in domain types first.

No `from __future__ import annotations` here: it breaks SQLModel relationships.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, ForeignKey, Index, LargeBinary, MetaData, Text, UniqueConstraint
from sqlmodel import Field, SQLModel
from sqlmodel.sql.sqltypes import UTCDateTime

SQLModel.metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def utc_now() -> datetime:
    return datetime.now(UTC)


def _time(nullable: bool = True) -> Column[datetime]:
    """Aware, in UTC, on both databases; SQLite alone would give naive times back."""
    return Column(UTCDateTime(), nullable=nullable)


class ProjectRow(SQLModel, table=True):
    """A team's runs. `generated` marks the demo project, whose logs a generator rendered."""

    __tablename__ = "project"

    id: int | None = Field(default=None, primary_key=True)
    slug: str = Field(unique=True, max_length=100)
    generated: bool = False
    created_at: datetime = Field(default_factory=utc_now, sa_column=_time(nullable=False))


class RunRow(SQLModel, table=True):
    """One training job. The row is the record of the work to do (`status`, lease) and of its result.

    `lease_until` of a received run is when to ring again for it, of a processing one when its worker is given up;
    `attempts` numbers the claims, so that a worker can tell whether the run is still its own (`runs/claims.py`).

    Columns below `definition_version` repeat values of `contract` and `metrics`, for filters and lists only.
    """

    __tablename__ = "run"
    __table_args__ = (
        UniqueConstraint("project_id", "content_key"),
        UniqueConstraint("project_id", "idempotency_key"),
        Index("ix_run_status_lease", "status", "lease_until"),
        Index("ix_run_project_created", "project_id", "created_at"),
        Index("ix_run_stack_key", "stack_key"),
        Index("ix_run_config_key", "config_key"),
    )

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    name: str = Field(max_length=300)
    purpose: str = Field(max_length=20)
    branch: str = Field(default="", max_length=300)
    commit: str = Field(default="", max_length=100)
    ci_url: str = Field(default="", max_length=2000)
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    created_at: datetime = Field(default_factory=utc_now, sa_column=_time(nullable=False))

    idempotency_key: str | None = Field(default=None, max_length=255)
    content_key: str = Field(max_length=64)
    metadata_stated: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))

    status: str = Field(default="received", max_length=20)
    attempts: int = 0
    lease_until: datetime | None = Field(default=None, sa_column=_time())
    processed_at: datetime | None = Field(default=None, sa_column=_time())
    error: str | None = Field(default=None, sa_column=Column(Text))
    warnings: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))

    trainer: str = Field(default="", max_length=50)
    contract: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    unknown: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    stack_key: str = Field(default="", max_length=64)
    config_key: str = Field(default="", max_length=64)
    provisional: bool = True
    steady_state: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    metrics: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    health: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    evidence_level: str = Field(default="", max_length=20)
    semantic_class: str = Field(default="", max_length=30)
    definition_version: int = 0

    model: str | None = Field(default=None, max_length=200, index=True)
    gpu: str | None = Field(default=None, max_length=100, index=True)
    gpus: int | None = None
    dispatcher: str | None = Field(default=None, max_length=30, index=True)
    step_time_ms: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu_pct: float | None = None
    peak_memory_gib: float | None = None


class RunFileRow(SQLModel, table=True):
    """One uploaded file: `kind` is log, config or events; `object_key` is where `log_files` keeps it."""

    __tablename__ = "run_file"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), nullable=False, index=True))
    kind: str = Field(max_length=20)
    name: str = Field(max_length=500)
    position: int = 0
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    sha256: str = Field(max_length=64)
    object_key: str = Field(max_length=300)


class SeriesRow(SQLModel, table=True):
    """One metric of one run: float64 values, byte-shuffled and zstd-compressed (`series.py`)."""

    __tablename__ = "series"

    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True))
    metric: str = Field(primary_key=True, max_length=100)
    unit: str = Field(default="", max_length=30)
    n: int
    blob: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
