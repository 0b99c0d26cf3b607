"""The tables of who may do what: people, their sessions and roles, and the tokens of projects.

No `from __future__ import annotations` here: it breaks SQLModel relationships.
"""

from datetime import datetime

from sqlalchemy import JSON, Column, ForeignKey, Index, UniqueConstraint
from sqlmodel import Field, SQLModel

from app.storage.tables import time_column, utc_now


class UserRow(SQLModel, table=True):
    """A person. `password_hash` is argon2id, empty for one who comes by an identity provider (`issuer`, `subject`).

    `password_ends_at`: of a password that somebody else set. `totp_secret`: of the authenticator app, empty without
    one; `totp_step`: of the last code that was accepted. `administrator`: may do everything, in every project.
    `disabled_at`: may do nothing any more, but stays on record.
    """

    __tablename__ = "account"
    __table_args__ = (Index("ix_account_issuer_subject", "issuer", "subject"),)

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True, max_length=100)
    email: str = Field(default="", max_length=300)
    password_hash: str = Field(default="", max_length=300)
    must_change_password: bool = False
    password_ends_at: datetime | None = Field(default=None, sa_column=time_column())
    totp_secret: str = Field(default="", max_length=64)
    totp_step: int = 0
    administrator: bool = False
    issuer: str = Field(default="", max_length=300)
    subject: str = Field(default="", max_length=300)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    last_login_at: datetime | None = Field(default=None, sa_column=time_column())
    disabled_at: datetime | None = Field(default=None, sa_column=time_column())


class MemberRow(SQLModel, table=True):
    """What a person may do in a project: `role` is viewer, contributor or maintainer."""

    __tablename__ = "member"

    project_id: int = Field(
        sa_column=Column(ForeignKey("project.id", ondelete="CASCADE"), primary_key=True, nullable=False)
    )
    user_id: int = Field(
        sa_column=Column(ForeignKey("account.id", ondelete="CASCADE"), primary_key=True, nullable=False, index=True)
    )
    role: str = Field(max_length=20)
    added_by: str = Field(max_length=100)
    added_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


class SessionRow(SQLModel, table=True):
    """A browser that is logged in. `id` is the SHA-256 of what its cookie holds.

    `confirmed_at`: when its person last proved who it is, by a log-in or the password once more.
    """

    __tablename__ = "login_session"

    id: str = Field(primary_key=True, max_length=64)
    user_id: int = Field(sa_column=Column(ForeignKey("account.id", ondelete="CASCADE"), nullable=False, index=True))
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    confirmed_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    seen_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    expires_at: datetime = Field(sa_column=time_column(nullable=False))
    address: str = Field(default="", max_length=100)
    agent: str = Field(default="", max_length=300)


class TokenRow(SQLModel, table=True):
    """A project's token for CI. Shown once; `digest` is its SHA-256, `shown` its first characters.

    `scopes`: upload, read, triage. In force until `expires_at` or `revoked_at`.
    """

    __tablename__ = "token"
    __table_args__ = (UniqueConstraint("digest"),)

    id: int | None = Field(default=None, primary_key=True)
    project_id: int = Field(sa_column=Column(ForeignKey("project.id", ondelete="CASCADE"), nullable=False, index=True))
    name: str = Field(max_length=100)
    shown: str = Field(max_length=20)
    digest: str = Field(max_length=64)
    scopes: list[str] = Field(default_factory=list, sa_column=Column(JSON, nullable=False))
    created_by: str = Field(max_length=100)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))
    expires_at: datetime | None = Field(default=None, sa_column=time_column())
    last_used_at: datetime | None = Field(default=None, sa_column=time_column())
    revoked_at: datetime | None = Field(default=None, sa_column=time_column())
    revoked_by: str = Field(default="", max_length=100)
