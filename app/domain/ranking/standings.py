"""What is kept of a stack: for each class of runs and each floor of evidence, one board of its dispatchers.

These values are stored as they are (JSON by their types) and served; nothing in them is computed again for a page.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from app.domain.detection import DroppedRun
from app.domain.ranking.duels import Duel
from app.domain.ranking.eligibility import Refusal
from app.domain.ranking.places import Place

Reading = Literal["leader", "tie", "directional", "not_compared", "only_measurement", "nothing_ranked"]
"""leader            one dispatcher is clearly better than every other one
tie               nobody is clearly better than all others
directional       it would be one of the two, but rests on runs that are too short
not_compared      a dispatcher was measured only before or after a change of the stack's speed: never beside the others
only_measurement  a single dispatcher was measured: this is not a ranking
nothing_ranked    several were seen, none well enough"""

GainKind = Literal["matched_ab", "side_by_side", "unknown"]
REFERENCE = "alltoall"
"""What gains are measured against: the dispatcher that every container has."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval over launches of the job; without one for memory."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Runs of a stack between two changes of its speed: the code that a board compares dispatchers on.

    `first_at` and `last_at`: places in the history of the first and last of the `runs` that stand on the board.
    `changes_since`: how often the speed of the stack changed after it; `changed_at`: the place of the first run after
    the first of these changes, None where there is none.
    """

    first_at: datetime
    last_at: datetime
    runs: int
    changes_since: int = 0
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """A dispatcher with results, none of them of the board's stretch: not compared there, and without a place.

    Its figure is of its own newest stretch. `days` and `changes`: how far its last run lies from the runs of the board;
    `before`: it is the older side. `beaten_by`: who of the board was clearly faster when both were measured on one
    stretch last; `never_met`: who of the board was never measured on one with it.
    """

    dispatcher: str
    runs: tuple[str, ...]
    step_time_ms: Interval
    directional: bool
    last_at: datetime
    days: float
    changes: int
    before: bool
    beaten_by: tuple[str, ...]
    never_met: tuple[str, ...]
    sentence: str
    ep: int | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """Against the best configuration of `over`. Percentages are of throughput, with the test's 99 % interval.

    `kind`: matched_ab when the two differ in the dispatcher alone, else side_by_side with `differs_in`; unknown when
    their contracts were not at hand. `memory_more_pct`: None where it is unknown on a side.
    """

    over: str
    duel: Duel
    kind: GainKind
    differs_in: tuple[str, ...]
    memory_more_pct: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration of a dispatcher. `duel`: against the best one; None for the best itself."""

    config_key: str
    runs: int
    step_time_ms: Interval
    directional: bool
    duel: Duel | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A dispatcher by its best configuration. `place` None when this is no ranking.

    `runs`: names of the runs behind it, oldest first, and `validated_runs` how many of them are validated. `level`:
    the result's. `unproven`: no log shows which dispatcher ran. `configurations`: all that were measured, best first.
    `left_out`: the newest eligible runs of the configuration that do not stand for it. `inferred`: that it ran is
    concluded from iterations, in all of its runs; no line of a log proves it. `from_prior`: there is one run, so its
    interval is how much launches of the family vary. `last_at`: its newest run's place in the history. `newest`: its
    step time on a newer stretch than the board's, None where it has none. `worse_loss_than`: dispatchers of the board
    whose loss is clearly better, over iterations that both have.
    """

    dispatcher: str
    place: Place | None
    config_key: str
    runs: tuple[str, ...]
    validated_runs: int
    step_time_ms: Interval
    tokens_per_s_per_gpu: Interval | None
    tflops_per_gpu: Interval | None
    peak_memory_gib: float | None
    memory_headroom_pct: float | None
    level: str
    directional: bool
    unproven: bool
    ep: int | None
    gain: Gain | None
    configurations: tuple[Configuration, ...]
    left_out: tuple[DroppedRun, ...] = ()
    inferred: bool = False
    from_prior: bool = False
    last_at: datetime | None = None
    newest: Interval | None = None
    worse_loss_than: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A dispatcher that was seen running, in a run that may not be ranked."""

    dispatcher: str
    run: str
    step_time_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class MissingDispatcher:
    """A dispatcher whose package is not in the container, with the runs that show it, newest first.

    `ep`: as they state it, else as all other runs of the stack do.
    """

    dispatcher: str
    runs: tuple[str, ...]
    ep: int | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """The ranking of one stack, one routing mode and one semantic class, from evidence of `floor` and better.

    `entries`: fastest first. `by_memory`: places by peak memory, least first; empty where it is unknown somewhere.
    `flops_differ`: the entries count other work in a step, so TFLOP/s/GPU must not order them. `below_floor`: how many
    runs the floor left out. `stretch`: what all its figures are of, None without any. `outside`: dispatchers that were
    measured on other stretches only. `unranked`: of each dispatcher that was asked for or ran and is none of these, the
    newest run with the reason why it is ranked nowhere.
    """

    floor: str
    routing_mode: str
    semantic_class: str
    reading: Reading
    sentence: str
    leaders: tuple[str, ...]
    entries: tuple[Entry, ...]
    duels: tuple[Duel, ...]
    by_memory: tuple[Place, ...]
    glimpses: tuple[Glimpse, ...]
    flops_differ: bool
    below_floor: int
    remarks: tuple[str, ...] = ()
    stretch: Stretch | None = None
    outside: tuple[Outside, ...] = ()
    unranked: tuple[Refusal, ...] = ()

    @property
    def is_ranking(self) -> bool:
        return len(self.entries) > 1

    def entry(self, dispatcher: str) -> Entry | None:
        return next((one for one in self.entries if one.dispatcher == dispatcher), None)


@dataclass(frozen=True, slots=True)
class StackStandings:
    """All that the leaderboards know of a stack. `refused`: its newest runs that may be ranked nowhere, and why.

    `refused_count`: all of them. `fallbacks`: runs that count for another dispatcher than they asked for. `partial`:
    some figures are of other definitions and wait to be computed again, so a leader may change without any new run.
    """

    stack_key: str
    hardware: str
    family: str
    precision: str
    boards: tuple[Board, ...]
    missing: tuple[MissingDispatcher, ...] = ()
    refused: tuple[Refusal, ...] = ()
    refused_count: int = 0
    fallbacks: tuple[Refusal, ...] = field(default=())
    partial: bool = False

    def boards_at(self, floor: str) -> tuple[Board, ...]:
        return tuple(board for board in self.boards if board.floor == floor)

    def board(self, floor: str, routing_mode: str, semantic_class: str) -> Board | None:
        wanted = (routing_mode, semantic_class)
        found = (one for one in self.boards_at(floor) if (one.routing_mode, one.semantic_class) == wanted)
        return next(found, None)


def missing_names(missing: Iterable[MissingDispatcher]) -> tuple[str, ...]:
    return tuple(one.dispatcher for one in missing)
