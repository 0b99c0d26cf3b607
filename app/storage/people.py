"""All accounts, and the rule that somebody stays who can administer the service."""

from collections.abc import Mapping

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.errors import Conflict
from app.storage import audit, sessions
from app.storage.access_tables import UserRow
from app.storage.tables import utc_now
from app.storage.users import User, to_user


class LastAdministrator(Conflict):
    title = "This is the last administrator"


def list_users(session: Session) -> list[User]:
    """Those who may log in first, in alphabetical order."""
    rows = session.execute(
        select(UserRow).order_by(col(UserRow.disabled_at).is_not(None), func.lower(UserRow.name))
    ).scalars()
    return [to_user(row) for row in rows]


def names_by_id(session: Session) -> Mapping[str, str]:
    """Of all accounts, by their number as a text, as the audit keeps it."""
    return {str(user.id): user.name for user in list_users(session)}


def administrators(session: Session) -> list[str]:
    """The names of those who may log in, in alphabetical order."""
    return [user.name for user in list_users(session) if user.administrator and user.disabled_at is None]


def set_standing(
    session: Session, row: UserRow, *, administrator: bool | None = None, disabled: bool | None = None, by: str
) -> None:
    """Make an account an administrator's or not, disable it or not; None leaves it. Raises LastAdministrator.

    Whoever is disabled is logged out at once. The name stays on record beside what was done.
    """
    remaining = _administrators_locked(session)
    wanted = row.administrator if administrator is None else administrator
    away = row.disabled_at is not None if disabled is None else disabled
    if remaining == {row.id} and (away or not wanted):
        raise LastAdministrator(
            f"{row.name} is the last administrator, and without one nobody could manage this service. Nothing was "
            "changed. Make somebody else an administrator first."
        )
    if wanted != row.administrator:
        before = {"administrator": row.administrator}
        _record(session, row, "administrator", by=by, before=before, after={"administrator": wanted})
        row.administrator = wanted
    if away != (row.disabled_at is not None):
        before, after = {"disabled": not away}, {"disabled": away}
        _record(session, row, "disabled" if away else "enabled", by=by, before=before, after=after)
        row.disabled_at = utc_now() if away else None
        sessions.end_sessions_of(session, row.id or 0)
    session.add(row)
    session.flush()


def _administrators_locked(session: Session) -> set[int | None]:
    """Those who may log in. Two who take it from each other in one moment must not both succeed."""
    chosen = select(UserRow).where(col(UserRow.administrator), col(UserRow.disabled_at).is_(None))
    return {row.id for row in session.execute(chosen.with_for_update()).scalars()}


def _record(
    session: Session,
    row: UserRow,
    action: str,
    *,
    by: str,
    before: Mapping[str, bool],
    after: Mapping[str, bool],
) -> None:
    audit.record(
        session, who=by, subject="account", subject_id=row.id or 0, action=action,
        before={"name": row.name, **before}, after={"name": row.name, **after},
    )  # fmt: skip
