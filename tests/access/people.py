"""A service with log-ins and two teams, and a client for every kind of caller."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.access.credentials import NAME
from app.domain.access.principal import Role, Scope
from app.storage import tokens, users
from app.storage import users as sessions
from app.storage.database import transaction
from tests.builders import make_project
from tests.pages import PageClient

IDLE = timedelta(hours=1)
OURS, THEIRS, PUBLIC = "alpha", "omega", "window"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}
ROLES = {"viewer": Role.VIEWER, "contributor": Role.CONTRIBUTOR, "maintainer": Role.MAINTAINER}
SCOPES = {f"token:{scope}": frozenset({scope}) for scope in Scope} | {"token:all": frozenset(Scope)}
EVERYBODY = ("anonymous", "outsider", *ROLES, "administrator", *SCOPES)
"""`outsider` maintains the other team's project; the others belong to ours. Tokens are of ours."""


@dataclass(frozen=True)
class Teams:
    """Two projects with their users, and a public one."""

    app: Any
    ours: int
    theirs: int
    public: int
    users: Mapping[str, int]
    tokens: Mapping[str, str]
    engine: Engine

    def client(self, who: str) -> TestClient:
        """Sends requests as one of EVERYBODY, a browser or a job."""
        client = PageClient(self.app, raise_server_exceptions=False, follow_redirects=False)
        if who in self.tokens:
            client.headers["Authorization"] = f"Bearer {self.tokens[who]}"
        elif who != "anonymous":
            client.cookies.set(NAME, self.session(who))
            client.headers.update(SAME_ORIGIN)
        return client

    def session(self, who: str) -> str:
        """Return the cookie of a new browser session of that user."""
        with transaction(self.engine) as session:
            return sessions.start_session(session, self.users[who], IDLE)


def new_browser(teams: Teams) -> TestClient:
    """Return a browser without a session."""
    client = teams.client("anonymous")
    client.headers.update(SAME_ORIGIN | {"Accept": "text/html"})
    return client


def make_teams(app: FastAPI) -> Teams:
    with transaction(app.state.engine) as session:
        ours, theirs, public = (make_project(session, slug).id or 0 for slug in (OURS, THEIRS, PUBLIC))
        shown = make_project(session, PUBLIC)
        shown.public = True
        session.add(shown)
        user_ids = {
            name: users.create_user(session, name, by="test", administrator=name == "administrator").id
            for name in ("outsider", *ROLES, "administrator")
        }
        for name, role in ROLES.items():
            users.set_role(session, project_id=ours, user_id=user_ids[name], role=role, by="test")
        users.set_role(session, project_id=theirs, user_id=user_ids["outsider"], role=Role.MAINTAINER, by="test")
        secrets = {
            name: tokens.make_token(session, project_id=ours, name=name, scopes=scopes, by="test")[1]
            for name, scopes in SCOPES.items()
        }
    return Teams(app, ours, theirs, public, user_ids, secrets, app.state.engine)
