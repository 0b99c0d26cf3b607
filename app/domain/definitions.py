"""Versions of the rules behind stored figures and verdicts, so that outdated ones can be found and recomputed.

Raise the version of a rule when it changes, and describe the change in `docs/metrics.md`. The service then recomputes
every run (`app/pipeline/process.py`), or only judges every stack again when a rule of verdicts changed.
"""

from collections.abc import Mapping

DEFINITIONS: dict[str, int] = {
    "reading": 4,
    "steady_state": 7,
    "intervals": 1,
    "flops": 3,
    "peaks": 2,
    "keys": 4,
    "failures": 3,
    "timers": 1,
    "activity": 3,
}
"""Rule -> version. `reading` covers what is read from logs and documents; all other rules compute from that.

`reading`: 2 since logs of unknown trainers are `unread` and their step-like lines are kept, 3 since golden values state
their test and a lost loss, 4 since torchtitan, MaxText, veRL, slime, DeepSpeed and progress bars are read.
`steady_state`: 2 since a drift up to 7 % widens the interval and a declared window of a full run is not short, 3 since
profiled iterations do not count, 4 since the limit of 7 % is the same in both directions, 5 since the stated launch
shows profiled iterations, too, 6 since a change of level is not called a drift, 7 since why it is unsteady is also kept
as data. `flops`: 2 since the formula's figure replaces a printed one that was rounded from it, 3 since printed tokens
of a step count. `keys`: 2 since captured CUDA graphs and HybridEP's fallback count as active, 3 since fields that a
partial environment or a truncated dump leaves out stay unknown, 4 since the optimizer, its instances and deterministic
modes are knobs. `failures`: 2 since a log whose trainer states no end is not truncated, 3 since a run without any text
is unread. `activity`: iterations prove a dispatcher only for trainers that do not start without it; 2 since a printed
world size wins over a stated one, 3 since a printed batch size and sequence length do.
"""

DEFINITION_VERSION = sum(DEFINITIONS.values())
"""One number for all rules; it grows with every change."""

VERDICT_RULES: dict[str, int] = {
    "baseline": 3,
    "step_time": 5,
    "memory": 1,
    "loss": 1,
    "levels": 6,
    "suspects": 2,
    "sentences": 5,
    "upgrades": 5,
}
"""Rule -> version of what verdicts conclude from figures (`docs/verdicts.md`); a change recomputes no figure.

`baseline`: 2 since young histories are segmented, too, 3 since jobs are histories of their own and other configurations
open nothing. `step_time`: 2 since contradicting reruns are inconclusive, 3 since a learned variation has
4 degrees of freedom or more and at most 5 %, 4 since requested reruns are one look and their decision is final,
5 since the interval belongs to the test that decided.
`levels`: 2 since the last run of a history is clipped like the others, 3 since reruns of a commit count once,
4 since less than half of a change may be left of a fixed regression, 5 since a job that is nearly back does not count
towards the size of a regression, 6 since a job that moves continues only the largest of two rises from one level.
`suspects`: 2 since `no_change` has none. `upgrades`: 1 measures over the first five commits of a stack, since 2 the
old side counts as ended after them, since 3 a single run that is not steady opens no regression, since 4 the upgrade
report shows the judged change, since 5 a job that was as slow in another container continues that regression.
`sentences`: the wording of stored reasons and notes; 3 since reasons are phrases without a subject, 4 since a certain
change is not called one to act on, 5 since a note names only the runs that would decide."""

DECIDES: Mapping[str, str] = {
    "reading": "Values and events read from logs and documents",
    "steady_state": "Iterations that the figures cover",
    "intervals": "Intervals of the figures",
    "flops": "Model FLOPs, tokens/s, TFLOP/s and MFU",
    "peaks": "The dense peak that MFU refers to",
    "keys": "Runs that are compared or ranked together",
    "failures": "How a run ended, and its failures",
    "timers": "Times of the trainer's timers",
    "activity": "Whether a requested setting was in use",
    "baseline": "Earlier runs that a run is judged against",
    "step_time": "Regression, improvement, no change or inconclusive",
    "memory": "Whether more peak memory is a regression",
    "loss": "Whether a worse loss withholds the result",
    "levels": "Segments and change points of a history",
    "suspects": "Possible causes and their order",
    "sentences": "Wording of reasons and notes",
    "upgrades": "Regressions that an upgrade opens",
}
"""What each rule of figures and verdicts decides, for pages."""

VERDICT_VERSION = sum(VERDICT_RULES.values())

RANKING_RULES: dict[str, int] = {"eligibility": 3, "results": 9, "ties": 4, "sentences": 6}
"""Rule -> version of rankings (`docs/leaderboards.md`); a change ranks every stack again and recomputes no figure.

`results`: 5 since a winner is compared with the second place, 6 since equal leaders count apart from undecided ones,
7 since a winner with alltoall in second place has that gain, too, 8 since a gain over another EP degree is also stated
at the degree of the reference, 9 since a first or second place with a single run is counted as such.
`ties`: 4 since the interval belongs to the test that decided. `sentences`: 6 since further runs have a condition."""

RANKING_VERSION = sum(RANKING_RULES.values()) + VERDICT_VERSION
"""Ties are decided by the test of verdicts, so its version is part of this one."""


def changes(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Describe the difference between two sets of rules: `flops 1 → 2, keys 2 → 3`; empty when they are equal.

    Figures without any rules (`before` is empty) come from an earlier version of the service.
    """
    if not before:
        return "an earlier version"
    changed = ((name, before.get(name), version) for name, version in after.items())
    return ", ".join(
        f"{name} {was} → {now}" if was is not None else f"{name} is new" for name, was, now in changed if was != now
    )
