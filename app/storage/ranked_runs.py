"""The runs of a stack as the leaderboards see them, and what their newest one tells of the stack."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, bindparam, select
from sqlmodel import Session, col

from app.domain.contract.fields import STACK_FIELDS
from app.domain.contract.values import shown
from app.domain.ranking import RankedRun, family_of, hardware_of
from app.domain.run import Stated, Value
from app.domain.stack_title import stack_title
from app.storage.findings import stated
from app.storage.run_records import aware
from app.storage.stack_runs import COMPARED, facts_of
from app.storage.tables import AvailabilityRow, RunRow

_MOST_TITLE = 1000
_RANKED = (
    *COMPARED, RunRow.ordered_at, RunRow.evidence_level, RunRow.dispatcher, RunRow.gpu, RunRow.gpus,
    RunRow.tokens_per_s_per_gpu, RunRow.tflops_per_gpu, col(RunRow.activity)["dispatcher"].label("carried"),
)  # fmt: skip

# Made once: putting them together takes as long as running them.
_RUNS: Select[Any] = (
    select(*_RANKED)  # type: ignore[call-overload]
    .where(
        # As a sum, so that SQLite looks the runs of the stack up, and does not read all of the project in their order.
        col(RunRow.project_id) + 0 == bindparam("project_id"),
        col(RunRow.stack_key) == bindparam("stack_key"),
        col(RunRow.status).in_(("ready", "failed")),
        col(RunRow.reception) != "receiving",
    )
    .order_by(col(RunRow.ordered_at), col(RunRow.id))
)
_MISSING: Select[Any] = (
    select(AvailabilityRow.run_id, AvailabilityRow.dispatcher)  # type: ignore[call-overload]
    .join(RunRow, col(RunRow.id) == AvailabilityRow.run_id)
    .where(
        # As above.
        col(RunRow.project_id) + 0 == bindparam("project_id"),
        col(RunRow.stack_key) == bindparam("stack_key"),
        col(AvailabilityRow.available).is_(False),
    )
    .order_by(col(AvailabilityRow.dispatcher))
)


@dataclass(frozen=True, slots=True)
class StackAbout:
    """A stack as its newest run states it, for lists."""

    gpu: str
    hardware_slug: str
    family_slug: str
    title: str
    container: str
    gpus: int | None
    known: Mapping[str, Value]
    newest_run_id: int
    newest_at: datetime


@dataclass(frozen=True, slots=True)
class RankedStack:
    """All processed runs of a stack, at least one; `contracts` has one for each config key."""

    runs: tuple[RankedRun, ...]
    contracts: Mapping[str, Mapping[str, Stated]]
    about: StackAbout


def ranked_stack(session: Session, project_id: int, stack_key: str) -> RankedStack | None:
    """None when no run of it was read. A run whose log still grows concerns nobody until it is complete."""
    rows = session.execute(_RUNS, {"project_id": project_id, "stack_key": stack_key}).all()
    if not rows:
        return None
    contracts = _contracts(session, {row.config_key: row.id for row in rows})
    missing = _missing(session, project_id, stack_key)
    newest = rows[-1]
    family = _Told.of(contracts[newest.config_key], newest.gpu)
    runs = tuple(_ranked(row, contracts[row.config_key], family, missing.get(row.id, ())) for row in rows)
    return RankedStack(runs, contracts, _about(newest, contracts[newest.config_key], family))


@dataclass(frozen=True, slots=True)
class _Told:
    """What the newest run says all of them are."""

    hardware: str
    hardware_slug: str
    family: str
    family_slug: str
    precision: str

    @classmethod
    def of(cls, contract: Mapping[str, Stated], gpu: str | None) -> "_Told":
        hardware = hardware_of(gpu)
        family = family_of(_text(contract, "model"), {name: one.value for name, one in contract.items()})
        return cls(hardware.name, hardware.slug, family.name, family.slug, _text(contract, "precision"))


def _ranked(row: Row[Any], contract: Mapping[str, Stated], told: _Told, missing: tuple[str, ...]) -> RankedRun:
    carried = row.carried or {}
    ep = contract["ep"].value if "ep" in contract else None
    return RankedRun(
        facts=facts_of(row),
        ordered_at=aware(row.ordered_at),
        requested=_value(carried.get("requested")) or row.dispatcher,
        active=_value(carried.get("active")),
        evidence_level=row.evidence_level,
        hardware=told.hardware,
        family=told.family,
        precision=told.precision,
        routing_mode=_text(contract, "routing_mode"),
        ep=ep if isinstance(ep, int) else None,
        gpus=row.gpus,
        tokens_per_s_per_gpu=row.tokens_per_s_per_gpu,
        tflops_per_gpu=row.tflops_per_gpu,
        missing=missing,
        inferred=(carried.get("active") or {}).get("source") == "derived",
    )


def _about(row: Row[Any], contract: Mapping[str, Stated], told: _Told) -> StackAbout:
    return StackAbout(
        gpu=row.gpu or "",
        hardware_slug=told.hardware_slug,
        family_slug=told.family_slug,
        title=stack_title(contract, dispatcher=False)[:_MOST_TITLE],
        container=_text(contract, "container"),
        gpus=row.gpus,
        known={name: contract[name].value for name in STACK_FIELDS if name in contract},
        newest_run_id=row.id,
        newest_at=aware(row.ordered_at),
    )


def _contracts(session: Session, runs: Mapping[str, int]) -> dict[str, dict[str, Stated]]:
    """By config key, of the run named: they are equal in all that is in a key."""
    chosen = select(RunRow.config_key, RunRow.contract).where(col(RunRow.id).in_(list(runs.values())))  # type: ignore[call-overload]
    return {
        row.config_key: {name: stated(entry) for name, entry in (row.contract or {}).items()}
        for row in session.execute(chosen)
    }


def _missing(session: Session, project_id: int, stack_key: str) -> dict[int, tuple[str, ...]]:
    """Dispatchers whose package a run's log shows to be missing."""
    found: dict[int, tuple[str, ...]] = {}
    for run_id, dispatcher in session.execute(_MISSING, {"project_id": project_id, "stack_key": stack_key}):
        found[run_id] = (*found.get(run_id, ()), dispatcher)
    return found


def _value(entry: Mapping[str, Any] | None) -> str | None:
    value = None if entry is None else entry["value"]
    return None if value is None else str(value)


def _text(contract: Mapping[str, Stated], name: str) -> str:
    one = contract.get(name)
    return "" if one is None or one.value is None else shown(one.value)
