"""Tells a crash loop from a resume: starts that all begin at the same point have reached nothing that could be kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from app.domain.merge.order import Part
from app.domain.run import Problem, Slice

MIN_STARTS = 3
"""One retry is normal, two are bad luck."""

_GOOD_ENDS = frozenset({"training_done", "exit_duration", "exit_signal", "exit_iteration", "checkpoint_saved"})
"""After one of these a later start begins further on, or none is needed."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A start from a checkpoint (0: from the beginning), and whether something of it was kept."""

    checkpoint: int
    got_on: bool
    file: int
    line: int


def crash_loops(slices: tuple[Slice, ...], files: Sequence[Part]) -> tuple[tuple[Slice, ...], tuple[Problem, ...]]:
    """The slices, those of a crash loop marked, and a sentence on each loop. `files` are in the order of the run."""
    starts = list(_told_starts(files)) or [
        _Start(piece.first_iteration - 1, False, 0, 0) for piece in slices if piece.first_iteration
    ]
    marked, problems = list(slices), []
    for checkpoint, group in groupby(starts, key=lambda start: start.checkpoint):
        tries = list(group)
        failed = [start for start in tries[:-1] if not start.got_on]
        if tries[-1] is starts[-1] and not tries[-1].got_on and not _went_on(slices, checkpoint):
            failed.append(tries[-1])
        if len(failed) < MIN_STARTS:
            continue
        at = f"the checkpoint of iteration {checkpoint}" if checkpoint else "the beginning"
        problems.append(
            Problem(
                "crash loop",
                f"The job was started {len(tries)} times from {at}, and {len(failed)} of these starts got no further: "
                "nothing was kept of them. This is a crash loop, not a resume.",
                line=failed[-1].line,
                file=failed[-1].file,
            )
        )
        marked = [
            replace(piece, crash_loop=True) if piece.first_iteration == checkpoint + 1 else piece for piece in marked
        ]
    return tuple(marked), tuple(problems)


def _told_starts(files: Sequence[Part]) -> Iterator[_Start]:
    """Starts that the life-cycle lines tell of, each once, whichever ranks told of it."""
    seen: set[str] = set()
    for part in files:
        checkpoint, open_start = 0, None
        for event in part.log.events:
            if event.kind == "checkpoint_loaded":
                checkpoint = event.iteration or 0
            elif event.kind == "training_started" and event.text not in seen:
                seen.add(event.text)
                if open_start is not None:
                    yield open_start
                open_start = _Start(checkpoint, False, part.file, event.line)
                checkpoint = 0
            elif event.kind in _GOOD_ENDS and open_start is not None:
                open_start = replace(open_start, got_on=True)
        if open_start is not None:
            yield open_start


def _went_on(slices: Sequence[Slice], checkpoint: int) -> bool:
    """True when the last slice printed more than any earlier one that began where it did."""
    if not slices:
        return False
    earlier = [piece.last_iteration for piece in slices[:-1] if piece.first_iteration == checkpoint + 1]
    return bool(earlier) and slices[-1].last_iteration > max(earlier)
