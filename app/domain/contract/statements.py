"""Contract fields that a person states apart from an upload: for a run that is there, or for all of a project."""

import difflib
from collections.abc import Mapping

from app.domain.contract.fields import FIELDS
from app.domain.metadata import read_metadata
from app.domain.run import Stated
from app.errors import FieldError, InvalidMetadata


def read_statements(fields: Mapping[str, object], path: str) -> dict[str, Stated]:
    """Contract fields in canonical values. Raises InvalidMetadata naming every wrong one below `path`."""
    errors: list[FieldError] = []
    stated: dict[str, Stated] = {}
    for name, value in fields.items():
        if name not in FIELDS:
            errors.append(FieldError(f"{path}.{name[:100]}", f"is no contract field.{_nearest(name)}"))
            continue
        try:
            found = read_metadata({name: value}).fields.get(name)
        except InvalidMetadata as error:
            errors += [FieldError(f"{path}.{name}", wrong.message) for wrong in error.errors]
            continue
        if found is None:
            errors.append(FieldError(f"{path}.{name}", "states nothing"))
        else:
            stated[name] = found
    if errors:
        raise refused(errors)
    return stated


def refused(errors: list[FieldError]) -> InvalidMetadata:
    names = ", ".join(dict.fromkeys(error.field for error in errors))
    return InvalidMetadata(f"Correct {names} and send it again. Nothing was changed.", tuple(errors))


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), FIELDS, n=1, cutoff=0.7)
    return f" Did you mean `{near[0]}`?" if near else ""
