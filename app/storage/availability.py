"""Whether a dispatcher works in a container, over all runs whose logs prove something of it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.run import Evidence
from app.storage.findings import known
from app.storage.run_records import aware
from app.storage.tables import AvailabilityRow, ProjectRow


@dataclass(frozen=True, slots=True)
class ContainerDispatcher:
    """`available` and `evidence` are those of the newest run; `container` is None when its runs do not state it."""

    container: str | None
    dispatcher: str
    available: bool
    runs_with: int
    runs_without: int
    run_id: int
    seen_at: datetime
    evidence: tuple[Evidence, ...]

    @property
    def inferred(self) -> bool:
        """Whether that it works is concluded from iterations that ran; no line proves it."""
        return self.available and bool(self.evidence) and all(one.inferred for one in self.evidence)


def find_availability(
    session: Session, *, containers: Collection[str] | None = None, project: str = ""
) -> tuple[ContainerDispatcher, ...]:
    """By container and dispatcher, of some containers or one project where named; "" is the unknown container."""
    chosen = select(AvailabilityRow).join(ProjectRow, col(ProjectRow.id) == col(AvailabilityRow.project_id))
    if containers is not None:
        chosen = chosen.where(col(AvailabilityRow.container).in_(containers))
    if project:
        chosen = chosen.where(col(ProjectRow.slug) == project)
    found: dict[tuple[str, str], list[AvailabilityRow]] = {}
    for row in session.execute(chosen.order_by(col(AvailabilityRow.run_id).desc())).scalars():
        found.setdefault((row.container, row.dispatcher), []).append(row)
    return tuple(_joined(found[key]) for key in sorted(found, key=lambda key: (key[0] == "", *key)))


def _joined(rows: list[AvailabilityRow]) -> ContainerDispatcher:
    """Rows of one container and dispatcher, the newest first."""
    newest = rows[0]
    return ContainerDispatcher(
        container=newest.container or None,
        dispatcher=newest.dispatcher,
        available=newest.available,
        runs_with=sum(row.available for row in rows),
        runs_without=sum(not row.available for row in rows),
        run_id=newest.run_id,
        seen_at=aware(newest.seen_at),
        evidence=tuple(Evidence(**known(Evidence, line)) for line in newest.evidence),
    )
