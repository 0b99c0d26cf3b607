"""`threewalls runs`: the list of runs, as a table."""

import argparse
from collections.abc import Mapping
from typing import Any

from app.client.errors import Strange
from app.client.options import RUN_FILTERS
from app.client.plain import one_line
from app.client.service import Service

_WIDEST = 40
_HEAD = ("run", "created", "name", "branch", "step time", "verdict", "state")


def runs(service: Service, options: argparse.Namespace) -> dict[str, Any]:
    """What `GET /api/v1/runs` answers. The project is that of the settings, if they name one."""
    wanted = {name: getattr(options, name) for name in (*RUN_FILTERS, "q", "sort")}
    params = {name: value for name, value in wanted.items() if value}
    if service.settings.project:
        params["project"] = service.settings.project
    found: dict[str, Any] = service.get(
        "/api/v1/runs", {**params, "page": options.page, "page_size": options.limit}
    ).json()
    if not isinstance(found.get("items"), list):
        raise Strange(service.settings.url, "what it sent is no list of runs")
    return found


def as_text(found: Mapping[str, Any]) -> list[str]:
    rows = [_HEAD, *(_row(item) for item in found["items"])]
    if not found["items"]:
        return ["no run fits these filters"]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if found["pages"] > 1:
        lines.append(f"page {found['page']} of {found['pages']}; {found['total']:,} runs. --page shows others")
    return lines


def _row(item: Mapping[str, Any]) -> tuple[str, ...]:
    metric = (item.get("metrics") or {}).get("step_time_ms")
    state = item["status"] if item["status"] != "ready" else item.get("outcome") or "ready"
    texts = (
        item["id"], str(item["created_at"])[:16].replace("T", " "), item["name"], item["branch"],
        f"{metric['value']:,.1f} ms" if metric else "", item["verdict"], state,
    )  # fmt: skip
    return tuple(one_line(str(text))[:_WIDEST] for text in texts)
