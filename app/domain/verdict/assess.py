"""From runs to an answer: the baseline is chosen, the run is judged, and the result is put in its place.

A failed run gets no speed; a run without a baseline gets the nearest misses, and a measured contrast where exactly one
field of the stack stands between; an experiment gets an A/B.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.domain.verdict.baseline import (
    BaselineChoice,
    BaselineRules,
    NearMiss,
    choose_baseline,
    nearest_misses,
    unfit_because,
)
from app.domain.verdict.comparability import Comparability, Suspect, compare_contracts, suspects
from app.domain.verdict.decide import judge
from app.domain.verdict.record import RunFacts, RunRecord
from app.domain.verdict.step_time import DEFAULT_PRIOR, DroppedRun, Prior, Verdict

UPGRADES = ("container", "cluster")
"""Fields of the stack that a project moves to as a whole. More GPUs or another model are another task."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A difference that was measured between stacks: no verdict, never ranked.

    `measured.decision` says whether the difference is certain, `comparability.attributed_to` whose it is.
    """

    runs: tuple[RunFacts, ...]
    comparability: Comparability
    measured: Verdict


@dataclass(frozen=True, slots=True)
class Assessment:
    """`raises_regression` is false for an experiment: its result is an A/B, however slow it is.

    `rests_on`: iterations of the shorter side of an A/B that is a direction only, because a side is short; else None.
    `misses` and `contrast` are looked for only without a baseline, `suspects` only with one and where something may
    have changed.
    """

    verdict: Verdict
    choice: BaselineChoice
    raises_regression: bool
    rests_on: int | None = None
    suspects: tuple[Suspect, ...] = ()
    misses: tuple[NearMiss, ...] = ()
    contrast: Contrast | None = None


def assess(
    candidates: Sequence[RunRecord],
    earlier: Sequence[RunRecord],
    *,
    rules: BaselineRules | None = None,
    prior: Prior = DEFAULT_PRIOR,
    looks: int = 1,
) -> Assessment:
    """Judge reruns of one commit and config, at least one, against what `earlier` runs (oldest first) offer."""
    candidate, reruns = candidates[-1], {one.run for one in candidates}
    earlier = [one for one in earlier if one.run not in reruns]
    choice = choose_baseline(candidate, earlier, rules, prior)
    assessment = conclude(candidate, candidates, choice, prior=prior, looks=looks)
    if choice.comparability is not None:
        return assessment
    rules = rules or BaselineRules()
    usable = [one for one in earlier if not unfit_because(one, candidate, rules)]
    found = nearest_contrast(candidate, usable)
    contrast = None
    if found is not None:
        runs = [one for one in usable if one.config_key == found[0].config_key]
        contrast = measure_contrast(candidates, runs, found[1], prior)
    return replace(assessment, misses=nearest_misses(candidate, earlier), contrast=contrast)


def conclude(
    candidate: RunRecord,
    candidates: Sequence[RunFacts],
    choice: BaselineChoice,
    *,
    prior: Prior = DEFAULT_PRIOR,
    looks: int = 1,
) -> Assessment:
    """The verdict on `candidates`, reruns of which `candidate` is the newest, against a baseline that was chosen."""
    is_experiment = candidate.purpose == "experiment"
    verdict = _judge(candidates, choice.runs, prior, looks, directional=choice.kind == "nearest")
    if choice.comparability is None:
        return Assessment(verdict, choice, raises_regression=False)
    rests_on = _rests_on(verdict, candidates, choice.runs) if is_experiment else None
    if rests_on is not None:
        verdict = replace(verdict, notes=(_direction(rests_on), *verdict.notes))
    # What is shown to be the same has no cause.
    same = verdict.decision == "no_change"
    found = () if same else suspects(candidate, choice.runs, choice.comparability)
    quarantined = all(one.quarantined for one in candidates)
    return Assessment(verdict, choice, not is_experiment and not quarantined, rests_on, found)


def nearest_contrast(candidate: RunRecord, usable: Sequence[RunRecord]) -> tuple[RunRecord, Comparability] | None:
    """The run that differs in one field of the stack: one from before an upgrade first, one of another workload last;
    among equals those that no knob sets apart, then the newest.

    `usable`: oldest first; one run of each config key is enough.
    """
    newest: dict[str, RunRecord] = {}
    for one in reversed(usable):
        newest.setdefault(one.config_key, one)
    offered = [(one, compare_contracts(one, candidate)) for one in newest.values()]
    contrasts = [(one, found) for one, found in offered if found.kind == "contrast"]
    return min(contrasts, key=lambda pair: (_remoteness(pair[1]), len(pair[1].knobs)), default=None)


def _remoteness(contrast: Comparability) -> int:
    """An upgrade is measured against the same job before it, not against another number of GPUs after it."""
    field = contrast.stack[0]
    return 0 if field.field in UPGRADES else 2 if field.axis == "workload" else 1


def measure_contrast(
    candidates: Sequence[RunFacts], runs: Sequence[RunFacts], comparability: Comparability, prior: Prior
) -> Contrast | None:
    """None when a candidate failed: its speed is no evidence."""
    if any(one.failed_because for one in candidates):
        return None
    measured = judge([one.estimate for one in candidates], [one.estimate for one in runs], prior)
    return Contrast(tuple(runs), comparability, measured)


def _judge(
    candidates: Sequence[RunFacts], baseline: Sequence[RunFacts], prior: Prior, looks: int, *, directional: bool
) -> Verdict:
    """The verdict on the reruns that did not fail; `failed` when all of them did."""
    alive = [one for one in candidates if not one.failed_because]
    verdict = judge(
        [one.estimate for one in alive or candidates],
        [one.estimate for one in baseline],
        prior,
        looks=looks,
        directional=directional,
    )
    if not alive:
        reason = f"{_sentence(candidates[-1].failed_because)}, so its speed is no evidence of anything."
        return replace(verdict, decision="failed", reason=reason, notes=(), step_time=None, memory=None)
    failed = tuple(DroppedRun(one.run, one.failed_because) for one in candidates if one.failed_because)
    notes = tuple(f"Left out: {one.run} ({one.why})." for one in failed)
    return replace(verdict, notes=(*notes, *verdict.notes), dropped=(*failed, *verdict.dropped))


def _rests_on(verdict: Verdict, candidates: Sequence[RunFacts], baseline: Sequence[RunFacts]) -> int | None:
    """Iterations of the shorter side, when a side has nothing but short runs; None when both are long enough."""
    used = {*verdict.candidates_used, *verdict.baseline_used}
    sides = [[one.estimate for one in side if one.run in used] for side in (candidates, baseline)]
    if verdict.step_time is None or not any(all(one.short for one in side) for side in sides):
        return None
    return min(sum(one.window_length for one in side) for side in sides)


def _direction(iterations: int) -> str:
    return f"A direction only: the shorter side rests on {iterations} iterations. Let runs of 50 steps confirm it."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
