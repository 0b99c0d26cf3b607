"""An upgrade in one sentence: how many stacks got slower and by how much, how many did not, and what it costs."""

from collections.abc import Iterator, Sequence

from app.domain.changes import daily_cost
from app.domain.numbers import THIN, counted, grouped
from app.domain.upgrade import Pair, UpgradeReport


def upgrade_sentence(report: UpgradeReport, gpu_hours_per_day: float | None = None) -> str:
    """`3 of 5 stacks are slower by 4.1 to 6.8 %, 2 show no change; about 57 GPU-hours a day.`"""
    if not report.pairs:
        return f"No stack can be measured on both sides{_why_none(report)}."
    text = ", ".join(_parts(report.pairs))
    if gpu_hours_per_day:
        text += f"; {daily_cost(gpu_hours_per_day)}"
    return f"{text}."


def _parts(pairs: Sequence[Pair]) -> Iterator[str]:
    total, slower = len(pairs), _decided(pairs, "regression")
    faster, still = _decided(pairs, "improvement"), _decided(pairs, "no_change")
    groups = [
        (len(slower), _verb(slower, "is slower", "are slower") + _by(slower)),
        (len(faster), _verb(faster, "is faster", "are faster") + _by(faster)),
        (len(still), _verb(still, "shows no change", "show no change")),
    ]
    unclear = total - len(slower) - len(faster) - len(still)
    groups.append((unclear, "is inconclusive" if unclear == 1 else "are inconclusive"))
    shown = [(n, words) for n, words in groups if n]
    for k, (n, words) in enumerate(shown):
        yield f"{_first(n, total)} {words}" if k == 0 else f"{n} {words}"
    hungry = [pair for pair in pairs if pair.measured.memory and pair.measured.memory.decision == "regression"]
    if hungry:
        yield f"{len(hungry)} {'needs' if len(hungry) == 1 else 'need'} clearly more memory"


def _decided(pairs: Sequence[Pair], decision: str) -> list[float]:
    """Sizes of the changes of step time that were decided so, in per cent, ascending."""
    times = (pair.measured.step_time for pair in pairs)
    return sorted(abs(time.delta_pct) for time in times if time is not None and time.decision == decision)


def _first(n: int, total: int) -> str:
    """`3 of 5 stacks`, `All 3 stacks`, `The only stack`."""
    if total == 1:
        return "The only stack"
    return f"All {total} stacks" if n == total else f"{n} of {counted(total, 'stack')}"


def _verb(found: Sequence[float], one: str, more: str) -> str:
    return one if len(found) == 1 else more


def _by(sizes: Sequence[float]) -> str:
    """` by 4.1 to 6.8 %`; both ends alike are one number."""
    if not sizes:
        return ""
    decimals = 1 if sizes[-1] >= 0.995 else 2
    low, high = (grouped(size, decimals) for size in (sizes[0], sizes[-1]))
    return f" by {low}{THIN}%" if low == high else f" by {low} to {high}{THIN}%"


def _why_none(report: UpgradeReport) -> str:
    if report.near:
        return f": {counted(len(report.near), 'stack')} came near, but more than the {report.field} differs"
    if not report.only_old and not report.only_new:
        return f": no CI run has {report.field} {report.old_value} or {report.new_value}"
    missing = report.new_value if report.only_old else report.old_value
    return f": run a stack with {report.field} {missing}, too"
