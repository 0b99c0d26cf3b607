"""State facts of a run that its log does not contain: validate them and record author and time."""

from collections.abc import Mapping

import structlog
from sqlalchemy import Engine

from app.domain.contract.statements import refused
from app.domain.rules.facts import Fact
from app.domain.rules.stated import CHOICES, STATEABLE, is_share, read_facts
from app.domain.text import one_line
from app.errors import FieldError
from app.storage.audit import MAX_NOTE, author_errors
from app.storage.database import transaction
from app.storage.readings import in_force, state_facts, statements_of
from app.web.forms import ContractInput, StatementForm

log = structlog.get_logger(__name__)


def state(engine: Engine, run_id: int, *, facts: Mapping[str, object], author: str, note: str = "") -> None:
    """Record all facts or none. Raises NotFound, and InvalidMetadata naming `facts.NAME`, `author` or `note`."""
    author, note = one_line(author), one_line(note)
    stated, errors = read_facts(facts, "facts")
    if not facts:
        errors.append(FieldError("facts", "must contain at least one fact"))
    errors += author_errors(author)
    if len(note) > MAX_NOTE:
        errors.append(FieldError("note", f"must have at most {MAX_NOTE:,} characters"))
    if errors:
        raise refused(errors)
    with transaction(engine, durable=True) as session:
        state_facts(session, run_id, stated, author=author, note=note)
        in_effect = in_force(statements_of(session, run_id)[len(stated) :]) if None in stated.values() else {}
        wrong = [name for name, value in stated.items() if value is None and name not in in_effect]
        if wrong:
            raise refused([FieldError(f"facts.{name}", "was not stated, so it cannot be withdrawn") for name in wrong])
    log.info("facts_stated", run_id=run_id, facts=list(stated))


# --- The form on the page of suggestions.

PREFIX = "fact."
"""Prefix of inputs that are facts."""
_HINTS = {"int": "A whole number.", "double": "A number.", "ints": "Whole numbers, separated by commas."}


class StateForm(StatementForm):
    prefix = PREFIX

    @classmethod
    def has_input(cls, name: str) -> bool:
        return name in cls.inputs or name.removeprefix(PREFIX) in STATEABLE

    def input_of(self, field: str) -> str:
        return field.replace("facts.", PREFIX, 1)


def fact_input(fact: Fact, form: StateForm) -> ContractInput:
    """Return a select or a text box with the entered value."""
    name = PREFIX + fact.name
    choices: tuple[tuple[str, str], ...] = ()
    if fact.type == "bool":
        choices = (("true", "yes"), ("false", "no"))
    elif fact.type == "string":
        choices = tuple((choice, choice) for choice in CHOICES.get(fact.name, ()))
    return ContractInput(
        name=name,
        field=fact.name,
        why=fact.meaning,
        hint=_hint(fact),
        choices=choices,
        numeric=fact.type in ("int", "double"),
        value=form.value(name),
        error=form.error(name),
    )


def _hint(fact: Fact) -> str:
    if is_share(fact):
        return "For example 0.18 or 18 %."
    if fact.type == "strings":
        return f"Any of {', '.join(CHOICES[fact.name])}, or none." if fact.name in CHOICES else "Words, or none."
    return f"In {fact.unit}." if fact.unit else _HINTS.get(fact.type, "")
