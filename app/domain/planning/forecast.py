"""Predict what another layout changes for one run: memory and step time, relative to what the run measured."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from app.domain.numbers import gain_change
from app.domain.planning.constraints import judge
from app.domain.planning.estimate import NEAR, Estimator, degrees_of, estimator_of, recipe_words, widest_spread
from app.domain.planning.hardware import gpu_memory_gb, in_gib
from app.domain.planning.memory import Degrees, MemoryOptions
from app.domain.planning.plan import given_layout
from app.domain.planning.request import INPUTS, InvalidPlan, PlanRequest, input_text, read_request
from app.domain.planning.step_time import StepTime
from app.domain.rules.engine import LAYOUT, Forecast
from app.domain.rules.rule import Setting
from app.domain.run import Stated, Value

MOST_GPUS = 4096
"""For larger jobs, ranking all layouts takes too long for a page."""
_LEAST_GAIN = 0.01
"""Predicted gains below this share of the step time do not justify another layout."""
_SCALES = (0.5, 2.0)
"""A run corrects the predicted activations by at most these factors; what is left counts as a constant."""


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """The predicted effect of a layout in place of the current one, with the same recomputation and batch.

    `ratio`: step time with it over the current step time, between `low` and `high`. `peak_gb`: allocated memory of the
    worst rank, corrected by the run's own peak where it is known.
    """

    ratio: float
    low: float
    high: float
    peak_gb: float
    recipe: MemoryOptions

    @property
    def gain_pct(self) -> float:
        """Return the predicted change of throughput in percent."""
        return 100.0 * (1.0 / self.ratio - 1.0)

    @property
    def gain_range_pct(self) -> tuple[float, float]:
        return 100.0 * (1.0 / self.high - 1.0), 100.0 * (1.0 / self.low - 1.0)


def predict_change(
    now: PlanRequest, then: PlanRequest, *, peak_gb: float | None = None, step_s: float | None = None
) -> LayoutChange | None:
    """Return the effect of the layout that `then` states in place of that of `now`.

    `peak_gb`, `step_s`: measured with `now`. None where the shape of the model or the figures of the GPU are unknown,
    or the GPUs are not divisible.
    """
    present, target = _at(now), _at(then)
    if present is None or target is None:
        return None
    (before, old), (after, new) = present, target
    recipe = _recipe_in_use(before, old, peak_gb)
    measured, predicted = before.memory(old, recipe), after.memory(new, recipe)
    static = float(measured.static[0])
    peak = float(predicted.total[0])
    if peak_gb is not None:
        scale = float(np.clip((peak_gb - static) / (float(measured.total[0]) - static), *_SCALES))
        rest = peak_gb - float(measured.scaled(scale).total[0])
        peak = float(predicted.scaled(scale).total[0]) + rest
    ratio = _ratio(before.time(old, recipe), after.time(new, recipe), step_s, widest_spread(now.gpu))
    return LayoutChange(ratio, ratio / NEAR, ratio * NEAR, peak, recipe)


def _ratio(before: StepTime, after: StepTime, step_s: float | None, spread: float) -> float:
    """Return the predicted step time after over that before.

    A run faster than the range of its prediction shows that its dispatch costs less than assumed: its bandwidth is the
    least certain rate of the model.
    """
    old, new = float(before.total[0]), float(after.total[0])
    if step_s is not None and (excess := old - spread * step_s) > 0 and before.dispatch[0] > 0:
        cheaper = min(excess / float(before.dispatch[0]), 1.0)
        old, new = old - cheaper * float(before.dispatch[0]), new - cheaper * float(after.dispatch[0])
    return new / old


def _at(request: PlanRequest) -> tuple[Estimator, Degrees] | None:
    estimator, degrees = estimator_of(request), degrees_of(request, given_layout(request))
    return None if estimator is None or degrees is None else (estimator, degrees)


def _recipe_in_use(estimator: Estimator, degrees: Degrees, peak_gb: float | None) -> MemoryOptions:
    """Return the recipe that explains the measured peak best; without a peak the first one that fits."""
    if peak_gb is None:
        return estimator.ladder[int(estimator.estimate(degrees).rung[0])]
    peaks = [abs(float(estimator.memory(degrees, recipe).total[0]) - peak_gb) for recipe in estimator.ladder]
    return estimator.ladder[int(np.argmin(peaks))]


_DEGREES = ("tp", "pp", "cp", "ep", "etp")
_MESHES = (("tp", "pp", "cp"), ("pp", "ep", "etp"))
_SHARED = (("tp", "pp"), ("pp", "ep", "etp"), ("tp", "cp"))
"""Degrees of the ranks that share dense weights, experts and activations."""


def _ranks(degrees: Mapping[str, Any], group: tuple[str, ...]) -> int:
    return math.prod(degrees[name] for name in group)


class LayoutForecaster:
    """Predicts the effect of layouts for one run.

    `facts`: its measured peak and step time, which correct the prediction; a job that ran out of memory needed at least
    all of it. `headroom`: the threshold `T_headroom`, the share of the memory to leave free.
    """

    def __init__(self, contract: Mapping[str, Stated], facts: Mapping[str, object], headroom: float) -> None:
        self._contract = {name: entry.value for name, entry in contract.items()}
        peak_gb, step_s = facts.get("mem_alloc_peak_gb"), facts.get("step_s")
        if facts.get("oom") is True:
            peak_gb = gpu_memory_gb(self._contract.get("gpu")) or peak_gb
        self._peak_gb = peak_gb if isinstance(peak_gb, float) else None
        self._step_s = step_s if isinstance(step_s, float) and "gbs" in self._contract else None
        self._headroom = headroom

    def __call__(self, settings: Mapping[str, Setting]) -> Forecast:
        now = self._now
        changed = {name: value for name, value in settings.items() if name in LAYOUT}
        if isinstance(now, str):
            return self._by_peak(changed) or Forecast(None, f"The planner cannot evaluate another layout: {now}.")
        try:
            then = self._request(self._contract | _without_stages(changed) | changed)
        except InvalidPlan as invalid:
            return Forecast(None, f"The planner cannot evaluate this layout: {invalid}.")
        violations = [
            violation for violation in judge(then, given_layout(then)) if violation.constraint.id != "plan-fits"
        ]
        if violations:
            return Forecast(False, f"The planner rules this layout out: {violations[0].text}")
        change = predict_change(now, then, peak_gb=self._peak_gb, step_s=self._step_s)
        if change is None:
            return self._by_peak(changed) or Forecast(
                None, "The planner cannot tell whether this layout fits: the model or the GPU is unknown."
            )
        return self._by_prediction(now, change)

    def _by_peak(self, changed: Mapping[str, Setting]) -> Forecast | None:
        """Return what the measured peak implies for a model or GPU that the planner does not know.

        No part of the memory grows by a larger factor than its ranks decrease: dense weights by TP x PP,
        experts by PP x EP x ETP, activations by TP x CP. None if the peak, the memory or a degree is unknown.
        """
        memory = gpu_memory_gb(self._contract.get("gpu"))
        before = {name: self._contract.get(name) or 1 for name in _DEGREES}
        after = before | {name: value for name, value in changed.items() if name in _DEGREES}
        gpus: Any = self._contract.get("gpus")
        counts = [gpus, *before.values(), *after.values()]
        if (
            self._peak_gb is None
            or memory is None
            or not all(isinstance(count, int) and count > 0 for count in counts)
            or any(name not in self._contract for name in ("tp", "pp", "cp"))
            or self._contract.get("fsdp") not in (None, "none")
        ):
            return None
        if any(gpus % _ranks(after, group) for group in _MESHES):
            return Forecast(False, "The GPUs are not divisible by this layout.")
        at_most = self._peak_gb * max(1.0, *(_ranks(before, group) / _ranks(after, group) for group in _SHARED))
        if at_most > (1 - self._headroom) * memory:
            return Forecast(
                None,
                f"By the measured peak this layout may need {in_gib(at_most):.0f} GiB; the GPU has "
                f"{in_gib(memory):.0f} GiB.",
            )
        return Forecast(True, "", at_most_gb=at_most)

    @cached_property
    def _now(self) -> PlanRequest | str:
        try:
            request = self._request(self._contract)
        except InvalidPlan as invalid:
            return str(invalid)
        if self._contract.get("fsdp") not in (None, "none"):
            return "the run uses FSDP, whose memory and traffic are not predicted"
        if not request.is_complete:
            return "the current layout is not fully known"
        return request if request.gpus <= MOST_GPUS else f"the job has more than {MOST_GPUS:,} GPUs"

    def _request(self, values: Mapping[str, Value | Setting]) -> PlanRequest:
        """Return the request of a run. The trainer's defaults replace an unstated overlap or dispatcher."""
        texts = {name: input_text(values[name]) for name in INPUTS if values.get(name) is not None}
        defaults = {"ep_overlap": "false", "dispatcher": "alltoall"}
        request = read_request(defaults | {name: text for name, text in texts.items() if text})
        return replace(request, headroom=self._headroom)

    def _by_prediction(self, now: PlanRequest, change: LayoutChange) -> Forecast:
        estimator = estimator_of(now)
        memory = estimator.hardware.memory_gb if estimator is not None else 0.0
        if change.peak_gb > (1 - self._headroom) * memory:
            return Forecast(
                False,
                f"The planner predicts {in_gib(change.peak_gb):.0f} GiB for this layout with "
                f"{recipe_words(change.recipe)}; the GPU has {in_gib(memory):.0f} GiB.",
            )
        if change.ratio > 1 - _LEAST_GAIN:
            why = f"The planner does not rank this layout above the current one: {gain_change(change.gain_pct).figure}."
            return Forecast(True, why, change.gain_pct, change.gain_range_pct, is_faster=False)
        predicted = gain_change(change.gain_pct, *change.gain_range_pct).text
        return Forecast(
            True, f"The planner is not sure that it is faster: {predicted}.", change.gain_pct, change.gain_range_pct
        )


def _without_stages(changed: Mapping[str, Setting]) -> dict[str, Setting]:
    """Reset the split of layers if the number of stages changes."""
    return {"vpp": None, "pp_layout": None, "pp_account": None} if "pp" in changed else {}
