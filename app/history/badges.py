"""The addresses of a stack's badges as its page offers them: Markdown to paste into a README."""

from dataclasses import dataclass

from sqlmodel import Session

from app.domain.badges.key import badge_key
from app.history.stacks import Stack
from app.storage.tables import ProjectRow

_SHORT = 16
"""Digits of a stack's key in the link, which no other stack begins with."""


@dataclass(frozen=True, slots=True)
class StackBadge:
    """`path`: to show it here. `markdown`: with the service's own address, and a link to the history."""

    name: str
    path: str
    markdown: str


@dataclass(frozen=True, slots=True)
class BadgeOffer:
    """`is_public`: everybody may see the project, so the addresses need no key."""

    is_public: bool
    badges: tuple[StackBadge, ...]


def badge_offer(session: Session, stack: Stack, base_url: str) -> BadgeOffer:
    project = session.get_one(ProjectRow, stack.project_id)
    query = "" if project.public else f"?key={badge_key(project.badge_secret, stack.stack_key)}"
    history = f"{base_url}/history/{stack.stack_key[:_SHORT]}"
    made = []
    for name, file in (("Verdict", "verdict"), ("Step time", "step-time")):
        path = f"/badges/{stack.stack_key}/{file}.svg{query}"
        made.append(StackBadge(name, path, f"[![{name}]({base_url}{path})]({history})"))
    return BadgeOffer(project.public, tuple(made))
