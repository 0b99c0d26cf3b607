"""The A/B of an experiment as its page shows it: a row a figure, the interval drawn large, and what would decide."""

import math
from dataclasses import dataclass, replace

from app.domain.contract.fields import METRICS
from app.domain.experiments.outcome import excluded_text
from app.domain.experiments.values import UNDECIDED, ExperimentResult
from app.domain.numbers import THIN, change_text, figure, gain_change, grouped, level_text, significant
from app.domain.run import Metric
from app.domain.text import capitalized
from app.domain.verdict.decide import MetricChange, more_per_side, what_would_decide
from app.domain.verdict.step_time import LossChange, interval_level_pct
from app.storage.experiments import ExperimentItem
from app.web.charts import Bar, bar_of, bar_span, series_label

_SECONDS_FROM_MS = 10_000
_LOSS_WORDS = {"worse": "regression", "no_worse": "no_change", "not_finite": "failed"}
_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)
"""Distances of the marks on the axis, in percent."""
_MOST_TICKS = 6
_ROOM = 0.05
"""Free share of the axis at each end."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """`a` and `b` as text, empty where unknown; `word`: a decision as templates name it."""

    name: str
    label: str
    meaning: str
    a: str
    b: str
    delta_pct: float | None
    ci_low_pct: float | None
    ci_high_pct: float | None
    word: str
    bar: Bar | None


@dataclass(frozen=True, slots=True)
class Tick:
    at: str
    text: str


@dataclass(frozen=True, slots=True)
class DrawnEffect:
    """The change of step time on an axis, slower right, in percent of its width.

    The band has the changes that count as equal if the whole interval lies in it. `caption`: the level of the interval
    and what it decided.
    """

    low: str
    width: str
    middle: str
    zero: str
    band_at: str
    band_width: str
    ticks: tuple[Tick, ...]
    tone: str
    label: str
    figure: str
    caption: str
    levels: str


def result_rows(result: ExperimentResult) -> tuple[ResultRow, ...]:
    changes = {name: change for name in METRICS if (change := result.metrics.get(name)) is not None}
    span = bar_span(changes.values())
    rows = [_row(name, change, span) for name, change in changes.items()]
    loss = result.verdict.loss if result.verdict else None
    rows += [_loss_row(loss, span)] if loss is not None else []
    # An interval decides nothing before all planned runs are in.
    return tuple(rows if result.finished else (replace(row, word="waiting") for row in rows))


def effect(result: ExperimentResult) -> DrawnEffect | None:
    """Return the effect; None until the step times of both sides can be compared."""
    time = result.verdict.step_time if result.verdict else None
    if time is None or not all(map(math.isfinite, (time.ci_low_pct, time.ci_high_pct))):
        return None
    limit = time.equal_pct
    # Not symmetric: with an effect of 20 %, half of a symmetric axis would be empty.
    low, high = min(time.ci_low_pct, -1.5 * limit), max(time.ci_high_pct, 1.5 * limit)
    low, high = low - _ROOM * (high - low), high + _ROOM * (high - low)

    def place(value: float) -> float:
        return 100 * (min(max(value, low), high) - low) / (high - low)

    step = next((tick for tick in _TICKS if (high - low) / tick <= _MOST_TICKS), _TICKS[-1])
    marks = [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    begin, end = place(time.ci_low_pct), place(time.ci_high_pct)
    return DrawnEffect(
        low=f"{begin:.2f}",
        width=f"{max(end - begin, 0.4):.2f}",
        middle=f"{place(time.delta_pct):.2f}",
        zero=f"{place(0):.2f}",
        band_at=f"{place(-limit):.2f}",
        band_width=f"{place(limit) - place(-limit):.2f}",
        ticks=tuple(Tick(f"{place(mark):.2f}", _tick(mark)) for mark in marks),
        tone=time.decision if result.finished else "inconclusive",
        label=f"Step time: {change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct).text}",
        figure=change_text(time.delta_pct).figure,
        caption=_caption(
            time.decision if result.finished else "",
            f"{level_text(time.interval_level_pct)} interval",
            limit,
            excludes_gain=result.excluded_gain_pct is not None,
        ),
        levels="" if time.decision == "no_change" else _levels(time.planned_looks),
    )


def _levels(looks: int) -> str:
    """Return at which levels changes are tested, since intervals of slower and faster sides have different ones."""
    slower, faster = (level_text(interval_level_pct("", shift, looks)) for shift in (1.0, -1.0))
    return f"Slowdowns are tested at {slower}, speed-ups at {faster}"


def _caption(decision: str, interval: str, equal_pct: float, *, excludes_gain: bool) -> str:
    """Return what an interval decided; an unfinished result (no decision) has decided nothing."""
    match decision:
        case "":
            return f"So far, {interval}; decided after all runs"
        case "improvement" | "regression":
            return f"{interval} excludes 0: decided"
        case "no_change":
            return f"{interval} within grey ±{equal_pct:g}{THIN}%: equal"
    return f"{interval}: " + (f"no gain of {equal_pct:g}{THIN}%" if excludes_gain else "undecided")


def would_decide(item: ExperimentItem) -> str:
    """Return what a complete but undecided result needs; empty if the lead says it, or if nothing has to be decided."""
    verdict = item.result.verdict
    time = verdict.step_time if verdict else None
    if verdict is None or time is None or time.decision != "inconclusive":
        return ""
    if not item.result.finished or item.state not in UNDECIDED or more_runs(item) or is_too_small(item):
        return ""
    if time.reruns_apart_pct is not None:
        return (
            f"Runs of B differ by {grouped(time.reruns_apart_pct, 1)}{THIN}%: they were not the same job, or one had "
            "a slow node. Quarantine the faulty run."
        )
    return what_would_decide(verdict)


def more_runs(item: ExperimentItem) -> int:
    """Return how many more runs per side to offer for a complete but inconclusive result.

    0 if no number would decide, or if the change is too small to matter.
    """
    result = item.result
    time = result.verdict.step_time if result.verdict else None
    if time is None or item.state not in UNDECIDED or is_too_small(item):
        return 0
    return time.need_runs or 0 if result.finished and result.inconclusive else 0


def is_too_small(item: ExperimentItem) -> bool:
    """Return whether a complete, inconclusive change is smaller than what counts as equal."""
    result = item.result
    time = result.verdict.step_time if result.verdict else None
    if time is None or not (result.finished and result.inconclusive) or time.reruns_apart_pct is not None:
        return False
    return abs(time.delta_pct) < time.equal_pct


def too_small_sentence(item: ExperimentItem) -> str:
    """Return whether to reject a change that is smaller than what counts; empty for other results.

    `No gain of 2 % or more: 0.5 % faster. Reject it.`, or that more runs could still show such a gain.
    """
    verdict, gain = item.result.verdict, item.result.gain
    if not is_too_small(item) or item.state not in UNDECIDED or gain is None or verdict is None:
        return ""
    if item.result.excluded_gain_pct is not None:
        return f"{excluded_text(item.result.excluded_gain_pct)}: {gain_change(gain.pct).figure}. Reject it."
    least = f"{verdict.step_time.equal_pct:g}{THIN}%" if verdict.step_time else ""
    return f"Inconclusive: {gain_change(gain.pct).figure}; a {least} gain is not excluded. Add runs, or reject it."


def more_runs_sentence(item: ExperimentItem, number: str = "") -> str:
    """Return `About 6 more runs per side (80 % power) would decide if 1.2 % holds.`; empty if no number would.

    `number`: `#7`, for a lead with other sentences.
    """
    verdict, gain = item.result.verdict, item.result.gain
    if not more_runs(item) or gain is None or verdict is None or verdict.step_time is None:
        return ""
    more = more_per_side(verdict.step_time)
    if number:
        return f"{number} needs {more}."
    return f"{capitalized(more)} would decide if {gain_change(gain.pct).size} holds."


def _row(name: str, change: MetricChange, span: float) -> ResultRow:
    a, b = _texts(name, change.baseline, change.candidate)
    return ResultRow(
        name=name,
        label=series_label(name),
        meaning=METRICS[name].meaning,
        a=a,
        b=b,
        delta_pct=change.delta_pct,
        ci_low_pct=change.ci_low_pct,
        ci_high_pct=change.ci_high_pct,
        word=change.decision,
        bar=bar_of(change, span, less_is_better=METRICS[name].less_is_better),
    )


def _loss_row(loss: LossChange, span: float) -> ResultRow:
    meaning = "Median over the last shared iterations."
    change = _Pct(loss.delta_pct)
    word = _LOSS_WORDS[loss.decision]
    a, b = ("" if value is None else significant(value) for value in (loss.baseline, loss.candidate))
    bar = bar_of(change, span, less_is_better=True)
    return ResultRow("loss", "Loss at the end", meaning, a, b, loss.delta_pct, None, None, word, bar)


@dataclass(frozen=True, slots=True)
class _Pct:
    delta_pct: float | None
    ci_low_pct: float | None = None
    ci_high_pct: float | None = None


def _texts(name: str, a: float, b: float) -> tuple[str, str]:
    """Return both values in the same unit, so that readers need not convert ms to s."""
    if name == "step_time_ms" and max(a, b) >= _SECONDS_FROM_MS:
        return f"{significant(a / 1000)}{THIN}s", f"{significant(b / 1000)}{THIN}s"
    texts = [figure(Metric(value, value, value, 0), name).text for value in (a, b)]
    return texts[0], texts[1]


def _tick(mark: float) -> str:
    decimals = 0 if mark == int(mark) else 1
    return "0" if mark == 0 else f"{grouped(abs(mark), decimals)}{THIN}%"
