"""Small, medium or large expert parallelism: what decides which dispatcher is worth a try."""

from typing import Literal

EpSize = Literal["small", "medium", "large", "unknown"]

SMALL_UP_TO = 8
"""One NVLink domain of an HGX board. The dispatcher is second-order here (Megatron-Bridge dispatcher card, 2026-07)."""
LARGE_FROM = 32
"""From here on the same card starts with a topology-aware backend."""


def ep_size(ep: int | None) -> EpSize:
    if ep is None:
        return "unknown"
    if ep <= SMALL_UP_TO:
        return "small"
    return "large" if ep >= LARGE_FROM else "medium"
