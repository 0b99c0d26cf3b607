"""The form of a receiver: what stands, what was typed, what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from starlette.datastructures import FormData

from app.domain.notices.events import EVENTS, USUAL
from app.errors import InvalidChange
from app.notifications.queries import Receiver
from app.notifications.receivers import Wish

_INPUTS = ("name", "kind", "target", "stacks", "author")


@dataclass(frozen=True, slots=True)
class ReceiverForm:
    values: Mapping[str, str] = field(default_factory=dict)
    events: tuple[str, ...] = USUAL
    errors: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: InvalidChange) -> Self:
        return type(self)(self.values, self.events, {one.field: one.message for one in error.errors})

    def wish(self, address: str) -> Wish:
        stacks = tuple(part for part in self.value("stacks").replace(",", " ").split() if part)
        return Wish(
            self.value("name"), self.value("kind"), self.value("target"), self.events, stacks, self.value("author"),
            address,
        )  # fmt: skip


def read_receiver_form(sent: FormData) -> ReceiverForm:
    values = {name: value.strip() for name in _INPUTS if isinstance(value := sent.get(name), str)}
    ticked = {value for value in sent.getlist("events") if isinstance(value, str)}
    return ReceiverForm(values, tuple(event for event in EVENTS if event in ticked))


def filled_receiver_form(one: Receiver) -> ReceiverForm:
    """As it stands. Its address is not shown: what is typed there replaces it."""
    values = {"name": one.name, "kind": one.kind, "stacks": ", ".join(stack[:16] for stack in one.wants.stacks)}
    if one.kind == "email":
        values["target"] = one.target
    return ReceiverForm(values, one.wants.events)
