"""The effects of upgrades: one entry per upgrade of a project, with the change of each stack."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Select
from sqlmodel import Session, col

from app.domain.numbers import THIN, grouped, plural
from app.domain.verdict.upgrade import cause_key
from app.storage.audit import continuations
from app.storage.runs import aware
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, RunRow, UpgradeChangeRow, select_any

MOST = 10
_MOST_READ = 500


@dataclass(frozen=True, slots=True)
class UpgradeOfStack:
    """The change of one stack. `run_id`: its first run after the upgrade. `others`: number of other changed fields.

    The change belongs to the regression that the upgrade opened. It includes later runs, so the interval and the
    numbers of runs of the first measurement are None. Without a regression the change is as first measured.
    """

    stack_key: str
    job: str
    run_id: int
    others: int
    decision: str
    delta_pct: float
    ci_low_pct: float | None
    ci_high_pct: float | None
    runs: int | None
    from_runs: int | None


@dataclass(frozen=True, slots=True)
class UpgradeChange:
    """An upgrade with the change of each stack, slowest first. `at`: the newest position of a stack's first run.

    `slower`: the change of each job (stack key and name) in percent according to the regression that it opened, which
    includes later runs.
    """

    project: str
    field: str
    from_value: str
    to_value: str
    at: datetime
    stacks: tuple[UpgradeOfStack, ...]
    slower: Mapping[tuple[str, str], float]

    @property
    def query(self) -> str:
        """Return the query string of its upgrade report."""
        return urlencode({"project": self.project, "field": self.field, "from": self.from_value, "to": self.to_value})

    @property
    def name(self) -> str:
        """Return `Container nemo:26.06 → nemo:26.08`, without the registry."""
        before, after = ((value or "unknown").rpartition("/")[2] for value in (self.from_value, self.to_value))
        return f"{self.field.capitalize()} {before} → {after}"

    @property
    def sentence(self) -> str:
        """Return `3 jobs slower by 4.1 to 6.8 %, 1 faster by 12.0 %, 2 inconclusive`."""
        return ", ".join(self._parts())

    def of(self, decision: str) -> tuple[UpgradeOfStack, ...]:
        return tuple(stack for stack in self.stacks if stack.decision == decision)

    def _parts(self) -> Iterator[str]:
        words = {"regression": "slower", "improvement": "faster", "no_change": "as fast as before"}
        noun = "job"
        for decision, word in (*words.items(), ("inconclusive", "inconclusive")):
            others = (stack for stack in self.of(decision) if (stack.stack_key, stack.job) not in self.slower)
            changes = [stack.delta_pct for stack in others]
            if decision == "regression":
                changes += self.slower.values()
            if not changes:
                continue
            by = f" by {_sizes(sorted(map(abs, changes)))}" if decision in ("regression", "improvement") else ""
            yield f"{plural(len(changes), noun) if noun else len(changes)} {word}{by}"
            noun = ""


def _sizes(sizes: Sequence[float]) -> str:
    low, high = grouped(sizes[0], 1), grouped(sizes[-1], 1)
    return f"{low}{THIN}%" if low == high else f"{low} to {high}{THIN}%"


def upgrade_changes(
    session: Session, *, project: str = "", since: datetime | None = None, most: int = MOST
) -> tuple[UpgradeChange, ...]:
    """Return up to `most` upgrades with first runs after `since`, newest first."""
    chosen: Select[Any] = (
        select_any(UpgradeChangeRow, ProjectRow.slug)
        .join(ProjectRow, col(ProjectRow.id) == UpgradeChangeRow.project_id)
        .where(col(UpgradeChangeRow.side_by_side).is_(False))
        .order_by(col(UpgradeChangeRow.at).desc(), col(UpgradeChangeRow.id).desc())
        .limit(_MOST_READ)
    )
    if project:
        chosen = chosen.where(col(ProjectRow.slug) == project)
    if since is not None:
        chosen = chosen.where(col(UpgradeChangeRow.at) >= since)
    groups: dict[tuple[str, str, str, str], list[UpgradeChangeRow]] = {}
    for row, slug in session.execute(chosen):
        groups.setdefault((slug, row.field, row.from_value, row.to_value), []).append(row)
    shown = dict(list(groups.items())[:most])
    slower = _slower(session, shown)
    upgrades = []
    for key, changes in shown.items():
        of_regression = slower.get((changes[0].project_id, cause_key(*key[1:])), {})
        stacks = (_stack(row, of_regression.get((row.stack_key, row.job))) for row in changes)
        by_change = sorted(stacks, key=lambda stack: -stack.delta_pct)
        upgrades.append(UpgradeChange(*key, aware(changes[0].at), tuple(by_change), of_regression))
    return tuple(upgrades)


_Group = tuple[str, str, str, str]
"""Project, field, and its value before and after an upgrade."""


def _slower(
    session: Session, groups: Mapping[_Group, Sequence[UpgradeChangeRow]]
) -> dict[tuple[int, str], dict[tuple[str, str], float]]:
    """Return, by project and cause of a regression, the change in percent of each of its jobs where it began."""
    if not groups:
        return {}
    members = (
        select_any(
            RegressionRow.id, RegressionRow.project_id, RegressionRow.cause_key, RegressionMemberRow.run_id,
            RegressionMemberRow.stack_key, RegressionMemberRow.delta_pct, RunRow.job,
        )
        .join(RegressionMemberRow, col(RegressionMemberRow.regression_id) == RegressionRow.id)
        .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(
            col(RegressionRow.project_id).in_({changes[0].project_id for changes in groups.values()}),
            col(RegressionRow.cause_key).in_([cause_key(*group[1:]) for group in groups]),
            col(RegressionRow.kind) == "upgrade",
            col(RegressionRow.metric) == "step_time_ms",
            col(RegressionRow.state) != "invalid",
            col(RegressionMemberRow.delta_pct).is_not(None),
        )
    )  # fmt: skip
    rows = session.execute(members).all()
    moved = continuations(session, {row.id for row in rows})
    slower: dict[tuple[int, str], dict[tuple[str, str], float]] = {}
    for row in rows:
        if (row.id, row.run_id) not in moved:
            slower.setdefault((row.project_id, row.cause_key), {})[row.stack_key, row.job] = row.delta_pct
    return slower


def _stack(row: UpgradeChangeRow, slower_pct: float | None) -> UpgradeOfStack:
    """Return the change of a stack. `slower_pct`: that of its regression."""
    if slower_pct is not None:
        return UpgradeOfStack(
            row.stack_key, row.job, row.run_id, row.others, "regression", slower_pct, None, None, None, None
        )
    return UpgradeOfStack(
        row.stack_key, row.job, row.run_id, row.others, row.decision, row.delta_pct, row.ci_low_pct, row.ci_high_pct,
        row.runs, row.from_runs,
    )  # fmt: skip
