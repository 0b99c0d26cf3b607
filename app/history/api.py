"""Histories at `/api/v1/history/{stack}`: the content of the stack page, as JSON and CSV."""

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from app.domain.access.principal import Action
from app.domain.numbers import UNITS
from app.domain.run import Metric
from app.domain.verdict.comparability import Difference
from app.errors import FieldError, InvalidQuery, NotFound
from app.history.page import HistoryEvent, HistoryPage, ProposalRow
from app.history.queries import HistoryView, get_stack, matching_keys
from app.web.access_rule import requires
from app.web.dependencies import ReadSession, StackKey, api_router
from app.web.errors import as_content, documented
from app.web.lists import CellKind, csv_text, table_answer, table_format

# --- A history as JSON, and its runs as CSV.

_ROWS_AT_ONCE = 500
_RUN_COLUMNS: Mapping[str, CellKind] = {
    "id": "int", "name": "text", "at": "time", "commit": "text", "branch": "text", "purpose": "text",
    "config_key": "text", "letter": "text", "dispatcher": "text", "outcome": "text", "counts": "flag",
    "not_counted_because": "text", "verdict": "text", "verdict_delta_pct": "float",
}  # fmt: skip
"""Columns of a run in a table, as `_flat` returns them. The columns of its figures follow."""


def history_values(page: HistoryPage, across: HistoryPage) -> dict[str, Any]:
    """Return the content of the page, runs in commit order. Step times in ms, shifts in percent of step time.

    `across`: the same page with the other containers of the workload, which the page of the stack shows.
    """
    history, stack = page.history, page.stack
    return {
        "stack_key": stack.stack_key,
        "title": page.name,
        "project": stack.project,
        "generated": stack.generated,
        "answer": across.answer,
        "lead": across.lead,
        "contract": {name: stated.value for name, stated in sorted(stack.contract.items())},
        "configurations": [_configuration(page, index) for index in range(len(page.shown))],
        "change_points": [
            {
                "letter": row.letter,
                "config_key": row.run.config_key,
                "run_id": row.run.id,
                "after_run_id": row.before.id,
                "at": row.run.ordered_at.isoformat(),
                "commit": row.run.commit,
                "after_commit": row.before.commit,
                "delta_pct": row.change.delta_pct,
                "p_value": row.change.p_value,
                "from_step_time_ms": row.change.from_ms,
                "to_step_time_ms": row.change.to_ms,
                "called_by_run_id": row.called_by.id if row.called_by else None,
                "regression_id": row.regression_id,
            }
            for row in page.changes
        ],
        "changes": [_event(event) for event in across.events],
        "golden_runs": [_golden(drift) for drift in page.drifts],
        "golden_proposals": [_proposal(row) for row in page.proposals],
        "version_changes": [
            {
                "run_id": history.runs[version.run].id,
                "after_run_id": history.runs[version.before].id,
                "changed": [_difference(difference) for difference in version.differences],
            }
            for version in page.versions
        ],
        "other_containers": [
            {
                "stack_key": neighbour.stack_key,
                "container": neighbour.container,
                "runs": neighbour.runs,
                "first_at": neighbour.first_at.isoformat(),
                "last_at": neighbour.last_at.isoformat(),
                "is_later": neighbour.is_later,
            }
            for neighbour in page.neighbours
        ],
        "runs": list(_runs(page)),
    }


def csv_rows(page: HistoryPage) -> Iterator[str]:
    """Yield the runs in commit order as CSV lines, in pieces. All data is read first, while the session is open."""
    rows = [_flat(run) for run in _runs(page)]
    lines = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    return (csv_text(lines[start : start + _ROWS_AT_ONCE]) for start in range(0, len(lines), _ROWS_AT_ONCE))


def _event(event: HistoryEvent) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "run_id": event.run.id,
        "stack_key": event.run.facts.stack_key,
        "config_key": event.run.config_key,
        "at": event.run.ordered_at.isoformat(),
        "delta_pct": event.level.delta_pct,
        "decision": event.decision or None,
        "from_step_time_ms": event.level.from_ms,
        "to_step_time_ms": event.level.to_ms,
        "changed": [dict(zip(("field", "before", "after"), values, strict=True)) for values in event.changed],
        "regression_id": event.regression[0] if event.regression else None,
    }


def _configuration(page: HistoryPage, index: int) -> dict[str, Any]:
    configuration, runs = page.shown[index], page.history.runs
    return {
        "letter": configuration.letter,
        "config_key": configuration.config_key,
        "job": configuration.job,
        "dispatcher": runs[configuration.runs[-1]].dispatcher,
        "is_last": configuration.is_last,
        "runs": len(configuration.runs),
        "counted": len(configuration.counted),
        "levels": [
            {
                "first_run_id": runs[level.first].id,
                "last_run_id": runs[level.last].id,
                "runs": level.n,
                "step_time_ms": level.step_time_ms,
            }
            for level in configuration.levels
        ],
    }


def _golden(drift: Any) -> dict[str, Any]:
    pin = drift.pin
    return {
        "run_id": pin.run_id,
        "pinned_by": pin.pinned_by,
        "pinned_at": pin.pinned_at.isoformat(),
        "note": pin.note,
        "unpinned_by": pin.unpinned_by or None,
        "unpinned_at": pin.unpinned_at.isoformat() if pin.unpinned_at else None,
        "drift_since_last_pin_pct": drift.since_last.delta_pct if drift.since_last else None,
        "drift_since_release_pct": drift.since_release.delta_pct if drift.since_release else None,
        "now_against_it_pct": drift.now.delta_pct if drift.now else None,
    }


def _proposal(row: ProposalRow) -> dict[str, Any]:
    proposal = row.proposal
    return {
        "run_id": proposal.run_id,
        "state": proposal.state,
        "proposed_by": proposal.proposed_by,
        "proposed_at": proposal.proposed_at.isoformat(),
        "note": proposal.note,
        "decided_by": proposal.decided_by or None,
        "decided_at": proposal.decided_at.isoformat() if proposal.decided_at else None,
        "reason": proposal.reason,
        "drift_since_golden_pct": row.drift.delta_pct if row.drift else None,
    }


def _difference(difference: Difference) -> dict[str, Any]:
    a, b = difference.a, difference.b
    return {"field": difference.field, "from": a.value if a else None, "to": b.value if b else None}


def _runs(page: HistoryPage) -> Iterator[dict[str, Any]]:
    figures, letters = page.all_figures(), page.history.letters
    return (
        _run(page, position, letters[position], figures[page.history.runs[position].id]) for position in page.positions
    )


def _run(page: HistoryPage, position: int, letter: str, figures: Mapping[str, Metric | None]) -> dict[str, Any]:
    run = page.history.runs[position]
    eligibility = page.history.eligibilities[position]
    return {
        "id": run.id,
        "name": run.name,
        "at": run.ordered_at.isoformat(),
        "commit": run.commit,
        "branch": run.branch,
        "purpose": run.purpose,
        "config_key": run.config_key,
        "letter": letter,
        "dispatcher": run.dispatcher,
        "outcome": run.outcome,
        "counts": eligibility == "counts",
        "not_counted_because": None if eligibility == "counts" else eligibility,
        "verdict": run.verdict or None,
        "verdict_delta_pct": run.verdict_delta_pct,
        "metrics": {name: _metric(figures.get(name)) for name in UNITS},
    }


def _metric(metric: Metric | None) -> dict[str, Any] | None:
    if metric is None:
        return None
    ends = (end if math.isfinite(end) else None for end in (metric.ci_low, metric.ci_high))
    return dict(zip(("value", "ci_low", "ci_high", "n"), (metric.value, *ends, metric.n), strict=True))


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return the run with one key per value: `step_time_ms`, `step_time_ms_ci_low`, ..."""
    flat = {name: value for name, value in row.items() if name != "metrics"}
    for name, metric in row["metrics"].items():
        for part in ("value", "ci_low", "ci_high", "n"):
            flat[name if part == "value" else f"{name}_{part}"] = metric[part] if metric else None
    return flat


router = api_router("history")


class HistoryQuery(BaseModel):
    """Select the runs of one configuration, or those between two runs."""

    config: Annotated[str, Query(description="A config key, or its first digits. Default: all configurations.")] = ""
    first: Annotated[int, Query(ge=0, description="Number of the first run.")] = 0
    last: Annotated[int, Query(ge=0, description="Number of the last run.")] = 0


class HistoryOut(BaseModel):
    """A history. `change_points`: newest first; `runs`: in commit order. Runs that do not count are in no segment.

    `lead` and `changes` are those of the page, which also covers the other containers of the workload.
    """

    stack_key: str
    title: str
    project: str
    generated: bool
    answer: str
    lead: str
    contract: dict[str, Any]
    configurations: list[dict[str, Any]]
    change_points: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    golden_runs: list[dict[str, Any]]
    golden_proposals: list[dict[str, Any]]
    version_changes: list[dict[str, Any]]
    other_containers: list[dict[str, Any]]
    runs: list[dict[str, Any]]


@router.get(
    "/history/{stack}",
    response_model=HistoryOut,
    responses=documented(404, 406, 422, ok=as_content("text/csv")),
)
@requires(Action.READ)
def read_history(
    request: Request, session: ReadSession, stack: StackKey, query: Annotated[HistoryQuery, Query()]
) -> Response:
    """Return the history of a stack: runs, segments, change points, golden runs. As a table (`format`) its runs."""
    chosen = table_format(request, strict=True)
    given = {name: str(value) for name, value in query.model_dump().items() if value}
    keys = matching_keys(session, stack)
    history_stack = get_stack(session, keys[0]) if len(keys) == 1 else None
    if len(keys) > 1:
        error = FieldError("stack", f"matches several stack keys: {', '.join(keys)}")
        raise InvalidQuery("The stack key is ambiguous: give more digits.", (error,))
    if history_stack is None:
        raise NotFound("No stack has this key. Give the `stack_key` of a run, or at least 8 of its first digits.")
    view = HistoryView.from_params(given)
    page = HistoryPage(session, history_stack, "", view, across=False)
    name = f"history-{history_stack.stack_key[:12]}"
    if chosen == "parquet":
        rows = [_flat(run) | {"at": datetime.fromisoformat(run["at"])} for run in _runs(page)]
        names = rows[0] if rows else _RUN_COLUMNS
        columns = {column: _RUN_COLUMNS.get(column, "int" if column.endswith("_n") else "float") for column in names}
        return table_answer(chosen, columns, [[tuple(row.values()) for row in rows]], name)
    if chosen == "csv":
        headers = {"Content-Disposition": f'attachment; filename="{name}.csv"', "Vary": "Accept"}
        return StreamingResponse(csv_rows(page), media_type="text/csv", headers=headers)
    across = HistoryPage(session, history_stack, "", view)
    return JSONResponse(history_values(page, across), headers={"Vary": "Accept"})
