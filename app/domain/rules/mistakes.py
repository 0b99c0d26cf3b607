"""What is wrong with a rule file: where it stands, and what its author has to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from app.domain.rules.expression import RuleError
from app.domain.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Mistake:
    """`line`: where the rule begins, or the file cannot be read on. `rule`: "" where the file as a whole is meant."""

    file: str
    line: int
    rule: str
    said: str

    @classmethod
    def of(cls, rule: Rule, said: str) -> Self:
        return cls(f"{rule.topic}.yaml", rule.line, rule.id, said)

    def __str__(self) -> str:
        """`ours.yaml:12: ours-tp-small: has no source`, as editors take it."""
        return f"{self.file}:{self.line}: {self.rule + ': ' if self.rule else ''}{self.said}"


class RuleFileError(RuleError):
    """Everything that is wrong with some files, one mistake a line."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = tuple(mistakes)
