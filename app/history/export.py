"""A history as values: what the API answers as JSON, and the same runs as CSV."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from app.domain.matching import Difference
from app.domain.run import Metric
from app.history.page import HistoryPage
from app.web.csv_text import csv_text
from app.web.numbers import UNITS

_ROWS_AT_ONCE = 500


def history_values(page: HistoryPage) -> dict[str, Any]:
    """Everything that the page shows, runs in commit order. Step times in ms, shifts of step time in percent."""
    history, stack = page.history, page.stack
    return {
        "stack_key": stack.stack_key,
        "title": stack.title,
        "project": stack.project,
        "generated": stack.generated,
        "answer": page.answer,
        "contract": {name: stated.value for name, stated in sorted(stack.contract.items())},
        "configurations": [_configuration(page, index) for index in range(len(page.shown))],
        "change_points": _change_points(page),
        "golden_runs": [_golden(drift) for drift in page.drifts],
        "version_changes": [
            {
                "run_id": history.runs[one.run].id,
                "after_run_id": history.runs[one.before].id,
                "changed": [_difference(difference) for difference in one.differences],
            }
            for one in page.versions
        ],
        "other_containers": [
            {
                "stack_key": one.stack_key,
                "container": one.container,
                "runs": one.runs,
                "first_at": one.first_at.isoformat(),
                "last_at": one.last_at.isoformat(),
                "is_later": one.is_later,
            }
            for one in page.neighbours
        ],
        "runs": list(_runs(page)),
    }


def csv_rows(page: HistoryPage) -> Iterator[str]:
    """The runs in commit order, one line each, in pieces. All is read at once, while the session lasts."""
    rows = [_flat(run) for run in _runs(page)]
    lines = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    return (csv_text(lines[start : start + _ROWS_AT_ONCE]) for start in range(0, len(lines), _ROWS_AT_ONCE))


def _configuration(page: HistoryPage, index: int) -> dict[str, Any]:
    one, runs = page.shown[index], page.history.runs
    return {
        "letter": one.letter,
        "config_key": one.config_key,
        "dispatcher": runs[one.runs[-1]].dispatcher,
        "is_last": one.is_last,
        "runs": len(one.runs),
        "counted": len(one.counted),
        "levels": [
            {
                "first_run_id": runs[level.first].id,
                "last_run_id": runs[level.last].id,
                "runs": level.n,
                "step_time_ms": level.step_time_ms,
            }
            for level in one.levels
        ],
    }


def _change_points(page: HistoryPage) -> list[dict[str, Any]]:
    return [
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
    ]


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


def _difference(difference: Difference) -> dict[str, Any]:
    a, b = difference.a, difference.b
    return {"field": difference.field, "from": a.value if a else None, "to": b.value if b else None}


def _runs(page: HistoryPage) -> Iterator[dict[str, Any]]:
    figures = page.all_figures()
    return (_run(page, place, figures[page.history.runs[place].id]) for place in page.places)


def _run(page: HistoryPage, place: int, figures: Mapping[str, Metric | None]) -> dict[str, Any]:
    run = page.history.runs[place]
    standing = page.history.standings[place]
    return {
        "id": run.id,
        "name": run.name,
        "at": run.ordered_at.isoformat(),
        "commit": run.commit,
        "branch": run.branch,
        "purpose": run.purpose,
        "config_key": run.config_key,
        "letter": page.history.by_key[run.config_key].letter,
        "dispatcher": run.dispatcher,
        "outcome": run.outcome,
        "counts": standing == "counts",
        "not_counted_because": None if standing == "counts" else standing,
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
    """One cell a value: `step_time_ms`, `step_time_ms_ci_low`, ..."""
    flat = {name: value for name, value in row.items() if name != "metrics"}
    for name, metric in row["metrics"].items():
        for part in ("value", "ci_low", "ci_high", "n"):
            flat[name if part == "value" else f"{name}_{part}"] = metric[part] if metric else None
    return flat
