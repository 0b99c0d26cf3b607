"""Reads the name of a container image: docker references, enroot URIs and enroot's .sqsh files.

Reference grammar: https://github.com/distribution/reference (`reference.go`); enroot writes `#` between registry and
repository, and names the file of `docker://nvcr.io#nvidia/nemo:26.06` `nvidia+nemo+26.06.sqsh` (`enroot import`).
"""

import re
from dataclasses import dataclass

from app.domain.documents.document import Document
from app.domain.run import Stated

MAX_LENGTH = 1000
SQUASHFS = ".sqsh"

_SCHEME = re.compile(r"^(docker|dockerd|podman|oci|enroot)://", re.IGNORECASE)
_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*:[0-9a-fA-F]{32,128}")
_PART = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*")
_REGISTRY = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Image:
    """An image's name in parts; empty where it does not say. `nvidia+nemo+26.06.sqsh` has no registry."""

    registry: str = ""
    repository: str = ""
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """`registry/repository:tag`, the contract's `container`."""
        path = f"{self.registry}/{self.repository}" if self.registry else self.repository
        return f"{path}:{self.tag}" if self.tag else path


def read_image(reference: str) -> Image:
    """The parts of `reference`. Raises ValueError with a sentence when it is no image's name.

    Folders before a .sqsh file and a user before a registry are left out.
    """
    text = reference.strip().strip("\"'")
    if not text or len(text) > MAX_LENGTH:
        raise ValueError(f"An image's name has 1 to {MAX_LENGTH} characters.")
    text = _SCHEME.sub("", text)
    if text.lower().endswith((SQUASHFS, ".squashfs")):
        return _squashfs(text)
    if "#" in text:
        registry, _, text = text.partition("#")
        registry = registry.rpartition("@")[2]
    else:
        registry = ""
    text, _, digest = text.partition("@")
    if digest and not _DIGEST.fullmatch(digest):
        raise ValueError("The digest of the image is not one, for instance sha256:...")
    path, tag = _split_tag(text)
    if not registry:
        registry, path = _split_registry(path)
    if registry and not _REGISTRY.fullmatch(registry):
        raise ValueError("The registry of the image is not a host name.")
    if not path or not all(_PART.fullmatch(part) for part in path.split("/")):
        raise ValueError("This is no image's name, for instance nvcr.io/nvidia/nemo:26.06.")
    return Image(registry, path, tag, digest.lower())


def _split_tag(text: str) -> tuple[str, str]:
    path, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        return text, ""
    if not _TAG.fullmatch(tag):
        raise ValueError("The tag of the image is not one.")
    return path, tag


def _split_registry(path: str) -> tuple[str, str]:
    """The first part is a registry when it looks like a host: it has a dot or a port, or is localhost."""
    first, slash, rest = path.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return "", path


def _squashfs(path: str) -> Image:
    """enroot joins the repository's parts and the tag by `+`. Another file's name is kept, without its folder."""
    file = path.replace("\\", "/").rpartition("/")[2]
    stem = file.rpartition(".")[0]
    parts = [part for part in stem.split("+") if part]
    if not parts or not all(_TAG.fullmatch(part) for part in parts):
        raise ValueError("The name of the image file is not one.")
    if len(parts) == 1:
        return Image(repository=parts[0])
    return Image(_sqsh_registry(parts), "/".join(parts[1 if _sqsh_registry(parts) else 0 : -1]), parts[-1])


def _sqsh_registry(parts: list[str]) -> str:
    """Some sites keep the registry in the file's name: nvcr.io+nvidia+nemo+26.06.sqsh."""
    return parts[0] if len(parts) > 2 and "." in parts[0] else ""


def complete_image(image: Image, default: str) -> Image:
    """`image` with what it leaves out taken from a project's `default`, for instance `nvcr.io/nvidia/nemo`.

    A bare tag (`26.06`, read as a repository without a tag) becomes the default's image with that tag; a repository
    that is the default's gets its registry. Another repository stays as it is. Raises ValueError on a wrong default.
    """
    rule = read_image(default)
    if not image.registry and not image.tag and "/" not in image.repository and image.repository[:1].isdigit():
        return Image(rule.registry, rule.repository, image.repository, image.digest)
    if not image.registry and image.repository == rule.repository:
        return Image(rule.registry, image.repository, image.tag, image.digest)
    return image


def stated_by_image(reference: str, where: str, default: str = "") -> dict[str, Stated]:
    """`container` and `container_digest` of a reference; empty when it is none. `where` says who named it."""
    try:
        image = read_image(reference)
        image = complete_image(image, default) if default else image
    except ValueError:
        return {}
    stated = {"container": Stated(image.name, "metadata", f"{where}: {image.name}")}
    if image.digest:
        stated["container_digest"] = Stated(image.digest, "metadata", f"{where}: {image.digest}")
    return stated


def read_container_image(text: str | bytes, default: str = "") -> Document:
    """The image named by a text of one line. Raises ValueError with a sentence when it names none."""
    if len(text) > 2 * MAX_LENGTH:
        raise ValueError(f"An image's name has 1 to {MAX_LENGTH} characters.")
    name = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    read_image(name)
    return Document("container image", stated_by_image(name, "container image", default))
