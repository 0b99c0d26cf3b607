"""Pages of a project's settings and quota, and of the dispatchers that work in each container."""

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, Self

from fastapi import APIRouter, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.contract.fields import FIELD_GROUPS, FIELDS
from app.domain.verdict.policy import RANGES
from app.errors import InvalidUpload, ThreewallsError
from app.projects.commands import (
    Defaults,
    ProjectQuota,
    Rules,
    get_defaults,
    get_quota,
    get_rules,
    set_defaults,
    set_quota,
    set_rules,
)
from app.projects.verdicts import ProjectPolicy, get_policy, limits_text, read_limits, rerun_value, set_policy
from app.settings import Settings
from app.storage.database import ListPage
from app.storage.projects import find_project
from app.storage.standings import requested_dispatchers
from app.storage.suspect_evidence import find_availability, newest_containers
from app.web.access_rule import requires
from app.web.charts import availability_summary, availability_table
from app.web.dependencies import AppEngine, AppSettings, ReadSession, Slug
from app.web.forms import ANOTHER, ANOTHER_VALUE, ContractForm, ContractInput, Form, answer_form, contract_input, stated
from app.web.lists import ListQuery
from app.web.templating import render

# --- `/settings/projects/{slug}/quota`.

MAX_QUOTA_FIELDS = 4
_MOST_DIGITS = 20
_INVALID = -1

router = APIRouter(include_in_schema=False)


class QuotaForm(Form):
    inputs = ("quota_bytes", "quota_runs_a_day", "author")

    def number(self, name: str) -> int | None:
        """Return the number; None for an empty input, _INVALID for anything else."""
        text = self.value(name).replace(",", "").replace(" ", "")
        if not text:
            return None
        return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else _INVALID

    def size(self, name: str) -> int | None:
        """Return the bytes of `500 GB`, or of a number without a unit; None and _INVALID as for `number`."""
        if not (text := self.value(name).strip()):
            return None
        match = _SIZE.fullmatch(text)
        return int(Decimal(match[1].replace(",", "")) * _BYTES[(match[2] or "B").upper()]) if match else _INVALID


_BYTES = {"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1}
_SIZE = re.compile(
    r"((?:[0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,19})(?:\.[0-9]{1,12})?) ?([tgmk]?b)?", re.IGNORECASE | re.ASCII
)


def _size_input(size_bytes: int) -> str:
    """Return the size in the largest unit without decimals."""
    unit = next(unit for unit in _BYTES if size_bytes % _BYTES[unit] == 0)
    return f"{size_bytes // _BYTES[unit]} {unit}" if size_bytes else "0"


def _filled(project: ProjectQuota) -> QuotaForm:
    quota = project.quota
    size = "" if quota.own_bytes is None else _size_input(quota.own_bytes)
    return QuotaForm(
        {"quota_bytes": size, "quota_runs_a_day": "" if quota.own_runs_a_day is None else str(quota.own_runs_a_day)}
    )


@router.get("/settings/projects/{slug}/quota")
@requires(Action.READ, of="project")
def show_quota(request: Request, session: ReadSession, settings: AppSettings, slug: Slug) -> HTMLResponse:
    return _quota_page(request, session, settings, slug)


@router.post("/settings/projects/{slug}/quota")
@requires(Action.ADMINISTER, of="project")
async def save_quota(request: Request, engine: AppEngine, settings: AppSettings, slug: Slug) -> Response:

    def save(form: QuotaForm) -> str:
        most_bytes, runs_a_day = form.size("quota_bytes"), form.number("quota_runs_a_day")
        set_quota(engine, settings, slug, most_bytes=most_bytes, runs_a_day=runs_a_day, author=form.value("author"))
        return request.url.path

    def again(session: Session, form: QuotaForm, _: ThreewallsError) -> Response:
        return _quota_page(request, session, settings, slug, form=form, status=422)

    return await answer_form(request, QuotaForm, save, again, max_fields=MAX_QUOTA_FIELDS)


def _quota_page(
    request: Request,
    session: Session,
    settings: Settings,
    slug: str,
    *,
    form: QuotaForm | None = None,
    status: int = 200,
) -> HTMLResponse:
    project = get_quota(session, settings, slug)
    return render(
        request,
        "projects/quota.html",
        status=status,
        quotas=project,
        form=form or _filled(project),
        service=settings,
        of_project={"id": project.project_id, "slug": project.project},
    )


# --- `/settings/projects/{slug}` and `/availability`.


class RulesForm(Form):
    inputs = ("baseline_branch", "commit_url", "compare_url", "author")


def filled_rules_form(rules: Rules) -> RulesForm:
    return RulesForm({name: getattr(rules, name) for name in ("baseline_branch", "commit_url", "compare_url")})


OFFERED = ("cluster", "gpu", "gpus_per_node", "container", "driver", "data_mode", "task")
"""Fields that are equal for all jobs of most projects and that few logs print."""


@dataclass(frozen=True)
class SettingsForm(ContractForm):
    """The form of a project's defaults. `sent`: it came from a browser, so its values replace the stored ones."""

    sent: bool = False
    inputs = ("container_image", "author", ANOTHER, ANOTHER_VALUE)

    def stated(self) -> dict[str, str]:
        """Return the fields as typed, including the additional one."""
        extra = {self.value(ANOTHER): self.value(ANOTHER_VALUE)} if self.value(ANOTHER_VALUE) else {}
        return stated(self.values) | extra

    def offered(self, defaults: Defaults) -> tuple[ContractInput, ...]:
        names = dict.fromkeys((*OFFERED, *defaults.fields, *stated(self.values)))
        before = {} if self.sent else {name: default.value for name, default in defaults.fields.items()}
        return tuple(contract_input(name, self, before.get(name)) for name in names if name in FIELDS)

    def refused(self, error: ThreewallsError) -> Self:
        return replace(super().refused(error), sent=True)


def filled_form(defaults: Defaults) -> SettingsForm:
    rule = defaults.container_image
    return SettingsForm({"container_image": str(rule.value)} if rule else {})


MAX_FIELDS = 300
"""More than the number of contract fields."""

Saved = Literal["", "defaults", "rules", "verdicts"]


@router.get("/availability")
@requires(Action.READ)
def show_availability(request: Request, session: ReadSession) -> HTMLResponse:
    query = ListQuery.from_params(request.query_params)
    containers = newest_containers(session)
    page = ListPage.cut(containers, query.page, query.page_size)
    order = {container: place for place, container in enumerate(page.items)}
    items = sorted(find_availability(session, page.items), key=lambda item: order[item.container or ""])
    requested = [item for item in requested_dispatchers(session) if item.container not in containers]
    unproven = availability_table(requested if page.page >= page.pages else ())
    return render(
        request, "projects/availability.html", block="containers", address=query.address("/availability"),
        table=availability_table(items), unproven=unproven, answer=availability_summary(items), page=page, query=query,
    )  # fmt: skip


@router.get("/settings/projects/{slug}")
@requires(Action.READ, of="project")
def show_settings(request: Request, session: ReadSession, slug: Slug, saved: Saved = "") -> HTMLResponse:
    return _render_settings(request, session, slug, saved=saved)


@router.post("/settings/projects/{slug}")
@requires(Action.MANAGE, of="project")
async def save_settings(request: Request, engine: AppEngine, slug: Slug) -> Response:

    def save(form: SettingsForm) -> str:
        image, author = form.value("container_image"), form.value("author")
        set_defaults(engine, slug, fields=form.stated(), container_image=image, author=author)
        return f"{request.url.path}?saved=defaults"

    def again(session: Session, form: SettingsForm, _: ThreewallsError) -> Response:
        return _render_settings(request, session, slug, form=form, status=422)

    return await answer_form(request, SettingsForm, save, again, max_fields=MAX_FIELDS, catch=(InvalidUpload,))


@router.post("/settings/projects/{slug}/rules")
@requires(Action.MANAGE, of="project")
async def save_rules(request: Request, engine: AppEngine, slug: Slug) -> Response:

    def save(form: RulesForm) -> str:
        urls = {name: form.value(name) for name in ("commit_url", "compare_url")}
        set_rules(engine, slug, baseline_branch=form.value("baseline_branch"), author=form.value("author"), **urls)
        return f"{request.url.path.removesuffix('/rules')}?saved=rules"

    def again(session: Session, form: RulesForm, _: ThreewallsError) -> Response:
        return _render_settings(request, session, slug, rules_form=form, status=422)

    return await answer_form(request, RulesForm, save, again, max_fields=MAX_FIELDS)


class PolicyForm(Form):
    inputs = (*RANGES, "reruns_a_day", "gpu_hours_a_day", "reference_job", "upgrades", "limits", "author")

    def input_of(self, field: str) -> str:
        scope, _, name = field.partition(".")
        return name if scope in ("thresholds", "budget") else "limits" if scope in ("fixed", "stacks") else field

    def number(self, name: str) -> float | str | None:
        """Return the number; None for an empty input, the text if it is not a number."""
        text = self.value(name).replace(",", "").replace(" ", "")
        try:
            value = float(text) if text else None
        except ValueError:
            return text
        return int(value) if value is not None and name == "reruns_a_day" and value == int(value) else value

    def stated(self) -> dict[str, Any]:
        return {
            **read_limits(self.value("limits")),
            "thresholds": {name: self.number(name) for name in RANGES},
            "budget": {name: self.number(name) for name in ("reruns_a_day", "gpu_hours_a_day")},
            "reference_job": self.value("reference_job"),
            "upgrades": self.value("upgrades").split(";"),
        }


def filled_policy_form(own: ProjectPolicy) -> PolicyForm:
    """Return the form with the current policy; thresholds that are the default stay empty."""
    stored = own.stored
    numbers = {**stored.get("every", {}).get("thresholds", {}), **stored.get("budget", {})}
    texts = {
        "reference_job": own.policy.reference_job,
        "upgrades": "; ".join(own.policy.upgrades),
        "limits": limits_text(stored),
    }
    return PolicyForm({name: f"{value:g}" for name, value in numbers.items()} | texts)


@router.post("/settings/projects/{slug}/verdicts")
@requires(Action.MANAGE, of="project")
async def save_policy(request: Request, engine: AppEngine, slug: Slug) -> Response:

    def save(form: PolicyForm) -> str:
        set_policy(engine, slug, form.stated(), form.value("author"))
        return f"{request.url.path.removesuffix('/verdicts')}?saved=verdicts#verdicts"

    def again(session: Session, form: PolicyForm, _: ThreewallsError) -> Response:
        return _render_settings(request, session, slug, policy_form=form, status=422)

    return await answer_form(request, PolicyForm, save, again, max_fields=MAX_FIELDS)


def _render_settings(
    request: Request,
    session: Session,
    slug: str,
    *,
    form: SettingsForm | None = None,
    rules_form: RulesForm | None = None,
    policy_form: PolicyForm | None = None,
    saved: Saved = "",
    status: int = 200,
) -> HTMLResponse:
    defaults, rules, policy = get_defaults(session, slug), get_rules(session, slug), get_policy(session, slug)
    form = form or filled_form(defaults)
    return render(
        request,
        "projects/settings.html",
        status=status,
        of_project={"id": find_project(session, slug).id, "slug": slug},
        defaults=defaults,
        rules=rules,
        form=form,
        rules_form=rules_form or filled_rules_form(rules),
        policy=policy,
        policy_form=policy_form or filled_policy_form(policy),
        reruns=rerun_value(session, policy),
        inputs=form.offered(defaults),
        groups=FIELD_GROUPS,
        saved=saved,
    )
