"""Rank the suspects of a verdict by two kinds of evidence.

Earlier A/Bs on the same field with the same two values, and other stacks that went through the same change.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Literal, get_args

from app.domain.contract.values import shown
from app.domain.numbers import change_text, levels_text, plural
from app.domain.run import Stated
from app.domain.text import some_of
from app.domain.verdict.comparability import ALL_CHANGES, COMMIT, Comparability, Suspect, suspect_reason
from app.domain.verdict.document import MeasuredContrast, VerdictDocument
from app.domain.verdict.step_time import RELEVANT_SHIFT

Support = Literal["supported", "open", "unlikely"]
SuspectLabel = Literal["unlikely", "possible", "likely"]
LABELS: tuple[SuspectLabel, ...] = ("unlikely", "possible", "likely")
"""The words for the evidence, which pages draw as 0, 1 and 2 bars."""
SUPPORT_ORDER: tuple[Support, ...] = ("supported", "open", "unlikely")
EXPLAINS = 0.5
"""Share of the change that an A/B must explain to support a suspect; the rest may be noise or a second cause."""
AGREE = 0.75
"""Share of the A/Bs that must have changed in the direction of the change; else their median means nothing."""
MOST_VALUE = 500
"""Longest value, in characters, that is stored with a verdict."""
EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)
NO_EVIDENCE = "No A/B or other job shows its effect yet."
_MOST_NAMED = 3
"""Runs that a sentence names."""


@dataclass(frozen=True, slots=True)
class PastResult:
    """One A/B on a field: the change of step time from the first value to the second."""

    run: str
    stack_key: str
    from_value: str
    to_value: str
    delta_pct: float


@dataclass(frozen=True, slots=True)
class PastResults:
    """Results of `n` A/Bs on one field between the same two values, in percent of step time; positive is slower.

    `slower`: number of those that were slower; `stacks`: keys of their stacks; `runs`: their runs, newest first, for
    links.
    """

    n: int
    slower: int
    median_pct: float
    low_pct: float
    high_pct: float
    stacks: tuple[str, ...]
    runs: tuple[str, ...]


Move = Literal["slower", "slower_in_one_run", "unconfirmed", "faster", "same", "already_slow", "inconclusive"]
"""`slower_in_one_run`, `unconfirmed`, `already_slow`: only of jobs of an upgrade, as in its report."""
MOVES: tuple[Move, ...] = get_args(Move)
MOVE_OF: Mapping[str, Move] = {"regression": "slower", "improvement": "faster", "no_change": "same"}
"""By decision; all others are inconclusive."""


@dataclass(frozen=True, slots=True)
class StackMove:
    """How another stack, or a job of an upgrade, reacted to the same change: its decisive run, and its change.

    `job`: empty if the whole stack counts once. `gpu`: empty if all have one model.
    """

    run: str
    stack_key: str
    move: Move
    delta_pct: float
    job: str = ""
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class OtherStacks:
    """Others that went through the same change. `noun`: `job` after an upgrade, as in its report, else `stack`.

    `direction`: that of the change to explain. `with_own`: several jobs of a regression name the change, and they are
    among these. `alternating`: those that alternate between two levels, whatever their code, and do not count.
    """

    moves: tuple[StackMove, ...]
    direction: Literal["slower", "faster"]
    noun: Literal["job", "stack"] = "stack"
    with_own: bool = False
    alternating: tuple[StackMove, ...] = ()

    def of(self, move: Move) -> tuple[StackMove, ...]:
        return tuple(item for item in self.moves if item.move == move)

    @property
    def moved(self) -> tuple[StackMove, ...]:
        """Return those that moved in the direction of the change to explain."""
        return self.of(self.direction)


@dataclass(frozen=True, slots=True)
class RankedSuspect:
    """A suspect with its evidence; `past` and `elsewhere` are None without data.

    `unaffected`: earlier runs that had the suspected value without the change, newest first. `is_likely`: the change is
    confirmed, and the evidence supports the suspect, or no other is left and most stacks with the same change moved.
    `good_at`: of suspected code, when the last run without the change ran; its commit begins the range. `bad_at` and
    `bad`: when the first run with the change ran, and the commit of the slow run; an earlier run of the job, as slow in
    another stack, ends the range before it. `cleared`: names of the unlikely others, if it is likely because it alone
    is left. `beside`: name of another suspect that changed in the same jobs, so that they support both equally.
    """

    suspect: Suspect
    support: Support
    past: PastResults | None
    elsewhere: OtherStacks | None
    unaffected: tuple[int, ...] = ()
    is_likely: bool = False
    good_at: datetime = EARLIEST
    cleared: tuple[str, ...] = ()
    bad_at: datetime = LATEST
    bad: str = ""
    alternates: tuple[float, float] | None = None
    beside: str = ""

    @property
    def ends_earlier(self) -> bool:
        """Return whether the range of commits ends before the slow run."""
        return (
            bool(self.bad) and self.suspect.difference is not None and self.bad != value_text(self.suspect.difference.b)
        )

    @property
    def name(self) -> str:
        """Return its name in a sentence: `container`, `code`."""
        return self.suspect.axis if self.suspect.axis == "code" else self.suspect.field

    @property
    def label(self) -> SuspectLabel:
        """Return the word that pages, the API and reports show."""
        return "likely" if self.is_likely else "unlikely" if self.support == "unlikely" else "possible"

    @property
    def sentence(self) -> str:
        """Return `The container is a likely cause. Other jobs with the same change: 2 slower.`"""
        article = "an" if self.label == "unlikely" else "a"
        name = f"The {self.name}" if self.name in ("code", "container", "cluster") else f"`{self.name}`"
        return f"{name} is {article} {self.label} cause. {self.evidence_text}"

    @property
    def evidence_text(self) -> str:
        return " ".join(self.evidence or (NO_EVIDENCE,))

    @property
    def evidence(self) -> tuple[str, ...]:
        """Return the evidence in sentences; unaffected runs alone decide, whatever other stacks did."""
        if self.unaffected:
            return (f"{unaffected_text(self.unaffected)}.",)
        texts = (
            self.alternates and f"This job alternates between {levels_text(self.alternates)}, whatever its code.",
            self.past and _past_sentence(self.past), self.elsewhere and _stacks_sentence(self.elsewhere),
            self.beside and f"Their {self.beside} changed, too.",
            self.is_likely and self.support == "open" and _left_sentence(self),
        )  # fmt: skip
        return tuple(text for text in texts if text)


@dataclass(frozen=True, slots=True)
class SharedSuspect:
    """One change that jobs of a regression name. `by_job`: each job that names it, by its place among the jobs.

    `ranked`: as the job with the best evidence names it, of several the one with the shortest range of commits, which
    lies in the others. It is likely only if it is in most of the jobs.
    """

    ranked: RankedSuspect
    by_job: Mapping[int, RankedSuspect]


def alternating_runs(
    jobs: Iterable[tuple[int, Sequence[RankedSuspect]]],
) -> dict[int, tuple[float, float]]:
    """Return the first slow runs of the jobs that alternate between two levels, whatever their code, with the levels.

    Code cannot do this, so that the node of the first of these runs is the strongest suspect. `jobs`: run and suspects.
    """
    return {run_id: levels for run_id, suspects in jobs for item in suspects if (levels := item.alternates)}


def node_text(run_id: int) -> str:
    """Return the name of a suspected node: `Node of #311`."""
    return f"Node of #{run_id}"


def suspects_of(document: VerdictDocument) -> tuple[Suspect, ...]:
    """Return the suspects of the verdict; without a baseline, those of a measured contrast."""
    return document.suspects or _of_contrast(document.contrast)


def since_last_good(document: VerdictDocument, ranked: Iterable[RankedSuspect]) -> VerdictDocument:
    """Return the verdict with the commits of its suspect, so that all texts name and link to the same range.

    A suspected commit is that since the last good run, not since the newest run of the baseline.
    """
    commit = next((item.suspect.difference for item in ranked if item.suspect.field == COMMIT), None)
    if commit is None:
        return document

    def with_commit(comparability: Comparability) -> Comparability:
        beside = tuple(commit if difference.field == COMMIT else difference for difference in comparability.beside)
        return replace(comparability, beside=beside)

    if document.comparability is not None:
        return replace(document, comparability=with_commit(document.comparability))
    contrast = document.contrast
    if contrast is None:
        return document
    return replace(document, contrast=replace(contrast, comparability=with_commit(contrast.comparability)))


def change_pct(document: VerdictDocument) -> float | None:
    """Return the change of step time to explain, in percent: that of the verdict, else of the contrast."""
    return document.measured.delta_pct if document.measured else None


def past_results(results: Iterable[PastResult], from_value: str, to_value: str) -> PastResults | None:
    """Pool results of both directions, inverting those measured the other way round. `results`: newest first."""
    pairs = {(from_value, to_value): 1, (to_value, from_value): -1}
    hits = [(result, sign) for result in results if (sign := pairs.get((result.from_value, result.to_value)))]
    if not hits:
        return None
    changes = [100 * math.expm1(sign * math.log1p(result.delta_pct / 100)) for result, sign in hits]
    stacks = tuple(dict.fromkeys(result.stack_key for result, _ in hits))
    runs = tuple(result.run for result, _ in hits)
    slower = sum(change > 0 for change in changes)
    return PastResults(len(hits), slower, statistics.median(changes), min(changes), max(changes), stacks, runs)


def other_stacks(moves: Iterable[StackMove], direction: Literal["slower", "faster"]) -> OtherStacks | None:
    """Keep one move per stack: of several runs one that moved in this direction, else the clearest."""
    order: Sequence[Move] = (direction, *(move for move in MOVES if move != direction))
    best: dict[str, StackMove] = {}
    for stack_move in moves:
        before = best.get(stack_move.stack_key)
        if before is None or order.index(stack_move.move) < order.index(before.move):
            best[stack_move.stack_key] = stack_move
    return OtherStacks(tuple(best.values()), direction) if best else None


def rank_suspects(
    change: float | None,
    suspects: Sequence[tuple[Suspect, PastResults | None, OtherStacks | None]],
    unaffected: tuple[int, ...] = (),
    good_at: datetime = EARLIEST,
    bad: tuple[datetime, str] = (LATEST, ""),
    *,
    code_explains_upgrade: bool = False,
) -> tuple[RankedSuspect, ...]:
    """Sort suspects: supported by evidence first, contradicted last, otherwise in the order given.

    `unaffected`: earlier runs in which everything but the code was the same, without the change. `good_at`: when the
    last run without the change ran. `bad`: when the first run with it ran, and the commit of the slow run.
    `code_explains_upgrade`: the same commits came to all jobs that an upgrade seems to have made slower.
    """
    ranked = []
    for suspect, past, elsewhere in suspects:
        is_code = suspect.axis == "code"
        own = () if is_code else unaffected
        support = "unlikely" if own else _support(change, past, elsewhere)
        item = RankedSuspect(suspect, support, past, elsewhere, own)
        ranked.append(replace(item, good_at=good_at, bad_at=bad[0]) if is_code else item)
        if suspect.field == COMMIT:
            ranked[-1] = replace(ranked[-1], bad=bad[1])
    if code_explains_upgrade:
        ranked = _not_separated(ranked)
    ranked = [replace(item, support="open") if _changed_beside(item, ranked) else item for item in ranked]
    likely = [item for item in ranked if item.support == "supported"]
    left = [item for item in ranked if item.support == "open" and item.suspect.difference is not None]
    if not likely and len(left) == 1 and left[0].past is None and _moved_most(left[0].elsewhere):
        cleared = tuple(item.name for item in ranked if item.support == "unlikely")
        likely = [replace(left[0], cleared=cleared)]
        ranked = [likely[0] if item is left[0] else item for item in ranked]
    ranked = [replace(item, is_likely=item in likely) for item in ranked]
    return tuple(sorted(ranked, key=lambda item: SUPPORT_ORDER.index(item.support)))


FEWEST_STREAKS, WINDOW = 3, 10
"""A job alternates if so many separate streaks of its runs are slow within so many commits of it."""


def alternates(is_slow: Sequence[bool]) -> bool:
    """Return whether a job returned to its usual level at least twice between slow commits. `is_slow`: of its commits.

    Code that changes once, even if it is reverted and comes back, has fewer slow streaks in so short a window.
    """
    windows = (is_slow[k : k + WINDOW] for k in range(max(1, len(is_slow) - WINDOW + 1)))
    return any(sum(slow for slow, _ in groupby(window)) >= FEWEST_STREAKS for window in windows)


def alternates_text(levels: tuple[float, float], *, states_node: bool) -> str:
    """Return `alternates between 205.9 and 292.8 ms: suspect the node`.

    `states_node`: the run states its node, so that it can be compared.
    """
    return f"alternates between {levels_text(levels)}{': suspect the node' if states_node else ', node not stated'}"


def of_job_that_alternates(ranked: Iterable[RankedSuspect], levels: tuple[float, float]) -> tuple[RankedSuspect, ...]:
    """Return the suspects of a job that alternates between two levels (ms): code is unlikely, and none is likely."""

    def support(item: RankedSuspect) -> Support:
        if item.suspect.axis == "code":
            return "unlikely"
        return "open" if item.support == "supported" else item.support

    suspects = (replace(item, alternates=levels, is_likely=False, support=support(item)) for item in ranked)
    return tuple(sorted(suspects, key=lambda item: SUPPORT_ORDER.index(item.support)))


def without_likely(ranked: Iterable[RankedSuspect]) -> tuple[RankedSuspect, ...]:
    """Return the suspects of a change that is itself in doubt: with their evidence, but none of them likely."""
    return tuple(replace(item, is_likely=False) for item in ranked)


def no_likelier(ranked: Iterable[RankedSuspect], shared: Iterable[RankedSuspect]) -> tuple[RankedSuspect, ...]:
    """Return the suspects of a run, likely only if they are so among those of its regression, which are `shared`."""
    doubtful = {_change(item) for item in shared if not item.is_likely}
    return tuple(replace(item, is_likely=item.is_likely and _change(item) not in doubtful) for item in ranked)


def _not_separated(ranked: Sequence[RankedSuspect]) -> list[RankedSuspect]:
    """Return the suspects with equal evidence for an upgrade and for the code, if only the jobs of both support it."""
    upgrade = next((item for item in ranked if item.support == "supported" and item.elsewhere and not item.past), None)
    code = next((item for item in ranked if item.suspect.field == COMMIT and item.support == "open"), None)
    if upgrade is None or code is None:
        return list(ranked)
    tied = {
        upgrade.name: replace(upgrade, support="open", beside=code.name),
        code.name: replace(code, elsewhere=upgrade.elsewhere, beside=upgrade.name),
    }
    return [tied.get(item.name, item) if item in (upgrade, code) else item for item in ranked]


def _changed_beside(code: RankedSuspect, ranked: Sequence[RankedSuspect]) -> bool:
    """Return whether the code is suspected only in stacks where a supported suspect changed as well.

    The code changes from run to run, so such stacks rather show the rarer change.
    """
    if code.suspect.axis != "code" or code.support != "supported" or code.past or code.elsewhere is None:
        return False
    rarer = (item for item in ranked if item.suspect.axis != "code" and item.support == "supported" and item.elsewhere)
    explained = {move.stack_key for item in rarer if item.elsewhere for move in item.elsewhere.moved}
    return {move.stack_key for move in code.elsewhere.moved} <= explained


def shared_suspects(jobs: Sequence[Iterable[RankedSuspect]]) -> tuple[SharedSuspect, ...]:
    """Return one suspect per change, best supported first. `jobs`: the suspects of each job of a regression."""
    by_change: dict[tuple[str, str, str], dict[int, RankedSuspect]] = {}
    for job, suspects in enumerate(jobs):
        for item in suspects:
            by_change.setdefault(_change(item), {}).setdefault(job, item)
    shared = []
    for by_job in by_change.values():
        is_likely = 2 * sum(item.is_likely for item in by_job.values()) > len(jobs)
        shortest_first = sorted(by_job.values(), key=lambda item: item.bad_at - item.good_at)
        best = min(shortest_first, key=_order)
        elsewhere = _together([item.elsewhere for item in by_job.values() if item.elsewhere])
        shared.append(SharedSuspect(replace(best, is_likely=is_likely, elsewhere=elsewhere), by_job))
    return tuple(sorted(shared, key=lambda item: _order(item.ranked)))


def _together(elsewhere: Sequence[OtherStacks]) -> OtherStacks | None:
    """Return what all of the jobs saw: of several jobs each is among the others of another."""
    if len(elsewhere) < 2:
        return elsewhere[0] if elsewhere else None
    moves = {(move.stack_key, move.job): move for item in elsewhere for move in item.moves}
    alternating = {(move.stack_key, move.job): move for item in elsewhere for move in item.alternating}
    return replace(
        elsewhere[0], moves=tuple(moves.values()), alternating=tuple(alternating.values()), with_own=True
    )  # fmt: skip


def _change(item: RankedSuspect) -> tuple[str, str, str]:
    difference = item.suspect.difference
    if difference is None:
        return item.suspect.field, "", ""
    if difference.field == COMMIT:  # jobs that ran different commits before may share the slow one
        return COMMIT, "", item.bad or value_text(difference.b)
    return difference.field, value_text(difference.a), value_text(difference.b)


def _order(item: RankedSuspect) -> tuple[bool, int]:
    return not item.is_likely, SUPPORT_ORDER.index(item.support)


def value_text(stated: Stated | None) -> str:
    """Return a side of a difference as it is stored with a verdict, for later lookups."""
    return "" if stated is None else shown(stated.value)[:MOST_VALUE]


def _of_contrast(contrast: MeasuredContrast | None) -> tuple[Suspect, ...]:
    if contrast is None:
        return ()
    comparability = contrast.comparability
    differ = (*comparability.stack, *comparability.knobs)
    reason = suspect_reason(len(differ), comparability)
    code = (
        Suspect(difference.axis, difference.field, ALL_CHANGES, difference) for difference in comparability.other_code
    )
    return (*(Suspect(difference.axis, difference.field, reason, difference) for difference in differ), *code)


def _support(change: float | None, past: PastResults | None, elsewhere: OtherStacks | None) -> Support:
    votes = _vote_of_past(change, past) + _vote_of_stacks(elsewhere)
    return "supported" if votes > 0 else "unlikely" if votes < 0 else "open"


def _vote_of_past(change: float | None, past: PastResults | None) -> int:
    if past is None or change is None:
        return 0
    measured, wanted = math.log1p(past.median_pct / 100), math.log1p(change / 100)
    alike = past.slower if change > 0 else past.n - past.slower
    if measured * wanted > 0 and abs(measured) >= max(RELEVANT_SHIFT, EXPLAINS * abs(wanted)):
        return 1 if alike >= AGREE * past.n else 0
    return -1 if measured * wanted <= 0 or abs(measured) < RELEVANT_SHIFT else 0


def _vote_of_stacks(elsewhere: OtherStacks | None) -> int:
    """Return 1 if most moved like this one, -1 if most stayed the same and none moved, else 0.

    A slowdown that is not confirmed, or began before, shows no move.
    """
    if elsewhere is None:
        return 0
    if 2 * len(elsewhere.moved) > len(elsewhere.moves):
        return 1
    has_moved = bool(elsewhere.of("slower") or elsewhere.of("faster"))
    return -1 if not has_moved and 2 * len(elsewhere.of("same")) > len(elsewhere.moves) else 0


def _moved_most(elsewhere: OtherStacks | None) -> bool:
    """Return whether most of the stacks with the same change moved, this one included."""
    return elsewhere is None or 2 * (len(elsewhere.moved) + 1) > len(elsewhere.moves) + 1


def unaffected_text(runs: Sequence[int]) -> str:
    """Return `2 earlier runs with it were not affected: #246, #240`."""
    named = some_of([f"#{run}" for run in runs], _MOST_NAMED)
    verb = "was" if len(runs) == 1 else "were"
    return f"{plural(len(runs), 'earlier run')} with it {verb} not affected: {named}"


def _past_sentence(past: PastResults) -> str:
    change = change_text(past.median_pct, past.low_pct, past.high_pct)
    if past.n == 1:
        return f"One A/B: {change.figure}."
    return f"Median of {past.n} A/Bs on {plural(len(past.stacks), 'stack')}: {change.figure} (each {change.interval})."


def _stacks_sentence(elsewhere: OtherStacks) -> str:
    """Return `Other jobs with the same change: 5 slower, 11 faster, 2 the same, 3 inconclusive.`

    With several GPU models, each number names its own: `5 slower (A100)`. Then, those that alternate.
    """
    # The page of a regression lists jobs.
    who = "Jobs" if elsewhere.with_own else f"Other {elsewhere.noun}s"
    moves, n = (*elsewhere.moves, *elsewhere.alternating), len(elsewhere.alternating)
    are_mixed = len({move.gpu for move in moves}) > 1

    def count(move: Move) -> str:
        own = [item for item in moves if item.move == move]
        gpus = sorted({item.gpu or "unknown GPU" for item in own})
        where = f" ({', '.join(gpus)})" if are_mixed else ""
        return f"{len(own)} {'the same' if move == 'same' else move.replace('_', ' ')}{where}" if own else ""

    counted = ", ".join(filter(None, map(count, MOVES)))
    verb = plural(n, "alternates", "alternate", number=False)
    return f"{who} with the same change: {counted}.{f' {n} of them {verb}.' if n else ''}"


def _left_sentence(item: RankedSuspect) -> str:
    """Return `The container is unlikely, so the code remains.`"""
    if not item.cleared:
        return "Nothing else is known to differ."
    verb = plural(len(item.cleared), "is", "are", number=False)
    return f"The {' and '.join(item.cleared)} {verb} unlikely, so the {item.name} remains."
