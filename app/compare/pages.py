"""The page of a comparison: HTTP in, template out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Annotated, Any
from urllib.parse import urlencode

import numpy as np
from fastapi import APIRouter, Query, Request
from sqlmodel import Session, col
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.compare import charts, views
from app.compare.queries import (
    MOST_RUNS,
    ComparedRun,
    ComparedSides,
    Side,
    SideSelection,
    in_order,
    offered_runs,
    pair_suggestions,
    read_columns,
    series_of,
)
from app.compare.views import AlignedTable, Overlay, TimerTable, aligned_table, overlay, timer_table
from app.domain.access.principal import Action
from app.domain.naming import comparison_title
from app.domain.numbers import ChangeText, change_text, percent, plural, step_time
from app.domain.rules.engine import Suggestion
from app.domain.text import shortened
from app.domain.verdict.comparability import compare_contracts
from app.domain.verdict.comparison import bootstrap_interval
from app.domain.verdict.comparison_words import KINDS
from app.domain.verdict.decide import TOO_NOISY
from app.domain.verdict.evidence import value_text
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import shows_no_difference
from app.domain.verdict.words import differences
from app.errors import InvalidQuery, NotFound, NotReady, ThreewallsError
from app.storage.experiments import ExperimentFilter, ExperimentItem, experiments_of_candidates, find_experiments
from app.storage.profiles import usable_profile
from app.storage.projects import ProjectName
from app.storage.runs import RunListItem
from app.storage.stacks import full_records
from app.storage.tables import RunRow, not_indexed, select_any
from app.storage.upgrade_changes import judged_levels
from app.storage.verdicts import verdicts_of
from app.web.access_rule import requires
from app.web.charts import grouped_series, off_scale_note
from app.web.dependencies import ReadSession, Rules
from app.web.lists import invalid_filter
from app.web.pictures import Colour, DotRow, Kind, Picture, Theme, picture_response, rows_body
from app.web.templating import render

# --- The data of a comparison's page. A part is computed when a template first needs it.


@dataclass(frozen=True, slots=True)
class SideCard:
    """One side in the head of the page. `left_out`: by run number, why a run is not used."""

    side: Side
    letter: str
    role: str
    runs: tuple[ComparedRun, ...]
    left_out: Mapping[int, str]
    no_reruns: tuple[str, ...]


class ComparePage:
    """The data of the page, each part read on first use and cached for the request."""

    def __init__(self, session: Session, selection: SideSelection) -> None:
        self._session = session
        self.selection = selection
        self.comparison = ComparedSides(session, selection)

    @property
    def kind(self) -> str:
        sides = self.comparison.sides
        if sides.comparability.two_jobs and sides.kind in ("contrast", "matched_ab"):
            return "two jobs"
        if sides.kind == "contrast" and sides.attributed_to is None:
            return "several differences"
        if sides.kind == "verdict" and sides.comparability.provisional:
            return "no known difference"
        return f"{KINDS[sides.kind]}{', other code' if self.other_code else ''}"

    @property
    def other_code(self) -> bool:
        """Return whether the code of a matched A/B differs too, so that its result is not about the knob alone."""
        sides = self.comparison.sides
        return sides.kind == "matched_ab" and bool(sides.comparability.other_code)

    @property
    def project(self) -> ProjectName | None:
        """Return the project of all compared runs; None for several."""
        projects = {ProjectName(run.detail.project_id, run.detail.project) for run in self.comparison.runs}
        return projects.pop() if len(projects) == 1 else None

    @property
    def answer(self) -> str:
        return self.comparison.text.lead

    @cached_property
    def profiles(self) -> tuple[int, int] | None:
        """Return the profiles of the newest run of each side; None unless both have one that counts."""
        newest = (side[-1] for side in (self.comparison.a, self.comparison.b))
        a, b = (usable_profile(self._session, run.id, run.detail.contract) for run in newest)
        return None if a is None or b is None else (a.id, b.id)

    @property
    def is_ranked(self) -> bool:
        return not self.comparison.sides.no_winner

    @cached_property
    def bootstrap(self) -> ChangeText | None:
        """Return the bootstrap interval of the change of step time, as a second opinion on the test."""
        measured = self.comparison.sides.measured
        if measured is None or measured.step_time is None:
            return None
        before, after = (
            [self.comparison.windows[int(run)] for run in side if run.isdigit()]
            for side in (measured.baseline_used, measured.candidates_used)
        )
        ends = bootstrap_interval(before, after, measured.step_time.interval_p)
        return None if ends is None else change_text(measured.step_time.delta_pct, *ends)

    @cached_property
    def fair(self) -> "tuple[RunPair, ...]":
        """Return the nearest comparisons that can be ranked; empty where the configurations of this one can.

        Also empty for sets of runs, because two runs do not answer what was asked about many.
        """
        is_of_sets = len(self.selection.a) > 1 or len(self.selection.b) > 1
        is_fair = self.is_ranked or self.comparison.sides.kind in _FAIR
        return () if is_fair or is_of_sets else fair_pairs(self._session, self.comparison)

    @property
    def is_measured_contrast(self) -> bool:
        """Return whether the change is measured although nothing is ranked, as before and after an upgrade."""
        sides = self.comparison.sides
        return sides.comparability.kind == "contrast" and sides.measured is not None

    @cached_property
    def deciding(self) -> tuple[str, str] | None:
        """Return label and address of the step that decides an inconclusive comparison; None for another.

        The experiment of both runs, else a new one for the knob that differs, else one more run of b, unless only
        the launch differs.
        """
        sides, a, b = self.comparison.sides, self.comparison.newest_a, self.comparison.newest_b
        if self.comparison.text.needs in ("", TOO_NOISY):
            return None
        experiment = _shared(experiments_of_candidates(self._session, [b.id]).get(b.id), a.id)
        if experiment is not None:
            return f"Open experiment #{experiment.id}", f"/experiments/{experiment.id}"
        if sides.comparability.kind == "matched_ab" and sides.comparability.is_clean:
            knob = sides.comparability.knobs[0]
            change = urlencode({"field": knob.field, "value": value_text(knob.b)})
            return "Plan an experiment", f"/runs/{a.id}/experiments/new?{change}"
        if not b.detail.commit or (sides.kind == "verdict" and sides.is_of_one_commit):
            return None
        return f"Rerun #{b.id}", f"/runs/{b.id}?tab=why#rerun"

    @property
    def noisy_stack(self) -> str:
        """Return the key of the stack whose noise is all that the sides show; empty for another comparison."""
        return self.comparison.newest_b.record.stack_key if self.comparison.sides.is_within_noise else ""

    @cached_property
    def upgrade(self) -> ChangeText | None:
        """Return the change of the judged upgrade from side a to side b, as lists and the upgrade report show it.

        None without one, and where this comparison states the same figure.
        """
        measured = self.comparison.sides.measured
        if measured is None or measured.step_time is None or self.project is None:
            return None
        a, b = (side.record for side in (self.comparison.newest_a, self.comparison.newest_b))
        levels = judged_levels(self._session, self.project.id, [b.stack_key])
        judged = levels.get((a.stack_key, b.stack_key, b.config_key, b.job))
        if judged is None:
            return None
        change = change_text(100 * (judged[2] / judged[1] - 1))
        return None if change.text == change_text(measured.step_time.delta_pct).text else change

    @cached_property
    def judged(self) -> tuple[ChangeText, SideSelection] | None:
        """Return the change in the verdict of side b against side a, and the runs that decided.

        None without one, and where this comparison states the same figure.
        """
        measured, run_b = self.comparison.sides.measured, self.comparison.newest_b.id
        stored = verdicts_of(self._session, run_b)
        if measured is None or measured.step_time is None or not stored:
            return None
        verdict = stored[0].document.verdict
        if verdict.step_time is None or str(self.comparison.newest_a.id) not in verdict.baseline_used:
            return None
        change = change_text(verdict.step_time.delta_pct)
        if change.text == change_text(measured.step_time.delta_pct).text:
            return None
        used = SideSelection(a=tuple(map(int, verdict.baseline_used)), b=tuple(map(int, verdict.candidates_used)))
        return change, used

    @property
    def title(self) -> str:
        return comparison_title(self.selection.a, self.selection.b)

    @property
    def cards(self) -> tuple[SideCard, SideCard]:
        sides = self.comparison.sides
        left_out = self.comparison.left_out
        return (
            SideCard("a", "A", "baseline", self.comparison.a, left_out, sides.sets[0].fields),
            SideCard("b", "B", "candidate", self.comparison.b, left_out, sides.sets[1].fields),
        )

    @cached_property
    def axes(self) -> tuple[views.AxisGroup, ...]:
        return views.axis_groups(self.comparison)

    @property
    def missing(self) -> tuple[views.Missing, ...]:
        return views.missing_fields(self.comparison)

    @property
    def same(self) -> tuple[tuple[str, str, str], ...]:
        return views.same_rows(self.comparison.same)

    @cached_property
    def environment(self) -> tuple[views.DifferenceRow, ...]:
        return views.environment_rows(self.comparison)

    @property
    def environment_same(self) -> int:
        return views.environment_same(self.comparison)

    @property
    def metrics(self) -> tuple[views.MetricRow, ...]:
        return views.metric_rows(self.comparison)

    @property
    def timers(self) -> TimerTable:
        return timer_table(self.comparison)

    @property
    def has_windows(self) -> bool:
        return any(distribution is not None for distribution in self.comparison.distributions.values())

    @property
    def distribution_chart(self) -> Mapping[str, Any]:
        return charts.distribution_chart(self.comparison)

    @property
    def distribution_height(self) -> int:
        return charts.chart_height(self.comparison)

    @property
    def beyond_axis(self) -> int:
        return charts.beyond_axis(self.comparison)

    @cached_property
    def series(self) -> Mapping[str, str]:
        """Names and units of the series that can be chosen."""
        return series_of(self._session, self.selection.runs)

    @property
    def series_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return grouped_series(self.series)

    @property
    def shown_series(self) -> str:
        """Return the requested series, else step time, else the first series of any run."""
        asked = self.selection.series
        return next(iter(self.series), asked) if asked == SideSelection().series and asked not in self.series else asked

    def check_series(self) -> None:
        """Refuse an unknown series now, not only when the chart is drawn. Raises InvalidQuery."""
        if self.series and self.shown_series not in self.series:
            raise invalid_filter(
                "series", f"must be one of {', '.join(self.series)}; {self.shown_series[:60]!r} is not"
            )

    @cached_property
    def overlay(self) -> Overlay:
        self.check_series()
        name = self.shown_series
        columns = read_columns(self._session, self.selection.runs, [name])
        zoom = (self.selection.first, self.selection.last)
        return overlay(self.comparison, columns, name, self.series.get(name, ""), zoom)

    @property
    def series_chart(self) -> Mapping[str, Any]:
        return charts.series_chart(self.overlay)

    @cached_property
    def table(self) -> AlignedTable:
        return aligned_table(self.overlay, self.selection.page)

    def table_address(self, page: int) -> str:
        return self.selection.query(page=page)

    @property
    def chart_notes(self) -> list[str]:
        """Return notes about facts that the chart does not show."""
        shown, notes = self.overlay, []
        stretch = charts.stretch_of(shown)
        if stretch > 1:
            notes.append(
                f"A point represents {stretch} iterations: the line is their median, the band reaches from the lowest "
                "to the highest."
            )
        if shown.outside:
            notes.append(off_scale_note(shown.outside))
        if shown.low > 0:
            notes.append("The axis starts above zero.")
        if shown.missing:
            named = ", ".join(f"#{number}" for number in shown.missing)
            notes.append(f"{named} {plural(len(shown.missing), 'has', 'have', number=False)} no such series.")
        return notes


# --- Runs ticked in the list become two sides.


def chosen_runs(session: Session, numbers: Sequence[str]) -> SideSelection:
    """Assign the runs to sides; the earlier run is the baseline.

    Of more than two, reruns of one job share a side if that makes two sides; else the earliest is compared with all
    others. A single run becomes the candidate. Raises InvalidQuery for anything but run numbers, and NotFound.
    """
    runs = [int(number) for number in numbers if number.isascii() and number.isdigit() and len(number) <= 9]
    if len(runs) != len(numbers) or len(runs) > 2 * MOST_RUNS:
        raise invalid_filter("run", f"must be at most {2 * MOST_RUNS} run numbers")
    ordered = in_order(session, list(dict.fromkeys(runs)))
    if len(ordered) == 1:
        return SideSelection(b=(ordered[0][0],))
    jobs: dict[tuple[str, str], list[int]] = {}
    for number, config_key, commit in ordered:
        jobs.setdefault((config_key, commit), []).append(number)
    if len(jobs) == 2:
        a, b = jobs.values()
    else:
        a, b = [ordered[0][0]], [number for number, _, _ in ordered[1:]]
    return SideSelection(a=tuple(a[:MOST_RUNS]), b=tuple(b[:MOST_RUNS]))


# --- Comparisons worth offering: the newest runs of a stack that differ in their knobs.

MOST_PAIRS = 4
_LOOKED_AT, _MOST_CANDIDATES, _MOST_MEASURED = 400, 24, 8
_LONGEST_NAME = 56


@dataclass(frozen=True, slots=True)
class RunPair:
    """`a` is the earlier run. `differs`: in words; `matched`: exactly one knob differs; `other_code`: so does the code.

    `experiment`: the one that both are runs of; the pair then stands for all runs of its sides.
    """

    a: int
    b: int
    name_a: str
    name_b: str
    differs: str
    matched: bool
    other_code: bool
    experiment: ExperimentItem | None = None

    @property
    def sides(self) -> SideSelection:
        """Return what its address compares: the runs that its figure is of."""
        if self.experiment is None:
            return SideSelection(a=(self.a,), b=(self.b,))
        result = self.experiment.result
        return SideSelection(a=tuple(map(int, result.baseline)), b=tuple(map(int, result.candidate)))

    @property
    def address(self) -> str:
        return self.sides.address()

    def effect(self, session: Session) -> tuple[str, bool]:
        """Return the change of step time and what it costs in memory, and whether it is decided.

        Of both sides of an experiment it is the result of the experiment. Empty if it cannot be measured.
        """
        verdict = self.experiment.result.verdict if self.experiment else None
        memory = None if verdict is None else verdict.memory
        if verdict is None:
            sides = ComparedSides(session, self.sides).sides
            verdict, memory = sides.measured, sides.costly_memory
        if verdict is None or verdict.step_time is None:
            return "", False
        costs = memory is not None and memory.decision == "regression"
        more = f", {percent(memory.delta_pct)} more memory" if memory is not None and costs else ""
        return f"B {change_text(verdict.step_time.delta_pct).figure}{more}", not shows_no_difference(verdict.step_time)


def recent_pairs(session: Session) -> tuple[tuple[RunPair, str, bool], ...]:
    """Return pairs of runs that follow each other on a stack and job with different knobs, each with its effect.

    The earlier run is A; of an experiment, the baseline is, and all of its runs are one pair.
    Matched A/Bs with a result come first; projects take turns, so that the newest does not fill the list.
    """
    rows = session.execute(
        select_any(RunRow.id, RunRow.name, RunRow.project_id, RunRow.stack_key, RunRow.config_key, RunRow.job)
        .where(col(RunRow.status) == "ready", col(RunRow.quarantine) == "", col(RunRow.step_time_ms).is_not(None))
        .order_by(col(RunRow.id).desc())
        .limit(_LOOKED_AT)
    ).all()
    chosen: dict[int, list[tuple[int, int]]] = {}
    newer: dict[tuple[int, str, str], tuple[int, str]] = {}
    for row in rows:
        stack = (row.project_id, row.stack_key, row.job)
        if stack in newer and newer[stack][1] != row.config_key:
            chosen.setdefault(row.project_id, []).append((row.id, newer[stack][0]))
        newer[stack] = (row.id, row.config_key)
    in_turn = [pair for turn in zip_longest(*chosen.values()) for pair in turn if pair is not None][:_MOST_CANDIDATES]
    numbers = sorted({number for pair in in_turn for number in pair})
    candidates = experiments_of_candidates(session, numbers)
    in_turn = [(b, a) if a in candidates and b not in candidates else (a, b) for a, b in in_turn]
    records = full_records(session, numbers)
    names = {row.id: shortened(row.name, _LONGEST_NAME) for row in rows}
    pairs = [
        replace(pair, experiment=_shared(candidates.get(b), a))
        for a, b in in_turn
        if (pair := _pair(a, b, records, names)) is not None
    ]
    newest = {pair.sides: pair for pair in reversed(pairs)}
    pairs = sorted((pair for pair in pairs if newest[pair.sides] is pair), key=lambda pair: not pair.matched)
    pairs = pairs[:_MOST_MEASURED]
    measured = [(pair, *pair.effect(session)) for pair in pairs]
    measured.sort(key=lambda item: (not item[0].matched, not item[1], not item[2]))
    return tuple(measured[:MOST_PAIRS])


def _shared(experiment: ExperimentItem | None, baseline: int) -> ExperimentItem | None:
    """Return the experiment of a candidate if the other run is on its baseline side, unless it has too many runs."""
    if experiment is None or not experiment.result.candidate or str(baseline) not in experiment.result.baseline:
        return None
    most = max(len(experiment.result.baseline), len(experiment.result.candidate))
    return experiment if most <= MOST_RUNS else None


MOST_FAIR = 2
_MOST_TRIED = 8


def fair_pairs(session: Session, comparison: ComparedSides) -> tuple[RunPair, ...]:
    """Return, for the candidate and for the baseline, another run of its stack with at most one knob changed.

    `a` of each pair is the other run: the newest that the verdict compared it with, else the newest of the stack.
    """
    pairs = []
    for run in (comparison.newest_b, comparison.newest_a):
        if not run.detail.stack_key:
            continue
        judged_against = _baseline(session, run.id)[-1:]
        of_stack = select_any(RunRow.id, RunRow.name).where(
            col(RunRow.project_id) == run.detail.project_id,
            col(RunRow.stack_key) == run.detail.stack_key,
            col(RunRow.status) == "ready",
            col(RunRow.quarantine) == "",
            col(RunRow.step_time_ms).is_not(None),
            col(RunRow.id) != run.id,
        )
        newest = of_stack.where(col(RunRow.id).not_in(judged_against)).order_by(
            col(RunRow.ordered_at).desc(), col(RunRow.id).desc()
        )
        rows = [
            *session.execute(of_stack.where(col(RunRow.id).in_(judged_against))),
            *session.execute(newest.limit(_MOST_TRIED)),
        ]
        records = full_records(session, [run.id, *(row.id for row in rows)])
        names = {row.id: row.name for row in rows} | {run.id: run.detail.name}
        fair = (_pair(row.id, run.id, records, names, kinds=_FAIR) for row in rows)
        pairs += [pair for pair in fair if pair is not None][:1]
    return tuple(pairs)[:MOST_FAIR]


_COMPARABLE = ("matched_ab", "side_by_side")
_FAIR = ("verdict", "matched_ab")


def _pair(
    a: int, b: int, records: dict[str, RunRecord], names: dict[int, str], *, kinds: Sequence[str] = _COMPARABLE
) -> RunPair | None:
    comparability = compare_contracts(records[str(a)], records[str(b)])
    if comparability.kind not in kinds:
        return None
    return RunPair(
        a=a,
        b=b,
        name_a=names[a],
        name_b=names[b],
        differs=differences(comparability.knobs),
        matched=comparability.kind == "matched_ab",
        other_code=bool(comparability.other_code),
    )


# --- What a run is usually compared with: its baseline, its experiment, the last release.


def suggested_runs(session: Session, selection: SideSelection, side: Side) -> tuple[tuple[str, str], ...]:
    """Return label and address of the runs that belong on `side`, given the other side, without its current runs.

    A candidate has a baseline, so there are suggestions for side a only.
    """
    if side != "a" or not selection.b:
        return ()
    newest = selection.b[-1]
    row = session.get(RunRow, newest)
    if row is None:
        return ()
    experiments = find_experiments(session, ExperimentFilter(run_id=newest), page_size=1).items
    earlier = (
        select_any(RunRow.id)
        .where(
            not_indexed(col(RunRow.project_id)) == row.project_id,
            col(RunRow.stack_key) == row.stack_key,
            not_indexed(col(RunRow.status)) == "ready",
            col(RunRow.ordered_at) < row.ordered_at,
        )
        .order_by(col(RunRow.ordered_at).desc())
        .limit(1)
    )
    release = session.execute(earlier.where(not_indexed(col(RunRow.purpose)) == "release")).scalar()
    previous = session.execute(earlier).scalar()
    offered = (
        ("its baseline", _baseline(session, newest)[-MOST_RUNS:]),
        *(("its experiment", (experiment.baseline_run_id,)) for experiment in experiments),
        ("last release", (release,) if release is not None else ()),
        ("previous run", (previous,) if previous is not None else ()),
    )
    return tuple(
        (label, selection.address(a=runs, pick="", q=""))
        for label, runs in offered
        if runs and not set(runs) & set(selection.b) and runs != selection.a
    )


def _baseline(session: Session, run_id: int) -> tuple[int, ...]:
    """Return the runs that the newest verdict of this run compared it with, oldest first."""
    stored = verdicts_of(session, run_id)
    return tuple(int(run) for run in stored[0].document.verdict.baseline_used if run.isdigit()) if stored else ()


# --- Runs to choose from for one side. Uses links only.


_OTHER: Mapping[Side, Side] = {"a": "b", "b": "a"}


def _existing(session: Session, selection: SideSelection) -> SideSelection:
    runs = set(session.execute(select_any(RunRow.id).where(col(RunRow.id).in_(selection.runs))).scalars())
    a, b = (tuple(run for run in side if run in runs) for side in (selection.a, selection.b))
    return SideSelection(a, b, pick=selection.pick, q=selection.q)


class Picker:
    """`gone`: a requested run does not exist; the others are kept."""

    def __init__(
        self, session: Session, selection: SideSelection, *, offer_pairs: bool = False, gone: bool = False
    ) -> None:
        self._session = session
        self._offer_pairs = offer_pairs
        self.selection = _existing(session, selection) if gone else selection

    @property
    def side(self) -> Side | None:
        """Return the side to choose a run for: the requested one, else the first empty one; None when both are set."""
        if self.selection.pick:
            return "a" if self.selection.pick == "a" else "b"
        if not self.selection.a:
            # With only a candidate, its baseline is missing; with nothing, the baseline comes first too.
            return "a"
        return None if self.selection.b else "b"

    @property
    def full(self) -> bool:
        return self.side is not None and len(self.selection.side(self.side)) >= MOST_RUNS

    @cached_property
    def runs(self) -> tuple[RunListItem, ...]:
        return offered_runs(self._session, self.selection.q, near=self._near, without=self.selection.runs)

    @property
    def by_workload(self) -> Mapping[str, Sequence[RunListItem]]:
        """Return the offered runs by model and GPUs, each group at the place of its first run."""
        groups: dict[str, list[RunListItem]] = {}
        for run in self.runs:
            gpus = f", {run.gpus or '?'}×{run.gpu}" if run.gpu else ""
            groups.setdefault(f"{run.model or 'unknown model'}{gpus}", []).append(run)
        return groups

    @cached_property
    def same_stack(self) -> set[int]:
        """Return the offered runs that share the stack of the chosen ones."""
        if self._near is None:
            return set()
        stack = select_any(RunRow.stack_key).where(col(RunRow.id) == self._near).scalar_subquery()
        offered = [run.id for run in self.runs]
        of_it = select_any(RunRow.id).where(col(RunRow.id).in_(offered), col(RunRow.stack_key) == stack)
        return set(self._session.execute(of_it).scalars())

    @cached_property
    def near(self) -> Mapping[Side, tuple[RunListItem, ...]]:
        """Return runs that the combo box of each side offers: those of the other side's stack first."""
        return {
            name: offered_runs(
                self._session, "", near=next(iter(self.selection.side(other)), None), without=self.selection.runs
            )
            for name, other in _OTHER.items()
        }

    @property
    def shortcuts(self) -> tuple[tuple[str, str], ...]:
        """Return label and address of what the only chosen run is usually compared with."""
        if self.selection.complete or not self.selection.runs:
            return ()
        return suggested_runs(self._session, SideSelection(b=self.selection.runs[-1:]), "a")

    @cached_property
    def _positions(self) -> Mapping[int, int]:
        """Return the place in the history of the offered and chosen runs."""
        ordered = in_order(self._session, [*(run.id for run in self.runs), *self.selection.runs])
        return {row[0]: position for position, row in enumerate(ordered)}

    def place_of(self, run: int) -> Side:
        """Return the side of an offered run: the older of a pair is the baseline."""
        if not self.selection.runs:
            return self.side or "a"
        return "a" if self._positions[run] < self._positions[self.selection.runs[0]] else "b"

    def paired(self, run: int) -> str:
        """Return the address with an offered run and the chosen ones, in order."""
        place = self.place_of(run)
        sides = {place: (run,), _OTHER[place]: self.selection.runs}
        return self.selection.address(a=sides["a"], b=sides["b"], pick="", q="")

    def suggested(self, side: Side) -> tuple[tuple[str, str], ...]:
        return suggested_runs(self._session, self.selection, side)

    @property
    def pairs(self) -> tuple[tuple[RunPair, str, bool], ...]:
        return recent_pairs(self._session) if self._offer_pairs and not self.selection.runs else ()

    @property
    def _near(self) -> int | None:
        """Return the run whose stack is preferred: one of the other side, else one of this side."""
        if self.side is None:
            return None
        other = self.selection.side("b" if self.side == "a" else "a")
        return next(iter((*other, *self.selection.side(self.side))), None)


router = APIRouter(include_in_schema=False)

_STATUS = {NotFound: 404, NotReady: 409, InvalidQuery: 422}


@router.get("/compare")
@requires(Action.READ)
def show_comparison(
    request: Request, session: ReadSession, rules: Rules, run: Annotated[Sequence[str], Query()] = ()
) -> Response:
    """Show the comparison. `run` repeats for each run that was ticked in the list of runs."""
    if run:
        return RedirectResponse(chosen_runs(session, run).address(), status_code=303)
    try:
        selection = SideSelection.from_params(_searched(request.query_params))
    except InvalidQuery as error:
        return _choose(request, session, SideSelection(), error)
    if not selection.complete:
        return _choose(request, session, selection)
    try:
        page = ComparePage(session, selection)
        page.check_series()
    except (NotFound, NotReady) as error:
        return _choose(request, session, selection, error)
    return _shown(
        request, session, page, "compare_picker", suggestions=pair_suggestions(session, page.comparison, rules)
    )


def _searched(params: Mapping[str, str]) -> Mapping[str, str]:
    """Return the parameters with a name in the box of a side as a search for a run of that side."""
    for side in ("a", "b"):
        text = params.get(side, "").strip()
        if any(character.isalpha() for character in text):
            return {**params, side: "", "pick": side, "q": text}
    return params


@router.get("/compare/distributions")
@requires(Action.READ)
def show_distributions(request: Request, session: ReadSession) -> HTMLResponse:
    return _part(request, session, "compare_distributions")


@router.get("/compare/series")
@requires(Action.READ)
def show_series(request: Request, session: ReadSession) -> HTMLResponse:
    return _part(request, session, "compare_series", anchor="series")


@router.get("/compare/picture.{kind}")
@requires(Action.READ)
def draw_comparison(request: Request, session: ReadSession, kind: Kind, theme: Theme = "light") -> Response:
    """Return the comparison as a slide: the steady windows of both sides on one axis."""
    page = ComparePage(session, _complete(request))
    sides: tuple[tuple[str, Colour, Sequence[ComparedRun]], ...] = (
        ("A", "side-a", page.comparison.a),
        ("B", "side-b", page.comparison.b),
    )
    rows = []
    for name, colour, runs in sides:
        times = np.concatenate([page.comparison.windows[run.id] for run in runs])
        if (times := times[np.isfinite(times)]).size:  # a run without a steady window has no level to draw
            low, middle, high = (float(value) for value in np.percentile(times, (5, 50, 95)))
            label = f"{name}  {', '.join(f'#{run.id}' for run in runs)}"
            rows.append(DotRow(label, middle, low, high, step_time(middle), colour, runs[-1].detail.name))
    generated = any(run.detail.generated for run in page.comparison.runs)
    body = rows_body(rows, "step time: median, with 5 % to 95 % of the steady window", with_zero=False)
    picture = Picture(page.answer, page.title, page.selection.address(), generated, body)
    return picture_response(request, picture, kind, theme)


def _complete(request: Request) -> SideSelection:
    """Return the selection of the address. Raises InvalidQuery without a run on each side."""
    selection = SideSelection.from_params(request.query_params)
    if not selection.complete:
        raise InvalidQuery("A comparison has two sides: name at least one run for `a` and one for `b`.")
    return selection


def _part(request: Request, session: Session, block: str, anchor: str = "") -> HTMLResponse:
    return _shown(request, session, ComparePage(session, _complete(request)), block, anchor)


def _shown(
    request: Request,
    session: Session,
    page: ComparePage,
    block: str,
    anchor: str = "",
    *,
    suggestions: Sequence[Suggestion] = (),
) -> HTMLResponse:
    address = page.selection.address()
    return render(
        request,
        "compare/comparison.html",
        block=block,
        address=f"{address}#{anchor}" if anchor else None,
        p=page,
        s=page.selection,
        picker=Picker(session, page.selection),
        suggestions=suggestions,
    )


def _choose(
    request: Request, session: Session, selection: SideSelection, error: ThreewallsError | None = None
) -> HTMLResponse:
    """Render the page to choose runs, when a side is empty or the selection cannot be compared."""
    context: dict[str, Any] = {
        "s": selection,
        "picker": Picker(session, selection, offer_pairs=True, gone=isinstance(error, NotFound)),
        "error": error,
        "retry": isinstance(error, NotReady),
    }
    status = 200 if error is None else next(code for kind, code in _STATUS.items() if isinstance(error, kind))
    return render(request, "compare/choose.html", block="compare_picker", status=status, **context)
