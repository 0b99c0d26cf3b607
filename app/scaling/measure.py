"""Which workloads ran at several sizes, and what their series are: read from the standings, then from their runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.ranking import Configured, RankedRun, ScalingSeries, may_scale, scaling_series
from app.domain.run import Stated, Value
from app.scaling.query import ScalingQuery
from app.storage.findings import frozen
from app.storage.ranked_runs import ranked_stack
from app.storage.ranking_priors import kept_priors
from app.storage.standings_tables import StandingRow
from app.storage.tables import ProjectRow

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Workloads:
    """The stacks of one project, hardware and family of which another size is among them.

    By container, the one that ran last first; that of runs of which nobody states it is UNKNOWN.
    """

    project: str
    project_id: int
    gpu: str
    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    containers: Mapping[str, tuple[str, ...]]

    @property
    def stacks(self) -> int:
        return sum(len(keys) for keys in self.containers.values())


@dataclass(frozen=True, slots=True)
class Measured:
    """`contracts` and `stack_keys`: by config key."""

    series: tuple[ScalingSeries, ...]
    contracts: Mapping[str, Mapping[str, Stated]]
    stack_keys: Mapping[str, str]


def workloads(session: Session) -> tuple[Workloads, ...]:
    """All there are, by project, family and hardware."""
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for row in session.execute(_heads()):
        groups.setdefault((row.slug, row.family_slug, row.hardware_slug), []).append(row)
    found = []
    for (project, family_slug, hardware_slug), rows in sorted(groups.items()):
        keys = may_scale({row.stack_key: _known(row.about) for row in rows})
        containers: dict[str, list[str]] = {}
        for row in rows:
            if row.stack_key in keys:
                containers.setdefault(row.container or UNKNOWN, []).append(row.stack_key)
        if containers:
            first = rows[0]
            found.append(
                Workloads(
                    project, first.project_id, first.gpu, first.hardware, hardware_slug, first.family, family_slug,
                    {name: tuple(names) for name, names in containers.items()},
                )
            )  # fmt: skip
    return tuple(found)


def measure(session: Session, chosen: Workloads, query: ScalingQuery) -> Measured:
    """The series of the workloads in the container, of the kind and the dispatcher that are asked for."""
    configured: list[Configured] = []
    contracts: dict[str, Mapping[str, Stated]] = {}
    stacks: dict[str, str] = {}
    for stack_key in chosen.containers.get(container_of(chosen, query), ()):
        stack = ranked_stack(session, chosen.project_id, stack_key)
        for config_key, runs in _by_configuration(stack.runs if stack else ()).items():
            contract = stack.contracts[config_key] if stack else {}
            configured.append(Configured(chosen.project, contract, tuple(runs)))
            contracts[config_key], stacks[config_key] = contract, stack_key
    priors = kept_priors(session, chosen.project_id, chosen.gpu)
    wanted = tuple(one for one in scaling_series(configured, priors.of_class) if _asked_for(one, query))
    return Measured(wanted, contracts, stacks)


def container_of(chosen: Workloads, query: ScalingQuery) -> str:
    """A series never crosses containers, so one is shown at a time."""
    return query.container or next(iter(chosen.containers))


def _asked_for(one: ScalingSeries, query: ScalingQuery) -> bool:
    return query.kind in ("", one.kind) and query.dispatcher in ("", one.dispatcher or "unknown")


def _by_configuration(runs: Iterable[RankedRun]) -> dict[str, list[RankedRun]]:
    found: dict[str, list[RankedRun]] = {}
    for run in runs:
        found.setdefault(run.facts.config_key, []).append(run)
    return found


def _heads() -> Any:
    columns = (
        StandingRow.project_id, StandingRow.stack_key, StandingRow.gpu, StandingRow.hardware,
        StandingRow.hardware_slug, StandingRow.family, StandingRow.family_slug, StandingRow.container,
        StandingRow.about, ProjectRow.slug,
    )  # fmt: skip
    return (
        select(*columns)  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .order_by(col(StandingRow.newest_at).desc(), col(StandingRow.stack_key))
    )


def _known(about: Mapping[str, Any]) -> dict[str, Value]:
    return {name: frozen(value) for name, value in about.items()}
