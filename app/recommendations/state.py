"""A person states facts of a run that no log tells: checked, recorded with who and when, and the rules asked again."""

from collections.abc import Mapping

import structlog
from sqlalchemy import Engine

from app.domain.contract.statements import refused
from app.domain.rules.stating import read_facts
from app.domain.text import one_line
from app.errors import FieldError
from app.storage.audit import MAX_AUTHOR, MAX_NOTE
from app.storage.database import transaction
from app.storage.stated_facts import in_force, state_facts, statements_of

log = structlog.get_logger(__name__)


def state(engine: Engine, run_id: int, *, facts: Mapping[str, object], author: str, note: str = "") -> None:
    """All or none. Raises NotFound, and InvalidMetadata that names each wrong one as `facts.NAME`, `author`, `note`."""
    author, note = one_line(author), one_line(note)
    stated, errors = read_facts(facts, "facts")
    if not facts:
        errors.append(FieldError("facts", "must name at least one fact"))
    if not 0 < len(author) <= MAX_AUTHOR:
        errors.append(FieldError("author", f"must say who states it, in 1 to {MAX_AUTHOR} characters"))
    if len(note) > MAX_NOTE:
        errors.append(FieldError("note", f"must have at most {MAX_NOTE:,} characters"))
    if errors:
        raise refused(errors)
    with transaction(engine, durable=True) as session:
        state_facts(session, run_id, stated, author=author, note=note)
        known = in_force(statements_of(session, run_id)[len(stated) :]) if None in stated.values() else {}
        wrong = [name for name, value in stated.items() if value is None and name not in known]
        if wrong:
            raise refused([FieldError(f"facts.{name}", "was not stated, so it cannot be taken back") for name in wrong])
    log.info("facts_stated", run_id=run_id, facts=list(stated))
