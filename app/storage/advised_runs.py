"""What the rules are asked about: a run as it is stored, its launch arguments, what its container is shown to run."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.metadata import read_metadata
from app.domain.rules.launch import without_secrets
from app.domain.rules.rule import Facts
from app.domain.rules.run_facts import RunReading, facts_of
from app.domain.run import Value
from app.errors import NotFound, NotReady
from app.storage import readings
from app.storage.availability import find_availability
from app.storage.judging_tables import PinRow
from app.storage.run_records import RunDetail, detail, files_of
from app.storage.stated_facts import StatedFact, in_force, statements_of
from app.storage.tables import ProjectRow, RunRow

_FLEX = ("deepep", "hybridep", "ncclep")


@dataclass(frozen=True, slots=True)
class AdvisedRun:
    """A run and what is known of it. `launch`: its arguments as it stated them, without credentials; None: unknown.
    `statements`: what people stated of it since, newest first."""

    run: RunDetail
    reading: RunReading
    launch: object
    statements: tuple[StatedFact, ...] = ()

    @property
    def facts(self) -> Facts:
        """A run by itself: rules about pairs have their place where two runs are compared."""
        return {"compared": False, **facts_of(self.reading)}


def read_run(session: Session, run_id: int) -> AdvisedRun:
    """Raises NotFound, and NotReady while the run was never read."""
    found = session.execute(
        select(RunRow, ProjectRow)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.id) == run_id)
    ).one_or_none()
    if found is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    run = detail(found[0], found[1], files_of(session, run_id))
    if not run.done:
        raise NotReady(f"Run {run_id} is {run.status}. Its next steps follow when it was read.")
    extra = read_metadata(run.metadata_stated).extra
    launch = without_secrets(extra.get("launch_args"))
    statements = statements_of(session, run_id)
    reading = RunReading(
        contract=run.contract,
        metrics=run.metrics,
        health=run.health,
        steady=run.steady_state,
        timers=run.timers,
        failures=run.failures,
        activity=run.activity,
        availability=run.availability,
        unknown=run.unknown if run.contract else None,
        trainer=run.trainer,
        semantic_class=run.semantic_class,
        evidence_level=run.evidence_level,
        fair_for_timing=run.fair_for_timing if run.status == "ready" else None,
        arguments=_arguments(session, run),
        extra={name: value for name, value in extra.items() if name not in ("launch_args", "env")},
        stated={name: one.value for name, one in in_force(statements).items()},
        launch=launch,
        installed=_installed(session, run),
        is_baseline=True if _is_pinned(session, run_id) else None,
    )
    return AdvisedRun(run, reading, launch, statements)


def _arguments(session: Session, run: RunDetail) -> Mapping[str, Value]:
    """The trainer's own dump, as the last reading of the run's files found it."""
    read = (*run.log_files, *(file for file in run.files if file.kind != "log" and file.document))
    kept = readings.load(session, run.id, read)
    return {} if kept is None else kept.log.arguments


def _installed(session: Session, run: RunDetail) -> list[str] | None:
    """Flex dispatchers that any run of the project proves to work in this container; None where no log says."""
    container = run.contract.get("container")
    if container is None or not isinstance(container.value, str):
        return None
    states = {
        one.dispatcher: one.available
        for one in find_availability(session, containers=[container.value[:500]], project=run.project)
    }
    working = [name for name in _FLEX if states.get(name)]
    return working if working or all(states.get(name) is False for name in _FLEX[:2]) else None


def _is_pinned(session: Session, run_id: int) -> bool:
    pin = select(PinRow.id).where(col(PinRow.run_id) == run_id, col(PinRow.unpinned_at).is_(None))  # type: ignore[call-overload]
    return session.execute(pin.limit(1)).first() is not None
