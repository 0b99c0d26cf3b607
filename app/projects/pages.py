"""Pages of what holds for more than one run: a project's defaults, and which dispatchers a container has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Path, Request
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.contract.fields import FIELDS
from app.errors import InvalidChange, InvalidUpload, ThreewallsError
from app.projects.commands import (
    Defaults,
    ProjectQuota,
    Rules,
    get_defaults,
    get_project,
    get_quota,
    get_rules,
    set_defaults,
    set_quota,
    set_rules,
)
from app.settings import Settings
from app.storage.database import read_session
from app.storage.suspect_evidence import find_availability
from app.web.charts import availability_table, told
from app.web.dependencies import AppEngine, AppSettings, ReadSession, reading
from app.web.forms import PREFIX, ContractInput, contract_input, placed, sent_form, stated
from app.web.templating import render

# --- `/settings/projects/{slug}/quota`: what a project may take, and takes.

MAX_QUOTA_FIELDS = 4
_MOST_DIGITS = 20
_WRONG = -1

router = APIRouter(include_in_schema=False)

Slug = Annotated[str, Path(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True)
class QuotaForm:
    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def number(self, name: str) -> int | None:
        """None when it was left empty; a number that nothing can be when it is none."""
        text = self.value(name).replace(",", "").replace(" ", "")
        if not text:
            return None
        return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else _WRONG

    def refused(self, error: InvalidChange) -> Self:
        return type(self)(self.values, {one.field: one.message for one in error.errors})


def _filled(found: ProjectQuota) -> QuotaForm:
    own = {"quota_bytes": found.quota.own_bytes, "quota_runs_a_day": found.quota.own_runs_a_day}
    return QuotaForm({name: "" if value is None else str(value) for name, value in own.items()})


@router.get("/settings/projects/{slug}/quota")
def show_quota(request: Request, engine: AppEngine, settings: AppSettings, slug: Slug) -> HTMLResponse:
    return _page(request, engine, settings, slug)


@router.post("/settings/projects/{slug}/quota")
async def save_quota(request: Request, engine: AppEngine, settings: AppSettings, slug: Slug) -> Response:
    """The same as the API's PUT. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_QUOTA_FIELDS) as sent:
        form = QuotaForm({name: value.strip() for name, value in sent.items() if isinstance(value, str)})
    return await run_in_threadpool(_save, request, engine, settings, slug, form)


def _save(request: Request, engine: Engine, settings: Settings, slug: str, form: QuotaForm) -> Response:
    most_bytes, runs_a_day = form.number("quota_bytes"), form.number("quota_runs_a_day")
    try:
        set_quota(engine, settings, slug, most_bytes=most_bytes, runs_a_day=runs_a_day, author=form.value("author"))
    except InvalidChange as error:
        return _page(request, engine, settings, slug, form=form.refused(error), status=422)
    return RedirectResponse(request.url.path, status_code=303)


def _page(
    request: Request,
    engine: Engine,
    settings: Settings,
    slug: str,
    *,
    form: QuotaForm | None = None,
    status: int = 200,
) -> HTMLResponse:
    with read_session(engine) as session:
        found = get_quota(session, settings, slug)
    return render(
        request,
        "projects/quota.html",
        status=status,
        found=found,
        form=form or _filled(found),
        service=settings,
        of_project={"id": found.project_id, "slug": found.project},
    )


# --- The form of a project's rules: what stands, what was typed, what is wrong with it.

_INPUTS = ("baseline_branch", "commit_url", "compare_url", "author")


@dataclass(frozen=True, slots=True)
class RulesForm:
    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: InvalidChange) -> Self:
        return type(self)(self.values, {one.field: one.message for one in error.errors})


def read_rules_form(sent: Mapping[str, object]) -> RulesForm:
    return RulesForm({name: value.strip() for name in _INPUTS if isinstance(value := sent.get(name), str)})


def filled_rules_form(rules: Rules) -> RulesForm:
    """The form as the rules stand."""
    return RulesForm({name: getattr(rules, name) for name in ("baseline_branch", "commit_url", "compare_url")})


# --- The form of a project's defaults: the fields that most projects share, those that are set, and one more.

OFFERED = ("cluster", "gpu", "gpus_per_node", "container", "driver", "data_mode", "task")
"""What holds for all jobs of most projects, and what hardly any log prints."""
ANOTHER, ANOTHER_VALUE = "another", "another_value"
_OWN = ("container_image", "author", ANOTHER, ANOTHER_VALUE)


@dataclass(frozen=True, slots=True)
class SettingsForm:
    """What was typed, by input, and what is wrong with it. `sent`: it came from a browser and wins over what is set."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    sent: bool = False

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def stated(self) -> dict[str, str]:
        """The fields as they were typed, the additional one among them."""
        extra = {self.value(ANOTHER): self.value(ANOTHER_VALUE)} if self.value(ANOTHER_VALUE) else {}
        return stated(self.values) | extra

    def inputs(self, defaults: Defaults) -> tuple[ContractInput, ...]:
        names = dict.fromkeys((*OFFERED, *defaults.fields, *stated(self.values)))
        before = {} if self.sent else {name: default.value for name, default in defaults.fields.items()}
        return tuple(contract_input(name, self, before.get(name)) for name in names if name in FIELDS)

    def refused(self, error: ThreewallsError) -> Self:
        errors = placed(error.errors)
        if wrong := errors.get(PREFIX + self.value(ANOTHER)):
            errors[ANOTHER_VALUE] = wrong
        known = any(name in (*self.values, *_OWN) for name in errors)
        return type(self)(self.values, errors, "" if known else error.detail, sent=True)


def read_settings_form(sent: Mapping[str, object]) -> SettingsForm:
    names = [name for name in sent if name in _OWN or name.removeprefix(PREFIX) in FIELDS]
    return SettingsForm({name: value.strip() for name in names if isinstance(value := sent[name], str)}, sent=True)


def filled_form(defaults: Defaults) -> SettingsForm:
    """The form as the project's settings stand."""
    rule = defaults.container_image
    return SettingsForm({"container_image": str(rule.value)} if rule else {})


MAX_FIELDS = 300
"""More inputs than the contract has fields."""

Saved = Literal["", "defaults", "rules"]


@router.get("/availability")
def show_availability(request: Request, session: ReadSession) -> HTMLResponse:
    found = find_availability(session)
    return render(request, "projects/availability.html", table=availability_table(found), answer=told(found))


@router.get("/settings/projects/{slug}")
def show_settings(request: Request, session: ReadSession, slug: Slug, saved: Saved = "") -> HTMLResponse:
    return _render_settings(request, session, slug, saved=saved)


@router.post("/settings/projects/{slug}")
async def save_settings(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """The same as the API's PUT. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form = read_settings_form(sent)
    refused = await run_in_threadpool(_routes_save, engine, slug, form)
    if refused is None:
        return RedirectResponse(f"{request.url.path}?saved=defaults", status_code=303)

    def page() -> HTMLResponse:
        with reading(request) as session:
            return _render_settings(request, session, slug, form=refused, status=422)

    return await run_in_threadpool(page)


@router.post("/settings/projects/{slug}/rules")
async def save_rules(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """The same as the API's PUT. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        form = read_rules_form(sent)
    refused = await run_in_threadpool(_save_rules, engine, slug, form)
    if refused is None:
        return RedirectResponse(f"{request.url.path.removesuffix('/rules')}?saved=rules", status_code=303)

    def page() -> HTMLResponse:
        with reading(request) as session:
            return _render_settings(request, session, slug, rules_form=refused, status=422)

    return await run_in_threadpool(page)


def _save_rules(engine: Engine, slug: str, form: RulesForm) -> RulesForm | None:
    """None when the rules were set, else the form with what is wrong."""
    try:
        set_rules(
            engine,
            slug,
            baseline_branch=form.value("baseline_branch"),
            commit_url=form.value("commit_url"),
            compare_url=form.value("compare_url"),
            author=form.value("author"),
        )
    except InvalidChange as error:
        return form.refused(error)
    return None


def _routes_save(engine: Engine, slug: str, form: SettingsForm) -> SettingsForm | None:
    """None when the defaults were set, else the form with what is wrong."""
    image, author = form.value("container_image"), form.value("author")
    try:
        set_defaults(engine, slug, fields=form.stated(), container_image=image, author=author)
    except InvalidUpload as error:
        return form.refused(error)
    return None


def _render_settings(
    request: Request,
    session: Session,
    slug: str,
    *,
    form: SettingsForm | None = None,
    rules_form: RulesForm | None = None,
    saved: Saved = "",
    status: int = 200,
) -> HTMLResponse:
    defaults, rules = get_defaults(session, slug), get_rules(session, slug)
    form = form or filled_form(defaults)
    groups: dict[str, list[str]] = {}
    for name, contract_field in FIELDS.items():
        groups.setdefault(contract_field.group, []).append(name)
    return render(
        request,
        "projects/settings.html",
        status=status,
        of_project={"id": get_project(session, slug).id, "slug": slug},
        defaults=defaults,
        rules=rules,
        form=form,
        rules_form=rules_form or filled_rules_form(rules),
        inputs=form.inputs(defaults),
        groups=groups,
        saved=saved,
    )
