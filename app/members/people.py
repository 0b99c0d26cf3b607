"""The people of the service: made with a password of the first day, disabled, made administrators, given a new one."""

import secrets

import structlog
from sqlalchemy import Engine

from app.domain.access.passwords import problem_with
from app.errors import FieldError, InvalidChange
from app.storage import people, sessions, tokens, users
from app.storage.database import transaction
from app.storage.users import User

log = structlog.get_logger(__name__)

_INITIAL_BYTES = 12


def add_person(engine: Engine, *, name: str, email: str, administrator: bool, by: str) -> tuple[User, str]:
    """The account, and its first password, which nobody can see again and its owner must change.

    Raises InvalidChange, NameTaken.
    """
    if email and ("@" not in email.strip("@ ") or len(email) > 300):
        why = "must be an address like ada@example.org, or empty"
        raise InvalidChange(f"Nothing was kept: the e-mail {why}.", (FieldError("email", why),))
    initial = _initial_password(name)
    with transaction(engine) as session:
        made = users.create_user(
            session, name, by=by, password=initial, email=email, administrator=administrator, must_change_password=True
        )
    log.info("account_made", account=made.id, administrator=administrator)
    return made, initial


def change_person(
    engine: Engine,
    user_id: int,
    *,
    administrator: bool | None = None,
    disabled: bool | None = None,
    revoke: bool = False,
    by: str,
) -> User:
    """`revoke`: with all tokens that the person made. Raises LastAdministrator, NotFound."""
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        people.set_standing(session, row, administrator=administrator, disabled=disabled, by=by)
        if revoke:
            tokens.revoke_made(session, row.name, by=by)
        changed = users.to_user(row)
    log.info(
        "account_changed", account=user_id, administrator=administrator, disabled=disabled, tokens_revoked=revoke
    )  # fmt: skip
    return changed


def reset_password(engine: Engine, user_id: int, *, by: str) -> tuple[User, str]:
    """A new first password; the account is logged out everywhere, without a second factor.

    Raises InvalidChange, NotFound.
    """
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        if row.issuer:
            raise InvalidChange(
                f"{row.name} logs in by an identity provider and has no password here. Nothing was changed."
            )
        initial = _initial_password(row.name)
        users.set_password(session, row, initial, by=by, must_change=True)
        sessions.end_sessions_of(session, user_id)
        changed = users.to_user(row)
    log.info("password_reset", account=user_id)
    return changed, initial


def _initial_password(name: str) -> str:
    """One that holds no name by chance."""
    while problem_with(password := secrets.token_urlsafe(_INITIAL_BYTES), name):
        pass
    return password
