"""The runs of one stack as a page shows them: what counts, levels of each configuration, drift, what changed where.

standing(run, ...)            whether a run is part of its history's levels, and why not
configurations(runs, ...)     the levels and change points of each config key
drifts(pins, runs)            how far the pinned runs, the release and today are apart
changed_versions(probes)      where libraries, commits of them or the driver changed
alarm_of, called_at           which regression and which verdict a change point belongs to
answer(...)                   the first sentence of the page
"""

from app.domain.history_view.answer import answer, day
from app.domain.history_view.belonging import PlacedAlarm, alarm_of, called_at
from app.domain.history_view.configurations import Configuration, Level, LevelChange, configurations
from app.domain.history_view.pins import Drift, Pin, PinDrift, drift, drifts
from app.domain.history_view.standing import STANDINGS, HistoryRun, Standing, standing
from app.domain.history_view.versions import WATCHED, VersionChange, VersionProbe, changed_versions

__all__ = [
    "STANDINGS",
    "WATCHED",
    "Configuration",
    "Drift",
    "HistoryRun",
    "Level",
    "LevelChange",
    "Pin",
    "PinDrift",
    "PlacedAlarm",
    "Standing",
    "VersionChange",
    "VersionProbe",
    "alarm_of",
    "answer",
    "called_at",
    "changed_versions",
    "configurations",
    "day",
    "drift",
    "drifts",
    "standing",
]
