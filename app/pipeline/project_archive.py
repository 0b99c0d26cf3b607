"""Export a project with all rows and files as one stream. Import it, even into a service with another database.

The archive is a tar file: `project.json`, then `rows/...`, each with the rows of some runs (`storage/row_copies.py`),
then `objects/...` with the stored files. It is written and read in batches, so that a project of any size needs little
memory. It does not contain users, members, tokens and receivers, which belong to the service.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, func, insert, select, text, update
from sqlmodel import Session, col
from zstandard import ZstdError

from app.domain.numbers import plural
from app.domain.text import project_name_problem
from app.errors import Conflict, DamagedObject, FieldError, InvalidChange, Unavailable
from app.pipeline.work import run_queue, stack_queue
from app.storage import audit, objects
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.projects import find_project
from app.storage.row_copies import RowCopies, Rows, copy_rows, decoded_row, encoded_value, insert_rows, pack, unpack
from app.storage.tables import (
    EVERYTHING,
    AuditEventRow,
    ExperimentRow,
    ProfileFileRow,
    ProfileRow,
    ProjectDefaultRow,
    ProjectRow,
    ReferencePointRow,
    RegressionRow,
    RunFileRow,
    RunRow,
    SegmentRow,
    select_any,
    table_of,
)

FORMAT = 1
_BATCH = 25
_BLOCK = tarfile.BLOCKSIZE
_BETWEEN_RUNS = ("regression_member", "run_alarm", "experiment", "experiment_run")
"""Tables that refer to several runs; their rows come after all runs."""
_OF_PROJECT = (ProjectDefaultRow, ReferencePointRow, AuditEventRow)


@dataclass(frozen=True, slots=True)
class ImportedProject:
    project: str
    runs: int
    files: int


# --- Writing.


def export_project(engine: Engine, log_files: LogFiles, slug: str) -> Iterator[bytes]:
    """Yield the archive of a project. Rows that are added during the export may be missing. Raises NotFound."""
    with read_session(engine) as session:
        project = find_project(session, slug)
        project_id = project.id or 0
        head = {
            "format": FORMAT,
            "version": version("threewalls"),
            "project": {name: encoded_value(value) for name, value in project.model_dump().items()},
            "numbers": _highest_numbers(session),
        }
        own = {table_of(kind).name: _rows_of(session, kind, project_id) for kind in _OF_PROJECT}
    yield from _file("project.json", json.dumps(head).encode())
    yield from _file("rows/project.json.zst", pack(RowCopies(own)))
    last, count = 0, 0
    while True:
        with read_session(engine) as session:
            chosen = select_any(RunRow.id).where(col(RunRow.project_id) == project_id, col(RunRow.id) > last)
            ids = list(session.execute(chosen.order_by(col(RunRow.id)).limit(_BATCH)).scalars())
            rows = copy_rows(session, {"run": ids}, links=False).rows if ids else {}
        if not ids:
            break
        last, count = ids[-1], count + len(ids)
        own = {name: entries for name, entries in rows.items() if name not in _BETWEEN_RUNS}
        yield from _file(f"rows/runs-{last:012}.json.zst", pack(RowCopies(own)))
    for kind in (RegressionRow, ExperimentRow):
        yield from _between_runs(engine, kind, project_id)
    yield from _objects(engine, log_files, project_id)
    yield from _file("end.json", json.dumps({"runs": count}).encode())
    yield b"\0" * (2 * _BLOCK)


def _between_runs(engine: Engine, kind: type[RegressionRow] | type[ExperimentRow], project_id: int) -> Iterator[bytes]:
    table, last = table_of(kind), 0
    while True:
        with read_session(engine) as session:
            chosen = select(table.c.id).where(table.c.project_id == project_id, table.c.id > last)
            ids = list(session.execute(chosen.order_by(table.c.id).limit(_BATCH)).scalars())
            copies = copy_rows(session, {table.name: ids}, links=False) if ids else None
        if copies is None:
            return
        last = ids[-1]
        yield from _file(f"rows/{table.name}-{last:012}.json.zst", pack(copies))


def _objects(engine: Engine, log_files: LogFiles, project_id: int) -> Iterator[bytes]:
    """Yield each stored file of the project once."""
    of_logs = (
        select_any(SegmentRow.object_key)
        .join(RunFileRow, col(RunFileRow.id) == SegmentRow.file_id)
        .join(RunRow, col(RunRow.id) == RunFileRow.run_id)
        .where(col(RunRow.project_id) == project_id, col(SegmentRow.removed_at).is_(None))
    )
    of_profiles = (
        select_any(ProfileFileRow.object_key)
        .join(ProfileRow, col(ProfileRow.id) == ProfileFileRow.profile_id)
        .join(RunRow, col(RunRow.id) == ProfileRow.run_id)
        .where(col(RunRow.project_id) == project_id, col(ProfileFileRow.object_key) != "")
    )
    for chosen, column in ((of_logs, SegmentRow.object_key), (of_profiles, ProfileFileRow.object_key)):
        last = ""
        while True:
            with read_session(engine) as session:
                after = chosen.where(col(column) > last).distinct().order_by(col(column)).limit(_BATCH)
                keys = list(session.execute(after).scalars())
            for key in keys:
                size, pieces = log_files.stored(key)
                yield from _header(f"objects/{key}", size)
                yield from pieces
                yield b"\0" * (-size % _BLOCK)
            if len(keys) < _BATCH:
                break
            last = keys[-1]


def _rows_of(session: Session, kind: Any, project_id: int) -> list[dict[str, Any]]:
    table = table_of(kind)
    rows = session.execute(select(*table.c).where(table.c.project_id == project_id)).mappings()
    return [dict(row) for row in rows]


def _highest_numbers(session: Session) -> dict[str, int]:
    numbered = [table for table in RunRow.metadata.sorted_tables if "id" in table.c and table.c.id.primary_key]
    return {
        table.name: number
        for table in numbered
        if isinstance(number := session.execute(select(func.max(table.c.id))).scalar(), int)
    }


def _file(name: str, content: bytes) -> Iterator[bytes]:
    yield from _header(name, len(content))
    yield content
    yield b"\0" * (-len(content) % _BLOCK)


def _header(name: str, size: int) -> Iterator[bytes]:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    yield entry.tobuf()


# --- Reading.


def import_project(engine: Engine, log_files: LogFiles, path: Path, *, slug: str, who: str) -> ImportedProject:
    """Create a project from an archive. `slug`: a new name for it.

    Runs keep numbers that are free here. Then all stacks are judged again. If the import fails, the project stays
    archived and incomplete, to be deleted. Raises Conflict if the project exists, DamagedObject and Unavailable.
    """
    numbers: dict[tuple[str, Any], Any] = {}
    project_id, runs, files, is_complete, renamed = 0, 0, 0, False, False

    def rest() -> str:
        return f" The project {slug} stays archived; delete it and import again." if project_id else ""

    try:
        with tarfile.open(path, "r|*") as archive:
            for entry in archive:
                content = archive.extractfile(entry)
                if content is None:
                    continue
                if entry.name == "project.json":
                    head = json.load(content)
                    slug = slug or head["project"]["slug"]
                    renamed = slug != head["project"]["slug"]
                    project_id = _create(engine, head, slug, who)
                    numbers["project", head["project"]["id"]] = project_id
                elif entry.name.startswith("rows/"):
                    copies = unpack(content.read())
                    with transaction(engine) as session:
                        numbers |= _insert(session, copies, numbers, project_id)
                    runs += len(copies.rows.get("run", ()))
                elif entry.name.startswith("objects/"):
                    key = entry.name.removeprefix("objects/")
                    with transaction(engine) as session:
                        objects.about_to_put(session, [key])
                    log_files.put_stored(key, iter(partial(content.read, 1 << 20), b""))
                    files += 1
                elif entry.name == "end.json":
                    is_complete = json.load(content)["runs"] == runs
    except (tarfile.TarError, ZstdError, ValueError, KeyError, TypeError) as error:
        raise DamagedObject(f"{path} is damaged, or not an archive of a project: {error!r}.{rest()}") from error
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}.{rest()}") from error
    if not project_id:
        raise DamagedObject(f"{path} is not an archive of a project.")
    if not is_complete:
        raise DamagedObject(f"{path} is incomplete.{rest()}")
    _finish(engine, project_id, renamed=renamed)
    return ImportedProject(slug, runs, files)


def _create(engine: Engine, head: dict[str, Any], slug: str, who: str) -> int:
    if head["format"] > FORMAT:
        raise Unavailable("The archive was written by a later version of Threewalls. Import it with that version.")
    row = {name: value for name, value in decoded_row("project", head["project"]).items() if name != "id"}
    if why := project_name_problem(slug):
        raise InvalidChange(f"Nothing was imported. The name {why}.", (FieldError("slug", why),))
    with transaction(engine) as session:
        taken = select(col(ProjectRow.id)).where(col(ProjectRow.slug_lower) == slug.lower())
        if session.execute(taken).first() is not None:
            raise Conflict(f"Project {slug} exists already. Import it under another name: --as NAME.")
        _reserve_numbers(session, head["numbers"])
        new = row | {"slug": slug, "slug_lower": slug.lower(), "archived_at": row["created_at"], "public": False}
        table = table_of(ProjectRow)
        project_id = int(session.execute(insert(table).values(**new).returning(table.c.id)).scalar_one())
        audit.record_project(
            session, project_id, "imported", who=who, after={"slug": slug, "from": head["project"]["slug"]}
        )
    return project_id


def _reserve_numbers(session: Session, numbers: dict[str, int]) -> None:
    """Make PostgreSQL number new rows after those of the archive. SQLite always continues after the highest number."""
    if session.get_bind().dialect.name != "postgresql":
        return
    for name, number in numbers.items():
        if name in RunRow.metadata.tables:
            sequence = f"pg_get_serial_sequence('{name}', 'id')"
            session.execute(
                text(f'SELECT setval({sequence}, greatest(:number, (SELECT max(id) FROM "{name}")))'),  # noqa: S608
                {"number": number},
            )


def _insert(
    session: Session, copies: RowCopies, numbers: dict[tuple[str, Any], Any], project_id: int
) -> dict[tuple[str, Any], Any]:
    rows: Rows = {name: [dict(row) for row in entries] for name, entries in copies.rows.items()}
    for name, entries in rows.items():
        for row in entries:
            if "project_id" in row:
                row["project_id"] = project_id
            if name == "run":
                row |= {"work": "", "lease_until": None, "token_id": None, "idempotency_key": None}
    for row in rows.get("audit_event", ()):
        row["subject_id"] = str(project_id) if row["subject"] == "project" else row["subject_id"]
    return insert_rows(session, RowCopies(rows), numbers=numbers)


def _finish(engine: Engine, project_id: int, *, renamed: bool) -> None:
    """Open the project and request judging of its stacks. A new name changes stack keys, so its runs are read again."""
    with transaction(engine) as session:
        session.execute(update(ProjectRow).where(col(ProjectRow.id) == project_id).values(archived_at=None))
        stacks = select_any(RunRow.stack_key).where(col(RunRow.project_id) == project_id, col(RunRow.stack_key) != "")
        for stack in sorted(set(session.execute(stacks.distinct()).scalars())):
            stack_queue.request(session, project_id, stack, judge_from=EVERYTHING, because="The project was imported.")
        unfinished = col(RunRow.status).in_(("received", "processing"))
        of_project = col(RunRow.project_id) == project_id
        run_queue.request(session, *((of_project,) if renamed else (of_project, unfinished)))


def describe(imported: ImportedProject) -> str:
    return (
        f"Project {imported.project} imported: {plural(imported.runs, 'run')}, {plural(imported.files, 'file')}. The "
        "worker judges its stacks again."
    )
