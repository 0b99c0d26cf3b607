"""What `compare` prints for people. Line 1: verdict, worst change, confidence. Line 2: baseline and what differs."""

from collections.abc import Iterator, Mapping, Sequence

from app.analysis.comparison import Comparison
from app.analysis.plain_text import listed, plain, table
from app.domain.contract.fields import METRICS
from app.domain.detection import StepTimeChange, Verdict
from app.domain.detection.metric_changes import MetricChange
from app.domain.matching import Contrast, Difference, NearMiss, RunRecord
from app.domain.run import Metric, Stated
from app.web.numbers import contract_value, counted, figure, grouped, percent, short_commit

_WORDS = {"no_change": "no change", "no_baseline": "no baseline", "not_judged": "not judged"}
_BASELINES = {"golden": "pinned golden", "same_config": "same configuration", "last_config": "other knobs"}
_MEASURED = {"regression": "worse", "improvement": "better"}
"""What is no verdict on the code is not called one."""
_MOST_LISTED = 4


def text_of(comparison: Comparison) -> str:
    assessment = comparison.assessment
    verdict, contrast = assessment.verdict, assessment.contrast
    lines = [_headline(comparison), _baseline(comparison)]
    lines += _moved(comparison.changes(verdict), verdict, {} if assessment.raises_regression else _MEASURED)
    notes = verdict.notes if verdict.decision not in ("no_baseline", "failed") else ()
    lines += listed("Notes", [note for note in notes if not note.startswith("Left out: ")])
    if contrast is not None:
        moved = _moved(comparison.changes(contrast.measured), contrast.measured, _MEASURED)
        lines += ["", *_contrast(contrast), *moved]
    lines += listed("Nearest misses", [_miss(miss) for miss in assessment.misses])
    lines += listed("Suspects", [_suspect(one.difference, one.field, one.reason) for one in assessment.suspects][:6])
    lines += listed("Left out", [f"{run}: {why}" for run, why in comparison.left_out])
    lines += _supply(comparison)
    return plain("\n".join(lines))


def _headline(comparison: Comparison) -> str:
    assessment = comparison.assessment
    verdict = assessment.verdict
    word = _WORDS.get(verdict.decision, verdict.decision)
    if verdict.decision == "no_baseline":
        return f"{word}: {_what_stands_between(assessment.misses)}"
    if verdict.step_time is None or verdict.decision == "failed":
        return f"{word}: {verdict.reason}"
    if not assessment.raises_regression:
        word = f"A/B, {_MEASURED.get(verdict.decision, word)}"
    return f"{word}{' (provisional)' if comparison.provisional else ''}: {_worst(verdict)}; {_confidence(verdict)}"


def _what_stands_between(misses: Sequence[NearMiss]) -> str:
    if not misses:
        return "there is no other run."
    nearest = misses[0]
    if nearest.never_a_baseline_because and not nearest.fields:
        return f"{nearest.run} is of the same stack, but {nearest.never_a_baseline_because}"
    differ = nearest.comparability.stack or nearest.comparability.knobs
    return f"{nearest.run} differs in {differences(differ)}"


def _worst(verdict: Verdict) -> str:
    memory, time = verdict.memory, verdict.step_time
    if memory is not None and memory.decision == "regression":
        worse_time = time is not None and time.decision == "regression" and time.delta_pct > memory.delta_pct
        if not worse_time:
            return f"peak memory +{percent(memory.delta_pct)} higher, where {percent(memory.alarm_pct)} is the limit"
    return f"step time {_change(time)}" if time is not None else verdict.reason


def _change(time: StepTimeChange) -> str:
    """`+3.4 % slower (2.1 to 4.7, 99 % interval)`, the interval in the direction of the word."""
    slower = time.delta_pct >= 0
    low, high = (time.ci_low_pct, time.ci_high_pct) if slower else (-time.ci_high_pct, -time.ci_low_pct)
    decimals = 2 if max(abs(low), abs(high)) < 0.995 else 1
    ends = f"{grouped(low, decimals)} to {grouped(high, decimals)}, 99 % interval"
    return f"{_signed(time.delta_pct)} {'slower' if slower else 'faster'} ({ends})"


def _signed(delta_pct: float) -> str:
    return f"{'+' if delta_pct >= 0 else ''}{percent(delta_pct)}"


def _confidence(verdict: Verdict) -> str:
    time = verdict.step_time
    if verdict.loss is not None and verdict.loss.decision == "worse":
        return f"the loss is {percent(verdict.loss.delta_pct or 0.0)} higher, explain that first"
    if verdict.memory is not None and verdict.memory.decision == "regression":
        return "certain enough to act on"
    if time is not None and time.needs_confirmation:
        return "on few iterations, so a full run must confirm it"
    return {
        "regression": "certain enough to act on",
        "improvement": "beyond what launches of the same job vary",
        "no_change": "shown to be within 2 %",
    }.get(verdict.decision, "too uncertain to call")


def _baseline(comparison: Comparison) -> str:
    choice = comparison.assessment.choice
    if choice.comparability is None:
        return f"baseline: none of {counted(len(comparison.earlier), 'run')} can be one"
    names = _named(choice.runs)
    differ = [*choice.comparability.knobs, *choice.comparability.beside]
    listing = f"differs in {differences(differ)}" if differ else "nothing that is known differs"
    attributed = choice.comparability.attributed_to
    evidence = f" (matched A/B: evidence about {attributed})" if attributed else ""
    return f"baseline: {counted(len(choice.runs), 'run')} ({names}), {_BASELINES[choice.kind]}; {listing}{evidence}"


def _named(runs: Sequence[RunRecord]) -> str:
    """The oldest runs by name, and how many more there are."""
    more = len(runs) - _MOST_LISTED
    return ", ".join(run.run for run in runs[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def differences(found: Sequence[Difference]) -> str:
    """`ep_overlap (off -> on), commit (0f3c2a9d -> 77aa01bc)` and how many more there are."""
    shown = [f"{one.field} ({_side(one.field, one.a)} -> {_side(one.field, one.b)})" for one in found[:_MOST_LISTED]]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _side(field: str, stated: Stated | None) -> str:
    if stated is None:
        return "unknown"
    text = contract_value(stated.value)
    return short_commit(text) if "commit" in field else text


def _moved(changes: Mapping[str, MetricChange | None], verdict: Verdict, words: Mapping[str, str]) -> list[str]:
    """The table of what moved; of an undecided step time one line, as it is one test. `words` for decisions."""
    rows: list[tuple[str, ...]] = [("figure", "baseline", "candidate", "change", "99 % interval", "decision")]
    for name, change in changes.items():
        if change is None or change.decision == "no_change":
            continue
        if change.decision == "inconclusive" and name != "step_time_ms":
            continue
        rows.append(_row(name, change, words))
    if verdict.loss is not None and verdict.loss.decision == "worse":
        rows.append(("Loss at the end", "", "", _signed(verdict.loss.delta_pct or 0.0), "", "worse"))
    if len(rows) > 1:
        return ["", *table(rows)]
    return ["", "No figure moved."] if verdict.decision == "no_change" else []


def _row(name: str, change: MetricChange, words: Mapping[str, str]) -> tuple[str, ...]:
    field = METRICS[name]
    label = f"{field.label}, {field.unit}" if "/" in field.unit else field.label
    baseline, candidate = (figure(Metric(v, v, v, 0), name).text for v in (change.baseline, change.candidate))
    interval = ""
    if change.ci_low_pct is not None and change.ci_high_pct is not None:
        interval = f"{_signed(change.ci_low_pct)} to {_signed(change.ci_high_pct)}"
    decision = words.get(change.decision) or _WORDS.get(change.decision, change.decision)
    return label, baseline, candidate, _signed(change.delta_pct), interval, decision


def _contrast(contrast: Contrast) -> Iterator[str]:
    runs = _named(contrast.runs)
    between = differences(contrast.comparability.stack)
    attributed = contrast.comparability.attributed_to
    whose = (
        f"the difference belongs to {attributed}"
        if attributed
        else f"knobs differ, too, so it belongs to no single field: {differences(contrast.comparability.knobs)}"
    )
    yield f"Single-field contrast with {runs}, in {between}: {whose}. This is no verdict on the code."
    if contrast.comparability.one_is_benchmark_only:
        yield "One side is benchmark only (forced routing or made-up data): its speed is no promise for real training."
    if contrast.measured.step_time is not None:
        yield f"Measured: step time {_change(contrast.measured.step_time)}; {_confidence(contrast.measured)}."


def _miss(miss: NearMiss) -> str:
    found = (*miss.comparability.stack, *miss.comparability.knobs)
    text = f"{miss.run} differs in {differences(found)}" if found else f"{miss.run} differs in nothing that is known"
    return f"{text}; {miss.never_a_baseline_because}" if miss.never_a_baseline_because else text


def _suspect(difference: Difference | None, field: str, reason: str) -> str:
    if difference is None:
        return f"{field}: {reason}" if field else reason
    return f"{differences([difference])}: {reason}"


def _supply(comparison: Comparison) -> list[str]:
    if not comparison.to_supply:
        return []
    names = ", ".join(comparison.to_supply)
    why = "Provisional: nobody states" if comparison.provisional else "Not known on both sides:"
    return ["", f"{why} {names}. Supply each with --set NAME=VALUE (or --baseline-set, --candidate-set)."]
