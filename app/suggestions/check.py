"""A launch that has not run yet, checked by the rules: the page `/check` and `POST /api/v1/check`."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.documents.metadata import read_metadata
from app.domain.rules.launch_check import MAX_BYTES, LaunchCheck, check_document, check_launch
from app.errors import FieldError, InvalidMetadata
from app.storage.rules import RulesInForce
from app.web.access_rule import requires
from app.web.dependencies import Rules
from app.web.errors import documented
from app.web.forms import Form, answer_form
from app.web.templating import render


class CheckIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    launch: str = Field(min_length=1, max_length=MAX_BYTES, description="The script, command or YAML.")
    facts: dict[str, Any] = Field(default_factory=dict, max_length=300, description="What it does not show: the GPU.")


class ObjectionOut(BaseModel):
    rule: str
    title: str
    why: str
    change: str = Field(description="What to do.")
    set: dict[str, Any] = Field(description="Contract fields with the values that resolve it.")


class CheckOut(BaseModel):
    schema_: Annotated[str, Field(alias="schema", description="threewalls.check/1")]
    answer: str
    read_as: str
    blockers: list[ObjectionOut]
    warnings: list[ObjectionOut]
    unknown: list[str] = Field(description="Facts that would decide further blockers.")
    problems: list[str] = Field(description="What could not be read, and contradictions in it.")
    contract: dict[str, Any]


api = APIRouter(prefix="/api/v1", tags=["rules"])
pages = APIRouter(include_in_schema=False)

MAX_FIELDS = 10
INTRODUCTION = "Paste a launch script before the job queues. The rules name what would fail or make its result wrong."


@api.post("/check", responses=documented(422))
@requires(Action.READ)
def check(rules: Rules, body: CheckIn) -> CheckOut:
    """Check a launch script, a command or a configuration against the rules. Nothing is stored."""
    return CheckOut.model_validate(check_document(_check(body.launch, body.facts, rules)))


class CheckForm(Form):
    """The text, and the two facts that a script seldom shows."""

    inputs = ("launch", "gpu", "gpus")


@pages.get("/check")
@requires(Action.READ)
def show_check(request: Request) -> HTMLResponse:
    return render(
        request, "suggestions/check.html", form=CheckForm(), check=None, problem="", introduction=INTRODUCTION
    )


@pages.post("/check")
@requires(Action.READ)
async def answer_check(request: Request, rules: Rules) -> Response:
    """Show the result on the same page; nothing is stored, so there is no other address."""

    def act(form: CheckForm) -> Response:
        facts = {name: form.value(name) for name in ("gpu", "gpus") if form.value(name)}
        return render(
            request, "suggestions/check.html", form=form, check=_check(form.value("launch"), facts, rules), problem=""
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
    """Raises InvalidMetadata naming `launch` or a fact."""
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
