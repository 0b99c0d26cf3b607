"""The SQLModel tables. They do not validate: values are checked in domain types first.

No `from __future__ import annotations` here: it breaks SQLModel relationships.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlmodel import Field, SQLModel
from sqlmodel.sql.sqltypes import UTCDateTime

from app.domain.badges.key import new_badge_secret

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


def time_column(nullable: bool = True) -> Column[datetime]:
    """Aware, in UTC, on both databases; SQLite alone would give naive times back."""
    return Column(UTCDateTime(), nullable=nullable)


class ProjectRow(SQLModel, table=True):
    """A team's runs. `generated` marks the demo project, whose logs a generator rendered.

    `slug_lower`: no two projects differ by case alone, because keys of stacks do not have it.

    `baseline_branch`: whose `ci` runs others are judged against, `*` for any. `commit_url` and `compare_url` are
    templates of links, with `{commit}` and with `{from}` and `{to}`; empty when nobody gave one. `public`: whoever can
    reach the service may read it. `quota_bytes` and `quota_runs_a_day` limit its uploads; None: the service's own.
    `badge_secret` is what the keys of its badges are made with.
    """

    __tablename__ = "project"

    id: int | None = Field(default=None, primary_key=True)
    slug: str = Field(unique=True, max_length=100)
    slug_lower: str = Field(
        default=None,
        sa_column=Column(
            String(100),
            nullable=False,
            unique=True,
            index=True,
            default=lambda context: context.get_current_parameters()["slug"].lower(),
        ),
    )
    generated: bool = False
    baseline_branch: str = Field(default="main", max_length=300)
    commit_url: str = Field(default="", max_length=500)
    compare_url: str = Field(default="", max_length=500)
    public: bool = False
    quota_bytes: int | None = Field(default=None, sa_column=Column(BigInteger))
    quota_runs_a_day: int | None = None
    badge_secret: str = Field(default_factory=new_badge_secret, max_length=64)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


PROCESSED = ("ready", "failed", "unread")
"""Statuses of a run that was read: figures, none because it failed, none because no reader knows its log."""


class RunRow(SQLModel, table=True):
    """One training job. The row is the record of the work to do (`work`, lease) and of its result (`status`).

    `work` is empty (nothing to do), `waiting` or `held`. `lease_until` of a waiting run is when it is due, of a
    held one when its worker is given up. `claims` numbers the claims, so that a worker can tell whether the run is
    still its own; `attempts` counts those since the last news. `wanted` grows with every change of what is to be read
    (`storage/run_work.py`). A run that is read again keeps its status and figures until the new ones are there.

    `idempotency_key` is the SHA-256 of the sender and of the key as sent (`runs/same_upload.py`).

    `token_id` is the token that brought it; None for a person's, and where nobody logs in. No foreign key: tokens are
    never deleted. `uploaded_by` names the token, or the person; it is empty where nobody logs in.

    `reception`: `whole` (uploaded at once), `receiving` (more of its logs is to come), `complete` (the client said so)
    or `incomplete` (no news for too long). `heard_at` is when the last bytes came.

    `ordered_at` is its place in the history of its stack: when its commit was made, else when it was uploaded; a rerun
    takes the place of the first run of its commit. `quarantine` is a person's reason to leave it out of everything.

    `recompute_failed` is the version of the definitions in which its figures could not be computed, and
    `recompute_error` why; it keeps those that it had, which are of `definition_version` (`definition_progress.py`).

    `rules_asked` marks the rules that it was last asked (`rule_firings.py`); empty when it was read since.

    `not_finite` counts iterations whose loss was none; `shape` is the outline of the model (`RunFacts.shape`).

    Columns below `slices` repeat values of `contract`, `metrics`, `health`, `steady_state` and the current verdict, for
    filters, lists and slim reads only.
    """

    __tablename__ = "run"
    __table_args__ = (
        UniqueConstraint("project_id", "content_key"),
        UniqueConstraint("project_id", "idempotency_key"),
        Index("ix_run_work_lease", "work", "lease_until"),
        Index("ix_run_reception_heard", "reception", "heard_at"),
        Index("ix_run_project_created", "project_id", "created_at"),
        Index("ix_run_project_ordered", "project_id", "ordered_at"),
        Index("ix_run_stack_ordered", "stack_key", "ordered_at"),
        Index("ix_run_config_key", "config_key"),
        Index("ix_run_family_ordered", "project_id", "gpu", "ordered_at"),
        Index("ix_run_definition_version", "definition_version"),
        Index("ix_run_rules_asked", "rules_asked"),
    )

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    name: str = Field(max_length=300)
    purpose: str = Field(max_length=20)
    branch: str = Field(default="", max_length=300)
    commit: str = Field(default="", max_length=100)
    ci_url: str = Field(default="", max_length=2000)
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    ordered_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    quarantine: str = Field(default="", max_length=1000)
    quarantined_by: str = Field(default="", max_length=100)
    quarantined_at: datetime | None = Field(default=None, sa_column=time_column())

    token_id: int | None = None
    uploaded_by: str = Field(default="", max_length=100)
    idempotency_key: str | None = Field(default=None, max_length=255)
    content_key: str = Field(max_length=64)
    metadata_stated: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))

    reception: str = Field(default="whole", max_length=20)
    heard_at: datetime | None = Field(default=None, sa_column=time_column())

    status: str = Field(default="received", max_length=20)
    work: str = Field(default="", max_length=10)
    wanted: int = 0
    claims: int = 0
    attempts: int = 0
    read_seconds: float = 0.0
    lease_until: datetime | None = Field(default=None, sa_column=time_column())
    processed_at: datetime | None = Field(default=None, sa_column=time_column())
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
    definitions: dict[str, int] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    rules_asked: str = Field(default="", max_length=16)
    recompute_failed: int = 0
    recompute_error: str | None = Field(default=None, sa_column=Column(Text))
    failures: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    activity: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    availability: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    timers: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    fair_for_timing: bool = True
    not_understood: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    slices: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))

    model: str | None = Field(default=None, max_length=200, index=True)
    gpu: str | None = Field(default=None, max_length=100, index=True)
    gpus: int | None = None
    dispatcher: str | None = Field(default=None, max_length=30, index=True)
    step_time_ms: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    mfu_pct: float | None = None
    peak_memory_gib: float | None = None
    outcome: str = Field(default="", max_length=20)
    log_step_time: float | None = None
    step_time_se: float | None = None
    window_length: int | None = None
    is_steady: bool | None = None
    short: bool | None = None
    not_finite: int = 0
    shape: str = Field(default="", max_length=300)
    verdict: str = Field(default="", max_length=20)
    verdict_delta_pct: float | None = None


class RunFileRow(SQLModel, table=True):
    """One file of a run. `kind` is log, config or events; `document` is what its content was recognised as, if any.

    `sha256` is empty once the file grew in pieces. `cut` is the compression (gzip, zstd) of a file that ended early.
    """

    __tablename__ = "run_file"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), nullable=False, index=True))
    kind: str = Field(max_length=20)
    document: str = Field(default="", max_length=30)
    name: str = Field(max_length=500)
    position: int = 0
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    sha256: str = Field(max_length=64)
    cut: str = Field(default="", max_length=10)


class SegmentRow(SQLModel, table=True):
    """A piece of a file: the stored object that holds its text. A file uploaded whole has one (`segments.py`)."""

    __tablename__ = "segment"

    file_id: int = Field(sa_column=Column(ForeignKey("run_file.id", ondelete="CASCADE"), primary_key=True))
    position: int = Field(primary_key=True)
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    object_key: str = Field(max_length=300, index=True)


class StoredObjectRow(SQLModel, table=True):
    """An object that an upload put, or was about to put, at `touched_at` (`object_records.py`)."""

    __tablename__ = "stored_object"

    key: str = Field(primary_key=True, max_length=300)
    touched_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class HeartbeatRow(SQLModel, table=True):
    """When a worker last did something (`heartbeat.py`). One row, named `worker`."""

    __tablename__ = "heartbeat"

    name: str = Field(primary_key=True, max_length=20)
    seen_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class SeriesRow(SQLModel, table=True):
    """One metric of one run: float64 values, byte-shuffled and zstd-compressed (`series.py`)."""

    __tablename__ = "series"

    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True))
    metric: str = Field(primary_key=True, max_length=100)
    unit: str = Field(default="", max_length=30)
    n: int
    blob: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class ReadingRow(SQLModel, table=True):
    """What was found in the files of a run beside its series (`readings.py`). `files`: which ones, as a hash."""

    __tablename__ = "reading"

    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True))
    files: str = Field(max_length=64)
    version: int
    blob: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class AmendmentRow(SQLModel, table=True):
    """A person's correction of one contract field. The newest of a field counts; `removed` restores what the run said.

    `old_value` and `old_source` are what the run showed before; the source is empty when it was unknown.
    """

    __tablename__ = "amendment"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), nullable=False, index=True))
    field: str = Field(max_length=100)
    value: Any = Field(default=None, sa_column=Column(JSON(none_as_null=False), nullable=False))
    removed: bool = False
    old_value: Any = Field(default=None, sa_column=Column(JSON(none_as_null=False), nullable=False))
    old_source: str = Field(default="", max_length=20)
    author: str = Field(max_length=100)
    note: str = Field(default="", max_length=1000)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class ProjectDefaultRow(SQLModel, table=True):
    """A contract field that a project's runs have unless they say otherwise, or the rule `container_image`."""

    __tablename__ = "project_default"

    project_id: int = Field(foreign_key="project.id", primary_key=True)
    name: str = Field(primary_key=True, max_length=100)
    value: Any = Field(default=None, sa_column=Column(JSON(none_as_null=False), nullable=False))
    author: str = Field(max_length=100)
    changed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class AvailabilityRow(SQLModel, table=True):
    """Whether a dispatcher works in a container, as one run's log proves; `container` is empty when unstated."""

    __tablename__ = "dispatcher_availability"
    __table_args__ = (Index("ix_dispatcher_availability_container", "project_id", "container"),)

    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True))
    dispatcher: str = Field(primary_key=True, max_length=30)
    project_id: int = Field(foreign_key="project.id")
    container: str = Field(default="", max_length=500)
    available: bool
    evidence: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    seen_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
