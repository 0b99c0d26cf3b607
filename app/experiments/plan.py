"""An experiment is planned: its row, with a tag that is its own, and the run that it begins from."""

import re
from itertools import chain, count

import structlog
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.experiments.order import interleaved
from app.errors import Conflict
from app.experiments.proposal import Proposal, Wish, propose
from app.settings import Settings
from app.storage import audit
from app.storage.database import read_session, transaction
from app.storage.decisions import checked
from app.storage.experiment_joining import refresh
from app.storage.experiment_tables import ExperimentRow, ExperimentRunRow
from app.storage.experiments import knobs_json
from app.storage.typed_json import to_json

log = structlog.get_logger(__name__)

_MOST_WORDS = 60
_ATTEMPTS = 5
_NOT_IN_A_TAG = re.compile(r"[^a-z0-9]+")


def plan_experiment(engine: Engine, settings: Settings, wish: Wish, who: str, note: str = "") -> int:
    """The number of the new experiment. Raises NotFound, NotReady, and InvalidChange naming fields."""
    who, note = checked(who, note)
    with read_session(engine) as session:
        proposal = propose(session, settings, wish)
    with transaction(engine, durable=True) as session:
        row = _add(session, proposal, who, note)
        experiment_id = row.id or 0
        refresh(session, experiment_id)
        audit.record(
            session, who=who, subject="experiment", subject_id=experiment_id, action="plan",
            project_id=row.project_id, after={"tag": row.tag, "runs_each": row.runs_each}, note=note,
        )  # fmt: skip
    log.info("experiment_planned", experiment_id=experiment_id, run_id=wish.run_id, rule=wish.rule_id)
    return experiment_id


def _add(session: Session, proposal: Proposal, who: str, note: str) -> ExperimentRow:
    """With the first tag that is free; somebody else may take it in the same moment."""
    project_id = proposal.run.project_id
    of_project = select(ExperimentRow.tag).where(col(ExperimentRow.project_id) == project_id)  # type: ignore[call-overload]
    taken = set(session.execute(of_project).scalars())
    for _ in range(_ATTEMPTS):
        row = _row(proposal, who, note)
        row.tag, row.parent_id = _free_tag(proposal, taken), _parent(session, proposal.run.id)
        try:
            with session.begin_nested():
                session.add(row)
                session.flush()
        except IntegrityError:
            taken.add(row.tag)
        else:
            return row
    raise Conflict("Others are planning experiments of this run in this moment. Nothing was planned; try again.")


def _row(proposal: Proposal, who: str, note: str) -> ExperimentRow:
    run, sizing = proposal.run, proposal.plan.sizing
    return ExperimentRow(
        project_id=run.project_id,
        baseline_run_id=run.id,
        rule_id=proposal.rule_id,
        title=proposal.title,
        stack_key=run.stack_key,
        baseline_key=run.config_key,
        candidate_key=proposal.candidate_key,
        knobs=knobs_json(proposal.knobs),
        change=to_json(proposal.plan.change),
        tag="",
        runs_each=sizing.runs_each,
        sequence=list(interleaved(sizing.runs_each)),
        plan=to_json(proposal.plan),
        note=note,
        created_by=who,
    )


def _free_tag(proposal: Proposal, taken: set[str]) -> str:
    words = _NOT_IN_A_TAG.sub("-", proposal.tag_words.lower()).strip("-")[:_MOST_WORDS].strip("-")
    plain = f"exp-{words or 'change'}-{proposal.run.id}"
    return next(tag for tag in chain([plain], (f"{plain}-{n}" for n in count(2))) if tag not in taken)


def _parent(session: Session, run_id: int) -> int | None:
    """The newest experiment whose candidate is the baseline here: the journey goes on from it."""
    found: int | None = session.execute(
        select(ExperimentRunRow.experiment_id)  # type: ignore[call-overload]
        .where(col(ExperimentRunRow.run_id) == run_id, col(ExperimentRunRow.side) == "candidate")
        .order_by(col(ExperimentRunRow.experiment_id).desc())
        .limit(1)
    ).scalar_one_or_none()
    return found
