"""What the planner says of another layout of a run: whether it fits, and whether it prefers the present one."""

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
"""Of larger jobs the planner's order of all layouts takes longer than a page may."""


class LayoutForecaster:
    """Asks the planner about layouts of one run. `peak_gb`: the run's own peak, which calibrates the prediction."""

    def __init__(self, contract: Mapping[str, Stated], peak_gb: float | None, headroom: float) -> None:
        self._contract = {name: entry.value for name, entry in contract.items()}
        self._peak_gb = peak_gb
        self._headroom = headroom

    def __call__(self, settings: Mapping[str, Setting]) -> Forecast:
        """`fits` is False also where the planner prefers the present layout: its advice must not contradict ours."""
        now = self._now
        if isinstance(now, str):
            return Forecast(None, f"The planner cannot judge another layout: {now}.")
        changed = {name: value for name, value in settings.items() if name in LAYOUT}
        try:
            then = _request(self._contract | _without_stages(changed) | changed)
        except InvalidPlan as invalid:
            return Forecast(None, f"The planner cannot judge this layout: {invalid}.")
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
            return "the present layout is not fully stated"
        return request if request.gpus <= MOST_GPUS else f"the job has more than {MOST_GPUS:,} GPUs"

    def _memory(self, request: PlanRequest, offer: Offer) -> Forecast | None:
        """None where it fits: the target's static part, and what the run uses beside its own static part."""
        memory, static = gpu_memory_gb(request), offer.static_gb
        if memory is None or static is None or self._peak_gb is None or isinstance(self._now, str):
            return Forecast(None, "The planner cannot tell whether this layout fits: memory or model size is unknown.")
        present = offer_of(self._now, given_layout(self._now)).static_gb or 0.0
        predicted = static + max(self._peak_gb - present, 0.0)
        if predicted <= (1 - self._headroom) * memory:
            return None
        return Forecast(False, f"The planner predicts {predicted:.0f} GB for this layout, of {memory:.0f} GB.")

    def _preference(self, layout: Layout) -> Forecast:
        """The planner's own order of the two layouts."""
        now = self._now
        assert isinstance(now, PlanRequest)  # noqa: S101  # the caller looked
        free = replace(now, fixed={}, pp_layout=None, account=None)
        options = candidates(free)
        ordered = best_first(free, options, np.flatnonzero(options.broken == 0))
        degrees = [_degrees(options.layout(free, int(index))) for index in ordered]
        places = [
            degrees.index(_degrees(item)) if _degrees(item) in degrees else len(degrees)
            for item in (given_layout(now), layout)
        ]
        if places[1] >= places[0]:
            return Forecast(False, "The planner does not prefer this layout to the present one.")
        return Forecast(True, "")


def _request(values: Mapping[str, Value | Setting]) -> PlanRequest:
    texts = {name: _text(values[name]) for name in INPUTS if values.get(name) is not None}
    return read_request({name: text for name, text in texts.items() if text})


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _without_stages(changed: Mapping[str, Setting]) -> dict[str, Setting]:
    """Another number of stages needs another cut of the layers."""
    return {"vpp": None, "pp_layout": None, "pp_account": None} if "pp" in changed else {}


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.cp, layout.pp, layout.ep, layout.etp
