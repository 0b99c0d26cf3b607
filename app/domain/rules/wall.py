"""Which wall a run stands before: measured, inferred from the platform or the timers, or unknown. Never guessed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.domain.rules.rule import Wall

Certainty = Literal["measured", "inferred", "unknown"]
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class WallReading:
    """`because` is a sentence; `evidence` the facts behind it."""

    wall: Wall
    certainty: Certainty
    because: str
    evidence: tuple[str, ...] = ()


def read_wall(values: Values) -> WallReading:
    """The wall that the evidence points at. `values` are typed facts with the thresholds (see `derive`)."""
    return _measured(values) or _by_timers(values) or _by_platform(values) or _unknown(values)


def _number(values: Values, name: str) -> float | None:
    value = values.get(name)
    return value if isinstance(value, float) else None


def _measured(values: Values) -> WallReading | None:
    if values.get("oom") is True:
        return WallReading("memory", "measured", "The job ran out of GPU memory.", ("oom",))
    strongest = max(_over_threshold(values), default=None, key=lambda one: one[0])
    if strongest is not None:
        return strongest[1]
    headroom, least = _number(values, "headroom_frac"), _number(values, "T_headroom") or 0.0
    if headroom is not None and headroom < least:
        because = f"{headroom:.0%} of the GPU's memory is free; under {least:.0%} it is tight."
        return WallReading("memory", "measured", because, ("headroom_frac",))
    return _by_exclusion(values)


def _over_threshold(values: Values) -> list[tuple[float, WallReading]]:
    """Communication and host, each by how much it passes its threshold."""
    found = []
    for name, threshold, wall, text in (
        ("exposed_comm_frac", "T_comm", "communication", "of the step is communication that nothing hides"),
        ("gpu_idle_frac", "T_idle", "host", "of the step no kernel runs"),
        ("launch_starved_frac", "T_idle", "host", "of the step the GPU waits for a launch"),
    ):
        value, least = _number(values, name), _number(values, threshold)
        if value is not None and least is not None and value >= least:
            sentence = f"{value:.0%} {text}; from {least:.0%} it is a wall."
            found.append((value / max(least, 1e-9), WallReading(wall, "measured", sentence, (name,))))  # type: ignore[arg-type]
    return found


def _by_exclusion(values: Values) -> WallReading | None:
    """Compute is what is left when communication, idle time and memory were measured and are small."""
    names = ("exposed_comm_frac", "gpu_idle_frac", "headroom_frac")
    if any(_number(values, name) is None for name in names):
        return None
    because = "Communication, idle time and memory were measured, and none of them is a wall."
    return WallReading("compute", "measured", because, names)


def _by_timers(values: Values) -> WallReading | None:
    share = _number(values, "comm_timer_frac")
    least = _number(values, "T_comm")
    if share is None or least is None or share < least:
        return None
    because = (
        f"Timers of communication add up to {share:.0%} of the step. They set barriers and do not tell what is hidden, "
        f"so a profile has to confirm it."
    )
    return WallReading("communication", "inferred", because, ("comm_timer_frac",))


def _by_platform(values: Values) -> WallReading | None:
    """What the platform leads one to expect, where that was not measured: here it was not over its threshold."""
    if values.get("hopper") is True and _number(values, "exposed_comm_frac") is None:
        text = "Nothing was profiled. On Hopper communication is the wall to expect first."
        return WallReading("communication", "inferred", text, ("gpu",))
    if values.get("nvl72") is True and _number(values, "gpu_idle_frac") is None:
        text = "Nothing was profiled. On an NVL72 system host overhead is the wall to expect first."
        return WallReading("host", "inferred", text, ("gpu",))
    return None


def _unknown(values: Values) -> WallReading:
    low = [(name, text) for name, text in _SMALL.items() if _number(values, name) is not None]
    if not low:
        because = "No wall is known: nothing was profiled, and the platform gives no prior."
        return WallReading("none", "unknown", because)
    told = ", ".join(f"{text} {_number(values, name):.0%}" for name, text in low)
    missing = ", ".join(text for name, text in _SMALL.items() if _number(values, name) is None)
    because = f"What was measured is no wall ({told}). Not known: {missing}."
    return WallReading("none", "unknown", because, tuple(name for name, _ in low))


_SMALL = {"exposed_comm_frac": "exposed communication", "gpu_idle_frac": "idle time", "headroom_frac": "free memory"}
