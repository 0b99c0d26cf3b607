"""Sizes of files as people read them."""


def size(count: int) -> str:
    """`41.2 MB (41,203,775 bytes)`."""
    if count < 10_000:
        return f"{count:,} bytes"
    for factor, unit in ((10**9, "GB"), (10**6, "MB")):
        if count >= factor:
            return f"{count / factor:,.1f} {unit} ({count:,} bytes)"
    return f"{count / 1000:,.1f} kB ({count:,} bytes)"
