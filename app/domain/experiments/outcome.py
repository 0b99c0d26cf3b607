"""The result of an experiment: the verdict's test over the runs that count, and its evidence level.

The test is planned for a number of runs per side. Evaluating it after each upload requires more certainty before that
number is reached, so that waiting for a lucky moment gains nothing.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.values import same_value
from app.domain.experiments.plan import POWER, runs_that_decide, turned
from app.domain.experiments.values import SIDES, ExperimentResult, JoinedBy, KnobChange, PlannedGain, Side, Winner
from app.domain.numbers import THIN, contract_value, gain_change, level_text, plural, signed
from app.domain.run import EVIDENCE_LEVELS, VALIDATED_STEPS, Activity, EvidenceLevel, Metric, Stated, Value
from app.domain.text import coded_names
from app.domain.verdict.comparability import Comparability, Difference, compare_contracts, differing
from app.domain.verdict.decide import judge, metric_changes, notes
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.evidence import value_text
from app.domain.verdict.record import RunRecord
from app.domain.verdict.special import t_quantile
from app.domain.verdict.step_time import (
    Decision,
    DroppedRun,
    Prior,
    RunEstimate,
    Verdict,
    decide_step_time,
    select_baseline,
    throughput_pct,
    within,
)

# --- Which side of an experiment a run is on, and why it may not count.
#
# A run with the tag belongs to the experiment in any case; without a tag its config key decides. It counts if its
# active (not only requested) values match its side and its figures are comparable.

_MOST_LISTED = 4


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The criteria for runs of an experiment. `baseline`: the run that it was planned from."""

    baseline: RunRecord
    tag: str
    baseline_key: str
    candidate_key: str
    knobs: tuple[KnobChange, ...]
    since: datetime

    def expected(self, side: Side) -> Mapping[str, Stated]:
        """Return the contract that runs of a side should have."""
        return self.baseline.contract if side == "baseline" else turned(self.baseline.contract, self.knobs)


@dataclass(frozen=True, slots=True)
class Applicant:
    """A run that may belong to an experiment. `activity`: requested and active values."""

    run: RunRecord
    created_at: datetime
    tags: tuple[str, ...] = ()
    activity: Mapping[str, Activity] | None = None

    @property
    def name(self) -> str:
        return self.run.run

    def requested(self, field: str) -> Value:
        """Return the requested value where a log distinguishes it from the active one, else the contract's."""
        activity = (self.activity or {}).get(field)
        if activity is not None and activity.requested is not None:
            return activity.requested.value
        stated = self.run.contract.get(field)
        return None if stated is None else stated.value


def side_of(applicant: Applicant, enrolment: Enrolment) -> tuple[Side, JoinedBy] | None:
    """Return the side of a run; None when it does not belong to the experiment. Depends only on its arguments."""
    run = applicant.run
    if run.project != enrolment.baseline.project:
        return None
    if run.run == enrolment.baseline.run:
        return "baseline", "plan"
    if enrolment.tag in applicant.tags:
        return _tagged_side(applicant, enrolment), "tag"
    if applicant.created_at < enrolment.since or not _is_meant(run, enrolment.baseline):
        return None
    if run.config_key == enrolment.baseline_key:
        return "baseline", "config"
    return ("candidate", "config") if run.config_key == enrolment.candidate_key != "" else None


def _is_meant(run: RunRecord, baseline: RunRecord) -> bool:
    """Return whether a run is meant for the experiment.

    Nightly runs of other commits also have the configuration of the baseline, but are not part of an experiment.
    """
    return run.purpose == "experiment" or (run.commit != "" and run.commit == baseline.commit)


def _tagged_side(applicant: Applicant, enrolment: Enrolment) -> Side:
    """Return the side that the upload states, else that of the requested configuration."""
    sides = [side for side in SIDES if side in applicant.tags]
    if len(sides) == 1:
        return sides[0]
    asked = [same_value(knob.field, applicant.requested(knob.field), knob.before) for knob in enrolment.knobs]
    return "baseline" if all(asked) and asked else "candidate"


def why_not(applicant: Applicant, side: Side, enrolment: Enrolment) -> str:
    """Return why a run does not count on its side, regardless of other runs; empty when it does."""
    run = applicant.run
    not_finite = run.estimate.not_finite_iterations
    return (
        run.unfit_because
        or run.estimate.unusable_because
        or (f"the loss was not finite in {not_finite} iterations" if not_finite else "")
        or _measured_otherwise(run, enrolment.baseline)
        or _not_active(applicant, side, enrolment.knobs)
        or _other_configuration(run, enrolment.expected(side))
    )


def _measured_otherwise(run: RunRecord, baseline: RunRecord) -> str:
    if run.definition_version != baseline.definition_version:
        return "its metrics use a different definition version than the baseline run"
    if run.semantic_class != baseline.semantic_class:
        classes = [record.semantic_class.replace("_", " ") for record in (run, baseline)]
        return f"its class is {classes[0]}, that of the baseline run is {classes[1]}"
    if run.fair_for_timing != baseline.fair_for_timing:
        return "only one of this run and the baseline run was slowed down by timers"
    return "" if run.has_shape_of(baseline) else "its model has a different shape"


def _not_active(applicant: Applicant, side: Side, knobs: Sequence[KnobChange]) -> str:
    """Return the reason when a knob was requested but another value was active."""
    for knob in knobs:
        wanted = knob.after if side == "candidate" else knob.before
        activity = (applicant.activity or {}).get(knob.field)
        if activity is None or activity.requested is None or activity.active is None or activity.agrees is not False:
            continue
        if same_value(knob.field, activity.requested.value, wanted):
            why = f" ({activity.active.detail})" if activity.active.detail else ""
            active = contract_value(activity.active.value)
            return f"`{knob.field}` = {contract_value(wanted)} was requested, but {active} was active{why}"
    return ""


def _other_configuration(run: RunRecord, expected: Mapping[str, Stated]) -> str:
    """Return the reason when known key members differ from those of its side."""
    differing_fields = [difference for difference in differences(run, expected) if difference.is_certain]
    if not differing_fields:
        return ""
    texts = [
        f"`{other.field}` is {_value(other.b)}, not {_value(other.a)}" for other in differing_fields[:_MOST_LISTED]
    ]
    more = f" and {len(differing_fields) - _MOST_LISTED} more" if len(differing_fields) > _MOST_LISTED else ""
    return f"its configuration differs from its side: {'; '.join(texts)}{more}"


def differences(run: RunRecord, expected: Mapping[str, Stated]) -> list[Difference]:
    """Return differences: `a` is the side's value, `b` the run's; uncertain where one is unknown."""
    return list(differing((*STACK_FIELDS, *CONFIG_FIELDS), expected, run.contract))


def _value(stated: Stated | None) -> str:
    return "unknown" if stated is None else contract_value(stated.value)


# --- The sentence of an experiment's result. Certainty uses the words of verdicts.


def result_sentence(result: ExperimentResult, runs_each: int) -> str:
    """Return the result with the change of step time, its interval, and the number of runs."""
    verdict = result.verdict
    if verdict is None:
        return _nothing_yet(result, runs_each)
    rests_on = f"{plural(len(result.candidate), 'run')} against {len(result.baseline)}"
    if verdict.step_time is None or result.gain is None:
        return f"The step time cannot be compared ({rests_on}). {verdict.reason}"
    change = gain_change(result.gain.pct, result.gain.low_pct, result.gain.high_pct)
    interval = f" ({change.interval} at {level_text(verdict.step_time.interval_level_pct)})" if change.interval else ""
    measured = f"{change.figure}{interval}, {rests_on}"
    if not result.finished:
        return f"So far {measured}. No decision before {runs_each} runs per side are complete."
    early = " Decided early, by the stricter test for interim looks." if result.early else ""
    if result.winner:
        return f"The change is {measured}.{_guards(verdict)}{early}"
    if verdict.decision == "no_change":
        return f"No difference: {measured}. The two sides are equivalent {within(verdict.step_time)}."
    undecided = f"Inconclusive: {measured}"
    if result.excluded_gain_pct is not None:
        undecided = f"{excluded_text(result.excluded_gain_pct)}: {change.figure}, {rests_on}"
    return f"{undecided}.{_guards(verdict)}"


def excluded_text(pct: float) -> str:
    """Return `No gain of 2 % or more`."""
    return f"No gain of {pct:g}{THIN}% or more"


def short_result(result: ExperimentResult) -> str:
    """Return the change of step time for the lead of a run of either side; why there is none yet, if there is none."""
    verdict, gain = result.verdict, result.gain
    if verdict is None or gain is None:
        return result.sentence
    change = f"B is {_gained(gain)}."
    if not result.finished:
        return f"So far {change}"
    begin = {"no_change": "No difference: ", "inconclusive": "Inconclusive: "}.get(result.decision, "")
    begin = begin if result.excluded_gain_pct is None else "No gain: "
    return f"{begin}{change}{_guards(verdict)}"


def document_of_side(document: VerdictDocument, result: ExperimentResult) -> VerdictDocument:
    """Return the verdict document of a run that was made for an experiment: B against A, by the experiment's test.

    `document`: the run's own, which compares it with the nearest runs of its stack. Only a failure is the run's own.
    """
    if document.decision == "failed":
        return document
    verdict = result.verdict or Verdict(
        "no_baseline", result.sentence, notes=(), candidates_used=result.candidate, baseline_used=result.baseline,
        dropped=(), prior=document.verdict.prior,
    )  # fmt: skip
    return replace(
        document,
        verdict=replace(verdict, decision=result.decision, reason=short_result(result)),
        candidates=result.candidate,
        baseline_kind="experiment",
        baseline=result.baseline,
        metrics=result.judged_metrics,
        left_out=(),
        more_left_out=0,
        suspects=(),
        misses=(),
        contrast=None,
        since_upgrade=None,
        other_branch=None,
        rests_on=None,
        raises_regression=False,
    )


def _gained(gain: PlannedGain) -> str:
    return gain_change(gain.pct, gain.low_pct, gain.high_pct).text


def _nothing_yet(result: ExperimentResult, runs_each: int) -> str:
    missing = [side for side in ("baseline", "candidate") if not result.counted(side)]
    return f"No run of the {' and none of the '.join(missing)} counts yet; {runs_each} per side are planned."


def _guards(verdict: Verdict) -> str:
    """Return the sentence on memory and loss where they decide the result."""
    reasons = []
    if verdict.memory is not None and verdict.memory.decision == "regression":
        reasons.append(f"memory changed by {signed(verdict.memory.delta_pct)}")
    if verdict.loss is not None and verdict.loss.decision == "worse":
        reasons.append("its loss is clearly worse")
    return f" But {' and '.join(reasons)}." if reasons else ""


ONE_SIDE_ONLY = "the other side has no run at its commit"


@dataclass(frozen=True, slots=True)
class ExperimentMember:
    """A run of an experiment. `level`: the evidence level of the single run."""

    applicant: Applicant
    side: Side
    level: str
    metrics: Mapping[str, Metric | None]

    @property
    def run(self) -> RunRecord:
        return self.applicant.run

    @property
    def name(self) -> str:
        return self.applicant.name


@dataclass(frozen=True, slots=True)
class OutcomeRules:
    """`runs_each`: the planned number; `prior`: the run-to-run variation assumed beforehand.

    `extensions`: how often the number was changed after a result existed. `noise`: standard error within one run, as
    planned (ln).
    """

    runs_each: int
    prior: Prior
    extensions: int = 0
    noise: float = 0.0

    @property
    def looks(self) -> int:
        """Return how many looks at the result are possible until the planned number is reached."""
        return max(1, 2 * self.runs_each - 1)


def outcome(members: Sequence[ExperimentMember], enrolment: Enrolment, rules: OutcomeRules) -> ExperimentResult:
    """Compute the result. `members`: in order of arrival. The same members give the same result."""
    left_out = {member.name: why for member in members if (why := why_not(member.applicant, member.side, enrolment))}
    left_out |= _of_other_commits([member for member in members if member.name not in left_out])
    sides: dict[Side, list[ExperimentMember]] = {"baseline": [], "candidate": []}
    for entry in members:
        if entry.name in left_out:
            continue
        if len(sides[entry.side]) == rules.runs_each:
            left_out[entry.name] = f"its side already has the {rules.runs_each} planned runs"
        else:
            sides[entry.side].append(entry)
    result = ExperimentResult(
        baseline=tuple(side.name for side in sides["baseline"]),
        candidate=tuple(side.name for side in sides["candidate"]),
        left_out=tuple(DroppedRun(member.name, left_out[member.name]) for member in members if member.name in left_out),
        semantic_class=enrolment.baseline.semantic_class,
    )
    measured = _measured(result, sides, enrolment, rules) if all(sides.values()) else result
    return replace(measured, sentence=result_sentence(measured, rules.runs_each))


def _of_other_commits(members: Sequence[ExperimentMember]) -> dict[str, str]:
    """Return reasons for runs of commits that ran on one side only, once another commit ran on both.

    Their difference may come from the code instead of the knob.
    """
    of = {side: {member.run.commit for member in members if member.side == side} for side in ("baseline", "candidate")}
    both = (of["baseline"] & of["candidate"]) - {""}
    if not both:
        return {}
    return {member.name: ONE_SIDE_ONLY for member in members if member.run.commit not in {*both, ""}}


def _measured(
    result: ExperimentResult,
    sides: Mapping[Side, Sequence[ExperimentMember]],
    enrolment: Enrolment,
    rules: OutcomeRules,
) -> ExperimentResult:
    new, old = (tuple(item.run.estimate for item in sides[side]) for side in ("candidate", "baseline"))
    directional = all(estimate.short for estimate in old)
    looks = len(new) + len(old) - 1
    # The test accounts for these looks (`_decided`), so the verdict needs no warning about them.
    verdict = _with_more_runs(judge(new, old, rules.prior, directional=directional), rules)
    enough = min(len(new), len(old)) >= rules.runs_each
    decided = _decided(verdict, sides, rules, enough=enough, directional=directional)
    finished = enough or decided in ("improvement", "regression")
    compared = compare_contracts(sides["baseline"][-1].run, sides["candidate"][-1].run)
    warnings = _warnings(sides, enrolment, compared, rules)
    level, because = _level(sides, compared, verdict, finished=finished)
    time = verdict.step_time
    alarmed = verdict.decision == "regression"
    return replace(
        result,
        left_out=(*result.left_out, *verdict.dropped),
        baseline=verdict.baseline_used,
        candidate=verdict.candidates_used,
        verdict=verdict,
        metrics=metric_changes(verdict, {member.name: member.metrics for side in sides.values() for member in side}),
        gain=None if time is None else PlannedGain(*throughput_pct(time)),
        paired=None if time is None else paired_gain(old, new, time.interval_p),
        evidence_level=level,
        evidence_because=because,
        **_attribution(compared),
        looks=looks,
        early=finished and not enough,
        finished=finished,
        winner=_winner(decided, verdict, alarmed=alarmed) if finished else "",
        warnings=warnings,
    )


def _with_more_runs(verdict: Verdict, rules: OutcomeRules) -> Verdict:
    """Return the verdict with the further runs per side that would decide, by the calculation of the plan.

    Where the planned variation is refuted, because its number of runs did not decide, the measured one counts.
    """
    time = verdict.step_time
    if time is None or time.decision != "inconclusive" or time.reruns_apart_pct is not None:
        return verdict
    each = runs_that_decide(rules.prior, rules.noise, time.shift)
    if each is not None and each <= rules.runs_each:
        measured = replace(rules.prior, variance=max(rules.prior.variance, time.run_to_run_sd**2))
        each = runs_that_decide(measured, rules.noise, time.shift)
    more = None if each is None else max(1, each - rules.runs_each)
    sized = replace(verdict, step_time=replace(time, need_runs=more, alternative=None, power=POWER))
    return replace(sized, notes=notes(sized))


FEWEST_PAIRS = 3


def paired_gain(baseline: Sequence[RunEstimate], candidate: Sequence[RunEstimate], p: float) -> PlannedGain | None:
    """Return the gain from the pairs of an alternating order, the first runs of both sides together, and so on.

    `p`: the certainty of each end of its interval, that of the test (`StepTimeChange.interval_p`).

    The runs of a pair are neighbours in time, so drift of the cluster cancels. Student's interval of the mean
    difference of ln(step time); it decides nothing, because the test was planned for independent runs.
    """
    pairs = list(zip(baseline, candidate, strict=False))
    if len(pairs) < FEWEST_PAIRS:
        return None
    shorter = [old.log_step_time - new.log_step_time for old, new in pairs]
    half = t_quantile(p, len(pairs) - 1) * statistics.stdev(shorter) / math.sqrt(len(pairs))
    middle = statistics.fmean(shorter)
    return PlannedGain(*(100 * math.expm1(value) for value in (middle, middle - half, middle + half)))


def _attribution(compared: Comparability) -> dict[str, str]:
    """Return the only differing field and its values; nothing when the code may be the cause."""
    field = compared.attributed_to
    if field is None or compared.other_code:
        return {}
    (changed,) = (difference for difference in (*compared.stack, *compared.knobs) if difference.field == field)
    return {"attributed_to": field, "from_value": value_text(changed.a), "to_value": value_text(changed.b)}


def _decided(
    verdict: Verdict,
    sides: Mapping[Side, Sequence[ExperimentMember]],
    rules: OutcomeRules,
    *,
    enough: bool,
    directional: bool,
) -> Decision:
    """Return the decision of the test at this look, for step time alone."""
    time = verdict.step_time
    if time is None or time.reruns_apart_pct is not None or (directional and not enough):
        return "inconclusive"
    estimates = {member.name: member.run.estimate for side in sides.values() for member in side}
    against = select_baseline(
        [estimates[name] for name in verdict.baseline_used], rules.prior.variance, also_short=directional
    )
    looks = 1 + rules.extensions if enough else rules.looks + rules.extensions
    return decide_step_time([estimates[name] for name in verdict.candidates_used], against, rules.prior, looks=looks)


def _winner(decided: Decision, verdict: Verdict, *, alarmed: bool) -> Winner:
    """Return the winner. A faster side that needs more memory, or whose loss is worse, does not win."""
    if decided == "regression" or alarmed:
        return "baseline"
    return "candidate" if decided == "improvement" and verdict.decision == "improvement" else ""


def _warnings(
    sides: Mapping[Side, Sequence[ExperimentMember]],
    enrolment: Enrolment,
    compared: Comparability,
    rules: OutcomeRules,
) -> tuple[str, ...]:
    warnings = []
    if len(compared.stack) + len(compared.knobs) > 1:
        fields = coded_names(difference.field for difference in (*compared.stack, *compared.knobs))
        warnings.append(f"Several fields differ ({fields}): the result cannot be attributed to any of them.")
    if compared.other_code:
        warnings.append("The two sides are at different commits, so the code may cause the difference.")
    unknown = Counter(
        difference.field
        for side, members in sides.items()
        for member in members
        for difference in differences(member.run, enrolment.expected(side))
        if not difference.is_certain and not difference.field.startswith("env.")
    )
    if unknown:
        fields = coded_names(name for name, _ in unknown.most_common(6))
        warnings.append(f"Known for some runs only, so they may differ: {fields}.")
    unproven = [knob.field for knob in enrolment.knobs if _is_unproven(sides["candidate"], knob.field)]
    if unproven:
        warnings.append(f"The logs do not confirm that {', '.join(f'`{name}`' for name in unproven)} was active.")
    if rules.extensions:
        warnings.append("The number of runs was changed after results were visible, so the test is stricter.")
    return tuple(warnings)


def _is_unproven(candidates: Sequence[ExperimentMember], field: str) -> bool:
    activities = [(candidate.applicant.activity or {}).get(field) for candidate in candidates]
    return any(activity is not None and activity.active is None for activity in activities)


def _level(
    sides: Mapping[Side, Sequence[ExperimentMember]], compared: Comparability, verdict: Verdict, *, finished: bool
) -> tuple[EvidenceLevel, str]:
    """Return the evidence level of the result, and why it is not higher."""
    members = [member for side in sides.values() for member in side]
    weakest = min((member.level for member in members), key=_place)
    if verdict.step_time is None or _place(weakest) == 0:
        return "smoke", "a run has too few steady iterations"
    if any(all(member.run.estimate.short for member in side) for side in sides.values()):
        return "screen", "one side has only short runs"
    if compared.kind not in ("matched_ab", "contrast") or len(compared.knobs) + len(compared.stack) != 1:
        return "screen", "not exactly one field is known to differ"
    if compared.other_code:
        return "screen", "the two sides are at different commits"
    if weakest != "validated":
        lacking = sum(member.level != "validated" for member in members)
        runs = "no run has" if lacking == len(members) else f"{lacking} of {plural(len(members), 'run')} lack"
        return "matched_ab", f"{runs} {VALIDATED_STEPS} healthy, steady steps"
    return ("validated", "") if finished else ("matched_ab", "not all planned runs are complete")


def _place(level: str) -> int:
    return EVIDENCE_LEVELS.index(level) if level in EVIDENCE_LEVELS else 0
