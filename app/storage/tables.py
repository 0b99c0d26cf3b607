"""The SQLModel tables. They do not validate: domain types check values first.

`from __future__ import annotations` would break the relationships of SQLModel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    select,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlmodel import Field, Relationship, SQLModel
from sqlmodel.sql.sqltypes import UTCDateTime

from app.domain.badges import new_badge_secret
from app.domain.notifications.messages import new_message_id

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SQLModel.metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Key = TypeVar("Key")
Value = TypeVar("Value", bound="DataclassInstance")


def select_any(*columns: Any) -> Select[Any]:
    """Select columns or tables. SQLModel types a column as its value, which `select` rejects; this accepts it."""
    return select(*columns)


def from_row(kind: type[Value], *rows: Any, **others: Any) -> Value:
    """Return a dataclass from `others`; each other field comes from the first row that has such a column."""
    for name in {field.name for field in fields(kind)} - others.keys():
        for row in rows:
            if hasattr(row, name):
                others[name] = getattr(row, name)
                break
    return kind(**others)


_MOST_KEYS = 500
"""Maximum keys per query."""


def in_batches(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """Yield the keys in parts that one query may have."""
    for start in range(0, len(keys), _MOST_KEYS):
        yield keys[start : start + _MOST_KEYS]


class _NotIndexed(FunctionElement[Any]):
    inherit_cache = True

    def __init__(self, column: Any) -> None:
        super().__init__(column)
        self.type = column.type


def not_indexed(column: Any) -> ColumnElement[Any]:
    """Return the column for a condition that must not lead SQLite to an index. SQLite has no statistics to choose by.

    PostgreSQL gets the plain column. With an expression such as `column + 0` it would expect hardly any rows, and read
    and sort all runs of a stack to find the newest.
    """
    return _NotIndexed(column)


@compiles(_NotIndexed)
def _column_alone(element: _NotIndexed, compiler: SQLCompiler, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(_NotIndexed, "sqlite")
def _with_plus(element: _NotIndexed, compiler: SQLCompiler, **options: Any) -> str:
    return f"+{compiler.process(element.clauses, **options)}"


def table_of(row_type: type[SQLModel]) -> Table:
    """Return the SQLAlchemy table of a row type. SQLModel does not declare this attribute for type checkers."""
    return SQLModel.metadata.tables[str(row_type.__tablename__)]


def utc_now() -> datetime:
    return datetime.now(UTC)


def time_column(nullable: bool = True) -> Column[datetime]:
    """Return a column whose values are aware UTC times in both databases. A plain column in SQLite drops the zone."""
    return Column(UTCDateTime(), nullable=nullable)


def owned_by(column: str, *, primary_key: bool = False, index: bool = False) -> Column[int]:
    """Return a required reference to the row that owns this one. Deleting the owner deletes this row."""
    return Column(ForeignKey(column, ondelete="CASCADE"), primary_key=primary_key, nullable=False, index=index)


class ProjectRow(SQLModel, table=True):
    """A project with its runs. `generated` marks the demo project, whose logs are generated.

    `slug_lower` is unique, because stack keys ignore case.

    `baseline_branch`: the branch whose `ci` runs are baselines, `*` for any. `commit_url` and `compare_url` are link
    templates with `{commit}` and with `{from}` and `{to}`; empty if not set. `public`: readable without a log-in.
    `quota_bytes` and `quota_runs_a_day` limit uploads; None: the service's defaults. Badge keys are derived from
    `badge_secret`. `verdict_policy`: thresholds, fixed limits, budget of reruns and reference job
    (`app/domain/verdict/policy.py`). `retention`: what is deleted by age (`app/domain/retention.py`). An archived
    project accepts no uploads.
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
    verdict_policy: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    retention: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    archived_at: datetime | None = Field(default=None, sa_column=time_column())
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


PROCESSED = ("ready", "failed", "unread")
"""Statuses of a processed run: with figures, failed without figures, or unread because no reader supports its log."""


FILTERED = ("status", "purpose", "branch", "evidence_level", "outcome", "badge", "model", "gpu", "dispatcher")
"""Columns by which the list of runs can be filtered, besides the project and the time."""

FILTERS = ("project_id", "created_at", *FILTERED)
"""Columns of all filters. Each index of the list of runs ends with them, so that it alone answers a combination:
otherwise, sorting 16,000 of a million runs by step time reads 700,000 rows."""

LISTED = (
    *FILTERED,
    "commit_time",
    "step_time_ms",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu_pct",
    "peak_memory_gib",
)
"""Columns by which the list of runs can be filtered or sorted."""

USABLE = "purpose = 'ci' AND status = 'ready' AND is_steady AND NOT short AND fair_for_timing AND quarantine = ''"
"""SQL condition of a possible baseline. A change needs a migration, because a partial index contains it."""


class RunRow(SQLModel, table=True):
    """One training job: identity, state, and the columns that lists, filters and baselines read.

    `work`, `wanted`, `claims`, `attempts` and `lease_until` make the table a leased queue (`pipeline/work.py`). While a
    run is read again, it keeps its status and figures until new ones are stored.

    `job` is the CI job or test that the upload, or a document in it, states (`RunFacts.is_of_job`).

    `merge_base` is the commit at which the branch of a change left its target. Runs of later commits are not its
    baseline.

    `notes`: Markdown of users.

    `idempotency_key` is the SHA-256 of the sender and of the key as sent (`pipeline/receive.py`).

    `token_id` is the token that uploaded the run; None for a user's upload and without authentication. It needs no
    foreign key, because tokens are never deleted. `uploaded_by` is the name of the token or user; empty without
    authentication.

    `reception`: `whole` (uploaded at once), `receiving` (more of its logs will follow), `complete` (the client ended
    it) or `incomplete` (no bytes for too long). `heard_at`: when the last bytes arrived.

    `ordered_at` is the history position: `commit_time`, or `created_at` without one; a rerun takes the position of the
    first run of its commit. `quarantine` is a user's reason to exclude the run from baselines and rankings.

    If recomputing the figures failed, `recompute_failed` is the version of the definitions and `recompute_error` the
    reason. The run then keeps its figures of `definition_version` (`readings.py`).

    `rules_asked` identifies the rules that were last evaluated; empty if the run was read after that (`suggest.py`).

    `not_finite`: number of iterations without a finite loss. `skipped_share`: share of skipped optimizer steps.
    `shape`: the outline of the model (`RunFacts.shape`).

    Columns from `model` on repeat values of `RunResultRow` and of the current verdict. `badge`: the decision that lists
    show and filter by, with its label (`VerdictDocument.badge`).
    """

    __tablename__ = "run"
    __table_args__ = (
        UniqueConstraint("project_id", "content_key"),
        UniqueConstraint("project_id", "idempotency_key"),
        Index("ix_run_work_lease", "work", "lease_until"),
        Index("ix_run_reception_heard", "reception", "heard_at"),
        Index("ix_run_project_created", "project_id", "created_at", "id", "branch", "status", "outcome", "purpose"),
        Index("ix_run_project_ordered", "project_id", "ordered_at"),
        Index("ix_run_stack_ordered", "stack_key", "ordered_at"),
        Index("ix_run_config_key", "config_key", "ordered_at", "id"),
        Index("ix_run_stack_config", "stack_key", "config_key", "ordered_at", "id", "status", "reception"),
        Index("ix_run_family_ordered", "project_id", "gpu", "ordered_at"),
        Index(
            *("ix_run_definition_version", "definition_version", "recompute_failed", "status", "work", "processed_at"),
        ),
        Index("ix_run_rules_asked", "rules_asked"),
        Index("ix_run_created", "created_at", "id", "project_id", "branch", "status", "outcome"),
        Index(
            *("ix_run_usable", "project_id", "config_key", "ordered_at", "id"),
            sqlite_where=text(USABLE),
            postgresql_where=text(USABLE),
        ),
        # Each index supports a filter or a sort order of the list of runs. Its default order is by number.
        Index("ix_run_project", "project_id", "id"),
        *(Index(f"ix_run_{name}", *dict.fromkeys((name, "id", *FILTERS))) for name in LISTED),
        Index("ix_run_workload", "model", "gpu", "dispatcher", "id"),
        {"sqlite_autoincrement": True},  # never reuse the number of a deleted run
    )

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    name: str = Field(max_length=300)
    purpose: str = Field(max_length=20)
    branch: str = Field(default="", max_length=300)
    commit: str = Field(default="", max_length=100)
    commit_time: datetime | None = Field(default=None, sa_column=time_column())
    merge_base: str = Field(default="", max_length=100)
    merge_base_time: datetime | None = Field(default=None, sa_column=time_column())
    ci_url: str = Field(default="", max_length=2000)
    job: str = Field(default="", max_length=300)
    tags: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    notes: str | None = Field(default=None, sa_column=Column(Text))
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    ordered_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    quarantine: str = Field(default="", max_length=1000)
    quarantined_by: str = Field(default="", max_length=100)
    quarantined_at: datetime | None = Field(default=None, sa_column=time_column())

    token_id: int | None = None
    uploaded_by: str = Field(default="", max_length=100)
    idempotency_key: str | None = Field(default=None, max_length=255)
    content_key: str = Field(max_length=64)

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

    trainer: str = Field(default="", max_length=50)
    stack_key: str = Field(default="", max_length=64)
    config_key: str = Field(default="", max_length=64)
    provisional: bool = True
    evidence_level: str = Field(default="", max_length=20)
    semantic_class: str = Field(default="", max_length=30)
    definition_version: int = 0
    rules_asked: str = Field(default="", max_length=16)
    recompute_failed: int = 0
    recompute_error: str | None = Field(default=None, sa_column=Column(Text))
    fair_for_timing: bool = True

    model: str | None = Field(default=None, max_length=200)
    gpu: str | None = Field(default=None, max_length=100)
    gpus: int | None = None
    dispatcher: str | None = Field(default=None, max_length=30)
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
    skipped_share: float = 0.0
    shape: str = Field(default="", max_length=300)
    verdict: str = Field(default="", max_length=20)
    verdict_delta_pct: float | None = None
    badge: str = Field(default="", max_length=20, sa_column_kwargs={"server_default": text("''")})
    badge_label: str = Field(default="", max_length=20, sa_column_kwargs={"server_default": text("''")})

    result: "RunResultRow" = Relationship(
        sa_relationship_kwargs={"uselist": False, "cascade": "all, delete-orphan", "passive_deletes": True}
    )


class RunResultRow(SQLModel, table=True):
    """The values that the upload stated and that processing computed: one row per run, inserted with it.

    Its JSON documents have several kilobytes, so lists do not read them.
    """

    __tablename__ = "run_result"

    run_id: int | None = Field(default=None, sa_column=owned_by("run.id", primary_key=True))
    metadata_stated: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    warnings: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    contract: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    unknown: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    steady_state: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    metrics: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    health: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    definitions: dict[str, int] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    failures: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    activity: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    availability: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    timers: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    not_understood: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    slices: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))


RESULT_COLUMNS = frozenset(RunResultRow.model_fields) - {"run_id"}


class RunValueRow(SQLModel, table=True):
    """A choice of a filter: a value of a column of `run` in a project. Triggers write it (`derived.py`).

    A value stays when the last run with it changes; deleting runs removes it (`pipeline/deletion.py`).
    """

    __tablename__ = "run_value"

    field: str = Field(primary_key=True, max_length=20)
    project_id: int = Field(foreign_key="project.id", primary_key=True)
    value: str = Field(primary_key=True, max_length=300)


class SavedViewRow(SQLModel, table=True):
    """Named filters of the list of runs. `owner`: the user who saved the view; empty: it is for the whole project."""

    __tablename__ = "saved_view"
    __table_args__ = (UniqueConstraint("project_id", "owner", "name"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id"))
    owner: str = Field(default="", max_length=100)
    name: str = Field(max_length=100)
    query: str = Field(max_length=2000)
    is_default: bool = False
    changed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class RunLabelRow(SQLModel, table=True):
    """A tag, job, uploader or commit of a run, for search. Triggers write it (`derived.py`)."""

    __tablename__ = "run_label"
    __table_args__ = (Index("ix_run_label_run", "run_id"),)

    field: str = Field(primary_key=True, max_length=20)
    value: str = Field(primary_key=True, max_length=300)
    run_id: int = Field(sa_column=owned_by("run.id", primary_key=True))


class ConfigValueRow(SQLModel, table=True):
    """A contract field of a configuration, for search (`search.py`). `value`: as shown, in lower case."""

    __tablename__ = "config_value"

    field: str = Field(primary_key=True, max_length=100)
    value: str = Field(primary_key=True, max_length=200)
    project_id: int = Field(sa_column=owned_by("project.id", primary_key=True))
    config_key: str = Field(primary_key=True, max_length=64)


_STACK_LISTED = ("runs", "project_id", "model", "gpu", "gpus")


class StackRow(SQLModel, table=True):
    """A stack, for the list of histories. Triggers write it (`derived.py`).

    `runs`: number of processed runs; 0 if all of them moved to other stacks. `revision` grows with every change that
    the history shows. `last_at` and the hardware come from the newest processed run; `verdict` from the last judged run
    that is not part of an experiment, empty without one. `dispatchers`: names between commas, `?` for unknown.
    """

    __tablename__ = "stack"
    __table_args__ = (
        Index("ix_stack_last", "last_at", "stack_key"),
        # With all columns that the list of histories reads, so that a filter reads matching stacks only.
        *(
            Index(
                f"ix_stack_{name.removesuffix('_id')}_last",
                name,
                "last_at",
                "stack_key",
                *(other for other in _STACK_LISTED if other != name),
            )
            for name in ("project_id", "model", "gpu", "verdict")
        ),
        Index("ix_stack_key", "stack_key"),
        Index("ix_stack_hardware", "project_id", "model", "gpu", "gpus", "last_at"),
    )

    project_id: int = Field(foreign_key="project.id", primary_key=True)
    stack_key: str = Field(primary_key=True, max_length=64)
    runs: int
    revision: int = 0
    last_at: datetime = Field(sa_column=time_column(nullable=False))
    verdict: str = Field(max_length=20)
    dispatchers: str = Field(sa_column=Column(Text, nullable=False))
    model: str | None = Field(default=None, max_length=200)
    gpu: str | None = Field(default=None, max_length=100)
    gpus: int | None = None


class RunFileRow(SQLModel, table=True):
    """A file of a run.

    `kind`: log, config or events. `document`: detected format, if any. `sha256`: empty for a file that arrived in
    pieces. `cut`: compression (gzip, zstd) of a file whose end is missing.
    """

    __tablename__ = "run_file"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=owned_by("run.id", index=True))
    kind: str = Field(max_length=20)
    document: str = Field(default="", max_length=30)
    name: str = Field(max_length=500)
    position: int = 0
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    sha256: str = Field(max_length=64)
    cut: str = Field(default="", max_length=10)


class SegmentRow(SQLModel, table=True):
    """A piece of a file: the stored object with its text. A file uploaded at once has one segment (`log_files.py`).

    `removed_at`: when retention removed it. The object is deleted later, so that the removal can be undone.
    """

    __tablename__ = "segment"

    file_id: int = Field(sa_column=owned_by("run_file.id", primary_key=True))
    position: int = Field(primary_key=True)
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    object_key: str = Field(max_length=300, index=True)
    removed_at: datetime | None = Field(default=None, sa_column=time_column())


class StoredObjectRow(SQLModel, table=True):
    """An object that an upload stored, or began to store, at `touched_at` (`objects.py`)."""

    __tablename__ = "stored_object"

    key: str = Field(primary_key=True, max_length=300)
    touched_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class DeletionRow(SQLModel, table=True):
    """A deletion of runs or of their raw logs, which can be undone until `ends_at` (`pipeline/deletion.py`).

    `selection`: which runs (`Selection`). `state`: waiting (not finished), done, undoing, undone or final. `runs` and
    `bytes`: deleted so far.
    """

    __tablename__ = "deletion"
    __table_args__ = (Index("ix_deletion_state", "state", "ends_at"), Index("ix_deletion_project", "project_id", "id"))

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    selection: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    title: str = Field(max_length=300)
    state: str = Field(default="waiting", max_length=20)
    requested_by: str = Field(max_length=100)
    note: str = Field(default="", max_length=1000)
    requested_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    runs: int = 0
    bytes: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    ends_at: datetime | None = Field(default=None, sa_column=time_column())
    undone_by: str = Field(default="", max_length=100)


class DeletionPartRow(SQLModel, table=True):
    """Some of the deleted runs with all their rows, as zstd-compressed JSON (`row_copies.py`)."""

    __tablename__ = "deletion_part"

    id: int | None = Field(default=None, primary_key=True)
    deletion_id: int = Field(sa_column=owned_by("deletion.id", index=True))
    document: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class DeletionObjectRow(SQLModel, table=True):
    """A stored object that deleted runs need while they can be restored."""

    __tablename__ = "deletion_object"

    object_key: str = Field(primary_key=True, max_length=300)
    part_id: int = Field(sa_column=owned_by("deletion_part.id", primary_key=True))


class UsageRow(SQLModel, table=True):
    """Uploads of one day that a project still stores, counted every hour (`usage.py`). `bytes`: decompressed files."""

    __tablename__ = "usage"

    project_id: int = Field(sa_column=owned_by("project.id", primary_key=True))
    day: str = Field(primary_key=True, max_length=10)
    runs: int
    bytes: int = Field(sa_column=Column(BigInteger, nullable=False))


class HeartbeatRow(SQLModel, table=True):
    """When something last happened, by name: `worker` for activity (`worker_activity.py`), others in `backup.py`."""

    __tablename__ = "heartbeat"

    name: str = Field(primary_key=True, max_length=20)
    seen_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class StageTimeRow(SQLModel, table=True):
    """Processor seconds of workers in one stage on one day in UTC (`worker_activity.py`)."""

    __tablename__ = "stage_time"

    day: str = Field(primary_key=True, max_length=10)
    stage: str = Field(primary_key=True, max_length=20)
    calls: int = Field(sa_column=Column(BigInteger, nullable=False))
    seconds: float


class SeriesRow(SQLModel, table=True):
    """One metric of one run: float64 values, byte-shuffled and zstd-compressed (`readings.py`)."""

    __tablename__ = "series"

    run_id: int = Field(sa_column=owned_by("run.id", primary_key=True))
    metric: str = Field(primary_key=True, max_length=100)
    unit: str = Field(default="", max_length=30)
    n: int
    blob: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class ReadingRow(SQLModel, table=True):
    """Everything that was read from the files of a run except its series (`readings.py`). `files`: their hash."""

    __tablename__ = "reading"

    run_id: int = Field(sa_column=owned_by("run.id", primary_key=True))
    files: str = Field(max_length=64)
    version: int
    blob: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class ProfileRow(SQLModel, table=True):
    """A profile of a run: traces of the GPU work of one or several ranks. A row of a leased queue (`pipeline/work.py`).

    `status`: received, processing, ready or failed. `content_key` is equal for equal files. `document`: the reduced
    profile, as zstd-compressed JSON. `facts`: its input to the rules. `identity`: GPU, world size and dispatcher; if
    they contradict the contract, the facts count only after a user has confirmed the profile. `progress`: share of
    the files that was read, 0 to 1.
    """

    __tablename__ = "profile"
    __table_args__ = (
        UniqueConstraint("run_id", "content_key"),
        Index("ix_profile_work_lease", "work", "lease_until"),
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=owned_by("run.id", index=True))
    content_key: str = Field(max_length=64)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    uploaded_by: str = Field(default="", max_length=100)
    status: str = Field(default="received", max_length=20)
    work: str = Field(default="", max_length=10)
    wanted: int = 0
    claims: int = 0
    attempts: int = 0
    lease_until: datetime | None = Field(default=None, sa_column=time_column())
    processed_at: datetime | None = Field(default=None, sa_column=time_column())
    read_seconds: float = 0.0
    progress: float = 0.0
    error: str | None = Field(default=None, sa_column=Column(Text))
    document: bytes | None = Field(default=None, sa_column=Column(LargeBinary))
    facts: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    identity: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    confirmed_by: str = Field(default="", max_length=100)
    confirmed_at: datetime | None = Field(default=None, sa_column=time_column())


class ProfileFileRow(SQLModel, table=True):
    """A file of a profile. `object_key` is empty after reading, unless settings keep the file."""

    __tablename__ = "profile_file"

    id: int | None = Field(default=None, primary_key=True)
    profile_id: int = Field(sa_column=owned_by("profile.id", index=True))
    position: int = 0
    name: str = Field(max_length=500)
    size_bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    sha256: str = Field(max_length=64)
    rank: int | None = None
    stage: int | None = None
    object_key: str = Field(default="", max_length=300, index=True)


class AmendmentRow(SQLModel, table=True):
    """A user's correction of one contract field.

    The newest amendment of a field counts; `removed` restores the run's own value. `old_value` and `old_source`
    describe the field before; the source is empty if the value was unknown.
    """

    __tablename__ = "amendment"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=owned_by("run.id", index=True))
    field: str = Field(max_length=100)
    value: Any = Field(default=None, sa_column=Column(JSON(none_as_null=False), nullable=False))
    removed: bool = False
    old_value: Any = Field(default=None, sa_column=Column(JSON(none_as_null=False), nullable=False))
    old_source: str = Field(default="", max_length=20)
    author: str = Field(max_length=100)
    note: str = Field(default="", max_length=1000)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class ProjectDefaultRow(SQLModel, table=True):
    """A default contract field of a project's runs, or the rule `container_image`."""

    __tablename__ = "project_default"

    project_id: int = Field(foreign_key="project.id", primary_key=True)
    name: str = Field(primary_key=True, max_length=100)
    value: Any = Field(default=None, sa_column=Column(JSON(none_as_null=False), nullable=False))
    author: str = Field(max_length=100)
    changed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class AvailabilityRow(SQLModel, table=True):
    """Whether a dispatcher works in a container, as one run's log shows. `container` is empty if not stated."""

    __tablename__ = "dispatcher_availability"
    __table_args__ = (
        Index("ix_dispatcher_availability_container", "project_id", "container"),
        Index("ix_dispatcher_availability_counts", "container", "dispatcher", "project_id", "available", "run_id"),
    )

    run_id: int = Field(sa_column=owned_by("run.id", primary_key=True))
    dispatcher: str = Field(primary_key=True, max_length=30)
    project_id: int = Field(foreign_key="project.id")
    container: str = Field(default="", max_length=500)
    available: bool
    evidence: list[Any] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    seen_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


# --- Tables of access: users, their sessions and roles, and project tokens.


class UserRow(SQLModel, table=True):
    """A user.

    `password_hash` is argon2id; empty for users of an identity provider (`issuer`, `subject`). `password_ends_at`:
    expiry of a password that an administrator set. `totp_secret`: of the authenticator app, or empty; `totp_step`: time
    step of the last accepted code. `administrator`: has every permission in every project. `disabled_at`: since when
    the user cannot log in; the row stays for the audit log. `feed_digest`: SHA-256 of the key of the user's feed, or
    None.
    """

    __tablename__ = "account"
    __table_args__ = (Index("ix_account_issuer_subject", "issuer", "subject"),)

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True, max_length=100)
    email: str = Field(default="", max_length=300)
    password_hash: str = Field(default="", max_length=300)
    must_change_password: bool = False
    password_ends_at: datetime | None = Field(default=None, sa_column=time_column())
    totp_secret: str = Field(default="", max_length=64)
    totp_step: int = 0
    administrator: bool = False
    issuer: str = Field(default="", max_length=300)
    subject: str = Field(default="", max_length=300)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    last_login_at: datetime | None = Field(default=None, sa_column=time_column())
    disabled_at: datetime | None = Field(default=None, sa_column=time_column())
    feed_digest: str | None = Field(default=None, max_length=64, index=True)


class MemberRow(SQLModel, table=True):
    """The role of a user in a project: viewer, contributor or maintainer."""

    __tablename__ = "member"

    project_id: int = Field(sa_column=owned_by("project.id", primary_key=True))
    user_id: int = Field(sa_column=owned_by("account.id", primary_key=True, index=True))
    role: str = Field(max_length=20)
    added_by: str = Field(max_length=100)
    added_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class GroupRow(SQLModel, table=True):
    """A group of users with roles in projects. An identity provider adds its users by the name of the group."""

    __tablename__ = "user_group"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True, max_length=300)
    created_by: str = Field(max_length=100)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class GroupMemberRow(SQLModel, table=True):
    """A user in a group. `by_provider`: the identity provider added the user, and a later log-in can end this."""

    __tablename__ = "group_member"

    group_id: int = Field(sa_column=owned_by("user_group.id", primary_key=True))
    user_id: int = Field(sa_column=owned_by("account.id", primary_key=True, index=True))
    by_provider: bool = False
    added_by: str = Field(max_length=100)
    added_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class GroupRoleRow(SQLModel, table=True):
    __tablename__ = "group_role"

    project_id: int = Field(sa_column=owned_by("project.id", primary_key=True))
    group_id: int = Field(sa_column=owned_by("user_group.id", primary_key=True, index=True))
    role: str = Field(max_length=20)
    added_by: str = Field(max_length=100)
    added_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class SessionRow(SQLModel, table=True):
    """A log-in session.

    `id` is the SHA-256 of its cookie. `confirmed_at`: when the user last logged in or confirmed the password.
    """

    __tablename__ = "login_session"

    id: str = Field(primary_key=True, max_length=64)
    user_id: int = Field(sa_column=owned_by("account.id", index=True))
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    confirmed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    seen_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    expires_at: datetime = Field(sa_column=time_column(nullable=False))
    address: str = Field(default="", max_length=100)
    agent: str = Field(default="", max_length=300)


class TokenRow(SQLModel, table=True):
    """A project token for CI.

    `digest` is its SHA-256; `shown` its first characters. `scopes`: upload, read, triage. Active until `expires_at` or
    `revoked_at`.
    """

    __tablename__ = "token"
    __table_args__ = (UniqueConstraint("digest"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id", index=True))
    name: str = Field(max_length=100)
    shown: str = Field(max_length=20)
    digest: str = Field(max_length=64)
    scopes: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    created_by: str = Field(max_length=100)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    expires_at: datetime | None = Field(default=None, sa_column=time_column())
    last_used_at: datetime | None = Field(default=None, sa_column=time_column())
    revoked_at: datetime | None = Field(default=None, sa_column=time_column())
    revoked_by: str = Field(default="", max_length=100)


class ShareLinkRow(SQLModel, table=True):
    """A link that opens one page of a project without a log-in, until `expires_at` or `revoked_at`.

    `digest` is the SHA-256 of its secret; `page` is the page's path, with the query of a comparison.
    """

    __tablename__ = "share_link"
    __table_args__ = (UniqueConstraint("digest"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id", index=True))
    page: str = Field(max_length=300)
    digest: str = Field(max_length=64)
    created_by: str = Field(max_length=100)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    expires_at: datetime = Field(sa_column=time_column(nullable=False))
    opened_at: datetime | None = Field(default=None, sa_column=time_column())
    opened: int = 0
    revoked_at: datetime | None = Field(default=None, sa_column=time_column())
    revoked_by: str = Field(default="", max_length=100)


class InvitationRow(SQLModel, table=True):
    """An invitation to a project, valid for one person until `expires_at` or `revoked_at`.

    `digest` is the SHA-256 of the secret in its link; `email` belongs to the invited person and may be empty.
    """

    __tablename__ = "invitation"
    __table_args__ = (UniqueConstraint("digest"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id", index=True))
    role: str = Field(max_length=20)
    email: str = Field(default="", max_length=300)
    digest: str = Field(max_length=64)
    created_by: str = Field(max_length=100)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    expires_at: datetime = Field(sa_column=time_column(nullable=False))
    accepted_at: datetime | None = Field(default=None, sa_column=time_column())
    accepted_by: str = Field(default="", max_length=100)
    revoked_at: datetime | None = Field(default=None, sa_column=time_column())
    revoked_by: str = Field(default="", max_length=100)


class WatchRow(SQLModel, table=True):
    """A stack or regression that a user watches. `user_id` is 0 on a service without log-ins.

    `kind` is `stack` or `regression`; `target` is the stack key or the number of the regression.
    """

    __tablename__ = "watch"

    user_id: int = Field(primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id", primary_key=True))
    kind: str = Field(primary_key=True, max_length=20)
    target: str = Field(primary_key=True, max_length=64)
    watched_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class DashboardChartRow(SQLModel, table=True):
    """A chart on the overview of a project. `page`: path and query of the page to which it links."""

    __tablename__ = "dashboard_chart"

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id", index=True))
    page: str = Field(max_length=300)
    title: str = Field(max_length=200)
    position: int
    added_by: str = Field(max_length=100)
    added_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


# --- Tables of experiments, and of the rules that fired.


class ExperimentRow(SQLModel, table=True):
    """A planned A/B on one knob: a baseline run, the change, and the number of runs per side.

    `rule_id`: rule of the suggestion; empty for a user's own idea. `knobs` holds `from` and `to` by contract field;
    `change` holds the flags and variables to set. Uploads join by `tag`, or by `candidate_key`: the config key that the
    change leads to (empty if it cannot be predicted). `sequence` is the interleaved order of the sides. `state`:
    planned, waiting, done, accepted, rejected or withdrawn. `parent_id`: the experiment whose winner is the baseline
    of this one. `sweep_id`: id of the first experiment of the sweep, also on that experiment. `result`: the last
    computed A/B.
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
    sweep_id: int | None = Field(default=None, index=True)
    baseline_run_id: int = Field(sa_column=owned_by("run.id", index=True))
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

    experiment_id: int = Field(sa_column=owned_by("experiment.id", primary_key=True))
    run_id: int = Field(sa_column=owned_by("run.id", primary_key=True, index=True))
    side: str = Field(max_length=20)
    joined_by: str = Field(max_length=20)
    joined_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class RuleFiringRow(SQLModel, table=True):
    """A rule that fired for a run when its rules were last evaluated."""

    __tablename__ = "rule_firing"
    __table_args__ = (Index("ix_rule_firing_rule", "rule_id", "run_id"),)

    run_id: int = Field(sa_column=owned_by("run.id", primary_key=True))
    rule_id: str = Field(primary_key=True, max_length=100)
    fired_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


# --- Tables of judging: verdicts, regressions, pins, the audit log, and the pending judging of stacks.


class VerdictRow(SQLModel, table=True):
    """A verdict on a run.

    One verdict per run is `current`; `verdicts.py` decides which older ones stay. `because`: why the run was judged.

    The columns from `decision` on repeat values of `document` (`domain/verdict/document.py`) for lists and for
    evidence about knobs. `comparison` is the kind of comparability; `attributed_to` is the one field that explains the
    difference.
    """

    __tablename__ = "verdict"
    __table_args__ = (
        Index("ix_verdict_run_current", "run_id", "current"),
        Index("ix_verdict_attributed", "attributed_to", "comparison"),
        Index("ix_verdict_verdict_version", "verdict_version"),
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=owned_by("run.id"))
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
    """A regression: one cause, with every affected stack as a member.

    `kind`: run (opened by a verdict) or upgrade (opened by single-field contrasts). `cause_key` groups members.
    `state`: open, acknowledged, expected, fixed, stale or invalid. `proposal`: fixed or stale, if the service proposes
    that state. `proposal_run_id`: the first run of the segment that suggests the fix. `worst_delta_pct`: its size when
    it was last judged (`domain/verdict/triage.py`), by which lists sort.
    """

    __tablename__ = "regression"
    __table_args__ = (
        Index("ix_regression_project_state", "project_id", "state"),
        Index("ix_regression_state", "state", "project_id", "gpu_hours_per_day"),
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
    """One stack of a regression, with the slow run that made it a member.

    Levels are ln of the metric (ms, GiB). They and `delta_pct` come from the segments of the history once these exist;
    `first_delta_pct` comes from the verdict on the slow run.
    """

    __tablename__ = "regression_member"
    __table_args__ = (Index("ix_regression_member_stack", "stack_key", "config_key"),)

    regression_id: int = Field(sa_column=owned_by("regression.id", primary_key=True))
    run_id: int = Field(sa_column=owned_by("run.id", primary_key=True, index=True))
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
    """The regression that explains an alarm of a run: the run opened it or belongs to its segment."""

    __tablename__ = "run_alarm"

    run_id: int = Field(sa_column=owned_by("run.id", primary_key=True))
    metric: str = Field(primary_key=True, max_length=100)
    regression_id: int = Field(sa_column=owned_by("regression.id", index=True))


class UpgradeChangeRow(SQLModel, table=True):
    """The change of step time of one job and configuration after an upgrade, measured over its runs so far.

    `run_id`: the first run after the upgrade, at history position `at`. `field`: the upgraded field; `others`: number
    of other fields that changed. `decision`: of the contrast between `runs` runs and `from_runs` runs of the stack
    before. `level`: ln of the step time (ms) after the upgrade. `side_by_side`: the stack before ran again, so the
    change was not an upgrade. `measured`: the contrast (`Verdict`); None until a row of an earlier version is judged
    again.
    """

    __tablename__ = "upgrade_change"
    __table_args__ = (
        UniqueConstraint("project_id", "stack_key", "config_key", "job"),
        Index("ix_upgrade_change_project_at", "project_id", "at"),
        Index("ix_upgrade_change_from", "project_id", "from_stack_key"),
    )

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id"))
    stack_key: str = Field(max_length=64)
    config_key: str = Field(max_length=64)
    job: str = Field(default="", max_length=300)
    from_stack_key: str = Field(max_length=64)
    run_id: int = Field(sa_column=owned_by("run.id", index=True))
    at: datetime = Field(sa_column=time_column(nullable=False))
    field: str = Field(max_length=100)
    from_value: str = Field(default="", max_length=500)
    to_value: str = Field(default="", max_length=500)
    others: int = 0
    side_by_side: bool = False
    decision: str = Field(max_length=20)
    level: float
    delta_pct: float
    ci_low_pct: float
    ci_high_pct: float
    runs: int
    from_runs: int
    measured: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))


class PinRow(SQLModel, table=True):
    """A run that a user made the golden baseline of its stack. Active until `unpinned_at`."""

    __tablename__ = "pin"
    __table_args__ = (Index("ix_pin_stack", "project_id", "stack_key"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(foreign_key="project.id")
    stack_key: str = Field(max_length=64)
    run_id: int = Field(sa_column=owned_by("run.id", index=True))
    pinned_by: str = Field(max_length=100)
    pinned_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    note: str = Field(default="", max_length=1000)
    unpinned_by: str = Field(default="", max_length=100)
    unpinned_at: datetime | None = Field(default=None, sa_column=time_column())


class GoldenProposalRow(SQLModel, table=True):
    """A proposal to make a run the golden run of its stack.

    `state`: open, approved, declined, or superseded when another run was approved first. `decided_by` and `reason` are
    empty while it is open.
    """

    __tablename__ = "golden_proposal"
    __table_args__ = (Index("ix_golden_proposal_stack", "project_id", "stack_key"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id"))
    stack_key: str = Field(max_length=64)
    run_id: int = Field(sa_column=owned_by("run.id", index=True))
    state: str = Field(default="open", max_length=20)
    proposed_by: str = Field(max_length=100)
    proposed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    note: str = Field(default="", max_length=1000)
    decided_by: str = Field(default="", max_length=100)
    decided_at: datetime | None = Field(default=None, sa_column=time_column())
    reason: str = Field(default="", max_length=1000)


class AuditEventRow(SQLModel, table=True):
    """An audit-log entry about a regression, run, stack or project. `who`: a user or Threewalls."""

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
"""Value of `StackWorkRow.judge_from` for the whole history."""


class StackWorkRow(SQLModel, table=True):
    """The pending judging and ranking of a stack, a row of a leased queue (`pipeline/work.py`).

    `judge_from`: judge all runs again from this history position on; None: judge only runs without a verdict.
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


# --- Tables of notifications: receivers, deliveries with their results, and rate limits.


class ReceiverRow(SQLModel, table=True):
    """A receiver of a project's notifications.

    `kind`: webhook, slack, teams or email; `target`: its address. `secret` signs webhook bodies. `rules`: the events
    that it receives, by verdict, regression state and stack.
    """

    __tablename__ = "receiver"

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=owned_by("project.id", index=True))
    kind: str = Field(max_length=20)
    name: str = Field(max_length=100)
    target: str = Field(max_length=2000)
    secret: str = Field(default="", max_length=100)
    rules: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    enabled: bool = True
    created_by: str = Field(max_length=100)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class DeliveryRow(SQLModel, table=True):
    """One notification to one receiver, a row of a leased queue (`pipeline/work.py`).

    `cause` is unique per receiver. `work`: waiting, enqueued, claimed or empty (done). `state`: waiting, delivered or
    failed. `replay_of`: the delivery that it repeats. `message_id` is the same in every attempt and unique across
    services. `subject`: a topic; a receiver gets the messages of a topic in order, and others in any order. `settled`:
    it failed, and was then sent again or dismissed.
    """

    __tablename__ = "delivery"
    __table_args__ = (
        UniqueConstraint("receiver_id", "cause"),
        Index("ix_delivery_work_lease", "work", "lease_until"),
        Index("ix_delivery_receiver_subject", "receiver_id", "subject"),
    )

    id: int | None = Field(default=None, primary_key=True)
    receiver_id: int = Field(sa_column=owned_by("receiver.id", index=True))
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
    """How much of a limit (`what`) a project used since `began_at` (`app/storage/projects.py`)."""

    __tablename__ = "allowance"

    project_id: int = Field(sa_column=owned_by("project.id", primary_key=True))
    what: str = Field(primary_key=True, max_length=40)
    began_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    used: int = 0


# --- The table of reference points that teams add.


class ReferencePointRow(SQLModel, table=True):
    """A reference point that a team added (`domain/references`). The audit log has its changes.

    `project_id` None: for every project. A withdrawn reference point stays readable but is no longer used.
    """

    __tablename__ = "reference_point"

    id: int | None = Field(default=None, primary_key=True)
    project_id: int | None = Field(default=None, foreign_key="project.id")
    point: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    added_by: str = Field(max_length=100)
    added_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    changed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    withdrawn_at: datetime | None = Field(default=None, sa_column=time_column())


# --- Tables of the leaderboards: stored standings of each stack, leadership periods, and the priors of rankings.


class StandingRow(SQLModel, table=True):
    """The standings of one stack, rebuilt whenever one of its runs changes (`pipeline/rank.py`).

    `document`: the `StackStandings` without boards, which have their own rows. `scaling`: the runs of its
    configurations (`ScalingRuns`), as text, because only the scaling page reads them. `title` to `about` describe the
    stack in lists, from its newest run `newest_run_id` at history position `newest_at`; `about`: known contract fields
    of the stack by name. `gpu` and `prior_version` identify the prior of the ranking; empty and 0 for an unknown GPU.
    """

    __tablename__ = "standing"
    __table_args__ = (
        # Covers the columns that `UntilRankedAgain` reads, so that it reads no documents.
        Index("ix_standing_leaderboard", "hardware_slug", "family_slug", "project_id", "updated_at"),
        Index("ix_standing_ranking_version", "ranking_version"),
        Index("ix_standing_stack", "stack_key"),
        # Titles may be longer than a page of a B-tree on PostgreSQL.
        Index("ix_standing_title", "title", postgresql_using="hash"),
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
    """One board of a stack. `results`: one result per dispatcher (`BoardResults`), for summaries across stacks."""

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
    """A change of a board's leader (`Head`). `before` is null for the first leader.

    Rows are never changed. `run_id`: the run that caused it; None if no run did or the run was deleted.
    """

    __tablename__ = "leader_change"
    __table_args__ = (
        Index("ix_leader_change_stack", "project_id", "stack_key"),
        Index("ix_leader_change_at", "at"),
        Index("ix_leader_change_project_at", "project_id", "at"),
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
    """Launch-to-launch variation of a family, with which its stacks are ranked (`pipeline/rank.py`).

    `priors`: semantic class -> `Prior`. `version` grows with every change. Stacks that were ranked with another version
    (`StandingRow.prior_version`) are ranked again.
    """

    __tablename__ = "ranking_prior"

    project_id: int = Field(foreign_key="project.id", primary_key=True)
    gpu: str = Field(primary_key=True, max_length=100)
    version: int
    priors: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))
    changed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
