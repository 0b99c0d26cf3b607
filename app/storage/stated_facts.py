"""Facts that people stated of a run, beside what its files say: each statement stays, the newest of a fact counts.

They change no key and no figure, only what the rules are told.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column, ForeignKey, select
from sqlmodel import Field, Session, SQLModel, col

from app.errors import NotFound
from app.storage import audit
from app.storage.run_records import aware
from app.storage.tables import RunRow, time_column, utc_now


class StatedFactRow(SQLModel, table=True):
    """One statement; `removed` takes those before it back."""

    __tablename__ = "stated_fact"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=Column(ForeignKey("run.id", ondelete="CASCADE"), nullable=False, index=True))
    name: str = Field(max_length=100)
    value: Any = Field(default=None, sa_column=Column(JSON(none_as_null=False), nullable=False))
    removed: bool = False
    author: str = Field(max_length=100)
    note: str = Field(default="", max_length=1000)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


@dataclass(frozen=True, slots=True)
class StatedFact:
    """What somebody stated, and when."""

    name: str
    value: Any
    removed: bool
    author: str
    note: str
    at: datetime


def state_facts(session: Session, run_id: int, facts: Mapping[str, object], *, author: str, note: str) -> None:
    """Record the statements; None takes one back. The rules are asked of the run again. Raises NotFound."""
    row = session.get(RunRow, run_id, with_for_update=True)
    if row is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    known = in_force(statements_of(session, run_id))
    for name, value in facts.items():
        session.add(
            StatedFactRow(run_id=run_id, name=name, value=value, removed=value is None, author=author, note=note)
        )
    row.rules_asked = ""
    audit.record(
        session, who=author, subject="run", subject_id=run_id, action="facts", project_id=row.project_id,
        before={name: known[name].value if name in known else None for name in facts}, after=facts, note=note,
    )  # fmt: skip


def statements_of(session: Session, run_id: int) -> tuple[StatedFact, ...]:
    """All that was ever stated, newest first."""
    rows = session.execute(
        select(StatedFactRow).where(col(StatedFactRow.run_id) == run_id).order_by(col(StatedFactRow.id).desc())
    ).scalars()
    return tuple(StatedFact(r.name, r.value, r.removed, r.author, r.note, aware(r.created_at)) for r in rows)


def in_force(statements: tuple[StatedFact, ...]) -> dict[str, StatedFact]:
    """By fact, what counts now."""
    newest: dict[str, StatedFact] = {}
    for one in statements:
        newest.setdefault(one.name, one)
    return {name: one for name, one in newest.items() if not one.removed}
