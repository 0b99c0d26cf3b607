"""Matched A/Bs of this service on a knob: finished experiments, and verdicts on runs that are of none.

The A/B of an experiment took its runs in turns, so it stands for them: the verdicts that its runs have on the same knob
are not counted beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from app.storage.experiment_tables import ExperimentRow, ExperimentRunRow
from app.storage.judging_tables import VerdictRow
from app.storage.run_records import aware
from app.storage.tables import RunRow

MOST_RESULTS = 500
"""Newest A/Bs on the knobs in question that are looked at for one run."""
_LEVELS = ("matched_ab", "validated")
_STATES = ("done", "accepted", "rejected")


@dataclass(frozen=True, slots=True)
class AB:
    """One A/B on one field. Changes are of step time, in percent; `run_id` is the newest run of the candidate.

    `experiment_id` None: it is the verdict on that run.
    """

    run_id: int
    attributed_to: str
    delta_pct: float
    ci_low_pct: float | None
    ci_high_pct: float | None
    from_value: str
    to_value: str
    stack_key: str
    config_key: str
    commit: str
    ordered_at: datetime
    project_id: int
    experiment_id: int | None = None

    @property
    def candidate(self) -> tuple[object, ...]:
        """Reruns share one verdict."""
        return self.stack_key, self.config_key, self.commit or self.run_id


_COLUMNS = (
    VerdictRow.run_id, VerdictRow.attributed_to, VerdictRow.delta_pct, VerdictRow.ci_low_pct, VerdictRow.ci_high_pct,
    VerdictRow.from_value, VerdictRow.to_value, RunRow.stack_key, RunRow.config_key, RunRow.commit, RunRow.ordered_at,
    RunRow.project_id,
)  # fmt: skip


def matched_abs(
    session: Session, fields: Sequence[str], project_id: int | None = None, most: int = MOST_RESULTS
) -> list[AB]:
    """Those on these fields, newest first, each once; quarantined runs are evidence of nothing.

    `project_id` None: of all projects.
    """
    planned = _experiments(session, fields, project_id, most)
    runs = _runs_of(session, planned)
    verdicts = _verdicts(session, fields, project_id, most)
    told = {one.candidate for one in verdicts if (one.run_id, one.attributed_to) in runs}
    alone = _one_a_candidate(one for one in verdicts if one.candidate not in told)
    return sorted([*planned, *alone], key=lambda one: one.run_id, reverse=True)


def _verdicts(session: Session, names: Sequence[str], project_id: int | None, most: int) -> list[AB]:
    """Current ones."""
    chosen = (
        select(*_COLUMNS)  # type: ignore[call-overload]
        .join(RunRow, col(RunRow.id) == col(VerdictRow.run_id))
        .where(
            col(VerdictRow.current),
            col(VerdictRow.comparison) == "matched_ab",
            col(VerdictRow.attributed_to).in_(names),
            col(VerdictRow.delta_pct).is_not(None),
            col(RunRow.quarantine) == "",
        )
        .order_by(col(VerdictRow.run_id).desc())
        .limit(most)
    )
    if project_id is not None:
        chosen = chosen.where(col(RunRow.project_id) == project_id)
    rows = session.execute(chosen).mappings()
    return [AB(**{**row, "ordered_at": aware(row["ordered_at"])}) for row in rows]


def _experiments(session: Session, names: Sequence[str], project_id: int | None, most: int) -> list[AB]:
    """Finished ones that are attributed to one field, by the part of their results that is needed."""
    result: Any = col(ExperimentRow.result)

    def of_time(name: str) -> Any:
        return result["verdict", "step_time", name].as_float().label(name)

    chosen = (
        select(  # type: ignore[call-overload]
            ExperimentRow.id, ExperimentRow.project_id, ExperimentRow.stack_key, ExperimentRow.candidate_key,
            ExperimentRow.result_at, ExperimentRow.created_at, of_time("delta_pct"), of_time("ci_low_pct"),
            of_time("ci_high_pct"), result["candidate"].label("candidate"),
            *(result[name].as_string().label(name) for name in ("attributed_to", "from_value", "to_value")),
        )
        .where(
            col(ExperimentRow.state).in_(_STATES),
            result["finished"].as_boolean(),
            result["evidence_level"].as_string().in_(_LEVELS),
            result["attributed_to"].as_string().in_(names),
        )
        .order_by(col(ExperimentRow.id).desc())
        .limit(most)
    )  # fmt: skip
    if project_id is not None:
        chosen = chosen.where(col(ExperimentRow.project_id) == project_id)
    return [_ab(row) for row in session.execute(chosen) if row.candidate and row.delta_pct is not None]


def _ab(row: Any) -> AB:
    return AB(
        run_id=int(row.candidate[-1]),
        attributed_to=row.attributed_to,
        delta_pct=row.delta_pct,
        ci_low_pct=row.ci_low_pct,
        ci_high_pct=row.ci_high_pct,
        from_value=row.from_value,
        to_value=row.to_value,
        stack_key=row.stack_key,
        config_key=row.candidate_key,
        commit="",
        ordered_at=aware(row.result_at or row.created_at),
        project_id=row.project_id,
        experiment_id=row.id,
    )


def _runs_of(session: Session, planned: Sequence[AB]) -> set[tuple[int, str]]:
    """All runs of these experiments, each with the field that its experiment is about."""
    field_of = {one.experiment_id: one.attributed_to for one in planned}
    if not field_of:
        return set()
    rows = session.execute(
        select(ExperimentRunRow.experiment_id, ExperimentRunRow.run_id).where(  # type: ignore[call-overload]
            col(ExperimentRunRow.experiment_id).in_(field_of)
        )
    )
    return {(row.run_id, field_of[row.experiment_id]) for row in rows}


def _one_a_candidate(found: Iterable[AB]) -> list[AB]:
    first: dict[tuple[object, ...], AB] = {}
    for one in found:
        first.setdefault(one.candidate, one)
    return list(first.values())
