"""What is said of many stacks at once: who is ahead in how many, and between which values the gain lies."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.numbers import THIN, counted
from app.domain.ranking import ClassSummary, TallyGroup
from app.domain.ranking.sentences import listed
from app.leaderboards.words import EP_SIZES, label, range_text, routing_words

_MOST_TOLD = 2
"""Classes in the first sentence, real training first; each has its own below."""
NO_PRECISION = "precision unknown"


@dataclass(frozen=True, slots=True)
class GroupView:
    label: str
    group: TallyGroup


@dataclass(frozen=True, slots=True)
class ClassView:
    """All stacks of one routing mode and semantic class. `groups`: all of them, then by precision and EP size."""

    summary: ClassSummary
    routing: str
    sentence: str
    groups: tuple[GroupView, ...]


def class_view(summary: ClassSummary) -> ClassView:
    parts = [GroupView(_label(group), group) for group in summary.groups]
    # A single part is the whole: it gives its label to it.
    groups = [GroupView("all stacks", summary.overall), *parts] if len(parts) > 1 else parts
    return ClassView(summary, routing_words(summary.routing_mode), class_sentence(summary), tuple(groups))


def class_sentence(summary: ClassSummary) -> str:
    """`In 5 rankings deepep is clearly ahead 3 times, alltoall once; in 1 nobody is.`"""
    if not summary.rankings:
        return _none(summary.stacks)
    won = sorted(((one.won, one.dispatcher) for one in summary.overall.tallies if one.won), reverse=True)
    of = f"{counted(summary.rankings, 'ranking')} in {counted(summary.stacks, 'stack')}"
    nobody = summary.rankings - sum(wins for wins, _ in won)
    if not won:
        return f"{of}: nobody is clearly ahead in any of them."
    ahead = listed([f"{name} is clearly ahead in {wins:,}" for wins, name in won])
    return f"{of}: {ahead}" + (f"; nobody is in the other {nobody:,}." if nobody else ".")


def page_answer(summaries: Sequence[ClassSummary], total: int, evidence: str) -> str:
    """The first sentence of a leaderboard."""
    if not total:
        return "No stack matches."
    if len(summaries) == 1:
        return class_sentence(summaries[0])
    if not summaries:
        return f"{counted(total, 'stack')}, and none has a result at the evidence level {label(evidence)} or better."
    ranked = [one for one in summaries if one.rankings]
    if not ranked:
        return _none(total)
    ranked.sort(key=lambda one: one.semantic_class != "training_equivalent")
    return " ".join(f"{_class_words(one)}: {class_sentence(one)}" for one in ranked[:_MOST_TOLD])


def _none(stacks: int) -> str:
    where = "the stack does not have" if stacks == 1 else f"none of {stacks:,} stacks has"
    return f"No ranking yet: {where} two dispatchers with a result that may be ranked."


def _class_words(summary: ClassSummary) -> str:
    words = f"{routing_words(summary.routing_mode)}, {label(summary.semantic_class)}"
    return words[0].upper() + words[1:]


def gain_text(low_pct: float, high_pct: float) -> str:
    """Over how many stacks stands beside it: `−1.2 to 18.2 %`."""
    if low_pct == high_pct:
        return f"{range_text(low_pct, high_pct).partition(' to ')[0]}{THIN}%"
    return f"{range_text(low_pct, high_pct)}{THIN}%"


def _label(group: TallyGroup) -> str:
    return f"{group.precision or NO_PRECISION}, EP {EP_SIZES.get(group.ep_size or 'unknown', group.ep_size)}"
