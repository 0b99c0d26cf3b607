"""Contract fields that a person states apart from an upload: for a run that is there, or for all of a project."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.domain.contract.fields import FIELDS
from app.domain.documents.environment import complete_image, read_image
from app.domain.documents.metadata import read_metadata
from app.domain.run import Stated, Value
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


# --- What a project's runs have unless they say otherwise: contract fields, and what completes the name of a container.

CONTAINER_RULE = "container_image"
"""Name of the rule among a project's defaults: an image without its tag, for instance `nvcr.io/nvidia/nemo`."""


@dataclass(frozen=True, slots=True)
class ProjectDefaults:
    """`fields` by canonical name; `container_image` is empty when the project has no rule."""

    fields: Mapping[str, Value] = field(default_factory=dict)
    container_image: str = ""

    def completed(self, stated: Mapping[str, Stated]) -> dict[str, Stated]:
        """The same statements; a container that leaves out what the rule knows (`26.06`) is named whole."""
        found = stated.get("container")
        if not self.container_image or found is None or not isinstance(found.value, str):
            return dict(stated)
        try:
            name = complete_image(read_image(found.value), self.container_image).name
        except ValueError:
            return dict(stated)
        if name == found.value:
            return dict(stated)
        detail = f"{found.detail}; the project's image is {self.container_image}"
        return dict(stated) | {"container": replace(found, value=name, detail=detail)}
