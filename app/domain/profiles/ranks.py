"""Compares ranks of one job without trusting their clocks: who waits for whom in the same collectives.

The shortest duration among the participants of a collective is its transfer; the rest of a rank's time is waiting.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.domain.profiles.budget import Budget, Device
from app.domain.profiles.intervals import Coverage, Times
from app.domain.profiles.kernels import CLASSES, EXPERT_COMMUNICATION, base_name

STRAGGLER_SHARE = 0.70
"""A rank that is last in this share of the collectives is the straggler. Our choice."""
NOISE = 0.01
"""The others must wait for it at least this share of the step (`T_noise`)."""
SKEW = 0.05
"""Windows that start this share of a step apart and end together are skewed. Our choice."""
MAX_COLLECTIVES = 50
_MATCHED = (EXPERT_COMMUNICATION, "comm.collective", "comm.tp")


@dataclass(frozen=True, slots=True)
class RankDevice:
    """One rank's GPU. `base_ns`: origin of its clock."""

    rank: int
    device: Device
    budgets: Sequence[Budget]
    base_ns: int = 0


@dataclass(frozen=True, slots=True)
class RankWaiting:
    """Time that a rank spends in the collectives that other captured ranks share. Nanoseconds over all steps."""

    rank: int
    collectives: int
    matched: int
    comm: int
    transfer: int
    wait: int
    times_last: int
    exposed_wait_frac: float | None
    """Exposed waiting over the step, median over steps."""


@dataclass(frozen=True, slots=True)
class SharedCollective:
    """A collective of a group of ranks, over all its matched calls. Nanoseconds; `wait`: summed over all ranks."""

    ranks: str
    name: str
    matched: int
    transfer: int
    wait: int
    late_rank: int
    """The rank that came last most often."""
    times_last: int


@dataclass(frozen=True, slots=True)
class Ranks:
    """Compared ranks. `late_rank` waits least; it is the straggler only if it is nearly always last."""

    ranks: tuple[RankWaiting, ...]
    matched: int
    late_rank: int | None
    straggler_rank: int | None
    straggler_frac: float | None
    """Time that the others wait for the straggler on average, over the step."""
    start_skew: bool | None
    clock_spread_ns: tuple[int, int] | None
    """5th and 95th percentile of what remains between the ends of matched collectives after the clocks are aligned."""
    collectives: tuple[SharedCollective, ...] = ()


Key = tuple[str, str, int, int]


def compare_ranks(ranks: Sequence[RankDevice]) -> Ranks | None:
    """Match the collectives of several ranks. None for fewer than two ranks."""
    if len({item.rank for item in ranks}) < 2:
        return None
    keyed = [_collectives(item) for item in ranks]
    captured = {item.rank for item in ranks}
    common = sorted(set().union(*keyed))
    waits: list[list[tuple[int, int]]] = [[] for _ in ranks]
    matched, last = Counter[int](), Counter[int]()
    transfer, wait = Counter[int](), Counter[int]()
    ends: list[list[int | None]] = []
    count = 0
    shared: dict[tuple[str, str], tuple[Counter[str], Counter[int]]] = {}
    for key in common:
        present = [at for at, own in enumerate(keyed) if key in own]
        if len(present) < 2 or len(present) < _expected(key[0], captured):
            continue
        count += 1
        lengths = {at: _length(ranks[at], keyed[at][key]) for at in present}
        shortest = min(lengths.values())
        late_at = min(present, key=lambda at: lengths[at])
        last[late_at] += 1
        times, lasts = shared.setdefault(key[:2], (Counter(), Counter()))
        times.update(matched=1, transfer=shortest, wait=sum(lengths.values()) - shortest * len(present))
        lasts[ranks[late_at].rank] += 1
        row: list[int | None] = [None] * len(ranks)
        for at in present:
            trace = ranks[at].device.trace
            kernel = keyed[at][key]
            matched[at] += 1
            transfer[at] += shortest
            wait[at] += lengths[at] - shortest
            row[at] = int(trace.end[kernel]) + ranks[at].base_ns
            if lengths[at] > shortest:
                waits[at].append((int(trace.start[kernel]), int(trace.end[kernel]) - shortest))
        ends.append(row)
    rows = tuple(
        RankWaiting(
            item.rank,
            len(keyed[at]),
            matched[at],
            sum(_length(item, kernel) for kernel in keyed[at].values()),
            transfer[at],
            wait[at],
            last[at],
            _exposed_wait(item, waits[at]) if matched[at] else None,
        )
        for at, item in enumerate(ranks)
    )
    if not count:
        return Ranks(rows, 0, None, None, None, None, None)
    late = min(rows, key=lambda row: (row.wait, -row.times_last))
    straggler, share = _straggler(ranks, rows, late, count)
    skew, spread = _clocks(ranks, ends)
    collectives = [
        SharedCollective(
            *key, times["matched"], times["transfer"], times["wait"], *min(lasts.items(), key=lambda i: (-i[1], i[0]))
        )
        for key, (times, lasts) in shared.items()
    ]
    collectives.sort(key=lambda item: -item.wait)
    return Ranks(rows, count, late.rank, straggler, share, skew, spread, tuple(collectives[:MAX_COLLECTIVES]))


def joined(parts: Sequence[Ranks]) -> Ranks | None:
    """Join the comparisons of several pipeline stages; the late rank belongs to the stage that waits most."""
    if len(parts) < 2:
        return parts[0] if parts else None
    worst = max(parts, key=lambda part: part.straggler_frac or 0.0)
    skews = [part.start_skew for part in parts if part.start_skew is not None]
    return replace(
        worst,
        ranks=tuple(row for part in parts for row in part.ranks),
        matched=sum(part.matched for part in parts),
        start_skew=any(skews) if skews else None,
        collectives=tuple(item for part in parts for item in part.collectives),
    )


def _collectives(item: RankDevice) -> dict[Key, int]:
    """Return the kernels of shared collectives by (group, name, step, occurrence)."""
    trace = item.device.trace
    described = {collective.kernel: collective for collective in trace.collectives}
    numbers = {name: number for number, name in enumerate(CLASSES)}
    kernels = np.flatnonzero(np.isin(trace.class_by_use, [numbers[name] for name in _MATCHED]))
    steps = _steps_of(item, kernels)
    seen: Counter[tuple[str, str, int]] = Counter()
    result: dict[Key, int] = {}
    for kernel, step in zip(kernels.tolist(), steps, strict=True):
        about = described.get(kernel)
        if about is not None and about.name in ("send", "recv"):
            continue
        group = (about.ranks or about.group) if about is not None else ""
        name = about.name if about is not None else base_name(trace.names[trace.name[kernel]])
        if about is not None and about.seq is not None:
            result[group, name, -1, about.seq] = kernel
            continue
        result[group, name, step, seen[group, name, step]] = kernel
        seen[group, name, step] += 1
    return result


def _steps_of(item: RankDevice, kernels: Times) -> list[int]:
    starts = np.array([budget.first for budget in item.budgets], np.int64)
    if not starts.size:
        return [0] * len(kernels)
    numbers = [budget.step if budget.step is not None else at for at, budget in enumerate(item.budgets)]
    at = np.searchsorted(starts, item.device.trace.start[kernels], "right") - 1
    return [numbers[place] if place >= 0 else -1 for place in at.tolist()]


def _expected(group: str, captured: set[int]) -> int:
    """Return how many of the captured ranks take part, as far as the trace names the group's ranks."""
    if not group.startswith("[") or "..." in group:
        return len(captured) if not group else 2
    return len({int(number) for number in re.findall(r"\d{1,9}", group)} & captured)


def _length(item: RankDevice, kernel: int) -> int:
    return int(item.device.trace.end[kernel] - item.device.trace.start[kernel])


def _exposed_wait(item: RankDevice, waits: Sequence[tuple[int, int]]) -> float:
    """Return the waiting that no computation hides, over the step."""
    start = np.array([first for first, _ in waits], np.int64)
    end = np.array([last for _, last in waits], np.int64)
    waiting = Coverage.of(start, end)
    windows = [(budget.first, budget.last) for budget in item.budgets if budget.is_regular] or [item.device.span]
    shares = [
        waiting.outside(item.device.compute, first, last) / (last - first)
        for first, last in np.array(windows, np.int64)
        if last > first
    ]
    return float(np.median(shares)) if shares else 0.0


def _straggler(
    ranks: Sequence[RankDevice], rows: Sequence[RankWaiting], late: RankWaiting, count: int
) -> tuple[int | None, float | None]:
    others = [row for row in rows if row.rank != late.rank]
    span = float(np.median([item.device.span[1] - item.device.span[0] for item in ranks]))
    share = float(np.mean([row.wait for row in others])) / span if span else 0.0
    if late.times_last >= STRAGGLER_SHARE * count and share >= NOISE:
        return late.rank, share
    return None, None


def _clocks(
    ranks: Sequence[RankDevice], ends: Sequence[Sequence[int | None]]
) -> tuple[bool | None, tuple[int, int] | None]:
    """Align the clocks by the ends of matched collectives. Return whether windows start apart but end together."""
    apart = {
        at: [end - first for row in ends if (end := row[at]) is not None and (first := row[0]) is not None]
        for at in range(len(ranks))
    }
    if not all(apart.values()):
        return None, None
    offsets = {at: float(np.median(values)) for at, values in apart.items()}
    rest = [value - offsets[at] for at, values in apart.items() if at for value in values]
    begins = [item.base_ns + item.device.span[0] - offsets[at] for at, item in enumerate(ranks)]
    finishes = [item.base_ns + item.device.span[1] - offsets[at] for at, item in enumerate(ranks)]
    windows = [budget.window for item in ranks for budget in item.budgets]
    step = float(np.median(windows)) if windows else max(finishes) - min(begins)
    skew = max(begins) - min(begins) > SKEW * step and max(finishes) - min(finishes) <= SKEW * step
    low, high = (int(value) for value in np.percentile(rest, (5, 95)))
    return bool(skew), (low, high)
