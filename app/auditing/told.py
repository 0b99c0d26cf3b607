"""An event of the audit in words, with the page of what it changed."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.storage.audit import AuditEvent
from app.web.csv_text import csv_text

_PAGES = {
    "run": "/runs/{id}",
    "regression": "/regressions/{id}",
    "stack": "/history/{id}",
    "experiment": "/experiments/{id}",
    "project": "/settings/projects/{project}",
    "member": "/settings/projects/{project}/members",
    "token": "/settings/projects/{project}/tokens",
    "receiver": "/settings/projects/{project}/notifications",
}
_LONGEST = 120
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
_HEADING = ("id", "at", "who", "project", "subject", "subject_id", "name", "action", "before", "after", "note")


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Told:
    """`address`: of the page of what was changed, empty where there is none. `label`: its name, or its number."""

    event: AuditEvent
    project: str
    label: str
    address: str
    changes: tuple[Change, ...]


def told(event: AuditEvent, slugs: Mapping[int, str], names: Mapping[str, str]) -> Told:
    """`names`: of accounts, by their number as a text."""
    project = slugs.get(event.project_id or 0, "")
    page = _PAGES.get(event.subject, "")
    if "{project}" in page and not project:
        page = ""
    address = page.format(id=quote(event.subject_id, safe=""), project=quote(project, safe=""))
    both = {**event.before, **event.after}
    label = subject_name(event, slugs, names) or event.subject_id[:12]
    changes = tuple(
        Change(key, _shown(event.before.get(key)), _shown(event.after.get(key)))
        for key in both
        if event.before.get(key) != event.after.get(key) and key != "name"
    )
    return Told(event, project, label, address, changes)


def subject_name(event: AuditEvent, slugs: Mapping[int, str], names: Mapping[str, str]) -> str:
    """What it is called that was changed; empty where it has a number only."""
    if event.subject == "project":
        return slugs.get(event.project_id or 0, "")
    name = {**event.before, **event.after}.get("name")
    of_account = names.get(event.subject_id, "") if event.subject in ("account", "member") else ""
    return of_account or (name if isinstance(name, str) else "")


def csv_rows(
    pieces: Iterator[tuple[AuditEvent, ...]], slugs: Mapping[int, str], names: Mapping[str, str]
) -> Iterator[str]:
    """One line each, newest first, with the heading first. What changed is JSON."""
    yield csv_text([_HEADING])
    for events in pieces:
        yield csv_text(
            (
                one.id, one.at.isoformat(timespec="seconds"), one.who, slugs.get(one.project_id or 0), one.subject,
                one.subject_id, subject_name(one, slugs, names), one.action, _json(one.before),
                _json(one.after), one.note,
            )
            for one in events
        )  # fmt: skip


def _json(values: Mapping[str, Any]) -> str | None:
    return json.dumps(values, ensure_ascii=False, sort_keys=True) if values else None


def _shown(value: Any) -> str:
    if value is None or value in ("", []):
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ", ".join(value)
    if isinstance(value, str) and _TIME.fullmatch(value):
        value = f"{value[:10]} {value[11:16]} UTC"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
