"""`GET /api/v1/whoami`: what a client is taken for, so that it can say what is wrong before a job depends on it."""

from datetime import datetime
from importlib.metadata import version
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine, select
from sqlmodel import col

from app.domain.access.principal import Everyone, Person, TokenHolder
from app.domain.access.roles import Scope
from app.storage.access_tables import TokenRow
from app.storage.database import read_session
from app.storage.run_records import aware
from app.storage.visible import seeing
from app.web.access.state import access_of
from app.web.dependencies import AppEngine
from app.web.problems import documented

router = APIRouter(prefix="/api/v1", tags=["access"])


class WhoAmI(BaseModel):
    kind: Literal["everyone", "person", "token", "nobody"] = Field(
        description="`everyone`: this service has no log-ins. `nobody`: nothing was shown that says who asks."
    )
    name: str = Field("", description="Of the person or the token.")
    project: str | None = Field(None, description="Of the token.")
    scopes: list[str] = Field([], description="Of the token: upload, read, triage.")
    expires_at: datetime | None = Field(None, description="When the token ends; null for never.")
    version: str = Field(description="Of the service.")


@router.get("/whoami", responses=documented(401))
def whoami(request: Request, engine: AppEngine) -> WhoAmI:
    """Who the caller is to this service, and what a token may. A token that is not in force is a 401."""
    own = version("threewalls")
    match access_of(request).principal:
        case Everyone():
            return WhoAmI(kind="everyone", version=own)
        case Person(name=name):
            return WhoAmI(kind="person", name=name, version=own)
        case TokenHolder() as holder:
            scopes = [scope.value for scope in Scope if scope in holder.scopes]
            return WhoAmI(
                kind="token", name=holder.name, project=holder.project, scopes=scopes,
                expires_at=_expires_at(engine, holder), version=own,
            )  # fmt: skip
    return WhoAmI(kind="nobody", version=own)


def _expires_at(engine: Engine, holder: TokenHolder) -> datetime | None:
    # A token that may not read still may know this of itself.
    with seeing(frozenset({holder.project_id})), read_session(engine) as session:
        chosen = select(TokenRow.expires_at).where(col(TokenRow.id) == holder.token_id)  # type: ignore[call-overload]
        found: datetime | None = session.execute(chosen).scalar_one_or_none()
    return aware(found) if found else None
