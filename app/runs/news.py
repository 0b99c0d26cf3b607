"""Whether a run's page is behind: what it has seen, as a short text that it sends back when it asks for news."""

from dataclasses import dataclass

from app.storage.run_records import RunDetail, RunState
from app.storage.tables import PROCESSED


@dataclass(frozen=True, slots=True)
class Token:
    """`status` decides the shape of the page, `stamp` changes with every new reading, `verdict` with every judging."""

    status: str
    phase: str
    stamp: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.status}.{self.phase}.{self.stamp}.{self.verdict}"

    @classmethod
    def parse(cls, text: str) -> "Token":
        """What another page sent; anything may be sent, and then it has simply seen nothing."""
        parts = text[:80].split(".")
        return cls(*parts) if len(parts) == 4 else cls("", "", "", "")


def token_of(run: RunState | RunDetail) -> Token:
    phases = (("receiving", run.receiving), ("updating", run.updating), ("judging", run.judged.waiting))
    phase = next((name for name, holds in phases if holds), "settled")
    stamp = f"{run.processed_at.timestamp():.6f}".replace(".", "-") if run.processed_at else "0"
    return Token(run.status, phase, stamp, str(run.judged.verdict_id))


def is_settled(token: Token) -> bool:
    """Nothing more will come by itself."""
    return token.phase == "settled" and token.status in PROCESSED


def news_of(before: Token, now: Token) -> str:
    """What a screen reader is told: a change of state, and not every figure that moved."""
    if before.status != now.status:
        return f"The run is {now.status}."
    if before.phase == "receiving" and now.phase != "receiving":
        return "The log is complete."
    if before.verdict != now.verdict:
        return "The run was judged."
    return "The run was read again." if before.phase == "updating" and now.phase in ("judging", "settled") else ""
