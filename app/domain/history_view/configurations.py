"""The configurations of a stack in one history: letters to name them by, their levels, where levels change."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.history import History, find_changes
from app.domain.history_view.standing import HistoryRun, Standing


@dataclass(frozen=True, slots=True)
class Level:
    """Runs `first` to `last` (places in the stack's runs) stand at `step_time_ms`; `n` of them count."""

    first: int
    last: int
    step_time_ms: float
    n: int


@dataclass(frozen=True, slots=True)
class LevelChange:
    """`run`: place of the first run of the new level; `before`: of the last one of the old. Positive is slower."""

    run: int
    before: int
    delta_pct: float
    p_value: float
    from_ms: float
    to_ms: float


@dataclass(frozen=True, slots=True)
class Configuration:
    """One config key. `letter`: A is the one that came first. `runs`, `counted`: places in the stack's runs.

    `levels` is empty while no run counts; `is_last`: the counted run that came last is of this configuration.
    """

    letter: str
    config_key: str
    runs: tuple[int, ...]
    counted: tuple[int, ...]
    levels: tuple[Level, ...]
    changes: tuple[LevelChange, ...]
    is_last: bool = False

    @property
    def now(self) -> Level | None:
        return self.levels[-1] if self.levels else None


def configurations(
    runs: Sequence[HistoryRun], standings: Sequence[Standing], priors: Mapping[str, Prior] | None = None
) -> tuple[Configuration, ...]:
    """One for each config key, in the order of their first runs.

    `runs`: all of a stack, in order; `standings` of each. `priors`: by config key, what verdicts assumed of the
    run-to-run variation; without one the default.
    """
    places: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        places.setdefault(run.config_key, []).append(place)
    counted = {key: [place for place in of_key if standings[place] == "counts"] for key, of_key in places.items()}
    last = max((place for of_key in counted.values() for place in of_key), default=len(runs) - 1)
    found = []
    for index, (key, of_key) in enumerate(places.items()):
        history = _history([runs[place] for place in counted[key]], (priors or {}).get(key, DEFAULT_PRIOR))
        found.append(
            Configuration(
                letter=letter(index),
                config_key=key,
                runs=tuple(of_key),
                counted=tuple(counted[key]),
                levels=_levels(history, counted[key]),
                changes=_changes(history, counted[key]),
                is_last=runs[last].config_key == key,
            )
        )
    return tuple(found)


def letter(index: int) -> str:
    """A to Z, then AA, AB, ..."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def _history(counted: Sequence[HistoryRun], prior: Prior) -> History | None:
    return find_changes([run.log_step_time for run in counted], prior) if counted else None


def _levels(history: History | None, places: Sequence[int]) -> tuple[Level, ...]:
    return tuple(
        Level(places[one.start], places[one.stop - 1], math.exp(one.level), one.stop - one.start)
        for one in (history.segments if history else ())
    )


def _changes(history: History | None, places: Sequence[int]) -> tuple[LevelChange, ...]:
    if history is None:
        return ()
    return tuple(
        LevelChange(
            run=places[point.run],
            before=places[point.run - 1],
            delta_pct=point.delta_pct,
            p_value=point.p_value,
            from_ms=math.exp(old.level),
            to_ms=math.exp(new.level),
        )
        for point, (old, new) in zip(history.change_points, pairwise(history.segments), strict=True)
    )
