"""`/upgrade?project=&field=&from=&to=`: the page, its chart and its table as CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.access.principal import Action
from app.domain.naming import SEPARATOR, without_common
from app.domain.numbers import change_text
from app.domain.verdict.upgrade import UPGRADE_FIELDS, shared_commit_label, shared_stacks, upgrade_sentence
from app.errors import FieldError, InvalidQuery, NotFound
from app.storage.projects import find_project
from app.storage.upgrade_changes import upgrade_changes
from app.upgrade.charts import axis_reach, chart_height, upgrade_chart, zoomed
from app.upgrade.queries import MeasuredUpgrade, UpgradeValue, measure, projects, values_of
from app.upgrade.views import INTERVAL, ComparedStackRow, lonely_rows, near_rows, shared_commit_run, stack_rows
from app.web.access_rule import requires
from app.web.dependencies import ReadSession
from app.web.lists import CellKind, table_answer
from app.web.pictures import Colour, DotRow, Kind, Picture, Theme, picture_response, rows_body
from app.web.templating import render

# --- The page of an upgrade: the question in its address, and the answer.

_NEWEST_VALUES = 8
"""Newest values between which upgrades are offered; select boxes also list older ones."""
_MAX_VALUE = 500


@dataclass(frozen=True, slots=True)
class UpgradeQuery:
    """`old` and `new` are `from` and `to` of the address; empty while they are not chosen."""

    project: str = ""
    field: str = "container"
    old: str = ""
    new: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Read the query string. Raises InvalidQuery on a field that no upgrade changes."""
        given = {name: params.get(name, "").strip()[:_MAX_VALUE] for name in ("project", "field", "from", "to")}
        field = given["field"] or "container"
        if field not in UPGRADE_FIELDS:
            message = f"must be one of {', '.join(UPGRADE_FIELDS)}"
            raise InvalidQuery(f"`field` {message}.", (FieldError("field", message),))
        return cls(given["project"], field, given["from"], given["to"])

    def query(self, **changes: str) -> str:
        values = {"project": self.project, "field": self.field, "from": self.old, "to": self.new} | changes
        return urlencode({name: value for name, value in values.items() if value})


@dataclass(frozen=True, slots=True)
class UpgradeOffer:
    """Two values between which `stacks` stacks can be measured."""

    old: str
    new: str
    stacks: int


@dataclass(frozen=True, slots=True)
class UpgradePage:
    """`measured` is None until both sides are chosen; `answer` is the first sentence either way."""

    query: UpgradeQuery
    projects: tuple[str, ...]
    values: tuple[UpgradeValue, ...]
    offers: tuple[UpgradeOffer, ...]
    measured: MeasuredUpgrade | None
    answer: str
    generated: bool = False


def upgrade_page(session: Session, query: UpgradeQuery) -> UpgradePage:
    """Return the data of the page. Raises NotFound for an unknown project."""
    slugs = projects(session)
    if not query.project and len(slugs) == 1:
        query = UpgradeQuery(slugs[0], query.field, query.old, query.new)
    if not query.project:
        answer = "Choose a project." if slugs else "No projects yet. The first run creates one."
        return UpgradePage(query, slugs, (), (), None, answer)
    project = find_project(session, query.project)
    values = values_of(session, project, query.field)
    if not (query.old and query.new) or query.old == query.new:
        offers = _offers(query.field, values)
        return UpgradePage(query, slugs, values, offers, None, _asked(query, offers), project.generated)
    old, new = (_side(values, value) for value in (query.old, query.new))
    measured = measure(session, project, query.field, old, new)
    offers = () if measured.report.pairs else _offers(query.field, values)
    answer = upgrade_sentence(measured.report, measured.gpu_hours_per_day, measured.cost_end)
    return UpgradePage(query, slugs, values, offers, measured, answer, project.generated)


def _side(values: Sequence[UpgradeValue], value: str) -> UpgradeValue:
    return next((side for side in values if side.value == value), UpgradeValue(value, 0, None, 0, ()))


def _offers(field: str, values: Sequence[UpgradeValue]) -> tuple[UpgradeOffer, ...]:
    """Return pairs from each value to each later one, the latest first."""
    newest = values[:_NEWEST_VALUES]
    pairs = [(old, new) for k, new in enumerate(newest) for old in newest[k + 1 :]]
    offers = (UpgradeOffer(old.value, new.value, shared_stacks(field, old.configs, new.configs)) for old, new in pairs)
    return tuple(offer for offer in offers if offer.stacks)


def _asked(query: UpgradeQuery, offers: Sequence[UpgradeOffer]) -> str:
    if query.old and query.old == query.new:
        return "Both sides are the same. Choose two values."
    if offers:
        return f"Choose the old and the new {query.field}."
    return f"No stack has usable CI runs with two values of {query.field} yet."


router = APIRouter(include_in_schema=False)

COLUMNS: Mapping[str, CellKind] = {
    **dict.fromkeys(("stack", "stack_key", "from_stack_key", "job", "decision"), "text"),
    **dict.fromkeys(("from_ms", "to_ms", "delta_pct", "ci_low_pct", "ci_high_pct"), "float"),
    "interval_level_pct": "float", "memory_delta_pct": "float",
    "from_runs": "text", "to_runs": "text", "gpu_hours_per_day": "float", "p_value": "float", "q_value": "float",
    "shares_commits": "flag", "judged": "flag",
}  # fmt: skip


def get_page(request: Request, session: ReadSession) -> UpgradePage:
    return upgrade_page(session, UpgradeQuery.from_params(request.query_params))


Page = Annotated[UpgradePage, Depends(get_page)]


@router.get("/upgrade")
@requires(Action.READ)
def show_upgrade(request: Request, session: ReadSession, page: Page) -> Response:
    """Show an upgrade. Without versions: of the upgrades to the newest one, that with the most decided jobs.

    Only those of one project if it is named.
    """
    is_open = request.query_params.keys() <= {"project"}
    if is_open and (upgrades := upgrade_changes(session, project=page.query.project)):
        target, *_ = targets = [(upgrade.project, upgrade.field, upgrade.to_value) for upgrade in upgrades]
        same = [upgrade for upgrade, its_target in zip(upgrades, targets, strict=True) if its_target == target]
        return RedirectResponse(f"/upgrade?{max(same, key=lambda upgrade: upgrade.decided).query}", status_code=303)
    return _render(request, page)


@router.get("/upgrade/chart")
@requires(Action.READ)
def show_chart(request: Request, page: Page, first: int = 0, last: int = 0) -> HTMLResponse:
    """Return the chart alone: it loads after the figures, so that drawing does not delay them.

    `first` and `last`: the ranks of the stacks at the ends of the zoom.
    """
    return _render(request, page, block="upgrade_chart", ends=(first, last))


@router.get("/upgrade/picture.{kind}")
@requires(Action.READ)
def draw_upgrade(request: Request, page: Page, kind: Kind, theme: Theme = "light") -> Response:
    """Return what the upgrade changed in each stack as a slide, without inconclusive stacks if any is decided.

    Raises NotFound until both sides are chosen.
    """
    if page.measured is None:
        raise NotFound("Choose both sides of the upgrade.")
    counted = [row for row in stack_rows(page.measured) if row.is_counted]
    shown = [row for row in counted if row.word != "inconclusive"] or counted
    changes = (abs(row.time.delta_pct) for row in shown if row.time is not None)
    titles, reach = without_common([row.title for row in shown]), max([axis_reach(shown), *changes])
    axis = f"change of step time, %; right is slower; {INTERVAL}s"
    if len(shown) < len(counted):
        axis += f"; {len(counted) - len(shown)} inconclusive not shown"
    rows = [
        DotRow(
            title.split(SEPARATOR)[0], row.time.delta_pct, max(row.line[0], -reach), min(row.line[1], reach),
            change_text(row.time.delta_pct).figure, _COLOURS.get(row.word, "neutral"),
            SEPARATOR.join(title.split(SEPARATOR)[1:]),
        )
        for title, row in zip(titles, shown, strict=True)
        if row.time is not None
    ]  # fmt: skip
    query = page.query
    picture = Picture(
        f"{query.field}: {short_value(query.old)} → {short_value(query.new)}", page.answer, f"/upgrade?{query.query()}",
        page.generated,
        rows_body(rows, axis),
    )  # fmt: skip
    return picture_response(request, picture, kind, theme)


def short_value(value: str) -> str:
    """Return a container without its registry."""
    return value.rpartition("/")[2]


_COLOURS: Mapping[str, Colour] = {"worse": "worse", "better": "better"}


@router.get("/upgrade.csv")
@requires(Action.READ)
def export_upgrade(page: Page) -> Response:
    return table_answer("csv", COLUMNS, [upgrade_rows(page)], "upgrade")


def upgrade_rows(page: UpgradePage) -> list[tuple[Any, ...]]:
    """Return a row per stack that was measured on both sides."""
    return [_cells(row) for row in stack_rows(page.measured)] if page.measured else []


def _cells(row: ComparedStackRow) -> tuple[Any, ...]:
    time, memory = row.time, row.memory
    speed = (
        (time.baseline_ms, time.candidate_ms, time.delta_pct, time.ci_low_pct, time.ci_high_pct)
        if time is not None
        else (None,) * 5
    )
    level = time.interval_level_pct if time is not None else None
    tail = (level, memory and memory.delta_pct, " ".join(row.old_runs), " ".join(row.new_runs), row.cost)
    chance = (row.discovery.p_value, row.discovery.q_value) if row.discovery else (None, None)
    identity = (row.title, row.stack_key, row.old_stack_key, row.job, row.word)
    return (*identity, *speed, *tail, *chance, row.shares_commits, row.is_judged)


def _render(
    request: Request, page: UpgradePage, block: str | None = None, ends: tuple[int, int] = (0, 0)
) -> HTMLResponse:
    measured = page.measured
    rows = stack_rows(measured) if measured else ()
    counted = [row for row in rows if row.is_counted]
    drawn, is_zoomed = zoomed(counted, *ends)
    return render(
        request,
        "upgrade/index.html",
        block=block,
        page=page,
        q=page.query,
        fields=UPGRADE_FIELDS,
        rows=rows,
        near=near_rows(measured.report) if measured else (),
        lonely=lonely_rows(measured.report) if measured else (),
        shared=shared_commit_run(measured) if measured else None,
        shared_label=shared_commit_label(page.query.field),
        interval=INTERVAL,
        chart=upgrade_chart(counted, *ends) if block else None,
        chart_height=chart_height(drawn),
        is_zoomed=is_zoomed,
    )
