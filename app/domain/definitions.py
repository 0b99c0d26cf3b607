"""Versions of what the stored figures and verdicts mean, so that older ones can be told from newer ones and made again.

Raise the one whose rule changes, and say in `docs/metrics.md` what changed. The service then computes every run again
(`app/pipeline/process.py`), or judges every stack again when only a rule of verdicts changed.
"""

from collections.abc import Mapping

DEFINITIONS: dict[str, int] = {
    "reading": 2,
    "steady_state": 1,
    "intervals": 1,
    "flops": 2,
    "peaks": 1,
    "keys": 3,
    "failures": 1,
    "timers": 1,
    "activity": 1,
}
"""Rule -> version. `reading`: what is taken from logs and documents; the others are computed from what was taken.
`reading`: 2 since a log that no reader knows is unread, and lines of it that look like steps have their place.
`flops`: 2 since the formula's figure stands in for a printed one that is rounded from it. `keys`: 2
since captured CUDA graphs and HybridEP's fallback count as what ran, 3 since neither a selection of environment
variables nor a cut dump states what it leaves out. `activity`: since it is
there, iterations let a dispatcher be inferred only of trainers that do not start without it."""

DEFINITION_VERSION = sum(DEFINITIONS.values())
"""All of them in one number, which grows with every change."""

VERDICT_RULES: dict[str, int] = {"baseline": 2, "step_time": 2, "memory": 1, "loss": 1, "levels": 1, "suspects": 2}
"""Rule -> version of what is concluded from figures (`docs/verdicts.md`): a change needs no figure computed again.
`baseline`: 2 since young histories have levels, too. `step_time`: 2 since reruns that contradict each other decide
nothing. `suspects`: 2 since what is shown to be the same has none."""

VERDICT_VERSION = sum(VERDICT_RULES.values())

RANKING_RULES: dict[str, int] = {"eligibility": 3, "results": 3, "ties": 3, "sentences": 3}
"""Rule -> version of what is ranked (`docs/leaderboards.md`): a change has every stack ranked again, and no figure."""

RANKING_VERSION = sum(RANKING_RULES.values()) + VERDICT_VERSION
"""Ties are decided by the verdict's own test."""


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """What differs between two sets of rules, for people: `flops 1 -> 2, keys 2 -> 3`; empty when nothing does.

    A rule that `before` does not know is new; figures that carry no rules at all are of an earlier version.
    """
    if not before:
        return "an earlier version"
    changed = ((name, before.get(name), version) for name, version in after.items())
    return ", ".join(
        f"{name} {was} -> {now}" if was is not None else f"{name} is new" for name, was, now in changed if was != now
    )
