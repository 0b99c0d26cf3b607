"""The nodes of a run, and which of them make runs slower: `GET /api/v1/runs/{id}/nodes` and the page of the run."""

from pydantic import BaseModel, Field
from sqlmodel import Session, col

from app.domain.access.principal import Action
from app.domain.documents.slurm import expand_nodes
from app.domain.verdict.nodes import MOST_NODES, NodeRun, SlowNode, slow_nodes
from app.domain.verdict.step_time import DEFAULT_PRIOR
from app.errors import NotFound
from app.pipeline.rank import stored_priors
from app.storage.tables import RunResultRow, RunRow, select_any
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, ReadSession, RunId, api_router
from app.web.errors import documented

MOST_RUNS = 200
_MOST_LISTED = 2_000

router = api_router("runs")


class SlowNodeOut(ApiValue):
    node: str
    runs: list[int] = Field(description="Runs with the node.")
    others: int = Field(description="Runs without it that they are compared with.")
    delta_pct: float = Field(description="How much slower the runs with the node are.")


class NodesOut(BaseModel):
    run: int
    nodes: list[str] = Field(description="Nodes of the run, up to 2,000; empty if no document states them.")
    suspects: list[SlowNodeOut] = Field(description="Nodes that make runs of this configuration slower.")


@router.get("/runs/{run_id}/nodes", responses=documented(404, 422))
@requires(Action.READ, of="run")
def read_nodes(session: ReadSession, run_id: RunId) -> NodesOut:
    """Return the nodes of a run, and those whose runs are slower than neighbouring runs of the history."""
    names = nodes_of(session, run_id)
    suspects = [SlowNodeOut.model_validate(slow) for slow in suspect_nodes(session, run_id)] if names else []
    return NodesOut(run=run_id, nodes=list(names[:_MOST_LISTED]), suspects=suspects)


def nodes_of(session: Session, run_id: int) -> tuple[str, ...]:
    """Return the nodes that documents of the run state. Raises NotFound."""
    stated = col(RunResultRow.contract)["nodes"]["value"].as_string()
    query = select_any(stated).select_from(RunRow).join(RunResultRow, isouter=True).where(col(RunRow.id) == run_id)
    row = session.execute(query).first()
    if row is None:
        raise NotFound.of(f"Run {run_id}")
    return expand_nodes(row[0] or "")


def suspect_nodes(session: Session, run_id: int) -> tuple[SlowNode, ...]:
    """Return the nodes of a run that make the runs of its configuration slower, by its newest neighbours."""
    run = session.get_one(RunRow, run_id)
    chosen = (
        select_any(RunRow.id, RunRow.log_step_time, col(RunResultRow.contract)["nodes"]["value"].as_string())
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.project_id) == run.project_id,
            col(RunRow.stack_key) == run.stack_key,
            col(RunRow.config_key) == run.config_key,
            col(RunRow.status) == "ready",
            col(RunRow.log_step_time).is_not(None),
        )
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(MOST_RUNS)
    )
    history = [
        NodeRun(number, frozenset(expand_nodes(nodes or "", MOST_NODES)), log_step_time)
        for number, log_step_time, nodes in reversed(session.execute(chosen).all())
    ]
    prior = stored_priors(session, run.project_id, run.gpu).of_class.get(run.semantic_class, DEFAULT_PRIOR)
    return slow_nodes(history, run_id, prior.variance)
