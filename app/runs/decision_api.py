"""`POST /api/v1/runs/{id}/quarantine`, `/release`, `/pin`, `/unpin`: what a person decides about a run."""

from collections.abc import Callable, Mapping

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from app.runs.api_models import RunId, RunOut
from app.runs.decide import Action, decide
from app.runs.queries import get_run
from app.storage.audit import MAX_AUTHOR, MAX_NOTE
from app.storage.database import read_session
from app.web.access.acting import Author, author_field
from app.web.dependencies import AppEngine
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["runs"])


class Decision(BaseModel):
    model_config = ConfigDict(extra="forbid")

    author: Author = author_field("Who decides it.", MAX_AUTHOR)
    note: str = Field("", max_length=MAX_NOTE, description="Why. A quarantine must have a reason.")


_MEANINGS: Mapping[Action, str] = {
    "quarantine": "Take the run out of every baseline, level and ranking; `note` is the reason, and needed.",
    "release": "End the quarantine of the run: it counts again.",
    "pin": "Make the run the golden baseline of its stack, in place of the one before.",
    "unpin": "End the pin of the run: its stack is judged against its own history again.",
}


def _route(action: Action) -> Callable[..., RunOut]:
    def decide_run(request: Request, engine: AppEngine, run_id: RunId, decision: Decision) -> RunOut:
        decide(engine, run_id, action, author=decision.author, note=decision.note)
        with read_session(engine) as session:
            return RunOut.of(get_run(session, run_id), f"{public_address(request)}/runs/{run_id}")

    return decide_run


for _action, _meaning in _MEANINGS.items():
    router.add_api_route(
        f"/runs/{{run_id}}/{_action}",
        _route(_action),
        methods=["POST"],
        name=f"{_action}_run",
        description=f"{_meaning} Recorded with who and when; then the stack is judged again.",
        responses=documented(404, 422),
    )
