"""The page of one stack. Each part is computed when a template needs it, so that a block costs only its own parts."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlencode

import structlog
from fastapi import Request
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.responses import HTMLResponse

from app.domain.naming import SEPARATOR, field_words
from app.domain.numbers import UNITS, change_text, days_text, figure, plural
from app.domain.run import Metric
from app.domain.text import commit_address
from app.domain.verdict.document import UNCONFIRMED
from app.domain.verdict.evidence import alternates_text
from app.domain.verdict.history import SHORTEST_SEGMENT
from app.domain.verdict.history_view import (
    CHANGE_POINTS_NEED,
    ELIGIBILITY_LABELS,
    ConfigurationHistory,
    Drift,
    Eligibility,
    LevelText,
    PinDrift,
    SegmentChange,
    VersionChange,
    answer,
    drift,
    drifts,
    golden_text,
    level_text,
)
from app.domain.verdict.step_time import RELEVANT_SHIFT
from app.domain.verdict.triage import state_text
from app.domain.verdict.words import knobs_text
from app.errors import InvalidChange
from app.history.charts import (
    NOT_OF_STEP_TIME,
    ChartKey,
    Drawing,
    Row,
    chart_key,
    chart_notes,
    conversion,
    datasets,
    drawn_positions,
    history_chart,
)
from app.history.queries import (
    ALL,
    OPEN_STATES,
    HistoryAlarm,
    HistoryOfStack,
    HistoryStack,
    HistoryView,
    MeasuredChange,
    Neighbour,
    read_alarms,
    read_all_figures,
    read_figures,
    read_history,
    read_neighbours,
    read_versions,
    version_text,
)
from app.history.views import BadgeOffer, ChangeRow, ConfigurationRow, badge_offer, change_rows, configuration_rows
from app.history.workloads import (
    ConfigurationStep,
    ContainerStep,
    across_containers,
    configuration_names,
    configuration_steps,
    container_steps,
)
from app.pipeline.decisions import GoldenProposal, pin, proposals, unpin
from app.queue import JUDGE_STACK, enqueue
from app.storage.database import ListPage, transaction
from app.storage.runs import RunListItem, runs_by_id, slower_labels, step_decisions
from app.storage.stacks import StackRun, names_of_stacks
from app.storage.suspect_evidence import alternation, states_node, with_alternation
from app.storage.tables import PinRow, RunRow
from app.storage.verdicts import current_verdicts
from app.storage.watches import is_watched
from app.web.charts import series_label
from app.web.forms import Form
from app.web.identity import access_of
from app.web.lists import invalid_filter
from app.web.templating import public_address, render

# --- The forms that pin and unpin a golden run on its history page.

log = structlog.get_logger(__name__)

_MOST_DIGITS = 18


class PinForm(Form):
    inputs = ("run", "author", "note")
    hidden = ("pin",)


def pin_by_form(engine: Engine, stack_key: str, form: PinForm) -> None:
    """Pin the run that the form names; it must belong to the stack. Raises InvalidChange, NotFound."""
    number = _number(form.value("run").removeprefix("#"), "run")
    with transaction(engine, durable=True) as session:
        run = session.get(RunRow, number)
        if run is None or run.stack_key != stack_key:
            raise InvalidChange.of_field("run", f"must be the number of a run of this stack; {number} is not")
        stacks = pin(session, number, form.value("author"), form.value("note"))
    _enqueue_judging(stacks)
    log.info("run_pinned", run_id=number)


def unpin_by_form(engine: Engine, stack_key: str, form: PinForm) -> None:
    """Unpin the golden run that the form names. Raises InvalidChange, NotFound."""
    number = _number(form.value("pin"), "pin")
    with transaction(engine, durable=True) as session:
        pin = session.get(PinRow, number)
        if pin is None or pin.stack_key != stack_key:
            raise InvalidChange.of_field("pin", "is not a pin of this stack; reload the page")
        stacks = unpin(session, number, form.value("author"), form.value("note"))
    _enqueue_judging(stacks)
    log.info("run_unpinned", pin_id=number)


def _enqueue_judging(stacks: list[int]) -> None:
    for stack in stacks:
        enqueue(JUDGE_STACK, stack)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InvalidChange.of_field(name, "must be the number of a run")
    return int(text)


TABLE_ROWS = 25
MOST_CHANGES = 30
"""Rows in the table of changes; the chart and the API have all."""
MOST_DRAWN = 500
"""Approximate maximum of runs in a chart. Of more runs, it draws those that show the shape of the history."""
_FACTS = ("cluster", "seq_len", "gbs", "mbs", "precision", "pp", "graph_modules", "task", "data_mode")


@dataclass(frozen=True, slots=True)
class HistoryTableRow:
    """One run in the table. `metric`: None without this figure. `listed`: as in the list of runs, for its verdict."""

    position: int
    run: StackRun
    eligibility: str
    letter: str
    metric: Metric | None
    commit_address: str
    container: str
    pinned: bool
    listed: RunListItem


@dataclass(frozen=True, slots=True)
class TotalLoss:
    """By how much (%) a configuration is slower than at its best earlier level `best_ms`, whose last run is `run`.

    Of levels that several runs show.
    """

    delta_pct: float
    best_ms: float
    run: int


@dataclass(frozen=True, slots=True)
class ProposalRow:
    """A proposed golden run, with its drift from the current golden run."""

    proposal: GoldenProposal
    drift: Drift | None


@dataclass(frozen=True, slots=True)
class OtherRegression:
    """An active regression other than that of the lead: its largest alarm here, and the letters of its configurations.

    `is_over`: less than half of it is left in their newest runs in its stacks.
    """

    alarm: HistoryAlarm
    letters: tuple[str, ...]
    is_over: bool

    @property
    def state(self) -> str:
        return state_text(self.alarm.shown_state, self.alarm.proposal)


EventKind = Literal["change_point", "configuration", "container", "regression"]


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """A row of the changes, on the page and in the API. `run`: its first run. `alarm`: the regression that began there,
    or that continued there since the run `since` in an earlier container.

    A change point states the change of its segments, a container that of its judged upgrade like the chart, any other
    row that of the regression that began there, if there is one, as measured there.
    """

    kind: EventKind
    run: StackRun
    source: ContainerStep | ConfigurationStep | ChangeRow | HistoryAlarm
    alarm: HistoryAlarm | None
    since: int | None

    @property
    def level(self) -> SegmentChange | ContainerStep | ConfigurationStep | MeasuredChange:
        """Return the change of step time, with the levels on both sides."""
        source, began = self.source, self.alarm if self.since is None else None
        if isinstance(source, ChangeRow):
            return source.change
        if isinstance(source, HistoryAlarm):
            return source.measured
        is_judged = isinstance(source, ContainerStep) and source.delta_pct is not None
        return source if is_judged or began is None else began.measured

    @property
    def job_pct(self) -> float | None:
        """Return the change of the regression's job if it began here and is larger than in this row."""
        job, own = self.alarm.delta_pct if self.alarm else None, self.level.delta_pct
        if job is None or own is None or self.since is not None:
            return None
        return job if change_text(job).text != change_text(own).text and job > own else None

    @property
    def decision(self) -> str:
        """Return whether the step time changed: as the upgrade was judged, else by its direction.

        A change of configuration has the decision of its verdict.
        """
        level = self.level
        if isinstance(level, (ContainerStep, ConfigurationStep)):
            return level.decision
        if level.delta_pct is None:
            return ""
        return "regression" if level.delta_pct > 0 else "improvement"

    @property
    def regression(self) -> tuple[int, str, str] | None:
        """Return number, state and proposal of its regression."""
        source = self.source
        if isinstance(source, ChangeRow) and source.regression_id is not None:
            return source.regression_id, source.regression_state, source.proposal
        return None if self.alarm is None else (self.alarm.regression_id, self.alarm.shown_state, self.alarm.proposal)

    @property
    def changed(self) -> list[tuple[str, str, str]]:
        """Return the fields that changed, with their values before and after."""
        source = self.source
        if isinstance(source, ConfigurationStep):
            return list(source.named_knobs)
        if isinstance(source, ContainerStep):
            return [("container", source.before, source.container)]
        if isinstance(source, ChangeRow):
            return [("commit", source.before.commit, source.run.commit)]
        return []


class HistoryPage:
    """The data of the page. Each part is read on first use and cached for the request. Raises InvalidQuery.

    `own`: the history of the stack. `history`: the shown history, which includes other containers. `steps`: where each
    container begins with one of the shown configurations.
    """

    def __init__(
        self,
        session: Session,
        stack: HistoryStack,
        address: str,
        view: HistoryView,
        form: PinForm | None = None,
        *,
        across: bool = True,
    ) -> None:
        self._session = session
        self.stack = stack
        self.address = address
        self.view = view
        self.form = form or PinForm()
        self.own: HistoryOfStack = read_history(session, stack)
        self.history, stacks = self.own, dict[str, HistoryStack]()
        if across and view.containers == ALL:
            self.history, stacks = across_containers(session, self.own, self.neighbours)
        self.shown = self._shown()
        self.steps = tuple(container_steps(session, self.history, self.shown, stacks))
        self.positions = self._zoomed()

    @property
    def answer(self) -> str:
        """Return the state of the leading configuration, or of the one used last if that ran in another container."""
        own, leading = self.own, self._leading
        named = (leading.config_key, leading.job)
        shown = next((part for part in own.configurations if (part.config_key, part.job) == named), own.last_used)
        chosen = "chosen above the chart" if self.view.config else "the slower one"
        return answer(own.runs, own.eligibilities, shown, own.configurations, own.pins, chosen=chosen)

    @property
    def lead(self) -> str:
        """Return the answer of the page in the chosen metric."""
        return self._memory_lead() if self.view.metric == NOT_OF_STEP_TIME else self._two_levels or self._speed_lead()

    @property
    def _two_levels(self) -> str:
        """Return the newest figure and verdict of a job that alternates, whatever its code; else nothing."""
        if not self.alternates:
            return ""
        own = self._leading
        newest = self.history.runs[own.counted[-1]]
        which = f"Configuration {own.letter}: " if len(self.choices) > 1 and not self.view.config else ""
        level = f"{self._text.figure(math.exp(newest.log_step_time))} in #{newest.id}"
        if self._session.get_one(RunRow, newest.id).badge == "inconclusive":
            level += ", inconclusive"
        has_node = states_node(self._session, newest.id)
        return f"{which}{level}; the job {alternates_text(self.alternates, states_node=has_node)}."

    def _speed_lead(self) -> str:
        """Return the current level and its open regression, else the change since the previous container, else that of
        the previous configuration, else the last change; with the configuration, if it is chosen because it is slower
        than others."""
        history, own, text = self.history, self._leading, self._text
        now, step, alarm = own.now, self._upgraded(own), self._alarm_of(own)
        if now is None:
            return level_text(self.own.runs, self.own.eligibilities, own)
        is_chosen = len(self.choices) > 1 and not self.view.config and self._slowness(own) is not None
        which = f"Configuration {own.letter}: " if is_chosen else ""
        # A regression of an earlier container does not say whether an inconclusive newer one is slower.
        began_here = alarm is not None and alarm.run_id in {history.runs[position].id for position in own.runs}
        decisive: tuple[str, ...] = ("regression",) if began_here else ("regression", "inconclusive")
        if alarm is not None and alarm.is_container_cleared and began_here:
            decisive = ()
        if alarm is not None and alarm.delta_pct is not None and (step is None or step.decision not in decisive):
            return which + self._regressed(alarm, alarm.delta_pct, now.step_time_ms, history.runs[own.counted[-1]])
        slower = self._slower_run(own) if alarm is None else ""
        if (slower or not now.holds) and len(self.choices) > 1 and not self.view.config:
            which = f"Configuration {own.letter}: "
        if slower or step is None or not now.holds:
            level = slower or self._reconfigured(own)
            return which + (level or level_text(history.runs, history.eligibilities, own, text))
        # The step time of the judged change, as its row and the upgrade report show it.
        judged_ms = None if step.decision == "inconclusive" else step.to_ms
        level = f"{which}{text.level(judged_ms or now.step_time_ms)} in {step.container}"
        if step.decision == "inconclusive":
            # A regression that was half gone in between does not explain the level, which is slow again.
            standing, how = (alarm, "still") if alarm else (self._again(own, now.step_time_ms), "again")
            if standing is None or not standing.usual_ms or standing.is_half_gone(now.step_time_ms):
                return f"{level}; change from {step.before} inconclusive."
            above = text.change(100 * (now.step_time_ms / standing.usual_ms - 1)).text
            return f"{level}; {how} {above} than before regression {standing.regression_id}."
        than = "as fast as" if step.decision == "no_change" else f"{text.change(step.delta_pct or 0.0).text} than"
        doubt = "" if step.is_decided else f": {step.decision}"
        return f"{level}, {than} in {step.before}{doubt}{'' if self.view.config else self._also_upgraded(own)}."

    def _also_upgraded(self, own: ConfigurationHistory) -> str:
        """Return `; B 16.7 % faster` if the same upgrade changed another configuration, or the number of several."""
        steps = ((part.letter, self._upgraded(part)) for part in self._in_use if part.letter != own.letter)
        changed = [
            (letter, step.delta_pct)
            for letter, step in steps
            if step is not None and step.delta_pct is not None and step.decision in ("regression", "improvement")
        ]
        if len(changed) == 1:
            ((letter, delta_pct),) = changed
            return f"; {letter} {self._text.change(delta_pct).text}"
        return f"; {len(changed)} others changed" if changed else ""

    @cached_property
    def total_loss(self) -> TotalLoss | None:
        """Return what the configuration of the lead lost in several steps; None if the lead states all of it."""
        own = self._leading
        if own.now is None or not own.now.holds:
            return None
        parts = [part for part in self.shown if part.letter == own.letter]
        levels = sorted((level for part in parts for level in part.levels), key=lambda level: level.first)
        earlier = [level for level in levels if level.first < own.now.first and level.holds and level.n > 1]
        if not earlier:
            return None
        best = min(earlier, key=lambda level: level.step_time_ms)
        before, now = (level.step_time_ms / best.step_time_ms - 1 for level in (earlier[-1], own.now))
        if min(before, now) < RELEVANT_SHIFT:
            return None
        return TotalLoss(100 * now, best.step_time_ms, self.history.runs[best.last].id)

    def _slower_run(self, own: ConfigurationHistory) -> str:
        """Return the newest counted run with its change if it is slower and in no regression; else nothing."""
        run = self.history.runs[own.counted[-1]]
        label = slower_labels(self._session, [run.id]).get(run.id)
        if label is None or run.verdict_delta_pct is None:
            return ""
        change = self._text.change(run.verdict_delta_pct).text
        verdict = current_verdicts(self._session, [run.id]).get(run.id)
        before = verdict.document.verdict.baseline_used if verdict else ()
        than = f"#{before[0]} alone" if len(before) == 1 else f"the last {len(before)} runs" if before else "before"
        doubt = ", unconfirmed" if label == UNCONFIRMED or len(before) == 1 else ""
        return f"{self._text.figure(math.exp(run.log_step_time))} in #{run.id}, {change} than {than}{doubt}."

    def _reconfigured(self, own: ConfigurationHistory) -> str:
        """Return the level and what led to it, if its job continued from another configuration; else nothing."""
        steps = configuration_steps(self._session, self.history)
        runs, text = self.history.runs, self._text
        step = next((step for step in steps if own.counted and step.run.id == runs[own.counted[0]].id), None)
        if step is None or step.delta_pct is None or own.now is None or own.changes or not own.now.holds:
            return ""
        before = next(
            part
            for part in self.history.configurations
            if step.before.id in {runs[position].id for position in part.runs}
        )
        upgrade = self._upgraded(before)
        first = ""
        if upgrade is not None and upgrade.decision in ("regression", "improvement"):
            first = f"{text.change(upgrade.delta_pct or 0.0).text} in {upgrade.container}, then "
        knobs = f" with {knobs_text(step.knobs, 1)}" if step.knobs else ""
        level = f"{text.level(own.now.step_time_ms)}{'' if first else ' now'}"
        return f"{level}: {first}{text.change(step.delta_pct).text}{knobs}."

    @cached_property
    def _text(self) -> LevelText:
        """Return the texts of the configuration of the lead in the chosen metric, of step time if it has no figures."""
        own, metric = self._leading, self.view.metric
        if metric == "step_time_ms":
            return LevelText()
        figures = read_figures(self._session, [self.history.runs[position] for position in own.counted], metric)
        convert = conversion(self.history, own, metric, figures)
        return LevelText(metric, convert, self.metric_label) if convert else LevelText()

    def _memory_lead(self) -> str:
        """Return the peak memory of the newest counted run, and the open regression of memory.

        Of the configuration with such a regression, else of that of the lead.
        """
        history, metric = self.history, self.view.metric
        alarm = next((alarm for alarm in self.open_alarms if alarm.metric == metric), None)
        letter = self.letters[alarm.run_id] if alarm else self._leading.letter
        parts = [part for part in self.shown if part.letter == letter and part.counted]
        if not parts:
            return level_text(self.own.runs, self.own.eligibilities, self._leading)
        newest = history.runs[max(part.counted[-1] for part in parts)]
        measured = read_figures(self._session, [newest], metric)[newest.id]
        used = f"{figure(measured, metric).text} peak memory" if measured else "Unknown peak memory"
        which = f"Configuration {letter}: " if len(self.choices) > 1 and not self.view.config else ""
        lead = f"{which}{used} in #{newest.id} ({days_text(newest.ordered_at, newest.ordered_at)})"
        if alarm is None:
            return f"{lead}; memory has no open regression."
        more = change_text(alarm.delta_pct, metric=metric).text if alarm.delta_pct is not None else "more"
        state = f", {state_text(alarm.shown_state, alarm.proposal)}" if alarm.proposal else ""
        return f"{lead}; {more} since #{self.first_run(alarm)} (regression {alarm.regression_id}{state})."

    def _upgraded(self, own: ConfigurationHistory) -> ContainerStep | None:
        """Return the judged upgrade of a configuration to the newest container, if it has not changed since."""
        steps = self.newest.by_configuration if self.newest else ()
        return next((step for step in steps if step.letter == own.letter and step.decision and not own.changes), None)

    @cached_property
    def _leading(self) -> ConfigurationHistory:
        """Return the configuration of the lead: of those in use in the newest container the slower, else the last one.

        The row of the list, the button and the answer of the API are about the same one.
        """
        parts = self._in_use or self._in_newest or list(self.shown)
        used = max(parts, key=lambda part: (part.counted or part.runs)[-1])
        return max(parts, key=lambda part: (self._slowness(part) or (-1, 0.0), part is used))

    @cached_property
    def _in_newest(self) -> list[ConfigurationHistory]:
        """Return the shown configurations in the newest drawn container."""
        newest = self.newest.stack_key if self.newest else self.stack.stack_key
        return [part for part in self.shown if self.history.runs[part.runs[0]].facts.stack_key == newest]

    @cached_property
    def _in_use(self) -> list[ConfigurationHistory]:
        """Return those of the newest container whose job has not continued with another configuration."""
        parts = self._in_newest
        return [part for part in parts if part.counted and not self._is_replaced(part, parts)]

    def _is_replaced(self, part: ConfigurationHistory, parts: Sequence[ConfigurationHistory]) -> bool:
        """Return whether the job of a configuration has continued with another one.

        If both ran in turn for a time, after as many runs of the other one as a segment has.
        """
        runs, last = self.history.runs, part.counted[-1]
        later = [[position for position in other.counted if position > last] for other in parts]
        of_job = [own for own in later if own and runs[own[0]].job == runs[last].job]
        began = {other.counted[0] for other in parts if other.counted}
        return any(own[0] in began or len(own) >= SHORTEST_SEGMENT for own in of_job)

    def _slowness(self, part: ConfigurationHistory) -> tuple[int, float] | None:
        """Return number and size of the regression in which a configuration still is, else of its slower upgrade."""
        alarm, step = self._alarm_of(part), self._upgraded(part)
        if alarm is not None and alarm.delta_pct is not None and part.counted and alarm.proposal != "stale":
            newest_ms = math.exp(self.history.runs[part.counted[-1]].log_step_time)
            return None if alarm.is_half_gone(newest_ms) else (alarm.regression_id, alarm.delta_pct)
        if step is None or step.decision != "regression":
            return None
        return 0, step.delta_pct or 0.0

    @property
    def first_alarm(self) -> HistoryAlarm | None:
        """Return the regression of the primary button: that of a job that alternates, one to triage, else that of the
        lead, else any active one."""
        if self.alternates:
            return self.leading_alarm
        first = next(iter(self.open_alarms), None)
        return (self.leading_alarm or first) if first and first.proposal else first

    @property
    def other_regressions(self) -> list[OtherRegression]:
        """Return the active regressions that neither the lead nor the primary button names."""
        named = {alarm.regression_id for alarm in (self.first_alarm, self.leading_alarm) if alarm}
        others = []
        for number in dict.fromkeys(alarm.regression_id for alarm in self._active if alarm.regression_id not in named):
            alarms = [alarm for alarm in self._active if alarm.regression_id == number]
            largest = max(alarms, key=lambda alarm: alarm.delta_pct or 0.0)
            letters = tuple(sorted({self.letters[alarm.run_id] for alarm in alarms}))
            others.append(OtherRegression(largest, letters, all(self._is_over(alarm) for alarm in alarms)))
        return others

    def _is_over(self, alarm: HistoryAlarm) -> bool:
        """Return whether less than half of a change of step time is left in the newest run of its stack."""
        runs = self.history.runs
        parts = [part for part in self.shown if alarm.run_id in {runs[position].id for position in part.runs}]
        newest = [math.exp(runs[part.counted[-1]].log_step_time) for part in parts if part.counted]
        is_time = alarm.metric == "step_time_ms" and bool(newest)
        return is_time and all(alarm.is_half_gone(step_time_ms) for step_time_ms in newest)

    @property
    def leading_alarm(self) -> HistoryAlarm | None:
        """Return the newest open step-time regression of the configuration of the lead, in any container; of a job that
        alternates, the first one."""
        return self._alternation[0] if self._alternation else self._alarm_of(self._leading)

    @property
    def alternates(self) -> tuple[float, float] | None:
        """Return the step times (ms) between which the job of the lead alternates, around its newest run; else None."""
        return self._alternation[1] if self._alternation else None

    @cached_property
    def _alternation(self) -> tuple[HistoryAlarm, tuple[float, float]] | None:
        runs, own = self.history.runs, self._leading
        of_letter = {runs[position].id for position, letter in self.history.letters.items() if letter == own.letter}
        alarms = [alarm for alarm in self._active if alarm.metric == "step_time_ms" and alarm.run_id in of_letter]
        first = min(alarms, key=lambda alarm: alarm.regression_id, default=None)
        if first is None or not first.usual_ms or not first.stack_pct or not own.counted:
            return None
        newest = self._session.get_one(RunRow, runs[own.counted[-1]].id)
        levels = alternation(self._session, newest, first.usual_ms, first.usual_ms * (1 + first.stack_pct / 100))
        return (first, levels) if levels else None

    def _regressed(self, alarm: HistoryAlarm, delta_pct: float, level_ms: float, newest: StackRun) -> str:
        """Return the level and its regression; the newest run instead if no run followed or half of it is gone."""
        newest_ms, text = math.exp(newest.log_step_time), self._text
        has_moved_back = alarm.is_half_gone(newest_ms)
        first = self.first_run(alarm)
        since = f"{text.change(delta_pct).text} {'than before' if first == newest.id else f'since #{first}'}"
        if not (alarm.proposal or has_moved_back):
            return f"{text.level(level_ms)} now; regression {alarm.regression_id}: {since}."
        at = days_text(newest.ordered_at, newest.ordered_at)
        was = "was " if has_moved_back else ""
        state = f", {state_text(alarm.shown_state, alarm.proposal)}" if alarm.proposal else ""
        return (
            f"{text.figure(newest_ms)} in #{newest.id} ({at}); {was}{since} (regression {alarm.regression_id}{state})."
        )

    def _alarm_of(self, part: ConfigurationHistory) -> HistoryAlarm | None:
        """Return the newest open step-time regression of a configuration, in any container.

        One that was half gone before the container of `part` began does not explain the runs there.
        """
        alarms = [alarm for alarm in self._active if alarm.metric == "step_time_ms"]
        if not alarms:
            return None
        runs, letters, begin = self.history.runs, self.history.letters, part.runs[0]
        of_letter = {runs[position].id: position for position, letter in letters.items() if letter == part.letter}
        counted = [p for p in sorted(of_letter.values()) if p < begin and self.history.eligibilities[p] == "counts"]
        for alarm in alarms:
            if (began := of_letter.get(alarm.run_id)) is not None:
                newest = counted[-1] if counted and counted[-1] > began else began
                if began >= begin or not alarm.is_half_gone(math.exp(runs[newest].log_step_time)):
                    return alarm
        return None

    def _again(self, part: ConfigurationHistory, level_ms: float) -> HistoryAlarm | None:
        """Return the newest active step-time regression of a configuration, in any container, that its level shows."""
        letters = self.history.letters
        of_letter = {self.history.runs[position].id for position, letter in letters.items() if letter == part.letter}
        alarms = (alarm for alarm in self._active if alarm.metric == "step_time_ms" and alarm.run_id in of_letter)
        return next((alarm for alarm in alarms if alarm.usual_ms and not alarm.is_half_gone(level_ms)), None)

    @property
    def name(self) -> str:
        """Return the title of the stack with what sets it apart from ranked stacks of the same title."""
        key = self.stack.stack_key
        return names_of_stacks(self._session, [key]).get(key, self.stack.title)

    @cached_property
    def heading(self) -> tuple[str, str]:
        """Return the title of the workload with its newest container, and what else is in its name, with its size."""
        key = self.steps[-1].stack_key if self.steps else self.stack.stack_key
        parts = names_of_stacks(self._session, [key]).get(key, self.stack.title).split(SEPARATOR)
        titled = len(self.stack.title.split(SEPARATOR))
        size = [field_words(name, value) for name, value in self.facts if name in ("seq_len", "gbs", "mbs")]
        others = [part for part in parts[titled:] if part not in size]
        return SEPARATOR.join(parts[:titled]), SEPARATOR.join([*size, *others])

    @property
    def newest(self) -> ContainerStep | None:
        """Return where the newest drawn container begins; None if the page shows only the stack's own container."""
        last = self.positions[-1] if self.positions else -1
        return next((step for step in reversed(self.steps) if step.position <= last), None)

    @property
    def full_name(self) -> str:
        """Return the whole heading as one name."""
        return SEPARATOR.join(part for part in self.heading if part)

    @property
    def step(self) -> ContainerStep | None:
        """Return where the stack's own container begins, if its upgrade was judged."""
        own = self.stack.stack_key
        return next((step for step in self.steps if step.stack_key == own and step.decision), None)

    @property
    def api_query(self) -> str:
        """Return the query string for the same history in the API, which has the runs of one stack only."""
        return self.view.query(metric="step_time_ms", axis="order", containers=ALL, first=0, last=0, page=1)

    @property
    def newest_run(self) -> int:
        return self.own.runs[-1].id

    def upgrade_address(self, step: ContainerStep) -> str:
        """Return the address of the upgrade report for a change of container."""
        before = next((other for other in self.steps if other.container == step.before), step)
        sides = {"from": before.full_name, "to": step.full_name}
        return f"/upgrade?{urlencode({'project': self.stack.project, 'field': 'container', **sides})}"

    @property
    def golden_note(self) -> str:
        """Return the newest pinned run and the number of open proposals; empty without any."""
        to_decide = sum(row.proposal.state == "open" for row in self.proposals)
        proposed = [f"{plural(to_decide, 'proposal')} to decide."] if to_decide else []
        return " ".join([*golden_text(self.own.pins, self.own.runs[-1].ordered_at), *proposed])

    @property
    def facts(self) -> list[tuple[str, Any]]:
        """Return the fields that the runs of the stack share, without those in its title."""
        return [(name, self.stack.contract[name].value) for name in _FACTS if name in self.stack.contract]

    def badges(self, base_url: str) -> BadgeOffer:
        return badge_offer(self._session, self.stack, base_url)

    def is_watched(self, user_id: int | None) -> bool:
        return is_watched(self._session, user_id, self.stack.project_id, "stack", self.stack.stack_key)

    @cached_property
    def neighbours(self) -> tuple[Neighbour, ...]:
        return read_neighbours(self._session, self.stack, self.own.runs[0].ordered_at)

    @property
    def metrics(self) -> list[tuple[str, str]]:
        return [(name, series_label(name)) for name in UNITS]

    @property
    def metric_label(self) -> str:
        return series_label(self.view.metric)

    @cached_property
    def choices(self) -> list[tuple[str, str]]:
        """Return the selectable configurations: value and label."""
        address = {configuration.letter: configuration.address for configuration in self.history.configurations}
        runs = Counter(self.history.letters.values())
        return [
            (address[name], f"{name}: {', '.join(filter(None, (self.names[name], plural(runs[name], 'run'))))}")
            for name in sorted(address, key=lambda name: (len(name), name))
        ]

    @cached_property
    def names(self) -> Mapping[str, str]:
        """Return what distinguishes each configuration, by letter."""
        return configuration_names(self._session, self.history)

    @property
    def chosen(self) -> str:
        """Return the value of the selected choice of configuration."""
        letters = {configuration.letter for configuration in self.shown}
        by_letter = {configuration.letter: configuration.address for configuration in self.history.configurations}
        return next((by_letter[name] for name in letters), "") if self.view.config else ""

    @property
    def eligibility_labels(self) -> Mapping[Eligibility, str]:
        return ELIGIBILITY_LABELS

    @staticmethod
    def p_text(p_value: float) -> str:
        """Format a p-value; digits below one millionth are meaningless."""
        return "below 0.000001" if p_value < 1e-6 else f"= {p_value:.1g}" if p_value < 1e-3 else f"= {p_value:.2f}"

    @cached_property
    def drawn(self) -> Sequence[int]:
        return drawn_positions(self.history, self.positions, self.view.metric, self.versions, MOST_DRAWN)

    @cached_property
    def versions(self) -> Sequence[VersionChange]:
        """Return version changes between the first and the last shown run."""
        first, last = self.positions[0], self.positions[-1]
        of_stack: dict[str, list[int]] = {}
        for position in range(first, last + 1):
            of_stack.setdefault(self.history.runs[position].facts.stack_key, []).append(position)
        return read_versions(self._session, self.history.runs, of_stack.values())

    @cached_property
    def drawing(self) -> Drawing:
        view = self.view
        figures = self._figures(self.drawn)
        return Drawing(
            self.history, self.drawn, self.shown, view.metric, view.axis, figures, self._in_use, self.versions,
            self.steps, self.names, self._leading.letter,
            {alarm.run_id for alarm in self.alarms if alarm.metric == view.metric},
            step_decisions(self._session, [self.history.runs[position].id for position in self.drawn]),
        )  # fmt: skip

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        return datasets(self.drawing)

    @property
    def chart(self) -> Mapping[str, Any]:
        return history_chart(self.drawing, self.rows)

    @property
    def chart_key(self) -> ChartKey:
        return chart_key(self.drawing, self.rows)

    @property
    def chart_notes(self) -> list[str]:
        return chart_notes(self.drawing, self.rows, len(self.positions) - len(self.drawn))

    @property
    def version_lines(self) -> list[tuple[int, datetime, str]]:
        """Return version changes, newest first: first run, its history position, description."""
        runs = self.history.runs
        return [
            (runs[version.run].id, runs[version.run].ordered_at, version_text(version, runs))
            for version in self.versions[::-1]
        ]

    @cached_property
    def changes(self) -> tuple[ChangeRow, ...]:
        return change_rows(self.history, self.shown, self.alarms)

    @cached_property
    def alarms(self) -> tuple[HistoryAlarm, ...]:
        return read_alarms(self._session, {*(step.stack_key for step in self.steps), self.stack.stack_key})

    @cached_property
    def _active(self) -> list[HistoryAlarm]:
        """Return the open alarms of the shown configurations: those to triage first, then newest first."""
        runs = {self.history.runs[position].id for own in self.shown for position in own.runs}
        active = (
            alarm
            for alarm in self.alarms
            if alarm.shown_state in OPEN_STATES and alarm.run_id in runs and not alarm.is_back
        )
        return sorted(active, key=lambda alarm: (bool(alarm.proposal), -alarm.regression_id))

    @property
    def open_alarms(self) -> list[HistoryAlarm]:
        """Return one alarm of each active regression, in the order of `_active`."""
        return list({alarm.regression_id: alarm for alarm in self._active}.values())

    @property
    def events(self) -> list[HistoryEvent]:
        """Return changes of container or configuration, change points, and other regressions of the step time, newest
        first."""
        letters = {configuration.letter for configuration in self.shown}
        changes: list[tuple[EventKind, StackRun, ContainerStep | ConfigurationStep | ChangeRow | HistoryAlarm]] = [
            *(("change_point", row.run, row) for row in self.changes),
            *(
                ("configuration", step.run, step)
                for step in configuration_steps(self._session, self.history)
                if step.letter in letters
            ),
        ]
        if len(self.steps) > 1:
            rows = [row for step in self.steps for row in step.by_configuration or (step,)]
            changes += [("container", self.history.runs[row.position], row) for row in rows]
        slow_runs = self._slow_runs
        active = {self.first_run(alarm) for alarm in self._active} - {run.id for _, run, _ in changes}
        changes += [
            ("regression", run, slow_runs[run.id][0])
            for run in self.history.runs
            if run.id in slow_runs and run.id in active
        ]
        events = [
            HistoryEvent(kind, run, source, *slow_runs.get(run.id, (None, None))) for kind, run, source in changes
        ]
        return sorted(events, key=lambda event: (event.run.ordered_at, event.run.id), reverse=True)

    @cached_property
    def _chains(self) -> dict[tuple[int, str], list[HistoryAlarm]]:
        """Return the alarms of each regression by its number and the configuration, in the order of their runs.

        There are several if the configuration continued in another container.
        """
        order = {run.id: position for position, run in enumerate(self.history.runs)}
        letters = self.letters
        chains: dict[tuple[int, str], list[HistoryAlarm]] = {}
        for alarm in sorted((alarm for alarm in self.alarms if alarm.run_id in order), key=lambda a: order[a.run_id]):
            chains.setdefault((alarm.regression_id, letters[alarm.run_id]), []).append(alarm)
        return chains

    def first_run(self, alarm: HistoryAlarm) -> int:
        """Return the run with which the regression began in the configuration of the alarm, in any shown container."""
        return next(chain[0].run_id for chain in self._chains.values() if alarm in chain)

    @cached_property
    def letters(self) -> dict[int, str]:
        """Return the letter of each run's configuration, by its number."""
        return {self.history.runs[position].id: letter for position, letter in self.history.letters.items()}

    @property
    def _slow_runs(self) -> dict[int, tuple[HistoryAlarm, int | None]]:
        """Return the step-time regressions that no change point shows, by the first run in each slow container, in the
        state of the newest one; with the first slow run of the configuration, if that is another one."""
        drawn = {(row.regression_id, row.letter) for row in self.changes}
        step_ms = {run.id: math.exp(run.log_step_time) for run in self.history.runs}
        return {
            alarm.run_id: (replace(alarm, is_back=chain[-1].is_back), None if alarm is chain[0] else chain[0].run_id)
            for key, chain in self._chains.items()
            if key not in drawn and chain[0].metric == "step_time_ms"
            for alarm in chain
            if alarm is chain[0] or not alarm.is_half_gone(step_ms[alarm.run_id])
        }

    @cached_property
    def configurations(self) -> tuple[ConfigurationRow, ...]:
        return configuration_rows(self._session, self.own)

    @cached_property
    def drifts(self) -> tuple[PinDrift, ...]:
        return drifts(self.own.pins, self.own.runs, self.own.configurations)

    @cached_property
    def proposals(self) -> tuple[ProposalRow, ...]:
        """Return the proposals of golden runs, newest first."""
        by_id = {run.id: run for run in self.own.runs}
        golden = next((by_id.get(pin.run_id) for pin in self.own.pins if pin.in_force), None)
        return tuple(
            ProposalRow(proposal, drift(by_id.get(proposal.run_id), golden))
            for proposal in proposals(self._session, self.stack.project_id, self.stack.stack_key)
        )

    @property
    def proposed_pin(self) -> str:
        """Return the run number in the form: the sent number, else that of the newest counted run."""
        counted = self.own.last_used.counted
        return self.form.value("run") or (str(self.own.runs[counted[-1]].id) if counted else "")

    @cached_property
    def table(self) -> ListPage[HistoryTableRow]:
        """Return one page of the table, newest runs first; the last page if the number is past the end."""
        total = len(self.positions)
        pages = max(1, -(-total // TABLE_ROWS))
        start = (min(self.view.page, pages) - 1) * TABLE_ROWS
        newest_first = self.positions[::-1][start : start + TABLE_ROWS]
        pinned = {pin.run_id for pin in self.history.pins if pin.in_force}
        figures, letters = self._figures(newest_first), self.history.letters
        run_ids = [self.history.runs[position].id for position in newest_first]
        listed = with_alternation(self._session, runs_by_id(self._session, run_ids))
        rows = tuple(
            self._row(position, letters[position], pinned, item, figures)
            for position, item in zip(newest_first, listed, strict=True)
        )
        return ListPage(rows, total, start // TABLE_ROWS + 1, TABLE_ROWS)

    def all_figures(self) -> dict[int, Mapping[str, Metric | None]]:
        """Return the headline figures of the runs in the zoom, by number."""
        return read_all_figures(self._session, [self.history.runs[position].id for position in self.positions])

    def table_address(self, page: int) -> str:
        return self.view.query(page=page)

    def _row(
        self,
        position: int,
        letter: str,
        pinned: set[int],
        listed: RunListItem,
        figures: Mapping[int, Metric | None],
    ) -> HistoryTableRow:
        run = self.history.runs[position]
        return HistoryTableRow(
            position=position,
            run=run,
            eligibility=self.history.eligibilities[position],
            letter=letter,
            metric=figures.get(run.id),
            commit_address=commit_address(self.stack.commit_url, run.commit),
            container=self._containers.get(run.facts.stack_key, ""),
            pinned=run.id in pinned,
            listed=listed,
        )

    @property
    def _containers(self) -> dict[str, str]:
        return {step.stack_key: step.container for step in self.steps}

    def _figures(self, positions: Sequence[int]) -> dict[int, Metric | None]:
        return read_figures(self._session, [self.history.runs[position] for position in positions], self.view.metric)

    def _shown(self) -> tuple[ConfigurationHistory, ...]:
        if not self.view.config:
            return self.history.configurations
        matching = [
            configuration
            for configuration in self.history.configurations
            if configuration.is_named_by(self.view.config)
        ]
        if len({configuration.config_key for configuration in matching}) != 1:
            problem = "the beginning of several configurations" if matching else "no configuration of this stack"
            raise invalid_filter("config", f"is {problem}")
        letters = {configuration.letter for configuration in matching}
        return tuple(configuration for configuration in self.history.configurations if configuration.letter in letters)

    def _zoomed(self) -> list[int]:
        """Return the positions of the shown configurations' runs within the zoom. Its ends may be in either order."""
        by_id = {run.id: position for position, run in enumerate(self.history.runs)}
        for name in ("first", "last"):
            if (number := getattr(self.view, name)) and number not in by_id:
                raise invalid_filter(name, f"must be the number of a run of this stack; {number} is not")
        first = by_id.get(self.view.first, 0)
        last = by_id.get(self.view.last, len(self.history.runs) - 1)
        shown = {position for configuration in self.shown for position in configuration.runs}
        return [position for position in range(min(first, last), max(first, last) + 1) if position in shown]


def render_history(request: Request, page: HistoryPage, *, block: str | None, status: int = 200) -> HTMLResponse:
    """Render the page, or one block of it for htmx."""
    query = page.view.query()
    return render(
        request,
        "history/stack.html",
        block=block,
        address=f"{page.address}{'?' + query if query else ''}" if block else None,
        p=page,
        stack=page.stack,
        history=page.history,
        view=page.view,
        status=status,
        change_points_need=CHANGE_POINTS_NEED,
        shortest_segment=SHORTEST_SEGMENT,
        most_changes=MOST_CHANGES,
        badges=lambda: page.badges(public_address(request)),
        watched=page.is_watched(access_of(request).watcher),
    )
