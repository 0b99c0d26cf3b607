"""`/api/v1/watching`: what the user watches, and its changes."""

from datetime import datetime
from typing import Annotated

from fastapi import Path, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine

from app.access.owners import KEY_LENGTH, Owners
from app.domain.access.principal import Action
from app.errors import NotFound
from app.storage.database import transaction
from app.storage.watches import Kind, list_watches, stop_watching, watch
from app.watching.queries import changes_of, watcher_of
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, AppEngine, ReadSession, RegressionId, api_router
from app.web.errors import documented

router = api_router("watching", "/api/v1/watching")

StackKey = Annotated[str, Path(min_length=KEY_LENGTH, max_length=KEY_LENGTH, description="The whole key of the stack.")]


class WatchOut(ApiValue):
    kind: Kind
    target: str = Field(description="Key of the stack, or number of the regression.")
    project: str
    title: str
    path: str
    watched_at: datetime


class ChangeOut(ApiValue):
    at: datetime
    kind: str = Field(description="`run`, `regression` or `stack`.")
    title: str
    detail: str
    path: str
    who: str = Field(description="Who changed it; empty for runs.")


class Watching(BaseModel):
    watches: list[WatchOut] = Field(description="Newest first.")
    changes: list[ChangeOut] = Field(description="The newest 50, newest first.")


@router.get("", responses=documented(403))
@requires(Action.READ)
def read_watching(request: Request, session: ReadSession) -> Watching:
    """List what the user watches, and its newest changes. Tokens belong to no user and cannot watch."""
    watches = list_watches(session, watcher_of(request))
    return Watching(
        watches=[WatchOut.model_validate(item) for item in watches],
        changes=[ChangeOut.model_validate(change) for change in changes_of(session, watches)],
    )


@router.put("/stacks/{stack}", status_code=204, responses=documented(403, 404, 422))
@requires(Action.READ, of="stack")
def watch_stack(request: Request, engine: AppEngine, stack: StackKey) -> None:
    """Watch a stack."""
    set_watch(request, engine, "stack", stack, wanted=True)


@router.delete("/stacks/{stack}", status_code=204, responses=documented(403, 404, 422))
@requires(Action.READ, of="stack")
def stop_watching_stack(request: Request, engine: AppEngine, stack: StackKey) -> None:
    """Stop watching a stack."""
    set_watch(request, engine, "stack", stack, wanted=False)


@router.put("/regressions/{regression_id}", status_code=204, responses=documented(403, 404, 422))
@requires(Action.READ, of="regression")
def watch_regression(request: Request, engine: AppEngine, regression_id: RegressionId) -> None:
    """Watch a regression."""
    set_watch(request, engine, "regression", str(regression_id), wanted=True)


@router.delete("/regressions/{regression_id}", status_code=204, responses=documented(403, 404, 422))
@requires(Action.READ, of="regression")
def stop_watching_regression(request: Request, engine: AppEngine, regression_id: RegressionId) -> None:
    """Stop watching a regression."""
    set_watch(request, engine, "regression", str(regression_id), wanted=False)


def set_watch(request: Request, engine: Engine, kind: Kind, target: str, *, wanted: bool) -> None:
    """Watch something, or stop watching it. Raises InvalidChange, NotAllowed, NotFound."""
    user_id = watcher_of(request)
    owned = Owners(engine).find(kind, target)
    if owned is None or owned.project <= 0:
        raise NotFound(f"This {kind} does not exist.")
    change = watch if wanted else stop_watching
    with transaction(engine) as session:
        change(session, user_id, owned.project, kind, target)
