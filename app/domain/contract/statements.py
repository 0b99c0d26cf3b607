"""Reads contract fields that a user states outside an upload: for an existing run, or as defaults of a project."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.domain.contract.fields import FIELDS
from app.domain.documents.environment import complete_image, read_image
from app.domain.documents.metadata import read_metadata
from app.domain.run import Stated, Value
from app.errors import FieldError, InvalidMetadata

TAKE_BACK = {"unset": True}
"""Sent instead of a value to withdraw a statement."""


def read_statements(fields: Mapping[str, object], path: str) -> dict[str, Stated]:
    """Return contract fields in canonical values. Raises InvalidMetadata that names all invalid ones below `path`."""
    errors: list[FieldError] = []
    stated: dict[str, Stated] = {}
    for name, value in fields.items():
        if name not in FIELDS:
            errors.append(FieldError(f"{path}.{name[:100]}", f"is not a contract field.{_nearest(name)}"))
            continue
        try:
            fact = read_metadata({name: value}).fields.get(name)
        except InvalidMetadata as error:
            errors += [FieldError(f"{path}.{name}", wrong.message) for wrong in error.errors]
            continue
        if fact is None:
            errors.append(FieldError(f"{path}.{name}", "must have a value"))
        else:
            stated[name] = fact
    if errors:
        raise refused(errors)
    return stated


def refused(errors: list[FieldError]) -> InvalidMetadata:
    names = ", ".join(dict.fromkeys(error.field for error in errors))
    return InvalidMetadata(f"Correct {names} and send it again. Nothing was changed.", tuple(errors))


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), FIELDS, n=1, cutoff=0.7)
    return f" Did you mean `{near[0]}`?" if near else ""


# --- Defaults of a project: contract fields of runs that do not state them, and the image that completes a container.

CONTAINER_RULE = "container_image"
"""Key of the image rule in a project's defaults: an image without its tag, for example `nvcr.io/nvidia/nemo`."""


@dataclass(frozen=True, slots=True)
class ProjectDefaults:
    """Hold default fields by canonical name. `container_image` is empty when the project has no image rule."""

    fields: Mapping[str, Value] = field(default_factory=dict)
    container_image: str = ""

    def completed(self, stated: Mapping[str, Stated]) -> dict[str, Stated]:
        """Return `stated` with the container's full name: the image rule completes a bare tag such as `26.06`."""
        container = stated.get("container")
        if not self.container_image or container is None or not isinstance(container.value, str):
            return dict(stated)
        try:
            name = complete_image(read_image(container.value), self.container_image).name
        except ValueError:
            return dict(stated)
        if name == container.value:
            return dict(stated)
        detail = f"{container.detail}; the project's image is {self.container_image}"
        return dict(stated) | {"container": replace(container, value=name, detail=detail)}
