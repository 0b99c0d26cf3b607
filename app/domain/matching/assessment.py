"""From runs to an answer: the baseline is chosen, the run is judged, and the result is put in its place.

A failed run gets no speed; a run without a baseline gets the nearest misses, and a measured contrast where exactly one
field of the stack stands between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.domain.detection import DEFAULT_PRIOR, DroppedRun, Prior, Verdict, judge
from app.domain.matching.baseline import BaselineChoice, BaselineRules, choose_baseline, unfit_because
from app.domain.matching.comparability import Comparability, compare_contracts
from app.domain.matching.near_misses import NearMiss, nearest_misses
from app.domain.matching.record import RunRecord
from app.domain.matching.suspects import Suspect, suspects


@dataclass(frozen=True, slots=True)
class Contrast:
    """A difference that was measured between stacks: no verdict, never ranked.

    `measured.decision` says whether the difference is certain, `comparability.attributed_to` whose it is.
    """

    runs: tuple[RunRecord, ...]
    comparability: Comparability
    measured: Verdict


@dataclass(frozen=True, slots=True)
class Assessment:
    """`raises_regression` is false for an experiment: its result is an A/B, however slow it is.

    `misses` and `contrast` are looked for only without a baseline, `suspects` only with one.
    """

    verdict: Verdict
    choice: BaselineChoice
    raises_regression: bool
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
    verdict = _judge(candidates, choice.runs, prior, looks)
    if choice.comparability is not None:
        found = suspects(candidate, choice.runs, choice.comparability)
        return Assessment(verdict, choice, candidate.purpose != "experiment", found)
    return Assessment(
        verdict,
        choice,
        raises_regression=False,
        misses=nearest_misses(candidate, earlier),
        contrast=_contrast(candidates, earlier, rules or BaselineRules(), prior),
    )


def _judge(candidates: Sequence[RunRecord], baseline: Sequence[RunRecord], prior: Prior, looks: int) -> Verdict:
    """The verdict on the reruns that did not fail; `failed` when all of them did."""
    alive = [one for one in candidates if not one.failed_because]
    verdict = judge(
        [one.estimate for one in alive or candidates], [one.estimate for one in baseline], prior, looks=looks
    )
    if not alive:
        reason = f"{_sentence(candidates[-1].failed_because)}, so its speed is no evidence of anything."
        return replace(verdict, decision="failed", reason=reason, notes=(), step_time=None, memory=None)
    failed = tuple(DroppedRun(one.run, one.failed_because) for one in candidates if one.failed_because)
    notes = tuple(f"Left out: {one.run} ({one.why})." for one in failed)
    return replace(verdict, notes=(*notes, *verdict.notes), dropped=(*failed, *verdict.dropped))


def _contrast(
    candidates: Sequence[RunRecord], earlier: Sequence[RunRecord], rules: BaselineRules, prior: Prior
) -> Contrast | None:
    """Against the runs that differ in one field of the stack: those first that no knob sets apart, then the newest."""
    candidate = candidates[-1]
    usable = [one for one in earlier if not unfit_because(one, candidate, rules)]
    newest: dict[str, RunRecord] = {}
    for one in reversed(usable):
        newest.setdefault(one.config_key, one)
    offered = [(one, compare_contracts(one, candidate)) for one in newest.values()]
    contrasts = [(one, found) for one, found in offered if found.kind == "contrast"]
    if not contrasts or any(one.failed_because for one in candidates):
        return None
    other, comparability = min(contrasts, key=lambda pair: len(pair[1].knobs))
    runs = tuple(one for one in usable if one.config_key == other.config_key)
    measured = judge([one.estimate for one in candidates], [one.estimate for one in runs], prior)
    return Contrast(runs, comparability, measured)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
