"""What a person decides about a run: quarantine and release, pin and unpin. Recorded, then judged again."""

from collections.abc import Callable, Mapping
from typing import Literal

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.errors import NotFound
from app.queue import JUDGE_STACK, enqueue
from app.storage import decisions
from app.storage.database import transaction
from app.storage.tables import RunRow

log = structlog.get_logger(__name__)

Action = Literal["quarantine", "release", "pin", "unpin"]
ACTIONS: tuple[Action, ...] = ("quarantine", "release", "pin", "unpin")


def decide(engine: Engine, run_id: int, action: Action, *, author: str, note: str = "") -> None:
    """`note` is the reason of a quarantine, which must have one. Raises NotFound, and InvalidChange naming fields."""
    with transaction(engine, durable=True) as session:
        asked = _DO[action](session, run_id, author, note)
    log.info("run_decided", run_id=run_id, action=action)
    for work in asked:
        enqueue(JUDGE_STACK, work)


def _unpin(session: Session, run_id: int, author: str, note: str) -> list[int]:
    run = session.get(RunRow, run_id)
    if run is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    found = decisions.pins(session, run.project_id, run.stack_key)
    in_force = [one.id for one in found if one.run_id == run_id and one.in_force]
    return [work for pin in in_force for work in decisions.unpin(session, pin, author, note)]


_DO: Mapping[Action, Callable[[Session, int, str, str], list[int]]] = {
    "quarantine": decisions.quarantine,
    "release": decisions.release,
    "pin": decisions.pin,
    "unpin": _unpin,
}
