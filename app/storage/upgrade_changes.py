"""The effects of upgrades: one entry per upgrade of a project, with the change of each stack."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Select
from sqlmodel import Session, col

from app.domain.numbers import THIN, grouped, plural
from app.storage.runs import aware
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, UpgradeChangeRow, select_any

MOST = 10
_MOST_READ = 500


@dataclass(frozen=True, slots=True)
class UpgradeOfStack:
    """The change of one stack. `run_id`: its first run after the upgrade. `others`: number of other changed fields.

    `now_pct`: the change according to the regression that it opened, which includes later runs; else `delta_pct`.
    """

    stack_key: str
    job: str
    run_id: int
    others: int
    decision: str
    delta_pct: float
    ci_low_pct: float
    ci_high_pct: float
    runs: int
    from_runs: int
    now_pct: float


@dataclass(frozen=True, slots=True)
class UpgradeChange:
    """An upgrade with the change of each stack, slowest first. `at`: the newest position of a stack's first run."""

    project: str
    field: str
    from_value: str
    to_value: str
    at: datetime
    stacks: tuple[UpgradeOfStack, ...]

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
        """Return `3 jobs slower by 4.1 to 6.8 %, 1 faster by 12.0 %, 2 undecided`."""
        return ", ".join(self._parts())

    def of(self, decision: str) -> tuple[UpgradeOfStack, ...]:
        return tuple(stack for stack in self.stacks if stack.decision == decision)

    def _parts(self) -> Iterator[str]:
        words = {"regression": "slower", "improvement": "faster", "no_change": "as fast as before"}
        noun = "job"
        for decision, word in (*words.items(), ("inconclusive", "undecided")):
            stacks = self.of(decision)
            if not stacks:
                continue
            sizes = sorted(abs(stack.now_pct) for stack in stacks)
            by = f" by {_sizes(sizes)}" if decision in ("regression", "improvement") else ""
            yield f"{plural(len(stacks), noun) if noun else len(stacks)} {word}{by}"
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
    rows = session.execute(chosen).all()
    sizes = _sizes_now(session, [row.run_id for row, _ in rows])
    for row, slug in rows:
        groups.setdefault((slug, row.field, row.from_value, row.to_value), []).append(row)
    return tuple(
        UpgradeChange(
            *key,
            aware(changes[0].at),
            tuple(sorted((_stack(row, sizes) for row in changes), key=lambda stack: -stack.now_pct)),
        )
        for key, changes in list(groups.items())[:most]
    )


def _sizes_now(session: Session, run_ids: Sequence[int]) -> dict[int, float]:
    """Return the change in percent by run, for runs that opened a regression of an upgrade."""
    members = (
        select_any(RegressionMemberRow.run_id, RegressionMemberRow.delta_pct)
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .where(
            col(RegressionMemberRow.run_id).in_(run_ids),
            col(RegressionMemberRow.delta_pct).is_not(None),
            col(RegressionRow.kind) == "upgrade",
            col(RegressionRow.metric) == "step_time_ms",
        )
    )
    return {row.run_id: row.delta_pct for row in session.execute(members)}


def _stack(row: UpgradeChangeRow, sizes: Mapping[int, float]) -> UpgradeOfStack:
    now_pct = sizes.get(row.run_id, row.delta_pct) if row.decision == "regression" else row.delta_pct
    return UpgradeOfStack(
        row.stack_key, row.job, row.run_id, row.others, row.decision, row.delta_pct, row.ci_low_pct, row.ci_high_pct,
        row.runs, row.from_runs, now_pct,
    )  # fmt: skip
