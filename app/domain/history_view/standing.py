"""Whether a run is part of the levels of its history, and if not, why (`docs/verdicts.md`)."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, Protocol

from app.domain.matching.record import FAILED

Standing = Literal[
    "counts", "failed", "cut_off", "quarantined", "not_steady", "short", "no_figure", "purpose", "branch", "definitions"
]

STANDINGS: Mapping[Standing, str] = {
    "counts": "counts",
    "failed": "failed",
    "cut_off": "ended early",
    "quarantined": "quarantined",
    "not_steady": "not steady",
    "short": "short",
    "no_figure": "no figure",
    "purpose": "no ci run",
    "branch": "another branch",
    "definitions": "older definitions",
}
"""In the words of pages."""

_CUT_OFF = frozenset({"truncated", "stopped", "running"})
ANY_BRANCH = "*"


class HistoryRun(Protocol):
    """What a history needs to know of a run. Any frozen value with these attributes will do.

    `log_step_time` is NaN where there is no estimate.
    """

    @property
    def id(self) -> int: ...
    @property
    def commit(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def purpose(self) -> str: ...
    @property
    def ordered_at(self) -> datetime: ...
    @property
    def config_key(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def quarantine(self) -> str: ...
    @property
    def log_step_time(self) -> float: ...
    @property
    def is_steady(self) -> bool: ...
    @property
    def short(self) -> bool: ...
    @property
    def definition_version(self) -> int: ...


def standing(run: HistoryRun, baseline_branch: str, definition_version: int) -> Standing:
    """The first reason that holds; `counts` when there is none. `baseline_branch`: `*` for any.

    `definition_version`: that of the stack's newest figures. Figures of two versions are never put in one level.
    """
    reasons: tuple[tuple[bool, Standing], ...] = (
        (bool(run.quarantine), "quarantined"),
        (run.outcome in FAILED, "failed"),
        (not has_figure(run), "no_figure"),
        (run.outcome in _CUT_OFF, "cut_off"),
        (not run.is_steady, "not_steady"),
        (run.short, "short"),
        (run.purpose != "ci", "purpose"),
        (baseline_branch not in (ANY_BRANCH, run.branch), "branch"),
        (run.definition_version != definition_version, "definitions"),
    )
    return next((why for holds, why in reasons if holds), "counts")


def has_figure(run: HistoryRun) -> bool:
    return math.isfinite(run.log_step_time)
