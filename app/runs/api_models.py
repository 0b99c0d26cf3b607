"""Types of the API's runs; `docs/api.md` describes them. Fields may be added but not changed."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from app.domain.contract.fields import FIELDS, METRICS, PREFIX
from app.domain.run import LineExample, Slice, Source, Timer, Value
from app.storage.runs import Amendment, Quarantine, RunDetail, RunFile, RunListItem
from app.web.dependencies import ApiValue, ListOut

# --- Details of a run: failures, active settings, timers, fields to supply.


class StatedValueOut(ApiValue):
    """`line`: the line of log file `file` (counted from 0) that states the value; 0 when no single line does."""

    value: Value
    source: Source
    detail: str = ""
    file: int = 0
    line: int = 0
    in_use: bool = Field(True, description="False for a knob that has no effect because of another field.")
    stated_value: Value = Field(None, description="The stated value of a knob that is not in use.")
    stated_by: str = Field("", description="The user who stated the value after the upload.")


class LogEvidenceOut(ApiValue):
    """A line of log file `file` (counted from 0)."""

    file: int
    line: int
    text: str


class FailureOut(ApiValue):
    """The root cause of a chain comes first (docs/failures.md)."""

    kind: str
    title: str
    explanation: str
    advice: str = Field(description="Advice.")
    iteration: int | None
    rank: int | None
    evidence: list[LogEvidenceOut]


class ActivityOut(ApiValue):
    """A field as requested and as active; null where no source states it."""

    requested: StatedValueOut | None
    active: StatedValueOut | None
    agrees: bool | None


class AvailabilityOut(ApiValue):
    dispatcher: str
    available: bool
    container: str | None
    evidence: list[LogEvidenceOut]


class UnknownFieldOut(ApiValue):
    """A contract field that neither the upload nor a log states, and the ways to supply it."""

    name: str
    role: Literal["stack", "config", "info"] = Field(description="stack: figures that depend on it are provisional.")
    group: str
    meaning: str
    unit: str
    choices: list[str]
    meta: str = Field(description="Entry of `meta`, and of PATCH /api/v1/runs/{id}/contract.")
    megatron_lm: str = Field(description="Flag of Megatron-LM that states it; empty without one.")
    bridge: str = Field(description="Its path in a Megatron-Bridge configuration; empty without one.")

    @classmethod
    def of(cls, name: str) -> Self:
        meta = f"env.{name.removeprefix(PREFIX)}" if name.startswith(PREFIX) else name
        return cls.from_values(FIELDS[name], name=name, meta=meta)


def unknown_fields(names: Sequence[str]) -> list[UnknownFieldOut]:
    """Return the unknown fields, those of the stack key first."""
    unknown = [UnknownFieldOut.of(name) for name in names if name in FIELDS]
    return sorted(unknown, key=lambda unknown: unknown.role != "stack")


Finite = Annotated[float | None, AfterValidator(lambda value: value if value is None or math.isfinite(value) else None)]
"""JSON has no NaN: stored values that are not numbers become null."""
Status = Literal["received", "processing", "ready", "failed", "unread"]


class UploadAnswer(BaseModel):
    id: int
    url: str = Field(description="Page of the run.")
    status: Status
    created: bool = Field(description="False when this upload already existed.")
    verdict: str | None = Field(None, description="With `wait`, once the run is judged.")
    warnings: list[str] = Field([], description="Problems known so far; complete once the run is read.")
    unknown_fields: list[UnknownFieldOut] | None = Field(
        None, description="With `wait`, once the run is read: unknown fields, and how to supply them."
    )
    nothing_processed_since: datetime | None = Field(
        None, description="With `wait`, when no worker is running: the time of the last activity. The run stays queued."
    )


class SteadyStateOut(ApiValue):
    """The window of the figures; iteration numbers as printed, inclusive."""

    first_iteration: int
    last_iteration: int
    n: int
    method: Literal["declared", "detected"]
    is_steady: bool
    reasons: list[str] = Field(description="Why it is not steady, or what was left out.")
    short: bool = Field(description="Too few iterations for a tight interval.")
    profiled: tuple[int, int] | None = Field(
        description="First and last iteration that a profiler slowed; they do not count. Null: there are none."
    )


class MetricOut(ApiValue):
    value: float
    ci_low: Finite = Field(description="Lower end of the 95 % interval; null when it is unknown.")
    ci_high: Finite
    n: int = Field(description="Iterations behind the figure.")
    note: str = ""


def _with_every_metric(metrics: Any) -> dict[str, Any]:
    return {name: metrics.get(name) for name in METRICS}


MetricsOut = Annotated[dict[str, MetricOut | None], BeforeValidator(_with_every_metric)]
"""All headline figures in canonical order, with None for those that the run does not have."""


class FileOut(ApiValue):
    position: int
    kind: Literal["log", "config", "events"] = Field(description="By content: log, TensorBoard events, other document.")
    document: str = Field("", description="Recognised kind of document; empty for a log, and for an unreadable file.")
    name: str
    size_bytes: int = Field(description="Decompressed.")
    sha256: str | None = Field(description="Hash of the decompressed file; null when it was appended in pieces.")
    url: str = Field(description="Download.")

    @classmethod
    def of(cls, file: RunFile, run_id: int) -> Self:
        url = f"/api/v1/runs/{run_id}/files/{file.position}"
        return cls.from_values(file, sha256=file.sha256 or None, url=url)


class _RunHeadOut(ApiValue):
    """What lists and single runs share."""

    id: int
    name: str
    project: str
    generated: bool = Field(description="True in the demo project, whose logs are generated.")
    purpose: str
    branch: str
    commit: str
    commit_time: datetime | None
    created_at: datetime
    status: Status
    error: str | None = Field(description="Why no figure could be computed, when `status` is `failed`.")
    outcome: str = Field(description="How the job ended; empty until known.")
    model: str | None
    gpu: str | None
    gpus: int | None
    dispatcher: str | None
    evidence_level: str
    semantic_class: str
    provisional: bool = Field(
        description="True when a field of the stack key is unknown. With an unknown knob, only its comparisons are."
    )
    badge: str = Field(
        description="What lists show: `verdict`, but for a run without a baseline `regression` if an upgrade made it "
        "slower (`contrast_pct`) or need more memory, and `inconclusive` if that is undecided."
    )
    label: str = Field(
        description="What pages show instead of `badge`: `slower`, `slower, unconfirmed` (a rerun must confirm it), "
        "`more memory`, `alternates` (its job moves between two levels); empty if that says no more."
    )
    verdict_delta_pct: Finite = Field(description="Its own change of step time, not the size of its regression.")
    memory_pct: Finite = Field(
        description="The increase of peak memory, if it alone made the verdict a regression; else null."
    )
    contrast_pct: Finite = Field(
        description="Change of step time of a run without a baseline against runs of the previous container or "
        "cluster; null without such runs, and with the label `alternates`. `badge` says whether it counts as a "
        "regression."
    )
    experiment_id: int | None = Field(description="The experiment that the run belongs to; null without one.")
    side: str = Field(description="Its side there, `baseline` or `candidate`; empty without an experiment.")
    metrics: MetricsOut = Field(description="null with a reason in the run's `warnings`.")


class RunItemOut(_RunHeadOut):
    verdict: str = Field(
        description="Decision of the newest verdict; empty without one and for a run of a planned experiment "
        "(`experiment_id`), which has the result."
    )
    quarantine: str = Field(description="Reason of its quarantine; empty without one.")
    notes: str = Field(description="The first 200 characters of its notes.")


class RunListOut(ListOut[RunItemOut]):
    pages: int
    is_exact: bool = Field(
        description="False for more than 10,000 runs (1,000 with a searched word on PostgreSQL): `total` and `pages` "
        "are lower bounds."
    )
    after: str = Field(description="Cursor of the next page, for the parameter `after`; empty on the last page.")
    before: str = Field(description="Cursor of the previous page, for the parameter `before`; empty on the first page.")


class RunOut(_RunHeadOut):
    url: str = ""
    commit_time: datetime | None
    merge_base: str = Field(description="Where the branch of a change left its target, as stated; else empty.")
    job: str = Field(description="CI job or test, as stated; empty when unknown.")
    ci_url: str
    tags: list[str]
    notes: str = Field(description="Markdown that users wrote.")
    uploaded_by: str = Field(description="The user, or `token` and its name; empty without log-ins.")
    processed_at: datetime | None
    warnings: list[str]
    trainer: str
    contract: dict[str, StatedValueOut] = Field(description="By canonical field name, each with its source.")
    unknown: list[str] = Field(description="Contract fields that no source states.")
    stack_key: str
    config_key: str
    steady_state: SteadyStateOut | None
    health: dict[str, Any]
    definition_version: int = Field(description="Version of the definitions behind the figures.")
    definitions: dict[str, int] = Field(description="Version of each single definition (docs/metrics.md).")
    receiving: bool = Field(description="Further pieces of its logs are expected; figures cover those received.")
    reception: Literal["whole", "receiving", "complete", "incomplete"]
    updating: bool = Field(description="It will be read again, because of new bytes or a stated field.")
    unknown_fields: list[UnknownFieldOut] = Field(description="The fields of `unknown`, with the ways to supply each.")
    failures: list[FailureOut]
    activity: dict[str, ActivityOut] = Field(description="By field: requested and active values.")
    availability: list[AvailabilityOut] = Field(
        description="Which dispatchers work in its container, as its log shows."
    )
    timers: list[Timer] = Field(description="Where the step goes, over the steady window.")
    fair_for_timing: bool = Field(description="False when timer barriers slowed the run; a warning says why.")
    not_understood: list[LineExample]
    read_as: str = Field(description="Stated description of its step lines; empty without one.")
    suggested_read_as: str = Field(
        description="For an unread log: a draft of `read_as` from a line that looks like a step."
    )
    slices: list[Slice]
    amendments: list[Amendment]
    ordered_at: datetime = Field(description="History position: commit time, else upload time.")
    verdict: str = Field(
        description="Decision of the newest verdict, empty without one. A slower A/B has `regression`, too: "
        "`raises_regression` of `.../verdict` says whether it opens a regression."
    )
    quarantine: Quarantine | None = Field(description="Who quarantined it, and why.")
    files: list[FileOut]

    @classmethod
    def of(cls, run: RunDetail, listed: RunListItem, url: str) -> Self:
        """Return a run. `listed`: the same run as lists show it."""
        return cls.from_values(
            run,
            listed,
            url=url,
            unknown_fields=unknown_fields(run.unknown),
            files=[FileOut.of(file, run.id) for file in run.files],
        )


class SeriesOut(BaseModel):
    """Columns of equal length; null where nothing was printed. Empty until the run is ready."""

    columns: dict[str, list[float | int | None]]
    units: dict[str, str]


class LogLineOut(BaseModel):
    line: int = Field(description="Counted from 1, over all logs of the run in their order.")
    text: str


class LogOut(BaseModel):
    line_count: int
    lines: list[LogLineOut]
