"""Copies of rows with everything that belongs to them, as JSON: to undo a deletion, and to move a project.

Which rows belong to a row follows from the foreign keys: those that a deletion takes along (`ON DELETE CASCADE`).
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import zstandard
from sqlalchemy import Column, LargeBinary, Table, insert, select, update
from sqlmodel import Session, SQLModel
from sqlmodel.sql.sqltypes import UTCDateTime

from app.storage.tables import in_batches

Row = dict[str, Any]
Rows = dict[str, list[Row]]

_DERIVED = ("run_value", "run_label", "config_value", "stack", "usage")
"""Tables that are written from others (`derived.py`, `search.py`, `usage.py`)."""


@dataclass(slots=True)
class RowCopies:
    """`rows` by table, parents first. `links`: rows that referred to them and stay: table, key, column, old value."""

    rows: Rows
    links: list[tuple[str, list[Any], str, Any]] = field(default_factory=list)


def copy_rows(session: Session, roots: Mapping[str, Sequence[int]], *, links: bool = True) -> RowCopies:
    """Return the rows with these numbers, by table, and all rows that a deletion of them would take along."""
    rows: Rows = {}
    for table in tables():
        conditions = [table.c.id.in_(roots[table.name])] if roots.get(table.name) else []
        conditions += [
            child.in_([row[parent.name] for row in rows[parent.table.name]])
            for child, parent, action in _references(table)
            if action == "CASCADE" and rows.get(parent.table.name)
        ]
        chosen: dict[tuple[Any, ...], Row] = {}
        for condition in conditions:
            for row in session.execute(select(*table.c).where(condition)).mappings():
                chosen[tuple(row[column.name] for column in table.primary_key)] = dict(row)
        if chosen:
            rows[table.name] = [chosen[key] for key in sorted(chosen)]
    return RowCopies(rows, _links(session, rows) if links else [])


def _links(session: Session, rows: Rows) -> list[tuple[str, list[Any], str, Any]]:
    links = []
    for table in tables():
        own = {tuple(row[column.name] for column in table.primary_key) for row in rows.get(table.name, ())}
        for child, parent, action in _references(table):
            if action == "SET NULL" and rows.get(parent.table.name):
                values = [row[parent.name] for row in rows[parent.table.name]]
                for *key, value in session.execute(select(*table.primary_key, child).where(child.in_(values))):
                    if tuple(key) not in own:
                        links.append((table.name, key, child.name, value))
    return links


def insert_rows(
    session: Session, copies: RowCopies, *, numbers: Mapping[tuple[str, Any], Any] | None = None
) -> dict[tuple[str, Any], Any]:
    """Insert copied rows. Rows get another number if theirs was assigned to another row meanwhile.

    `numbers`: further new numbers, by table and old number, for columns that refer to rows that are not among these.
    Return the old numbers with the new ones.
    """
    new: dict[tuple[str, Any], Any] = dict(numbers or {})
    for table in tables():
        entries = copies.rows.get(table.name)
        if not entries:
            continue
        referring = [(child.name, parent.table.name) for child, parent, _ in _references(table)]
        entries = [
            row | {name: new.get((parent, row[name]), row[name]) for name, parent in referring} for row in entries
        ]
        if _is_numbered(table):
            taken = _taken(session, table, [row["id"] for row in entries])
            free = [row for row in entries if row["id"] not in taken]
            for row in (row for row in entries if row["id"] in taken):
                plain = {name: value for name, value in row.items() if name != "id"}
                new[table.name, row["id"]] = session.execute(insert(table).returning(table.c.id), plain).scalar_one()
            _renumber_within(session, table, [row for row in entries if row["id"] in taken], new)
            entries = free
        if entries:
            session.execute(insert(table), entries)
    for name, key, column, value in copies.links:
        table = SQLModel.metadata.tables[name]
        own = [column_ == part for column_, part in zip(table.primary_key, key, strict=True)]
        parent = next(parent.table.name for child, parent, _ in _references(table) if child.name == column)
        statement = update(table).where(*own, table.c[column].is_(None))
        session.execute(statement.values({column: new.get((parent, value), value)}))
    return new


_WITHIN: Mapping[str, tuple[str, ...]] = {"experiment": ("parent_id", "sweep_id"), "delivery": ("replay_of",)}
"""Columns that refer to rows of the same table."""


def _renumber_within(
    session: Session, table: Table, entries: Sequence[Row], new: Mapping[tuple[str, Any], Any]
) -> None:
    for row in entries:
        values = {
            name: new[table.name, row[name]] for name in _WITHIN.get(table.name, ()) if (table.name, row[name]) in new
        }
        if values:
            session.execute(update(table).where(table.c.id == new[table.name, row["id"]]).values(values))


def _taken(session: Session, table: Table, numbers: Sequence[int]) -> set[int]:
    taken: set[int] = set()
    for some in in_batches(numbers):
        taken |= set(session.execute(select(table.c.id).where(table.c.id.in_(some))).scalars())
    return taken


def tables() -> list[Table]:
    """Return the tables of the service, parents first."""
    return [table for table in SQLModel.metadata.sorted_tables if table.name not in _DERIVED]


def _references(table: Table) -> list[tuple[Column[Any], Column[Any], str]]:
    """Return the foreign keys of one column: the column, that of the parent, what a deletion does."""
    return [
        (constraint.elements[0].parent, constraint.elements[0].column, constraint.ondelete or "")
        for constraint in table.foreign_key_constraints
        if len(constraint.elements) == 1 and constraint.elements[0].column.table is not table
    ]


def _is_numbered(table: Table) -> bool:
    return "id" in table.c and table.c.id.primary_key and table.c.id.type.python_type is int


# --- As JSON in zstd.


def pack(copies: RowCopies) -> bytes:
    document = {
        "rows": {
            name: [{column: encoded_value(value) for column, value in row.items()} for row in rows]
            for name, rows in copies.rows.items()
        },
        "links": copies.links,
    }
    return zstandard.ZstdCompressor(level=3).compress(json.dumps(document).encode())


def unpack(stored: bytes) -> RowCopies:
    """Return packed rows, also those of an earlier version: new columns get their default, dropped ones are ignored."""
    document = json.loads(zstandard.ZstdDecompressor().decompress(stored))
    rows = {name: [decoded_row(name, row) for row in entries] for name, entries in document["rows"].items()}
    return RowCopies(
        {name: entries for name, entries in rows.items() if name in SQLModel.metadata.tables},
        [(name, key, column, value) for name, key, column, value in document["links"]],
    )


def encoded_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return base64.b85encode(value).decode() if isinstance(value, bytes) else value


def decoded_row(table_name: str, stored: Mapping[str, Any]) -> Row:
    """Return the columns of a row as the database takes them."""
    table = SQLModel.metadata.tables.get(table_name)
    if table is None:
        return {}
    missing = set(table.c.keys()) - stored.keys()
    row = {column.name: _decoded(column, stored[column.name]) for column in table.c if column.name in stored}
    return row | {name: value for name, value in _defaults(table_name).items() if name in missing}


def _decoded(column: Column[Any], value: Any) -> Any:
    if value is None:
        return None
    if isinstance(column.type, UTCDateTime):
        return datetime.fromisoformat(value)
    return base64.b85decode(value) if isinstance(column.type, LargeBinary) else value


def _defaults(table_name: str) -> Row:
    table = SQLModel.metadata.tables[table_name]
    mapped = next(mapper.class_ for mapper in SQLModel._sa_registry.mappers if mapper.local_table is table)
    fields = {name: entry for name, entry in mapped.model_fields.items() if not entry.is_required()}
    return {name: entry.get_default(call_default_factory=True) for name, entry in fields.items()}
