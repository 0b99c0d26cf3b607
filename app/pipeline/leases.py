"""The lease of a claim, renewed while its worker lives: one that is only slow keeps what it works at."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session

from app.storage.database import transaction
from app.storage.tables import utc_now

log = structlog.get_logger(__name__)

_RENEWALS_A_LEASE = 3


@contextmanager
def renewed(
    engine: Engine, renew: Callable[[Session, datetime], bool], lease_seconds: float, **claim: object
) -> Iterator[None]:
    """Renew a lease in a thread of its own until the block ends.

    `renew` moves its end, and returns False when the claim was lost. `claim` says in the log which one it is.
    """
    stopped = threading.Event()

    def keep() -> None:
        while not stopped.wait(lease_seconds / _RENEWALS_A_LEASE):
            try:
                with transaction(engine) as session:
                    if not renew(session, utc_now() + timedelta(seconds=lease_seconds)):
                        log.warning("claim_lost", **claim)
                        return
            except SQLAlchemyError as error:
                # One of three renewals may fail; if all do, another worker takes over and this one writes nothing.
                log.warning("lease_not_renewed", **claim, error=str(error))

    thread = threading.Thread(target=keep, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
