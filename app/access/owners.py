"""Whose project something is that an address names. What never changes hands is asked for once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine, Select
from sqlmodel import col

from app.storage.database import read_session
from app.storage.tables import ExperimentRow, ProjectRow, ReferencePointRow, RegressionRow, RunRow, select_any
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access_rule import Owner

FOR_ALL = 0
"""The owner of what belongs to no project and is for all; no project has this id."""

NOT_TOLD = -1
"""The owner by a name that may mean several things."""

KEY_LENGTH = 64

_REMEMBERED = 10_000
_LARGEST_ID = 2**63 - 1
_CHANGING_HANDS: tuple[Owner, ...] = ("reference",)
_AS_HANDLERS_READ_IT = TypeAdapter(int)


_Query = Select[tuple[int | None]] | Select[tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Owned:
    """`project`: its id, FOR_ALL or NOT_TOLD. `token`: of a run, which token brought it; None when none did."""

    project: int
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """How an address names it: the path's parameter, and the query that finds its project.

    No query for what is no such name, or one that may mean several things: then the handler looks among what the caller
    may see, and answers in its own words.
    """

    param: str
    query: Callable[[str], "_Query | None"]


class Owners:
    """Remembers whose what is. One an application: its database's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[str, str], Owned] = {}

    def remembered(self, owner: Owner, value: str) -> Owned | None:
        return self._known.get((owner, value))

    def find(self, owner: Owner, value: str) -> Owned | None:
        """None when there is no such thing."""
        query = NAMED[owner].query(value)
        if query is None:
            return Owned(NOT_TOLD)
        with seeing(EVERY_PROJECT), read_session(self._engine) as session:
            row = session.execute(query.limit(1)).first()
        if row is None:
            return None
        project, token = row if len(row) > 1 else (row[0], None)
        found = Owned(FOR_ALL if project is None else int(project), token)
        if owner in _CHANGING_HANDS:
            return found
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[owner, value] = found
        return found


def _number(text: str) -> int | None:
    """`+2` and `2.0` are the thing 2 to a handler, so they are to the check."""
    try:
        number = _AS_HANDLERS_READ_IT.validate_python(text)
    except ValidationError:
        return None
    return number if 0 <= number <= _LARGEST_ID else None


def _run_by_id(text: str) -> "_Query | None":
    number = _number(text)
    return None if number is None else select_any(RunRow.project_id, RunRow.token_id).where(col(RunRow.id) == number)


def _by_id(table: type[RegressionRow] | type[ExperimentRow] | type[ReferencePointRow]):  # type: ignore[no-untyped-def]
    def query(text: str) -> "_Query | None":
        number = _number(text)
        return None if number is None else select_any(table.project_id).where(col(table.id) == number)

    return query


def _by_slug(slug: str) -> "_Query":
    return select_any(ProjectRow.id).where(col(ProjectRow.slug) == slug)


def _by_stack(key: str) -> "_Query | None":
    if len(key) != KEY_LENGTH:  # its beginning, by which several may be meant
        return None
    return select_any(RunRow.project_id).where(col(RunRow.stack_key) == key)


NAMED: Mapping[Owner, Named] = {
    "run": Named("run_id", _run_by_id),
    "regression": Named("regression_id", _by_id(RegressionRow)),
    "experiment": Named("experiment_id", _by_id(ExperimentRow)),
    "reference": Named("number", _by_id(ReferencePointRow)),
    "project": Named("slug", _by_slug),
    "stack": Named("stack", _by_stack),
}
