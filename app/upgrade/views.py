"""The upgrade report as its page, its chart and its export show it: a row a stack, in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.values import comparable
from app.domain.experiments.plan import upload_command
from app.domain.naming import SEPARATOR, field_words, short_job, stack_title, without_common
from app.domain.numbers import THIN, change_text, grouped, level_text
from app.domain.run import Stated
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import REGRESSION_P, MemoryChange, StepTimeChange
from app.domain.verdict.upgrade import Discovery, Pair, UpgradeReport, Word
from app.domain.verdict.words import differences
from app.upgrade.queries import MeasuredUpgrade

_IN_TITLE = ("model", "gpu", "gpus", "dispatcher", "routing_mode", "container", "dispatcher_type", "force_balance")
_MOST_APART = 2


@dataclass(frozen=True, slots=True)
class ComparedStackRow:
    """One job of a stack on both sides. `name`: its title without what all share. `also`: what else changed.

    `cost` is None where unknown or zero; `is_slower` tells which. `is_counted`: in the sentence about the upgrade.
    `already_slow`: the regression that began before the upgrade.
    """

    title: str
    name: str
    stack_key: str
    old_stack_key: str
    job: str
    word: Word
    time: StepTimeChange | None
    before: str
    after: str
    memory: MemoryChange | None
    old_runs: tuple[str, ...]
    new_runs: tuple[str, ...]
    cost: float | None
    is_slower: bool
    provisional: tuple[str, ...]
    shares_commits: bool
    discovery: Discovery | None
    also: str
    is_judged: bool
    is_counted: bool
    already_slow: int | None

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Return the ends of the measured interval; None if the change is the size of its regression, which differs."""
        ends = self.time.interval_of(self.time.delta_pct, INTERVAL_P) if self.time else None
        return ends or (None, None)

    @property
    def line(self) -> tuple[float, float]:
        """Return the ends of the interval of the test, which pictures draw."""
        return self.time.interval(INTERVAL_P) if self.time is not None else (0.0, 0.0)

    @property
    def tested(self) -> str:
        """Return `6.4 % (5.4 to 7.4)`: the tested change, if the size of the regression differs; else empty."""
        if self.time is None or self.interval[0] is not None:
            return ""
        change = change_text(self.time.tested_pct, *self.line)
        return f"{change.figure} ({change.interval})"

    @property
    def decided_at(self) -> str:
        """Return the level of the test in percent if the interval alone suggests another decision; else empty."""
        low, high = self.interval
        time = self.time
        if time is None or low is None or high is None:
            return ""
        if self.word == "inconclusive":
            suggests_other = low * high > 0 >= time.ci_low_pct * time.ci_high_pct
        else:
            suggests_other = self.word == "no change" and max(-low, high) > time.equal_pct
        return level_text(time.interval_level_pct) if suggests_other else ""


@dataclass(frozen=True, slots=True)
class NearRow:
    """A stack of the new side that differs in more fields from its nearest one of the old side.

    `apart`: those fields.
    """

    title: str
    run: str
    other: str
    apart: str


@dataclass(frozen=True, slots=True)
class LonelyRow:
    """A stack on one side only; `missing` is the value to run it with."""

    title: str
    run: str
    stack_key: str
    missing: str


@dataclass(frozen=True, slots=True)
class SharedCommitRun:
    """A run that separates an upgrade from the code: the commit of `old` on the new side.

    `meta`: its upload metadata. It runs on a branch of its own, so that it is no baseline of later runs.
    """

    old: str
    commit: str
    meta: Mapping[str, object]

    def command(self, base_url: str) -> str:
        return upload_command(self.meta, base_url)


def shared_commit_run(measured: MeasuredUpgrade) -> SharedCommitRun | None:
    """Return the run to add for the slowest stack without a commit on both sides; None without such a stack."""
    pair = next((pair for pair in measured.report.pairs if not pair.shares_commits and pair.old.commit), None)
    if pair is None:
        return None
    old, field = pair.old, measured.report.field
    stated = {
        name: list(value.value) if isinstance(value.value, tuple) else value.value
        for name, value in old.contract.items()
        if value.source == "metadata"
    }
    own = {"project": old.project, "purpose": "ci", "branch": "upgrade-check", "commit": old.commit}
    return SharedCommitRun(old.run, old.commit, own | stated | {field: measured.report.new_value})


INTERVAL_P = REGRESSION_P
"""One-sided certainty of every interval of the report: no test decides at less, except that of no change."""
INTERVAL = f"{100 * (2 * INTERVAL_P - 1):.3g}{THIN}% interval"

_DIGITS = 5
"""Significant digits of both step times, one more than elsewhere, so that they give the printed change."""


def _step_time(milliseconds: float) -> str:
    value, unit = (milliseconds, "ms") if milliseconds < 10_000 else (milliseconds / 1000, "s")
    decimals = max(0, _DIGITS - len(str(int(value))))
    return f"{grouped(value, decimals)}{THIN}{unit}"


def stack_rows(measured: MeasuredUpgrade) -> tuple[ComparedStackRow, ...]:
    pairs = measured.report.pairs
    titles = titles_of([pair.new for pair in pairs], measured.report.field)
    named = zip(pairs, titles, without_common(titles), strict=True)
    return tuple(_stack_row(pair, title, name, measured) for pair, title, name in named)


def near_rows(report: UpgradeReport) -> tuple[NearRow, ...]:
    titles = titles_of([near.new for near in report.near], report.field)
    return tuple(
        NearRow(title, near.new.run, near.old.run, differences(near.differences))
        for near, title in zip(report.near, titles, strict=True)
    )


def lonely_rows(report: UpgradeReport) -> tuple[LonelyRow, ...]:
    sides = [(run, report.new_value) for run in report.only_old] + [(run, report.old_value) for run in report.only_new]
    titles = titles_of([run for run, _ in sides], report.field)
    return tuple(
        LonelyRow(title, run.run, run.stack_key, missing) for (run, missing), title in zip(sides, titles, strict=True)
    )


def titles_of(runs: Sequence[RunRecord], field: str) -> list[str]:
    """Return a one-line title per job, with the differing fields where two have the same title.

    Where two still have, the job comes first: a narrow chart cuts the end.
    """
    contracts = [{name: stated for name, stated in run.contract.items() if name != field} for run in runs]
    titles = [stack_title(contract) for contract in contracts]
    alike: dict[str, list[Mapping[str, Stated]]] = {}
    for contract, title in zip(contracts, titles, strict=True):
        alike.setdefault(title, []).append(contract)
    apart = {title: _apart(group) for title, group in alike.items()}
    full = [
        SEPARATOR.join([title, *(field_words(name, contract[name].value) for name in apart[title] if name in contract)])
        for contract, title in zip(contracts, titles, strict=True)
    ]
    jobs: dict[str, list[str]] = {}
    for run, title in zip(runs, full, strict=True):
        jobs.setdefault(title, []).append(run.job)
    short = {title: [short_job(job, of_title) for job in of_title] for title, of_title in jobs.items()}
    return [
        SEPARATOR.join([short_job(run.job, jobs[title]) if _are_distinct(short[title]) else run.job, title])
        if run.job and len(jobs[title]) > 1
        else title
        for run, title in zip(runs, full, strict=True)
    ]


def _are_distinct(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


def _apart(alike: Sequence[Mapping[str, Stated]]) -> list[str]:
    """Return the first fields in which contracts with one title differ."""
    names = (name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name not in _IN_TITLE)
    return [name for name in names if len({_comparable(name, run) for run in alike}) > 1][:_MOST_APART]


def _comparable(name: str, contract: Mapping[str, Stated]) -> object:
    return comparable(name, contract[name].value) if name in contract else None


def _stack_row(pair: Pair, title: str, name: str, measured: MeasuredUpgrade) -> ComparedStackRow:
    verdict = pair.measured
    return ComparedStackRow(
        title=title,
        name=name,
        stack_key=pair.new.stack_key,
        old_stack_key=pair.old.stack_key,
        job=pair.new.job,
        word=pair.word,
        time=verdict.step_time,
        before=_step_time(verdict.step_time.baseline_ms) if verdict.step_time else "",
        after=_step_time(verdict.step_time.candidate_ms) if verdict.step_time else "",
        memory=verdict.memory,
        old_runs=verdict.baseline_used,
        new_runs=verdict.candidates_used,
        cost=measured.costs.get(pair.new.run),
        is_slower=pair.new.run in measured.costs,
        provisional=pair.comparability.unknown if pair.comparability.provisional else (),
        shares_commits=pair.shares_commits,
        discovery=pair.discovery,
        also=differences(pair.differs_besides(measured.report.field)),
        is_judged=pair.is_judged,
        is_counted=pair.is_counted,
        already_slow=pair.already_slow if pair.word == "already slow" else None,
    )
