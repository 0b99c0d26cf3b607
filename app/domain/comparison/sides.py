"""Side A against side B, each a run or reruns of one: what their contracts allow, and what the figures then say.

The run is the sample, not the iteration: a side of three runs is three values of the step time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.comparison.winner import Winner, why_none, winner
from app.domain.comparison.within import Within, within
from app.domain.detection import DEFAULT_PRIOR, Prior, Verdict, judge
from app.domain.matching import Comparability, Kind, RunRecord, compare_contracts


@dataclass(frozen=True, slots=True)
class LeftOutRun:
    """A run that counts for nothing in the figures of its side."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class SideComparison:
    """`a` is the baseline and `b` the candidate, each oldest first. `comparability` is of the newest run of both.

    `kind` is that of the comparability, or a lower one where a side is several configurations. `measured`: None where
    nothing may be measured, or nothing could be; `not_measured` then says why. `no_winner`: why no side may be called
    better. `short`: the smallest windows of A and of B, where one has too few iterations for more than a direction.
    """

    a: tuple[RunRecord, ...]
    b: tuple[RunRecord, ...]
    comparability: Comparability
    sets: tuple[Within, Within]
    kind: Kind
    measured: Verdict | None
    not_measured: str
    no_winner: tuple[str, ...]
    left_out: tuple[LeftOutRun, ...]
    short: tuple[int, int] | None

    @property
    def winner(self) -> Winner:
        return "" if self.no_winner else winner(self.measured)

    @property
    def directional(self) -> bool:
        """Too few iterations for more than a direction: a full run must confirm it."""
        return self.measured is not None and self.short is not None

    @property
    def attributed_to(self) -> str | None:
        """The field that explains a difference, if the contracts leave one; None where none may be named."""
        return self.comparability.attributed_to if self.kind == self.comparability.kind else None


def compare_sides(a: Sequence[RunRecord], b: Sequence[RunRecord], prior: Prior = DEFAULT_PRIOR) -> SideComparison:
    """Compare at least one run a side. `prior`: what is known of run-to-run variation (`family_prior`)."""
    found = compare_contracts(a[-1], b[-1])
    sets = within(a), within(b)
    kind = _kind(found, sets)
    left_out = tuple(LeftOutRun(run.run, why) for run in (*a, *b) if (why := unusable_because(run)))
    used_a, used_b = _used(a, left_out), _used(b, left_out)
    obstacle = _obstacle(kind, sets, (a, used_a), (b, used_b), left_out)
    measured = None if obstacle else _measure(used_a, used_b, prior)
    windows = tuple(min((run.estimate.window_length for run in used), default=0) for used in (used_a, used_b))
    return SideComparison(
        a=tuple(a),
        b=tuple(b),
        comparability=found,
        sets=sets,
        kind=kind,
        measured=measured,
        not_measured=obstacle,
        no_winner=why_none(used_a or a, used_b or b, found, sets),
        left_out=left_out,
        short=(windows[0], windows[1]) if any(run.estimate.short for run in (*used_a, *used_b)) else None,
    )


def unusable_because(run: RunRecord) -> str:
    """Why the figures of a run can stand for nothing; empty when they can. A short run can show a direction."""
    if run.failed_because:
        return run.failed_because
    if run.quarantined:
        return f"quarantined: {run.quarantined}"
    if run.estimate.not_finite_iterations:
        return "its loss was not finite"
    return run.estimate.unusable_because


def _kind(found: Comparability, sets: tuple[Within, Within]) -> Kind:
    if any(inside.stack for inside in sets):
        return "incomparable"
    if any(inside.knobs for inside in sets):
        return "side_by_side" if not found.stack else "incomparable"
    return found.kind


def _used(runs: Sequence[RunRecord], left_out: Sequence[LeftOutRun]) -> list[RunRecord]:
    refused = {one.run for one in left_out}
    return [run for run in runs if run.run not in refused]


def _obstacle(
    kind: Kind,
    sets: tuple[Within, Within],
    a: tuple[Sequence[RunRecord], Sequence[RunRecord]],
    b: tuple[Sequence[RunRecord], Sequence[RunRecord]],
    left_out: Sequence[LeftOutRun],
) -> str:
    """Why the figures of both sides must not be held against each other, or cannot be; empty when they may."""
    if kind == "incomparable":
        return "they are different tasks, or may be"
    if not all(inside.one_configuration for inside in sets):
        return "a mean over several configurations is the speed of none of them"
    for name, (offered, used) in (("A", a), ("B", b)):
        if not used:
            whys = {one.run: one.why for one in left_out}
            told = "; ".join(f"#{run.run}: {whys[run.run]}" for run in offered)
            return f"no run of {name} can be measured ({told})"
    runs = (*a[1], *b[1])
    if len({run.definition_version for run in runs}) > 1:
        return "their figures are of different versions of the definitions"
    if len({run.fair_for_timing for run in runs}) > 1:
        return "only some of the runs were slowed down by timers of their own"
    return ""


def _measure(a: Sequence[RunRecord], b: Sequence[RunRecord], prior: Prior) -> Verdict:
    """The test of verdicts. Short runs may be a baseline here: a person chose them, and is told."""
    return judge([run.estimate for run in b], [run.estimate for run in a], prior, directional=True)
