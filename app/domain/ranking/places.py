"""Places with ties. A tie is a fact about two results, and it does not pass on: A and B may tie, B and C too, and A may
still be better than C. So nobody is put into groups: each result has the range of places that the tests leave open.

The range is 1 + the number that are clearly better, up to the number of all less those that are clearly worse (Mogstad,
Romano, Shaikh and Wilhelm, "Inference for ranks", 2024). One clear winner has 1 to 1; of two that tie both have 1 to 2.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.domain.ranking.duels import Duel


@dataclass(frozen=True, slots=True)
class Place:
    """`first` to `last`: the places it may have. `ties`: with whom, in the order of the ranking."""

    name: str
    first: int
    last: int
    beats: tuple[str, ...]
    beaten_by: tuple[str, ...]
    ties: tuple[str, ...]

    @property
    def text(self) -> str:
        """`1`, or `1–2`."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def places(names: Sequence[str], duels: Iterable[Duel]) -> tuple[Place, ...]:
    """The places of `names`, which are in the order in which they are shown; a pair without a duel is a tie."""
    winners = {frozenset((one.first, one.second)): one.winner for one in duels}
    found = []
    for name in names:
        against = [(other, winners.get(frozenset((name, other)), "")) for other in names if other != name]
        beats = tuple(other for other, winner in against if winner == name)
        beaten_by = tuple(other for other, winner in against if winner == other)
        ties = tuple(other for other, winner in against if not winner)
        found.append(Place(name, 1 + len(beaten_by), len(names) - len(beats), beats, beaten_by, ties))
    return tuple(found)
