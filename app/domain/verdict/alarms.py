"""Derive alarms from a verdict: which figure became worse, from which level to which, and the likely cause.

Alarms with the same cause form one regression, across stacks (`app/pipeline/regressions.py`).
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.contract.values import shown
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.verdict.assess import UPGRADES, changed_field
from app.domain.verdict.comparability import Comparability, Difference, is_other_task
from app.domain.verdict.document import MeasuredContrast, VerdictDocument
from app.domain.verdict.history import SAME_LEVEL
from app.domain.verdict.step_time import MemoryChange, StepTimeChange, Verdict
from app.domain.verdict.upgrade import cause_key as upgrade_key
from app.domain.verdict.words import differences, side_text

MOST_KEY = 200
_EVERYWHERE = ("code:", "upgrade:")


@dataclass(frozen=True, slots=True)
class AlarmCause:
    """Why a figure became worse. `key` groups alarms of one cause; it begins with the axis or with `upgrade`."""

    kind: Literal["run", "upgrade"]
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """A metric that became worse. Levels are ln of the metric (ms, GiB); `tolerance`: spread of single runs (ln).

    `confirmed`: it rests on more than one launch, or on a figure that no slow node changes. One slow launch alone opens
    no regression.
    """

    metric: Literal["step_time_ms", "peak_memory_gib"]
    usual_level: float
    slow_level: float
    delta_pct: float
    tolerance: float
    cause: AlarmCause
    confirmed: bool = True

    @property
    def middle(self) -> float:
        """Return the value, in ln, that divides the usual level from the slow one."""
        return (self.usual_level + self.slow_level) / 2

    def is_confirmed_by(self, later: "Alarm") -> bool:
        """Return whether a later alarm is of about the same level, so that both are one slowdown."""
        apart = abs(later.slow_level - self.slow_level)
        return apart <= max(SAME_LEVEL, self.tolerance, (self.slow_level - self.usual_level) / 2)

    def is_covered_by(self, slow_level: float, *, has_ended: bool) -> bool:
        """Return whether a regression to `slow_level` covers this alarm.

        An active regression covers every alarm up to its level; an ended one only alarms at that level, which may mean
        that it came back.
        """
        reach = max(SAME_LEVEL, self.tolerance)
        return self.slow_level <= slow_level + reach and (not has_ended or self.slow_level >= slow_level - reach)


def alarms_of(
    document: VerdictDocument, *, stack_key: str, run: str, purpose: str, branch: str = ""
) -> tuple[Alarm, ...]:
    """Return the alarms of a verdict, or of the contrast that replaces it after an upgrade; most verdicts have none.

    `branch`: the run's branch when it is not the baseline branch. It is then part of the cause, except for commits and
    upgrades, which are the same on every branch.
    """
    if document.reference is not None:
        return ()
    if document.raises_regression and document.decision == "regression" and document.comparability is not None:
        cause = _cause(document.comparability, f"{stack_key[:16]}:{run}")
        # A release has one run, which no next night confirms.
        confirmed = len(document.verdict.candidates_used) > 1 or purpose == "release"
        return tuple(_alarms(document.verdict, _on_branch(cause, branch), confirmed=confirmed))
    contrast = upgrade_of(document, purpose)
    if contrast is None or contrast.measured.decision != "regression":
        return ()
    measured, cause = contrast.measured, upgrade_cause(contrast.comparability)
    return tuple(_alarms(measured, _on_branch(cause, branch), confirmed=not contrast.is_unconfirmed))


def upgrade_of(document: VerdictDocument, purpose: str) -> MeasuredContrast | None:
    """Return the contrast that measures an upgrade; None where the sides may differ in more than that, or are both in
    use.
    """
    contrast = move_of(document, purpose)
    return None if contrast is None or contrast.side_by_side else contrast


def move_of(document: VerdictDocument, purpose: str) -> MeasuredContrast | None:
    """Return the contrast with the stack that the job of a run had before, whether or not it is still in use."""
    contrast = document.upgrade
    if contrast is None or document.quarantined or purpose == "experiment" or document.decision == "failed":
        return None
    comparability = contrast.comparability
    is_other = (
        changed_field(comparability).field not in UPGRADES
        or not (comparability.is_clean or contrast.same_job)
        or any(_may_be_elsewhere(difference) for difference in comparability.stack)
        or comparability.one_is_benchmark_only
    )
    return None if is_other else contrast


def _may_be_elsewhere(difference: Difference) -> bool:
    """Return whether it is unknown if the sides did the same task in the same place."""
    return not difference.is_certain and (is_other_task(difference) or difference.axis == "place")


def _alarms(verdict: Verdict, cause: AlarmCause, *, confirmed: bool = True) -> Iterator[Alarm]:
    if verdict.step_time is not None and verdict.step_time.decision == "regression":
        yield replace(_of_step_time(verdict.step_time, cause), confirmed=confirmed)
    if verdict.memory is not None and verdict.memory.decision == "regression":
        yield _of_memory(verdict.memory, cause)


def _of_step_time(time: StepTimeChange, cause: AlarmCause) -> Alarm:
    usual = math.log(time.baseline_ms)
    half_width = time.shift - math.log1p(time.ci_low_pct / 100)
    # Two single runs differ by chance more than a run and a baseline.
    return Alarm("step_time_ms", usual, usual + time.shift, time.delta_pct, math.sqrt(2) * half_width, cause)


def _of_memory(memory: MemoryChange, cause: AlarmCause) -> Alarm:
    usual, slow = (math.log(side / BYTES_PER_GIB) for side in (memory.baseline_bytes, memory.candidate_bytes))
    return Alarm("peak_memory_gib", usual, slow, memory.delta_pct, math.log1p(memory.alarm_pct / 100), cause)


def _cause(comparability: Comparability, unique: str) -> AlarmCause:
    """Name the cause: the code first, then container and place. Only runs of one configuration give alarms."""
    beside = [difference for difference in comparability.beside if difference.is_certain]
    code = [difference for difference in beside if difference.field == "commit"]
    if code:
        others = [difference for difference in beside if difference.field != "commit"]
        also = f"; also {differences(others)}" if others else ""
        return AlarmCause("run", _key("code", code), f"Code: {_values(code[0])}{also}.")
    if beside:
        return AlarmCause("run", _key(beside[0].axis, beside), f"{differences(beside)}.")
    return AlarmCause("run", f"unknown:{unique}", "No known difference: the nodes, or chance.")


def _on_branch(cause: AlarmCause, branch: str) -> AlarmCause:
    if not branch:
        return cause
    key = cause.key if cause.key.startswith(_EVERYWHERE) else _shortened(f"{cause.key}@{branch}")
    return AlarmCause(cause.kind, key, f"{cause.text.rstrip('.')}, on branch {branch}.")


def upgrade_cause(comparability: Comparability) -> AlarmCause:
    """Name the upgrade that a contrast measures."""
    difference = changed_field(comparability)
    others = [other for other in (*comparability.stack, *comparability.knobs) if other is not difference]
    also = f"; also {differences(others)}" if others else ""
    old, new = ("" if side is None else shown(side.value) for side in (difference.a, difference.b))
    key = upgrade_key(difference.field, old, new)
    return AlarmCause("upgrade", key[:MOST_KEY], f"Upgrade of the {difference.field}: {_values(difference)}{also}.")


def _values(difference: Difference) -> str:
    return f"{side_text(difference.field, difference.a)} → {side_text(difference.field, difference.b)}"


def _key(axis: str, changed: Sequence[Difference]) -> str:
    """Return the key: for code the slow commit, regardless of the commits before it; else every field with both
    values."""
    if axis == "code" and changed[0].field == "commit" and changed[0].b is not None:
        return f"code:{changed[0].b.value}"[:MOST_KEY]
    parts = [f"{difference.field}:{_raw(difference, 'a')}:{_raw(difference, 'b')}" for difference in changed]
    return _shortened(f"{axis}:{';'.join(parts)}")


def _shortened(key: str) -> str:
    """Hash a key that is too long, keeping its leading axis."""
    if len(key) <= MOST_KEY:
        return key
    return f"{key.partition(':')[0]}:{hashlib.sha256(key.encode()).hexdigest()}"


def _raw(difference: Difference, side: str) -> str:
    stated = difference.a if side == "a" else difference.b
    return "" if stated is None else str(stated.value)
