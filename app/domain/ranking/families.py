"""Where a stack stands on the leaderboards: its model family and its hardware, each with the word of its address."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.contract.hardware import gpu_sku
from app.domain.contract.model_names import canonical_model, differences, known_model, recognise
from app.domain.run import Value

LONGEST_SLUG = 60


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are one and the same, whatever a run calls them. `slug` stands in addresses."""

    name: str
    slug: str


UNKNOWN_FAMILY = Family("unknown model", "unknown-model")
UNKNOWN_HARDWARE = Family("unknown GPU", "unknown-gpu")


def family_of(model: str | None, shape: Mapping[str, Value] | None = None) -> Family:
    """The family of a model by its name, else by its shape (contract values).

    A known name over another shape, as of a model with fewer layers, is a family of its own: its figures are not those
    of the model it is named after.
    """
    shape = shape or {}
    if not model or not model.strip():
        recognised = recognise(shape)
        return _named(recognised.name) if recognised else UNKNOWN_FAMILY
    name = canonical_model(model.strip())
    known = known_model(name)
    if known is not None and differences(known, shape):
        return _named(f"{name} (other shape)")
    return _named(name)


def hardware_of(gpu: str | None) -> Family:
    """The GPU's SKU as a heading and as part of an address."""
    return _named(gpu_sku(gpu) or gpu.strip()) if gpu and gpu.strip() else UNKNOWN_HARDWARE


def _named(name: str) -> Family:
    return Family(name, slug(name))


def slug(name: str) -> str:
    """Lower-case ASCII words with hyphens: `Qwen3-30B-A3B` is `qwen3-30b-a3b`.

    What would be lost, letters of other scripts or a long tail, becomes eight hexadecimal digits of the name, so that
    two families never share an address for it.
    """
    text = name.casefold()
    words = re.sub(r"[^a-z0-9]+", "-", text).strip("-")
    if text.isascii() and words and len(words) <= LONGEST_SLUG:
        return words
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{words[: LONGEST_SLUG - 9].strip('-')}-{digest}".strip("-")
