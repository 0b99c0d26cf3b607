"""`/leaderboards`: a matrix of model families and GPUs; and the page of a pair that has no run yet."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlencode

from sqlmodel import Session

from app.domain.contract.values import KNOWN_MODELS, gpu_sku
from app.domain.numbers import gain_change, grouped, plural, time_saved
from app.domain.ranking.across import ClassSummary
from app.domain.ranking.experiments import DispatcherExperiment, contradictions
from app.domain.ranking.runs import UNKNOWN_HARDWARE, Family, family_of, hardware_of, slug
from app.domain.ranking.standings import REFERENCE
from app.domain.text import some_of
from app.errors import NotFound
from app.leaderboards.picture import other_knobs, published_range
from app.pipeline.notify import LeaderUpdate, leader_updates
from app.storage.experiments import dispatcher_experiments
from app.storage.references import Reference, references
from app.storage.standings import (
    Key,
    RanIn,
    StandingsFilters,
    check_project,
    class_summaries,
    containers_of,
    hardware_and_families,
    newest_containers,
)
from app.web.lists import FilterQuery

NEWEST = 10
Outcome = Literal["won", "equal", "undecided", "only", "unranked", "published"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The leader of a family on a GPU. `dispatcher`: the winner, the only one measured, or the first of two undecided;
    `margin`: its gain over `over`: the next place of a single ranking as on its board, else alltoall. Where an A/B did
    not find the first faster, all three are those of the A/B.

    `tied`: the dispatchers that share the first place; `more_runs`: of each, to decide between them, None if they are
    equal or no number would; `contradictions`: A/Bs that did not find the first faster than `over`, so that it is
    undecided; `generated`: a run of it was not measured. `container`, `newer`: of its only ranking, and a newer one
    without a ranking, both empty if there is none. `once`: of a winner and the second place of a single ranking, those
    with one run.
    """

    outcome: Outcome
    href: str
    board: str
    dispatcher: str = ""
    margin: str = ""
    runs: int = 0
    published: str = ""
    tied: tuple[str, ...] = ()
    more_runs: int | None = None
    over: str = REFERENCE
    contradictions: tuple[str, ...] = ()
    generated: bool = False
    container: str = ""
    newer: str = ""
    once: tuple[str, ...] = ()

    @property
    def leads(self) -> bool:
        """Return whether the lead is confirmed: with runs of both sides, in the newest container."""
        return self.outcome == "won" and not self.once and not self.newer


@dataclass(frozen=True, slots=True)
class FamilyRow:
    family: str
    cells: tuple[Cell | None, ...]


class IndexFilters(FilterQuery):
    """Filters of the index; empty means any. `family` and `gpu`: names or slugs. `own`: only families with own runs."""

    max_text = 230
    refuses_unknown = True

    project: str = ""
    family: str = ""
    gpu: str = ""
    own: str = ""


@dataclass(frozen=True, slots=True)
class LeaderboardIndex:
    """`gpus`: columns by name. `families`, `hardware`: choices of the filters.

    `unplaced`: leaderboards of an unknown GPU that rank nothing.
    """

    filters: IndexFilters
    gpus: tuple[str, ...]
    rows: tuple[FamilyRow, ...]
    families: tuple[str, ...]
    hardware: tuple[str, ...]
    stacks: int
    rankings: int
    boards: int
    news: tuple[LeaderUpdate, ...]
    unplaced: tuple[Cell, ...]

    @property
    def answer(self) -> str:
        if not self.boards:
            project = self.filters.project
            return f"No stack of {project} is ranked yet." if project else "No stack is ranked yet."
        if not self.rows:
            return "No model family matches these filters."
        equal, undecided = (sum(cell.outcome == outcome for cell in self._cells) for outcome in ("equal", "undecided"))
        unconfirmed = sum(cell.outcome == "won" and not cell.leads for cell in self._cells)
        ranked = equal + undecided + unconfirmed + sum(count for _, count in self.decided)
        if not ranked:
            return f"No ranking yet in {plural(self.boards, 'leaderboard')}."
        boards = plural(ranked, "leaderboard")
        open_boards = ", ".join(
            plural(count, *words)
            for count, words in (
                (undecided, ("is undecided", "are undecided")),
                (equal, ("has equal leaders", "have equal leaders")),
                (unconfirmed, ("is unconfirmed", "are unconfirmed")),
            )
            if count
        )
        if not self.decided:
            return f"No dispatcher leads in {boards}: {open_boards}."
        (first, count), *others = self.decided
        leaders = some_of([f"{first} leads {count:,} of {boards}", *(f"{name} {led:,}" for name, led in others)])
        return f"{leaders}; {open_boards}." if open_boards else f"{leaders}."

    @property
    def undecided(self) -> Cell | None:
        """Return the undecided leaderboard that needs the fewest further runs; None if no number would decide."""
        undecided = [cell for cell in self._cells if cell.more_runs]
        return min(undecided, key=lambda cell: cell.more_runs or 0, default=None)

    def columns(self, rows: Iterable[FamilyRow]) -> list[int]:
        """Return the indices in `gpus` of the columns with a cell in any row."""
        return [place for place in range(len(self.gpus)) if any(row.cells[place] for row in rows)]

    @property
    def decided(self) -> list[tuple[str, int]]:
        """Return the dispatchers that lead leaderboards, and how many each, most first."""
        return Counter(cell.dispatcher for cell in self._cells if cell.leads).most_common()

    @property
    def own(self) -> list[Cell]:
        """Return the leaderboards with own runs."""
        return [cell for cell in self._cells if cell.runs]

    @property
    def _cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells if cell]


Pair = tuple[str, str]
"""Slugs of hardware and family."""


@dataclass
class _Board:
    hardware: str
    family: str
    runs: int = 0
    generated: bool = False
    summaries: list[ClassSummary] = field(default_factory=list)
    published: list[Reference] = field(default_factory=list)


def _name_of(text: str, names: Iterable[str]) -> str:
    """Return the name with the same slug; the text itself if there is none."""
    return next((name for name in names if slug(name) == slug(text)), text)


def leaderboard_index(session: Session, filters: IndexFilters) -> LeaderboardIndex:
    """Return the matrix. Raises NotFound for an unknown project."""
    check_project(session, filters.project)
    own = hardware_and_families(session, filters.project)
    boards = {
        (item.hardware_slug, item.family_slug): _Board(item.hardware, item.family, item.runs, item.generated)
        for item in own
    }
    summaries = class_summaries(session, StandingsFilters(project=filters.project))
    for summary in summaries:
        for board in boards.values():
            if (board.hardware, board.family) == (summary.hardware, summary.family):
                board.summaries.append(summary)
    if not filters.own:
        for reference in references(session, filters.project or None):
            hardware, family = _pair_of(reference)
            board = boards.setdefault((hardware.slug, family.slug), _Board(hardware.name, family.name))
            board.published.append(reference)
    families = _ordered((board.family, board.runs) for board in boards.values())
    gpus = _ordered((board.hardware, board.runs) for board in boards.values())
    filters = filters.model_copy(
        update={"family": _name_of(filters.family, families), "gpu": _name_of(filters.gpu, gpus)}
    )
    keys = {key for summary in summaries for key in _only_ranked(summary)}
    experiments = dispatcher_experiments(session, keys, filters.project)
    newest, ran_in = newest_containers(session, filters.project), containers_of(session, keys)
    by_name = {}
    for pair, board in boards.items():
        ranked = [ran_in[key] for summary in board.summaries for key in _only_ranked(summary) if key in ran_in]
        before, now = _newer_container(ranked[0] if len(ranked) == 1 else None, newest.get(pair))
        cell = _cell(pair, board, filters.project, experiments)
        cell = replace(cell, generated=board.generated, container=before, newer=now)
        by_name[board.hardware, board.family] = cell
    unknown = UNKNOWN_HARDWARE.name
    unplaced = tuple(
        cell for (gpu, family), cell in by_name.items() if gpu == unknown and filters.family in ("", family)
    )
    if filters.gpu or not all(cell.outcome in ("only", "unranked") for cell in unplaced):
        unplaced = ()
    columns = tuple(gpu for gpu in gpus if filters.gpu in ("", gpu) and not (unplaced and gpu == unknown))
    rows = tuple(
        FamilyRow(family, tuple(by_name.get((gpu, family)) for gpu in columns))
        for family in families
        if filters.family in ("", family)
    )
    return LeaderboardIndex(
        filters=filters,
        gpus=columns,
        rows=tuple(sorted((row for row in rows if any(row.cells)), key=_row_order)),
        families=families,
        hardware=gpus,
        stacks=sum(item.stacks for item in own),
        rankings=sum(item.rankings for item in own),
        boards=len(own),
        news=leader_updates(session, project=filters.project, most=NEWEST),
        unplaced=unplaced,
    )


def _ordered(names: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the names with the most own runs first, then by name."""
    runs: dict[str, int] = {}
    for name, count in names:
        runs[name] = runs.get(name, 0) + count
    return tuple(sorted(runs, key=lambda name: (-runs[name], name)))


_ORDER: Mapping[Outcome, int] = {"won": 0, "undecided": 1, "equal": 1, "only": 2, "published": 3, "unranked": 4}


def _row_order(row: FamilyRow) -> int:
    """Return the sort key of a family: with a winner first, then other own results, published figures and the rest."""
    return min(_ORDER[cell.outcome] for cell in row.cells if cell)


def _pair_of(reference: Reference) -> tuple[Family, Family]:
    return hardware_of(str(reference.point.contract["gpu"])), reference.point.family


def _only_ranked(summary: ClassSummary) -> set[str]:
    """Return the key of the stack with the only ranking; several where the same dispatchers ran in other stacks."""
    placed = [set(tally.stacks) for tally in summary.overall.tallies if tally.won or tally.tied or tally.lost]
    return set.intersection(*placed) if placed and summary.rankings == 1 else set()


def _newer_container(ranked: RanIn | None, newest: RanIn | None) -> tuple[str, str]:
    """Return the container of a ranking and a newer one, without their registries; empty if it ran in the newest."""
    if ranked is None or newest is None or newest[0] in ("", ranked[0]) or newest[1] <= ranked[1]:
        return "", ""
    return ranked[0].rpartition("/")[2], newest[0].rpartition("/")[2]


def _cell(pair: Pair, board: _Board, project: str, experiments: Mapping[Key, Sequence[DispatcherExperiment]]) -> Cell:
    href = f"/leaderboards/{pair[0]}/{pair[1]}" + (f"?{urlencode({'project': project})}" if project else "")
    published, name = published_range(board.published), f"{board.family} on {board.hardware}"
    if not board.runs:
        return Cell("published", href, name, published=published)
    outcome: Outcome
    ranked = [summary for summary in board.summaries if summary.rankings]
    if not ranked:
        names = {tally.dispatcher for summary in board.summaries for tally in summary.overall.tallies if tally.alone}
        outcome = "only" if len(names) == 1 else "unranked"
        only = next(iter(names)) if len(names) == 1 else ""
        return Cell(outcome, href, name, only, runs=board.runs, published=published)
    # Real training first; of several routing modes the one with the most rankings.
    best = max(ranked, key=lambda summary: (summary.semantic_class == "training_equivalent", summary.rankings))
    dispatcher, margin, over = _winner(best)
    if dispatcher:
        keys = _only_ranked(best)
        own = [item for (_, key), items in experiments.items() if key in keys for item in items]
        contradicted = contradictions(own, dispatcher, over)
        if not contradicted:
            tallies = best.overall.tallies if best.rankings == 1 else ()
            once = tuple(item for tally in tallies if tally.won for item in tally.once)
            return Cell("won", href, name, dispatcher, margin, board.runs, published, over=over, once=once)
        return Cell(
            "undecided", href, name, dispatcher, margin and f"{margin} than", board.runs, published, (dispatcher, over),
            over=over, contradictions=tuple(item.text for item in contradicted),
        )  # fmt: skip
    first = [tally for tally in best.overall.tallies if tally.tied or tally.won]
    tied = tuple(tally.dispatcher for tally in first)
    if all(tally.equal == tally.tied + tally.won for tally in first):
        return Cell("equal", href, name, runs=board.runs, published=published, tied=tied)
    few = min((tally.more_runs for tally in first if tally.more_runs), default=None)
    ahead = [(tally.dispatcher, gain_change(pct).than, rival) for tally in first for rival, pct in tally.rivals]
    leader, margin, over = ahead[0] if best.rankings == 1 and ahead else ("", "", REFERENCE)
    return Cell(
        "undecided", href, name, leader, margin, board.runs, published, tied,
        few, over,
    )  # fmt: skip


def _winner(summary: ClassSummary) -> tuple[str, str, str]:
    """Return who won most rankings, its gain, and over whom; empty if none is clearly ahead."""
    tallies = sorted(summary.overall.tallies, key=lambda tally: -tally.won)
    if not tallies or not tallies[0].won or (len(tallies) > 1 and tallies[1].won == tallies[0].won):
        return "", "", ""
    first = tallies[0]
    if summary.rankings == 1 and first.rivals:
        ((rival, ahead),) = first.rivals
        return first.dispatcher, gain_change(ahead).figure, rival
    if first.dispatcher == REFERENCE or first.gain is None:
        return first.dispatcher, "", REFERENCE
    low, high = first.gain.lowest_pct, first.gain.highest_pct
    least, most = gain_change(low).figure, gain_change(high).figure
    others = f" with {other_knobs(first.gain.other_knobs)}" if first.gain.other_knobs else ""
    if least == most:
        return first.dispatcher, f"{most}{others}", REFERENCE
    margin = f"{grouped(time_saved(low), 1) if low > 0 else least} to {most}{others}"
    return first.dispatcher, margin, REFERENCE


# --- Published figures of one pair.


@dataclass(frozen=True, slots=True)
class PublishedBar:
    """`share`: length of the bar from 0 to 1."""

    reference: Reference
    facts: str
    tflops: float
    share: float

    @property
    def is_bf16(self) -> bool:
        return self.reference.point.contract.get("precision") == "bf16"


@dataclass(frozen=True, slots=True)
class MissingBoard:
    """A model family on a GPU without runs. `common`: the facts that all bars share."""

    hardware: str
    family: str
    bars: tuple[PublishedBar, ...]
    published: int
    common: str

    @property
    def answer(self) -> str:
        text = published_range([bar.reference for bar in self.bars])
        return f"No own runs yet. Published: {text} TFLOP/s/GPU." if text else "No own runs yet."

    @property
    def looks(self) -> str:
        """Return what hollow and filled bars mean; empty if all look the same."""
        return "hollow: bf16, filled: lower precision" if len({bar.is_bf16 for bar in self.bars}) > 1 else ""

    @property
    def plan_query(self) -> str:
        """Return the work of the fastest published figure for the planner; empty if the model's shape is unknown."""
        if self.family not in {family_of(model.name).name for model in KNOWN_MODELS}:
            return ""
        stated = self.bars[0].reference.point.contract if self.bars else {}
        work = {name: stated.get(name) or usual for name, usual in _PLANNED.items()}
        return urlencode({"model": self.family, "gpu": self.hardware} | work)


_MOST_BARS = 12
_PLANNED = {"gpus": 256, "seq_len": 4096}
_FACTS = {
    "gpus": "{} GPUs", "precision": "{}", "dispatcher": "{}", "seq_len": "seq {}", "mbs": "MBS {}",
    "gbs": "GBS {}", "container": "{}",
}  # fmt: skip


def missing_board(session: Session, hardware_slug: str, family_slug: str) -> MissingBoard:
    """Return the published figures for a pair without runs. Raises NotFound unless both are known."""
    points = references(session)
    pairs = [(reference, *_pair_of(reference)) for reference in points]
    models = [family_of(model.name) for model in KNOWN_MODELS]
    hardware = _named(hardware_slug, [pair[1] for pair in pairs])
    family = _named(family_slug, [*models, *(pair[2] for pair in pairs)])
    sku = gpu_sku(hardware_slug)
    if hardware is None and sku is not None and hardware_of(sku).slug == hardware_slug:
        hardware = hardware_of(sku)
    if hardware is None or family is None:
        raise NotFound("No stack of this hardware and model family has been ranked.")
    mine = [reference for reference, gpu, model in pairs if (gpu, model) == (hardware, family)]
    shown = sorted((item for item in mine if item.point.tflops_per_gpu), key=lambda item: -(_tflops(item)))[:_MOST_BARS]
    most = max(map(_tflops, shown), default=1.0)
    contracts = [item.point.contract for item in shown]
    differing = [name for name in _FACTS if len({contract.get(name) for contract in contracts}) > 1]
    shared = [name for name in _FACTS if name not in differing]
    bars = tuple(
        PublishedBar(item, _facts(item.point.contract, differing or _FACTS), _tflops(item), _tflops(item) / most)
        for item in shown
    )
    common = _facts(contracts[0], shared) if differing else ""
    return MissingBoard(hardware.name, family.name, bars, len(mine), common)


def _named(slug: str, families: Iterable[Family]) -> Family | None:
    return next((item for item in families if item.slug == slug), None)


def _tflops(reference: Reference) -> float:
    return reference.point.tflops_per_gpu or 0.0


def _facts(contract: Mapping[str, object], names: Iterable[str]) -> str:
    """Format the facts that are known, a container without its registry."""
    values = [(name, str(contract[name]).rpartition("/")[2]) for name in names if contract.get(name)]
    return ", ".join(_FACTS[name].format(value) for name, value in values)
