"""Experiments for tests: planned by the service's own functions, their runs judged by the real judge."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import EllipsisType
from typing import Any

from sqlalchemy import Engine

from app.domain.run import Value
from app.experiments.commands import plan_experiment
from app.pipeline.propose import ExperimentRequest
from app.settings import get_settings
from app.storage.database import read_session, transaction
from app.storage.experiments import Experiment, get_experiment
from app.storage.tables import RunRow
from tests.builders import make_stack
from tests.suggestions.advised import FIELDS, LAUNCH, PROFILED

PROJECT = "tuning"
COMMIT = "5eed0fbd5a1c4f6e9d3b2a10c8e7f6a5b4c3d2e1"
USUAL_MS = 31_310.0
CAME = datetime(2026, 9, 1, 4, tzinfo=UTC)
Fields = Mapping[str, Value | EllipsisType]


def make_history(engine: Engine, n: int = 8, *, fields: Fields | None = None, **columns: Any) -> list[int]:
    """Nightly runs of the baseline's configuration, which vary by 0.3 %; the spread is estimated from them."""
    times = [USUAL_MS * (1 + 0.003 * (day % 3 - 1)) for day in range(n)]
    with transaction(engine) as session:
        return make_stack(session, times, project=PROJECT, fields={**FIELDS, **(fields or {})}, **columns)


def make_baseline(engine: Engine, ms: float = USUAL_MS, *, fields: Fields | None = None, **columns: Any) -> int:
    """The run that is planned from: the overlap case with a profile, after its nightly runs."""
    stated: dict[str, Any] = {"launch_args": LAUNCH, **PROFILED} | columns.pop("metadata_stated", {})
    columns = {"created_at": CAME, "started": CAME + timedelta(days=20), "purpose": "experiment"} | columns
    with transaction(engine) as session:
        return make_stack(
            session, [ms], project=PROJECT, fields={**FIELDS, **(fields or {})}, commits=[COMMIT],
            metadata_stated=stated, **columns,
        )[0]  # fmt: skip


def plan(engine: Engine, run: int, rule: str = "eo-enable", **requested: Any) -> int:
    if "knobs" in requested:
        rule = ""
    return plan_experiment(engine, get_settings(), ExperimentRequest(run, rule, **requested), "mara")


def add_runs(
    engine: Engine,
    tag: str,
    times_ms: Sequence[float],
    *,
    side: str = "candidate",
    fields: Fields | None = None,
    **columns: Any,
) -> list[int]:
    """Uploads of a side, as its command would make them; judged, so that they join. `side` "": without a tag."""
    turned: Fields = {"ep_overlap": True} if side == "candidate" and fields is None else dict(fields or {})
    run_ids = []
    for number, time in enumerate(times_ms):
        facts: dict[str, Any] = {"purpose": "experiment", "tags": [label for label in (tag, side) if label]}
        facts |= {"name": f"{side} {number} {time}", "started": CAME + timedelta(days=21)} | columns
        with transaction(engine) as session:
            run_ids += make_stack(
                session, [time], project=PROJECT, fields={**FIELDS, **turned},
                commits=[facts.pop("commit", COMMIT)], **facts,
            )  # fmt: skip
    return run_ids


def read(engine: Engine, experiment: int) -> Experiment:
    with read_session(engine) as session:
        return get_experiment(session, experiment)


def change_run(engine: Engine, run: int, **columns: Any) -> None:
    with transaction(engine) as session:
        row = session.get_one(RunRow, run)
        for name, value in columns.items():
            setattr(row, name, value)
