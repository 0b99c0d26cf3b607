"""Which runs the words of a search name, by an index of trigrams on both databases (`derived.py`).

PostgreSQL plans its own index by its statistics. SQLite has a table of trigrams, which is queried first: few matches
are read by their numbers, and where the matches are many, the list is read in its order until a page is full.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    column,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    table,
    union_all,
)
from sqlmodel import Session, col

from app.storage.derived import has_search_index, search_text
from app.storage.runs import MOST_COUNTED
from app.storage.tables import ProjectRow, RunRow, select_any
from app.storage.visible import visible_projects

FEWEST_LETTERS = 3
"""Characters of a trigram. Shorter words are searched in the runs themselves."""
_FEW = 500
"""Numbers of runs that a statement names one by one, so that the trigrams are read once."""
_HEX = frozenset("0123456789abcdef")
_TEXT: ColumnElement[str] = literal_column(search_text("run"))
_INDEX = table("run_search", column("rowid"), column("text"))


@dataclass(frozen=True, slots=True)
class Mentions:
    """`conditions` of RunRow that the runs meet. `is_frequent`: more runs do than lists count."""

    conditions: tuple[ColumnElement[bool], ...] = ()
    is_frequent: bool = False


@dataclass(frozen=True, slots=True)
class _Word:
    """A word with what else it may name: the number of a run, the first digits of stack keys, projects."""

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
        """Return the selects of the run numbers that it names, on SQLite."""
        selects: list[Any] = [_matching(self.text)]
        selects += [select_any(RunRow.id).where(condition) for condition in self._others()]
        return selects


def mentioned(session: Session, text: str) -> Mentions:
    """Return the runs that every word of `text` names: by part of a text, by number (`1842`, `#1842`) or by stack."""
    words = [_read(session, word) for word in text.split()]
    conditions = tuple(word.condition for word in words)
    indexed = [word for word in words if len(word.text) >= FEWEST_LETTERS]
    if not indexed or session.get_bind().dialect.name != "sqlite" or not has_search_index(session.connection()):
        return Mentions(conditions)
    if plain := [word.text for word in indexed if word.is_plain]:
        numbers: Any = _matching(*plain)
    else:
        numbers = union_all(*indexed[0].numbers)
    run_ids = session.execute(numbers.limit(MOST_COUNTED + 1)).scalars().all()
    if len(run_ids) > MOST_COUNTED:
        return Mentions(conditions, is_frequent=len(plain) == len(words) and visible_projects() is None)
    if len(run_ids) <= _FEW:
        return Mentions((col(RunRow.id).in_(run_ids), *conditions))
    # The trigrams of long words are all checked, and those of other words by their conditions.
    return Mentions((col(RunRow.id).in_(numbers), *conditions))


def _read(session: Session, word: str) -> _Word:
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
