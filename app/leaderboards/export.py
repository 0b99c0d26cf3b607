"""The tables of a leaderboard as CSV: a row for each result, for each gain, for each change at a head."""

from collections.abc import Iterable, Sequence

from app.domain.ranking import Board, Entry, HeadChange
from app.domain.ranking.incremental import told
from app.domain.ranking.standings import Interval
from app.storage.leader_changes import LeaderChange
from app.storage.standings import KeptStandings
from app.web.csv_text import csv_text

_OF_BOARD = (
    "stack_key", "stack", "project", "seq_len", "gbs", "mbs", "routing_mode", "semantic_class", "floor", "reading",
)  # fmt: skip
_STANDING = (
    *_OF_BOARD, "first_place", "last_place", "dispatcher", "ties_with", "config_key", "evidence_level", "directional",
    "unproven", "inferred", "worse_loss_than", "ep", "n_runs", "interval_from_prior", "last_measured_at",
    "step_time_ms", "step_time_ms_ci_low", "step_time_ms_ci_high", "tokens_per_s_per_gpu",
    "tokens_per_s_per_gpu_ci_low", "tokens_per_s_per_gpu_ci_high", "tflops_per_gpu", "tflops_per_gpu_ci_low",
    "tflops_per_gpu_ci_high", "peak_memory_gib", "memory_headroom_pct", "runs", "not_ranked_because",
)  # fmt: skip
_GAIN = (
    *_OF_BOARD, "dispatcher", "over", "outcome", "gain_pct", "gain_pct_ci_low", "gain_pct_ci_high", "memory_more_pct",
    "kind", "differs_in", "directional", "more_runs", "tie_because",
)  # fmt: skip
_CHANGE = (
    "at", "noticed_at", "project", "stack_key", "stack", "routing_mode", "semantic_class", "floor", "before", "after",
    "because", "run_id",
)  # fmt: skip


def standings_csv(items: Sequence[KeptStandings]) -> str:
    """What stands in no ranking has a row, too: dispatchers that could not run, or ran in no run that counts."""
    return csv_text([_STANDING, *(row for one, board in _boards(items) for row in _standing_rows(one, board))])


def gains_csv(items: Sequence[KeptStandings]) -> str:
    return csv_text([_GAIN, *(row for one, board in _boards(items) for row in _gain_rows(one, board))])


def leaders_csv(changes: Iterable[LeaderChange]) -> str:
    return csv_text([_CHANGE, *(_change_row(one, one.change) for one in changes)])


def _boards(items: Sequence[KeptStandings]) -> Iterable[tuple[KeptStandings, Board]]:
    return ((one, board) for one in items for board in one.standings.boards)


def _of_board(kept: KeptStandings, board: Board) -> tuple[object, ...]:
    work = tuple(kept.about.get(name) for name in ("seq_len", "gbs", "mbs"))
    head = (kept.stack_key, kept.name, kept.project, *work)
    return (*head, board.routing_mode, board.semantic_class, board.floor, board.reading)


def _standing_rows(kept: KeptStandings, board: Board) -> Iterable[tuple[object, ...]]:
    head = _of_board(kept, board)
    for entry in board.entries:
        yield (*head, *_entry_cells(entry))
    ranked = {entry.dispatcher for entry in board.entries}
    absent = [(one.dispatcher, one.runs, "not available in the container") for one in kept.standings.missing]
    absent += [(one.dispatcher, (one.run,), one.why) for one in board.glimpses]
    absent += [(one.dispatcher, one.runs, one.sentence) for one in board.outside]
    known = {name for name, _, _ in absent}
    absent += [(one.dispatcher, (one.run,), one.sentence) for one in board.unranked if one.dispatcher not in known]
    for name, runs, why in absent:
        if name not in ranked:
            unmeasured = (None,) * (len(_STANDING) - len(head) - 5)
            yield (*head, None, None, name, *unmeasured, " ".join(runs), why)


def _entry_cells(entry: Entry) -> tuple[object, ...]:
    place = entry.place
    return (
        place and place.first, place and place.last, entry.dispatcher, " ".join(place.ties) if place else None,
        entry.config_key, entry.level, entry.directional, entry.unproven, entry.inferred,
        " ".join(entry.worse_loss_than) or None, entry.ep, len(entry.runs), entry.from_prior,
        entry.last_at and entry.last_at.isoformat(),
        *_interval(entry.step_time_ms), *_interval(entry.tokens_per_s_per_gpu), *_interval(entry.tflops_per_gpu),
        entry.peak_memory_gib, entry.memory_headroom_pct, " ".join(entry.runs), None,
    )  # fmt: skip


def _gain_rows(kept: KeptStandings, board: Board) -> Iterable[tuple[object, ...]]:
    for entry in board.entries:
        if (gain := entry.gain) is not None:
            duel = gain.duel
            yield (
                *_of_board(kept, board), entry.dispatcher, gain.over, duel.outcome, duel.gain_pct, duel.low_pct,
                duel.high_pct, gain.memory_more_pct, gain.kind, " ".join(gain.differs_in), duel.directional,
                duel.more_runs, duel.tie_because or None,
            )  # fmt: skip


def _change_row(one: LeaderChange, change: HeadChange) -> tuple[object, ...]:
    head = change.after
    return (
        one.happened_at.isoformat(), one.at.isoformat(), one.project, one.stack_key, one.name, head.routing_mode,
        head.semantic_class, one.floor, told(change.before) if change.before else None, told(head),
        head.because or None, one.run_id,
    )  # fmt: skip


def _interval(figure: Interval | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if figure is None else (figure.value, figure.low, figure.high)
