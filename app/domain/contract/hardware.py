"""Recognises a GPU by the names that drivers, people and test platforms give it."""

import re

_SKUS = (
    "GB300",
    "GB200",
    "B300",
    "B200",
    "H200",
    "H100",
    "H800",
    "H20",
    "A100",
    "A800",
    "VR200",
    "L40S",
    "V100",
    "MI355X",
    "MI350X",
    "MI325X",
    "MI300X",
    "MI300A",
    "MI250X",
)
"""Most specific first: a GB200 also contains B200."""

GPUS_PER_NODE = {"H100": 8, "H200": 8, "B200": 8, "B300": 8, "GB200": 4, "GB300": 4}
"""Usual node sizes (NVIDIA/dgxc-benchmarking README; recipes launch GB systems with four GPUs per node)."""


def gpu_sku(name: str) -> str | None:
    """The SKU in a GPU's name, for instance H100 for `NVIDIA H100 80GB HBM3`; None when no known one is in it."""
    upper = name.upper()
    for sku in _SKUS:
        if re.search(rf"(?<![A-Z0-9]){sku}(?![0-9])", upper.replace("_", " ")):
            return sku
    return None
