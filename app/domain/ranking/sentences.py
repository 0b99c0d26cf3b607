"""What a board says, in a sentence: who leads, who ties, and where no ranking may be read from it."""

from collections.abc import Sequence

from app.domain.numbers import counted, grouped, percent
from app.domain.ranking.duels import Duel
from app.domain.ranking.eligibility import DID_NOT_RUN, Refusal
from app.domain.ranking.ranked_run import NEED_A_PACKAGE
from app.domain.ranking.standings import Entry, Glimpse, Outside, Reading, missing_names
from app.domain.ranking.standings import MissingDispatcher as Missing


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def reading_sentence(
    reading: Reading,
    entries: Sequence[Entry],
    duels: Sequence[Duel],
    glimpses: Sequence[Glimpse],
    *,
    missing: Sequence[Missing] = (),
    others: Sequence[Outside] = (),
    unranked: Sequence[Refusal] = (),
) -> str:
    """What may be read from a board, and what may not."""
    match reading:
        case "only_measurement":
            told = _only(entries, glimpses, missing_names(missing), unranked)
        case "nothing_ranked":
            seen = listed(tuple(one.dispatcher for one in glimpses))
            told = f"{seen} ran, but no run of theirs may be ranked here."
        case "directional":
            told = f"Directional only: {_windows(entries)} Let full runs confirm it. {_order(entries, duels)}"
        case "not_compared":
            told = _order(entries, duels) if len(entries) > 1 else "This is not a ranking."
        case "tie":
            told = f"No clear winner: {_order(entries, duels)}"
        case "leader":
            told = _order(entries, duels)
    told = " ".join((told, *(one.sentence for one in others)))
    if missing:
        several = len(missing) > 1
        told += (
            f" {listed(missing_names(missing))} could not run: the {'packages are' if several else 'package is'} not in"
            f" the container. That says nothing about {'their' if several else 'its'} speed."
        )
    return told


def _only(
    entries: Sequence[Entry], glimpses: Sequence[Glimpse], missing: Sequence[str], unranked: Sequence[Refusal]
) -> str:
    """One dispatcher with a result. Others may have been seen in runs that count for nothing."""
    name = entries[0].dispatcher if entries else glimpses[0].dispatcher
    role = "fallback" if missing and name not in NEED_A_PACKAGE else "dispatcher"
    ran = [one.dispatcher for one in glimpses]
    ran += [one.dispatcher for one in unranked if one.why not in DID_NOT_RUN]
    others = tuple(dict.fromkeys(one for one in ran if one != name))
    told = f"{name} is the only measured {role} of this stack. This is not a ranking."
    if others:
        told = f"{name} is the only dispatcher of this stack with a result. This is not a ranking."
        told += f" {listed(others)} ran, but in no run that may be ranked here."
    if not entries:
        told += f" And its run may not be ranked: {glimpses[0].why}."
    elif entries[0].directional:
        told += " It is directional only: its runs are too short to tell whether they were warm."
    return told


def _windows(entries: Sequence[Entry]) -> str:
    short = tuple(entry.dispatcher for entry in entries if entry.directional)
    return f"the runs of {listed(short)} are too short to tell whether they were warm."


def _order(entries: Sequence[Entry], duels: Sequence[Duel]) -> str:
    """Who is better than whom, from the places of the entries."""
    first = [one for one in entries if one.place and not one.place.beaten_by]
    names = tuple(one.dispatcher for one in first)
    rest = tuple(one.dispatcher for one in entries if one.dispatcher not in names)
    if len(names) == 1:
        return f"{names[0]} is faster than {listed(rest)}, beyond what launches of a job vary."
    among = [one for one in duels if {one.first, one.second} <= set(names)]
    guarded = [one for one in among if one.worse_loss and one.tie_because]
    if guarded and len(names) == 2:
        return _guarded(guarded[0])
    equal = all(one.outcome == "equal" for one in among)
    close = f"are equally fast, {within(among[0]) if len(among) == 1 else 'to within 2 %'}"
    tied = f"{listed(names)} {close if equal else 'cannot be told apart yet'}."
    if len(names) > 2 and not _all_tie(first):
        tied = f"none of {listed(names)} is beaten, though not all of them tie with each other."
    return f"{tied} {listed(rest)} {'is' if len(rest) == 1 else 'are'} slower." if rest else tied


def _guarded(duel: Duel) -> str:
    """One is faster, and its loss is worse."""
    faster = duel if duel.worse_loss == duel.first else duel.turned()
    return (
        f"{faster.first} is faster than {faster.second}, but its loss is {percent(faster.loss_delta_pct or 0.0)} worse:"
        " a faster run with a worse loss is no improvement."
    )


def _all_tie(entries: Sequence[Entry]) -> bool:
    return all(len(one.place.ties) >= len(entries) - 1 for one in entries if one.place)


def gain_sentence(name: str, duel: Duel, memory_more_pct: float | None, memory_clear: bool) -> str:
    """`deepep has 18.2 % more throughput than alltoall (16.0 to 20.4), but needs 12.0 % more memory.`"""
    memory = _memory(duel, memory_more_pct) if memory_clear and memory_more_pct is not None else ""
    short = " Directional only." if duel.directional else ""
    if duel.tie and duel.worse_loss and duel.tie_because:
        return f"{_guarded(duel)} Throughput of {name}: {percent(duel.gain_pct)} more ({_range(duel)}){memory}.{short}"
    if duel.tie:
        return f"{name} {_tied(duel)}{memory.replace(', but', ', and', 1)}.{short}"
    faster = duel.outcome == "first"
    low, high = duel.low_pct or 0.0, duel.high_pct or 0.0
    ends = (low, high) if faster else (-high, -low)
    side = "more" if faster else "less"
    interval = f"({percent(ends[0])} to {percent(ends[1])})"
    return f"{name} has {percent(abs(duel.gain_pct))} {side} throughput than {duel.second} {interval}{memory}.{short}"


def _tied(duel: Duel) -> str:
    because = f": {duel.tie_because}" if duel.tie_because else ""
    if duel.outcome == "equal":
        return f"is as fast as {duel.second}, {within(duel)}{because}"
    more = f"; {counted(duel.more_runs, 'more run')} of each would decide" if duel.more_runs else ""
    return f"cannot be told apart from {duel.second} in speed{because} ({_range(duel)} throughput{more})"


def within(duel: Duel) -> str:
    """Of an `equal` pair, with the interval that says so: `to within 2 % (-1.2 to 0.9 % by two one-sided tests)`."""
    ends = f"{grouped(duel.decides_low_pct or 0.0, 1)} to {percent(duel.decides_high_pct or 0.0)}"
    return f"to within 2 % ({ends} by two one-sided tests)"


def _memory(duel: Duel, more_pct: float) -> str:
    """`but` where memory and speed disagree."""
    worse_memory = more_pct > 0
    disagree = worse_memory == (duel.outcome == "first")
    return (
        f", {'but' if disagree else 'and'} needs {percent(abs(more_pct))} {'more' if worse_memory else 'less'} memory"
    )


def _range(duel: Duel) -> str:
    return f"{percent(duel.low_pct or 0.0)} to {percent(duel.high_pct or 0.0)}"
