"""What of a verdict somebody should look at: which figure became worse, from which level to which, and why.

Alarms of one cause belong together, in however many stacks they show (`app/pipeline/regressions.py`).
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.contract.values import shown
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.verdict.assess import UPGRADES
from app.domain.verdict.comparability import Comparability
from app.domain.verdict.differences import Difference
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.history import SAME_LEVEL
from app.domain.verdict.step_time import MemoryChange, StepTimeChange, Verdict
from app.domain.verdict.upgrade import cause_key as upgrade_key
from app.domain.verdict.words import differences, side_text

MOST_KEY = 200
_EVERYWHERE = ("code:", "upgrade:")


@dataclass(frozen=True, slots=True)
class Cause:
    """`key` is the same for all that belong together, and begins with the axis or with `upgrade`."""

    kind: Literal["run", "upgrade"]
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """Levels are ln of the metric (ms, GiB). `tolerance`: how far two single runs of one level may lie apart, in ln."""

    metric: Literal["step_time_ms", "peak_memory_gib"]
    usual_level: float
    slow_level: float
    delta_pct: float
    tolerance: float
    cause: Cause

    def is_covered_by(self, slow_level: float, *, has_ended: bool) -> bool:
        """Whether a regression to `slow_level` explains it: as long as it lasts any alarm up to there; once it has
        ended, only one at that level, which may be its coming back.
        """
        reach = max(SAME_LEVEL, self.tolerance)
        return self.slow_level <= slow_level + reach and (not has_ended or self.slow_level >= slow_level - reach)


def alarms_of(
    document: VerdictDocument, *, stack_key: str, run: str, purpose: str, branch: str = ""
) -> tuple[Alarm, ...]:
    """The alarms of a verdict, or of the contrast that stands in for one after an upgrade; most verdicts have none.

    `branch`: on which it was found, when that is not the baseline branch. There it is a cause of its own, unless it is
    a commit or an upgrade, which are the same everywhere.
    """
    if document.raises_regression and document.decision == "regression" and document.comparability is not None:
        cause = _cause(document.comparability, f"{stack_key[:16]}:{run}")
        return tuple(_alarms(document.verdict, _on_branch(cause, branch)))
    contrast = document.contrast
    if contrast is None or document.quarantined or purpose == "experiment" or document.decision != "no_baseline":
        return ()
    found = contrast.comparability
    if found.attributed_to not in UPGRADES or found.one_is_benchmark_only or contrast.measured.decision != "regression":
        return ()
    return tuple(_alarms(contrast.measured, _on_branch(_upgrade(found.stack[0]), branch)))


def _alarms(verdict: Verdict, cause: Cause) -> Iterator[Alarm]:
    if verdict.step_time is not None and verdict.step_time.decision == "regression":
        yield _of_step_time(verdict.step_time, cause)
    if verdict.memory is not None and verdict.memory.decision == "regression":
        yield _of_memory(verdict.memory, cause)


def _of_step_time(time: StepTimeChange, cause: Cause) -> Alarm:
    usual = math.log(time.baseline_ms)
    half_width = time.shift - math.log1p(time.ci_low_pct / 100)
    # Two single runs differ by chance a little more than a run and a baseline do.
    return Alarm("step_time_ms", usual, usual + time.shift, time.delta_pct, math.sqrt(2) * half_width, cause)


def _of_memory(memory: MemoryChange, cause: Cause) -> Alarm:
    usual, slow = (math.log(side / BYTES_PER_GIB) for side in (memory.baseline_bytes, memory.candidate_bytes))
    return Alarm("peak_memory_gib", usual, slow, memory.delta_pct, math.log1p(memory.alarm_pct / 100), cause)


def _cause(found: Comparability, unique: str) -> Cause:
    """Knobs first, because somebody turned them; then the code; then what the container holds, and the place."""
    knobs = [one for one in (*found.stack, *found.knobs) if one.is_certain]
    if knobs:
        return Cause("run", _key(knobs[0].axis, knobs), f"{differences(knobs)}.")
    beside = [one for one in found.beside if one.is_certain]
    code = [one for one in beside if one.field == "commit"]
    if code:
        others = [one for one in beside if one.field != "commit"]
        also = f"; beside it {differences(others)}" if others else ""
        return Cause("run", _key("code", code), f"Code: {_values(code[0])}{also}.")
    if beside:
        return Cause("run", _key(beside[0].axis, beside), f"{differences(beside)}.")
    return Cause("run", f"unknown:{unique}", "Nothing that is known differs: the nodes, or chance.")


def _on_branch(cause: Cause, branch: str) -> Cause:
    if not branch:
        return cause
    key = cause.key if cause.key.startswith(_EVERYWHERE) else _shortened(f"{cause.key}@{branch}")
    return Cause(cause.kind, key, f"{cause.text.rstrip('.')}, on branch {branch}.")


def _upgrade(one: Difference) -> Cause:
    old, new = ("" if side is None else shown(side.value) for side in (one.a, one.b))
    key = upgrade_key(one.field, old, new)
    return Cause("upgrade", key[:MOST_KEY], f"Upgrade of the {one.field}: {_values(one)}.")


def _values(one: Difference) -> str:
    return f"{side_text(one.field, one.a)} -> {side_text(one.field, one.b)}"


def _key(axis: str, found: Sequence[Difference]) -> str:
    """The commit that is slow, wherever each stack stood before it; else every field with its two values."""
    if axis == "code" and found[0].field == "commit" and found[0].b is not None:
        return f"code:{found[0].b.value}"[:MOST_KEY]
    parts = [f"{one.field}:{_raw(one, 'a')}:{_raw(one, 'b')}" for one in found]
    return _shortened(f"{axis}:{';'.join(parts)}")


def _shortened(key: str) -> str:
    """With its axis, which it begins with."""
    if len(key) <= MOST_KEY:
        return key
    return f"{key.partition(':')[0]}:{hashlib.sha256(key.encode()).hexdigest()}"


def _raw(one: Difference, side: str) -> str:
    stated = one.a if side == "a" else one.b
    return "" if stated is None else str(stated.value)
