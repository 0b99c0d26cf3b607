"""Database and disk errors that are temporary. Any other is unexpected."""

import errno
import sqlite3

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from app.errors import DiskFull, Overloaded, Unavailable

_POSTGRESQL_DISK_FULL = "53100"


def fault_of(error: Exception) -> Unavailable | None:
    """The error to answer with; None for an unexpected one."""
    full = away = False
    if isinstance(error, NoConnectionError):  # of the pool
        return Overloaded("All connections to the database are in use. Try again in a moment.")
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    elif isinstance(error, DBAPIError) and isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        full = code == sqlite3.SQLITE_FULL
        # SQLite calls a mistake in a statement operational, too.
        away = isinstance(error, OperationalError) and code != sqlite3.SQLITE_ERROR
    elif isinstance(error, DBAPIError):
        full = getattr(error.orig, "sqlstate", None) == _POSTGRESQL_DISK_FULL
        away = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    if full:
        return DiskFull("The disk of the service is full or read-only. Tell the administrator, and try again later.")
    return Unavailable("The database did not answer, or is locked. Try again in a moment.") if away else None
