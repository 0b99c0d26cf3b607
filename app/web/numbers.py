"""How figures are written on pages: `app/domain/numbers.py`, and what only HTML has."""

from markupsafe import Markup, escape

from app.domain.numbers import (
    DASH,
    THIN,
    UNITS,
    Figure,
    absolute,
    ago,
    contract_value,
    counted,
    figure,
    file_size,
    grouped,
    percent,
    short_commit,
    significant,
    step_time,
    time_unit_of,
)

__all__ = [
    "DASH",
    "THIN",
    "UNITS",
    "Figure",
    "absolute",
    "ago",
    "coded",
    "contract_value",
    "counted",
    "figure",
    "file_size",
    "grouped",
    "percent",
    "short_commit",
    "significant",
    "step_time",
    "time_unit_of",
]


def coded(text: str) -> Markup:
    """A sentence of the domain as HTML: what stands in backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is one of a log's own
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))
