"""How much memory a GPU has, for headroom. What no source states stays unknown: no guesses."""

GPU_MEMORY_GIB = {"H100": 80, "B200": 180, "B300": 270, "GB200": 186, "GB300": 279}
"""As vendors write it (NVIDIA/dgxc-benchmarking README.md, 2026-07). Drivers report about as many GiB, of which a
little is theirs: headroom is an upper bound."""


def headroom_pct(gpu: str, peak_memory_gib: float | None) -> float | None:
    """Share of the GPU's memory that the run never allocated; None where either is unknown, 0 where it used more."""
    size = GPU_MEMORY_GIB.get(gpu)
    if size is None or peak_memory_gib is None:
        return None
    return max(0.0, 100 * (1 - peak_memory_gib / size))
