"""Scaling as values: what the API answers as JSON, and the same points as CSV."""

from collections.abc import Mapping
from typing import Any

from app.domain.ranking.standings import Interval
from app.scaling.page import ScalingPage
from app.scaling.view import PointRow, SeriesView
from app.web.csv_text import csv_text

SCHEMA = "threewalls.scaling/1"
_KEYS = ("project", "hardware", "hardware_slug", "family", "family_slug")


def scaling_values(page: ScalingPage) -> dict[str, Any]:
    """Everything that the page shows. Efficiencies in percent of the smallest size, with their 99 % interval.

    They are null for a size that was not measured on the code that is `compared`: `changed_at` says when that changed.
    """
    chosen = page.chosen
    return {
        "schema": SCHEMA,
        **{name: getattr(chosen, name) if chosen else None for name in _KEYS},
        "container": page.container or None,
        "summary": page.answer,
        "series": [_series(view) for section in page.sections for view in section.series],
        "offers": [
            {name: getattr(one, name) for name in (*_KEYS, "stacks")}
            | {"containers": list(one.containers), "sizes": dict(one.sizes)}
            for one in page.offers
        ],
    }


def points_csv(page: ScalingPage) -> str:
    """One line a point, the heading first."""
    rows = [
        {"kind": view.series.kind, "series": view.name, "dispatcher": view.series.dispatcher, **_flat(_point(row))}
        for section in page.sections
        for view in section.series
        for row in view.points
    ]
    names = list(rows[0]) if rows else ["kind", "series", "dispatcher", "size"]
    return csv_text([names, *([row[name] for name in names] for row in rows)])


def _series(view: SeriesView) -> dict[str, Any]:
    one = view.series
    return {
        "kind": one.kind,
        "name": view.name,
        "along": one.along,
        "dispatcher": one.dispatcher or None,
        "routing_mode": one.routing_mode or None,
        "semantic_class": one.semantic_class,
        "summary": view.sentence,
        "provisional": one.provisional,
        "unknown": list(one.unknown),
        "differs_in": dict(view.apart),
        "points": [_point(row) for row in view.points],
    }


def _point(row: PointRow) -> dict[str, Any]:
    point = row.point
    return {
        "size": point.size,
        "cp": point.cp,
        "step_time_ms": _interval(point.step_time_ms),
        "efficiency_pct": _interval(point.efficiency_pct),
        "tokens_pct": _interval(point.tokens_pct),
        "directional": point.directional,
        "compared": point.compared,
        "first_at": point.first_at.isoformat(),
        "last_at": point.last_at.isoformat(),
        "days_apart": round(point.days_apart, 2),
        "changed_at": [at.isoformat() for at in point.changed_at],
        "stack_key": row.stack_key,
        "config_key": point.config_key,
        "runs": [int(run) for run in point.runs],
    }


def _interval(value: Interval | None) -> dict[str, float | None] | None:
    return None if value is None else {"value": value.value, "low": value.low, "high": value.high}


def _flat(point: Mapping[str, Any]) -> dict[str, Any]:
    """One cell a value: `step_time_ms`, `step_time_ms_low`, ..."""
    flat: dict[str, Any] = {}
    for name, value in point.items():
        if name in ("step_time_ms", "efficiency_pct", "tokens_pct"):
            parts = value or {"value": None, "low": None, "high": None}
            flat |= {name if part == "value" else f"{name}_{part}": parts[part] for part in ("value", "low", "high")}
        else:
            flat[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return flat
