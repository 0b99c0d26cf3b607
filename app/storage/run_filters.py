"""Conditions on runs by tag, job, user, commit and contract field, and the values that complete them.

A contract field is found through the configurations that have it, because all runs of a configuration have the fields
of its key: a worker writes the few rows of each new one. Fields of no key are searched in the newest runs only.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Engine, func, insert, select
from sqlmodel import Session, SQLModel, col

from app.domain.contract.fields import FIELDS
from app.domain.numbers import contract_value
from app.storage.database import read_session, transaction
from app.storage.derived import LABELS
from app.storage.runs import stored_contract
from app.storage.tables import (
    ConfigValueRow,
    ProjectRow,
    RunLabelRow,
    RunResultRow,
    RunRow,
    RunValueRow,
    select_any,
    table_of,
)

LABEL_NAMES = ("tag", *LABELS)
NEWEST_READ = 2000
"""Runs in which a field that is part of no key is searched."""
MOST_COMPLETIONS = 20
_CONFIGURATIONS_AT_ONCE = 200


def has_label(field: str, value: str) -> ColumnElement[bool]:
    """Return the condition that a run has this tag, job or user, or a commit that begins with the value."""
    labels = select(col(RunLabelRow.run_id)).where(col(RunLabelRow.field) == field)
    if field == "commit":
        last = value[:-1] + chr(ord(value[-1]) + 1)
        return col(RunRow.id).in_(labels.where(col(RunLabelRow.value) >= value, col(RunLabelRow.value) < last))
    return col(RunRow.id).in_(labels.where(col(RunLabelRow.value) == value))


def has_contract_value(field: str, value: str) -> ColumnElement[bool]:
    """Return the condition that the contract of a run has this value, as shown, ignoring case."""
    if FIELDS[field].role == "info":
        newest = select_any(RunRow.id).order_by(col(RunRow.id).desc()).limit(NEWEST_READ).scalar_subquery()
        stored = col(RunResultRow.contract)[field]["value"].as_string()
        own = select(col(RunResultRow.run_id)).where(col(RunResultRow.run_id).in_(newest))
        return col(RunRow.id).in_(own.where(func.lower(stored) == value.lower()))
    configurations = select(col(ConfigValueRow.config_key)).where(
        col(ConfigValueRow.field) == field, col(ConfigValueRow.value) == value.lower()[:200]
    )
    return col(RunRow.config_key).in_(configurations)


def describe_configurations(engine: Engine, after: int = 0) -> int:
    """Write the values of configurations that have none yet, looking at runs after this number.

    Return the number to continue after.
    """
    with read_session(engine) as session:
        described = select(col(ConfigValueRow.config_key)).where(
            col(ConfigValueRow.config_key) == RunRow.config_key, col(ConfigValueRow.project_id) == RunRow.project_id
        )
        new = session.execute(
            select_any(func.max(RunRow.id), RunRow.project_id, RunRow.config_key)
            .where(col(RunRow.id) > after, col(RunRow.config_key) != "", ~described.exists())
            .group_by(col(RunRow.project_id), col(RunRow.config_key))
            .order_by(func.max(RunRow.id))
            .limit(_CONFIGURATIONS_AT_ONCE)
        ).all()
        last = session.execute(select(func.max(RunRow.id))).scalar() or 0
        contracts = dict(_contracts(session, [row[0] for row in new]))
    rows = [
        {"field": name, "value": text, "project_id": project_id, "config_key": config_key}
        for run_id, project_id, config_key in new
        for name, text in contracts.get(run_id, {}).items()
    ]
    if rows:
        with transaction(engine) as session:
            session.execute(insert(table_of(ConfigValueRow)), rows)
    return new[-1][0] if len(new) == _CONFIGURATIONS_AT_ONCE else last


def _contracts(session: Session, run_ids: Sequence[int]) -> list[tuple[int, dict[str, str]]]:
    chosen = select_any(RunResultRow.run_id, RunResultRow.contract).where(col(RunResultRow.run_id).in_(run_ids))
    return [
        (run_id, {name: contract_value(fact.value).lower()[:200] for name, fact in stored_contract(stored).items()
                  if name in FIELDS and FIELDS[name].role != "info"})
        for run_id, stored in session.execute(chosen)
    ]  # fmt: skip


def completions(session: Session, field: str, begin: str) -> list[str]:
    """Return values of a field that begin with a text, ignoring case."""
    table: type[SQLModel]
    if field in LABEL_NAMES:
        table, column, own = RunLabelRow, col(RunLabelRow.value), col(RunLabelRow.field) == field
    elif field in ("model", "gpu", "dispatcher", "branch"):
        table, column, own = RunValueRow, col(RunValueRow.value), col(RunValueRow.field) == field
    elif field in FIELDS:
        table, column, own = ConfigValueRow, col(ConfigValueRow.value), col(ConfigValueRow.field) == field
    elif field == "project":
        table, column, own = ProjectRow, col(ProjectRow.slug), col(ProjectRow.id) > 0
    else:
        return []
    matching: Any = func.lower(column).startswith(begin.lower(), autoescape=True)
    chosen = select(column).select_from(table).where(own, matching).distinct().order_by(column)
    return list(session.execute(chosen.limit(MOST_COMPLETIONS)).scalars())
