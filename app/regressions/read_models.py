"""What pages and the API show of a regression: the row, and the stack of each member with its first slow run."""

import math
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Member:
    """One stack that became slower. The run is the first slow one, `title` what people know the stack by.

    `usual`, `slow`: its levels in the unit of the metric (ms, GiB). `quarantine`: why the run counts no more, or "".
    `first_delta_pct`: what the first slow run showed.
    """

    run_id: int
    run_name: str
    branch: str
    commit: str
    ordered_at: datetime
    quarantine: str
    model: str | None
    gpu: str | None
    gpus: int | None
    dispatcher: str | None
    stack_key: str
    config_key: str
    title: str
    usual: float | None
    slow: float | None
    delta_pct: float | None
    first_delta_pct: float | None
    gpu_hours_per_day: float | None
    proposal: str
    joined_at: datetime


@dataclass(frozen=True, slots=True)
class Regression:
    """`members`: oldest first; the first of them is the run since which it is slow."""

    id: int
    project_id: int
    project: str
    generated: bool
    kind: str
    cause: str
    axis: str
    metric: str
    state: str
    assignee: str
    note: str
    external_url: str
    opened_at: datetime
    changed_at: datetime
    proposal: str
    proposal_run_id: int | None
    worst_delta_pct: float | None
    gpu_hours_per_day: float | None
    members: tuple[Member, ...]

    @property
    def link(self) -> str:
        """The external issue as an address that may be followed; empty when there is none."""
        return self.external_url if self.external_url.startswith(("https://", "http://")) else ""

    @property
    def since(self) -> Member | None:
        return self.members[0] if self.members else None


@dataclass(frozen=True, slots=True)
class RegressionPage:
    """One page of a list: `page` counts from 1, `total` is over all pages."""

    items: tuple[Regression, ...]
    total: int
    page: int
    page_size: int

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.page_size))

    @property
    def first(self) -> int:
        """Number of the first row shown, from 1; 0 when there is none."""
        return (self.page - 1) * self.page_size + 1 if self.items else 0

    @property
    def last(self) -> int:
        return self.first + len(self.items) - 1 if self.items else 0


@dataclass(frozen=True, slots=True)
class Options:
    """Values that occur, for select boxes."""

    projects: tuple[str, ...]
    assignees: tuple[str, ...]
    gpus: tuple[str, ...]
    models: tuple[str, ...]


def figure_of(level: float | None) -> float | None:
    """The figure of a level, which is stored as its logarithm."""
    return None if level is None else math.exp(level)
