"""A stack with verdicts, for pages: the judge's own functions on stored runs, without a worker."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlmodel import Session, col, select

from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, STACK_FIELDS
from app.domain.contract.resolve import config_key, stack_key
from app.domain.run import Value
from app.domain.verdict.assess import assess
from app.domain.verdict.baseline import BaselineRules
from app.domain.verdict.document import VerdictDocument, verdict_document
from app.domain.verdict.step_time import Prior
from app.storage.runs import metrics_of, stated
from app.storage.stacks import full_records
from app.storage.tables import RunRow
from app.storage.verdicts import put_verdict
from tests.builders import CONTRACT, make_run
from tests.domain.verdict.matching_runs import SAMPLES

SURE = Prior(variance=0.004**2, degrees_of_freedom=20, configurations=9)
BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
USUAL_MS = 20_000.0


def make_stack_run(
    session: Session,
    place: int,
    *,
    slower: float = 0.0,
    fields: Mapping[str, Value] | None = None,
    project: str = "judged",
    **columns: Any,
) -> int:
    """The run of day `place`, `slower` (in ln) than 20 s, with a complete contract in which `fields` are changed."""
    values: dict[str, Any] = {name: SAMPLES[FIELDS[name].kind] for name in (*STACK_FIELDS, *CONFIG_FIELDS)}
    values |= {name: value for name, (value, _, _) in CONTRACT.items()} | {"cluster": "eos", "routing_mode": "dropless"}
    values |= {"force_balance": False, "data_mode": "real"} | dict(fields or {})
    contract = {name: {"value": value, "source": "metadata", "detail": ""} for name, value in values.items()}
    stated_fields = {name: stated(entry) for name, entry in contract.items()}
    facts: dict[str, Any] = {
        "name": f"nightly-{place}",
        "purpose": "ci",
        "commit": f"{0xC41F09AB + place * 7919:08x}",
        "ordered_at": BEGAN + timedelta(days=place),
        "contract": contract,
        "unknown": [],
        "provisional": False,
        "stack_key": stack_key(project, stated_fields),
        "config_key": config_key(project, stated_fields),
        "semantic_class": "training_equivalent",
        "outcome": "completed",
        "log_step_time": float(np.log(USUAL_MS) + slower),
        "step_time_se": 0.001,
        "window_length": 46,
        "is_steady": True,
        "short": False,
        "model": values["model"],
        "gpu": values["gpu"],
        "dispatcher": values["dispatcher"],
    }
    step_time_ms = USUAL_MS * float(np.exp(slower))
    return make_run(session, project=project, step_time_ms=step_time_ms, **(facts | columns))


def make_baseline(session: Session, n: int = 12, **columns: Any) -> list[int]:
    """Days 1 to n, which vary by 0.2 %."""
    return [make_stack_run(session, day, slower=0.002 * (day % 3 - 1), **columns) for day in range(1, n + 1)]


def judge(
    session: Session,
    run: int,
    earlier: list[int],
    *,
    because: str = "It was uploaded.",
    prior: Prior = SURE,
    pinned: frozenset[str] = frozenset(),
    reruns: tuple[int, ...] = (),
) -> VerdictDocument:
    """Put the verdict of `run`, pooled with its `reruns`, against `earlier` runs, oldest first."""
    records = full_records(session, [run, *earlier, *reruns])
    candidates = [records[str(item)] for item in (*reruns, run)]
    assessment = assess(
        candidates, [records[str(item)] for item in earlier], rules=BaselineRules("main", pinned), prior=prior
    )
    rows = session.exec(select(RunRow).where(col(RunRow.id).in_([run, *earlier, *reruns]))).all()
    figures = {str(row.id): metrics_of(row.result.metrics) for row in rows}
    document = verdict_document(assessment, tuple(candidate.run for candidate in candidates), figures, 1)
    for item in (run, *reruns):
        put_verdict(session, item, document, because)
    session.flush()
    return document
