"""The account of somebody whom the identity provider knows: found by issuer and subject, else made, of no project."""

import secrets
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.storage import audit, users
from app.storage.access_tables import UserRow

_MOST_ALIKE = 1_000


class WrongIdentity(Exception):  # noqa: N818  read as a sentence: "raise WrongIdentity"
    """What the provider sent does not prove who somebody is. The text is for the log."""


@dataclass(frozen=True, slots=True)
class Identity:
    """`issuer` and `subject` together are the person, for good; names and addresses may change and be reused."""

    issuer: str
    subject: str
    name: str
    email: str


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
    """As the provider says, as far as it may be a name here; with a number where somebody has it already."""
    name = users.plain_name(identity.name)[: users.MAX_NAME - 15]
    for number in range(1, _MOST_ALIKE):
        wanted = name if number == 1 else f"{name} {number}"
        if not users.is_taken(session, wanted):
            return wanted
    return f"{name[:50]} {secrets.token_hex(8)}"
