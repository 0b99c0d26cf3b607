"""Ask the planner whether another layout of a run fits and whether it is better than the current one."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from app.domain.planning.candidates import candidates
from app.domain.planning.layout import Layout, gpu_memory_gb
from app.domain.planning.plan import Offer, best_first, given_layout, offer_of
from app.domain.planning.request import INPUTS, InvalidPlan, PlanRequest, read_request
from app.domain.rules.engine import LAYOUT, Forecast
from app.domain.rules.rule import Setting
from app.domain.run import Stated, Value

MOST_GPUS = 4096
"""For larger jobs, ranking all layouts takes too long for a page."""


class LayoutForecaster:
    """Predicts the effect of layouts for one run.

    `peak_gb`: the run's measured peak, which calibrates the prediction.
    """

    def __init__(self, contract: Mapping[str, Stated], peak_gb: float | None, headroom: float) -> None:
        self._contract = {name: entry.value for name, entry in contract.items()}
        self._peak_gb = peak_gb
        self._headroom = headroom

    def __call__(self, settings: Mapping[str, Setting]) -> Forecast:
        """Return the forecast. `fits` is also False if the planner prefers the current layout, so that pages agree."""
        now = self._now
        if isinstance(now, str):
            return Forecast(None, f"The planner cannot evaluate another layout: {now}.")
        changed = {name: value for name, value in settings.items() if name in LAYOUT}
        try:
            then = _request(self._contract | _without_stages(changed) | changed)
        except InvalidPlan as invalid:
            return Forecast(None, f"The planner cannot evaluate this layout: {invalid}.")
        layout = given_layout(then)
        offer = offer_of(then, layout)
        if offer.violations:
            return Forecast(False, f"The planner rules this layout out: {offer.violations[0].text}")
        return self._memory(then, offer) or self._preference(layout)

    @cached_property
    def _now(self) -> PlanRequest | str:
        try:
            request = _request(self._contract)
        except InvalidPlan as invalid:
            return str(invalid)
        if not request.is_complete:
            return "the current layout is not fully known"
        return request if request.gpus <= MOST_GPUS else f"the job has more than {MOST_GPUS:,} GPUs"

    def _memory(self, request: PlanRequest, offer: Offer) -> Forecast | None:
        """Return None if it fits. The estimate is the target's static memory plus the run's measured other memory."""
        memory, static = gpu_memory_gb(request), offer.static_gb
        if memory is None or static is None or self._peak_gb is None or isinstance(self._now, str):
            return Forecast(None, "The planner cannot tell whether this layout fits: memory or model size is unknown.")
        present = offer_of(self._now, given_layout(self._now)).static_gb or 0.0
        predicted = static + max(self._peak_gb - present, 0.0)
        if predicted <= (1 - self._headroom) * memory:
            return None
        return Forecast(False, f"The planner predicts {predicted:.0f} GB for this layout; the GPU has {memory:.0f} GB.")

    def _preference(self, layout: Layout) -> Forecast:
        """Compare the two layouts in the planner's order."""
        now = self._now
        assert isinstance(now, PlanRequest)  # noqa: S101  # checked by the caller
        free = replace(now, fixed={}, pp_layout=None, account=None)
        options = candidates(free)
        ordered = best_first(free, options, np.flatnonzero(options.broken == 0))
        degrees = [_degrees(options.layout(free, int(index))) for index in ordered]
        places = [
            degrees.index(_degrees(item)) if _degrees(item) in degrees else len(degrees)
            for item in (given_layout(now), layout)
        ]
        if places[1] >= places[0]:
            return Forecast(False, "The planner does not rank this layout above the current one.")
        return Forecast(True, "")


def _request(values: Mapping[str, Value | Setting]) -> PlanRequest:
    texts = {name: _text(values[name]) for name in INPUTS if values.get(name) is not None}
    return read_request({name: text for name, text in texts.items() if text})


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _without_stages(changed: Mapping[str, Setting]) -> dict[str, Setting]:
    """Reset the split of layers if the number of stages changes."""
    return {"vpp": None, "pp_layout": None, "pp_account": None} if "pp" in changed else {}


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.cp, layout.pp, layout.ep, layout.etp
