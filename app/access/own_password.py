"""A person chooses a password: the old one proves that it is the person, and all other browsers are logged out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from sqlalchemy import Engine

from app.access.login import From
from app.domain.access import passwords
from app.errors import FieldError, InvalidChange
from app.settings import Settings
from app.storage import audit, sessions, users
from app.storage.database import read_session, transaction

_INPUTS = ("old", "new", "again")
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class PasswordForm:
    """What was typed is not shown again; only what is wrong with it, by input."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, sent: Mapping[str, object]) -> Self:
        return cls({name: str(sent.get(name, ""))[:_MOST_CHARACTERS] for name in _INPUTS})

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: InvalidChange) -> Self:
        return replace(self, errors={wrong.field: wrong.message for wrong in error.errors})


def change_own_password(engine: Engine, settings: Settings, user_id: int, form: PasswordForm, came_from: From) -> str:
    """What the cookie of the one session that stays holds. Raises InvalidChange."""
    old, new = form.values["old"], form.values["new"]
    with read_session(engine) as session:
        row = users.get_user(session, user_id)
    if not passwords.is_right(old, row.password_hash, settings.password_memory_mib):
        raise _refused("old", "is not your password")
    if wrong := passwords.problem_with(new, row.name):
        raise _refused("new", wrong)
    if new == old:
        raise _refused("new", "must be another one than before")
    if new != form.values["again"]:
        raise _refused("again", "is not the same as above")
    fresh = passwords.hashed(new, settings.password_memory_mib)
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        row.password_hash, row.must_change_password, row.password_ends_at = fresh, False, None
        session.add(row)
        audit.record(session, who=row.name, subject="account", subject_id=user_id, action="password set")
        sessions.end_sessions_of(session, user_id)
        return sessions.start_session(
            session, user_id, settings.session_idle, address=came_from.address, agent=came_from.agent
        )


def _refused(name: str, message: str) -> InvalidChange:
    return InvalidChange("The password was not changed.", (FieldError(name, message),))
