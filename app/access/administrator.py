"""`threewalls admin`: create an administrator or set a user's password, from a shell on the machine of the service."""

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
    """Create an administrator or set a password, as the options say. Raises InvalidChange, NameTaken, NotFound."""
    name = users.checked_name(options.name)
    if settings.embedded:
        migrate(settings)  # the database does not exist before the first start
    engine = make_engine(settings)
    try:
        password = _password(name)
        with transaction(engine) as session:
            if options.action == "create":
                users.create_user(session, name, by=BY, password=password, administrator=True)
                done = f"{name} is now an administrator of {_where(settings)}. All users must log in from now on."
            else:
                row = users.find_user(session, name)
                if row is None:
                    raise NotFound(f"User {name} does not exist.")
                users.set_password(session, row, password, by=BY)
                users.end_sessions_of(session, row.id or 0)
                done = f"{name} has a new password in {_where(settings)} and is logged out everywhere."
    finally:
        engine.dispose()
    print(done)


def _where(settings: Settings) -> str:
    """Return which service was changed: the command changes another one when it runs in another folder."""
    if not settings.database_url:
        return f"the service with the data folder {settings.data_dir.resolve()}"
    return f"the service on {make_url(settings.database_url).render_as_string(hide_password=True)}"


def _password(name: str) -> str:
    """Read a password from the environment, the terminal or standard input. Raises InvalidChange if it is too weak."""
    if (password := os.environ.get(PASSWORD_VARIABLE)) is None:
        if sys.stdin.isatty():
            password = getpass.getpass("Password: ")
            if getpass.getpass("Repeat the password: ") != password:
                raise InvalidChange("The passwords do not match. Nothing was changed.")
        else:
            password = sys.stdin.readline().rstrip("\r\n")
    if problem := passwords.problem_with(password, name):
        raise InvalidChange(f"The password {problem}. Nothing was changed.")
    return password
