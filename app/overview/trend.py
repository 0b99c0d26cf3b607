"""The trend of the first page: throughput of each workload against the container before its newest one."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain, groupby, islice, pairwise, takewhile
from statistics import median
from typing import Any, ClassVar

from sqlalchemy import Select, and_, bindparam, func, literal, or_, select, union_all
from sqlmodel import Session, col

from app.domain.contract.resolve import workload
from app.domain.naming import (
    SEPARATOR,
    TitledStack,
    container_tag,
    short_job,
    short_names,
    stack_names,
    stack_title,
    without_common,
)
from app.domain.numbers import THIN, absolute, days_text, short_commit
from app.domain.run import Stated
from app.domain.verdict.history import find_changes
from app.domain.verdict.triage import ACTIVE, counted_jobs
from app.domain.verdict.words import knobs_text
from app.storage import stacks
from app.storage.remembered import Remembered
from app.storage.runs import stored_contracts
from app.storage.suspect_evidence import alternations_of_runs
from app.storage.tables import (
    RegressionMemberRow,
    RegressionRow,
    RunRow,
    StackRow,
    UpgradeChangeRow,
    not_indexed,
    select_any,
)
from app.storage.verdicts import jobs_of_regressions
from app.web import charts

MOST_STACKS, MOST_LINES, MOST_RUNS = 40, 6, 60
"""Stacks that are read, newest first; lines that are drawn; newest runs of each stack."""
MOST_SLOW = 200
"""First slow runs of active regressions that are read, newest regression first."""
EARLIER = "the earlier level"
"""The reference of a line that has no other container."""
FAST = "its fast level"
"""The reference of a job that alternates between two levels: their mean is the level of no run."""
_NOW, _NOW_WITHIN = 3, timedelta(days=14)
"""Newest runs whose median is the current level, and how far back they reach."""
_EARLIER = timedelta(days=90)
"""Time before the period in which the container before is looked for."""
HEIGHT, AXIS = 300, 28
_LANE, _NARROW_LANE, _NARROW, _LEAD = 260, 72, 560, 12
"""Width of the lane right of the lines, for their labels; in drawings narrower than the third, percentages only. Width
of the part of the lane in which a stroke leads from a level to its label."""
_LABEL, _NOTED_LABEL, _NOTE = 15, 29, 13
"""Height of a label, also with a note below its name, and the offset of the note."""
_LONGEST_NAME = 24
"""Characters of a name on one line of the lane; the key and the table have all of it."""
_FLAG_SHARE, _FLAG_LINE, _NARROW_LETTERS = 0.09, 14, 28
"""Width of the number of a flag as a share of the period, and its height in pixels; letters of a container's name that
a phone has room for."""
_WITHIN = 0.5
"""Percent from the reference up to which the throughput counts as equal."""
_COLOURS = tuple(f"--line-{number}" for number in range(1, MOST_LINES + 1))
_TRACKED: Select[Any] = (
    select_any(
        RunRow.id, RunRow.name, RunRow.commit, RunRow.ordered_at, RunRow.step_time_ms, RunRow.tokens_per_s_per_gpu,
        RunRow.job, RunRow.dispatcher, RunRow.gpu, RunRow.stack_key, RunRow.config_key, RunRow.project_id,
        RunRow.purpose,
    )
    .where(
        # Makes SQLite look up the runs of the stack instead of reading all of the project.
        not_indexed(col(RunRow.project_id)) == bindparam("project_id"),
        col(RunRow.stack_key) == bindparam("stack_key"),
        col(RunRow.purpose).in_(("ci", "release")),
        # A run that opened a regression is drawn even if its own step time varies.
        or_(
            and_(col(RunRow.is_steady).is_(True), col(RunRow.short).is_(False)),
            col(RunRow.id).in_(bindparam("slow", expanding=True)),
        ),
        col(RunRow.quarantine) == "",
        col(RunRow.step_time_ms).is_not(None),
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    .limit(MOST_RUNS)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrendLine:
    """A workload over its containers. `runs`: oldest first, with the throughput of each in percent of the reference.
    `earlier`: the last ones before the period, which are not drawn but may belong to the current level.

    `job`: what distinguishes it from the other jobs of the workload; empty if there are none. `project`: its name;
    empty if one project is shown. `reference`: the container before the newest one, `EARLIER` for the level before a
    regression, or `FAST`; empty without these, when the first runs are 100 %. `decision`: whether its step time differs
    from that, by its regression or else its upgrade; empty if that was not judged. `slow_run`: the first slow run of
    its newest active regression. `alternates`: its job moves between two levels, of which its newest run is at the slow
    one. `idle`: its active regression, if that is idle, so that the page does not list it. `unsteady`: newer runs of
    the job in any stack that are not drawn, because they are not steady.
    """

    name: str
    job: str
    project: str
    stack_key: str
    reference: str
    runs: tuple[tuple[Any, float], ...]
    earlier: tuple[tuple[Any, float], ...]
    changed_at: datetime | None
    container: str
    decision: str
    slow_run: int | None
    alternates: bool = False
    idle: int | None = None
    unsteady: int = 0

    @property
    def remarks(self) -> str:
        """Return `R16 idle, 2 newer not steady`; empty without an idle regression and such runs."""
        idle = f"R{self.idle} idle" if self.idle else ""
        return ", ".join(filter(None, (idle, f"{self.unsteady} newer not steady" if self.unsteady else "")))

    def at_two_levels(self, fast_ms: float, *, ends_slow: bool) -> "TrendLine":
        """Return the line of a job that alternates, in percent of its fast level. `ends_slow`: its newest run is at
        the slow one."""
        earlier, runs = (
            tuple((run, 100 * fast_ms / float(run.step_time_ms)) for run, _ in part)
            for part in (self.earlier, self.runs)
        )
        return replace(self, reference=FAST, runs=runs, earlier=earlier, alternates=ends_slow)

    @property
    def levels(self) -> list[tuple[datetime, float]]:
        """Return the throughput at each commit: the median of its runs."""
        at_commit = groupby(self.runs, key=lambda run_at: run_at[0].ordered_at)
        return [(at, median(percent for _, percent in runs)) for at, runs in at_commit]

    @property
    def reconfigured(self) -> tuple[Any, Any, float] | None:
        """Return the runs before and after the current configuration began on its stack, and the throughput after."""
        for (before, _), (after, percent) in reversed([*pairwise(self.runs)]):
            if before.config_key != after.config_key:
                return (before, after, percent) if before.stack_key == after.stack_key else None
        return None

    @property
    def is_reconfigured_since(self) -> bool:
        """Return whether its configuration changed after its newest container began, and may explain its change."""
        return self.changed_at is not None and self.reconfigured is not None

    @property
    def newest(self) -> tuple[tuple[Any, float], ...]:
        """Return the runs that give the current throughput: the newest of one configuration, close in time.

        None of them is before the slow run.
        """
        last = self.runs[-1][0]
        since = last.ordered_at - _NOW_WITHIN
        alike = takewhile(
            lambda shown: shown[0].config_key == last.config_key and shown[0].ordered_at >= since,
            reversed((*self.earlier, *self.runs)),
        )
        newest = list(islice(alike, _NOW))
        slow = next((index for index, (run, _) in enumerate(newest) if run.id == self.slow_run), _NOW)
        return tuple(newest[: slow + 1])[::-1]

    @property
    def now(self) -> float:
        """Return the current throughput in percent of the reference."""
        return median(percent for _, percent in self.newest)

    @property
    def now_text(self) -> str:
        """Return the current throughput as text: `91.4 %`; `alternates` for a job of two levels."""
        return "alternates" if self.alternates else f"{self.now:.1f} %"

    @property
    def judged(self) -> str:
        """Return whether its step time differs from the reference: `slower`, or why that is not said."""
        if self.alternates:
            return "alternates"
        if self.direction:
            return "faster" if self.direction > 0 else "slower"
        named = {"": "not judged", "inconclusive": "inconclusive", "no_change": "no change"}
        return named.get(self.decision, "no longer different")

    @property
    def direction(self) -> int:
        """Return 1 if it is faster than the reference, -1 if it is slower, 0 if neither is judged and still so."""
        if self.alternates:
            return 0
        if self.decision == "improvement" and self.now - 100 > _WITHIN:
            return 1
        return -1 if self.decision == "regression" and 100 - self.now > _WITHIN else 0


@dataclass(frozen=True, slots=True)
class Trend:
    """`flags`: regressions on the drawn lines: number, state, and the run at which each began.

    `is_zoomed`: with some of the runs only. `is_widened`: the requested period had too few runs. `is_part`: other jobs
    ran in the period, too. `not_drawn`: the shown projects without a line. `newest_at`: the position of the newest run,
    drawn or not.
    """

    median_of: ClassVar[int] = _NOW
    median_within: ClassVar[int] = _NOW_WITHIN.days
    lines: tuple[TrendLine, ...]
    flags: tuple[tuple[int, str, Any], ...]
    is_zoomed: bool = False
    is_widened: bool = False
    is_part: bool = False
    not_drawn: tuple[str, ...] = ()
    newest_at: datetime | None = None

    @property
    def dates(self) -> str:
        """Return the days of the first and the last drawn run: `1 to 30 Sep 2026`."""
        times = [run.ordered_at for line in self.lines for run, _ in line.runs]
        return days_text(min(times), max(times))

    @property
    def until(self) -> str:
        """Return the day of the last drawn run, where the period ends; empty if it is widened or nothing is drawn."""
        if self.is_widened or not self.lines:
            return ""
        last = max(run.ordered_at for line in self.lines for run, _ in line.runs)
        return days_text(last, last)

    def zoomed(self, first: int, last: int) -> "Trend":
        """Return the part between two of its runs; all of it if one is not there."""
        places = {run.id: run.ordered_at for line in self.lines for run, _ in line.runs}
        if not {first, last} <= places.keys():
            return self
        begin, end = sorted((places[first], places[last]))
        lines = [
            replace(
                line,
                runs=tuple(shown for shown in line.runs if begin <= shown[0].ordered_at <= end),
                earlier=(*line.earlier, *(shown for shown in line.runs if shown[0].ordered_at < begin)),
                changed_at=line.changed_at if line.changed_at and begin <= line.changed_at <= end else None,
            )
            for line in self.lines
        ]
        flags = (flag for flag in self.flags if begin <= flag[2].ordered_at <= end)
        return replace(self, lines=tuple(line for line in lines if line.runs), flags=tuple(flags), is_zoomed=True)

    @property
    def sentence(self) -> str:
        """Return the range: `Throughput is 2.1 to 9.7 % below train:2026.09.`; empty without a reference.

        Lines with several references or projects, or in both directions, have no range: they are counted. If several
        projects are shown and the lines are of one, it begins `Throughput of moe:`. It counts the lines whose
        configuration changed since then, which may explain their change, unless all did.
        """
        compared = [line for line in self.lines if line.reference and not line.alternates]
        if not compared:
            return ""
        changed = sum(line.is_reconfigured_since for line in compared)
        also = f"; {changed} of {len(self.lines)} jobs reconfigured" if 0 < changed < len(compared) else ""
        changes, projects = [line.now - 100 for line in compared], {line.project for line in compared}
        is_mixed = len(projects) > 1 or len({line.reference for line in compared}) > 1
        project = projects.pop() if len(projects) == 1 else ""
        low, high = min(changes), max(changes)
        is_equal = max(-low, high) < _WITHIN
        if not is_equal and (is_mixed or low < -_WITHIN < _WITHIN < high):
            return f"{project}: {self._counted(compared)}" if project else self._counted(compared)
        subject = f"Throughput of {project}:" if project else "Throughput is"
        side = "below" if -low > high else "above"
        range_text = f"equal to {self.reference}" if is_equal else f"{_percents(changes)} {side} {self.reference}"
        return f"{subject} {range_text}{also}."

    def _counted(self, compared: Sequence[TrendLine]) -> str:
        """Return `2 of 6 drawn jobs judged faster, 3 slower.`, or `Up to 25.8 % lower throughput in 3 of 6 drawn jobs.`

        It counts judged differences among all lines.
        """
        faster = [line for line in compared if line.direction > 0]
        slower = [line for line in compared if line.direction < 0]
        of_all = f"of {len(self.lines)} {'drawn jobs' if self.is_part else 'jobs'}"
        if not faster and not slower:
            return f"None {of_all} clearly faster or slower."
        if faster and slower:
            return f"{len(faster)} {of_all} judged faster, {len(slower)} slower."
        most, side = max(abs(line.now - 100) for line in faster or slower), "higher" if faster else "lower"
        up_to = "Up to " if len(faster or slower) > 1 else ""
        return f"{up_to}{most:.1f}{THIN}% {side} throughput in {len(faster or slower)} {of_all}."

    @property
    def against(self) -> list[str]:
        """Return the reference of each line, `vs. 26.02`; empty texts if all lines have the same."""
        references = [line.reference for line in self.lines]
        images = {name.partition(":")[0] for name in references if name not in ("", EARLIER, FAST)}
        tags = [name.rpartition(":")[2] if len(images) == 1 else name for name in references]
        return [f"vs. {tag}" if tag and len(set(references)) > 1 else "" for tag in tags]

    @property
    def reference(self) -> str:
        """Return what 100 % is, if it is the same for all lines."""
        references = {line.reference for line in self.lines} - {""}
        return references.pop() if len(references) == 1 else EARLIER


def _percents(changes: Sequence[float]) -> str:
    """Return the sizes of changes to one side, `2.1 to 9.7 %`; a slight one to the other side counts as 0."""
    low, high = min(changes), max(changes)
    near, far = (f"{max(end, 0):.1f}" for end in ((-high, -low) if -low > high else (low, high)))
    return f"{near if near == far else f'{near} to {far}'} %"


def read_trend(session: Session, days: int, project_id: int | None, branch: str, projects: Mapping[int, str]) -> Trend:
    """Return the lines of the workloads with the newest runs, over `days` days. `projects`: names for the lines.

    They end at the newest run of a stack with several, so that a first run of something else hides no trend. A period
    without a line is widened.
    """
    chosen = select(StackRow).where(col(StackRow.runs) > 0).order_by(col(StackRow.last_at).desc())
    if project_id is not None:
        chosen = chosen.where(col(StackRow.project_id) == project_id)
    stacks = session.execute(chosen.limit(MOST_STACKS)).scalars().all()
    if not stacks:
        return Trend((), ())
    earliest = stacks[0].last_at - timedelta(days=days) - _EARLIER
    slow, current, idle = _slow_runs(session, project_id)
    recent = [stack for stack in stacks if stack.last_at >= earliest]
    parts = [
        (stack, ([run for run in runs if run.ordered_at >= earliest], contract))
        for stack, (runs, contract) in zip(recent, _tracked(session, recent, branch, slow), strict=True)
    ]
    repeated = [runs[-1].ordered_at for _, (runs, _) in parts if len(runs) > 1]
    newest = stacks[0].last_at
    if not repeated:
        return Trend((), (), newest_at=newest)
    workloads: dict[tuple[Any, ...], list[_Part]] = {}
    for stack, part in parts:
        if part[0]:
            workloads.setdefault((stack.project_id, *workload(part[1])), []).append(part)
    since = max(repeated) - timedelta(days=days)
    for begin in (since, since - _EARLIER):
        lines, is_part = _lines(session, list(workloads.values()), begin, slow, projects, current=current)
        if any(len(line.runs) > 1 for line in lines):
            flags = tuple(_flags(session, lines))
            unsteady = _newer_unsteady(session, lines)
            lines = [
                replace(line, idle=idle.get(line.slow_run or 0), unsteady=unsteady.get(line.runs[-1][0].id, 0))
                for line in _of_two_levels(session, lines)
            ]
            not_drawn = tuple(sorted({*projects.values()} - {line.project for line in lines}))
            return Trend(
                tuple(lines), flags, is_widened=begin < since, is_part=is_part, not_drawn=not_drawn, newest_at=newest
            )
    return Trend((), (), newest_at=newest)


def _of_two_levels(session: Session, lines: Sequence[TrendLine]) -> list[TrendLine]:
    """Return the lines, those of jobs that alternate in percent of their fast level."""
    ends = [(line.runs[-1][0].id, max(line.runs, key=lambda shown: shown[0].step_time_ms)[0].id) for line in lines]
    levels = alternations_of_runs(session, [*{*chain.from_iterable(ends)}])
    return [
        line.at_two_levels(both[0], ends_slow=last in levels)
        if (both := levels.get(last) or levels.get(slowest))
        else line
        for line, (last, slowest) in zip(lines, ends, strict=True)
    ]


def _newer_unsteady(session: Session, lines: Sequence[TrendLine]) -> dict[int, int]:
    """Return, by the last run of each line, how many newer runs of its job are not steady, if any."""
    ids = [line.runs[-1][0].id for line in lines]
    newer = [
        select_any(literal(last.id).label("last"), func.count().label("runs")).where(
            col(RunRow.project_id) == last.project_id,
            col(RunRow.gpu).is_not_distinct_from(last.gpu),
            col(RunRow.ordered_at) > last.ordered_at,
            # An index has the runs of a project on a GPU by time, which are few after this one.
            not_indexed(col(RunRow.stack_key if not last.job else RunRow.job)) == (last.job or last.stack_key),
            *(
                not_indexed(col(getattr(RunRow, name))).is_not_distinct_from(getattr(last, name))
                for name in ("purpose", "model", "gpus", "dispatcher")
            ),
            col(RunRow.is_steady).is_(False),
            col(RunRow.quarantine) == "",
        )
        for last in session.execute(select(RunRow).where(col(RunRow.id).in_(ids))).scalars()
    ]
    return {row.last: row.runs for row in session.execute(union_all(*newer)) if row.runs}


_Part = tuple[Sequence[Any], Mapping[str, Stated]]
"""The runs of a workload in one of its containers, oldest first, and the contract of the newest."""

_remembered_parts = Remembered[_Part](400)
"""Runs of stacks, until one of them changes or another regression begins or ends."""


def _tracked(session: Session, stacks: Sequence[StackRow], branch: str, slow: Collection[int]) -> list[_Part]:
    """Return the newest runs of each stack with the contract of the newest; without runs, an empty contract."""
    database = str(session.get_bind().engine.url)
    parts, unread = {}, {}
    for stack in stacks:
        part = _remembered_parts.find((database, stack.stack_key, branch), (stack.revision, *slow))
        if part is not None:
            parts[stack.stack_key] = part
            continue
        chosen = _TRACKED.where(not_indexed(col(RunRow.branch)) == branch) if branch else _TRACKED
        values = {"project_id": stack.project_id, "stack_key": stack.stack_key, "slow": list(slow)}
        unread[stack.stack_key] = stack.revision, session.execute(chosen, values).all()[::-1]
    contracts = stored_contracts(session, [runs[-1].id for _, runs in unread.values() if runs])
    for key, (revision, runs) in unread.items():
        parts[key] = runs, contracts[runs[-1].id] if runs else {}
        _remembered_parts.keep((database, key, branch), (revision, *slow), parts[key])
    return [parts[stack.stack_key] for stack in stacks]


_Job = tuple[int, str, str | None, str | None]
"""Project, job, dispatcher and GPU."""


def _slow_runs(session: Session, project_id: int | None) -> tuple[dict[int, str], dict[int, _Job], dict[int, int]]:
    """Return the first slow runs of active regressions of step time with the kind of the regression, the jobs of those
    whose regression is not idle, and the idle regressions of the others.

    Those of recovered stacks are left out.
    """
    chosen = (
        select_any(
            RegressionMemberRow.run_id, RegressionRow.id, RegressionRow.kind, RegressionRow.proposal,
            RunRow.project_id, RunRow.job, RunRow.dispatcher, RunRow.gpu,
        )
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(
            col(RegressionRow.state).in_(ACTIVE),
            col(RegressionRow.metric) == "step_time_ms",
            col(RegressionMemberRow.proposal) != "fixed",
            *([col(RegressionRow.project_id) == project_id] if project_id is not None else []),
        )
        .order_by(col(RegressionRow.id).desc())
        .limit(MOST_SLOW)
    )  # fmt: skip
    newest_last = [*reversed(session.execute(chosen).all())]  # the newest regression of a run wins
    kinds = {row.run_id: row.kind for row in newest_last}
    current = {
        row.run_id: (row.project_id, row.job, row.dispatcher, row.gpu) for row in newest_last if row.proposal != "stale"
    }
    return kinds, current, {row.run_id: row.id for row in newest_last if row.run_id not in current}


def _lines(
    session: Session,
    workloads: Sequence[Sequence[_Part]],
    since: datetime,
    slow: Mapping[int, str],
    projects: Mapping[int, str],
    *,
    current: Mapping[int, _Job],
) -> tuple[list[TrendLine], bool]:
    """Return at most MOST_LINES lines: those of active regressions first, then those with newer runs.

    A regression that is idle chooses the job of a line only if none in `current` does. Also return whether jobs are
    left out.
    """
    leading, slow_jobs = [], {*current.values()}
    for parts in workloads:
        runs = sorted((run for runs, _ in parts for run in runs), key=lambda run: (run.ordered_at, run.id))
        drawn = [run for run in runs if run.ordered_at >= since]
        jobs = {(run.job, run.dispatcher) for run in drawn}
        # Jobs of a workload differ in speed; the line belongs to the regressed one, which may be slow for longer.
        slow_runs = [run for run in runs if run.id in slow and (run.job, run.dispatcher) in jobs]
        # The first slow run may be older than the runs that are read.
        of_job = [run for run in drawn if run.job and (run.project_id, run.job, run.dispatcher, run.gpu) in slow_jobs]
        active = [run for run in slow_runs if run.id in current] or of_job
        if slow_runs or len(drawn) > 1:
            leading.append((bool(active), drawn[-1].ordered_at, (active or slow_runs or drawn)[-1], parts))
    leading.sort(key=lambda line: line[:2], reverse=True)
    lines: list[TrendLine] = []
    own: list[_Part] = []
    for _, _, run, parts in leading:
        line = _line(session, parts, run, since, projects=projects, slow=slow)
        if line is not None:
            lines.append(line)
            own.append(max(parts, key=lambda part: part[0][-1].ordered_at))
        if len(lines) == MOST_LINES:
            break
    is_part = len(lines) < len(leading) or any(line.job for line in lines)
    return [replace(line, name=name) for line, name in zip(lines, _names(own), strict=True)], is_part


def _names(newest: Sequence[_Part]) -> list[str]:
    """Return short names without what all lines share."""
    titled = []
    for runs, contract in newest:
        plain = {name: stated for name, stated in contract.items() if name != "container"}
        values = {name: stated.value for name, stated in plain.items() if stated.value is not None}
        titled.append(TitledStack(runs[-1].stack_key, stack_title(plain, dispatcher=False), "", values))
    names = stack_names(titled)
    return without_common([names[stack.stack_key] for stack in titled])


def _line(
    session: Session,
    parts: Sequence[_Part],
    leading: Any,
    since: datetime,
    *,
    projects: Mapping[int, str],
    slow: Mapping[int, str],
) -> TrendLine | None:
    """Return the line of a workload, still without name: the runs with the job and the dispatcher of `leading`.

    After a first slow run (`slow`), one run in the period is enough.
    """
    own = [
        ([run for run in runs if (run.job, run.dispatcher) == (leading.job, leading.dispatcher)], contract)
        for runs, contract in parts
    ]
    own = sorted(((runs, contract) for runs, contract in own if runs), key=lambda part: part[0][-1].ordered_at)
    last = own[-1][0][-1]
    runs = sorted((run for part, _ in own for run in part), key=lambda run: (run.ordered_at, run.id))
    drawn = [run for run in runs if run.ordered_at >= since]
    if len(drawn) < 2 and leading.id not in slow:
        return None
    begins = own[-1][0][0].ordered_at
    of_regression = {"first": leading, "kind": slow[leading.id]} if leading.id in slow else {"first": last}
    reference, usual_ms, decision = _usual(session, own, **of_regression)
    whole = tuple((run, 100 * usual_ms / float(run.step_time_ms)) for run in runs)
    earlier, shares = whole[: -len(drawn)][-_NOW:], whole[-len(drawn) :]
    changed_at = begins if reference not in ("", EARLIER) and begins >= since else None
    project = projects.get(last.project_id, "")
    jobs = {run.job for part, _ in parts for run in part}
    job = short_job(leading.job, jobs) if len(jobs) > 1 else ""
    slow_run = leading.id if leading.id in slow else None
    tag = _tag(own[-1][1])
    return TrendLine("", job, project, last.stack_key, reference, shares, earlier, changed_at, tag, decision, slow_run)


# Built once, because building them takes as much time as running them.
_LIKE = (
    not_indexed(col(RunRow.project_id)) == bindparam("project_id"),
    col(RunRow.job) == bindparam("job"),
    col(RunRow.dispatcher).is_not_distinct_from(bindparam("dispatcher")),
)
_UPGRADE_OF_LINE: Select[Any] = (
    select_any(
        UpgradeChangeRow.from_value, UpgradeChangeRow.level, UpgradeChangeRow.delta_pct, UpgradeChangeRow.decision
    )
    .join(RunRow, col(RunRow.id) == UpgradeChangeRow.run_id)
    .where(
        col(UpgradeChangeRow.project_id) == bindparam("project_id"),
        col(UpgradeChangeRow.stack_key) == bindparam("stack_key"),
        col(UpgradeChangeRow.field) == "container",
        col(UpgradeChangeRow.side_by_side).is_(False),
        *_LIKE,
    )
    .order_by(col(UpgradeChangeRow.at))
    .limit(1)
)
_LEVEL_OF_LINE: Select[Any] = (
    select_any(RegressionMemberRow.usual_level)
    .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .where(
        col(RegressionMemberRow.stack_key) == bindparam("stack_key"),
        col(RegressionMemberRow.usual_level).is_not(None),
        col(RegressionRow.metric) == "step_time_ms",
        col(RegressionRow.state) != "invalid",
        col(RegressionRow.kind) == bindparam("kind"),
        *_LIKE,
    )
    .order_by(col(RegressionRow.id).desc())
    .limit(1)
)


def _usual(session: Session, own: Sequence[_Part], *, first: Any, kind: str = "") -> tuple[str, float, str]:
    """Return what 100 % is, its step time, and the decision about the change: the level before a regression.

    The regression has the `kind` and the stack and job of `first`; without a kind, an upgrade if there was one. Without
    a regression, a measured upgrade gives the level; else the last one of the container before, or of the first runs.
    """
    of_line = {
        "project_id": first.project_id, "stack_key": first.stack_key, "job": first.job, "dispatcher": first.dispatcher,
    }  # fmt: skip
    earlier = own[: next(place for place, (runs, _) in enumerate(own) if runs[0].stack_key == first.stack_key)]
    step = session.execute(_UPGRADE_OF_LINE, of_line).one_or_none()
    tag = step.from_value.partition("@")[0].rpartition("/")[2] if step else _tag(earlier[-1][1]) if earlier else ""
    # After an upgrade only its own regression compares with the container before.
    kind = kind or ("upgrade" if tag else "run")
    usual = session.execute(_LEVEL_OF_LINE, of_line | {"kind": kind}).scalar_one_or_none()
    if usual is not None:
        return tag if tag and kind == "upgrade" else EARLIER, math.exp(usual), "regression"
    if step:
        return tag, math.exp(step.level) / (1 + step.delta_pct / 100), step.decision
    before = [math.log(run.step_time_ms) for run in earlier[-1][0]] if earlier else []
    if before:
        return tag, math.exp(find_changes(before).current.level), ""
    return "", median(float(run.step_time_ms) for run in own[-1][0][:_NOW]), ""


def _tag(contract: Mapping[str, Stated]) -> str:
    return container_tag(contract) or "the earlier container"


def _flags(session: Session, lines: Sequence[TrendLine]) -> list[tuple[int, str, Any]]:
    """Return the regressions whose counted jobs began to be slow at a drawn run."""
    drawn = {run.id: run for line in lines for run, _ in line.runs}
    on_lines = (
        select_any(RegressionRow.id, RegressionRow.state, RegressionMemberRow.run_id)
        .join(RegressionMemberRow, col(RegressionMemberRow.regression_id) == RegressionRow.id)
        .where(
            col(RegressionMemberRow.stack_key).in_({run.stack_key for run in drawn.values()}),
            col(RegressionRow.metric) == "step_time_ms",
            col(RegressionRow.state) != "invalid",
        )
    )
    states = {row.id: row.state for row in session.execute(on_lines) if row.run_id in drawn}
    jobs = jobs_of_regressions(session, states) if states else {}
    firsts = {number: [job[0].run_id for job in counted_jobs(own)] for number, own in jobs.items()}
    began = select_any(RunRow.id, RunRow.ordered_at).where(col(RunRow.id).in_(chain.from_iterable(firsts.values())))
    at = {row.id: row.ordered_at for row in session.execute(began)} if firsts else {}
    flags = []
    for number, runs in sorted(firsts.items()):
        first = min(at[run] for run in runs)
        run_id = next((run for run in runs if at[run] == first and run in drawn), None)
        if run_id is not None:
            flags.append((number, states[number], drawn[run_id]))
    return flags


@dataclass(frozen=True, slots=True)
class SlowerConfiguration:
    """A job that is slower since its configuration changed, which opens no regression. `run_id`: its first run."""

    line: str
    knob: str
    before: int
    run_id: int
    delta_pct: float


def slower_configurations(session: Session, trend: Trend) -> tuple[SlowerConfiguration, ...]:
    """Return the lines whose current configuration was found slower than the one before."""
    changed = {line.reconfigured[1].id: (line, line.reconfigured[0]) for line in trend.lines if line.reconfigured}
    judged = select_any(RunRow.id, RunRow.verdict_delta_pct).where(
        col(RunRow.id).in_(changed), col(RunRow.verdict) == "regression", col(RunRow.verdict_delta_pct).is_not(None)
    )
    slower = session.execute(judged).all() if changed else []
    knobs = changed_knobs(session, trend) if slower else {}
    return tuple(
        SlowerConfiguration(line.name, knobs[row.id], before.id, row.id, row.verdict_delta_pct)
        for row in slower
        for line, before in (changed[row.id],)
    )


# --- The chart. Each line has its own hue, which its label and the key share.


def changed_knobs(session: Session, trend: Trend) -> dict[int, str]:
    """Return what changed with the current configuration of each line, by its first run: `permute_fusion off`."""
    pairs = [(line.reconfigured[0].id, line.reconfigured[1].id) for line in trend.lines if line.reconfigured]
    return {after: knobs_text(knobs) for (_, after), knobs in stacks.changed_knobs(session, pairs).items()}


def trend_chart(trend: Trend, knobs: Mapping[int, str]) -> dict[str, Any]:
    """Return the Vega-Lite specification; a click on a point opens its run, on a flag its regression.

    `knobs`: what `changed_knobs` returns.
    """
    points: list[dict[str, Any]] = []
    flags: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    levels: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    current: list[dict[str, Any]] = []
    names = _in_two_parts(short_names([line.name for line in trend.lines]))
    for number, (line, name, against) in enumerate(zip(trend.lines, names, trend.against, strict=True)):
        for run, percent in line.runs:
            points.append(
                {
                    "id": run.id, "at": _milliseconds(run), "shown": percent, "line": number, "href": f"/runs/{run.id}",
                    "run": f"#{run.id} {run.name}", "share": f"{percent:.1f} %",
                    "when": absolute(run.ordered_at),
                    "commit": short_commit(run.commit) or "unknown",
                    "workload": SEPARATOR.join(filter(None, (line.name, line.job))),
                    "tokens": "unknown" if (speed := run.tokens_per_s_per_gpu) is None else f"{speed:,.0f}",
                }
            )  # fmt: skip
        levels += [{"at": at.timestamp() * 1000, "shown": percent, "line": number} for at, percent in line.levels]
        if line.reconfigured is not None:
            before, after, percent = line.reconfigured
            changes.append(
                {
                    "at": _milliseconds(after), "shown": percent, "line": number, "text": knobs[after.id],
                    "href": f"/compare?a={before.id}&b={after.id}", "tip": f"#{before.id} → #{after.id}",
                }
            )  # fmt: skip
        label = {"percent": line.now_text, "name": name[0]}
        label["note"] = SEPARATOR.join(filter(None, (line.remarks, name[1], line.job, against)))
        labels.append({"shown": line.now, "now": line.now, "line": number, **label})
        first, last = (_milliseconds(run) for run in (line.newest[0][0], line.newest[-1][0]))
        current.append(
            {"from": max(first, _milliseconds(line.runs[0][0])), "to": last, "shown": line.now, "line": number}
        )
    for changed_at, container in sorted({(line.changed_at, line.container) for line in trend.lines if line.changed_at}):
        if not any(mark["text"] == container for mark in marks):
            marks.append({"at": changed_at.timestamp() * 1000, "text": container, "narrow": container})
    for number, state, run in sorted(trend.flags, key=lambda flag: _milliseconds(flag[2])):
        text = {"text": f"R{number}", "href": f"/regressions/{number}", "tip": f"Regression {number}, {state}"}
        flags.append({"at": _milliseconds(run), "height": HEIGHT - 8, "text_at": HEIGHT - 22, **text})
    begin, end = (ends(row["at"] for row in points) for ends in (min, max))
    span = end - begin
    for flag in flags:
        # At the left edge, half of the number would cover the axis.
        flag["align"] = "left" if flag["at"] - begin < span * _FLAG_SHARE / 4 else "center"
    _stack(flags, span * _FLAG_SHARE)
    usual = [] if trend.is_zoomed else [100.0]
    low, high = _range([*(point["shown"] for point in points), *usual])
    # The flags have a lane below the lines.
    lane = HEIGHT - min((flag["text_at"] for flag in flags), default=HEIGHT)
    lane += _FLAG_LINE if flags else 0
    low -= (high - low) * lane / (HEIGHT - lane)
    for mark in marks:
        mark["foot"] = HEIGHT - lane  # so that no flag stands on the line of its container
    label_height = _NOTED_LABEL if any(label["note"] for label in labels) else _LABEL
    charts.spread_labels(labels, "shown", (high - low) / HEIGHT * label_height)
    for mark in marks:
        mark["align"] = "right" if end - mark["at"] < span * len(mark["text"]) / _NARROW_LETTERS else "left"
    for release, later in pairwise(marks):
        letters = len(release["text"]) + (len(later["text"]) if later["align"] == "right" else 0)
        if later["at"] - release["at"] < span * letters / _NARROW_LETTERS:
            release["narrow"] = ""
    data = {"levels": levels, "points": points, "labels": labels, "releases": marks, "flags": flags}
    data |= {"changes": changes, "current": current}
    data["ends"] = [{"shown": value} for value in (low, high, *usual)]
    drawn = frozenset(name for name, rows in data.items() if rows)
    of = "each job's earlier level" if trend.reference == EARLIER and len(trend.lines) > 1 else trend.reference
    title = f"throughput, % of {of}" if any(line.reference for line in trend.lines) else "throughput, %"
    spec = dict(_specification(title, drawn))
    spec["datasets"] = {name: rows for name, rows in data.items() if rows}
    spec["description"] = f"{len(trend.lines)} jobs: {title}."
    return spec


def _in_two_parts(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return names for the lane; if some are too long, the model and what differs from its other lines."""
    if all(len(name) <= _LONGEST_NAME for name in names):
        return [(name, "") for name in names]
    models = [name.partition(SEPARATOR)[0] for name in names]
    parts = []
    for model, name in zip(models, names, strict=True):
        alike = [name for of, name in zip(models, names, strict=True) if of == model]
        own = without_common(alike)[alike.index(name)] if len(set(alike)) > 1 else ""
        parts.append((model, own))
    return parts


def _stack(flags: Sequence[dict[str, Any]], apart: float) -> None:
    """Move the numbers of flags that would overlap upwards. `flags`: sorted by time."""
    for before, flag in pairwise(flags):
        if flag["at"] - before["at"] < apart:
            flag["text_at"] = before["text_at"] - _FLAG_LINE


def _milliseconds(run: Any) -> float:
    return float(run.ordered_at.timestamp() * 1000)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return an axis that includes every value."""
    margin = max(0.08 * (max(values) - min(values)), 1.0)
    return min(values) - margin, max(values) + margin


@lru_cache(maxsize=16)
def _specification(title: str, drawn: frozenset[str]) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    axis = alt.Axis(labelOverlap=True, labelSeparation=12, labelExpr=charts.TIME_LABEL)
    lane = f"(width < {_NARROW} ? {_NARROW_LANE} : {_LANE})"
    # The lines end before the lane of their labels.
    x = alt.X(
        "at:T", title=None, scale=alt.Scale(type="utc", nice=False, range=[0, alt.expr(f"width - {lane}")]), axis=axis
    )
    share = alt.Axis(labelExpr="datum.value + ' %'", tickCount=5)
    y = alt.Y("shown:Q", title=title, scale=alt.Scale(zero=False, nice=False), axis=share)
    hues = alt.Scale(domain=list(range(MOST_LINES)), range=list(_COLOURS))
    colour = alt.Color("line:N", scale=hues, legend=None)
    tip = {"run": "run", "workload": "workload", "throughput": "share", "tokens/s/GPU": "tokens"}
    tip |= {"commit": "commit", "when": "when"}
    row = "{" + ", ".join(f"'{label}': datum.{field}" for label, field in tip.items()) + "}"
    points, labels = alt.Chart(alt.NamedData("points")), alt.Chart(alt.NamedData("labels"))
    releases, flags = alt.Chart(alt.NamedData("releases")), alt.Chart(alt.NamedData("flags"))
    changes, current = alt.Chart(alt.NamedData("changes")), alt.Chart(alt.NamedData("current"))
    text = alt.expr(f"width < {_NARROW} ? datum.percent : datum.percent + '  ' + datum.name")
    wide_only = alt.expr(f"width < {_NARROW} ? '' : datum.text")
    layers = {
        "ends": [
            alt.Chart(alt.NamedData("ends")).mark_rule(opacity=0).encode(y=y),
        ],
        "releases": [
            releases.mark_rule(color=charts.MUTED, strokeDash=[2, 3]).encode(
                x=x, y=alt.value(0), y2=alt.value(alt.expr("datum.foot"))
            ),
            releases.mark_text(
                align=alt.expr(f"width < {_NARROW} ? datum.align : 'left'"),
                dx=alt.expr(f"width < {_NARROW} && datum.align == 'right' ? -5 : 5"),
                baseline="top",
                color=charts.MUTED,
            ).encode(x=x, y=alt.value(0), text=alt.value(alt.expr(f"width < {_NARROW} ? datum.narrow : datum.text"))),
        ],
        "points": [
            alt.Chart(alt.NamedData("levels")).mark_line(strokeWidth=1.75, opacity=0.8).encode(x, y, colour),
            points.mark_point(filled=True, size=26, opacity=1, cursor="pointer")
            .encode(x, y, colour, href=alt.Href("href:N"), tooltip=alt.value(alt.expr(row)))
            .add_params(alt.selection_interval(name="zoom", encodings=["x"])),
        ],
        "current": [
            current.mark_rule(strokeWidth=5, opacity=0.35).encode(x=alt.X("from:T"), x2="to:T", y=y, color=colour),
            current.mark_rule(strokeDash=[1, 3]).encode(
                x=alt.X("to:T"), x2=alt.value(alt.expr(f"width - {lane}")), y=y, color=colour
            ),
        ],
        "changes": [
            changes.mark_point(size=120, strokeWidth=1.5, cursor="pointer").encode(
                x, y, colour, href=alt.Href("href:N"), tooltip=alt.Tooltip("tip:N", title="configuration")
            ),
            changes.mark_text(align="right", baseline="top", dx=-4, dy=6).encode(
                x=x, y=y, color=colour, text=alt.value(wide_only), href=alt.Href("href:N")
            ),
        ],
        "labels": [
            labels.mark_rule().encode(
                x=alt.value(alt.expr(f"width - {lane}")),
                x2=alt.value(alt.expr(f"width - {lane} + {_LEAD}")),
                y=alt.Y("now:Q", title=title),
                y2="shown:Q",
                color=colour,
            ),
            labels.mark_text(align="left", baseline="middle", fontWeight=600, limit=_LANE - _LEAD).encode(
                x=alt.value(alt.expr(f"width - {lane} + {_LEAD + 3}")), y=y, color=colour, text=alt.value(text)
            ),
            labels.mark_text(
                align="left", baseline="middle", dy=_NOTE, fontSize=10, color=charts.MUTED, limit=_LANE - _LEAD
            ).encode(
                x=alt.value(alt.expr(f"width - {lane} + {_LEAD + 3}")),
                y=y,
                text=alt.value(alt.expr(f"width < {_NARROW} ? '' : datum.note")),
            ),
        ],
        "flags": [
            flags.mark_point(
                shape="triangle-down", filled=True, size=90, opacity=1, color=charts.SPIKE, cursor="pointer"
            ).encode(
                x,
                y=alt.Y("height:Q", scale=None, axis=None),
                href=alt.Href("href:N"),
                tooltip=alt.Tooltip("tip:N", title="flag"),
            ),
            flags.mark_text(
                fontWeight=600,
                color=charts.SPIKE,
                align=alt.expr("datum.align"),
                dx=alt.expr("datum.align == 'left' ? 3 : 0"),
            ).encode(x=x, y=alt.Y("text_at:Q", scale=None, axis=None), text="text:N", href=alt.Href("href:N")),
        ],
    }
    chart = alt.layer(*(layer for name, of_name in layers.items() if name in drawn for layer in of_name))
    return charts.finished(chart, HEIGHT)
