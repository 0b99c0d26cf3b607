"""The list of runs: filters, chosen columns, saved views, exports, and changes of the selected runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Literal
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.access.principal import Action
from app.domain.numbers import THIN, change_text, plural, with_sign
from app.domain.run import EVIDENCE_LEVELS
from app.domain.verdict.document import UNCONFIRMED
from app.domain.verdict.words import DECISIONS
from app.errors import Conflict, FieldError, InvalidChange, InvalidQuery, NotFound, ThreewallsError
from app.runs.commands import quarantine_runs, tag_runs
from app.runs.queries import (
    LIST_COLUMNS,
    PURPOSES,
    RUN_COLUMNS,
    STATUSES,
    VERDICTS,
    RunQuery,
    filter_options,
    find_runs,
    get_series,
    run_rows,
    selected_rows,
    with_other_filter,
)
from app.runs.saved_views import ViewIn, query_of_view, save_view, views_of
from app.storage.database import ListPage
from app.storage.runs import RunListItem
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession, RunId, reading
from app.web.forms import Form, answer_form, status_of
from app.web.identity import author
from app.web.lists import table_answer
from app.web.sparklines import sparkline
from app.web.templating import OUTCOMES, Toast, render, wants_fragment

router = APIRouter(include_in_schema=False)

MOST_SELECTED = 200
"""Runs that one change or export of a selection takes."""
MOST_POINTS = 120
"""Steps of the picture in a row; more are thinned out."""
_MAX_FIELDS = MOST_SELECTED + 8


class SelectionForm(Form):
    """`action`: `tag` or `quarantine`, of the runs in `run`."""

    inputs = ("action", "tag", "note", "author")
    several = ("run",)
    longest = 4001

    @property
    def runs(self) -> list[int]:
        """Return the selected runs. Raises InvalidChange."""
        return _numbers(self.chosen.get("run", ()))


class ViewForm(Form):
    inputs = ("project", "name", "query", "shared", "author")
    longest = 2000


@dataclass(frozen=True, slots=True)
class Dot:
    """A run in the picture above the list. `x` and `y` in percent of it; `off_pct`: its change if off the scale."""

    run_id: int
    x: float
    y: float
    decision: str
    title: str
    off_pct: float | None = None


@dataclass(frozen=True, slots=True)
class EdgeText:
    """The text of dots off the scale, which are neighbours at one edge. `row`: counted from the edge outwards.

    `char`: width of a character in percent of the picture.
    """

    dots: tuple[Dot, ...]
    char: float
    row: int = 0

    @property
    def text(self) -> str:
        """Return the change, or the smallest and the largest one."""
        changes = sorted((dot.off_pct or 0.0 for dot in self.dots), key=abs)
        ends = dict.fromkeys(with_sign(change, 0) for change in (changes[0], changes[-1]))
        return f"{' to '.join(ends)}{THIN}%"

    @property
    def at(self) -> float:
        """Return the middle of its dots, to which an outer text has a line."""
        return round((self.dots[0].x + self.dots[-1].x) / 2, 2)

    @property
    def ends(self) -> tuple[float, float]:
        """Return where the text begins and ends: above or below its dots, and in the picture."""
        width = self.char * len(self.text)
        low = max(0.0, min(100 - width, self.at - width / 2))
        return round(low, 2), round(low + width, 2)

    @property
    def is_below(self) -> bool:
        return (self.dots[0].off_pct or 0.0) < 0


_USUAL = 0.75
"""This share of the changes sets the scale."""
_REACH, _LEAST_PCT = 2.0, 5.0
"""The scale reaches so many times farther than they do; it ends at the largest change, but not below the least."""
_TOP, _BOTTOM, _TEXT, _LANE = 5, 95, 27, 14
"""Ends of the scale in percent of the picture, and the room for texts outside an end and for failed runs below."""
_PAGE_SIZE = 40
_ROWS = 2
"""Rows of text outside each edge."""
_CHAR_WIDTHS = {"wide": 0.7, "narrow": 2.6}
"""Width of a character in percent of the picture, on a wide page and on a phone."""
_STRIP_RUNS = 3


@dataclass(frozen=True, slots=True)
class RunStrip:
    """The picture above the list. `ticks`: height in percent and text. `left_out`: runs that are not compared.

    `texts`: of the dots off the scale, by the width of the page. `against`: what the others are compared with.
    """

    dots: tuple[Dot, ...]
    texts: Mapping[str, Sequence[EdgeText]]
    against: str
    ticks: tuple[tuple[float, str], ...]
    left_out: int

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """Return the marks that occur, by decision, with their meaning."""
        drawn = {dot.decision for dot in self.dots}
        return tuple((decision, text) for decision, text in _MARKS.items() if decision in drawn)


_MARKS = {
    "regression": "slower",
    "unconfirmed": UNCONFIRMED,
    "memory": "more memory",
    "improvement": "faster",
    "no-change": "no change",
    "not-steady": "not steady",
    "inconclusive": "inconclusive",
    "failed": "failed",
}


def run_strip(runs: Sequence[RunListItem], *, by_commit: bool = False) -> RunStrip | None:
    """Return the compared runs from the oldest on by their change, slower above; None for too few.

    Failed runs are in a lane below. `by_commit`: the oldest commit first, not the oldest upload.
    """
    changes = {run.id: _change(run) for run in runs}
    judged = [change for change in changes.values() if change is not None]
    if len(judged) < _STRIP_RUNS:
        return None
    drawn = [run for run in runs if changes[run.id] is not None or "failed" in (run.status, run.verdict)]
    slower, faster = _scale(judged)
    top = _TOP + _TEXT * (max(judged) > slower)
    bottom = _BOTTOM - _LANE * (len(drawn) > len(judged)) - _TEXT * (min(judged) < -faster)
    per_pct = (bottom - top) / (slower + faster)
    dots = []
    drawn.sort(key=lambda run: (run.commit_time if by_commit and run.commit_time else run.created_at, run.id))
    for place, run in enumerate(drawn):
        change = changes[run.id]
        decision = "failed" if change is None else _mark(run)
        words = "failed" if change is None else change_text(change).text
        height = _BOTTOM if change is None else top + per_pct * (slower - max(-faster, min(slower, change)))
        is_off = change is not None and not -faster <= change <= slower
        dots.append(
            Dot(
                run.id, round(1 + 98 * (place + 0.5) / len(drawn), 2), round(height, 1), decision,
                f"#{run.id} {run.name}: {words}",
                change if is_off else None,
            )
        )  # fmt: skip
    edges = [[dot for dot in dots if dot.off_pct is not None and (dot.off_pct > 0) == above] for above in (True, False)]
    texts = {name: [text for edge in edges for text in edge_texts(edge, char)] for name, char in _CHAR_WIDTHS.items()}
    compared = {run.contrast_field for run in drawn if changes[run.id] is not None}
    before = " or ".join(sorted(compared - {""}))
    against = " or ".join(filter(None, ("baseline" if "" in compared else "", f"previous {before}" if before else "")))
    marks = ((slower, f"+{slower:.0f}{THIN}%"), (0.0, "0"), (-faster, f"\u2212{faster:.0f}{THIN}%"))
    ticks = tuple((round(top + per_pct * (slower - at), 1), text) for at, text in marks)
    return RunStrip(tuple(dots), texts, against, ticks, len(runs) - len(drawn))


def _scale(changes: Sequence[float]) -> tuple[float, float]:
    """Return the largest change on the scale to each side. The shorter side has a third of the longer one at least."""
    sizes = sorted(map(abs, changes))
    most = max(_LEAST_PCT, _REACH * sizes[ceil(_USUAL * len(sizes)) - 1])
    ends = [ceil(min(most, max(0.0, end))) for end in (max(changes), -min(changes))]
    least = max(1, ceil(max(ends) / 3))
    return max(ends[0], least), max(ends[1], least)


def edge_texts(dots: Sequence[Dot], char: float) -> list[EdgeText]:
    """Return the texts of all dots at one edge, from left to right; neighbours share one where there is no room.

    A text covers no other of its row, and no line from an outer text to its dots.
    """
    groups: list[tuple[Dot, ...]] = [(dot,) for dot in dots]
    while True:
        placed: list[EdgeText] = []
        joined: list[tuple[Dot, ...]] = []
        for group in groups:
            tried = (EdgeText(group, char, row) for row in range(_ROWS))
            if text := next((text for text in tried if all(_is_clear(text, other) for other in placed)), None):
                placed.append(text)
                joined.append(group)
            else:
                joined[-1] += group
        if len(joined) == len(groups):
            return placed
        groups = joined


def _is_clear(text: EdgeText, other: EdgeText) -> bool:
    """Return whether neither covers the other or its line. `other` is left of it, or above or below its left part."""
    inner, outer = sorted((text, other), key=lambda each: each.row)
    (low, high), at = inner.ends, outer.at
    if inner.row != outer.row:
        return not low < at < high
    return high <= outer.ends[0] or outer.ends[1] <= low


def _change(run: RunListItem) -> float | None:
    """Return the change of step time that its row shows; a run of an experiment has its effect there."""
    if run.is_side:
        return None
    if run.contrast_decision:
        return run.contrast_pct
    return None if run.verdict in ("", "no_baseline", "failed") else run.verdict_delta_pct


def _mark(run: RunListItem) -> str:
    if run.label == UNCONFIRMED:
        return "unconfirmed"
    if run.memory_pct is not None:
        return "memory"
    if run.step_decision == "inconclusive" and run.is_unsteady:
        return "not-steady"
    return run.step_decision.replace("_", "-")


_VERDICT_LABELS = {name: DECISIONS.get(name, name) for name in VERDICTS} | {
    "regression": "slower or more memory", "none": "not judged",
}  # fmt: skip


def list_answer(runs: Sequence[RunListItem], *, are_newest: bool = False, are_all: bool = False) -> str:
    """Return what the runs have in common: `3 of 9 runs on this page are slower (1 unconfirmed), 2 failed.`

    A run that only needs more memory is not slower. Runs that are slower only than those of another container say so.
    """
    if runs and all(run.status in ("received", "processing") for run in runs):
        return f"{plural(len(runs), 'run')} shown {'waits' if len(runs) == 1 else 'wait'} to be read."
    slower = [run for run in runs if run.step_decision == "regression" and _change(run) is not None]
    heavier = sum(run.memory_pct is not None for run in runs)
    unconfirmed = sum(run.label == UNCONFIRMED for run in slower)
    failed = sum("failed" in (run.status, run.verdict) for run in runs)
    unsteady = sum(_mark(run) == "not-steady" for run in runs)
    if runs and failed == len(runs):
        return "The run shown failed." if failed == 1 else f"All {failed} runs shown failed."
    verb = "is" if len(slower) == 1 else "are"
    doubt = f" ({unconfirmed} unconfirmed)" if unconfirmed else ""
    end = f", {heavier} {'needs' if heavier == 1 else 'need'} more memory" if heavier else ""
    end += f", {failed} failed" if failed else ""
    end += f", {unsteady} not steady" if unsteady else ""
    fields = sorted({run.contrast_field for run in slower})
    than = f" than with the previous {' or '.join(fields)}" if all(fields) and fields else ""
    if are_newest and len(runs) > 1:
        return f"Newest {len(runs)} runs: {len(slower) or 'none'} slower{than}{doubt}{end}."
    which = f"{plural(len(runs), 'run')}{'' if are_all else ' on this page'}"
    return f"{len(slower) or 'None'} of {which} {verb} slower{than}{doubt}{end}."


@router.get("/runs")
@requires(Action.READ)
def list_runs(request: Request, session: ReadSession) -> Response:
    if (saved := query_of_view(request, session)) is not None:
        return RedirectResponse(f"/runs?{saved}", status_code=303)
    return _render(request, session, SelectionForm())


@router.post("/runs")
@requires(Action.CONTRIBUTE)
async def change_selected(request: Request, engine: AppEngine) -> Response:
    """Tag or quarantine the selected runs, all or none."""

    def change(form: SelectionForm) -> str | Response:
        runs, tag, note, who = form.runs, form.value("tag"), form.value("note"), form.value("author")
        if form.value("action") == "quarantine":
            quarantine_runs(engine, runs, author=who, note=note)
            text = f"{plural(len(runs), 'run')} quarantined."
        else:
            tag_runs(engine, runs, tag, author=who)
            text = f"{plural(len(runs), 'run')} tagged {tag}."
        if not wants_fragment(request):
            return RunQuery.from_params(request.query_params).address("/runs")
        with reading(request) as session:
            return _render(request, session, SelectionForm(), toast=Toast(text))

    def again(session: Session, form: SelectionForm, error: ThreewallsError) -> Response:
        return _render(request, session, form, status=status_of(error))

    catch = (InvalidChange, Conflict, NotFound)
    return await answer_form(request, SelectionForm, change, again, max_fields=_MAX_FIELDS, catch=catch)


@router.post("/runs/views")
@requires(Action.CONTRIBUTE)
async def save_view_by_form(request: Request, engine: AppEngine) -> Response:
    """Save the filters of the list like the API."""

    def save(form: ViewForm) -> str:
        query, shared, who = form.value("query"), bool(form.value("shared")), form.value("author")
        view = ViewIn(query=query, shared=shared, default=False, author=who)
        save_view(engine, form.value("project"), form.value("name")[:100], view)
        return RunQuery.from_params(dict(parse_qsl(query))).address("/runs")

    return await answer_form(request, ViewForm, save, max_fields=8)


@router.get("/runs.csv")
@requires(Action.READ)
def export_runs(request: Request, engine: AppEngine) -> Response:
    """Return all runs that match the filters of the address, or the runs that it selects with `run=`."""
    return _table(request, engine, "csv")


@router.get("/runs.parquet")
@requires(Action.READ)
def export_runs_as_parquet(request: Request, engine: AppEngine) -> Response:
    """Return the same as a Parquet file."""
    return _table(request, engine, "parquet")


@router.get("/runs/{run_id}/spark")
@requires(Action.READ, of="run")
def show_spark(request: Request, session: ReadSession, run_id: RunId) -> HTMLResponse:
    """Return the step times of a run as a small picture, for the row of a list."""
    times = get_series(session, run_id, "step_time_ms").columns.get("step_time_ms")
    values = [] if times is None else [float(value) for value in times if isfinite(value)]
    steady = values[len(values) // 10 :]  # the first steps of a job are slow and would flatten the rest
    line = sparkline(steady[:: max(1, len(steady) // MOST_POINTS)])
    return render(request, "runs/_spark.html", line=line, iterations=len(values), values=steady)


def _numbers(texts: tuple[str, ...] | list[str]) -> list[int]:
    numbers = sorted({int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 19})
    if not 0 < len(numbers) <= MOST_SELECTED:
        raise InvalidChange("Select the runs first.", (FieldError("run", f"must name 1 to {MOST_SELECTED} runs"),))
    return numbers


def _table(request: Request, engine: AppEngine, kind: Literal["csv", "parquet"]) -> Response:
    selected = request.query_params.getlist("run")
    if not selected:
        rows = run_rows(engine, RunQuery.from_params(request.query_params))
    else:
        try:
            rows = selected_rows(engine, _numbers(selected))
        except InvalidChange as error:
            raise InvalidQuery(error.detail, error.errors) from None
    return table_answer(kind, RUN_COLUMNS, rows, "runs")


def _render(
    request: Request, session: Session, form: SelectionForm, *, status: int = 200, toast: Toast | None = None
) -> HTMLResponse:
    query = RunQuery.from_params(request.query_params).model_copy(update={"page_size": _PAGE_SIZE})
    problem, options = "", filter_options(session)
    try:
        page = find_runs(session, query)
    except InvalidQuery as error:
        if not query.q or wants_fragment(request):
            raise
        # The text stays in its box.
        page, problem, status = ListPage((), 0, 1, _PAGE_SIZE), error.errors[0].message, status_of(error)
    is_empty = not page.total and not problem
    meant = next((name for name, label in OUTCOMES.items() if query.q.lower() in (name, label)), "")
    ended = query.model_copy(update={"q": "", "outcome": meant})
    return render(
        request,
        "runs/list.html",
        block="run_table",
        address=query.address("/runs"),
        status=status,
        toast=toast,
        page=page,
        answer=list_answer(
            page.items,
            are_newest=query.sort == "-created" and not page.before and page.has_next,
            are_all=page.is_exact and page.total == len(page.items),
        ),
        strip=run_strip(page.items, by_commit=query.sort.endswith("commit_time")),
        problem=problem,
        others=with_other_filter(query) if problem else {},
        left_by={name: find_runs(session, query.dropping(name)).total for name in query.active}
        if is_empty and len(query.active) > 1
        else {},
        ended=(ended.query(), OUTCOMES[meant], find_runs(session, ended).total) if is_empty and meant else None,
        filters=query,
        columns=query.shown_columns,
        all_columns=LIST_COLUMNS,
        options=options,
        views=views_of(session, query.project, author()) if query.project in options.projects else (),
        form=form,
        choices={
            "status": STATUSES,
            "purpose": PURPOSES,
            "evidence": EVIDENCE_LEVELS,
            "outcome": OUTCOMES,
            "verdict": _VERDICT_LABELS,
        },
    )
