"""The forms of triage as they were sent: of one regression, and of the rows that were selected in the list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from app.errors import FieldError, InvalidChange, ThreewallsError
from app.regressions.filters import NOBODY
from app.regressions.read_models import Regression
from app.regressions.triage import Answer, Change, Seen

_INPUTS = ("state", "assignee", "external_url", "note", "author", "proposal", "quarantine", "changed_at")
_ANSWERS: Mapping[str, Answer] = {"accept": "accept", "decline": "decline"}
_SHOWN = ("state", "assignee", "external_url", "note", "author", "quarantine")
"""Inputs beside which an error can stand."""


@dataclass(frozen=True, slots=True)
class TriageForm:
    """What was typed, by input, and what is wrong with it. `seen`: the selected rows, as the list sent them."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    seen: Sequence[str] = ()

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def change(self) -> Change:
        """What the form of one regression asks for: the state is left alone when none is chosen, a field is emptied."""
        answer = _ANSWERS.get(self.value("proposal"))
        if answer:
            return Change(self.value("author"), note=self.value("note"), answer=answer)
        return Change(
            self.value("author"),
            state=self.value("state") or None,
            assignee=self.value("assignee"),
            note=self.value("note"),
            external_url=self.value("external_url"),
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

    def seen_one(self, regression_id: int) -> Seen:
        return Seen(regression_id, _time(self.value("changed_at")))

    def seen_rows(self) -> list[Seen]:
        """The selected rows, each `id@changed_at`. Raises InvalidChange."""
        if not self.seen:
            raise InvalidChange("Select at least one regression. Nothing was changed.")
        return [_row(text) for text in self.seen]

    def refused(self, error: ThreewallsError) -> Self:
        """The same form with `error` where it belongs; what has no input of its own stands above the form."""
        errors = {one.field: one.message for one in reversed(error.errors)}
        placed = {name: text for name, text in errors.items() if name in _SHOWN}
        elsewhere = [f"{text[:1].upper()}{text[1:]}." for name, text in errors.items() if name not in _SHOWN]
        problem = " ".join([error.detail, *elsewhere]) if elsewhere or not placed else ""
        return type(self)(self.values, placed, problem, self.seen)


def read_triage_form(sent: Mapping[str, object], seen: Sequence[object] = ()) -> TriageForm:
    """The text inputs of a form as it was sent; others are left out."""
    values = {name: value.strip() for name in _INPUTS if isinstance(value := sent.get(name), str)}
    # Browsers send line ends as CRLF, whatever was typed.
    values["note"] = values.get("note", "").replace("\r\n", "\n")
    return TriageForm(values, seen=[text for text in seen if isinstance(text, str)])


def filled_form(found: Regression) -> TriageForm:
    """The form as the regression stands."""
    return TriageForm({"assignee": found.assignee, "external_url": found.external_url})


def _row(text: str) -> Seen:
    number, _, time = text.partition("@")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        error = FieldError("seen", "is no row of the list")
        raise InvalidChange("A selected row cannot be understood. Reload the list. Nothing was changed.", (error,))
    return Seen(int(number), _time(time))


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None
