"""The upload form of the browser: its fields, the metadata they make, and errors at the field they belong to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from app.domain.contract.fields import FIELDS
from app.domain.logs.line_template import MAX_TEMPLATE
from app.domain.run import Stated
from app.errors import FieldError, InvalidMetadata, ThreewallsError
from app.pipeline.correction import CORRECTED, MOST_NOTES
from app.runs.commands import RunDecision
from app.storage.json_text import read_json
from app.storage.runs import RunDetail
from app.web.forms import ContractForm, ContractInput, Form, StatementForm, contract_input

TEXTS = (
    "name", "project", "purpose", "branch", "commit", "ci_url", "tags",
    "model", "gpu", "gpus", "cluster", "container", "data_mode",
)  # fmt: skip
"""Fields of the form that are entries of `meta` by the same name."""
WINDOW = ("window.first", "window.last")
JSON = "meta"
FILES = "log"


class UploadForm(Form):
    inputs = (*TEXTS, *WINDOW, JSON)

    def metadata(self) -> bytes:
        """Return the `meta` document: the JSON field with the other fields added. Raises InvalidMetadata."""
        document = self._json()
        stated = {name: self.value(name) for name in TEXTS if self.value(name)}
        twice = [name for name in stated if name in document]
        window = {name.removeprefix("window."): _number(self.value(name)) for name in WINDOW if self.value(name)}
        if window and "window" in document:
            twice.append(WINDOW[0])
        if twice:
            errors = tuple(
                FieldError(name, "is stated here and in the JSON below; remove one of them") for name in twice
            )
            raise InvalidMetadata("Some fields are stated twice. Nothing was saved.", errors)
        document |= stated
        if "tags" in stated:
            document["tags"] = [tag.strip() for tag in stated["tags"].split(",") if tag.strip()]
        if window:
            document["window"] = window
        return json.dumps(document).encode()

    def refused(self, error: ThreewallsError) -> Self:
        """Return the form with `error` at its field; errors without a field are shown above the form."""
        errors: dict[str, str] = {}
        for wrong in error.errors:
            name = wrong.field.removeprefix("meta.")
            place = next((field for field in (*TEXTS, *WINDOW, FILES) if name == field), "")
            if not place and name.startswith("window"):
                place = WINDOW[0]
            # Values without a separate field were written in the JSON.
            text = wrong.message if place else f"{name}: {wrong.message}"
            errors[place or JSON] = "; ".join(filter(None, (errors.get(place or JSON), text)))
        if not errors:
            errors[JSON if isinstance(error, InvalidMetadata) else FILES] = error.detail
        return replace(self, errors=errors, problem=error.title)

    def _json(self) -> dict[str, Any]:
        text = self.value(JSON)
        if not text:
            return {}
        document = read_json(text.encode("utf-8", "replace"))
        if not isinstance(document, dict):
            raise InvalidMetadata("This is JSON, but not an object.", (FieldError(JSON, "must be an object, {...}"),))
        return document


def _number(text: str) -> int | str:
    """Return a number where `text` is one, else the text, which `read_metadata` then rejects by name."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text


# --- The form to state contract fields of an existing run: unknown ones, or a correction.


class AmendForm(StatementForm, ContractForm):
    def offered(self, names: Sequence[str], contract: Mapping[str, Stated]) -> tuple[ContractInput, ...]:
        declared = (name for name in names if name in FIELDS)
        return tuple(
            contract_input(name, self, contract[name].value if name in contract else None) for name in declared
        )


# --- The form that describes the step lines of a log in an unknown format.


class ReadAsForm(Form):
    inputs = ("read_as", "author", "note")
    longest = 2 * MAX_TEMPLATE


# --- The form to correct labels that the upload stated.


class CorrectionForm(Form):
    inputs = (*CORRECTED, "author", "note")
    longest = MOST_NOTES + 1

    @classmethod
    def of(cls, run: RunDetail) -> Self:
        """Return the form with what the run states now."""
        time = run.commit_time.isoformat() if run.commit_time else ""
        values = {"tags": ", ".join(run.tags), "commit_time": time}
        return cls({name: values.get(name, str(getattr(run, name, ""))) for name in CORRECTED})

    def changes(self, before: Self) -> dict[str, Any]:
        """Return the sent values that differ from the prefilled form."""
        sent = {name: self.value(name) for name in CORRECTED if name in self.values}
        changed: dict[str, Any] = {name: value for name, value in sent.items() if value != before.value(name)}
        if "tags" in changed:
            return changed | {"tags": [tag for part in changed["tags"].split(",") if (tag := part.strip())]}
        return changed


# --- The forms of decisions about a run: which one was sent, the typed text, the errors.


@dataclass(frozen=True, slots=True)
class DecisionForm(Form):
    """`action` is None when none was sent."""

    action: RunDecision | None = None
    inputs = ("author", "note")

    def of(self, action: RunDecision) -> Form:
        """Return the form of `action`: empty where another one was sent."""
        return self if action == self.action else Form()
