"""`/api/v1/users`: the people of the service, for administrators."""

from collections.abc import Sequence
from datetime import datetime
from typing import Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlmodel import Session
from starlette.responses import JSONResponse

from app.domain.access.roles import Role
from app.members import people
from app.members.api import MadeTokenOut, UserId
from app.members.signed import signed
from app.storage.members import roles_by_user
from app.storage.people import list_users
from app.storage.tokens import MadeToken, made_in_force
from app.storage.users import User
from app.web.dependencies import AppEngine, ReadSession
from app.web.problems import documented

router = APIRouter(prefix="/api/v1/users", tags=["access"])


class UserOut(BaseModel):
    id: int
    name: str
    email: str
    administrator: bool
    disabled: bool
    must_change_password: bool
    password_ends_at: datetime | None = Field(description="Of a first password that was not changed; else null.")
    second_factor: bool = Field(description="Each log-in asks for a code of an authenticator app.")
    comes_by: str = Field(description="The identity provider; empty for one with a password here.")
    roles: dict[str, Role] = Field(description="By project. An administrator needs none.")
    created_at: datetime
    last_login_at: datetime | None = Field(description="null: never.")
    disabled_at: datetime | None
    tokens: list[MadeTokenOut] = Field(
        description="Tokens of projects that the person made and that are in force; they outlive role and account."
    )

    @classmethod
    def of(cls, user: User, roles: list[tuple[str, Role]], made: Sequence[MadeToken] = ()) -> Self:
        return cls(
            id=user.id, name=user.name, email=user.email, administrator=user.administrator,
            disabled=user.disabled_at is not None, must_change_password=user.must_change_password,
            password_ends_at=user.password_ends_at, second_factor=user.second_factor,
            comes_by=user.comes_by, roles=dict(roles), created_at=user.created_at, last_login_at=user.last_login_at,
            disabled_at=user.disabled_at, tokens=[MadeTokenOut.model_validate(one) for one in made],
        )  # fmt: skip


class UserMade(UserOut):
    password: str = Field(description="For the first log-in, where another one must be chosen. Shown nowhere else.")


class UserList(BaseModel):
    items: list[UserOut]


class NewUser(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=100, description="By which the person logs in.")
    email: str = Field("", max_length=300)
    administrator: bool = Field(False, description="May do everything, in every project.")
    author: str = Field("", max_length=100, description="Who makes it, where nobody is logged in.")


class UserChange(BaseModel):
    """What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    administrator: bool | None = None
    disabled: bool | None = Field(None, description="May do nothing any more, and is logged out at once.")
    revoke_tokens: bool = Field(False, description="Also revoke all tokens that the person made.")
    author: str = Field("", max_length=100, description="Who changes it, where nobody is logged in.")


@router.get("")
def read_users(session: ReadSession) -> UserList:
    """Everybody who has an account, also those who are disabled."""
    roles, made = roles_by_user(session), made_in_force(session)
    listed = list_users(session)
    return UserList(items=[UserOut.of(user, roles.get(user.id, []), made.get(user.name, [])) for user in listed])


@router.post("", status_code=201, responses=documented(409, 422), response_model=UserMade)
def create_user(engine: AppEngine, body: NewUser) -> JSONResponse:
    """Make an account. The answer is the only place where its first password is shown."""
    user, password = people.add_person(
        engine, name=body.name, email=body.email, administrator=body.administrator, by=signed(body.author)
    )
    return _made(UserOut.of(user, []), password, 201)


@router.patch("/{user_id}", responses=documented(404, 409, 422))
def change_user(engine: AppEngine, session: ReadSession, user_id: UserId, change: UserChange) -> UserOut:
    """Disable an account or enable it, make it an administrator's or not. The last administrator stays one."""
    user = people.change_person(
        engine, user_id, administrator=change.administrator, disabled=change.disabled, revoke=change.revoke_tokens,
        by=signed(change.author),
    )  # fmt: skip
    return _now(session, user)


@router.post("/{user_id}/password", responses=documented(404, 422), response_model=UserMade)
def reset_password(engine: AppEngine, session: ReadSession, user_id: UserId) -> JSONResponse:
    """Give an account a new first password; it is logged out everywhere."""
    user, password = people.reset_password(engine, user_id, by=signed())
    return _made(_now(session, user), password, 200)


def _now(session: Session, user: User) -> UserOut:
    return UserOut.of(user, roles_by_user(session).get(user.id, []), made_in_force(session).get(user.name, []))


def _made(user: UserOut, password: str, status: int) -> JSONResponse:
    made = UserMade(**user.model_dump(), password=password)
    return JSONResponse(made.model_dump(mode="json"), status, {"Cache-Control": "no-store"})
