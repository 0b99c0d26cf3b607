"""`/leaderboards/{hardware}/{family}/matrix` and `/graphs`: results that differ in one axis, and their API."""

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Annotated, Self
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy import and_, or_
from sqlmodel import Session, col
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.access.principal import Action
from app.domain.contract.values import GPU_MEMORY_GIB
from app.domain.numbers import ChangeText, change_text, gain_change, plural, step_time, time_saved
from app.domain.planning.memory import USABLE
from app.domain.ranking.experiments import DispatcherExperiment, ab_at_equal_knobs
from app.domain.ranking.matrix import (
    NO_GRAPHS,
    Contender,
    EmptyCell,
    EpMatrix,
    comparison_text,
    ep_matrices,
    graph_gains,
    graph_scope,
)
from app.domain.ranking.pairwise import PairwiseComparison
from app.domain.ranking.runs import slug
from app.domain.ranking.scaling import ScalingRuns, compare_configurations
from app.domain.ranking.standings import Board, Interval, listed
from app.domain.report.values import storable
from app.domain.rules.derive import derive
from app.domain.rules.rule import PublishedResult, RuleBook
from app.domain.run import Activity, Value
from app.domain.verdict.comparability import compare_contracts
from app.domain.verdict.comparison import compare_sides
from app.domain.verdict.step_time import StepTimeChange
from app.errors import NotFound
from app.leaderboards.api_models import Hardware, ModelFamily, Project
from app.leaderboards.picture import EpPicture, ep_picture
from app.leaderboards.words import GAIN_LEVEL, board_time, board_unit, label, routing_words
from app.storage.experiments import dispatcher_experiments, prior_of_sides
from app.storage.json_text import from_json
from app.storage.remembered import UntilRankedAgain
from app.storage.runs import activities, runs_by_id
from app.storage.stacks import full_records, names_of_titles
from app.storage.standings import Key, check_project
from app.storage.tables import ProjectRow, RunResultRow, RunRow, StandingRow, select_any
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, BoardSlug, ReadSession, Rules, api_router
from app.web.errors import documented
from app.web.identity import access_of
from app.web.lists import only_parameters
from app.web.templating import render

# --- The stacks of one hardware and family, with the results of their configurations as they were ranked.


@dataclass(frozen=True, slots=True)
class MatrixStack:
    """A stack with its configurations; `missing`: dispatchers that its container lacks.

    `may_plan`: the caller may plan experiments in its project.
    """

    key: str
    name: str
    project: str
    hardware: str
    family: str
    runs: tuple[ScalingRuns, ...]
    missing: tuple[str, ...]
    project_id: int
    generated: bool
    may_plan: bool = False


_stacks_of: UntilRankedAgain[tuple[MatrixStack, ...]] = UntilRankedAgain(32)


def stacks_of(session: Session, hardware: str, family: str, project: str = "") -> tuple[MatrixStack, ...]:
    """Return the stacks, newest first. Raises NotFound for a hardware and family without a stack."""
    check_project(session, project)
    question = (slug(hardware), slug(family), project)
    stacks = _stacks_of.get(session, question, lambda: _read_stacks(session, *question))
    if not stacks:
        raise NotFound("No stack of this hardware and model family has been ranked.")
    return stacks


def _read_stacks(session: Session, hardware_slug: str, family_slug: str, project: str) -> tuple[MatrixStack, ...]:
    document = col(StandingRow.document)
    chosen = (
        select_any(
            StandingRow.stack_key, StandingRow.title, StandingRow.hardware, StandingRow.family, ProjectRow.slug,
            StandingRow.project_id, ProjectRow.generated,
            document["scaling"].as_string().label("scaling"), document["missing"].label("missing"),
        )
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .where(
            col(StandingRow.hardware_slug) == hardware_slug,
            col(StandingRow.family_slug) == family_slug,
            *([col(ProjectRow.slug) == project] if project else []),
        )
        .order_by(col(StandingRow.newest_at).desc(), col(StandingRow.stack_key))
    )  # fmt: skip
    rows = session.execute(chosen).all()
    names = names_of_titles(session, (row.title for row in rows))
    return tuple(
        MatrixStack(
            key=row.stack_key,
            name=names[row.stack_key],
            project=row.slug,
            hardware=row.hardware,
            family=row.family,
            runs=tuple(from_json(ScalingRuns, item) for item in json.loads(row.scaling or "[]")),
            missing=tuple(item["dispatcher"] for item in row.missing or ()),
            project_id=row.project_id,
            generated=row.generated,
        )
        for row in rows
    )


# --- The matrix of dispatchers and EP degrees.


@dataclass(frozen=True, slots=True)
class EpPlan:
    """An EP degree to try. `from_run`: the run to change, the fastest of the matrix."""

    ep: int
    from_run: str


@dataclass(frozen=True)
class StackMatrix:
    stack: MatrixStack
    matrix: EpMatrix

    @property
    def title(self) -> str:
        return f"{routing_words(self.matrix.routing_mode)}, {label(self.matrix.semantic_class)}"

    @cached_property
    def picture(self) -> EpPicture | None:
        """Return the lines over EP degrees; None for a single degree."""
        return ep_picture(self.matrix, [plan.ep for plan in self.plans]) if len(self.matrix.eps) > 1 else None

    @cached_property
    def fastest(self) -> tuple[int, Contender]:
        """Return the fastest result with its EP degree; full results precede short ones."""
        return min(
            ((ep, cell) for ep, column in self.matrix.columns.items() for cell in column if cell.compared),
            key=lambda item: (item[1].directional, item[1].step_time_ms.value),
        )

    @cached_property
    def undecided(self) -> tuple[int, ...]:
        """Return the other EP degrees at which the dispatcher of the fastest result is not clearly slower."""
        runs = {item.config_key: item for item in self.stack.runs}
        ep, best = self.fastest

        def ties(cell: Contender) -> bool:
            pair = compare_configurations(runs[best.config_key], runs[cell.config_key])
            return pair is not None and pair.tie

        own = ((degree, self.matrix.cell(best.name, degree)) for degree in self.matrix.eps if degree != ep)
        return tuple(degree for degree, cell in own if cell is not None and ties(cell))

    @cached_property
    def gaps(self) -> tuple[EmptyCell, ...]:
        """Return the empty cells that the caller can plan."""
        return tuple(gap for gap in self.matrix.empty if gap.why == "not_run" and self.stack.may_plan)

    @cached_property
    def plans(self) -> tuple[EpPlan, ...]:
        """Return the next EP degrees to try: those beyond an end of the sweep, if its fastest result is there."""
        if not self.stack.may_plan:
            return ()
        eps = self.matrix.eps
        ep, fastest = self.fastest
        contract = next(item.known for item in self.stack.runs if item.config_key == fastest.config_key)
        beyond = [ep * 2] if ep == eps[-1] else []
        beyond += [ep // 2] if ep == eps[0] else []
        return tuple(EpPlan(degree, fastest.runs[-1]) for degree in beyond if _is_feasible(degree, contract))


def _is_feasible(ep: int, contract: Mapping[str, Value]) -> bool:
    """Return whether the GPUs and the experts divide by it; what a run does not state forbids nothing."""
    gpus, experts, pp = contract.get("gpus"), contract.get("num_experts"), contract.get("pp")
    ranks = ep * (pp if isinstance(pp, int) else 1)
    divides = all(number % by == 0 for number, by in ((gpus, ranks), (experts, ep)) if isinstance(number, int) and by)
    return ep > 1 and divides


class MatrixPage:
    """The data of the template. `experiments`: by stack, whose figures are those of their pairs at equal knobs."""

    def __init__(
        self, stacks: Sequence[MatrixStack], experiments: Mapping[Key, Sequence[DispatcherExperiment]] | None = None
    ) -> None:
        self.stacks = tuple(stacks)
        self.hardware, self.family = stacks[0].hardware, stacks[0].family
        self.address = f"/leaderboards/{slug(self.hardware)}/{slug(self.family)}"
        self.query = urlencode({"hardware": self.hardware, "family": self.family})
        matrices = [
            StackMatrix(stack, _with_experiments(matrix, (experiments or {}).get((stack.project_id, stack.key), ())))
            for stack in stacks
            for matrix in ep_matrices(stack.runs, stack.missing)
        ]
        self.matrices = tuple(item for item in matrices if not item.matrix.is_single)
        self.singles = tuple(item for item in matrices if item.matrix.is_single)

    @property
    def plan(self) -> EpPlan | EmptyCell | None:
        """Return what to measure next: an empty cell, else an EP degree beyond the measured ones."""
        gaps = (gap for item in self.matrices for gap in item.gaps)
        plans = (plan for item in (*self.matrices, *self.singles) for plan in item.plans)
        return next(chain[EpPlan | EmptyCell](gaps, plans), None)

    @property
    def best_apart(self) -> str:
        """Return `hybridep at EP32, alltoall at EP16` if the fastest results of dispatchers have different degrees.

        Empty for several matrices: the leaderboard has a ranking for each.
        """
        if len(self.matrices) != 1:
            return ""
        matrix = self.matrices[0].matrix
        best: dict[str, tuple[float, int]] = {}
        for ep, column in matrix.columns.items():
            for cell in column:
                best[cell.name] = min(best.get(cell.name, (math.inf, 0)), (cell.step_time_ms.value, ep))
        degrees = [(time, f"{name} at EP{ep}") for name, (time, ep) in best.items()]
        return ", ".join(text for _, text in sorted(degrees)) if len({ep for _, ep in best.values()}) > 1 else ""

    @property
    def shows_degrees(self) -> bool:
        """Return whether a stack was measured at two EP degrees; a leaderboard shows everything else."""
        return any(len(item.matrix.eps) > 1 for item in self.matrices)

    @property
    def fastest_run(self) -> str:
        """Return the newest run of the fastest result of the only matrix; empty for several."""
        return self.matrices[0].fastest[1].runs[-1] if len(self.matrices) == 1 else ""

    @property
    def answer(self) -> str:
        if not self.matrices:
            return "No stack has runs of two dispatchers or two EP degrees yet."
        empty = sum(cell.why == "not_run" for item in self.matrices for cell in item.matrix.empty)
        first = self._fastest if len(self.matrices) == 1 else self._largest_gain
        return f"{first} {plural(empty, 'cell is', 'cells are')} empty." if empty else first

    @property
    def _fastest(self) -> str:
        """Return `hybridep is fastest at EP32 (6.992 s), undecided against EP16; 15.3 % faster than alltoall there.`"""
        ep, cell = self.matrices[0].fastest
        pair = cell.at_equal_knobs
        near = [f"EP{degree}" for degree in self.matrices[0].undecided]
        near += [pair.second] if pair and pair.tie and pair.outcome != "equal" else []
        text = f"{cell.name} is fastest at EP{ep} ({board_time(cell.step_time_ms.value)})"
        text += f", undecided against {listed(near)}" if near else ""
        if pair and pair.outcome == "equal":
            text += f", equal to {pair.second}"
        elif pair and not pair.tie:
            where = "at equal knobs" if cell.equal else "there"
            text += f"; {gain_change(pair.gain_pct).than} {pair.second} {where}"
        return f"{text}."

    @property
    def _largest_gain(self) -> str:
        pairs = [
            (ep, cell.at_equal_knobs)
            for item in self.matrices
            for ep, column in item.matrix.columns.items()
            for cell in column
            if cell.at_equal_knobs is not None
        ]
        decided = [(ep, pair) for ep, pair in pairs if not pair.tie]
        if not decided:
            return (
                "No dispatcher is clearly faster at equal knobs."
                if pairs
                else "No two dispatchers ran at equal knobs yet."
            )
        ep, pair = max(decided, key=lambda item: abs(item[1].gain_pct))
        return f"EP{ep}: {comparison_text(pair)} at equal knobs."


def matrix_page(session: Session, stacks: Sequence[MatrixStack]) -> MatrixPage:
    return MatrixPage(stacks, dispatcher_experiments(session, [stack.key for stack in stacks]))


def _with_experiments(matrix: EpMatrix, experiments: Sequence[DispatcherExperiment]) -> EpMatrix:
    def measured(cell: Contender) -> Contender:
        pair = cell.at_equal_knobs
        ab = ab_at_equal_knobs(experiments, pair, cell.equal_runs) if pair else None
        return replace(cell, at_equal_knobs=ab[1]) if ab else cell

    return replace(matrix, columns={ep: tuple(map(measured, cells)) for ep, cells in matrix.columns.items()})


def ep_note(board: Board) -> str:
    """Return `hybridep at EP32, alltoall at EP16`; empty for a ranking at one EP degree."""
    first = board.entries[0]
    other = board.entry(first.gain.over) if first.gain else None
    if other is None or None in (first.ep, other.ep) or first.ep == other.ep:
        return ""
    return f"{first.dispatcher} at EP{first.ep}, {other.dispatcher} at EP{other.ep}"


_TINTS = (2.0, 10.0, 25.0)
"""Gains in percent from which a cell has the next stronger tint."""


def tint_of(cell: Contender) -> int:
    """Return the strength of a cell's tint by its best result: -3 (slower than the reference) to 3, 0 for a tie."""
    pair = cell.best_against_best
    if pair is None or pair.tie:
        return 0
    strength = sum(abs(pair.gain_pct) >= least for least in _TINTS)
    return strength if pair.gain_pct > 0 else -strength


def interval_text(value: Interval) -> str:
    """Format `31.21 s to 31.63 s`, the 95 % interval over launches, in the unit of the value."""
    if value.low is None or value.high is None:
        return ""
    unit = board_unit((value.value,))
    return f"{step_time(value.low, unit)} to {step_time(value.high, unit)}"


# --- The ledger of CUDA graphs: which scopes fit, what they cost and gain, and whether they were captured.


@dataclass(frozen=True, slots=True)
class ScopeRuns:
    """All runs of a scope. `fitted`: those that made steps without running out of memory. `captured`: runs whose log
    shows the graphs; `capture_failed`: runs that ended with a failure during a capture; `not_shown`: runs whose log
    shows no capture, which proves nothing. `peak_gib`: the median, of runs that may differ in more than graphs;
    `peaks_gib`: the lowest and the highest; both without runs that ran out of memory, of which `out_of_memory_gib` is
    the highest. `plan_from`: the newest run that fitted."""

    scope: str
    runs: tuple[int, ...]
    fitted: int
    out_of_memory: int
    capture_failed: int
    not_shown: int
    peak_gib: float | None
    peaks_gib: tuple[float, float] | None = None
    out_of_memory_gib: float | None = None
    captured: int = 0
    plan_from: int | None = None

    @property
    def fits(self) -> tuple[tuple[int, str], ...]:
        """Return how many runs fitted, ran out of memory and made no step; together all runs."""
        rest = len(self.runs) - self.fitted - self.out_of_memory
        return ((self.fitted, "fit"), (self.out_of_memory, "out of memory"), (rest, "without steps"))

    @property
    def captures(self) -> tuple[tuple[int, str], ...]:
        """Return how many runs captured, failed to, do not show it, and do not state it; together all runs."""
        rest = len(self.runs) - self.captured - self.capture_failed - self.not_shown
        return (
            (self.captured, "captured"), (self.capture_failed, "failed"), (self.not_shown, "not in the log"),
            (rest, "not stated"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gained:
    """What a scope gained against the same configuration without graphs."""

    stack: MatrixStack
    contender: Contender
    comparison: PairwiseComparison
    more_gib: float | None

    @property
    def text(self) -> str:
        return comparison_text(self.comparison)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    scope: ScopeRuns
    gains: tuple[Gained, ...]


@dataclass(frozen=True, slots=True)
class PublishedGraphs:
    """A published result on graphs of this model and GPU, from the evidence of a rule."""

    rule: str
    evidence: PublishedResult
    source: str
    url: str


@dataclass(frozen=True, slots=True)
class PublishedGain:
    """A published gain in step time. `length`: percent of the drawing, from its middle."""

    result: PublishedGraphs
    gain: str
    length: float
    is_faster: bool


@dataclass(frozen=True, slots=True)
class NearestGraphRuns:
    """The run without graphs and the run with graphs that differ least. `fields`: further differences, with `code`.

    `time`: the test of the compare page, with graphs against without; None where that compares no speeds.
    """

    without: int
    with_graphs: int
    fields: tuple[str, ...]
    time: StepTimeChange | None

    @property
    def change(self) -> ChangeText | None:
        time = self.time
        return change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct) if time else None

    @property
    def outcome(self) -> str:
        """Return the class of the bar and the figure; empty while the pair decides nothing."""
        decision = self.time.decision if self.time else ""
        return decision if decision in ("improvement", "regression") else ""


class LedgerPage:
    """The data of the template."""

    def __init__(self, session: Session, stacks: Sequence[MatrixStack], book: RuleBook) -> None:
        self.stacks = tuple(stacks)
        self.hardware, self.family = stacks[0].hardware, stacks[0].family
        self.address = f"/leaderboards/{slug(self.hardware)}/{slug(self.family)}"
        self.query = urlencode({"hardware": self.hardware, "family": self.family})
        self._may_plan = all(stack.may_plan for stack in stacks)
        self.shows_degrees = MatrixPage(stacks).shows_degrees
        seen = _graph_runs(session, stacks)
        peaks = {item.id: item.peak for item in seen if item.peak is not None}
        gains = list(_gains(stacks, peaks))
        scopes = sorted({item.scope for item in seen}, key=lambda scope: (scope != NO_GRAPHS, scope))
        self.rows = tuple(
            LedgerRow(_scope(name, [item for item in seen if item.scope == name]),
                      tuple(gain for gain in gains if gain.contender.name == name))
            for name in scopes
        )  # fmt: skip
        self.published = tuple(_published(book, self.family, self.hardware))
        self.elsewhere = () if self.published or gains else tuple(_published_elsewhere(book, self.hardware))
        self.near = None if gains else _nearest_pair(session, [item for item in seen if item.steps and not item.oom])
        most = max((row.scope.peaks_gib[1] for row in self.rows if row.scope.peaks_gib), default=0.0)
        nominal = GPU_MEMORY_GIB.get(self.hardware, 0)
        self.usable_gib = USABLE * nominal
        """The limit of the planner; 0 for an unknown GPU."""
        self.memory_gib = max(most, nominal)
        """The length of the bars: the memory of the GPU, or of an unknown one the highest peak."""

    @property
    def plan_from(self) -> int | None:
        """Return the newest run of a scope that nothing was compared with, or of those without graphs if no run uses
        any; None when all have an answer.

        None also for callers who may not plan experiments for all of the runs.
        """
        if not self._may_plan:
            return None
        open_scopes = [
            row.scope for row in self.rows if (row.scope.scope != NO_GRAPHS or self.tries_graphs) and not row.gains
        ]
        return next((scope.plan_from for scope in open_scopes if scope.plan_from), None)

    @property
    def shows_captures(self) -> bool:
        """Return whether a log says anything about a capture."""
        return any(row.scope.captured or row.scope.capture_failed for row in self.rows)

    @property
    def published_bars(self) -> tuple[PublishedGain, ...]:
        """Return a bar for each published result with a gain, the largest first; of others where none is known."""
        shown = self.published or self.elsewhere
        rated = [(time_saved(item.evidence.gain[-1]), item) for item in shown if item.evidence.gain]
        ordered = sorted(rated, key=lambda pair: -pair[0])
        return tuple(
            PublishedGain(item, change_text(-saved).figure, _HALF * abs(saved) / self._widest, is_faster=saved > 0)
            for saved, item in ordered
        )

    @property
    def _is_same_gpu(self) -> bool:
        gpu = derive({"gpu": self.hardware}).get("gpu")
        return all(item.evidence.at.get("gpu") == gpu for item in self.elsewhere)

    @property
    def near_bar(self) -> tuple[float, bool]:
        """Return the length of the bar of the nearest pair, as of a published gain, and whether graphs are faster."""
        return _HALF * abs(self._near_saved) / self._widest, self._near_saved > 0

    @property
    def near_ends(self) -> tuple[float, float]:
        """Return the ends of the interval of the nearest pair, in percent of the width of its drawing."""
        slowest, fastest = (50 - _HALF * saved / self._widest for saved in self._near_interval)
        return fastest, slowest

    @property
    def _widest(self) -> float:
        """Return the largest gain or loss that is drawn, in percent."""
        shown = self.published or self.elsewhere
        published = [abs(time_saved(item.evidence.gain[-1])) for item in shown if item.evidence.gain]
        return max(*published, *map(abs, (self._near_saved, *self._near_interval))) or 1.0

    @property
    def _near_saved(self) -> float:
        return -self.near.time.delta_pct if self.near and self.near.time else 0.0

    @property
    def _near_interval(self) -> tuple[float, float]:
        time = self.near.time if self.near else None
        return (-time.ci_high_pct, -time.ci_low_pct) if time else (0.0, 0.0)

    @property
    def _unmeasured(self) -> str:
        """Return why nothing here says whether graphs pay."""
        runs = sum(len(row.scope.runs) for row in self.rows)
        with_graphs = [row.scope.scope != NO_GRAPHS for row in self.rows]
        if not runs:
            return "No run states its CUDA graphs."
        if all(with_graphs):
            return f"All runs use CUDA graphs ({plural(runs, 'run')}), so nothing shows the gain."
        if not any(with_graphs):
            return f"No CUDA graphs in {plural(runs, 'run')}, so nothing shows their gain."
        return "No two runs differ in CUDA graphs alone."

    @property
    def starts_from(self) -> int | None:
        """Return the newest run that fitted, from which a comparison starts where all runs have one kind of scope."""
        has_graphs = {row.scope.scope != NO_GRAPHS for row in self.rows}
        runs = [row.scope.plan_from for row in self.rows if row.scope.plan_from]
        return max(runs, default=None) if len(has_graphs) == 1 else None

    @property
    def free_gib(self) -> float | None:
        """Return the usable memory that the highest peak leaves free; None if the GPU or all peaks are unknown."""
        peaks = [row.scope.peaks_gib[1] for row in self.rows if row.scope.peaks_gib]
        return max(0.0, self.usable_gib - max(peaks)) if self.usable_gib and peaks else None

    @property
    def tries_graphs(self) -> bool:
        """Return whether the experiment to plan turns graphs on: so far no run uses any."""
        return all(row.scope.scope == NO_GRAPHS for row in self.rows)

    @property
    def answer(self) -> str:
        """Return whether graphs pay: by own runs, else as published."""
        gains = [gain for row in self.rows for gain in row.gains]
        faster = [gain.text for gain in gains if not gain.comparison.tie]
        failed = sum(row.scope.capture_failed for row in self.rows)
        if faster:
            parts = [f"{faster[0]}."]
        elif gains:
            parts = ["CUDA graphs make no measurable difference here."]
        else:
            parts = [] if self.elsewhere else [self._unmeasured]
            figures = [bar.gain for bar in self.published_bars]
            of = f"Published for other {'models' if self._is_same_gpu else 'GPUs'}" if self.elsewhere else "Published"
            parts = parts or ["No gain measured here."]
            parts += [f"{of}: {' to '.join(dict.fromkeys((figures[-1], figures[0])))}."] if figures else []
        parts += [f"{plural(failed, 'run')} failed during the capture."] if failed else []
        return " ".join(parts)


_HALF = 50.0
"""Percent of the width on each side of zero."""


_CAPTURE = re.compile("when stream is captur|stream capture|graph capture|capture_begin|capture_end", re.IGNORECASE)
"""Of CUDA's and PyTorch's errors during a capture."""


@dataclass(frozen=True, slots=True)
class _GraphRun:
    id: int
    scope: str
    steps: int
    oom: bool
    capture_failed: bool
    shown: bool | None
    peak: float | None


def _graph_runs(session: Session, stacks: Sequence[MatrixStack]) -> list[_GraphRun]:
    """Read the runs of the stacks, and those of the same models and GPUs: a scope that never fits is never ranked."""
    contracts = [item.known for stack in stacks for item in stack.runs]
    models, gpus = ({str(values[name]) for values in contracts if values.get(name)} for name in ("model", "gpu"))
    alike = and_(col(RunRow.model).in_(sorted(models)), col(RunRow.gpu).in_(sorted(gpus)))
    of_projects = col(ProjectRow.slug).in_(sorted({stack.project for stack in stacks}))
    contract = col(RunResultRow.contract)
    chosen = (
        select_any(
            RunRow.id, RunRow.peak_memory_gib, contract["graph_impl"].label("impl"),
            contract["graph_modules"].label("modules"), RunResultRow.health, RunResultRow.failures,
            RunResultRow.activity,
        )
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(
            or_(col(RunRow.stack_key).in_([stack.key for stack in stacks]), alike),
            of_projects,
            col(RunRow.status).in_(("ready", "failed")),
        )
        .order_by(col(RunRow.id))
    )  # fmt: skip
    attempts = []
    for row in session.execute(chosen):
        scope = graph_scope((row.impl or {}).get("value"), (row.modules or {}).get("value"))
        if scope:
            out_of_memory = any(item.get("kind") == "out_of_memory" for item in row.failures or ())
            steps = (row.health or {}).get("iterations") or 0
            failed = any(_CAPTURE.search(json.dumps(item)) for item in row.failures or ())
            shown = _is_shown(activities(row.activity).get("graph_impl"))
            attempts.append(_GraphRun(row.id, scope, steps, out_of_memory, failed, shown, row.peak_memory_gib))
    return attempts


def _is_shown(activity: Activity | None) -> bool | None:
    """None if the log cannot show it: no graphs were requested, or no line would mention them."""
    if activity is None or activity.requested is None or activity.requested.value in (None, NO_GRAPHS):
        return None
    return activity.active is not None and activity.agrees is not False


def _scope(name: str, runs: Sequence[_GraphRun]) -> ScopeRuns:
    peaks = [run.peak for run in runs if run.peak is not None and not run.oom]
    return ScopeRuns(
        scope=name,
        runs=tuple(run.id for run in runs),
        fitted=sum(run.steps > 0 and not run.oom for run in runs),
        out_of_memory=sum(run.oom for run in runs),
        capture_failed=sum(run.capture_failed for run in runs),
        not_shown=sum(run.shown is False and not run.capture_failed for run in runs),
        peak_gib=statistics.median(peaks) if peaks else None,
        peaks_gib=(min(peaks), max(peaks)) if peaks else None,
        out_of_memory_gib=max((run.peak for run in runs if run.peak is not None and run.oom), default=None),
        captured=sum(run.shown is True and not run.capture_failed for run in runs),
        plan_from=max((run.id for run in runs if run.steps > 0 and not run.oom), default=None),
    )


_NEIGHBOURS = 12
"""Runs with graphs, the nearest in number, that a run without graphs is compared with."""
_MOST_WITHOUT = 3


def _nearest_pair(session: Session, runs: Sequence[_GraphRun]) -> NearestGraphRuns | None:
    """Return the runs with and without graphs that differ in the fewest other fields; None without both."""
    without = [run.id for run in runs if run.scope == NO_GRAPHS][-_MOST_WITHOUT:]
    graphed = [run.id for run in runs if run.scope != NO_GRAPHS]
    pairs = [(a, b) for a in without for b in sorted(graphed, key=lambda run: abs(run - a))[:_NEIGHBOURS]]
    records = full_records(session, sorted({run for pair in pairs for run in pair}))
    near = []
    for a, b in pairs:
        if str(a) in records and str(b) in records:
            without_graphs, with_graphs = records[str(a)], records[str(b)]
            comparability = compare_contracts(without_graphs, with_graphs)
            fields = [item.field for item in (*comparability.stack, *comparability.knobs)]
            others = [name for name in fields if not name.startswith("graph_")]
            near.append((a, b, (*others, "code") if comparability.other_code else tuple(others)))
    if not near:
        return None
    a, b, also = min(near, key=lambda pair: len(pair[2]))
    measured = compare_sides([records[str(a)]], [records[str(b)]], prior_of_sides(session, (a,), (b,), b)).measured
    return NearestGraphRuns(a, b, also, measured.step_time if measured else None)


def _gains(stacks: Sequence[MatrixStack], peaks: Mapping[int, float]) -> Iterable[Gained]:
    for project in dict.fromkeys(stack.project for stack in stacks):
        own = [stack for stack in stacks if stack.project == project]
        stack_of = {item.config_key: stack for stack in own for item in stack.runs}
        for none, *scopes in graph_gains(item for stack in own for item in stack.runs):
            for scope in scopes:
                if scope.at_equal_knobs is not None:
                    more = _more_gib(scope, none, peaks)
                    yield Gained(stack_of[scope.config_key], scope, scope.at_equal_knobs, more)


def _more_gib(scope: Contender, none: Contender, peaks: Mapping[int, float]) -> float | None:
    """Peak memory against no graphs, by the runs that are compared."""
    sides = [[peaks[int(run)] for run in side.runs if int(run) in peaks] for side in (scope, none)]
    return statistics.median(sides[0]) - statistics.median(sides[1]) if all(sides) else None


def _published(book: RuleBook, family: str, hardware: str) -> Iterable[PublishedGraphs]:
    """Yield the results of this model and GPU."""
    about = derive({"model": family, "gpu": hardware})
    return (
        item
        for item in _published_graphs(book)
        if item.evidence.at and all(item.evidence.at.get(name) == about.get(name) for name in ("family", "gpu"))
    )


def _published_elsewhere(book: RuleBook, hardware: str) -> list[PublishedGraphs]:
    """Return all gains and losses of other models on this GPU; without one those on all GPUs."""
    gpu = derive({"gpu": hardware}).get("gpu")
    rated = [item for item in _published_graphs(book) if item.evidence.gain]
    return [item for item in rated if item.evidence.at.get("gpu") == gpu] or rated


def _published_graphs(book: RuleBook) -> Iterable[PublishedGraphs]:
    """Yield each result on graphs once, even if several rules cite it."""
    seen = set()
    for rule in book.rules.values():
        for evidence in rule.effect.evidence:
            of_graphs = rule.id.startswith("cg-") or rule.id == "val-graph-replay"
            key = (evidence.source, evidence.setting)
            if of_graphs and key not in seen:
                seen.add(key)
                source = book.sources[evidence.source]
                yield PublishedGraphs(rule.id, evidence, source.title, source.url or "")


# --- Pages.

router = APIRouter(include_in_schema=False)
ProjectName = Annotated[str, Query(max_length=100)]


def get_stacks(
    request: Request, session: ReadSession, hardware: BoardSlug, family: BoardSlug, project: ProjectName = ""
) -> tuple[MatrixStack, ...]:
    may = access_of(request).may
    stacks = stacks_of(session, hardware, family, project)
    return tuple(replace(stack, may_plan=may(Action.CONTRIBUTE, stack.project_id)) for stack in stacks)


Stacks = Annotated[tuple[MatrixStack, ...], Depends(get_stacks)]


@router.get("/leaderboards/{hardware}/{family}/matrix")
@requires(Action.READ)
def show_matrix(request: Request, session: ReadSession, stacks: Stacks) -> Response:
    """Show the matrices; with one EP degree the leaderboard has all of them. `memory`: of the newest run of a cell."""
    page = matrix_page(session, stacks)
    if not page.shows_degrees:
        return RedirectResponse(page.address + (f"?{request.url.query}" if request.url.query else ""), 303)
    columns = [column for item in page.matrices for column in item.matrix.columns.values()]
    newest = runs_by_id(session, [int(cell.runs[-1]) for column in columns for cell in column])
    return render(
        request,
        "leaderboards/matrix.html",
        p=page,
        memory={str(run.id): run.metrics.get("peak_memory_gib") for run in newest},
        board_time=board_time,
        interval_text=interval_text,
        tint_of=tint_of,
        gain_level=GAIN_LEVEL,
    )


@router.get("/leaderboards/{hardware}/{family}/graphs")
@requires(Action.READ)
def show_graphs(request: Request, session: ReadSession, rules: Rules, stacks: Stacks) -> HTMLResponse:
    return render(request, "leaderboards/graphs.html", p=LedgerPage(session, stacks, rules.book))


# --- The same as JSON.


class PairwiseComparisonOut(ApiValue):
    over: str = Field(validation_alias="second")
    gain_pct: float
    low_pct: float | None
    high_pct: float | None
    tie: bool


class CellOut(ApiValue):
    """`runs`: of the fastest configuration; `runs_in_all`: of every configuration in the cell."""

    dispatcher: str
    ep: int
    runs: list[int]
    runs_in_all: int
    step_time_ms: float
    low_ms: float | None
    high_ms: float | None
    directional: bool
    compared: bool
    at_equal_knobs: PairwiseComparisonOut | None
    best_against_best: PairwiseComparisonOut | None


class EmptyOut(ApiValue):
    dispatcher: str
    ep: int
    why: str
    from_run: int
    suggestion: str


class EpMatrixOut(ApiValue):
    stack_key: str
    name: str
    project: str
    routing_mode: str
    semantic_class: str
    dispatchers: list[str]
    eps: list[int]
    cells: list[CellOut]
    empty: list[EmptyOut]
    at_equal_knobs: str
    best_against_best: str


class MatrixOut(BaseModel):
    answer: str
    matrices: list[EpMatrixOut]


class GraphGainOut(ApiValue):
    stack_key: str
    runs: list[int]
    more_gib: float | None
    gain_pct: float
    low_pct: float | None
    high_pct: float | None
    tie: bool


class GraphScopeOut(ApiValue):
    scope: str
    runs: list[int]
    fitted: int
    out_of_memory: int
    capture_failed: int
    not_shown: int
    peak_gib: float | None
    gains: list[GraphGainOut]


class PublishedGraphsOut(BaseModel):
    rule: str
    text: str
    setting: str
    source: str
    step_time_saved_pct: float | None = Field(description="Negative is slower; null if unknown.")

    @classmethod
    def of(cls, item: PublishedGraphs) -> Self:
        evidence = item.evidence
        saved = time_saved(evidence.gain[-1]) if evidence.gain else None
        return cls(
            rule=item.rule, text=evidence.text, setting=evidence.setting, source=item.source, step_time_saved_pct=saved
        )


class GraphsOut(BaseModel):
    answer: str
    scopes: list[GraphScopeOut]
    published: list[PublishedGraphsOut]
    published_elsewhere: list[PublishedGraphsOut] = Field(
        description="Of other models on this GPU, else on any GPU, where nothing is published or measured for this one."
    )


api = api_router("leaderboards")
_NAMES = [only_parameters("hardware", "family", "project")]


@api.get("/leaderboards/matrix", dependencies=_NAMES, responses=documented(404, 422))
@requires(Action.READ)
def read_matrix(session: ReadSession, hardware: Hardware, family: ModelFamily, project: Project = "") -> MatrixOut:
    """Return dispatchers against EP degrees, with the empty cells as suggestions."""
    page = matrix_page(session, stacks_of(session, hardware, family, project))
    return MatrixOut(answer=page.answer, matrices=[_matrix_out(item) for item in page.matrices])


@api.get("/leaderboards/graphs", dependencies=_NAMES, responses=documented(404, 422))
@requires(Action.READ)
def read_graphs(
    session: ReadSession, rules: Rules, hardware: Hardware, family: ModelFamily, project: Project = ""
) -> JSONResponse:
    """Return the ledger of CUDA graphs: by scope, whether it fits, its memory, its gain and failed captures."""
    page = LedgerPage(session, stacks_of(session, hardware, family, project), rules.book)
    answer = GraphsOut(
        answer=page.answer,
        scopes=[_scope_out(row) for row in page.rows],
        published=[PublishedGraphsOut.of(item) for item in page.published],
        published_elsewhere=[PublishedGraphsOut.of(item) for item in page.elsewhere],
    )
    return JSONResponse(storable(answer.model_dump()))


def _matrix_out(item: StackMatrix) -> EpMatrixOut:
    matrix = item.matrix
    return EpMatrixOut.from_values(
        item.stack,
        matrix,
        stack_key=item.stack.key,
        cells=[
            CellOut.from_values(
                cell,
                dispatcher=cell.name,
                ep=ep,
                runs_in_all=cell.all_runs,
                step_time_ms=cell.step_time_ms.value,
                low_ms=cell.step_time_ms.low,
                high_ms=cell.step_time_ms.high,
            )
            for ep, column in matrix.columns.items()
            for cell in column
        ],
        empty=[EmptyOut.from_values(cell, suggestion=cell.sentence) for cell in matrix.empty],
        at_equal_knobs=matrix.sentence,
        best_against_best=matrix.best_sentence,
    )


def _scope_out(row: LedgerRow) -> GraphScopeOut:
    scope = row.scope
    return GraphScopeOut.from_values(
        scope,
        gains=[
            GraphGainOut.from_values(gain, gain.comparison, stack_key=gain.stack.key, runs=gain.contender.runs)
            for gain in row.gains
        ],
    )
