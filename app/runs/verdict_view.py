"""The verdict of a run as its page shows it: the answer, the baseline, suspects, near misses."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlmodel import Session, col

from app.domain.performance.health import LOSS_NAMES
from app.domain.report.what_changed import AXIS_TITLES, CommitRange, what_changed
from app.domain.verdict.assess import changed_field
from app.domain.verdict.baseline import NearMiss
from app.domain.verdict.comparability import COMMIT, Comparability, Difference
from app.domain.verdict.decide import MetricChange
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.evidence import RankedSuspect
from app.domain.verdict.lead import OngoingRegression
from app.domain.verdict.nodes import SlowNode
from app.domain.verdict.record import PEAK_MEMORY
from app.domain.verdict.regression import Regression
from app.domain.verdict.step_time import LossChange
from app.domain.verdict.words import (
    answer,
    attribution,
    further_notes,
    left_out_runs,
    no_regression_because,
    sides_text,
    what_would_decide,
)
from app.runs.nodes import suspect_nodes
from app.storage.run_answer import run_answer
from app.storage.runs import RunDetail
from app.storage.suspect_evidence import cause_of
from app.storage.tables import RegressionRow, RunRow, select_any
from app.storage.verdicts import (
    RunRegression,
    StoredVerdict,
    verdicts_of,
)

_BASELINES: Mapping[str, str] = {
    "golden": "of the golden run’s commit",
    "same_config": "of the same configuration",
    "last_config": "of the previous configuration",
    "nearest": "of the nearest configuration, not a baseline",
}
_SERIES: Mapping[str, tuple[str, ...]] = {"lm_loss": LOSS_NAMES, "peak_memory_gib": (PEAK_MEMORY,)}
_MOST_LEFT_OUT = 8
_MOST_OLDER = 50
_LONGEST_META = 1500


@dataclass(frozen=True, slots=True)
class LeftOutRuns:
    """Runs of the stack left out of the baseline for one reason; `more` of them are not listed."""

    why: str
    runs: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class DiffersIn:
    field: str
    axis: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SuspectRow:
    """`label`: as that of `RankedSuspect`. `commits`: for a code change, with links."""

    differs: DiffersIn
    reason: str
    evidence: tuple[str, ...]
    label: str
    commits: CommitRange | None


@dataclass(frozen=True, slots=True)
class MissRow:
    """The closest run of the stack; `why` is not empty when it could not be a baseline in any case."""

    run: str
    differs: tuple[DiffersIn, ...]
    alike: int
    why: str


@dataclass(frozen=True, slots=True)
class OlderVerdict:
    """An earlier verdict. `superseded_by`: why the run was judged again."""

    made_at: datetime
    decision: str
    answer: str
    superseded_by: str


@dataclass(frozen=True, slots=True)
class VerdictView:
    """`rerun`: the reruns that the verdict or an unsteady contrast requests, and how to start them; empty for none.
    `badge`: decision and label at the top, and `metric`: what they are about, as in `RunAnswer`. `names`: of mentioned
    runs, by number.

    `as_judged`: as stored, with the commits of the compared runs; `document` has those of the suspected range.
    `baseline_times`: step times (ms) of the baseline, or of the other side of a contrast. `launches_differ_pct`: by how
    much the slowest run of the candidate exceeds the fastest.
    `ab`: the run belongs to an experiment or has another configuration than its baseline, so it opens no regression.
    `lead`: the answer in one short sentence. `direction`: its decision, without a baseline that of the contrast.
    `cause`: the difference that the evidence supports as the cause, None without one. `ongoing`, `elsewhere` and
    `alternates`: as in `RunAnswer`.
    """

    document: VerdictDocument
    as_judged: VerdictDocument
    made_at: datetime
    because: str
    ab: bool
    no_regression_because: str
    badge: tuple[str, str]
    metric: str
    lead: str
    direction: str
    cause: Difference | None
    answer: str
    would_decide: str
    rerun: str
    asks_rerun: bool
    baseline_kind: str
    left_out: tuple[LeftOutRuns, ...]
    suspects: tuple[SuspectRow, ...]
    slow_nodes: tuple[SlowNode, ...]
    misses: tuple[MissRow, ...]
    notes: tuple[str, ...]
    older: tuple[OlderVerdict, ...]
    regressions: tuple[RunRegression, ...]
    names: Mapping[str, str]
    baseline_times: tuple[float, ...]
    launches_differ_pct: float | None
    ongoing: OngoingRegression | None
    elsewhere: tuple[Regression, ...]
    alternates: bool

    @property
    def is_verdict(self) -> bool:
        """Return whether the result decides; a contrast does not."""
        return bool(self.baseline)

    @property
    def decision(self) -> str:
        return self.document.decision

    @property
    def leading_series(self) -> tuple[str, ...]:
        """Return the series that the lead is about; empty for step time."""
        return _SERIES.get(self.metric, ())

    @property
    def leads_with_time(self) -> bool:
        """Return whether `lead` names the run's own step time.

        It does not if it tells a worse loss, more memory or the mean of reruns.
        """
        document = self.document
        if self.metric != "step_time_ms" or len(document.verdict.candidates_used) > 1:
            return False
        is_alone = not document.misses and document.other_branch is None
        contrast = document.contrast
        is_measured = contrast is not None and not contrast.is_unconfirmed
        return document.decision != "no_baseline" or is_measured or is_alone

    @property
    def metrics(self) -> Mapping[str, MetricChange | None]:
        """Return the changes of the verdict, or of the contrast when there is no baseline.

        A job that alternates has only one of memory: the mean of two levels of step time is no level to compare with.
        """
        contrast = self.document.contrast
        changes = contrast.metrics if contrast is not None and not self.baseline else self.document.metrics
        return (
            {"peak_memory_gib": changes.get("peak_memory_gib")} if self.alternates and len(self.judged) < 2 else changes
        )

    @property
    def judged(self) -> tuple[str, ...]:
        """Return the runs whose mean `metrics` are about."""
        contrast = self.document.contrast
        verdict = contrast.measured if contrast is not None and not self.baseline else self.document.verdict
        return verdict.candidates_used

    @property
    def baseline(self) -> tuple[str, ...]:
        return self.document.verdict.baseline_used

    @property
    def attribution(self) -> str:
        """Return what the difference from the other side of the contrast can be attributed to; empty without one."""
        return attribution(self.document.contrast.comparability) if self.document.contrast else ""

    @property
    def more_left_out(self) -> int:
        return self.document.more_left_out

    @property
    def baseline_ms(self) -> float | None:
        """Return the centre of the baseline, or of the other side of a contrast, as the verdict computed it."""
        time = self.document.measured
        return None if time is None else time.baseline_ms

    @property
    def baseline_label(self) -> str:
        """Return the name of these runs in charts."""
        if self.document.baseline_kind == "nearest":
            return "nearest configuration"
        if self.baseline or self.document.contrast is None:
            return "baseline"
        return sides_text(changed_field(self.document.contrast.comparability))[0]

    @property
    def earlier_loss(self) -> LossChange | None:
        """Return the worse loss that an earlier run began, where the lead names something else; else None."""
        loss = self.document.verdict.loss
        return loss if loss is not None and loss.since and self.metric != "lm_loss" else None

    @property
    def compared_with(self) -> tuple[str, ...]:
        """Return the runs for the compare page: the baseline, the other side of the contrast, or the nearest run."""
        contrast, misses = self.document.contrast, self.document.misses
        if self.baseline or contrast is not None:
            return self.baseline or (contrast.compared_with if contrast else ())
        return (misses[0].run,) if misses else ()

    @property
    def differs(self) -> Comparability | None:
        """Return what differs from the newest of `compared_with`; None without a run to compare with."""
        document = self.as_judged
        return document.compared or (document.misses[0].comparability if document.misses else None)

    @property
    def compare_query(self) -> str:
        """Return the query of the compare page; empty without a run to compare with."""
        a, b = ",".join(self.compared_with), ",".join(self.document.candidates)
        return f"a={a}&b={b}" if a else ""

    @property
    def reruns(self) -> tuple[str, ...]:
        """Return the other runs of the candidate, judged together with this one."""
        return self.document.candidates if len(self.document.candidates) > 1 else ()


def verdict_view(session: Session, run: RunDetail) -> VerdictView | None:
    """Return the verdict for the page; None until the run is judged."""
    stored = verdicts_of(session, run.id)
    if not stored:
        return None
    newest = stored[0]
    answered = run_answer(session, run, newest.document)
    document = answered.document
    left_out, misses = _left_out(document), tuple(_miss(miss) for miss in document.misses)
    contrast, is_experiment = document.contrast, run.purpose == "experiment"
    mentioned = [*document.baseline, *document.candidates, *(run for group in left_out for run in group.runs)]
    mentioned += [*(miss.run for miss in misses), *(contrast.runs if contrast else ())]
    runs = named_runs(session, mentioned)
    beside = document.verdict.baseline_used or (contrast.measured.baseline_used if contrast else ())
    times = (runs[run].step_time_ms for run in beside if run in runs)
    return VerdictView(
        document=document,
        as_judged=newest.document,
        made_at=newest.made_at,
        because=newest.because,
        ab=answered.ab,
        no_regression_because="" if is_experiment else no_regression_because(document),
        badge=answered.badge,
        metric=answered.metric,
        lead=answered.lead,
        direction=contrast.measured.decision if contrast is not None else document.decision,
        cause=answered.cause,
        answer=answer(document),
        would_decide="" if answered.rerun else what_would_decide(document),
        rerun=answered.rerun,
        asks_rerun=answered.asks_rerun,
        baseline_kind=_BASELINES.get(document.baseline_kind, ""),
        left_out=left_out,
        suspects=_suspects(run, document, answered.suspects),
        slow_nodes=suspect_nodes(session, run.id) if "nodes" in run.contract else (),
        misses=misses,
        notes=further_notes(document),
        older=_older(stored),
        regressions=tuple(
            # A member has suspects of its own, whose commits may begin before those that all jobs share.
            replace(item, cause="")
            if item.is_member and answered.suspects
            else replace(item, cause=cause_of(session, session.get_one(RegressionRow, item.id)))
            for item in answered.regressions
        ),
        names={name: row.name for name, row in runs.items()},
        baseline_times=tuple(time for time in times if time is not None),
        launches_differ_pct=_spread_pct([runs[run].step_time_ms for run in document.candidates if run in runs]),
        ongoing=answered.ongoing,
        elsewhere=answered.elsewhere,
        alternates=answered.alternates,
    )


def _spread_pct(times_ms: Sequence[float | None]) -> float | None:
    """Return by how much the slowest of several launches exceeds the fastest; None unless all are measured."""
    measured = [time for time in times_ms if time]
    if len(measured) < max(2, len(times_ms)):
        return None
    return 100 * (max(measured) / min(measured) - 1)


def rerun_command(base_url: str, run: RunDetail) -> str:
    """Return the command that uploads one more run of this commit, which is pooled with it by commit and config."""
    meta = json.dumps({**run.metadata_stated, "project": run.project, "purpose": run.purpose, "commit": run.commit})
    part = f"meta={meta}" if len(meta) <= _LONGEST_META else "meta=@meta.json"
    return f"curl --fail-with-body -F log=@train.log -F {shlex.quote(part)} {base_url}/api/v1/runs"


def _left_out(document: VerdictDocument) -> tuple[LeftOutRuns, ...]:
    by_reason: dict[str, list[str]] = {}
    for name, why in left_out_runs(document):
        by_reason.setdefault(why, []).append(name)
    return tuple(
        LeftOutRuns(why, tuple(runs[-_MOST_LEFT_OUT:]), max(0, len(runs) - _MOST_LEFT_OUT))
        for why, runs in by_reason.items()
    )


def _suspects(run: RunDetail, document: VerdictDocument, ranked: Iterable[RankedSuspect]) -> tuple[SuspectRow, ...]:
    changed = what_changed(document.compared, commit_url=run.commit_url, compare_url=run.compare_url)
    return tuple(_suspect(suspect, changed.commit_range) for suspect in ranked)


def _suspect(ranked: RankedSuspect, commits: CommitRange | None) -> SuspectRow:
    suspect = ranked.suspect
    difference = suspect.difference
    differs = _differs(difference) if difference else DiffersIn(suspect.field, AXIS_TITLES[suspect.axis], "", "")
    is_commit = difference is not None and suspect.field == COMMIT
    of_commit = commits if is_commit else None
    return SuspectRow(differs, suspect.reason, ranked.evidence, ranked.label, of_commit)


def _miss(miss: NearMiss) -> MissRow:
    differences = (*miss.comparability.stack, *miss.comparability.knobs)
    return MissRow(miss.run, tuple(map(_differs, differences)), miss.alike, miss.never_a_baseline_because)


def _differs(difference: Difference) -> DiffersIn:
    return DiffersIn(difference.field, AXIS_TITLES[difference.axis], *sides_text(difference))


def _older(stored: tuple[StoredVerdict, ...]) -> tuple[OlderVerdict, ...]:
    """Return earlier verdicts, each with the reason of the one that replaced it."""
    pairs = zip(stored[1:], stored, strict=False)
    return tuple(
        OlderVerdict(earlier.made_at, earlier.document.decision, answer(earlier.document), later.because)
        for earlier, later in list(pairs)[:_MOST_OLDER]
    )


def named_runs(session: Session, runs: Iterable[str]) -> dict[str, Row[Any]]:
    """Name and step time of the runs that are still there, by number."""
    ids = {int(run) for run in runs if run.isdigit()}
    chosen = select_any(RunRow.id, RunRow.name, RunRow.step_time_ms).where(col(RunRow.id).in_(ids))
    return {str(row.id): row for row in session.execute(chosen)}
