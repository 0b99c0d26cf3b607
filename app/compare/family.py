"""What is known of run-to-run variation before two sides are compared: other configurations of the same family.

The same family as that of verdicts, so that a comparison says of a run and its baseline what its verdict says.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.detection import DEFAULT_PRIOR, Prior, family_prior
from app.domain.matching import RunFacts, RunRecord
from app.domain.matching.selection import current_level
from app.storage.stack_runs import COMPARED, facts_of
from app.storage.tables import RunRow

_MOST_RUNS = 300
"""The newest runs of the family that are looked at: 15 configurations of 20 runs, of which five are enough."""


def prior_of(session: Session, project_id: int, compared: Sequence[RunRecord], before: datetime) -> Prior:
    """Learned from `ci` runs of the project on the same GPU and of the same class, of config keys not compared here."""
    newest = compared[-1]
    gpu = newest.contract.get("gpu")
    if gpu is None:
        return DEFAULT_PRIOR
    rows = session.execute(
        select(*COMPARED)  # type: ignore[call-overload]
        .where(
            col(RunRow.project_id) == project_id,
            col(RunRow.gpu) == gpu.value,
            col(RunRow.semantic_class) == newest.semantic_class,
            col(RunRow.definition_version) == newest.definition_version,
            col(RunRow.purpose) == "ci",
            col(RunRow.status) == "ready",
            col(RunRow.is_steady),
            col(RunRow.short).is_(False),
            col(RunRow.quarantine) == "",
            col(RunRow.ordered_at) < before,
        )
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(_MOST_RUNS)
    ).all()
    others: dict[str, list[RunFacts]] = {}
    for row in reversed(rows):
        facts = facts_of(row)
        if not facts.never_a_baseline_because and facts.config_key not in {run.config_key for run in compared}:
            others.setdefault(facts.config_key, []).append(facts)
    # A change of speed is no variation of launches: only the current level of each counts.
    return family_prior([[one.estimate for one in current_level(runs, DEFAULT_PRIOR)] for runs in others.values()])
