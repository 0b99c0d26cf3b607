"""How much launches of a family vary, as its stacks are ranked with it: same project, GPU and semantic class.

What is learned changes a little with every run. It is kept until it moved, so that one upload ranks one stack and not
all stacks of the family, and so that ranking everything again gives what is kept.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, bindparam, select
from sqlmodel import Session, col

from app.domain.definitions import DEFINITION_VERSION
from app.domain.detection import Prior
from app.domain.detection.prior import prior_of
from app.domain.detection.values import FEWEST_ITERATIONS
from app.domain.matching.record import UNFIT
from app.domain.ranking import prior_to_keep
from app.storage.family import MOST_RUNS, sample_of_level
from app.storage.standings_tables import RankingPriorRow
from app.storage.tables import RunRow, utc_now
from app.storage.typed_json import from_json, to_json

_NEWEST: Select[Any] = (
    select(RunRow.config_key, RunRow.outcome, RunRow.log_step_time, RunRow.window_length, RunRow.not_finite)  # type: ignore[call-overload]
    .where(
        col(RunRow.project_id) == bindparam("project_id"),
        col(RunRow.gpu) == bindparam("gpu"),
        col(RunRow.semantic_class) == bindparam("semantic_class"),
        col(RunRow.definition_version) == DEFINITION_VERSION,
        col(RunRow.purpose) == "ci",
        col(RunRow.status) == "ready",
        col(RunRow.is_steady),
        col(RunRow.short).is_(False),
        col(RunRow.quarantine) == "",
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
    .limit(MOST_RUNS)
)
"""Made once: putting it together takes as long as running it."""


@dataclass(frozen=True, slots=True)
class FamilyPriors:
    """By semantic class. `version` 0: none are kept, and everything has the default one."""

    gpu: str = ""
    version: int = 0
    of_class: Mapping[str, Prior] = field(default_factory=dict)


NO_PRIORS = FamilyPriors()


def kept_priors(session: Session, project_id: int, gpu: str | None) -> FamilyPriors:
    """Those to rank with. A run whose GPU is unknown has no family."""
    row = session.get(RankingPriorRow, (project_id, gpu), populate_existing=True) if gpu else None
    if row is None:
        return FamilyPriors(gpu or "")
    return FamilyPriors(row.gpu, row.version, {name: from_json(Prior, one) for name, one in row.priors.items()})


def learned_priors(session: Session, project_id: int, gpu: str | None, classes: Iterable[str]) -> FamilyPriors:
    """The kept ones, replaced where they moved; `version` is then the next one, which `keep_priors` writes."""
    kept = kept_priors(session, project_id, gpu)
    if not gpu:
        return kept
    of_class = dict(kept.of_class)
    for name in sorted(set(classes)):
        of_class[name] = prior_to_keep(kept.of_class.get(name), _fresh(session, project_id, gpu, name))
    moved = kept.version == 0 or of_class != kept.of_class
    return FamilyPriors(gpu, kept.version + moved, of_class)


def keep_priors(session: Session, project_id: int, priors: FamilyPriors) -> int:
    """Write them when they are newer than what is kept. The version of what was kept with, for the stack's own row.

    0 when another worker moved them meanwhile: then the stack is ranked again.
    """
    if not priors.gpu:
        return 0
    chosen = select(RankingPriorRow).where(
        col(RankingPriorRow.project_id) == project_id, col(RankingPriorRow.gpu) == priors.gpu
    )
    row = session.execute(chosen.with_for_update().execution_options(populate_existing=True)).scalar_one_or_none()
    stored = {name: to_json(prior) for name, prior in priors.of_class.items()}
    if row is None:
        session.add(RankingPriorRow(project_id=project_id, gpu=priors.gpu, version=1, priors=stored))
    elif priors.version > row.version:
        row.version, row.priors, row.changed_at = priors.version, stored, utc_now()
    elif row.priors != stored:
        return 0
    session.flush()
    return priors.version


def _fresh(session: Session, project_id: int, gpu: str, semantic_class: str) -> Prior:
    found = {"project_id": project_id, "gpu": gpu, "semantic_class": semantic_class}
    groups: dict[str, list[float]] = {}
    for row in reversed(session.execute(_NEWEST, found).all()):
        usable = (row.window_length or 0) >= FEWEST_ITERATIONS and row.log_step_time is not None
        if usable and row.outcome not in UNFIT and not row.not_finite:
            groups.setdefault(row.config_key, []).append(row.log_step_time)
    return prior_of(sample_of_level(tuple(group)) for group in groups.values())
