"""Which hardware, family, project and stack are meant, by any name that people or answers give them."""

import re
from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.ranking.families import slug
from app.errors import FieldError, InvalidQuery, NotFound
from app.storage.standings import HardwareFamily
from app.storage.standings_tables import StandingRow
from app.storage.tables import ProjectRow

_MOST_NAMED = 12
_KEY = re.compile(r"[0-9a-f]{1,64}")


def leaderboards_named(index: Sequence[HardwareFamily], hardware: str, family: str) -> tuple[HardwareFamily, ...]:
    """Those of `index` of this hardware and family: slugs or names as they are shown; empty: any.

    Raises NotFound, naming what there is, where there are none: an empty answer would look like one without results.
    """
    of_hardware = [one for one in index if not hardware or one.hardware_slug == slug(hardware)]
    if hardware and not of_hardware:
        raise NotFound(_none(f"hardware {hardware[:60]!r}", (one.hardware_slug for one in index)))
    found = [one for one in of_hardware if not family or one.family_slug == slug(family)]
    if family and not found:
        on = f" on {of_hardware[0].hardware}" if hardware else ""
        raise NotFound(_none(f"model family {family[:60]!r}{on}", (one.family_slug for one in of_hardware)))
    return tuple(found)


def check_project(session: Session, project: str) -> None:
    """Raises NotFound where no project has this name; empty: any."""
    named = select(ProjectRow.id).where(col(ProjectRow.slug) == project)  # type: ignore[call-overload]
    if project and session.execute(named).first() is None:
        raise NotFound(f"There is no project {project[:60]!r}.")


def stacks_named(session: Session, first_digits: str) -> tuple[str, ...]:
    """Keys of the ranked stacks that begin so; raises NotFound where there are none. Empty: any, so none are named."""
    if not first_digits:
        return ()
    begins = col(StandingRow.stack_key).startswith(first_digits, autoescape=True)
    found = tuple(session.execute(select(StandingRow.stack_key).where(begins)).scalars())  # type: ignore[call-overload]
    if not found:
        raise NotFound(f"No stack with the key {first_digits[:64]!r} has been ranked.")
    return found


def one_stack_named(session: Session, first_digits: str) -> str:
    """The key that is meant where one stack is asked for. Raises InvalidQuery where no key, or several, begin so."""
    if not is_key(first_digits):
        raise InvalidQuery("This is no key of a stack.", (FieldError("stack", no_key(first_digits)),))
    found = stacks_named(session, first_digits)
    if len(found) > 1:
        wrong = f"is how the keys of {len(found):,} stacks begin; give more digits"
        raise InvalidQuery("Name one stack.", (FieldError("stack", wrong),))
    return found[0]


def is_key(text: str) -> bool:
    """Whether a key can begin so: wherever a stack is asked for, the first digits of its key will do."""
    return _KEY.fullmatch(text) is not None


def no_key(text: str) -> str:
    return f"must be the first digits of a stack key, 0 to 9 and a to f, not {text[:40]!r}"


def _none(what: str, there_are: Iterable[str]) -> str:
    names = sorted(set(there_are))
    listed = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    return f"No stack of {what} has been ranked. " + (f"There are: {listed}." if names else "None has been ranked yet.")
