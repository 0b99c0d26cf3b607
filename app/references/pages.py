"""Pages of published figures: the list, one of them with its forms, and the nearest one to a run or a stack."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action, granted
from app.domain.contract.fields import FIELD_GROUPS, FIELDS
from app.domain.contract.values import KNOWN_MODELS, gpu_sku
from app.domain.numbers import contract_value
from app.domain.references.point import FIGURES, FP8_OF_SOME_KIND
from app.domain.run import Value
from app.errors import EditConflict, InvalidChange, NotFound, ThreewallsError
from app.references import views
from app.references.api import ReferenceId
from app.references.commands import (
    CONTRACT,
    FACTS,
    ReferenceAuthor,
    ReferenceStatement,
    add_reference,
    change_reference,
    stated_values,
    withdraw_reference,
)
from app.references.queries import (
    KINDS,
    ReferenceQuery,
    compare_with_references,
    find_references,
    list_summary,
    reference_options,
    reference_table,
    summary,
)
from app.references.views import compared_stacks
from app.storage import audit
from app.storage.database import ListPage
from app.storage.projects import project_named
from app.storage.references import Reference, find_reference
from app.storage.visible import project_slugs
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession
from app.web.forms import (
    ANOTHER,
    ANOTHER_VALUE,
    PREFIX,
    ContractForm,
    ContractInput,
    answer_form,
    contract_input,
    read_time,
    status_of,
)
from app.web.identity import access_of, require_everything
from app.web.lists import table_answer
from app.web.templating import render

# --- Recognise the values of a published figure in pasted text: a log line, a line of a paper, a table with its
# header.

# A number is matched as a whole from its first digit; otherwise a long one would be tried from every digit to every
# other.
_COUNT = r"(?<![\d.,])(\d++(?:,\d{3})*+)"
_NUMBER = r"(?<![\d.,])(\d++(?:,\d{3})*+(?:\.\d++)?+)"
_FIGURES = {
    "tokens_per_s_per_gpu": r"tok(?:en)?s?\s*/\s*s(?:ec)?\s*/\s*gpu",
    "tflops_per_gpu": r"(?:model\s+)?tflops?(?:\s*/\s*s)?(?:\s*/\s*gpu)?",
}
_STEP_S = (rf"{_NUMBER}\s*s(?:econds)?\s*(?:/|per|a)\s*(?:step|iteration)", rf"step time \(?s\)?\s*[:=]\s*{_NUMBER}")
_STEP_MS = (
    rf"elapsed time per iteration \(ms\):\s*{_NUMBER}", rf"{_NUMBER}\s*ms\s*(?:/|per|a)\s*(?:step|iteration)",
    rf"step time (?:in |\()ms\)?\s*[:=]\s*{_NUMBER}",
)  # fmt: skip
_COUNTS = {
    "tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "etp": "etp", "gbs": "gbs|global batch(?: size)?",
    "mbs": "mbs|micro batch(?: size)?", "seq_len": "seq(?:uence)?(?:[_ ]?len(?:gth)?)?",
}  # fmt: skip
_PRECISIONS = {
    "nvfp4": r"nvfp4", "fp8_mx": r"mxfp8|fp8[-_ ]mx", "fp8_ds": r"fp8[-_ ]ds", "fp8_cs": r"fp8[-_ ]cs",
    "fp8_sc": r"fp8[-_ ]sc", "fp8": r"fp8", "bf16": r"bf16|bfloat16",
}  # fmt: skip
_DISPATCHERS = "hybridep|deepep|alltoall|allgather"


def recognise(text: str) -> dict[str, str]:
    """Return the recognised values as text, by the name of their field. What is not recognised is missing."""
    return dict(_values(_labelled(text)))


def _values(text: str) -> Iterator[tuple[str, str]]:
    for name, unit in _FIGURES.items():
        yield from _first(name, text, rf"{_NUMBER}[ \t]*{unit}", rf"{unit}\)?\s*[:=]\s*{_NUMBER}")
    for name, milliseconds in _first("step_time_ms", text, *_STEP_MS):
        yield name, milliseconds
    for name, seconds in _first("step_time_ms", text, *_STEP_S):
        yield name, f"{float(seconds) * 1000:.15g}"
    for name, label in _COUNTS.items():
        yield from _first(name, text, rf"\b(?:{label})\s*[:=]?\s*{_COUNT}\b")
    for name, pattern in _PRECISIONS.items():
        if re.search(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield "precision", name
            break
    yield from _first("dispatcher", text.lower(), rf"\b({_DISPATCHERS})\b")
    yield from _first("url", text, r"(https?://[^\s|)>\"]+)")
    yield from _first("date", text, r"\b(20\d\d-[01]\d(?:-[0-3]\d)?)\b")
    yield from _hardware(text)
    named = [model.name for model in KNOWN_MODELS if model.name.lower() in text.lower()]
    if named:
        yield "model", max(named, key=len)


def _hardware(text: str) -> Iterator[tuple[str, str]]:
    for word in re.findall(r"(?<![A-Z])[A-Z]{1,2}\d+[A-Z]?\b", text):
        gpu = gpu_sku(word)
        if gpu is not None:
            yield "gpu", gpu
            yield from _first("gpus", text, rf"{_COUNT}\s*[x×*]?\s*{word}", rf"\bgpus?\s*[:=]\s*{_COUNT}")
            return
    yield from _first("gpus", text, rf"{_COUNT}\s*gpus\b", rf"\bgpus\s*[:=]\s*{_COUNT}")


def _first(name: str, text: str, *patterns: str) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            value = match.group(1)
            yield name, value if "://" in value else value.replace(",", "")
            return


def _labelled(text: str) -> str:
    """Write the first row of a table with a header as `label: value` pairs, other text as it is."""
    lines = [line for line in text.splitlines() if line.strip() and not re.fullmatch(r"[\s|:-]+", line)]
    cells = [re.split(r"\s*[|\t]\s*", line.strip(" |")) for line in lines[:2]]
    if len(cells) == 2 and len(cells[0]) == len(cells[1]) > 1:
        return "\n".join(f"{label}: {value}" for label, value in zip(*cells, strict=True))
    return text


# --- The forms that add, correct and withdraw a published figure. They work without script.

OFFERED = (
    *("model", "gpu", "gpus", "precision", "seq_len", "gbs", "mbs", "routing_mode", "dispatcher", "data_mode"),
    *("tp", "pp", "vpp", "cp", "ep", "mtp", "container", "task"),
)
"""The fields that published tables state most often, in their usual order."""


class ReferenceForm(ContractForm):
    inputs = (*FACTS, "project", "author", "reason", ANOTHER, ANOTHER_VALUE)
    hidden = ("seen",)
    error_path = CONTRACT

    @property
    def project(self) -> str:
        return self.value("project")

    def statement(self) -> ReferenceStatement:
        """Return the statement; an empty input removes its field."""
        contract = {name.removeprefix(PREFIX): text for name, text in self.values.items() if name.startswith(PREFIX)}
        if self.value(ANOTHER_VALUE):
            contract[self.value(ANOTHER)] = self.value(ANOTHER_VALUE)
        facts: dict[str, object] = {name: self.values[name] or None for name in FACTS if name in self.values}
        facts |= {name: _number(self.value(name)) for name in FIGURES if self.value(name)}
        facts |= {name: self.value(name) == "true" or None for name in ("rounded", "untuned")}
        return ReferenceStatement({name: text or None for name, text in contract.items()}, facts)

    def by(self) -> ReferenceAuthor:
        return ReferenceAuthor(self.value("author"), self.value("reason"), read_time(self.value("seen")))

    def offered(self) -> tuple[ContractInput, ...]:
        """Return the offered contract fields and those that are stated in addition."""
        stated = (name.removeprefix(PREFIX) for name in self.values if name.startswith(PREFIX))
        names = (name for name in dict.fromkeys((*OFFERED, *stated)) if name in FIELDS)
        return tuple(_with_some_fp8(contract_input(name, self)) for name in names)


def offered_form(params: Mapping[str, str]) -> ReferenceForm:
    """Return a form with the contract fields of the address and the values of its pasted text."""
    values = recognise(params.get("pasted", "")[:MAX_PASTED]) | dict(params)
    names = {name: PREFIX + name if name in FIELDS else name for name in values if name in FIELDS or name in FACTS}
    return ReferenceForm({names[name]: values[name][:300] for name in names})


def filled_form(reference: Reference) -> ReferenceForm:
    stated = stated_values(reference.point)
    values = {(PREFIX + name if name in FIELDS else name): _shown(value) for name, value in stated.items()}
    if reference.entered:
        values |= {"project": reference.entered.project, "seen": reference.entered.changed_at.isoformat()}
    return ReferenceForm(values)


def _with_some_fp8(input_: ContractInput) -> ContractInput:
    if input_.field != "precision":
        return input_
    return replace(input_, choices=(*input_.choices, (FP8_OF_SOME_KIND, "fp8, recipe not stated")))


def _shown(value: Value) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    return contract_value(value)


def _number(text: str) -> object:
    """Return the number that the text spells; any other text stays and is refused by name."""
    try:
        return float(text)
    except ValueError:
        return text


MAX_PASTED = 5_000
MAX_FIELDS = 300
"""More inputs than there are contract fields."""
ROWS = 25
"""Published figures on a page of the list."""

router = APIRouter(include_in_schema=False)

ReferenceNumber = Annotated[int, Path(ge=1, lt=2**31)]


@router.get("/references")
@requires(Action.READ)
def list_references(request: Request, session: ReadSession) -> HTMLResponse:
    query = ReferenceQuery.from_params(request.query_params)
    matching = find_references(session, query)
    page = ListPage.cut(matching, query.page, ROWS)
    return render(
        request,
        "references/list.html",
        block="reference_table",
        address=query.address("/references"),
        page=page,
        rows=[views.point_row(item) for item in page.items],
        lanes=views.lanes(matching),
        answer=list_summary(matching),
        filters=query,
        options=reference_options(session),
        kinds=KINDS,
    )


@router.get("/references.csv")
@requires(Action.READ)
def export_references(request: Request, session: ReadSession) -> Response:
    matching = find_references(session, ReferenceQuery.from_params(request.query_params))
    columns, rows = reference_table(matching)
    return table_answer("csv", columns, [rows], "references")


@router.get("/references/new")
@requires(Action.CONTRIBUTE)
def offer_form(request: Request, session: ReadSession) -> HTMLResponse:
    return _render_new(request, session, offered_form(request.query_params))


@router.post("/references/new")
@requires(Action.CONTRIBUTE)
async def add_by_form(request: Request, engine: AppEngine) -> Response:
    """Add a figure like the API's POST."""

    def add(form: ReferenceForm) -> str:
        if not form.project:
            require_everything(request, Action.CONTRIBUTE)
        return f"/references/{add_reference(engine, form.statement(), form.by(), form.project)}?saved=add"

    def again(session: Session, form: ReferenceForm, _: ThreewallsError) -> Response:
        return _render_new(request, session, form, status=422)

    return await answer_form(request, ReferenceForm, add, again, max_fields=MAX_FIELDS)


@router.get("/references/nearest")
@requires(Action.READ)
def show_nearest(
    request: Request,
    session: ReadSession,
    run: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    stack: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """Return the claim check: the block alone for htmx, on the page of a run or a stack; else its own page."""
    nearest = compare_with_references(session, run=run, stack=stack)
    return render(
        request,
        "references/nearest.html",
        block="nearest",
        nearest=nearest,
        ours=nearest.ours,
        may_plan=(project := project_named(session, nearest.ours.project)) is not None
        and access_of(request).may(Action.CONTRIBUTE, project.id),
        summary=summary(nearest),
        figures=views.figure_rows(nearest),
        bars=views.figure_bars(nearest),
        differences=views.difference_rows(nearest),
        reference=nearest.reference and views.point_row(nearest.reference),
    )


@router.get("/references/{reference_id}")
@requires(Action.READ)
def show_reference(request: Request, session: ReadSession, reference_id: ReferenceId, saved: str = "") -> HTMLResponse:
    return _render_reference(request, session, reference_id, saved=saved)


@router.post("/references/{number}/change")
@requires(Action.CONTRIBUTE, of="reference")
async def change_by_form(request: Request, engine: AppEngine, number: ReferenceNumber) -> Response:
    """Change a figure like the API's PATCH."""

    def change(form: ReferenceForm) -> None:
        if not form.project:
            require_everything(request, Action.CONTRIBUTE)
        change_reference(engine, number, form.statement(), form.by(), form.project)

    return await _decide(request, number, "change", change)


@router.post("/references/{number}/withdraw")
@requires(Action.CONTRIBUTE, of="reference")
async def withdraw_by_form(request: Request, engine: AppEngine, number: ReferenceNumber) -> Response:
    """Withdraw a figure like the API's DELETE."""
    return await _decide(request, number, "withdraw", lambda form: withdraw_reference(engine, number, form.by()))


async def _decide(request: Request, number: int, what: str, do: Callable[[ReferenceForm], None]) -> Response:
    def act(form: ReferenceForm) -> str:
        do(form)
        return f"/references/{number}?saved={what}"

    def again(session: Session, form: ReferenceForm, error: ThreewallsError) -> Response:
        return _render_reference(request, session, str(number), refused=(what, form), status=status_of(error))

    catch = (InvalidChange, EditConflict)
    return await answer_form(request, ReferenceForm, act, again, max_fields=MAX_FIELDS, catch=catch)


def _render_new(request: Request, session: Session, form: ReferenceForm, status: int = 200) -> HTMLResponse:
    pasted = request.query_params.get("pasted", "")[:MAX_PASTED]
    return render(
        request, "references/new.html", status=status, form=form, pasted=pasted, **_form_parts(request, session, form)
    )


def _render_reference(
    request: Request,
    session: Session,
    reference_id: str,
    *,
    saved: str = "",
    refused: tuple[str, ReferenceForm] | None = None,
    status: int = 200,
) -> HTMLResponse:
    """Render a figure. `refused`: the form that was sent, with its errors."""
    reference = find_reference(session, reference_id)
    if reference is None:
        raise NotFound(f"Reference point {reference_id[:80]} does not exist.")
    what, typed = refused or ("", ReferenceForm())
    form = typed if what == "change" else filled_form(reference)
    compared = compared_stacks(session, reference)
    return render(
        request,
        "references/reference.html",
        status=status,
        reference=reference,
        point=reference.point,
        title=views.title_of(reference.point),
        figures=views.figures_text(reference.point),
        precision=views.precision_of(reference.point),
        kinds=KINDS,
        rows=views.field_rows(reference.point),
        events=audit.events(session, "reference", reference.id) if reference.entered else (),
        compared=compared,
        bars=compared.bars,
        differences=views.difference_rows(compared.own) if compared.own else (),
        may_change=_may_change(request, session, reference),
        saved=saved,
        sent=what,
        form=form,
        withdrawal=typed if what == "withdraw" else filled_form(reference),
        **_form_parts(request, session, form),
    )


def _may_change(request: Request, session: Session, reference: Reference) -> bool:
    """Return whether the user may change the figure, by the rule of the forms' routes.

    Only administrators can change figures that are offered to all projects.
    """
    if reference.entered is None or not reference.counts:
        return False
    where = _where(request)
    return where is None or reference.entered.project in project_slugs(session, where)


def _where(request: Request) -> Collection[int] | None:
    """Return ids of the projects that the user may enter figures for; None: any project, and all projects."""
    access = access_of(request)
    return granted(access.principal, Action.CONTRIBUTE, access.public)


def _form_parts(request: Request, session: Session, form: ReferenceForm) -> dict[str, Any]:
    """Return the choices of the inputs."""
    where = _where(request)
    projects = reference_options(session).projects if where is None else project_slugs(session, where)
    return {"inputs": form.offered(), "groups": FIELD_GROUPS, "projects": projects, "may_offer_to_all": where is None}
