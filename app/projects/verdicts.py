"""What a project decides about verdicts: thresholds, limits, reruns, reference job, upgrades; what its reruns gain."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import Engine, func, select
from sqlmodel import Session, col

from app.domain.performance.cost import steps_of_run
from app.domain.text import one_line
from app.domain.verdict.policy import BOUNDS, RANGES, Policy, StackPolicy, read_fixed, read_thresholds
from app.domain.verdict.power import Power, launches_needed, powers
from app.errors import FieldError, InvalidChange
from app.pipeline.decisions import judge_project_again
from app.queue import JUDGE_STACK, enqueue
from app.storage import audit
from app.storage.audit import AuditEvent
from app.storage.database import transaction
from app.storage.projects import find_project
from app.storage.tables import RunResultRow, RunRow, VerdictRow, select_any, utc_now
from app.storage.verdicts import gpu_hours, reruns_since

log = structlog.get_logger(__name__)

ACTION = "verdict_policy"
MAX_JOB = 300
MOST_STACKS = 100
MOST_UPGRADES, MAX_UPGRADE = 20, 500
_NEWEST = 100
"""Verdicts from which the spread of launches and the size of baselines are taken."""
_RATE_DAYS = 14


@dataclass(frozen=True, slots=True)
class ProjectPolicy:
    """`stored`: the policy as JSON. `events`: its changes, newest first."""

    project_id: int
    project: str
    policy: Policy
    stored: Mapping[str, Any]
    events: tuple[AuditEvent, ...]

    @property
    def every(self) -> StackPolicy:
        """What holds for stacks without own decisions."""
        return self.policy.of_stack("")


def get_policy(session: Session, slug: str) -> ProjectPolicy:
    """Return the verdict policy of a project with its changes. Raises NotFound."""
    project = find_project(session, slug)
    number = project.id or 0
    events = tuple(event for event in audit.events(session, "project", number) if event.action == ACTION)
    return ProjectPolicy(number, slug, Policy.read(project.verdict_policy), project.verdict_policy, events)


def set_policy(engine: Engine, slug: str, stated: Mapping[str, Any], author: str) -> ProjectPolicy:
    """Replace the policy of a project; every stack is judged again when thresholds, limits or the job changed.

    `stated`: `thresholds` and `fixed` for every stack, `stacks` with both by stack key or its first digits, `budget`,
    `reference_job`, `upgrades`. Raises NotFound, and InvalidChange with an error for each invalid field.
    """
    author = one_line(author)
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        after = _checked(session, project.id or 0, stated, author)
        before = dict(project.verdict_policy)
        asked: list[int] = []
        if after != before:
            project.verdict_policy = after
            session.add(project)
            changed = [name for name in after.keys() | before.keys() if before.get(name) != after.get(name)]
            audit.record_project(
                session, project.id, ACTION, who=author, before={name: before.get(name) for name in sorted(changed)},
                after={name: after.get(name) for name in sorted(changed)},
            )  # fmt: skip
            session.flush()
            if set(changed) - {"budget"}:
                because = "The thresholds, limits, reference job or upgrades of the project were changed."
                asked = judge_project_again(session, project.id or 0, because)
        policy = get_policy(session, slug)
    for work_id in asked:
        enqueue(JUDGE_STACK, work_id)
    log.info("verdict_policy_set", project=slug, stacks=len(asked))
    return policy


def _checked(session: Session, project_id: int, stated: Mapping[str, Any], author: str) -> dict[str, Any]:
    """Return the policy as it is stored. Raises InvalidChange."""
    errors: list[FieldError] = []
    after: dict[str, Any] = {}
    every = _scope(stated, "", errors)
    if every:
        after["every"] = every
    stacks = stated.get("stacks") or {}
    if len(stacks) > MOST_STACKS:
        errors.append(FieldError("stacks", f"must be at most {MOST_STACKS} stacks"))
    for text, values in list(stacks.items())[:MOST_STACKS]:
        key = _stack_key(session, project_id, text)
        if key is None:
            errors.append(FieldError(f"stacks.{text}", "must be the key of a stack of this project, or 8 digits of it"))
        elif own := _scope(values, f"stacks.{text}.", errors):
            after.setdefault("stacks", {})[key] = own
    if budget := _budget(stated.get("budget") or {}, errors):
        after["budget"] = budget
    job = one_line(str(stated.get("reference_job") or ""))
    if len(job) > MAX_JOB:
        errors.append(FieldError("reference_job", f"must have at most {MAX_JOB} characters"))
    elif job:
        after["reference_job"] = job
    upgrades = sorted({one_line(str(value)) for value in stated.get("upgrades") or []} - {""})
    if len(upgrades) > MOST_UPGRADES or any(len(value) > MAX_UPGRADE for value in upgrades):
        errors.append(FieldError("upgrades", f"must be at most {MOST_UPGRADES} values of {MAX_UPGRADE} characters"))
    elif upgrades:
        after["upgrades"] = upgrades
    errors += audit.author_errors(author)
    if errors:
        raise InvalidChange.of(*errors)
    return after


def _scope(values: Mapping[str, Any], prefix: str, errors: list[FieldError]) -> dict[str, Any]:
    thresholds, wrong = read_thresholds(values.get("thresholds") or {})
    fixed, wrong_too = read_fixed(values.get("fixed") or [])
    errors += [FieldError(prefix + name, problem) for name, problem in (*wrong, *wrong_too)]
    return {name: read for name, read in (("thresholds", thresholds), ("fixed", fixed)) if read}


def _stack_key(session: Session, project_id: int, text: str) -> str | None:
    if len(text) < 8 or not set(text) <= set("0123456789abcdef"):
        return None
    key = col(RunRow.stack_key)
    begun = select(key).where(col(RunRow.project_id) == project_id, key >= text, key < text + "g").distinct().limit(2)
    keys = list(session.execute(begun).scalars())
    return keys[0] if len(keys) == 1 else None


def _budget(values: Mapping[str, Any], errors: list[FieldError]) -> dict[str, float]:
    read: dict[str, float] = {}
    for name, whole in (("reruns_a_day", True), ("gpu_hours_a_day", False)):
        value = values.get(name)
        if value is None:
            continue
        number = not isinstance(value, bool) and isinstance(value, int if whole else int | float)
        if number and 0 <= value <= 1e6:
            read[name] = value
        else:
            errors.append(FieldError(f"budget.{name}", f"must be empty or a {'whole ' * whole}number from 0 on"))
    return read


# --- Limits as a line of text: what the form of the page edits.


def limits_text(stored: Mapping[str, Any]) -> str:
    """Return fixed limits, and the thresholds of single stacks: `mfu_pct at least 30; 0123abcd relevance_pct 3`."""
    parts = [_fixed_text(limit) for limit in stored.get("every", {}).get("fixed", [])]
    for key, own in stored.get("stacks", {}).items():
        parts += [f"{key[:12]} {name} {value:g}" for name, value in own.get("thresholds", {}).items()]
        parts += [f"{key[:12]} {_fixed_text(limit)}" for limit in own.get("fixed", [])]
    return "; ".join(parts)


def _fixed_text(limit: Mapping[str, Any]) -> str:
    return f"{limit['metric']} {limit['bound'].replace('_', ' ')} {limit['value']:g}"


def read_limits(text: str) -> dict[str, Any]:
    """Read such a line into `fixed` and `stacks`. Raises InvalidChange naming the invalid part."""
    read: dict[str, Any] = {"fixed": [], "stacks": {}}
    for part in filter(None, (part.strip() for part in text.replace("\n", ";").split(";"))):
        words = part.split()
        names = (*RANGES, "hours_without_run")
        of_stack = len(words) > 2 and len(words[0]) >= 8 and set(words[0]) <= set("0123456789abcdef")
        scope = read["stacks"].setdefault(words.pop(0), {"thresholds": {}, "fixed": []}) if of_stack else read
        bound = "_".join(words[1:3])
        try:
            value = float(words[-1])
        except (ValueError, IndexError):
            value = math.nan
        if len(words) == 4 and bound in BOUNDS and math.isfinite(value):
            scope["fixed"].append({"metric": words[0], "bound": bound, "value": value})
        elif of_stack and len(words) == 2 and words[0] in names and math.isfinite(value):
            scope["thresholds"][words[0]] = value
        else:
            message = f"cannot be read: {part[:60]!r}. Write `METRIC at least VALUE` or `STACK relevance_pct VALUE`"
            raise InvalidChange.of_field("limits", message)
    return read


# --- What the reruns of a project gain, from its own verdicts.


@dataclass(frozen=True, slots=True)
class RerunValue:
    """`spread_pct`: how much launches vary; `baseline_runs`: of a typical verdict; `reruns_today`: in 24 hours.

    `powers`: the chance to call slowdowns. `launches_per_commit`: to call a slowdown of `detected_pct`, twice the
    smallest reported change, in nine of ten cases, None when no number does; `gpu_hours_a_day`: what the launches after
    the first cost. None: unknown.
    """

    spread_pct: float
    baseline_runs: int
    verdicts: int
    powers: tuple[Power, ...]
    detected_pct: float
    launches_per_commit: int | None
    runs_a_day: float
    gpu_hours_a_run: float | None
    reruns_today: int
    gpu_hours_today: float

    @property
    def gpu_hours_a_day(self) -> float | None:
        if self.launches_per_commit is None or self.gpu_hours_a_run is None:
            return None
        return (self.launches_per_commit - 1) * self.gpu_hours_a_run * self.runs_a_day


def rerun_value(session: Session, project: ProjectPolicy) -> RerunValue | None:
    """Return what reruns gain; None until a run of the project was compared with a baseline."""
    times = _newest_tests(session, project.project_id)
    if not times:
        return None
    spread = statistics.median(time["run_to_run_sd"] for time, _ in times)
    size = round(statistics.median(runs for _, runs in times))
    now = utc_now()
    own = (col(RunRow.project_id) == project.project_id, col(RunRow.purpose) == "ci")
    # By commit date, because a history may be uploaded in one day.
    last = session.execute(select(func.max(col(RunRow.ordered_at))).where(*own)).scalar_one() or now
    since = col(RunRow.ordered_at) >= last - timedelta(days=_RATE_DAYS)
    runs = session.execute(select(func.count()).where(*own, since)).scalar_one()
    newest = session.execute(
        select_any(RunRow.gpus, RunRow.step_time_ms, RunResultRow.slices, RunResultRow.health)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(*own, col(RunRow.status) == "ready")
        .order_by(col(RunRow.id).desc())
        .limit(_RATE_DAYS)
    ).all()
    hours = [gpu_hours(row.gpus, row.step_time_ms, steps_of_run(row.slices, row.health)) for row in newest]
    measured = [value for value in hours if value is not None]
    thresholds = project.every.thresholds
    detected = 2 * thresholds.relevance_pct
    today, hours_today = reruns_since(session, project.project_id, now - timedelta(days=1))
    return RerunValue(
        spread_pct=100 * spread,
        baseline_runs=size,
        verdicts=len(times),
        powers=tuple(powers(spread, size, thresholds)),
        detected_pct=detected,
        launches_per_commit=launches_needed(detected, spread, size, thresholds),
        runs_a_day=runs / _RATE_DAYS,
        gpu_hours_a_run=statistics.median(measured) if measured else None,
        reruns_today=today,
        gpu_hours_today=hours_today,
    )


def _newest_tests(session: Session, project_id: int) -> Sequence[tuple[Mapping[str, Any], int]]:
    """Return the tests of step time of the newest verdicts, each with its number of baseline runs."""
    rows = session.execute(
        select_any(VerdictRow.document)
        .join(RunRow, col(RunRow.id) == VerdictRow.run_id)
        .where(
            col(RunRow.project_id) == project_id,
            col(VerdictRow.current),
            col(VerdictRow.baseline_kind).in_(("same_config", "golden")),
        )
        .order_by(col(VerdictRow.id).desc())
        .limit(_NEWEST)
    ).scalars()
    verdicts = [document["verdict"] for document in rows]
    return [(verdict["step_time"], len(verdict["baseline_used"])) for verdict in verdicts if verdict.get("step_time")]


def value_json(value: RerunValue | None) -> dict[str, Any] | None:
    """Return the values as the API serves them."""
    if value is None:
        return None
    return asdict(value) | {"gpu_hours_a_day": value.gpu_hours_a_day}
