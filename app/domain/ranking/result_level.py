"""What two configurations of one stack are evidence of, and the evidence level that a result has by it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.matching import compare_contracts
from app.domain.ranking.pooling import Pool
from app.domain.ranking.ranked_run import reaches
from app.domain.ranking.standings import GainKind
from app.domain.run import Stated

Contracts = Mapping[str, Mapping[str, Stated]]
"""Config key -> contract of any run that has it. A key that is left out says nothing of its knobs."""
DISPATCHER = "dispatcher"


@dataclass(frozen=True, slots=True)
class _Configuration:
    """As matching wants it. Stack, project and class are equal for all configurations of a board."""

    contract: Mapping[str, Stated]
    project: str = ""
    commit: str = ""
    semantic_class: str = ""


def comparison(first: Pool, second: Pool, contracts: Contracts) -> tuple[GainKind, tuple[str, ...]]:
    """Of two configurations of a stack: whether the dispatcher alone differs, and else which other knobs do."""
    a, b = contracts.get(first.config_key), contracts.get(second.config_key)
    if a is None or b is None:
        return "unknown", ()
    found = compare_contracts(_Configuration(a), _Configuration(b))
    if found.kind == "matched_ab" and found.attributed_to == DISPATCHER:
        return "matched_ab", ()
    knobs = (knob.field for knob in (*found.stack, *found.knobs) if knob.follows != DISPATCHER)
    return "side_by_side", tuple(field for field in knobs if field != DISPATCHER)


def result_level(best: Pool, others: Sequence[Pool], contracts: Contracts) -> str:
    """The level of a dispatcher's result: that of its runs, and `matched_ab` for one side of a matched A/B.

    A matched A/B takes two configurations that differ in the dispatcher alone, screened on both sides, neither of them
    short. `others`: pools of the other dispatchers.
    """
    level = best.level
    if reaches(level, "matched_ab") or not _may_match(best):
        return level
    matched = any(_may_match(other) and comparison(best, other, contracts)[0] == "matched_ab" for other in others)
    return "matched_ab" if matched else level


def _may_match(pool: Pool) -> bool:
    return not pool.directional and reaches(pool.level, "screen")
