"""Workloads that ran at several sizes, and their series, from the stored standings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from sqlmodel import Session, col

from app.domain.ranking.runs import DISPATCHERS
from app.domain.ranking.scaling import (
    KINDS,
    NearSizes,
    ScalingRuns,
    ScalingSeries,
    Sizes,
    may_scale,
    most_sizes,
    near_sizes,
    scaling_series,
    sizes_of,
)
from app.domain.run import Value
from app.storage.json_text import from_json, frozen
from app.storage.remembered import UntilRankedAgain
from app.storage.standings import check_project, hardware_and_families, leaderboards_named
from app.storage.tables import ProjectRow, StandingRow, from_row, in_batches, select_any
from app.web.lists import FilterQuery, OneOf

# --- Filters of the scaling view. The query string is its whole state, so it is validated as input.


class ScalingQuery(FilterQuery):
    """Filters of the scaling view. `hardware` and `family`: as in the addresses of leaderboards.

    `container` empty: the container with the most sizes, or of several the latest; `unknown`: runs without a
    container.
    """

    max_text = 500

    project: str = ""
    hardware: str = ""
    family: str = ""
    container: str = ""
    kind: Annotated[str, OneOf(KINDS)] = ""
    dispatcher: Annotated[str, OneOf((*DISPATCHERS, "unknown"))] = ""


def check_names(session: Session, query: ScalingQuery) -> None:
    """Raise NotFound listing the existing names, because an empty answer would look like missing results."""
    check_project(session, query.project)
    leaderboards_named(hardware_and_families(session, query.project), query.hardware, query.family)


UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Workloads:
    """The stacks of one project, hardware and family that exist at several sizes, by container.

    Containers with the most sizes come first, then the most recent; runs without a container are under UNKNOWN.
    `sizes`: maximum number of sizes of a series per container. `generated`: of the project's figures.
    """

    project: str
    project_id: int
    generated: bool
    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    containers: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    @property
    def names(self) -> tuple[str, str, str]:
        """Return project, hardware and family as in addresses."""
        return self.project, self.hardware_slug, self.family_slug

    @property
    def stacks(self) -> int:
        return sum(len(keys) for keys in self.containers.values())


@dataclass(frozen=True, slots=True)
class MeasuredSeries:
    """`fields` (members of both keys) and `stack_keys`, by config key. `near`: the nearest sizes, without a series."""

    series: tuple[ScalingSeries, ...]
    near: tuple[NearSizes, ...]
    fields: Mapping[str, Mapping[str, Value]]
    stack_keys: Mapping[str, str]


_HEADS = (
    select_any(
        StandingRow.project_id, StandingRow.stack_key, StandingRow.hardware, StandingRow.hardware_slug,
        StandingRow.family, StandingRow.family_slug, StandingRow.container, ProjectRow.slug,
        ProjectRow.generated,
    )
    .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
    .where(col(StandingRow.document)["scaling"].as_string() != "[]")
    .order_by(col(StandingRow.newest_at).desc(), col(StandingRow.stack_key))
)  # fmt: skip
"""Of the stacks with usable runs, so that a size that is counted can be shown."""

_workloads_of: UntilRankedAgain[tuple[Workloads, ...]] = UntilRankedAgain(32)


def workloads(session: Session) -> tuple[Workloads, ...]:
    """Return all workloads by project, family and hardware."""
    return _workloads_of.get(session, (), lambda: _read_workloads(session))


def _read_workloads(session: Session) -> tuple[Workloads, ...]:
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for row in session.execute(_HEADS):
        groups.setdefault((row.slug, row.family_slug, row.hardware_slug), []).append(row)
    sizes = _sizes(session, [row.stack_key for rows in groups.values() for row in rows])
    all_workloads = (_workloads(rows, sizes) for _, rows in sorted(groups.items()))
    return tuple(workload for workload in all_workloads if workload.containers)


_sizes_by_key: dict[str, Sizes] = {}


def _sizes(session: Session, stack_keys: Sequence[str]) -> Mapping[str, Sizes]:
    """Return the sizes of stacks. They are remembered, because they follow from the key: only new stacks are read."""
    new = [key for key in stack_keys if key not in _sizes_by_key]
    for some in in_batches(new):
        about = select_any(StandingRow.stack_key, StandingRow.about).where(col(StandingRow.stack_key).in_(some))
        for row in session.execute(about):
            _sizes_by_key[row.stack_key] = sizes_of({name: frozen(value) for name, value in row.about.items()})
    return _sizes_by_key


def _workloads(rows: Sequence[Any], sizes_by_key: Mapping[str, Sizes]) -> Workloads:
    """Return the workloads of one project, family and hardware; the rows are newest first."""
    values = {row.stack_key: sizes_by_key.get(row.stack_key, ()) for row in rows}
    keys = may_scale(values)
    containers: dict[str, list[str]] = {}
    for row in rows:
        if row.stack_key in keys:
            containers.setdefault(row.container or UNKNOWN, []).append(row.stack_key)
    sizes = {name: most_sizes([values[key] for key in names]) for name, names in containers.items()}
    newest = rows[0]
    return from_row(
        Workloads,
        newest,
        project=newest.slug,
        containers={name: tuple(containers[name]) for name in sorted(containers, key=lambda name: -sizes[name])},
        sizes=sizes,
    )


def measure(session: Session, chosen: Workloads, query: ScalingQuery) -> MeasuredSeries:
    """Return the requested series of the workloads in one container.

    The results of configurations were computed when their stacks were ranked.
    """
    stack_keys = chosen.containers.get(container_of(chosen, query), ())
    documents = select_any(
        StandingRow.stack_key, col(StandingRow.document)["scaling"].as_string().label("scaling")
    ).where(col(StandingRow.project_id) == chosen.project_id, col(StandingRow.stack_key).in_(stack_keys))
    stacks = [
        (row.stack_key, from_json(ScalingRuns, runs))
        for row in session.execute(documents)
        for runs in json.loads(row.scaling or "[]")
    ]
    all_series = scaling_series(runs for _, runs in stacks)
    wanted = tuple(
        series
        for series in all_series
        if query.kind in ("", series.kind) and query.dispatcher in ("", series.dispatcher or "unknown")
    )
    return MeasuredSeries(
        wanted,
        near=() if all_series else near_sizes([runs for _, runs in stacks]),
        fields={runs.config_key: runs.known for _, runs in stacks},
        stack_keys={runs.config_key: key for key, runs in stacks},
    )


_comparable_of: UntilRankedAgain[frozenset[tuple[str, str, str]]] = UntilRankedAgain(32)


def comparable_workloads(session: Session) -> frozenset[tuple[str, str, str]]:
    """Return project, hardware and family of the workloads with a series in any container."""
    return _comparable_of.get(
        session,
        (),
        lambda: frozenset(
            workload.names
            for workload in workloads(session)
            if any(
                measure(session, workload, ScalingQuery.from_params({"container": name})).series
                for name in workload.containers
            )
        ),
    )


def container_of(chosen: Workloads, query: ScalingQuery) -> str:
    """Return the container to show. A series never crosses containers, so there is one at a time."""
    return query.container or next(iter(chosen.containers))
