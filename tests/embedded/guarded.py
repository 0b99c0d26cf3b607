"""Services with log-ins."""

from pathlib import Path

from app.domain.access.principal import Role
from app.settings import Settings
from app.storage import users
from app.storage.database import make_engine, transaction
from tests.builders import make_project

WORD = "correct horse battery"
"""Everybody's password."""


def add_administrator(data: Path) -> None:
    """Add `root`; from then on, log-ins are required."""
    engine = make_engine(Settings(data_dir=data))
    with transaction(engine) as session:
        users.create_user(session, "root", by="test", password=WORD, administrator=True)
    engine.dispose()


def add_maintainer(data: Path, name: str, project: str) -> None:
    """Add a user who maintains a new project."""
    engine = make_engine(Settings(data_dir=data))
    with transaction(engine) as session:
        user = users.create_user(session, name, by="test", password=WORD)
        project_id = make_project(session, project).id or 0
        users.set_role(session, project_id=project_id, user_id=user.id, role=Role.MAINTAINER, by="test")
    engine.dispose()
