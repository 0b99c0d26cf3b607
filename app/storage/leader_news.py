"""What changed at the head of boards, as news: one line for each board, dated by the history of its stack."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session

from app.domain.ranking.incremental import told
from app.storage.leader_changes import LeaderChange, leader_changes

_MOST_READ = 400
"""Changes. A head that moves more often than that moves too often for news."""


@dataclass(frozen=True, slots=True)
class LeaderNews:
    """All changes of one board, told as one: `newest` is what it came to, `first` where it began."""

    newest: LeaderChange
    first: LeaderChange
    changes: int

    @property
    def at(self) -> datetime:
        return self.newest.happened_at

    @property
    def told(self) -> str:
        """Who heads it now."""
        return told(self.newest.change.after)

    @property
    def is_first(self) -> bool:
        """Whether nobody was known to lead before."""
        return self.first.change.before is None

    @property
    def is_back(self) -> bool:
        """Whether the head is what it was before all of them."""
        return self.first.change.before == self.newest.change.after


def leader_news(
    session: Session, *, project: str = "", noticed_since: datetime | None = None, most: int = 10
) -> tuple[LeaderNews, ...]:
    """Boards whose head changed, the latest in their history first."""
    read = leader_changes(session, project=project, since=noticed_since, newest=_MOST_READ)
    return tuple(sorted(_folded(read), key=lambda one: one.at, reverse=True)[:most])


def _folded(changes: Iterable[LeaderChange]) -> Iterable[LeaderNews]:
    """From changes, newest first. Where the same runs are only read otherwise, nothing happened."""
    boards: dict[tuple[str, str, str], list[LeaderChange]] = {}
    for one in changes:
        head = one.change.after
        if not head.by_runs:
            continue
        boards.setdefault((one.stack_key, head.routing_mode, head.semantic_class), []).append(one)
    return (LeaderNews(own[0], own[-1], len(own)) for own in boards.values())
