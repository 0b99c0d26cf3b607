"""A checked launch as a job of the planner: what was read of it, and whether its layout fits the memory of a GPU."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from app.domain.numbers import grouped, plural
from app.domain.planning.constraints import FITS
from app.domain.planning.estimate import recipe_words
from app.domain.planning.hardware import hardware_of, in_gib
from app.domain.planning.layout import degrees_text
from app.domain.planning.plan import Offer, given_layout, make_plan, offers_of
from app.domain.planning.request import DEGREES, RECIPE, SHAPE, InvalidPlan, PlanRequest, plan_address, read_request
from app.domain.rules.engine import Suggestion
from app.domain.rules.launch_check import LaunchCheck
from app.domain.run import Value
from app.domain.text import some_of

SCHEMA = "threewalls.check/1"


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """The predicted peak memory of a GPU, of its memory and of what tensors may use, in GiB."""

    peak_gib: float
    gpu_gib: float
    usable_gib: float

    @property
    def fits(self) -> bool:
        return self.peak_gib <= self.usable_gib

    @property
    def is_too_large(self) -> bool:
        """Return whether even all memory of the GPU is less: between that and `fits`, the prediction may be wrong."""
        return self.peak_gib > self.gpu_gib

    @property
    def title(self) -> str:
        return "Probably out of memory" if self.is_too_large else "Memory is short"

    @property
    def figure(self) -> str:
        """Return the start of the sentence that `meaning` ends."""
        return f"{self.peak_gib:.0f} of {self.gpu_gib:.0f} GiB" if self.fits else f"About {self.peak_gib:.0f} GiB"

    @property
    def meaning(self) -> str:
        if self.fits:
            return "per GPU predicted: it fits."
        return f"per GPU predicted; the usable limit is {self.usable_gib:.0f} of {self.gpu_gib:.0f} GiB."


class CheckedLaunch:
    """A checked launch.

    `peak`: None if nothing can be predicted. `missing`: fields that a prediction needs and the launch does not state.
    `remedy`: the nearest layout that fits, as a sentence, where the launch does not fit; `plan` then starts from it.
    """

    def __init__(self, check: LaunchCheck) -> None:
        self.check = check
        self.values: Mapping[str, Value] = {name: field.value for name, field in check.contract.fields.items()}
        self.plan = plan_address(self.values)
        self.missing: tuple[str, ...] = ()
        self.remedy = ""
        self.peak = self._peak()
        if self.peak is not None and not self.peak.fits:
            with suppress(InvalidPlan):  # more combinations than are tried
                self.remedy, self.plan = self._fitting()

    @property
    def answer(self) -> str:
        """Return the result, with a predicted lack of memory first."""
        if self.peak is None or self.peak.fits:
            return self.check.answer
        others = len(self.check.blockers)
        other = "other blocker" if self.peak.is_too_large else "blocker"
        blockers = plural(others, other) if others else f"No {other}s"
        sizes = f"about {self.peak.peak_gib:.0f} GiB needed, {self.peak.usable_gib:.0f} usable"
        return f"{self.peak.title}: {sizes}. {blockers}."

    @property
    def is_blocked(self) -> bool:
        """Return whether a rule blocks the launch, or it needs more than all memory of a GPU."""
        return bool(self.check.blockers) or (self.peak is not None and self.peak.is_too_large)

    @property
    def job(self) -> str:
        """Return what was read: `Qwen3-30B-A3B · 16 × H100 · TP1 PP1 CP1 EP16 · seq 4,096 · GBS 1,024 · bf16`."""
        values = self.values
        model, gpu, gpus, precision = (values.get(name) for name in ("model", "gpu", "gpus", "precision"))
        degrees = [f"{name.upper()}{values[name]}" for name in ("tp", "pp", "vpp", "cp", "ep") if values.get(name)]
        sizes = [("seq", values.get("seq_len")), ("GBS", values.get("gbs"))]
        return " · ".join(
            [
                str(model or "unknown model"),
                f"{grouped(gpus) if isinstance(gpus, int) else '?'} × {gpu or 'unknown GPU'}",
                " ".join(degrees) or "unknown layout",
                *(f"{name} {grouped(size)}" for name, size in sizes if isinstance(size, int)),
                *([str(precision)] if precision else []),
            ]
        )

    @property
    def memory(self) -> str:
        """Return whether the layout fits, as a sentence."""
        if self.peak is None:
            return f"not predicted without {some_of(self.missing)}." if self.missing else "not predicted."
        return f"{self.peak.figure} {self.peak.meaning}"

    def _peak(self) -> PredictedPeak | None:
        """Return the peak by the planner's formulas, without measured records."""
        try:
            request = _request_at(self.plan)
        except InvalidPlan as error:
            is_named = "model" in self.values
            names = ("model" if name in SHAPE and not is_named else name for name in error.fields)
            self.missing = tuple(dict.fromkeys(names))
            return None
        if not request.is_complete:
            self.missing = tuple(name for name in ("tp", "pp", "cp", "ep") if not request.fix(name))
            return None
        [offer] = offers_of(request, [given_layout(request)])
        hardware = hardware_of(request.gpu, request.precision)
        if offer.prediction is None or hardware is None:
            return None
        return PredictedPeak(
            in_gib(offer.prediction.peak_gb), in_gib(hardware.memory_gb), in_gib(offer.prediction.usable_gb)
        )

    def _fitting(self) -> tuple[str, str]:
        """Return the nearest layout that fits, as a sentence, and the planner's address for it.

        First the launch's own layout with recomputation and offload, then the best other one, then more GPUs.
        """
        same = plan_address(self.values, free=RECIPE)
        plan = make_plan(_request_at(same), first=1)
        if plan.given is not None and not plan.given.violations:
            return f"It fits with {_recipe(plan.given)}.", same
        gpus = plural(plan.request.gpus, "GPU")
        if plan.offers:
            layout = plan.offers[0].layout
            degrees = {name: getattr(layout, name) for name in (*DEGREES, "pp_layout")}
            words = degrees_text(layout, experts=plan.request.model.experts is not None)
            return f"{words} fits with {_recipe(plan.offers[0])}.", plan_address(
                {**self.values, **degrees}, free=RECIPE
            )
        enough = f"; {grouped(plan.enough_gpus)} fit" if plan.enough_gpus else ""
        values = {**self.values, "gpus": plan.enough_gpus or plan.request.gpus}
        return f"No layout fits {gpus}{enough}.", plan_address(
            values, free=(*DEGREES, "pp_layout", "pp_account", *RECIPE)
        )


def _request_at(address: str) -> PlanRequest:
    return read_request(dict(parse_qsl(urlsplit(address).query)))


def _recipe(offer: Offer) -> str:
    """Return what the planner chooses next to the degrees, with the predicted peak."""
    if offer.prediction is None:
        return "unknown memory"
    return f"{recipe_words(offer.prediction.recipe)}: about {in_gib(offer.prediction.peak_gb):.0f} GiB"


def check_document(launch: CheckedLaunch) -> dict[str, object]:
    """Return the result for the command line and the API."""
    check, peak = launch.check, launch.peak
    blockers, warnings = [_item(item) for item in check.blockers], [_item(item) for item in check.warnings]
    if peak is not None and not peak.fits:
        (blockers if peak.is_too_large else warnings).insert(0, _too_much(peak, launch.remedy))
    return {
        "schema": SCHEMA,
        "answer": launch.answer,
        "job": launch.job,
        "memory": None
        if peak is None
        else {
            "peak_gib": round(peak.peak_gib, 1),
            "usable_gib": round(peak.usable_gib, 1),
            "gpu_gib": round(peak.gpu_gib, 1),
            "fits": peak.fits,
        },
        "read_as": check.kind,
        "trainer": check.trainer,
        "defaults": check.defaults,
        "blockers": blockers,
        "warnings": warnings,
        "unknown": list(check.unknown),
        "problems": [*check.problems, *check.contradictions],
        "contract": dict(launch.values),
    }


def _too_much(peak: PredictedPeak, remedy: str) -> dict[str, object]:
    return {
        "rule": FITS.id,
        "title": peak.title,
        "why": f"{peak.figure} {peak.meaning}",
        "change": remedy,
        "set": {},
    }


def _item(suggestion: Suggestion) -> dict[str, object]:
    return {
        "rule": suggestion.rule.id,
        "title": suggestion.title,
        "why": suggestion.why,
        "change": suggestion.change_text,
        "set": dict(suggestion.set),
    }
