"""Which side may be called the better one, and why often none may be.

Speed, memory and loss are one answer: a faster side that pays with memory or with loss is no winner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from app.domain.comparison.within import Within
from app.domain.contract.values import shown
from app.domain.detection import Verdict
from app.domain.matching import Comparability, Difference, RunRecord

Winner = Literal["", "a", "b"]

_FORCED = ("forced-balance", "forced-biased")
_NO_END = ("truncated", "stopped", "running")
"""Endings after which a figure is still a figure, but no result: the job did not do what it was started for."""


def winner(measured: Verdict | None) -> Winner:
    """The side that is better in step time and pays for it with nothing; empty when neither is, or nobody can say."""
    if measured is None or measured.step_time is None or measured.decision == "failed":
        return ""
    memory, loss, time = measured.memory, measured.loss, measured.step_time.decision
    if time == "improvement":
        pays = (memory is not None and memory.decision == "regression") or (
            loss is not None and loss.decision == "worse"
        )
        return "" if pays else "b"
    if time == "regression":
        # The mirror image: A is faster. It pays when B needs clearly less memory, or has a clearly better loss.
        lighter = memory is not None and memory.decision == "improvement"
        learns = loss is not None and loss.delta_pct is not None and -loss.delta_pct > (loss.alarm_pct or 0.0)
        return "" if lighter or learns else "a"
    return ""


def paid_with(measured: Verdict | None) -> str:
    """What a faster side pays with, as a sentence; empty when neither is faster, or it pays with nothing."""
    if measured is None or measured.step_time is None or winner(measured) or measured.decision == "failed":
        return ""
    time, loss = measured.step_time.decision, measured.loss
    if time not in ("improvement", "regression"):
        return ""
    faster, other = ("B", "A") if time == "improvement" else ("A", "B")
    heavier = "regression" if faster == "B" else "improvement"  # the decision is about B
    by_memory = measured.memory is not None and measured.memory.decision == heavier
    by_loss = loss is not None and (loss.decision == "worse" if faster == "B" else not by_memory)
    prices = [
        price for price, paid in (("needs clearly more memory", by_memory), ("has a worse loss", by_loss)) if paid
    ]
    return f"{faster} is faster than {other}, but {' and '.join(prices)}."


def why_none(
    a: Sequence[RunRecord], b: Sequence[RunRecord], comparability: Comparability, sets: tuple[Within, Within]
) -> tuple[str, ...]:
    """Why no side may be called better, whatever was measured: sentences, the weightiest first."""
    return tuple(dict.fromkeys(_reasons(a, b, comparability, sets)))


def _reasons(
    a: Sequence[RunRecord], b: Sequence[RunRecord], found: Comparability, sets: tuple[Within, Within]
) -> Iterator[str]:
    yield from _classes(a, found)
    if found.stack:
        alone, certain = len(found.stack) == 1, all(one.is_certain for one in found.stack)
        verb = ("differs" if alone else "differ") + ("" if certain else " or may differ")
        yield f"{_listed(found.stack)} {verb}, and must be equal before runs are ranked."
    for side, inside in zip("AB", sets, strict=True):
        if not inside.one_configuration:
            names = ", ".join(f"`{name}`" for name in (*inside.stack, *inside.knobs))
            yield f"The runs of {side} are no reruns of each other: they differ in {names}."
    for run in (*a, *b):
        yield from _of_run(run)
    alive = [run for run in (*a, *b) if not run.failed_because]
    if len({run.definition_version for run in alive}) > 1:
        yield "The figures were made by different versions of the definitions, until all runs were read again."
    if len({run.fair_for_timing for run in alive}) > 1:
        yield "Only some of the runs were slowed down by timers of their own."


def _classes(a: Sequence[RunRecord], found: Comparability) -> Iterator[str]:
    routing = next((one for one in found.stack if one.field == "routing_mode" and one.is_certain), None)
    if routing is not None and _forced(routing, "a") != _forced(routing, "b"):
        forced, natural = ("A", "B") if _forced(routing, "a") else ("B", "A")
        yield (
            f"Forced balance against natural routing: {forced} spreads its tokens by force, so its speed promises "
            f"nothing for {natural}."
        )
    elif found.one_is_benchmark_only:
        side = "A" if any(run.semantic_class == "benchmark_only" for run in a) else "B"
        yield f"{side} is benchmark only (forced routing or made-up data): its speed promises nothing for training."


def _of_run(run: RunRecord) -> Iterator[str]:
    if run.failed_because:
        yield f"#{run.run} failed ({run.failed_because}), so its speed is no evidence of anything."
    elif run.outcome in _NO_END:
        yield f"#{run.run} did not come to its end: {replace(run, quarantined='').never_a_baseline_because}."
    if run.quarantined:
        yield f"#{run.run} is quarantined: {run.quarantined}"


def _forced(one: Difference, side: Literal["a", "b"]) -> bool:
    stated = one.a if side == "a" else one.b
    return stated is not None and shown(stated.value) in _FORCED


def _listed(found: Sequence[Difference]) -> str:
    names = [f"`{one.field}`" for one in found]
    if len(names) > 6:
        return f"{', '.join(names[:5])} and {len(names) - 5} more fields"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
