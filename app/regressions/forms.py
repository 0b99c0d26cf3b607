"""The forms of triage: for one regression, and for rows selected in the list."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from app.domain.text import one_line
from app.domain.verdict.regression import Regression
from app.errors import FieldError, InvalidChange, ThreewallsError
from app.regressions.commands import Answer, RegressionChange, Seen
from app.regressions.queries import NOBODY
from app.web.forms import Form, read_time

_FILLED = ("assignee", "external_url")
"""Inputs with a prefilled value. `was_NAME` repeats the value, so that only edited inputs are changes."""
_MAX_COMMIT = 100
OVERVIEW = "overview"
_ANSWERS: Mapping[str, Answer] = {"accept": "accept", "decline": "decline"}


class TriageForm(Form):
    """A form of triage. `seen`: the selected rows. `closing`: all rows with a proposal, to accept together.

    `page`: where the form is, if not on a page of regressions.
    """

    inputs = ("state", "assignee", "external_url", "note", "author", "quarantine", "commit")
    hidden = ("proposal", "take", "changed_at", "page", *(f"was_{name}" for name in _FILLED))
    several = ("seen", "closing")

    def change(self) -> RegressionChange:
        """Return the changes in the form of one regression, without unedited inputs."""
        answer = _ANSWERS.get(self.value("proposal"))
        if answer:
            return RegressionChange(self.value("author"), note=self.value("note"), answer=answer)
        if self.value("take"):
            return RegressionChange(self.value("author"), state="acknowledged", assignee=self.value("author"))
        commit = one_line(self.value("commit"))[:_MAX_COMMIT]
        fixed_by = f"Fixed by commit {commit}." if commit else ""
        return RegressionChange(
            self.value("author"),
            state=self.value("state") or None,
            assignee=self._touched("assignee"),
            note="\n".join(filter(None, (fixed_by, self.value("note")))),
            external_url=self._touched("external_url"),
            quarantine=bool(self.value("quarantine")),
        )

    def bulk_change(self) -> RegressionChange:
        """Return the changes in the form below the list, without empty inputs; or the answer to proposals."""
        answer = _ANSWERS.get(self.value("proposal"))
        if answer:
            return RegressionChange(self.value("author"), answer=answer)
        assignee = self.value("assignee")
        return RegressionChange(
            self.value("author"),
            state=self.value("state") or None,
            assignee="" if assignee.lower() == NOBODY else assignee or None,
            note=self.value("note"),
        )

    def _touched(self, name: str) -> str | None:
        return None if self.value(name) == self.value(f"was_{name}") else self.value(name)

    def over(self, regression: Regression) -> Self:
        """Return this form with current values of the regression in all inputs that were not edited."""
        now = {name: getattr(regression, name) for name in _FILLED}
        typed = {name: value for name in _FILLED if (value := self._touched(name)) is not None}
        was = {f"was_{name}": value for name, value in now.items()}
        return replace(self, values={**self.values, **now, **was, **typed})

    def seen_regression(self, regression_id: int) -> Seen:
        return Seen(regression_id, read_time(self.value("changed_at")))

    @property
    def panel(self) -> str:
        """Return the submitted panel of the decision bar: a state, or `more`; empty for buttons without a panel."""
        return self.value("state") or ("more" if "note" in self.values else "")

    def seen_rows(self) -> list[Seen]:
        """Return the selected rows, each `id@changed_at`. Raises InvalidChange."""
        rows = self.chosen["closing"] if self.value("proposal") else self.chosen["seen"]
        if not rows:
            raise InvalidChange("Select at least one regression. Nothing was changed.")
        return [_row(text) for text in rows]

    def refused(self, error: ThreewallsError) -> Self:
        """Return the form with `error` at the input that it concerns, or above the form."""
        errors = {wrong.field: wrong.message for wrong in reversed(error.errors)}
        placed = {name: text for name, text in errors.items() if name in self.inputs}
        elsewhere = [f"{text[:1].upper()}{text[1:]}." for name, text in errors.items() if name not in self.inputs]
        problem = " ".join([error.detail, *elsewhere]) if elsewhere or not placed else ""
        return replace(self, errors=placed, problem=problem)


class UndoForm(Form):
    """The form of a toast. `event`: audit entries of the changes.

    `page`: the shown regression, or OVERVIEW; empty for the list.
    """

    inputs = ("author",)
    hidden = ("page",)
    several = ("event",)

    @property
    def event_ids(self) -> tuple[int, ...]:
        return tuple(int(text) for text in self.chosen["event"] if text.isascii() and text.isdigit() and len(text) < 19)

    @property
    def regression_id(self) -> int | None:
        page = self.value("page")
        return int(page) if page.isascii() and page.isdigit() and len(page) < 10 else None


def _row(text: str) -> Seen:
    number, _, time = text.partition("@")
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        error = FieldError("seen", "is not a row of the list")
        raise InvalidChange("A selected row is invalid. Nothing was changed. Reload the list.", (error,))
    return Seen(int(number), read_time(time))
