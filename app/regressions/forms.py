"""The forms of triage as they were sent: of one regression, and of the rows that were selected in the list."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from app.errors import FieldError, InvalidChange, ThreewallsError
from app.pipeline.regressions import Regression
from app.regressions.commands import Answer, Change, Seen
from app.regressions.queries import NOBODY
from app.web.forms import Form, read_time

_FILLED = ("assignee", "external_url")
"""Inputs that come with a value; `was_NAME` says which, so that only what was typed is a change."""
_ANSWERS: Mapping[str, Answer] = {"accept": "accept", "decline": "decline"}


class TriageForm(Form):
    """A form of triage; the selected rows are its `seen`, as the list sent them."""

    inputs = ("state", "assignee", "external_url", "note", "author", "quarantine")
    hidden = ("proposal", "changed_at", *(f"was_{name}" for name in _FILLED))
    several = ("seen",)

    def change(self) -> Change:
        """What the form of one regression asks for: what was not touched is left alone, whatever it is by now."""
        answer = _ANSWERS.get(self.value("proposal"))
        if answer:
            return Change(self.value("author"), note=self.value("note"), answer=answer)
        return Change(
            self.value("author"),
            state=self.value("state") or None,
            assignee=self._touched("assignee"),
            note=self.value("note"),
            external_url=self._touched("external_url"),
            quarantine=bool(self.value("quarantine")),
        )

    def bulk_change(self) -> Change:
        """What the form below the list asks for: an empty input leaves things as they are."""
        assignee = self.value("assignee")
        return Change(
            self.value("author"),
            state=self.value("state") or None,
            assignee="" if assignee.lower() == NOBODY else assignee or None,
            note=self.value("note"),
        )

    def _touched(self, name: str) -> str | None:
        return None if self.value(name) == self.value(f"was_{name}") else self.value(name)

    def over(self, regression: Regression) -> Self:
        """This form over the regression as it is now: what was typed stays, what was not touched follows it."""
        now = {name: getattr(regression, name) for name in _FILLED}
        typed = {name: value for name in _FILLED if (value := self._touched(name)) is not None}
        was = {f"was_{name}": value for name, value in now.items()}
        return replace(self, values={**self.values, **now, **was, **typed})

    def seen_one(self, regression_id: int) -> Seen:
        return Seen(regression_id, read_time(self.value("changed_at")))

    def seen_rows(self) -> list[Seen]:
        """The selected rows, each `id@changed_at`. Raises InvalidChange."""
        if not self.chosen["seen"]:
            raise InvalidChange("Select at least one regression. Nothing was changed.")
        return [_row(text) for text in self.chosen["seen"]]

    def refused(self, error: ThreewallsError) -> Self:
        """The same form with `error` where it belongs; what has no input of its own stands above the form."""
        errors = {wrong.field: wrong.message for wrong in reversed(error.errors)}
        placed = {name: text for name, text in errors.items() if name in self.inputs}
        elsewhere = [f"{text[:1].upper()}{text[1:]}." for name, text in errors.items() if name not in self.inputs]
        problem = " ".join([error.detail, *elsewhere]) if elsewhere or not placed else ""
        return replace(self, errors=placed, problem=problem)


def _row(text: str) -> Seen:
    number, _, time = text.partition("@")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        error = FieldError("seen", "is no row of the list")
        raise InvalidChange("A selected row cannot be understood. Reload the list. Nothing was changed.", (error,))
    return Seen(int(number), read_time(time))
