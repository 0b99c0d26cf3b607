"""Read profiles with their runs, and compare two of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Engine, case, select, tuple_
from sqlmodel import Session, col

from app.domain.profiles.difference import ProfileDifference, compare_profiles
from app.domain.run import Stated
from app.errors import InvalidQuery, NotFound, NotReady
from app.storage import audit
from app.storage.database import transaction
from app.storage.profiles import (
    StoredProfile,
    StoredProfileFile,
    confirm_profile,
    document_of,
    find_profile,
    profiles_of,
    read_profile,
    remove_profile,
)
from app.storage.runs import stored_contract
from app.storage.tables import ProfileRow, ProjectRow, RunResultRow, RunRow


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """Data of the run that profile pages need."""

    id: int
    name: str
    project: str
    project_id: int
    generated: bool
    contract: Mapping[str, Stated]
    step_time_ms: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile with its run. `document` is None until it was read."""

    run: ProfiledRun
    stored: StoredProfile
    document: Mapping[str, Any] | None

    @property
    def address(self) -> str:
        return f"/runs/{self.run.id}/profiles/{self.stored.id}"


def file_address(profile_id: int, file: StoredProfileFile) -> str:
    """Return the download address of a kept file."""
    return f"/api/v1/profiles/{profile_id}/files/{file.position}"


def profiled_run(session: Session, run_id: int) -> ProfiledRun:
    """Return a run with what its profiles are compared by. Raises NotFound."""
    row = session.execute(
        select(RunRow, ProjectRow, RunResultRow)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(col(RunRow.id) == run_id)
    ).one_or_none()
    if row is None:
        raise NotFound.of(f"Run {run_id}")
    run, project, result = row
    return ProfiledRun(
        run_id,
        run.name,
        project.slug,
        run.project_id,
        project.generated,
        stored_contract(result.contract),
        run.step_time_ms,
    )


def get_profile(session: Session, profile_id: int, run_id: int | None = None) -> Profile:
    """Return a profile. Raises NotFound, also when it belongs to another run than `run_id`."""
    row = find_profile(session, profile_id)
    if run_id is not None and row.run_id != run_id:
        raise NotFound(f"Run {run_id} has no profile {profile_id}. It belongs to run {row.run_id}.")
    run = profiled_run(session, row.run_id)
    return Profile(run, read_profile(session, profile_id, run.contract), document_of(session, profile_id))


def list_profiles(session: Session, run_id: int) -> tuple[StoredProfile, ...]:
    """Return the profiles of a run, newest first. Raises NotFound."""
    return profiles_of(session, run_id, profiled_run(session, run_id).contract)


def nearest_profiled_run(session: Session, run_id: int) -> int | None:
    """Return the nearest run with a profile that could be read: of its stack, else of its model and GPU in the project,
    the last one before it first. None without one.
    """
    run = session.get_one(RunRow, run_id)
    before = tuple_(col(RunRow.ordered_at), col(RunRow.id)) < (run.ordered_at, run_id)
    nearest = (
        select(col(RunRow.id))
        .where(
            *(col(getattr(RunRow, name)) == getattr(run, name) for name in ("project_id", "model", "gpu")),
            col(RunRow.id).in_(select(col(ProfileRow.run_id)).where(col(ProfileRow.status) == "ready")),
        )
        .order_by(
            (col(RunRow.stack_key) == run.stack_key).desc(),
            before.desc(),
            case((before, col(RunRow.ordered_at))).desc(),
            case((before, col(RunRow.id))).desc(),
            col(RunRow.ordered_at),
            col(RunRow.id),
        )
        .limit(1)
    )
    return session.execute(nearest).scalar_one_or_none()


def get_difference(session: Session, a: int, b: int) -> tuple[Profile, Profile, ProfileDifference]:
    """Compare two profiles. Raises NotFound, NotReady while one is not read, InvalidQuery when one cannot be used."""
    sides = get_profile(session, a), get_profile(session, b)
    for side in sides:
        if side.stored.status in ("received", "processing"):
            raise NotReady(f"Profile {side.stored.id} is still being read. Try again in a moment.")
    difference = None
    if sides[0].document is not None and sides[1].document is not None:
        difference = compare_profiles(sides[0].document, sides[1].document)
    if difference is None:
        raise InvalidQuery(f"Profiles {a} and {b} cannot be compared, because one of them could not be read.")
    return *sides, difference


def remove(engine: Engine, run_id: int, profile_id: int, author: str) -> None:
    """Remove a profile and its facts. Raises NotFound."""
    with transaction(engine) as session:
        profile = get_profile(session, profile_id, run_id)
        record = partial(audit.record, session, who=author, subject="run", subject_id=run_id)
        record(action="profile_removed", project_id=profile.run.project_id, before={"profile": profile_id})
        remove_profile(session, find_profile(session, profile_id))


def confirm(engine: Engine, run_id: int, profile_id: int, author: str) -> None:
    """Use the facts of a profile although it contradicts the contract. Raises NotFound."""
    with transaction(engine) as session:
        profile = get_profile(session, profile_id, run_id)
        record = partial(audit.record, session, who=author, subject="run", subject_id=run_id)
        after = {"profile": profile_id, "differs": list(profile.stored.differs)}
        record(action="profile_confirmed", project_id=profile.run.project_id, after=after)
        confirm_profile(session, find_profile(session, profile_id), author)
