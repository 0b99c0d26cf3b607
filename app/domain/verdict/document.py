"""The verdict document: everything that is stored, served, shown and reported about one verdict.

Run names are run numbers (as text) in the service and file names on the command line.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from app.domain.numbers import plural
from app.domain.run import Metric
from app.domain.verdict.assess import Assessment, Contrast
from app.domain.verdict.baseline import BaselineKind, LeftOut, NearMiss
from app.domain.verdict.comparability import Comparability, Suspect
from app.domain.verdict.decide import MOST_REQUESTED, MetricChange, metric_changes, reruns_wanted
from app.domain.verdict.policy import Breach, ReferenceMove
from app.domain.verdict.step_time import Outcome, StepTimeChange, Verdict


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """The reruns that would decide a verdict.

    `requested_by`: the first run of the commit, which alone starts reruns, so that none is started twice. `runs`: how
    many are missing. `job` and `command` are empty where the upload did not state them.
    """

    requested_by: int
    runs: int
    commit: str
    config_key: str
    job: str
    command: str


SLOWER, UNCONFIRMED, MORE_MEMORY = "slower", "slower, unconfirmed", "more memory"
"""Labels of a slower run in no regression, confirmed and waiting for a rerun; of a run that only needs more memory."""
ALTERNATES = "alternates"
"""Label of an inconclusive run whose job alternates between two levels. Later runs may show it, so it is not stored."""


@dataclass(frozen=True, slots=True)
class MeasuredContrast:
    """A contrast with `runs` of another stack: not a verdict. `measured.decision` says whether it is certain.

    `same_job`: both sides state the same job, which may have changed in more than one field. `side_by_side`: runs of
    the other side came after this one, so this is not an upgrade.
    """

    runs: tuple[str, ...]
    comparability: Comparability
    measured: Verdict
    metrics: Mapping[str, MetricChange | None]
    same_job: bool = False
    side_by_side: bool = False

    @property
    def compared_with(self) -> tuple[str, ...]:
        """Return the runs of the other side that count; all of them where none could be measured."""
        return self.measured.baseline_used or self.runs

    @property
    def counted(self) -> str:
        """Return how many runs of the other side count: `6 runs`, or `5 of 6 runs` without outliers."""
        used, runs = len(self.measured.baseline_used), plural(len(self.runs), "run")
        return f"{used} of {runs}" if 0 < used < len(self.runs) else runs

    @property
    def is_unconfirmed(self) -> bool:
        """Return whether this is one slower run that is not steady, which may drift for a reason of its own."""
        return self.measured.is_one_drifting_run


@dataclass(frozen=True, slots=True)
class OtherBranch:
    """Runs of the stack that could serve as baseline if the project's baseline branch were theirs.

    `baseline_branch`: the project setting. `branches`: the runs' branches, an empty string where none is stated.
    """

    baseline_branch: str
    branches: tuple[str, ...]
    runs: int


@dataclass(frozen=True, slots=True)
class VerdictDocument:
    """A verdict with its inputs.

    `candidates`: all reruns judged together, oldest first; `verdict.candidates_used`: those that counted. `baseline`:
    the chosen runs, oldest first; `verdict.baseline_used`: those that counted. `comparability`: with the newest run of
    the baseline, None without one. `metrics`: changes by headline figure. `left_out`: the newest runs of the stack that
    are not in the baseline; `more_left_out` counts those not listed. `rests_on`: iterations behind an A/B that only
    gives a direction, else None. `quarantined`: the reason a user gave for excluding the run, else empty. `breaches`:
    fixed limits of the project that its figures break. `reference`: set while the reference job is slow, too.
    `branch_point`: the merge base of a change, after which no run counts; else empty. `since_upgrade`: for the second
    to fifth commit of a stack, what an upgrade changed, over all of its runs so far; the first has it as `contrast`.
    """

    verdict: Verdict
    candidates: tuple[str, ...]
    baseline_kind: BaselineKind
    baseline: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    comparability: Comparability | None
    metrics: Mapping[str, MetricChange | None]
    raises_regression: bool
    suspects: tuple[Suspect, ...] = ()
    misses: tuple[NearMiss, ...] = ()
    contrast: MeasuredContrast | None = None
    definition_version: int = 0
    more_left_out: int = 0
    rests_on: int | None = None
    quarantined: str = ""
    other_branch: OtherBranch | None = None
    breaches: tuple[Breach, ...] = ()
    reference: ReferenceMove | None = None
    branch_point: str = ""
    since_upgrade: MeasuredContrast | None = None

    @property
    def alarms(self) -> bool:
        """Return whether a slowdown counts against the code: not in an A/B, nor while the reference job is slow."""
        return self.raises_regression and self.reference is None

    @property
    def decision(self) -> Outcome:
        return self.verdict.decision

    @property
    def requested_reruns(self) -> int:
        """Number of reruns to request: once for a commit that may have changed the speed, when few would decide."""
        time = self.verdict.step_time
        if not self.alarms or time is None:
            return 0
        return time.awaits if len(self.candidates) > 1 else reruns_wanted(self.verdict)

    @property
    def needs_confirmation(self) -> bool:
        """Return whether a rerun must confirm that the run is slower: one launch, not steady, or few iterations."""
        if self.comparability is None and self.contrast is not None:
            return self.contrast.is_unconfirmed
        time = self.verdict.step_time
        is_short = time is not None and time.needs_confirmation
        return is_short or (self.decision == "regression" and self.requested_reruns > 0)

    @property
    def rerun_decides(self) -> bool:
        """Return whether few reruns would decide an inconclusive verdict, or a contrast of one unsteady run."""
        if self.quarantined:
            return False
        if self.comparability is None:
            time = None if self.contrast is None else self.contrast.measured.step_time
            is_open = time is not None and time.not_steady and time.decision in ("regression", "inconclusive")
            return is_open and len(self.candidates) == 1
        time = self.verdict.step_time
        if time is None or self.decision != "inconclusive" or not self.raises_regression:
            return False
        return time.awaits > 0 or 0 < (time.need_runs or 0) <= MOST_REQUESTED

    @property
    def is_slower(self) -> bool:
        """Return whether the step time makes this a regression."""
        time = self.verdict.step_time
        return time is not None and self.decision == time.decision == "regression"

    @property
    def needs_more_memory(self) -> bool:
        """Return whether memory alone makes this a regression: the step time is not worse, or unknown."""
        return self.decision == "regression" and not self.is_slower and self.verdict.memory is not None

    def badge(self, *, in_regression: Collection[str]) -> tuple[str, str]:
        """Return the decision that pages and lists show, and its label where that says more.

        `in_regression`: the metrics of the regressions that the run is in. The decision is empty for a decided contrast
        that is neither worse and part of a regression, nor waits for a rerun.
        """
        in_slowdown = "step_time_ms" in in_regression
        if self.decision != "no_baseline" or self.contrast is None:
            if self.needs_more_memory:
                return self.decision, MORE_MEMORY
            label = UNCONFIRMED if self.requested_reruns > 0 else SLOWER
            return self.decision, label if self.is_slower and not in_slowdown else ""
        time, memory = self.contrast.measured.step_time, self.contrast.measured.memory
        if in_slowdown and time is not None and time.delta_pct > 0:
            return "regression", ""
        if self.contrast.is_unconfirmed:
            return "regression", UNCONFIRMED
        is_heavier = "peak_memory_gib" in in_regression and memory is not None and memory.decision == "regression"
        if is_heavier:
            return "regression", MORE_MEMORY
        return ("inconclusive", "") if time is not None and time.decision == "inconclusive" else ("", "")

    def leading_metric(self, *, in_regression: Collection[str]) -> str:
        """Return the metric that the lead names, the chart shows, and the suspects explain.

        A loss that is worse since this run comes first, then step time, unless peak memory alone makes the run worse,
        also in a contrast. A loss that was as bad before leads only where the run is no regression.
        """
        loss = self.verdict.loss
        if loss is not None and loss.decision == "worse" and not (loss.since and self.verdict.decision == "regression"):
            return "lm_loss"
        return "peak_memory_gib" if self.badge(in_regression=in_regression)[1] == MORE_MEMORY else "step_time_ms"

    @property
    def upgrade(self) -> MeasuredContrast | None:
        """Return the contrast with the stack before this one, which may be an upgrade (`alarms.upgrade_of`)."""
        return self.contrast if self.comparability is None else self.since_upgrade

    @property
    def compared(self) -> Comparability | None:
        """Return the comparability with the baseline, else with the other side of the contrast."""
        return self.contrast.comparability if self.comparability is None and self.contrast else self.comparability

    @property
    def measured(self) -> StepTimeChange | None:
        """Return the change of step time against the runs that `compared` describes."""
        return (
            self.contrast.measured.step_time if self.comparability is None and self.contrast else self.verdict.step_time
        )

    @property
    def measured_metrics(self) -> Mapping[str, MetricChange | None]:
        """Return the changes of the headline figures against the runs that `compared` describes."""
        return self.contrast.metrics if self.comparability is None and self.contrast else self.metrics

    @property
    def provisional(self) -> bool:
        """Return whether a field that is not stated on both sides may differ."""
        return self.comparability is not None and self.comparability.provisional

    @property
    def to_supply(self) -> tuple[str, ...]:
        """Fields to state: those of the comparison; without a baseline those that may hide a match."""
        if self.comparability is not None:
            return self.comparability.unknown
        missing = (
            name for miss in self.misses for name in miss.comparability.unknown if name in miss.fields or name == "env"
        )
        return tuple(dict.fromkeys(missing))


def verdict_document(
    assessment: Assessment,
    candidates: tuple[str, ...],
    metrics: Mapping[str, Mapping[str, Metric | None]],
    definition_version: int,
) -> VerdictDocument:
    """Assemble the document. `candidates`: names of all reruns; `metrics`: figures by run name."""
    choice, contrast = assessment.choice, assessment.contrast
    return VerdictDocument(
        verdict=assessment.verdict,
        candidates=candidates,
        baseline_kind=choice.kind,
        baseline=tuple(run.run for run in choice.runs),
        left_out=choice.left_out,
        comparability=choice.comparability,
        metrics=metric_changes(assessment.verdict, metrics),
        raises_regression=assessment.raises_regression,
        suspects=assessment.suspects,
        misses=assessment.misses,
        contrast=None if contrast is None else measured_contrast(contrast, metrics),
        definition_version=definition_version,
        rests_on=assessment.rests_on,
    )


def contrast_document(
    comparability: Comparability, measured: Verdict, metrics: Mapping[str, Mapping[str, Metric | None]]
) -> VerdictDocument:
    """Return a comparison of any two sides as a document without a verdict. `metrics`: figures by run name."""
    before, after = measured.baseline_used, measured.candidates_used
    changes = metric_changes(measured, metrics)
    return VerdictDocument(
        verdict=replace(measured, decision="no_baseline"), candidates=after, baseline_kind="none", baseline=before,
        left_out=(), comparability=None, metrics=changes, raises_regression=False,
        contrast=MeasuredContrast(before, comparability, measured, changes),
    )  # fmt: skip


def measured_contrast(contrast: Contrast, metrics: Mapping[str, Mapping[str, Metric | None]]) -> MeasuredContrast:
    """Add the changes of the headline figures. `metrics`: figures by run name."""
    return MeasuredContrast(
        tuple(run.run for run in contrast.runs),
        contrast.comparability,
        contrast.measured,
        metric_changes(contrast.measured, metrics),
        contrast.same_job,
        contrast.side_by_side,
    )
