"""The forms by which a golden run is pinned and unpinned on the page of its history."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import structlog
from sqlalchemy import Engine

from app.errors import FieldError, InvalidChange, ThreewallsError
from app.queue import JUDGE_STACK, enqueue
from app.storage.database import transaction
from app.storage.decisions import pin, unpin
from app.storage.judging_tables import PinRow
from app.storage.tables import RunRow

log = structlog.get_logger(__name__)

_INPUTS = ("run", "author", "note")
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class PinForm:
    """What was typed, by input, and what is wrong with it; what has no input of its own stands in `problem`."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: ThreewallsError) -> Self:
        placed = {one.field: one.message for one in error.errors if one.field in _INPUTS}
        return type(self)(self.values, placed, "" if placed else error.detail)


def read_pin_form(sent: Mapping[str, object]) -> PinForm:
    return PinForm({name: value.strip() for name in (*_INPUTS, "pin") if isinstance(value := sent.get(name), str)})


def pin_by_form(engine: Engine, stack_key: str, form: PinForm) -> None:
    """Pin the run that the form names, which must be of the stack. Raises InvalidChange, NotFound."""
    number = _number(form.value("run").removeprefix("#"), "run")
    with transaction(engine, durable=True) as session:
        run = session.get(RunRow, number)
        if run is None or run.stack_key != stack_key:
            raise _refused("run", f"must be the number of a run of this stack, and {number} is none")
        asked = pin(session, number, form.value("author"), form.value("note"))
    _ring(asked)
    log.info("run_pinned", run_id=number)


def unpin_by_form(engine: Engine, stack_key: str, form: PinForm) -> None:
    """Raises InvalidChange, NotFound."""
    number = _number(form.value("pin"), "pin")
    with transaction(engine, durable=True) as session:
        found = session.get(PinRow, number)
        if found is None or found.stack_key != stack_key:
            raise _refused("pin", "is none of this stack; reload the page")
        asked = unpin(session, number, form.value("author"), form.value("note"))
    _ring(asked)
    log.info("run_unpinned", pin_id=number)


def _ring(asked: list[int]) -> None:
    for work in asked:
        enqueue(JUDGE_STACK, work)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise _refused(name, "must be the number of a run")
    return int(text)


def _refused(name: str, message: str) -> InvalidChange:
    return InvalidChange(f"The {name} {message}. Nothing was changed.", (FieldError(name, message),))
