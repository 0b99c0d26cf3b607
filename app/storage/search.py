"""Text search over runs, by an index of trigrams on both databases (`derived.py`).

PostgreSQL decides from its statistics when to use the index. SQLite has a table of trigrams, which is queried first:
if few runs match, they are read by number; if many match, the list is read in its order until a page is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Engine,
    Select,
    column,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    table,
    union_all,
)
from sqlmodel import Session, SQLModel, col

from app.domain.contract.fields import FIELDS
from app.domain.numbers import contract_value
from app.storage.database import read_session, transaction
from app.storage.derived import LABELS, has_search_index, search_text
from app.storage.runs import MOST_COUNTED, stored_contract
from app.storage.tables import (
    ConfigValueRow,
    ProjectRow,
    RunLabelRow,
    RunResultRow,
    RunRow,
    RunValueRow,
    not_indexed,
    select_any,
    table_of,
)
from app.storage.visible import visible_projects

FEWEST_LETTERS = 3
"""Characters of a trigram. Shorter words cannot use the index."""
_FEW = 500
"""Up to this many matches, the next statement gets their numbers instead of reading the trigrams again."""
_HEX = frozenset("0123456789abcdef")
_TEXT: ColumnElement[str] = literal_column(search_text("run"))
_INDEX = table("run_search", column("rowid"), column("text"))


@dataclass(frozen=True, slots=True)
class SearchConditions:
    """`conditions`: on `RunRow`, which matching runs meet. `is_frequent`: too many runs match for lists to count them.

    `most`: how many to count if that is fewer than usual. `filtered`: implied by `conditions`, and faster with filters
    or in another order: many runs match the words, but few of these may match the filters.
    """

    conditions: tuple[ColumnElement[bool], ...] = ()
    is_frequent: bool = False
    most: int | None = None
    filtered: tuple[ColumnElement[bool], ...] = ()


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a search, and what it matches besides text: a run's number, the start of stack keys, projects."""

    text: str
    number: int | None
    is_key: bool
    projects: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        return self.number is None and not self.is_key and not self.projects

    @property
    def condition(self) -> ColumnElement[bool]:
        others = self._others()
        return or_(_TEXT.contains(self.text.lower(), autoescape=True), *others)

    def _others(self) -> list[ColumnElement[bool]]:
        others: list[ColumnElement[bool]] = []
        if self.number is not None:
            others.append(col(RunRow.id) == self.number)
        if self.is_key:
            others.append(_begins(self.text))
        if self.projects:
            others.append(col(RunRow.project_id).in_(self.projects))
        return others

    @property
    def numbers(self) -> list[Select[Any]]:
        """Return selects of the numbers of the matching runs; for SQLite."""
        selects: list[Any] = [_matching(self.text)]
        selects += [select_any(RunRow.id).where(condition) for condition in self._others()]
        return selects


_MOST_READ = 1000
"""Maximum matches that are counted if the database must read the runs to count them."""


def search_conditions(session: Session, text: str) -> SearchConditions:
    """Return the runs that every word of `text` matches: by part of a text, by number (`1842`, `#1842`) or by stack."""
    words = [_parse_word(session, word) for word in text.split()]
    conditions = tuple(word.condition for word in words)
    indexed = [word for word in words if len(word.text) >= FEWEST_LETTERS]
    if not indexed:
        return SearchConditions(conditions)
    if session.get_bind().dialect.name != "sqlite" or not has_search_index(session.connection()):
        return SearchConditions(conditions, most=_MOST_READ)
    if plain := [word.text for word in indexed if word.is_plain]:
        numbers: Any = _matching(*plain)
    else:
        numbers = union_all(*indexed[0].numbers)
    run_ids = session.execute(numbers.limit(MOST_COUNTED + 1)).scalars().all()
    if len(run_ids) > MOST_COUNTED:
        is_frequent = len(plain) == len(words) and visible_projects() is None
        filtered = (not_indexed(col(RunRow.id)).in_(numbers),)
        return SearchConditions(conditions, is_frequent=is_frequent, filtered=filtered)
    if len(run_ids) <= _FEW:
        return SearchConditions((col(RunRow.id).in_(run_ids), *conditions))
    # `numbers` may cover only some of the words; the conditions check all of them.
    return SearchConditions((col(RunRow.id).in_(numbers), *conditions))


def _parse_word(session: Session, word: str) -> _Word:
    digits = word.removeprefix("#")
    # Ids fit in 63 bits; a longer number is part of a name, not an id.
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
    named = select_any(ProjectRow.id).where(func.lower(ProjectRow.slug).contains(word.lower(), autoescape=True))
    projects = tuple(session.execute(named).scalars())
    is_key = (
        len(word) <= 64 and set(word) <= _HEX and bool(session.execute(select(exists().where(_begins(word)))).scalar())
    )
    return _Word(word, number, is_key, projects)


def _begins(word: str) -> ColumnElement[bool]:
    # A range, because `LIKE` of a collation other than C would not use the index. `g` comes after every digit.
    return (col(RunRow.stack_key) >= word) & (col(RunRow.stack_key) < word + "g")


def _matching(*words: str) -> Any:
    phrases = " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
    return select(_INDEX.c.rowid).where(literal_column("run_search").op("MATCH")(literal(phrases)))


# --- Conditions on runs by tag, job, user, commit and contract field, and the completions of their values. Fields of a
# key are looked up by configuration, because all runs of a configuration share them; a worker stores the fields of each
# new configuration. Other fields are searched in the newest runs only.

LABEL_NAMES = ("tag", *LABELS)
NEWEST_READ = 2000
"""Number of newest runs in which a field outside the keys is searched."""
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
    """Return the condition that the contract of a run has this value, as shown, ignoring case.

    A container is found without its registry, too.
    """
    if FIELDS[field].role == "info":
        newest = select_any(RunRow.id).order_by(col(RunRow.id).desc()).limit(NEWEST_READ).scalar_subquery()
        stored = col(RunResultRow.contract)[field]["value"].as_string()
        own = select(col(RunResultRow.run_id)).where(col(RunResultRow.run_id).in_(newest))
        return col(RunRow.id).in_(own.where(func.lower(stored) == value.lower()))
    stored_value, wanted = col(ConfigValueRow.value), value.lower()[:200]
    is_equal = stored_value == wanted
    if field == "container" and "/" not in wanted:
        is_equal = or_(is_equal, stored_value.endswith(f"/{wanted}", autoescape=True))
    configurations = select(col(ConfigValueRow.config_key)).where(col(ConfigValueRow.field) == field, is_equal)
    return col(RunRow.config_key).in_(configurations)


def describe_configurations(engine: Engine, after: int = 0) -> int:
    """Store the contract fields of new configurations among the runs with a number above `after`.

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
    """Return values of a field that begin with `begin`, ignoring case."""
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
