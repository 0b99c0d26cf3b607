"""The layouts of a plan as rows: what each one needs, how long a step takes, and what limits it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from app.domain.numbers import share_text
from app.domain.planning.hardware import in_gib
from app.domain.planning.layout import degrees_text
from app.domain.planning.plan import Offer, Plan
from app.planner import queries
from app.web.lists import ListQuery, OneOf

ROWS = 12
"""Layouts on one page of the table."""


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """A layout of a plan. `rank`: its position by preference; None for a layout that is not offered.

    `gib`, `seconds`: as a run of exactly this work measured them, else as predicted; None while unknown. `timed`: its
    nearest record. `limit`: what takes most of the step next to GEMMs, or what rules the layout out. `reason`: what
    puts it behind the first one.
    """

    rank: int | None
    offer: Offer
    name: str
    is_chosen: bool
    gib: float | None
    seconds: float | None
    timed: queries.LayoutTime | None
    limit: str
    reason: str

    @property
    def fits(self) -> bool:
        return not self.offer.violations

    @property
    def predicted_gib(self) -> float | None:
        return in_gib(self.offer.prediction.peak_gb) if self.offer.prediction else None

    @property
    def predicted_s(self) -> float | None:
        return self.offer.prediction.step_time_s if self.offer.prediction else None

    @property
    def time(self) -> str:
        """Format the predicted step time without its range: `≥ 76.1 s` for the shortest that is predicted."""
        if self.offer.prediction is None or self.predicted_s is None:
            return ""
        return f"{'≥ ' * self.offer.prediction.is_capped}{queries.seconds_text(self.predicted_s)}"

    @property
    def is_measured(self) -> bool:
        return self.timed is not None and self.timed.is_of_offer


def layout_rows(plan: Plan) -> list[LayoutRow]:
    """Return the given layout if it is not offered, the offered ones best first, and those that do not fit."""
    given = plan.given
    chosen = (given or plan.offers[0]).layout if given or plan.offers else None
    others = [*plan.offers, *plan.too_large]
    ranks = {offer.layout: rank for rank, offer in enumerate(plan.offers, 1)}
    if given is not None:
        others = [given if offer.layout == given.layout else offer for offer in others]
        others = others if given in others else [given, *others]
    return [_row(plan, offer, ranks.get(offer.layout), is_chosen=offer.layout == chosen) for offer in others]


def _row(plan: Plan, offer: Offer, rank: int | None, *, is_chosen: bool) -> LayoutRow:
    prediction, timed = offer.prediction, queries.measured_time(offer, plan.request)
    peak_gb = prediction.peak_gb if prediction else None
    if offer.run is not None and offer.run.peak_gb is not None:
        peak_gb = offer.run.peak_gb
    return LayoutRow(
        rank=rank,
        offer=offer,
        name=degrees_text(offer.layout, experts=plan.request.model.experts is not None),
        is_chosen=is_chosen,
        gib=None if peak_gb is None else in_gib(peak_gb),
        seconds=queries.offer_seconds(offer, plan.request),
        timed=timed,
        limit=_limit(offer),
        reason=queries.short_reason(offer, plan.offers[0], plan.request) if rank is not None else "",
    )


def _limit(offer: Offer) -> str:
    prediction = offer.prediction
    if offer.violations:
        if prediction is not None and not prediction.fits:
            return f"memory, {math.ceil(in_gib(prediction.peak_gb - prediction.usable_gb))}\u202fGiB too much"
        return f"violated: {offer.violations[0].constraint.title}"
    if prediction is None or prediction.step_time_s is None:
        return ""
    name, share = queries.costs(prediction)[0]
    return f"{name} {share_text(share)}"


_KEYS: Mapping[str, Callable[[LayoutRow], float | None]] = {
    "tp": lambda row: row.offer.layout.tp,
    "pp": lambda row: row.offer.layout.pp,
    "ep": lambda row: row.offer.layout.ep,
    "etp": lambda row: row.offer.layout.etp,
    "cp": lambda row: row.offer.layout.cp,
    "dp": lambda row: row.offer.dp,
    "vpp": lambda row: row.offer.layout.vpp,
    "micro": lambda row: row.offer.ga,
    "memory": lambda row: row.predicted_gib,
    "time": lambda row: row.predicted_s,
    "record": lambda row: row.timed.seconds if row.timed else None,
}


class LayoutQuery(ListQuery):
    """Order and page of the table of layouts; without an order the preferred layouts come first."""

    sort: Annotated[str, OneOf(tuple(sign + name for name in _KEYS for sign in ("", "-")))] = ""

    page_size: int = Field(ROWS, ge=1, le=200)

    def sorted_rows(self, rows: list[LayoutRow]) -> list[LayoutRow]:
        """Return the rows in this order; those without a value come last."""
        if not self.sort:
            return rows
        key = _KEYS[self.sort.removeprefix("-")]
        valued = [row for row in rows if key(row) is not None]
        return [
            *sorted(valued, key=lambda row: key(row) or 0.0, reverse=self.sort.startswith("-")),
            *(row for row in rows if key(row) is None),
        ]
