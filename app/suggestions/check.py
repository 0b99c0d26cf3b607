"""Check a launch before it runs: the page `/check` and `POST /api/v1/check`."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.documents.metadata import read_metadata
from app.domain.planning.launch import CheckedLaunch, check_document
from app.domain.rules.facts import FACTS
from app.domain.rules.flags import flags_text
from app.domain.rules.launch_check import MAX_BYTES, check_launch, marked_launch
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


class MemoryOut(BaseModel):
    """Predicted peak memory per GPU, in GiB."""

    peak_gib: float
    usable_gib: float = Field(description="What tensors may use.")
    gpu_gib: float
    fits: bool


class CheckOut(BaseModel):
    schema_: Annotated[str, Field(alias="schema", description="threewalls.check/1")]
    answer: str
    job: str = Field(description="Model, GPUs, layout, sequence length, batch size and precision, as read.")
    memory: MemoryOut | None = Field(description="Null if the launch does not state all that its prediction needs.")
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
  --use-distributed-optimizer --sequence-parallel
"""
MISTAKEN = EXAMPLE.replace(" --sequence-parallel", "")
"""The same launch with a mistake: MoE and TP 2 without sequence parallelism."""


class CheckForm(Form):
    """The launch, and facts that it does not state."""

    inputs = ("launch", *ASKED)
    most_bytes = MAX_BYTES
    example, mistaken = EXAMPLE, MISTAKEN

    @classmethod
    def has_input(cls, name: str) -> bool:
        return name in cls.inputs or name in FACTS

    @property
    def facts(self) -> dict[str, Any]:
        return {name: text for name, text in self.values.items() if name != "launch" and text}


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
        launch = _check(form.value("launch"), form.facts, rules)
        check = launch.check
        return render(
            request,
            "suggestions/check.html",
            form=form,
            check=check,
            launch=launch,
            asked=_asked(launch),
            parts=marked_launch(form.value("launch"), (*check.blockers, *check.warnings), check.wrong_flags),
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


def _check(launch: str, facts: dict[str, Any], rules: RulesInForce) -> CheckedLaunch:
    """Return the result. Raises InvalidMetadata naming `launch` or a fact."""
    try:
        metadata = read_metadata(facts)
    except InvalidMetadata as error:
        errors = tuple(FieldError(item.field.replace("meta.", "facts.", 1), item.message) for item in error.errors)
        names = ", ".join(item.field for item in errors)
        raise InvalidMetadata(f"Correct {names} and check again.", errors) from error
    try:
        return CheckedLaunch(check_launch(launch, rules.book, metadata, settings=rules.thresholds))
    except ValueError as error:
        raise InvalidMetadata(str(error), (FieldError("launch", str(error)),)) from error


def _asked(launch: CheckedLaunch) -> list[tuple[str, str]]:
    """Return the unknown facts that blockers depend on, with their meaning."""
    names = [name for name in launch.check.unknown if name in FACTS and not FACTS[name].inputs]
    if launch.values.get("gpu") is None and "gpu" not in names:
        names.insert(0, "gpu")  # without it, no memory is predicted
    return [(name, FACTS[name].meaning) for name in names[:MOST_ASKED]]
