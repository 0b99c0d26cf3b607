"""What the reading of a run begins with: its files, what was stated about it then and since, its project's defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.contract.project_defaults import CONTAINER_RULE, ProjectDefaults
from app.domain.metadata import read_metadata
from app.domain.run import Metadata, Stated
from app.storage import readings
from app.storage.findings import frozen
from app.storage.readings import Reading
from app.storage.run_records import RunFile, files_of
from app.storage.tables import AmendmentRow, ProjectDefaultRow, ProjectRow, RunRow


@dataclass(frozen=True, slots=True)
class RunInputs:
    """`documents` are files that were recognised as such; `unread` are kept and say nothing.

    `kept` is what an earlier reading found in `read`, the logs and documents; None when they must be read.
    """

    project_id: int
    reception: str
    metadata: Metadata
    defaults: ProjectDefaults
    logs: tuple[RunFile, ...]
    documents: tuple[RunFile, ...]
    unread: tuple[RunFile, ...]
    kept: Reading | None = None

    @property
    def read(self) -> tuple[RunFile, ...]:
        return (*self.logs, *self.documents)


def read_inputs(session: Session, run_id: int) -> RunInputs:
    run = session.execute(
        select(RunRow.project_id, RunRow.reception, RunRow.metadata_stated, ProjectRow.slug)  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.id) == run_id)
    ).one()
    # A token's upload need not name its project, and is of the same stack as one that does.
    metadata = replace(read_metadata(run.metadata_stated), project=run.slug)
    files = files_of(session, run_id)
    inputs = RunInputs(
        project_id=run.project_id,
        reception=run.reception,
        metadata=replace(metadata, fields=dict(metadata.fields) | amended_fields(session, run_id)),
        defaults=project_defaults(session, run.project_id),
        logs=tuple(file for file in files if file.kind == "log"),
        documents=tuple(file for file in files if file.document),
        unread=tuple(file for file in files if file.kind != "log" and not file.document),
    )
    return replace(inputs, kept=readings.load(session, run_id, inputs.read))


def amended_fields(session: Session, run_id: int) -> dict[str, Stated]:
    """The corrections that count now: of each field the newest one, unless that took it back."""
    rows: Sequence[AmendmentRow] = (
        session.execute(select(AmendmentRow).where(col(AmendmentRow.run_id) == run_id).order_by(col(AmendmentRow.id)))
        .scalars()
        .all()
    )
    newest: Mapping[str, AmendmentRow] = {row.field: row for row in rows}
    return {
        name: Stated(frozen(row.value), "metadata", f"stated by {row.author} on {row.created_at:%Y-%m-%d}")
        for name, row in newest.items()
        if not row.removed
    }


def project_defaults(session: Session, project_id: int) -> ProjectDefaults:
    rows = session.execute(select(ProjectDefaultRow).where(col(ProjectDefaultRow.project_id) == project_id)).scalars()
    values = {row.name: frozen(row.value) for row in rows}
    rule = values.pop(CONTAINER_RULE, "")
    return ProjectDefaults(values, str(rule or ""))
