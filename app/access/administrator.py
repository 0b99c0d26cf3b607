"""The first administrator, and a new password for one who forgot it: from a shell of the machine, not over HTTP."""

import argparse
import getpass
import os
import sys

from sqlalchemy import make_url

from app.domain.access import passwords
from app.errors import InvalidChange, NotFound
from app.settings import Settings
from app.storage import users
from app.storage.database import make_engine, migrate, transaction

PASSWORD_VARIABLE = "THREEWALLS_ADMIN_PASSWORD"  # noqa: S105
BY = "command line"


def run(options: argparse.Namespace, settings: Settings) -> None:
    """Raises InvalidChange, NameTaken, NotFound."""
    name = users.checked_name(options.name)
    if settings.embedded:
        migrate(settings)  # before the first start there is no database
    engine = make_engine(settings)
    try:
        password = _password(name)
        with transaction(engine) as session:
            if options.action == "create":
                users.create_user(session, name, by=BY, password=password, administrator=True)
                done = f"{name} is an administrator now of {_where(settings)}. From now on everybody logs in there."
            else:
                row = users.find_user(session, name)
                if row is None:
                    raise NotFound(f"There is no account {name}.")
                users.set_password(session, row, password, by=BY)
                users.end_sessions_of(session, row.id or 0)
                done = f"{name} has a new password in {_where(settings)}, and is logged out everywhere."
    finally:
        engine.dispose()
    print(done)


def _where(settings: Settings) -> str:
    """What was written to: the same command in another folder makes the administrator of another service."""
    if not settings.database_url:
        return f"the service whose data are in {settings.data_dir.resolve()}"
    return f"the service on {make_url(settings.database_url).render_as_string(hide_password=True)}"


def _password(name: str) -> str:
    """Raises InvalidChange for one that will not do, before anything is written."""
    if (given := os.environ.get(PASSWORD_VARIABLE)) is None:
        if sys.stdin.isatty():
            given = getpass.getpass("Password: ")
            if getpass.getpass("Once more: ") != given:
                raise InvalidChange("These are two different passwords. Nothing was changed.")
        else:
            given = sys.stdin.readline().rstrip("\r\n")
    if wrong := passwords.problem_with(given, name):
        raise InvalidChange(f"The password {wrong}. Nothing was changed.")
    return given
