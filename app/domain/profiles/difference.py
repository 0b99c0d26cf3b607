"""Explains the difference of two profiles in milliseconds that add up to the difference of their steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.domain.numbers import THIN, percent, step_time
from app.domain.profiles.kernels import group_of, label_of_class

_SHOWN = 3
_LEAST_SHARE = 0.005
"""Smaller parts of the difference are left out of the sentence."""
MAX_KERNELS = 20
_SAME = 1e-9
_ANCHORS = ("attention", "gemm.grouped", "gemm")
"""Classes whose kernels count the work of a window without steps: they run a fixed number of times in each layer."""
_MOST_HIDING = 0.5
"""If the work of communication changed by less than this share of its row, the difference is in how much of it is
hidden."""

IDLE_LABELS = {
    "idle.launch_starved": "idle: waiting for launches",
    "idle.host_sync": "idle: host synchronization",
    "idle.issued_other": "idle: launched, not started",
    "idle.unresolved": "idle: reason unknown",
}


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """One kernel of a class. `calls_ms` and `per_call_ms` add up to the difference of its work."""

    name: str
    calls: tuple[float, float]
    work_ms: tuple[float, float]
    calls_ms: float
    per_call_ms: float
    state: str = ""
    """new, gone, or renamed (another kernel of the class with as many launches took its place)."""

    @property
    def difference_ms(self) -> float:
        return self.calls_ms + self.per_call_ms


@dataclass(frozen=True, slots=True)
class Row:
    """One class or idle reason. The differences of all rows add up to the difference of the step."""

    name: str
    before_ms: float
    after_ms: float
    calls: tuple[float, float]
    kernels: tuple[KernelDifference, ...]

    @property
    def difference_ms(self) -> float:
        return self.after_ms - self.before_ms


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    """The difference of two profiles. `contract`: contract fields that differ."""

    before_ms: float
    after_ms: float
    rows: tuple[Row, ...]
    contract: tuple[str, ...]
    per_step: bool
    """False: the windows are not steps, so their lengths cannot be compared."""
    anchor: str = ""
    """Without steps, the kernel by whose launches all times are divided; empty when no kernel is common."""

    @property
    def difference_ms(self) -> float:
        return self.after_ms - self.before_ms


def compare_profiles(before: Mapping[str, Any], after: Mapping[str, Any]) -> ProfileDifference | None:
    """Compare two documents of `describe_profile`. None when one of them has no device."""
    if not before.get("view") or not after.get("view"):
        return None
    old, new = before["view"], after["view"]
    per_step = before["quality"]["steps"] > 0 and after["quality"]["steps"] > 0
    anchor = "" if per_step else _anchor(old, new)
    if anchor:
        old, new = _per_launch(old, anchor), _per_launch(new, anchor)
    names = dict.fromkeys([*old["credited_ms"], *new["credited_ms"]])
    rows = [
        _row(name, old, new, old["credited_ms"].get(name, 0.0), new["credited_ms"].get(name, 0.0)) for name in names
    ]
    rows.sort(key=lambda row: -abs(row.difference_ms))
    return ProfileDifference(
        sum(old["credited_ms"].values()),
        sum(new["credited_ms"].values()),
        tuple(rows),
        tuple(_contract(before, after)),
        per_step,
        anchor,
    )


def _anchor(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the kernel that counts the work of both windows: of the first class with a common one, the longest."""
    for kernel_class in _ANCHORS:
        mine, theirs = _kernels(old, kernel_class), _kernels(new, kernel_class)
        if common := mine.keys() & theirs.keys():
            return max(sorted(common), key=lambda name: min(mine[name]["work_ms"], theirs[name]["work_ms"]))
    return ""


def _per_launch(view: Mapping[str, Any], anchor: str) -> Mapping[str, Any]:
    launches = sum(kernel["calls"] for kernel in view["kernels"] if kernel["name"] == anchor)
    kernels = [
        {**kernel, "calls": kernel["calls"] / launches, "work_ms": kernel["work_ms"] / launches}
        for kernel in view["kernels"]
    ]
    credited = {name: time / launches for name, time in view["credited_ms"].items()}
    return {**view, "kernels": kernels, "credited_ms": credited}


def _row(name: str, old: Mapping[str, Any], new: Mapping[str, Any], before: float, after: float) -> Row:
    mine, theirs = _kernels(old, name), _kernels(new, name)
    calls = (sum(k["calls"] for k in mine.values()), sum(k["calls"] for k in theirs.values()))
    return Row(name, before, after, calls, tuple(_kernel_rows(mine, theirs)))


def _kernels(view: Mapping[str, Any], kernel_class: str) -> dict[str, Mapping[str, Any]]:
    return {kernel["name"]: kernel for kernel in view["kernels"] if kernel["class"] == kernel_class}


def _kernel_rows(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> list[KernelDifference]:
    rows = [
        _kernel_row(
            name, (before[name]["calls"], after[name]["calls"]), (before[name]["work_ms"], after[name]["work_ms"])
        )
        for name in before
        if name in after
    ]
    gone = {name: kernel for name, kernel in before.items() if name not in after}
    fresh = {name: kernel for name, kernel in after.items() if name not in before}
    for name, kernel in list(gone.items()):
        same = [other for other, row in fresh.items() if abs(row["calls"] - kernel["calls"]) < _SAME]
        if same:
            other = max(same, key=lambda candidate: fresh[candidate]["work_ms"])
            row = fresh.pop(other)
            del gone[name]
            rows.append(
                _kernel_row(
                    f"{name} → {other}", (kernel["calls"], row["calls"]), (kernel["work_ms"], row["work_ms"]), "renamed"
                )
            )
    rows += [_kernel_row(name, (k["calls"], 0.0), (k["work_ms"], 0.0), "gone") for name, k in gone.items()]
    rows += [_kernel_row(name, (0.0, k["calls"]), (0.0, k["work_ms"]), "new") for name, k in fresh.items()]
    return sorted(rows, key=lambda row: -abs(row.difference_ms))


def _kernel_row(name: str, calls: tuple[float, float], work: tuple[float, float], state: str = "") -> KernelDifference:
    (n1, n2), (work1, work2) = calls, work
    mean1 = work1 / n1 if n1 else (work2 / n2 if n2 else 0.0)
    mean2 = work2 / n2 if n2 else mean1
    return KernelDifference(name, (n1, n2), (work1, work2), (n2 - n1) * mean1, n2 * (mean2 - mean1), state)


def _contract(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences of the profiles other than times."""
    differences = []
    for label, values in (
        ("GPU", [next((file["gpu"] for file in side["files"] if file["gpu"]), None) for side in (before, after)]),
        ("world size", [side["quality"]["world_size"] for side in (before, after)]),
        ("captured ranks", [side["quality"]["ranks"] for side in (before, after)]),
        ("steps in the window", [side["quality"]["steps"] for side in (before, after)]),
        ("what separates the steps", [side["quality"]["step_source"] for side in (before, after)]),
        ("CUDA graphs", [side["quality"]["graphs"] for side in (before, after)]),
        ("format", [", ".join(side["quality"]["formats"]) for side in (before, after)]),
        ("dispatcher", [side["facts"].get("resolved_dispatcher") for side in (before, after)]),
        ("low precision", [side["facts"].get("precision_proof") for side in (before, after)]),
    ):
        if values[0] != values[1]:
            differences.append(f"{label}: {_word(values[0])}, then {_word(values[1])}")
    return differences


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value in (None, "") else str(value)


def first_sentence(difference: ProfileDifference) -> str:
    """Return what the step gained or lost, and by which rows, in one sentence."""
    parts = contributions(difference)
    return f"{change_of_step(difference)}: {', '.join(parts)}." if parts else f"{change_of_step(difference)}."


def change_of_step(difference: ProfileDifference) -> str:
    """Return how much longer or shorter the step is, without a full stop."""
    total = difference.difference_ms
    share = total / difference.before_ms if difference.before_ms else 0.0
    what = "The step" if difference.per_step else "The profiled window"
    if difference.anchor:
        what = f"For each launch of {difference.anchor[:60]}, the window"
    if abs(total) < _SAME:
        return f"{what} takes the same time, {_time(difference.after_ms)}"
    return f"{what} is {percent(100 * abs(share))} ({_time(abs(total))}) {'longer' if total > 0 else 'shorter'}"


def contributions(difference: ProfileDifference) -> list[str]:
    """Return the largest rows of a difference, each with its milliseconds and reason. Empty for the same time."""
    total = rest = difference.difference_ms
    parts: list[str] = []
    if abs(total) < _SAME:
        return parts
    for row in difference.rows[:_SHOWN]:
        if abs(row.difference_ms) < _LEAST_SHARE * abs(total):
            break
        parts.append(f"{_signed(row.difference_ms)} {label_of(row.name)}{_why(row)}")
        rest -= row.difference_ms
    if abs(rest) >= _LEAST_SHARE * abs(total):
        parts.append(f"{_signed(rest)} other")
    return parts


def _time(milliseconds: float) -> str:
    return step_time(milliseconds) if milliseconds >= 1 else f"{milliseconds:.3f}{THIN}ms"


def _signed(milliseconds: float) -> str:
    return f"{'+' if milliseconds >= 0 else '−'}{_time(abs(milliseconds))}"


def label_of(row: str) -> str:
    """Return the displayed name of a class or idle reason."""
    return IDLE_LABELS.get(row) or label_of_class(row)


def _why(row: Row) -> str:
    n1, n2 = row.calls
    if row.name.startswith("idle.") or not n1 or not n2 or group_of(row.name) == "copy":
        return ""
    work1 = sum(k.work_ms[0] for k in row.kernels)
    work2 = sum(k.work_ms[1] for k in row.kernels)
    if group_of(row.name) == "communication" and abs(work2 - work1) < _MOST_HIDING * abs(row.difference_ms):
        return f" ({'less' if row.difference_ms > 0 else 'more'} of it hidden by computation)"
    if abs(n2 - n1) < _SAME * max(n1, 1) and work1:
        change = work2 / work1 - 1
        return f" (same launches, {100 * abs(change):.0f}{THIN}% {'longer' if change > 0 else 'shorter'} each)"
    return f" ({n1:.4g} launches, then {n2:.4g})"


def difference_document(difference: ProfileDifference) -> dict[str, Any]:
    """Return the comparison as the API answers it."""
    return {
        "before_ms": round(difference.before_ms, 6),
        "after_ms": round(difference.after_ms, 6),
        "difference_ms": round(difference.difference_ms, 6),
        "sentence": first_sentence(difference),
        "per_step": difference.per_step,
        "anchor": difference.anchor,
        "contract": list(difference.contract),
        "rows": [_row_document(row) for row in difference.rows],
    }


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "row": row.name,
        "label": label_of(row.name),
        "before_ms": round(row.before_ms, 6),
        "after_ms": round(row.after_ms, 6),
        "difference_ms": round(row.difference_ms, 6),
        "calls": list(row.calls),
        "kernels": [
            {
                "name": kernel.name,
                "calls": list(kernel.calls),
                "work_ms": list(kernel.work_ms),
                "calls_ms": round(kernel.calls_ms, 6),
                "per_call_ms": round(kernel.per_call_ms, 6),
                "state": kernel.state,
            }
            for kernel in row.kernels[:MAX_KERNELS]
        ],
    }
