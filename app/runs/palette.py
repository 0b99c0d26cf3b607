"""`/search`: where a search leads. The command palette and, without script, a page show the same."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from sqlalchemy import select
from sqlmodel import Session, col
from starlette.responses import RedirectResponse, Response

from app.domain.access.principal import Action
from app.domain.contract.fields import FIELDS
from app.domain.contract.values import shown
from app.domain.numbers import change_text, grouped, plural, short_commit, step_time
from app.domain.planning.request import REQUIRED, plan_address
from app.domain.rules.rule import Rule
from app.domain.text import short_cause
from app.runs.queries import RunQuery, find_runs
from app.storage.references import references
from app.storage.runs import RunListItem, latest_runs
from app.storage.search import FEWEST_LETTERS
from app.storage.stacks import names_of_stacks
from app.storage.standings import HardwareFamily, StandingsFilters, class_summaries, hardware_and_families
from app.storage.suspect_evidence import cause_of
from app.storage.tables import ExperimentRow, ProjectRow, RegressionRow, RunRow, select_any
from app.web.access_rule import requires
from app.web.dependencies import ReadSession, Rules
from app.web.docs_pages import terms
from app.web.identity import Access, access_of
from app.web.templating import render, wants_fragment

_NUMBER = re.compile(r"(?:(run|regression|experiment)s? |(r)(?=\d))?#?(\d{1,9})", re.IGNORECASE)
_READ_RUNS = 30
"""Runs that are read for one search; stacks and commits are those of these runs."""
_SHOWN = 5
_SHOWN_BOARDS = 3
_SHOWN_STACKS = 3
"""Their names are long."""
_READ_EXPERIMENTS = 200
"""Newest experiments that are searched."""
MAX_WORDS = 200

_PAGES: tuple[tuple[str, str, str], ...] = (
    ("Overview", "/", ""),
    ("Runs", "/runs", "all logs"),
    ("Trends", "/history", "workloads over time"),
    ("Compare", "/compare", "two runs"),
    ("Regressions", "/regressions", "triage"),
    ("Rankings", "/leaderboards", "leaderboards, dispatchers"),
    ("Availability", "/availability", "dispatchers by container"),
    ("Published figures", "/references", "references"),
    ("Scaling", "/scaling", "weak, strong, long context"),
    ("Upgrade report", "/upgrade", "containers"),
    ("Experiments", "/experiments", "A/B, sweeps"),
    ("Playbook", "/playbook", "tuning rules"),
    ("Planner", "/plan", "parallel layouts, memory"),
    ("Launch check", "/check", "command"),
    ("Upload", "/upload", "logs"),
    ("Glossary", "/glossary", "terms"),
    ("API reference", "/docs", "calls, schemas"),
)
_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("Projects", "/settings/projects", "settings"),
    ("Definitions", "/settings/definitions", "settings, versions"),
)


@dataclass(frozen=True, slots=True)
class PaletteHit:
    """A result of a search. `about`: its figures, or what distinguishes it from others of the same name."""

    label: str
    address: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class PaletteGroup:
    label: str
    hits: tuple[PaletteHit, ...]


router = APIRouter(include_in_schema=False)


@router.get("/search")
@requires(Action.READ)
def search(
    request: Request, session: ReadSession, rules: Rules, q: Annotated[str, Query(max_length=MAX_WORDS)] = ""
) -> Response:
    text = q.strip()
    numbered = _by_number(session, text)
    if len(numbered) == 1 and not wants_fragment(request):
        return RedirectResponse(numbered[0].address, status_code=303)
    groups = [
        group
        for group in _groups(session, access_of(request), list(rules.book.rules.values()), text, numbered)
        if group.hits
    ]
    words = text.lower().split()
    if not wants_fragment(request):  # the page begins with what names the words; the palette keeps its order
        groups.sort(key=lambda group: not any(word in hit.label.lower() for hit in group.hits for word in words))
    return render(request, "runs/search.html", block="results", text=text, groups=groups, words=words)


def _groups(
    session: Session, access: Access, rules: Sequence[Rule], text: str, numbered: tuple[PaletteHit, ...]
) -> Iterator[PaletteGroup]:
    words = text.lower().split()
    runs, total = _runs(session, text)
    yield PaletteGroup("Number", numbered)
    yield PaletteGroup("Leaderboards and figures", tuple(_boards(session, words)))
    pages = _PAGES if access.may_anywhere(Action.UPLOAD) else [page for page in _PAGES if page[1] != "/upload"]
    yield PaletteGroup("Pages", tuple(_matching(pages, words)))
    all_runs = "/runs?" + RunQuery(q=text).query()
    hits = [PaletteHit(f"#{run.id} {run.name}", f"/runs/{run.id}", _about(run, text)) for run in runs[:_SHOWN]]
    yield PaletteGroup("Runs" if words else "Newest runs", (*hits, *_rest(total, _SHOWN, "All runs", all_runs)))
    if words:
        read = f" of the newest {_READ_RUNS} matching runs" if total > _READ_RUNS else ""
        yield PaletteGroup("Stacks", tuple(_stacks(session, runs, text, f" stacks{read}")))
        yield PaletteGroup(
            "Commits", _first(_commits(runs, words), "All runs of these commits", all_runs, f" commits{read}")
        )
        plain = _plain(text).split()
        yield PaletteGroup("Experiments", _first(_experiments(session, plain), "All experiments", "/experiments"))
        fitting = [
            PaletteHit(rule.title, f"/playbook/{rule.id}", rule.id)
            for rule in rules
            if _has_all(plain, rule.id, rule.title, *_names(rule.change.set))
        ]
        query = urlencode({"q": text})
        yield PaletteGroup("Rules", _first(fitting, "All rules with these words", f"/playbook?{query}"))
        yield PaletteGroup("Glossary", _first(_definitions(plain), "All terms with these words", f"/glossary?{query}"))
    if access.user or access.is_open:
        projects = _first(_projects(session, words), "All projects", "/settings/projects")
        yield PaletteGroup("Settings", (*_matching(_SETTINGS, words), *projects))


def _first(hits: Iterable[PaletteHit], whole: str, address: str, of: str = "") -> tuple[PaletteHit, ...]:
    """Return the first hits, and a link to the rest. `of`: what is counted, if the group does not say it."""
    hits = list(hits)
    return (*hits[:_SHOWN], *_rest(len(hits), _SHOWN, whole, address, of))


def _rest(matching: int, shown: int, whole: str, address: str, of: str = "") -> Iterator[PaletteHit]:
    """Yield a link to all hits, with how many match, if not all are shown."""
    if matching > shown:
        yield PaletteHit(whole, address, f"{grouped(matching)}{of} match, {shown} shown")


def _plain(text: str) -> str:
    """Return the text for a search that finds `permute fusion` and `--moe-permute-fusion` in `permute_fusion`."""
    return re.sub(r"[_-]+", " ", text.lower())


def _has_all(words: Sequence[str], *texts: str) -> bool:
    searched = _plain(" ".join(texts))
    return all(word in searched for word in words)


def _names(fields: Iterable[str]) -> Iterator[str]:
    """Yield the names of contract fields, and those that trainers give them."""
    for name in fields:
        yield name
        if name in FIELDS:
            yield from (FIELDS[name].megatron_lm, FIELDS[name].bridge)


def _experiments(session: Session, words: Sequence[str]) -> Iterator[PaletteHit]:
    """Yield the newest experiments with these words in their title or in the knobs that they change."""
    newest = (
        select_any(ExperimentRow.id, ExperimentRow.title, ExperimentRow.knobs, ExperimentRow.state)
        .order_by(col(ExperimentRow.id).desc())
        .limit(_READ_EXPERIMENTS)
    )
    for row in session.execute(newest):
        if _has_all(words, row.title, *_names(row.knobs)):
            yield PaletteHit(row.title, f"/experiments/{row.id}", f"{row.state}: {', '.join(row.knobs)}")


def _definitions(words: Sequence[str]) -> Iterator[PaletteHit]:
    """Yield the contract fields and terms with these words in their name."""
    for name, field in FIELDS.items():
        if _has_all(words, *_names([name])):
            yield PaletteHit(name, f"/glossary#field-{name}", field.meaning)
    for term in terms():
        if _has_all(words, term.name.striptags()):
            yield PaletteHit(term.name.striptags(), f"/glossary#{term.anchor}", term.text.striptags())


def _matching(places: Sequence[tuple[str, str, str]], words: Sequence[str]) -> Iterator[PaletteHit]:
    for label, address, about in places:
        if all(word in f"{label} {about}".lower() for word in words):
            yield PaletteHit(label, address, about)


def _by_number(session: Session, text: str) -> tuple[PaletteHit, ...]:
    """Return the run, regression and experiment with this number: `108`, `#108`, `R2` or `experiment 2`."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return ()
    number = int(match[3])
    run = session.execute(select_any(RunRow.name).where(col(RunRow.id) == number)).scalar()
    regression = session.execute(select(RegressionRow).where(col(RegressionRow.id) == number)).scalar()
    experiment = session.execute(select_any(ExperimentRow.title).where(col(ExperimentRow.id) == number)).scalar()
    hits = []
    if run is not None:
        hits.append(PaletteHit(f"Run #{number}", f"/runs/{number}", run))
    if regression is not None:
        hits.append(
            PaletteHit(f"Regression {number}", f"/regressions/{number}", short_cause(cause_of(session, regression)))
        )
    if experiment is not None:
        hits.append(PaletteHit(f"Experiment #{number}", f"/experiments/{number}", experiment))
    kind = "regression" if match[2] else (match[1] or "").lower()
    return tuple(hit for hit in hits if hit.label.lower().startswith(kind))


def _boards(session: Session, words: Sequence[str]) -> Iterator[PaletteHit]:
    """Yield what is measured and published for a model, GPU or dispatcher, and the planner for it."""
    if not words or _NUMBER.fullmatch(" ".join(words)):
        return
    dispatchers: dict[tuple[str, str], set[str]] = {}
    for item in class_summaries(session, StandingsFilters()):
        # One that never ran there has no place.
        tallies = {tally.dispatcher for tally in item.overall.tallies if tally.is_placed}
        dispatchers.setdefault((item.hardware, item.family), set()).update(tallies)

    def facts(board: HardwareFamily) -> str:
        """Return `leaderboard, 140 runs in 12 stacks, with deepep`: the dispatchers that the search names."""
        own = sorted(dispatchers.get((board.hardware, board.family), ()))
        named = " and ".join(name for name in own if any(word in name.lower() for word in words))
        runs = f"{plural(board.runs, 'run')} in {plural(board.stacks, 'stack')}"
        return f"leaderboard, {runs}" + (f", with {named}" if named else "")

    places = [
        (
            f"{board.family} on {board.hardware}",
            f"/leaderboards/{board.hardware_slug}/{board.family_slug}",
            f"leaderboard {' '.join(dispatchers.get((board.hardware, board.family), ()))}",
            facts(board),
        )
        for board in sorted(hardware_and_families(session), key=lambda board: (-board.rankings, -board.runs))
    ]
    fitting = [place for place in places if all(word in f"{place[0]} {place[2]}".lower() for word in words)]
    for label, address, _, text in fitting[:_SHOWN_BOARDS]:
        yield PaletteHit(label, address, text)
    yield from _rest(len(fitting), _SHOWN_BOARDS, "All leaderboards", "/leaderboards")
    points = [
        reference.point
        for reference in references(session)
        if all(word in " ".join(map(shown, reference.point.contract.values())).lower() for word in words)
    ]
    if points:
        best = max((point.tflops_per_gpu or 0 for point in points), default=0)
        figure = f"best {best:,.0f} TFLOP/s/GPU" if best else ""
        text = " ".join(words)
        yield PaletteHit(f"Published figures for “{text}”", "/references?" + urlencode({"q": text}), figure)
    for contract in (point.contract for point in points if all(point.contract.get(name) for name in REQUIRED)):
        wanted = {name: contract[name] for name in ("model", *REQUIRED) if name in contract}
        label = f"Plan a layout of {contract['model']}"
        about = f"{contract['gpus']:,} × {contract['gpu']}, sequence {contract['seq_len']:,}"
        if all(word in f"{label} {about}".lower() for word in words):
            yield PaletteHit(label, plan_address(wanted), about)
            break


def _about(run: RunListItem, text: str) -> str:
    """Return step time, verdict or side of an experiment, and project; first the dispatcher if only that matches."""
    dispatcher, searched = run.dispatcher or "", text.lower().split()
    reason = f"dispatcher {dispatcher}" if dispatcher in searched and dispatcher not in run.name.lower() else ""
    metric = run.metrics.get("step_time_ms")
    is_judged = run.verdict_delta_pct is not None and run.verdict in ("regression", "improvement")
    words = change_text(run.verdict_delta_pct).figure if is_judged and run.verdict_delta_pct is not None else ""
    if run.experiment_id and run.purpose == "experiment":
        words = f"{'A' if run.side == 'baseline' else 'B'} of experiment #{run.experiment_id}"
    time = step_time(metric.value) if metric else run.status if run.status != "ready" else ""
    return " · ".join(filter(None, (reason, time, words, run.project)))


def _runs(session: Session, text: str) -> tuple[Sequence[RunListItem], int]:
    """Return the newest matching runs and how many match; the newest of all without words.

    Words that the index cannot find would scan all runs, so they find none.
    """
    if not text:
        return latest_runs(session, _SHOWN), 0
    if not any(len(word) >= FEWEST_LETTERS for word in text.split()) or _NUMBER.fullmatch(text):
        return (), 0
    page = find_runs(session, RunQuery(q=text, page_size=_READ_RUNS))
    return page.items, page.total


def _stacks(session: Session, runs: Sequence[RunListItem], text: str, read: str) -> Iterator[PaletteHit]:
    """Yield the newest stacks of the runs, and a link to the rest. `read`: what is counted."""
    ids = [run.id for run in runs]
    rows = session.execute(select_any(RunRow.id, RunRow.stack_key).where(col(RunRow.id).in_(ids))) if ids else ()
    keys: Mapping[int, str] = {row.id: row.stack_key for row in rows if row.stack_key}
    projects = {keys[run.id]: run.project for run in reversed(runs) if run.id in keys}
    newest = list(reversed(projects))[:_SHOWN_STACKS]
    names = names_of_stacks(session, newest)
    for key in newest:
        yield PaletteHit(names.get(key, "Unknown stack"), f"/history/{key}", projects[key])
    yield from _rest(len(projects), _SHOWN_STACKS, "All stacks", "/history?" + urlencode({"q": text}), read)


def _commits(runs: Sequence[RunListItem], words: Sequence[str]) -> Iterator[PaletteHit]:
    named = {run.commit: run for run in runs if run.commit and any(word in run.commit.lower() for word in words)}
    for commit, run in named.items():
        yield PaletteHit(short_commit(commit), "/runs?" + RunQuery(q=commit).query(), run.project)


def _projects(session: Session, words: Sequence[str]) -> Iterator[PaletteHit]:
    """Yield the settings of projects. The word `settings` fits all of them."""
    chosen = select_any(ProjectRow.slug).order_by(ProjectRow.slug)
    for word in words:
        if word not in "settings":
            chosen = chosen.where(col(ProjectRow.slug).contains(word, autoescape=True))
    if words:
        for slug in session.execute(chosen).scalars():
            yield PaletteHit(f"Settings of {slug}", f"/settings/projects/{quote(slug)}")
