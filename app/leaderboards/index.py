"""The list of leaderboards: which hardware and model families there are, and what changed at the head of stacks."""

from dataclasses import dataclass

from sqlmodel import Session

from app.domain.numbers import counted
from app.storage.leader_news import LeaderNews, leader_news
from app.storage.leaderboard_names import check_project
from app.storage.standings import HardwareFamily, hardware_and_families

NEWEST = 10


@dataclass(frozen=True, slots=True)
class LeaderboardIndex:
    project: str
    items: tuple[HardwareFamily, ...]
    news: tuple[LeaderNews, ...]

    @property
    def answer(self) -> str:
        if not self.items:
            return f"No stack of {self.project} is ranked yet." if self.project else "No stack is ranked yet."
        stacks, rankings = sum(one.stacks for one in self.items), sum(one.rankings for one in self.items)
        told = counted(rankings, "stack has a ranking", "stacks have a ranking")
        boards = counted(len(self.items), "leaderboard")
        return f"{boards} over {counted(stacks, 'stack')}. {told} of two dispatchers or more."


def leaderboard_index(session: Session, project: str = "") -> LeaderboardIndex:
    check_project(session, project)
    news = leader_news(session, project=project, most=NEWEST)
    return LeaderboardIndex(project, hardware_and_families(session, project), news)
