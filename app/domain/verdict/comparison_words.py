"""Sentences of a comparison: what differs, the result, and what this kind of comparison allows to conclude."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.domain.contract.fields import PREFIX
from app.domain.numbers import change_text, percent, plural
from app.domain.text import capitalized, some_of
from app.domain.verdict.comparability import Comparability
from app.domain.verdict.comparison import SideComparison
from app.domain.verdict.decide import TOO_NOISY, more_per_side, prior_sentence
from app.domain.verdict.evidence import RankedSuspect
from app.domain.verdict.step_time import (
    UNCERTAIN,
    StepTimeChange,
    certainty,
    shows_no_difference,
    within,
)
from app.domain.verdict.words import differences

KINDS = {
    "verdict": "same configuration",
    "matched_ab": "matched A/B",
    "side_by_side": "side by side",
    "contrast": "single-field contrast",
    "incomparable": "incomparable",
}
_CERTAINTY = {
    "regression": "beyond run-to-run variation",
    "improvement": "beyond run-to-run variation",
    "inconclusive": UNCERTAIN,
}


@dataclass(frozen=True, slots=True)
class ComparisonText:
    """`lead`: the answer in at most 16 words. `rule`: what may be concluded from two such sides.

    `needs`: the runs that would decide an inconclusive comparison, also in `notes`; empty for another.
    """

    lead: str
    differs: str
    result: str
    rule: str
    notes: tuple[str, ...]
    needs: str = ""


def comparison_text(comparison: SideComparison, suspects: Sequence[RankedSuspect] = ()) -> ComparisonText:
    """Describe a comparison of two sides. `suspects`: what may explain the change, with evidence."""
    return ComparisonText(
        lead=_lead(comparison, next((item.name for item in suspects if item.is_likely), "")),
        differs=_differs(comparison),
        result=" ".join(_result(comparison)),
        rule=" ".join((_rule(comparison), *(item.sentence for item in suspects))),
        notes=tuple(dict.fromkeys(_notes(comparison))),
        needs=_needs(comparison),
    )


def _lead(comparison: SideComparison, cause: str) -> str:
    """Return the answer. `cause`: the likely one, empty without one."""
    measured, comparability = comparison.measured, comparison.comparability
    time = None if measured is None else measured.step_time
    if measured is None or time is None:
        stack = comparability.stack
        certain = [f"`{difference.field}`" for difference in stack if difference.is_certain]
        if comparison.kind != "incomparable" or not stack:
            refused = {item.run for item in comparison.left_out}
            sides = (("A", comparison.a), ("B", comparison.b))
            empty = [name for name, runs in sides if all(run.run in refused for run in runs)]
            because = f": no run of {' or '.join(empty)} is usable" if empty else ""
            return f"Their speeds cannot be compared{because}."
        if not certain:
            return f"Their speeds cannot be compared: {plural(len(stack), 'field')} may differ."
        names = some_of(certain, _MOST_IN_LEAD)
        return f"Their speeds cannot be compared: {names} {'differs' if len(certain) == 1 else 'differ'}."
    change = change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct)
    if shows_no_difference(time):
        answer = f"Inconclusive: B is {change.text}."
    elif time.decision == "no_change":
        answer = f"B is as fast as A, {within(time)}."
    else:
        answer = f"B is {change.text}."
    unranked = _unranked(comparison)
    if unranked and not shows_no_difference(time):
        return f"{answer} {f'Likely cause: {_named(cause)}; not ranked' if cause else unranked}."
    if time.decision in ("improvement", "regression") and not comparison.winner:
        return f"{answer[:-1]} but {_cost(comparison, time).removeprefix('it ')}: no winner."
    same = capitalized(_of_knobs(comparison))
    is_noise = shows_no_difference(time) and comparison.is_within_noise
    return f"{same}: {change.text} is within noise." if is_noise else f"{answer} {same}."


def _named(cause: str) -> str:
    return "the code" if cause == "code" else f"`{cause}`"


def _unranked(comparison: SideComparison) -> str:
    """Return why no side is called better; empty when one may be."""
    if comparison.comparability.stack:
        return f"Not ranked: {_what_differs(comparison.comparability)}"
    if not all(side.one_configuration for side in comparison.sets):
        return "Not ranked: a side has several configurations"
    return "Not ranked" if comparison.no_winner else ""


def _of_knobs(comparison: SideComparison) -> str:
    comparability = comparison.comparability
    knobs = comparability.knobs
    if not knobs and comparability.provisional:
        return "no known difference"
    if not knobs:
        return f"same {'commit and ' if comparison.is_of_one_commit else ''}configuration"
    if len(knobs) == 1 and knobs[0].is_certain and not (comparability.other_code or comparability.two_jobs):
        return f"one knob: `{knobs[0].field}`"
    return _what_differs(comparability)


_MOST_NAMED = 2
_MOST_IN_LEAD = 4


def _what_differs(comparability: Comparability) -> str:
    """Return ``4 fields and `commit` differ; 3 unknown``; up to two fields, and a single unknown one, are named."""
    fields = (*comparability.stack, *comparability.knobs)
    certain = [f"`{difference.field}`" for difference in fields if difference.is_certain]
    unknown = [f"`{difference.field}`" for difference in fields if not difference.is_certain]
    if not certain and len(unknown) == 1:
        return f"{unknown[0]} may differ"
    if not certain:
        return f"{len(fields)} fields may differ"
    differing = certain if len(certain) <= _MOST_NAMED else [f"{len(certain)} fields"]
    differing += ["`commit`"] if comparability.other_code else []
    differing += ["`job`"] if comparability.two_jobs else []
    verb = "differs" if differing == certain[:1] else "differ"
    number = unknown[0] if len(unknown) == 1 else str(len(unknown))
    return f"{some_of(differing)} {verb}" + (f"; {number} unknown" if unknown else "")


def _differs(comparison: SideComparison) -> str:
    comparability = comparison.comparability
    # A field that follows another one counts as part of it.
    members = [
        difference
        for difference in (*comparability.stack, *comparability.knobs)
        if difference.is_certain or not difference.field.startswith(PREFIX)
    ]
    one_sided = len(comparability.stack) + len(comparability.knobs) - len(members)
    count = plural(one_sided, "environment variable is", "environment variables are")
    variables = f" {count} known on one side only." if one_sided else ""
    if members:
        return (
            f"Differs in {differences(sorted(members, key=lambda difference: not difference.is_certain))}.{variables}"
        )
    beside = f"; outside the contract: {differences(comparability.beside)}" if comparability.beside else ""
    return f"No known contract field differs{beside}.{variables}"


def _result(comparison: SideComparison) -> Iterator[str]:
    measured = comparison.measured
    time = None if measured is None else measured.step_time
    if comparison.no_winner:
        yield f"No winner: {_lower(comparison.no_winner[0])}"
        if time is not None:
            yield f"Measured for information: {_change(time)}, {_certainty(time)}."
    elif measured is None:
        yield f"Their speeds cannot be compared: {comparison.not_measured}."
    elif measured.decision == "failed" or time is None:
        yield f"Their speeds cannot be compared. {measured.reason}"
    else:
        yield _called(comparison, time)
    if comparison.directional and time is not None:
        yield _directional(comparison)


def _called(comparison: SideComparison, time: StepTimeChange) -> str:
    change, winner = _change(time), comparison.winner
    if time.decision == "no_change":
        return f"B is as fast as A, {within(time)}: {change}."
    if time.decision == "inconclusive":
        return f"{capitalized(change)}: {_certainty(time)}."
    if not winner:
        return f"{capitalized(change)}, {_certainty(time)}; no winner, because {_cost(comparison, time)}."
    return f"{capitalized(change)}, {_certainty(time)}."


def _cost(comparison: SideComparison, time: StepTimeChange) -> str:
    """Say what the faster side costs: `it needs 72.2 % more memory`. B is named when A is the faster one."""
    b_is_faster = time.decision == "improvement"
    memory, loss = comparison.costly_memory, comparison.measured.loss if comparison.measured else None
    parts = []
    if memory is not None and memory.decision == ("regression" if b_is_faster else "improvement"):
        parts.append(f"needs {percent(_more(memory.delta_pct, b_is_faster=b_is_faster))} more memory")
    if loss is not None and loss.delta_pct is not None:
        change = loss.delta_pct if b_is_faster else -loss.delta_pct
        if change > (loss.alarm_pct or 0.0):
            parts.append(f"has a {percent(_more(loss.delta_pct, b_is_faster=b_is_faster))} worse loss")
    return f"{'it' if b_is_faster else 'A'} {' and '.join(parts) or 'has a worse loss'}"


def _more(change_pct: float, *, b_is_faster: bool) -> float:
    """Return how much more the faster side has, in percent of the other; `change_pct` is from A to B."""
    return change_pct if b_is_faster else 100 * (1 / (1 + change_pct / 100) - 1)


def _change(time: StepTimeChange) -> str:
    """Return `a step of B is 24.1 % faster than one of A (20.3 to 27.7)`."""
    text = change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct)
    interval = f" ({text.interval})" if text.interval else ""
    if text.word == "the same":
        return f"a step of B takes as long as one of A{interval}"
    return f"a step of B is {text.size} {text.word} than one of A{interval}"


def _certainty(time: StepTimeChange) -> str:
    return _CERTAINTY.get(time.decision) or certainty(time)


def _directional(comparison: SideComparison) -> str:
    assert comparison.short is not None  # noqa: S101  # `directional` says so
    first, second = comparison.short
    windows = plural(first, "iteration") + (" a side" if first == second else f" of A and {second} of B")
    return f"Direction only, from {windows}: longer runs must confirm it."


def _rule(comparison: SideComparison) -> str:
    comparability, kind = comparison.comparability, comparison.kind
    if kind == "verdict":
        if comparability.provisional:
            return "No known difference: what differs is unknown, or code, environment or noise."
        same, causes = (" and commit", "") if comparison.is_of_one_commit else ("", "code, ")
        return f"Same configuration{same}: any difference comes from {causes}environment or noise."
    if kind == "matched_ab":
        knob = f"Matched A/B: `{comparability.knobs[0].field}` is the only knob that differs"
        return f"{knob}, {_of_one_knob(comparability)}."
    if kind == "side_by_side":
        return "Side by side: several knobs differ or may differ, so a difference is not attributed to any of them."
    if kind == "contrast":
        return _of_contrast(comparability)
    return (
        "Incomparable: the stacks differ, or may differ, in more than one field. The figures are shown, but "
        "they measure different tasks."
    )


def _of_contrast(comparability: Comparability) -> str:
    if comparability.knobs:
        return f"More than one field may explain the difference: {_what_differs(comparability)}."
    field = comparability.stack[0].field
    if comparability.two_jobs:
        return f"More than `{field}` may explain the difference: the runs are of two jobs."
    if comparability.other_code:
        return f"More than `{field}` may explain the difference: the code changed as well."
    return (
        f"Single-field contrast: the stacks differ only in `{field}`, so the difference is attributed to it. "
        "This is not a verdict on the code, and such runs are never ranked together."
    )


def _of_one_knob(comparability: Comparability) -> str:
    if comparability.two_jobs:
        return "but the runs are of two jobs, so a difference is not attributed to it"
    if comparability.other_code:
        return "but the code differs too"
    return "so a difference is evidence about it"


def _notes(comparison: SideComparison) -> Iterator[str]:
    yield from comparison.no_winner[1:]
    for side, inside, runs in zip("AB", comparison.sets, (comparison.a, comparison.b), strict=True):
        if inside.one_configuration and inside.commits > 1:
            yield f"The runs of {side} come from {inside.commits} commits: the result holds for all of them together."
        elif inside.one_configuration and inside.commit_unknown:
            yield f"Not every run of {side} states its commit, so their code may differ."
        elif inside.reruns and len(runs) > 1:
            yield f"{side} is {plural(len(runs), 'rerun')} of one job; each counts once."
    if comparison.measured is None and comparison.no_winner and not comparison.left_out:
        yield f"No difference was measured: {comparison.not_measured}."
    yield from (f"#{run.run} is left out: {run.why}." for run in comparison.left_out)
    if comparison.measured is not None:
        yield from _of_the_test(comparison)
    comparability = comparison.comparability
    if comparability.provisional and comparability.unknown:
        yield "Provisional: some fields are not stated on both sides, so they may differ."
    elif comparability.provisional:
        also = differences((*comparability.other_software, *comparability.other_code))
        yield f"Provisional, because the sides also differ in {also}."


def _of_the_test(comparison: SideComparison) -> Iterator[str]:
    measured = comparison.measured
    assert measured is not None  # noqa: S101  # asked before
    time = measured.step_time
    yield from (f"Left out as an outlier: #{run.run} ({run.why})." for run in measured.dropped)
    if time is None:
        return
    if needs := _needs(comparison):
        yield needs
    m = len(measured.baseline_used)
    yield prior_sentence(f"{plural(m, 'run')} in A", m, measured.prior, time.run_to_run_sd)
    yield f"The smallest slowdown that this comparison can detect is {percent(time.smallest_callable_pct)}."


def _needs(comparison: SideComparison) -> str:
    time = comparison.measured.step_time if comparison.measured else None
    if comparison.measured is None or time is None or time.decision != "inconclusive" or comparison.is_within_noise:
        return ""
    if time.need_runs is not None:
        more = f"{plural(time.need_runs, 'more run')} of B" if time.power is None else more_per_side(time)
        return f"{capitalized(more)} would decide if the difference stays the same."
    if time.alternative is not None:
        of_a, of_b = time.alternative.baseline_runs - len(comparison.measured.baseline_used), time.alternative.reruns
        if of_a == of_b:
            return f"{plural(of_a, 'more run')} of each would decide."
        sides = [f"{plural(runs, 'more run')} of {side}" for runs, side in ((of_a, "A"), (of_b, "B")) if runs]
        return f"{' and '.join(sides)} would decide."
    return TOO_NOISY


def _lower(sentence: str) -> str:
    """Lower the first letter of a sentence after a colon, unless it begins with the name of a side or a run."""
    word = sentence.partition(" ")[0]
    return sentence if len(word) == 1 or not word.isalpha() else sentence[:1].lower() + sentence[1:]
