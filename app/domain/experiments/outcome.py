"""The A/B of an experiment: the verdict's own test over the runs that count, and what it is worth.

The test is planned for a number of runs a side. It may be looked at whenever a run comes in, so before that number is
there it decides only what is surer by as much as there are looks: waiting for a lucky moment gains nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.domain.detection import DroppedRun, Prior, Verdict, judge, throughput_pct
from app.domain.detection.baseline import select_baseline
from app.domain.detection.metric_changes import metric_changes
from app.domain.detection.step_time import decide_step_time
from app.domain.detection.values import Decision
from app.domain.evidence import EvidenceLevel
from app.domain.experiments.joining import Applicant, Enrolment, differences, why_not
from app.domain.experiments.sentences import result_sentence
from app.domain.experiments.values import ExperimentResult, Gain, Side, Winner
from app.domain.matching import Comparability, RunRecord, compare_contracts
from app.domain.run import Metric
from app.domain.suspect_evidence import value_text

ONE_SIDE_ONLY = "no run of the other side is of its commit"
LEVELS: tuple[EvidenceLevel, ...] = ("smoke", "screen", "matched_ab", "validated")


@dataclass(frozen=True, slots=True)
class Member:
    """A run that belongs to an experiment. `level`: the evidence level of the run by itself."""

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
class Rules:
    """`runs_each`: the planned number; `prior`: what is known of run-to-run variation beforehand; `extensions`: how
    often the number was changed after there was something to see."""

    runs_each: int
    prior: Prior
    extensions: int = 0

    @property
    def looks(self) -> int:
        """How often the result can be looked at until the planned number is there."""
        return max(1, 2 * self.runs_each - 1)


def outcome(members: Sequence[Member], enrolment: Enrolment, rules: Rules) -> ExperimentResult:
    """`members`: in the order in which they came. The same members give the same result."""
    left_out = {one.name: why for one in members if (why := why_not(one.applicant, one.side, enrolment))}
    left_out |= _of_other_commits([one for one in members if one.name not in left_out])
    sides: dict[Side, list[Member]] = {"baseline": [], "candidate": []}
    for one in members:
        if one.name in left_out:
            continue
        if len(sides[one.side]) == rules.runs_each:
            left_out[one.name] = f"it came after the {rules.runs_each} runs that were planned for its side"
        else:
            sides[one.side].append(one)
    result = ExperimentResult(
        baseline=tuple(one.name for one in sides["baseline"]),
        candidate=tuple(one.name for one in sides["candidate"]),
        left_out=tuple(DroppedRun(one.name, left_out[one.name]) for one in members if one.name in left_out),
        semantic_class=enrolment.baseline.semantic_class,
    )
    measured = _measured(result, sides, enrolment, rules) if all(sides.values()) else result
    return replace(measured, sentence=result_sentence(measured, rules.runs_each))


def _of_other_commits(members: Sequence[Member]) -> dict[str, str]:
    """Once a commit ran on both sides, what ran on one side only says as much about the code as about the knob."""
    of = {side: {one.run.commit for one in members if one.side == side} for side in ("baseline", "candidate")}
    both = (of["baseline"] & of["candidate"]) - {""}
    if not both:
        return {}
    return {one.name: ONE_SIDE_ONLY for one in members if one.run.commit not in {*both, ""}}


def _measured(
    result: ExperimentResult, sides: Mapping[Side, Sequence[Member]], enrolment: Enrolment, rules: Rules
) -> ExperimentResult:
    new, old = (tuple(one.run.estimate for one in sides[side]) for side in ("candidate", "baseline"))
    directional = all(one.short for one in old)
    looks = len(new) + len(old) - 1
    # Its looks are planned and paid for (`_decided`), so the verdict has none to warn of.
    verdict = judge(new, old, rules.prior, directional=directional)
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
        metrics=metric_changes(verdict, {one.name: one.metrics for side in sides.values() for one in side}),
        gain=None if time is None else Gain(*throughput_pct(time)),
        evidence_level=level,
        evidence_because=because,
        **_attribution(compared),
        looks=looks,
        early=finished and not enough,
        finished=finished,
        winner=_winner(decided, verdict, alarmed=alarmed) if finished else "",
        warnings=warnings,
    )


def _attribution(compared: Comparability) -> dict[str, str]:
    """The one field that differs and its values; nothing where the code may be the cause."""
    field = compared.attributed_to
    if field is None or compared.other_code:
        return {}
    (one,) = (one for one in (*compared.stack, *compared.knobs) if one.field == field)
    return {"attributed_to": field, "from_value": value_text(one.a), "to_value": value_text(one.b)}


def _decided(
    verdict: Verdict, sides: Mapping[Side, Sequence[Member]], rules: Rules, *, enough: bool, directional: bool
) -> Decision:
    """What the test says at this look, of step time alone."""
    time = verdict.step_time
    if time is None or time.reruns_apart_pct is not None or (directional and not enough):
        return "inconclusive"
    estimates = {one.name: one.run.estimate for side in sides.values() for one in side}
    against = select_baseline(
        [estimates[name] for name in verdict.baseline_used], rules.prior.variance, also_short=directional
    )
    looks = 1 + rules.extensions if enough else rules.looks + rules.extensions
    return decide_step_time([estimates[name] for name in verdict.candidates_used], against, rules.prior, looks=looks)


def _winner(decided: Decision, verdict: Verdict, *, alarmed: bool) -> Winner:
    """A faster side that needs more memory, or whose loss is worse, has not won."""
    if decided == "regression" or alarmed:
        return "baseline"
    return "candidate" if decided == "improvement" and verdict.decision == "improvement" else ""


def _warnings(
    sides: Mapping[Side, Sequence[Member]],
    enrolment: Enrolment,
    compared: Comparability,
    rules: Rules,
) -> tuple[str, ...]:
    found = []
    if len(compared.stack) + len(compared.knobs) > 1:
        fields = ", ".join(f"`{one.field}`" for one in (*compared.stack, *compared.knobs))
        found.append(f"Several fields differ ({fields}): the result is attributed to none of them.")
    if compared.other_code:
        found.append("The two sides are of different commits: the difference may be the code's.")
    unknown = Counter(
        one.field
        for side, members in sides.items()
        for member in members
        for one in differences(member.run, enrolment.expected(side))
        if not one.is_certain and not one.field.startswith("env.")
    )
    if unknown:
        fields = ", ".join(f"`{name}`" for name, _ in unknown.most_common(6))
        found.append(f"Known on some runs only, and so not known to be equal: {fields}.")
    unproven = [knob.field for knob in enrolment.knobs if _is_unproven(sides["candidate"], knob.field)]
    if unproven:
        found.append(f"No line of the logs shows that {', '.join(f'`{name}`' for name in unproven)} was active.")
    if rules.extensions:
        found.append("The number of runs was changed after there was something to see, so more certainty is asked for.")
    return tuple(found)


def _is_unproven(candidates: Sequence[Member], field: str) -> bool:
    known = [(one.applicant.activity or {}).get(field) for one in candidates]
    return any(one is not None and one.active is None for one in known)


def _level(
    sides: Mapping[Side, Sequence[Member]], compared: Comparability, verdict: Verdict, *, finished: bool
) -> tuple[EvidenceLevel, str]:
    """The level of the result, and why it is no higher."""
    members = [one for side in sides.values() for one in side]
    weakest = min((one.level for one in members), key=_place)
    if verdict.step_time is None or _place(weakest) == 0:
        return "smoke", "a run of it has too few steady iterations to screen anything"
    if any(all(one.run.estimate.short for one in side) for side in sides.values()):
        return "screen", "a side has nothing but short runs"
    if compared.kind not in ("matched_ab", "contrast") or len(compared.knobs) + len(compared.stack) != 1:
        return "screen", "not exactly one field is known to differ"
    if compared.other_code:
        return "screen", "the two sides are of different commits"
    if weakest != "validated":
        return "matched_ab", "not every run is validated: 50 steps, healthy, a declared or long steady window"
    return ("validated", "") if finished else ("matched_ab", "the planned runs are not all there")


def _place(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else 0
