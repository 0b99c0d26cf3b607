"""Find the project that owns what an address names, such as a run or a regression."""

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
"""The owner of rows that belong to no project and are for all users; no project has this id."""

AMBIGUOUS = -1
"""The owner behind a name that may match several rows."""

KEY_LENGTH = 64

_MAX_CACHED = 10_000
_LARGEST_ID = 2**63 - 1
_INTEGER = TypeAdapter(int)
"""Reads ids as handlers do, who also accept `+2` and `2.0`."""

_Query = Select[tuple[int | None]] | Select[tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Owned:
    """`project`: an id, FOR_ALL or AMBIGUOUS. `token`: of a run, the token that uploaded it."""

    project: int
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """How addresses name something: the parameter of the path, and the query for its project.

    `query` returns None for invalid and ambiguous names. The handler then searches what the caller may see.
    """

    param: str
    query: Callable[[str], "_Query | None"]


class Owners:
    """Finds owners in one database and caches those that never change."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cache: dict[tuple[str, str], Owned] = {}

    def cached(self, owner: Owner, value: str) -> Owned | None:
        return self._cache.get((owner, value))

    def find(self, owner: Owner, value: str) -> Owned | None:
        """Return the owner; None when the thing does not exist."""
        query = NAMED[owner].query(value)
        if query is None:
            return Owned(AMBIGUOUS)
        with seeing(EVERY_PROJECT), read_session(self._engine) as session:
            row = session.execute(query.limit(1)).first()
        if row is None:
            return None
        project, token = row if len(row) > 1 else (row[0], None)
        owned = Owned(FOR_ALL if project is None else int(project), token)
        if owner not in ("reference", "run"):  # which can move to another project
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[owner, value] = owned
        return owned


def _number(text: str) -> int | None:
    try:
        number = _INTEGER.validate_python(text)
    except ValidationError:
        return None
    return number if 0 <= number <= _LARGEST_ID else None


def _run_by_id(text: str) -> "_Query | None":
    number = _number(text)
    return None if number is None else select_any(RunRow.project_id, RunRow.token_id).where(col(RunRow.id) == number)


def _by_id(
    table: type[RegressionRow] | type[ExperimentRow] | type[ReferencePointRow],
) -> Callable[[str], _Query | None]:
    def query(text: str) -> "_Query | None":
        number = _number(text)
        return None if number is None else select_any(table.project_id).where(col(table.id) == number)

    return query


def _by_slug(slug: str) -> "_Query":
    return select_any(ProjectRow.id).where(col(ProjectRow.slug) == slug)


def _by_stack(key: str) -> "_Query | None":
    if len(key) != KEY_LENGTH:  # a prefix, which may match several stacks
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
