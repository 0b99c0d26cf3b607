"""How figures are written on pages: `app/domain/numbers.py`, and what only HTML has."""

import re

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
    "with_runs",
]

_RUN = re.compile(r"(?<![&\w])#(\d{1,18})\b(?!;)")


def coded(text: str) -> Markup:
    """A sentence of the domain as HTML: what stands in backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is one of a log's own
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def with_runs(text: str) -> Markup:
    """The same, and `#12` in it leads to run 12."""
    return Markup(_RUN.sub(r'<a href="/runs/\1">#\1</a>', str(coded(text))))  # noqa: S704  it is escaped; digits are put in
