"""Stored profiles of runs: the reduced form, the facts in use, and whether a profile belongs to its run."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import zstandard
from sqlalchemy import delete, func, select, update
from sqlmodel import Session, col

from app.domain.numbers import plural
from app.domain.planning.hardware import AMD
from app.domain.profiles.difference import compare_profiles, first_sentence
from app.domain.run import Stated
from app.errors import NotFound
from app.storage.runs import stored_contract
from app.storage.tables import ProfileFileRow, ProfileRow, RunResultRow, RunRow, from_row, select_any, utc_now

MAX_DOCUMENT_BYTES = 256 << 20
_DISPATCHERS = ("alltoall", "allgather", "deepep", "hybridep")


@dataclass(frozen=True, slots=True)
class StoredProfileFile:
    name: str
    position: int
    size_bytes: int
    sha256: str
    rank: int | None
    stage: int | None
    key: str
    """Key of its object; empty once the file was dropped."""


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """A profile without its document. `differs`: contradictions to the run's contract, which suspend the facts.

    `number`: in the order in which the profiles of its run were uploaded; names it on pages.
    """

    id: int
    run_id: int
    number: int
    status: str
    created_at: datetime
    uploaded_by: str
    error: str | None
    facts: Mapping[str, Any]
    identity: Mapping[str, Any]
    differs: tuple[str, ...]
    confirmed_by: str
    confirmed_at: datetime | None
    progress: float = 0.0
    """Share of its files that was read."""
    files: tuple[StoredProfileFile, ...] = ()

    @property
    def counts(self) -> bool:
        """Return whether the rules use its facts."""
        return self.status == "ready" and bool(self.facts) and (not self.differs or self.confirmed_at is not None)

    @property
    def title(self) -> str:
        """Return the profile with the rank and the steps that its facts rest on: `profile 2 (rank 0, 4 steps)`."""
        rank, steps = self.identity.get("rank"), self.identity.get("steps")
        parts = [f"rank {rank}" if rank is not None else "", plural(steps, "step") if steps else ""]
        detail = ", ".join(part for part in parts if part)
        return f"profile {self.number} ({detail})" if detail else f"profile {self.number}"

    @property
    def summary(self) -> str:
        """Return the shares of the step in one line; unknown ones are left out."""
        labels = (("exposed_comm_frac", "exposed"), ("gpu_idle_frac", "idle"), ("launch_starved_frac", "starved"))
        shares = [(label, self.facts.get(fact)) for fact, label in labels]
        return ", ".join(f"{label} {100 * share:.0f} %" for label, share in shares if isinstance(share, int | float))


@dataclass(frozen=True, slots=True)
class MeasuredFacts:
    """Facts of run `run_id` from its profiles. `profile_of` names the profile of each fact, `titles` describe them."""

    run_id: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    profile_of: Mapping[str, int] = field(default_factory=dict)
    titles: Mapping[int, str] = field(default_factory=dict)


NO_PROFILE = MeasuredFacts()
_LENDERS = 3
"""Profiled runs of the same configuration that are searched for facts."""


def identity_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a profile states about the job it was taken from."""
    files: Sequence[Mapping[str, Any]] = document["files"]
    return {
        "gpu": next((file["gpu"] for file in files if file["gpu"]), ""),
        "nsys": any(name.startswith(("nsight", "nsys")) for name in document["quality"]["formats"]),
        "world_size": document["quality"]["world_size"],
        "dispatcher": document["facts"].get("resolved_dispatcher"),
        "rank": (document["facts_from"] or {}).get("rank"),
        "steps": document["quality"]["steps"],
    }


def contradictions(identity: Mapping[str, Any], contract: Mapping[str, Stated]) -> tuple[str, ...]:
    """Return the values in which a profile contradicts the contract of its run. Unknown values never contradict."""
    stated = {name: contract[name].value for name in ("gpu", "gpus", "dispatcher") if name in contract}
    differences = []
    gpu, traced = stated.get("gpu"), str(identity.get("gpu") or "")
    if isinstance(gpu, str) and traced and not re.search(rf"(?<![A-Z]){re.escape(gpu)}(?!\d)", traced, re.IGNORECASE):
        differences.append(f"the profile was taken on {traced}, the run on {gpu}")
    elif not traced and gpu in AMD and identity.get("nsys"):
        differences.append(f"Nsight Systems cannot trace the run's {gpu}")
    world = identity.get("world_size")
    if isinstance(stated.get("gpus"), int) and world and world != stated["gpus"]:
        differences.append(f"the profile comes from a job of {world:,} ranks, the run has {stated['gpus']:,} GPUs")
    dispatcher = identity.get("dispatcher")
    if dispatcher and stated.get("dispatcher") in _DISPATCHERS and dispatcher != stated["dispatcher"]:
        differences.append(f"the profile shows the dispatcher {dispatcher}, the run states {stated['dispatcher']}")
    return tuple(differences)


def profiles_of(session: Session, run_id: int, contract: Mapping[str, Stated]) -> tuple[StoredProfile, ...]:
    """Return the profiles of a run, newest first."""
    rows = session.execute(
        select(ProfileRow).where(col(ProfileRow.run_id) == run_id).order_by(col(ProfileRow.id).desc())
    ).scalars()
    return tuple(_stored(session, row, contract) for row in rows)


def usable_profile(session: Session, run_id: int, contract: Mapping[str, Stated]) -> StoredProfile | None:
    """Return the newest profile of a run that counts; None without one."""
    return next((profile for profile in profiles_of(session, run_id, contract) if profile.counts), None)


def find_profile(session: Session, profile_id: int) -> ProfileRow:
    """Return the row of a profile. Raises NotFound."""
    row = session.get(ProfileRow, profile_id)
    visible = (
        row is not None and session.execute(select_any(ProfileRow.id).where(col(ProfileRow.id) == profile_id)).first()
    )
    if row is None or not visible:
        raise NotFound(f"Profile {profile_id} does not exist. It may have been removed.")
    return row


def read_profile(session: Session, profile_id: int, contract: Mapping[str, Stated]) -> StoredProfile:
    return _stored(session, find_profile(session, profile_id), contract)


def document_of(session: Session, profile_id: int) -> dict[str, Any] | None:
    """Return the reduced form; None until the profile was read."""
    packed = session.execute(
        select_any(ProfileRow.document).where(col(ProfileRow.id) == profile_id)
    ).scalar_one_or_none()
    return None if packed is None else unpack(packed)


def measured_facts(session: Session, run_id: int, contract: Mapping[str, Stated]) -> MeasuredFacts:
    """Return the facts of all usable profiles; the newest profile with a fact determines it."""
    values: dict[str, Any] = {}
    sources: dict[str, int] = {}
    profiles = profiles_of(session, run_id, contract)
    for profile in profiles:
        for name, value in profile.facts.items() if profile.counts else ():
            if value is not None and name not in values:
                values[name] = value
                sources[name] = profile.id
    return MeasuredFacts(run_id, values, sources, {profile.id: profile.title for profile in profiles})


def lent_facts(session: Session, run_id: int, project_id: int, config_key: str) -> MeasuredFacts:
    """Return the facts of the newest other run of the same configuration with a profile that counts."""
    if not config_key:
        return NO_PROFILE
    rows = session.execute(
        select_any(RunRow.id, RunResultRow.contract)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.project_id) == project_id,
            col(RunRow.config_key) == config_key,
            col(RunRow.id) != run_id,
            col(RunRow.quarantine) == "",
            col(RunRow.id).in_(select(col(ProfileRow.run_id)).where(col(ProfileRow.status) == "ready")),
        )
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(_LENDERS)
    )
    measured = (measured_facts(session, row.id, stored_contract(row.contract)) for row in rows)
    return next((facts for facts in measured if facts.values), NO_PROFILE)


# --- The profiles of a stack.


@dataclass(frozen=True, slots=True)
class RunWithProfile:
    """A run of a stack with its newest usable profile. `ordered_at`: its history position."""

    run_id: int
    name: str
    commit: str
    ordered_at: datetime
    profile: StoredProfile


def profiled_runs(session: Session, stack_key: str, *, most: int) -> tuple[RunWithProfile, ...]:
    """Return up to `most` runs of a stack that have a usable profile, newest first."""
    rows = session.execute(
        select_any(RunRow.id, RunRow.name, RunRow.commit, RunRow.ordered_at, RunResultRow.contract)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.stack_key) == stack_key,
            col(RunRow.id).in_(select(col(ProfileRow.run_id)).where(col(ProfileRow.status) == "ready")),
        )
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(most)
    ).all()
    return tuple(
        RunWithProfile(row.id, row.name, row.commit or "", row.ordered_at, profile)
        for row in rows
        if (profile := _usable(session, row)) is not None
    )


def _usable(session: Session, run: Any) -> StoredProfile | None:
    return usable_profile(session, run.id, stored_contract(run.contract))


# --- The profiles before and after a change of the step time.


def nearest_profiles(session: Session, run_id: int) -> tuple[int, int] | None:
    """Return the profiles nearest to both sides of a change that began with a run: of an earlier run of its
    configuration, and of the run itself or a later one. None when one side has no profile that counts.
    """
    run = session.get(RunRow, run_id)
    if run is None or not run.config_key:
        return None
    rows = session.execute(
        select_any(RunRow.id, RunRow.ordered_at, RunResultRow.contract)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.project_id) == run.project_id,
            col(RunRow.config_key) == run.config_key,
            col(RunRow.id).in_(select(col(ProfileRow.run_id)).where(col(ProfileRow.status) == "ready")),
        )
        .order_by(col(RunRow.ordered_at), col(RunRow.id))
    ).all()
    place = (run.ordered_at, run_id)
    earlier = [row for row in rows if (row.ordered_at, row.id) < place]
    later = [row for row in rows if (row.ordered_at, row.id) >= place]
    before, after = _first_counting(session, reversed(earlier)), _first_counting(session, later)
    return (before, after) if before is not None and after is not None else None


def _first_counting(session: Session, runs: Iterable[Any]) -> int | None:
    return next((profile.id for run in runs if (profile := _usable(session, run)) is not None), None)


@dataclass(frozen=True, slots=True)
class ExplainedChange:
    """The explanation from the profiles before and after a change, in one sentence."""

    before: int
    after: int
    sentence: str


def explained_change(session: Session, run_id: int) -> ExplainedChange | None:
    """Explain a change that began with a run from the nearest profiles; None without two profiles."""
    nearest = nearest_profiles(session, run_id)
    documents = [] if nearest is None else [document_of(session, number) for number in nearest]
    if nearest is None or documents[0] is None or documents[1] is None:
        return None
    difference = compare_profiles(documents[0], documents[1])
    return None if difference is None else ExplainedChange(*nearest, first_sentence(difference))


def remove_profile(session: Session, row: ProfileRow) -> None:
    """Delete a profile and its facts. Objects without another owner are swept later."""
    request_rules(session, row.run_id)
    session.execute(delete(ProfileRow).where(col(ProfileRow.id) == row.id))


def confirm_profile(session: Session, row: ProfileRow, author: str) -> None:
    """Use the facts of a profile although it contradicts the contract of its run."""
    row.confirmed_by, row.confirmed_at = author[:100], utc_now()
    session.add(row)
    request_rules(session, row.run_id)


def request_rules(session: Session, run_id: int) -> None:
    """Request that the next sweep evaluates the rules again for a run."""
    session.execute(update(RunRow).where(col(RunRow.id) == run_id).values(rules_asked=""))


def pack(document: Mapping[str, Any]) -> bytes:
    return zstandard.ZstdCompressor(level=9).compress(json.dumps(document, allow_nan=False).encode())


def unpack(packed: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_DOCUMENT_BYTES)
    )
    return document


def _stored(session: Session, row: ProfileRow, contract: Mapping[str, Stated]) -> StoredProfile:
    files = session.execute(
        select(ProfileFileRow).where(col(ProfileFileRow.profile_id) == row.id).order_by(col(ProfileFileRow.position))
    ).scalars()
    earlier = select(func.count()).where(col(ProfileRow.run_id) == row.run_id, col(ProfileRow.id) <= row.id)
    return from_row(
        StoredProfile,
        row,
        number=session.execute(earlier).scalar_one(),
        differs=contradictions(row.identity, contract),
        files=tuple(from_row(StoredProfileFile, file, key=file.object_key) for file in files),
    )
