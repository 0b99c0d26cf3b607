"""Published figures as CSV: one line each, a column for each contract field that one of them states."""

from collections.abc import Iterator, Sequence

from app.domain.contract.fields import FIELDS
from app.domain.reference_points import FIGURES
from app.storage.references import Reference
from app.web.csv_text import csv_text
from app.web.numbers import contract_value

_LAST = ("rounded", "measured_by", "source", "url", "date", "window", "note")


def csv_rows(found: Sequence[Reference]) -> Iterator[str]:
    """In the order of `found`, with the heading first. What is not stated is an empty cell."""
    stated = {name for one in found for name in one.point.contract}
    names = [name for name in FIELDS if name in stated]
    yield csv_text([("id", "label", "kind", *names, *FIGURES, *_LAST, "project", "added_by")])
    for one in found:
        point, entered = one.point, one.entered
        contract = (contract_value(point.contract[name]) if name in point.contract else None for name in names)
        figures = (getattr(point, name) for name in (*FIGURES, *_LAST))
        who = (entered.project, entered.added_by) if entered else (None, None)
        yield csv_text([(one.id, point.label, point.kind, *contract, *figures, *who)])
