"""Which stack an address means: a key, or the first digits of one."""

from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.run import Stated
from app.domain.stack_title import stack_title
from app.history.view import is_key
from app.storage.findings import stated
from app.storage.tables import ProjectRow, RunRow

MOST_CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack as its newest run of figures states it. `contract` is that run's, `run_id` its number."""

    stack_key: str
    project_id: int
    project: str
    generated: bool
    baseline_branch: str
    commit_url: str
    compare_url: str
    run_id: int
    contract: dict[str, Stated]

    @property
    def title(self) -> str:
        return stack_title(self.contract, dispatcher=False)


def matching_keys(session: Session, text: str) -> tuple[str, ...]:
    """The keys of stacks that begin with `text`, at most MOST_CANDIDATES and one; the key itself where it is one."""
    if not is_key(text):
        return ()
    key = col(RunRow.stack_key)
    # A range, because `LIKE` of a collation other than C would not use the index. `g` comes after every digit.
    begun = select(key).where(key >= text, key < text + "g").distinct().order_by(key).limit(MOST_CANDIDATES + 1)
    found = tuple(session.execute(begun).scalars())
    return (text,) if text in found else found


def get_stack(session: Session, stack_key: str) -> Stack | None:
    """None when no run of it was read."""
    newest = (
        select(RunRow.id, RunRow.contract, ProjectRow)  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.stack_key) == stack_key, col(RunRow.status).in_(("ready", "failed")))
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(1)
    )
    found = session.execute(newest).one_or_none()
    if found is None:
        return None
    run_id, contract, project = found
    return Stack(
        stack_key=stack_key,
        project_id=project.id,
        project=project.slug,
        generated=project.generated,
        baseline_branch=project.baseline_branch,
        commit_url=project.commit_url,
        compare_url=project.compare_url,
        run_id=run_id,
        contract={name: stated(entry) for name, entry in (contract or {}).items()},
    )
