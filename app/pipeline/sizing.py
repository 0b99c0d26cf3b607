"""Run-to-run variation of a job, from which every page, plan and report computes how many runs an A/B takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session, col

from app.domain.experiments.plan import DEFAULT_EFFECT_PCT, size
from app.domain.experiments.values import Sizing
from app.domain.verdict.record import RunRecord, current_level
from app.domain.verdict.step_time import Prior, RunEstimate
from app.storage.stacks import FamilyPrior, Relative, stack_runs
from app.storage.tables import RunRow, utc_now

_HISTORY = 60


@dataclass(frozen=True, slots=True)
class JobVariation:
    """The known variation between launches of a run's job.

    `history`: other runs of its configuration in the current level; `family`: the prior of similar jobs; `noise`:
    standard error within the run (ln).
    """

    history: Sequence[RunEstimate]
    family: Prior
    noise: float
    step_s: float | None
    gpus: int | None

    def size(self, effect_pct: float = DEFAULT_EFFECT_PCT, runs_each: int | None = None) -> Sizing:
        """Return the runs per side that detect an effect. `runs_each`: chosen by the user."""
        return size(
            self.history, self.family, noise=self.noise, effect_pct=effect_pct, runs_each=runs_each,
            step_s=self.step_s, gpus=self.gpus,
        )  # fmt: skip


def job_variation(session: Session, record: RunRecord) -> JobVariation:
    """Return the variation from the newest level of the run's configuration, and from its family."""
    row = session.get_one(RunRow, int(record.run))
    now = utc_now()
    relative = Relative(row.project_id, row.gpu, row.semantic_class, row.definition_version, row.config_key)
    family = FamilyPrior(session, relative, now, now).prior(now)
    runs = stack_runs(
        session, row.project_id, row.stack_key, col(RunRow.config_key) == row.config_key, with_metrics=False,
        newest=_HISTORY,
    )  # fmt: skip
    usable = [
        run.facts
        for run in runs
        if run.id != row.id and not run.facts.never_a_baseline_because and run.facts.has_shape_of(record)
        and run.definition_version == record.definition_version and run.semantic_class == record.semantic_class
    ]  # fmt: skip
    level = current_level(usable, family) if usable else []
    log_step_time, gpus = record.estimate.log_step_time, record.contract.get("gpus")
    return JobVariation(
        [run.estimate for run in level],
        family,
        record.estimate.se,
        None if log_step_time is None else math.exp(log_step_time) / 1000,
        gpus.value if gpus is not None and isinstance(gpus.value, int) else None,
    )


def unplannable_because(record: RunRecord) -> str:
    """Return why a run cannot be the baseline of an experiment; "" if it can."""
    return record.unfit_because or record.estimate.unusable_because
