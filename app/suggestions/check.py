"""Check a launch before it runs: the page `/check` and `POST /api/v1/check`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.documents.metadata import read_metadata
from app.domain.numbers import grouped, plural
from app.domain.planning.hardware import hardware_of, in_gib
from app.domain.planning.plan import given_layout, offers_of
from app.domain.planning.request import InvalidPlan, plan_address, read_request
from app.domain.rules.facts import FACTS
from app.domain.rules.flags import flags_text
from app.domain.rules.launch_check import MAX_BYTES, LaunchCheck, check_document, check_launch, marked_launch
from app.domain.run import Value
from app.errors import FieldError, InvalidMetadata
from app.storage.rules import RulesInForce
from app.web.access_rule import requires
from app.web.dependencies import Rules, api_router
from app.web.errors import documented
from app.web.forms import Form, answer_form
from app.web.templating import render


class CheckIn(BaseModel, extra="forbid"):
    launch: str = Field(min_length=1, max_length=MAX_BYTES, description="The script, command or YAML.")
    facts: dict[str, Any] = Field(
        default_factory=dict, max_length=300, description="Facts that the launch does not state."
    )


class ObjectionOut(BaseModel):
    rule: str
    title: str
    why: str
    change: str = Field(description="What to do.")
    set: dict[str, Any] = Field(description="Contract fields with the values that resolve the problem.")


class CheckOut(BaseModel):
    schema_: Annotated[str, Field(alias="schema", description="threewalls.check/1")]
    answer: str
    read_as: str
    trainer: str
    defaults: str = Field(description="The trainer whose defaults apply to omitted flags.")
    blockers: list[ObjectionOut]
    warnings: list[ObjectionOut]
    unknown: list[str] = Field(description="Unknown facts that further blockers depend on.")
    problems: list[str] = Field(description="Unreadable parts and contradictions.")
    contract: dict[str, Any]


api = api_router("rules")
pages = APIRouter(include_in_schema=False)

MAX_FIELDS = 20
INTRODUCTION = "Paste or drop a launch script to see what would fail, or invalidate the result."


@api.post("/check", responses=documented(422))
@requires(Action.READ)
def check(rules: Rules, body: CheckIn) -> CheckOut:
    """Check a launch script, a command or a configuration against the rules. Nothing is stored."""
    return CheckOut.model_validate(check_document(_check(body.launch, body.facts, rules)))


ASKED = ("gpu", "gpus", "mcore_version")
"""Facts that scripts rarely contain."""
MOST_ASKED = 3
EXAMPLE = r"""export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py \
  --num-layers 48 --hidden-size 2048 --num-attention-heads 32 \
  --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 \
  --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 \
  --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall \
  --micro-batch-size 1 --global-batch-size 1024 --seq-length 4096 --bf16 \
  --use-distributed-optimizer
"""
"""A launch with a mistake: MoE and TP 2 without sequence parallelism."""


class CheckForm(Form):
    """The launch, and facts that it does not state."""

    inputs = ("launch", *ASKED)
    most_bytes = MAX_BYTES
    example = EXAMPLE

    @classmethod
    def has_input(cls, name: str) -> bool:
        return name in cls.inputs or name in FACTS

    @property
    def facts(self) -> dict[str, Any]:
        return {name: text for name, text in self.values.items() if name != "launch" and text}


@dataclass(frozen=True, slots=True)
class PredictedPeak:
    """The predicted peak memory of a GPU, of its memory and of what tensors may use, in GiB."""

    peak_gib: float
    gpu_gib: float
    usable_gib: float

    @property
    def fits(self) -> bool:
        return self.peak_gib <= self.usable_gib


class CheckedLaunch:
    """A checked launch for its page: what was read of the job, and whether it fits the GPU's memory."""

    def __init__(self, check: LaunchCheck) -> None:
        self.check = check
        self._values: Mapping[str, Value] = {name: field.value for name, field in check.contract.fields.items()}
        self.plan = plan_address(self._values)
        self.peak = self._peak()

    @property
    def lead(self) -> str:
        """Return the result, with a predicted lack of memory first."""
        if self.peak is None or self.peak.fits:
            return self.check.answer
        blockers = plural(len(self.check.blockers), "blocker") if self.check.blockers else "No other blockers"
        sizes = f"about {self.peak.peak_gib:.0f} GiB needed, {self.peak.usable_gib:.0f} usable"
        return f"Probably out of memory: {sizes}. {blockers}."

    @property
    def job(self) -> str:
        """Return what was read: `Qwen3-30B-A3B · 16 × H100 · TP1 PP1 CP1 EP16 · seq 4,096 · GBS 1,024 · bf16`."""
        values = self._values
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
    def asked(self) -> list[tuple[str, str]]:
        """Return the unknown facts that blockers depend on, with their meaning."""
        names = [name for name in self.check.unknown if name in FACTS and not FACTS[name].inputs]
        if self._values.get("gpu") is None and "gpu" not in names:
            names.insert(0, "gpu")  # without it, no memory is predicted
        return [(name, FACTS[name].meaning) for name in names[:MOST_ASKED]]

    def _peak(self) -> PredictedPeak | None:
        """Return the peak by the planner's formulas, without measured records; None if the layout is not complete."""
        try:
            request = read_request(dict(parse_qsl(urlsplit(self.plan).query)))
        except InvalidPlan:
            return None
        if not request.is_complete:
            return None
        [offer] = offers_of(request, [given_layout(request)])
        hardware = hardware_of(request.gpu, request.precision)
        if offer.prediction is None or hardware is None:
            return None
        return PredictedPeak(
            in_gib(offer.prediction.peak_gb), in_gib(hardware.memory_gb), in_gib(offer.prediction.usable_gb)
        )


@pages.get("/check")
@requires(Action.READ)
def show_check(request: Request) -> HTMLResponse:
    return render(
        request, "suggestions/check.html", form=CheckForm(), check=None, problem="", introduction=INTRODUCTION
    )


@pages.post("/check")
@requires(Action.READ)
async def answer_check(request: Request, rules: Rules) -> Response:
    """Show the result on the same page, because nothing is stored."""

    def act(form: CheckForm) -> Response:
        check = _check(form.value("launch"), form.facts, rules)
        return render(
            request,
            "suggestions/check.html",
            form=form,
            check=check,
            launch=CheckedLaunch(check),
            parts=marked_launch(form.value("launch"), (*check.blockers, *check.warnings)),
            flags_text=flags_text,
            problem="",
        )

    def again(_: object, form: CheckForm, error: Exception) -> Response:
        return render(
            request,
            "suggestions/check.html",
            form=form,
            check=None,
            problem=str(error),
            introduction=INTRODUCTION,
            status=422,
        )

    return await answer_form(request, CheckForm, act, again, max_fields=MAX_FIELDS, catch=(InvalidMetadata,))


def _check(launch: str, facts: dict[str, Any], rules: RulesInForce) -> LaunchCheck:
    """Return the result. Raises InvalidMetadata naming `launch` or a fact."""
    try:
        metadata = read_metadata(facts)
    except InvalidMetadata as error:
        errors = tuple(FieldError(item.field.replace("meta.", "facts.", 1), item.message) for item in error.errors)
        names = ", ".join(item.field for item in errors)
        raise InvalidMetadata(f"Correct {names} and check again.", errors) from error
    try:
        return check_launch(launch, rules.book, metadata, settings=rules.thresholds)
    except ValueError as error:
        raise InvalidMetadata(str(error), (FieldError("launch", str(error)),)) from error
