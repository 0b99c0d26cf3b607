"""What a project's runs have unless they say otherwise: contract fields, and what completes the name of a container."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.domain.documents.container_image import complete_image, read_image
from app.domain.run import Stated, Value

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
