"""Check a launch before it runs: the page `/check` and `POST /api/v1/check`."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.documents.metadata import read_metadata
from app.domain.rules.flags import flags_text
from app.domain.rules.launch_check import MAX_BYTES, LaunchCheck, check_document, check_launch, marked_launch
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

MAX_FIELDS = 10
INTRODUCTION = "Paste or drop a launch script to see what would fail, or invalidate the result."


@api.post("/check", responses=documented(422))
@requires(Action.READ)
def check(rules: Rules, body: CheckIn) -> CheckOut:
    """Check a launch script, a command or a configuration against the rules. Nothing is stored."""
    return CheckOut.model_validate(check_document(_check(body.launch, body.facts, rules)))


class CheckForm(Form):
    """The launch, and facts that scripts rarely contain."""

    inputs = ("launch", "gpu", "gpus", "mcore_version")
    most_bytes = MAX_BYTES


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
        facts = {name: form.value(name) for name in ("gpu", "gpus", "mcore_version") if form.value(name)}
        check = _check(form.value("launch"), facts, rules)
        return render(
            request,
            "suggestions/check.html",
            form=form,
            check=check,
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
