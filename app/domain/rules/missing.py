"""Which facts nobody stated, what each would decide, and which of them are worth asking for now.

A fact that only lets a rule speak that would be kept back anyway, that changes nothing to do (a warning), or that the
run answered by running, can wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.rules.doubt import ran
from app.domain.rules.facts import FACTS, Fact
from app.domain.rules.rank import withheld_because
from app.domain.rules.rule import Rule
from app.domain.rules.wall import WallReading


@dataclass(frozen=True, slots=True)
class Asking:
    """A rule that cannot be decided, and what it lacks: base facts, not those that follow from them."""

    rule: Rule
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MissingFact:
    """A fact that nobody stated. `alone`: rules that ask for nothing else; `together`: those that need more.

    `decides`: those of `alone` that somebody could act upon now; without one the fact can wait.
    """

    fact: Fact
    alone: tuple[str, ...]
    together: tuple[str, ...]
    decides: tuple[str, ...] = ()


def missing_facts(asks: Sequence[Asking], values: Mapping[str, object], wall: WallReading) -> tuple[MissingFact, ...]:
    """The most useful first: by the rules that it decides and that somebody could act upon."""
    alone: dict[str, list[str]] = {}
    together: dict[str, list[str]] = {}
    decides: dict[str, list[str]] = {}
    for asking in asks:
        group = alone if len(asking.missing) == 1 else together
        for name in asking.missing:
            group.setdefault(name, []).append(asking.rule.id)
        for name in _worth_asking(asking, values, wall):
            decides.setdefault(name, []).append(asking.rule.id)
    found = [
        MissingFact(
            FACTS[name], tuple(alone.get(name, ())), tuple(together.get(name, ())), tuple(decides.get(name, ()))
        )
        for name in {*alone, *together}
        if name in FACTS
    ]
    return tuple(sorted(found, key=_by_use))


def _by_use(one: MissingFact) -> tuple[int, int, int, str]:
    return -len(one.decides), -len(one.alone), -len(one.together), one.fact.name


def _worth_asking(asking: Asking, values: Mapping[str, object], wall: WallReading) -> Sequence[str]:
    """The fact that decides the rule, where its answer would be shown and followed."""
    rule = asking.rule
    if rule.kind == "warning" or (rule.kind == "blocker" and ran(values)):
        return ()
    if wall.certainty == "measured" and rule.kind == "candidate" and rule.wall not in (wall.wall, "none"):
        return ()
    profile = [name for name in asking.missing if name in FACTS and FACTS[name].section == "profile"]
    if withheld_because(rule, values, blocked=False):  # nothing is retuned before a profile: that is what is missing
        return profile[:1] if len(asking.missing) == len(profile) else ()
    return asking.missing if len(asking.missing) == 1 else ()
