"""The account of somebody whom the identity provider knows: found by issuer and subject, else made, of no project."""

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.access.oidc.provider import Identity
from app.storage import audit, users
from app.storage.access_tables import UserRow

_MOST_ALIKE = 1_000


def account_of(session: Session, identity: Identity) -> UserRow:
    """Never another account of the same name or e-mail address: those prove nothing here."""
    known = _find(session, identity)
    if known is not None:
        return known
    try:
        with session.begin_nested():
            made = users.create_user(
                session, _free_name(session, identity), by=audit.SERVICE, email=identity.email,
                issuer=identity.issuer, subject=identity.subject,
            )  # fmt: skip
    except IntegrityError:  # the same person, in another tab, in the same moment
        known = _find(session, identity)
        if known is None:
            raise
        return known
    return users.get_user(session, made.id)


def _find(session: Session, identity: Identity) -> UserRow | None:
    chosen = select(UserRow).where(
        col(UserRow.issuer) == identity.issuer, col(UserRow.subject) == identity.subject
    )  # fmt: skip
    found: UserRow | None = session.execute(chosen.order_by(col(UserRow.id)).limit(1)).scalar_one_or_none()
    return found


def _free_name(session: Session, identity: Identity) -> str:
    """As the provider says; with a number where somebody has it already."""
    name = identity.name[: users.MAX_NAME - 5].strip() or "somebody"
    if name.lower() in users.RESERVED:
        name = f"{name} 2"
    for number in range(1, _MOST_ALIKE):
        wanted = name if number == 1 else f"{name} {number}"
        if users.find_user(session, wanted) is None:
            return wanted
    return f"{name[:50]} {identity.subject[:40]}"
