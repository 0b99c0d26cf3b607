"""The workflow state of a run: six phases, each done, open or blocked, with the reason."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.numbers import plural
from app.domain.rules.derive import WallReading
from app.domain.rules.engine import Evaluation, Suggestion
from app.domain.rules.rule import PHASES, Phase
from app.domain.run import VALIDATED_STEPS

State = Literal["done", "open", "blocked"]
QUESTIONS: Mapping[Phase, str] = {
    "contract": "What must stay equal for a fair comparison?",
    "fit": "Does the job fit into memory on every rank?",
    "scale": "Is the work distributed well over the GPUs?",
    "profile": "Where is the step time spent?",
    "retune": "What reduces the measured wall?",
    "validate": "Does the result hold for real training?",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One phase. `because`: a sentence; `rules`: the ids behind it, blockers and gates first."""

    phase: Phase
    question: str
    state: State
    because: str
    rules: tuple[str, ...] = ()
    suggestions: int = 0


@dataclass(frozen=True, slots=True)
class TuningPhases:
    """All six phases in order. `current`: the first that is not done. `wall`: what limits the step."""

    steps: tuple[Step, ...]
    current: Phase | None
    wall: WallReading

    def step(self, phase: Phase) -> Step:
        return next(step for step in self.steps if step.phase == phase)

    def sentence_of(self, run_id: int) -> str:
        """Return the current phase of the run, which are done, and why the current one is not."""
        done = [step.phase for step in self.steps if step.state == "done"]
        if self.current is None:
            return f"All {len(self.steps)} phases of #{run_id} are done."
        because = self.step(self.current).because
        before = f"; {', '.join(done)} done" if done else ""
        return f"Phase of #{run_id}: {self.current} open{before}. {because}"


def tuning_phases(evaluation: Evaluation, accepted: Collection[str] = ()) -> TuningPhases:
    """Return the workflow state of a run from its evaluation. `accepted`: rules whose change an experiment accepted,
    which are no longer candidates.
    """
    undecided = tuple(item for item in evaluation.suggestions if item.rule.id not in accepted)
    evaluation = replace(evaluation, suggestions=undecided)
    steps: list[Step] = []
    for phase in PHASES:
        steps.append(_step(phase, evaluation, steps))
    current = next((step.phase for step in steps if step.state != "done"), None)
    return TuningPhases(tuple(steps), current, evaluation.wall)


def _step(phase: Phase, evaluation: Evaluation, before: Sequence[Step]) -> Step:
    blockers = [blocker for blocker in evaluation.blockers if blocker.rule.phase == phase]
    suggestions = [suggestion for suggestion in evaluation.suggestions if suggestion.rule.phase == phase]
    warnings = _scale_warnings(evaluation) if phase == "scale" else []
    rules = tuple(item.rule.id for item in (*blockers, *warnings, *suggestions))
    state: State
    if blockers:
        state, because = "blocked", _titles(blockers)
    else:
        state, because = _JUDGES[phase](evaluation, before)
    return Step(phase, QUESTIONS[phase], state, because, rules, len(suggestions))


def _scale_warnings(evaluation: Evaluation) -> list[Suggestion]:
    """Return the warnings about the layout, without blockers that the run disproved."""
    warnings = evaluation.warnings
    return [warning for warning in warnings if warning.rule.phase == "scale" and warning.rule.kind == "warning"]


def _titles(items: Sequence[Suggestion]) -> str:
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return f"{items[0].title}{more}."


Judgement = tuple[State, str]


def _contract(evaluation: Evaluation, _: Sequence[Step]) -> Judgement:
    unknown = evaluation.facts.get("unknown_fields")
    if not isinstance(unknown, int):
        return "open", "The contract has not been stated yet."
    if unknown:
        names = evaluation.facts.get("unknown_names") or plural(unknown, "contract field")
        return "open", f"Unknown: {names}; comparisons may be provisional."
    return "done", "All contract fields are known."


_OOM_PHASES = {"setup": "during set-up", "warmup": "during warm-up", "steady": "in steady state"}


def _fit(evaluation: Evaluation, _: Sequence[Step]) -> Judgement:
    facts = evaluation.facts
    if facts.get("oom") is True:
        return (
            "open",
            f"The job ran out of GPU memory {_OOM_PHASES.get(str(facts.get('oom_phase')), 'during the run')}.",
        )
    if facts.get("fits") is True:
        ran = f"{facts.get('steps_done')} iterations ran"
        if unsteady := facts.get("unsteady_because"):
            return "done", f"{ran}; the speed is not steady yet: {unsteady}."
        return "done", f"{ran}, with a steady window of {facts.get('window')}."
    steps = facts.get("steps_done")
    if isinstance(steps, int) and steps > 0:
        return "open", f"Only {steps} iterations ran. A few steady steps on every rank show that the job fits."
    return "open", "No iteration has been measured yet."


def _before_fit(evaluation: Evaluation) -> str:
    """Return what a step waits for while no run shows that the job fits: memory only if that is what failed."""
    if evaluation.facts.get("oom") is not True and evaluation.blockers:
        return _titles(evaluation.blockers)
    return "The job must fit into memory first."


def _scale(evaluation: Evaluation, before: Sequence[Step]) -> Judgement:
    fit = before[-1]
    if fit.state != "done":
        return "blocked", _before_fit(evaluation)
    if warnings := _scale_warnings(evaluation):
        return "open", _titles(warnings)
    if not {"tp", "pp", "ep", "dp"} & evaluation.facts.keys():
        return "open", "The layout is unknown: upload the launch command or the configuration."
    candidates = [
        suggestion
        for suggestion in evaluation.suggestions
        if suggestion.rule.phase == "scale" and suggestion.rule.kind == "candidate"
    ]
    if candidates and evaluation.facts.get("profiled") is not True:
        return "done", "The layout divides evenly and runs. A profile shows whether another layout is worth trying."
    if candidates:
        changes = plural(len(candidates), "change")
        return "open", f"{changes} of the layout may be worth trying: {candidates[0].title}."
    return "done", "The layout divides evenly and runs. No rule suggests another layout."


def _profile(evaluation: Evaluation, before: Sequence[Step]) -> Judgement:
    if evaluation.wall.certainty == "measured" and evaluation.facts.get("profiled") is True:
        return "done", evaluation.wall.because
    if before[-2].state != "done":
        return "blocked", "Steady steps are needed before profiling."
    unprofiled = "Not profiled since the last change." if evaluation.facts.get("earlier_wall") else "Not profiled yet."
    because = evaluation.wall.because if evaluation.facts.get("profiled") is True else unprofiled
    return "open", f"{because} Measure exposed communication and idle time of steady steps."


def _retune(evaluation: Evaluation, before: Sequence[Step]) -> Judgement:
    if any(step.state == "blocked" and step.phase != "profile" for step in before) and evaluation.blockers:
        return "blocked", "Resolve the blockers first."
    candidates = [
        suggestion
        for suggestion in evaluation.suggestions
        if suggestion.rule.phase == "retune" and suggestion.rule.kind == "candidate"
    ]
    if before[-1].state != "done" and not candidates:
        return "blocked", "Profile first: retuning needs a measured wall. Bring-up defaults are the exception."
    if candidates:
        count = len(candidates)
        verb = plural(count, "needs", "need", number=False)
        without = "" if before[-1].state == "done" else f" {verb} no profile"
        return "open", f"{plural(count, 'candidate')}{without}; first: {candidates[0].title}."
    return "done", "No candidates remain for the measured wall."


def _validate(evaluation: Evaluation, before: Sequence[Step]) -> Judgement:
    facts = evaluation.facts
    if before[1].state != "done":
        return "blocked", _before_fit(evaluation)
    if facts.get("evidence_level") != "validated":
        lacks = facts.get("full_length_lacks") or f"fewer than {VALIDATED_STEPS} healthy, steady steps"
        return "open", f"Enough for screening only: {lacks}."
    if facts.get("semantic_class") != "training_equivalent":
        return (
            "open",
            "The run is benchmark-only or unclassified. Repeat with natural routing and real data.",
        )
    gates = [
        suggestion
        for suggestion in evaluation.suggestions
        if suggestion.rule.phase == "validate" and suggestion.rule.kind == "gate"
    ]
    if gates:
        return "open", f"{len(gates)} gates remain: {gates[0].title}."
    return "done", "The run is long enough, healthy and equivalent to real training."


_JUDGES = {
    "contract": _contract,
    "fit": _fit,
    "scale": _scale,
    "profile": _profile,
    "retune": _retune,
    "validate": _validate,
}
