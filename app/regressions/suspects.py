"""The suspects of a regression as cards: the change, the evidence from all members, and an action."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from app.domain.contract.values import shown
from app.domain.numbers import change_text, plural
from app.domain.run import Stated
from app.domain.text import range_address
from app.domain.verdict.comparability import COMMIT
from app.domain.verdict.evidence import RankedSuspect, unaffected_text
from app.domain.verdict.words import side_text

MOST_SHOWN = 3
"""Cards in sight; the others are folded."""
_MANY_COMMITS = 3
"""From this number on, the commits before a change are counted instead of named."""
_LABELS = {3: "likely", 2: "possible", 1: "unlikely"}


@dataclass(frozen=True, slots=True)
class NamedSuspect:
    """A suspect of a member. `run_id`: its first slow run. `before`: number and commit of the run before, if any."""

    ranked: RankedSuspect
    stack_key: str
    run_id: int
    commit: str
    before: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class SuspectCard:
    """`level`: 3 for likely to 1 for unlikely. `jobs`: how many name it. `action`: label and address, or None."""

    field: str
    axis: str
    before: str
    after: str
    reason: str
    level: int
    label: str
    evidence: tuple[str, ...]
    jobs: int
    action: tuple[str, str] | None


def suspect_cards(suspects: Iterable[NamedSuspect], compare_url: str, *, may_plan: bool) -> tuple[SuspectCard, ...]:
    """Return one card per change, best supported first. `may_plan`: the user may plan experiments."""
    groups: dict[tuple[str, str, str], list[NamedSuspect]] = {}
    for named in suspects:
        groups.setdefault(_change(named.ranked), []).append(named)
    cards = [_card(change, own, compare_url, may_plan) for change, own in groups.items()]
    return tuple(sorted(cards, key=lambda card: -card.level))


def _change(ranked: RankedSuspect) -> tuple[str, str, str]:
    difference = ranked.suspect.difference
    if difference is None:
        return ranked.suspect.field, "", ""
    # Jobs that ran different commits before may share the slow one.
    before = "" if difference.field == COMMIT else _side(difference.field, difference.a)
    return difference.field, before, _side(difference.field, difference.b)


def _side(field: str, stated: Stated | None) -> str:
    text = side_text(field, stated)
    # Without the registry, which says little, and the digest, which the pages of the runs show.
    return text.partition("@")[0].rpartition("/")[2] if field == "container" else text


def _card(change: tuple[str, str, str], own: Sequence[NamedSuspect], compare_url: str, may_plan: bool) -> SuspectCard:
    best = max(own, key=lambda named: _level(named.ranked))
    level = _level(best.ranked)
    suspect = best.ranked.suspect
    evidence = tuple(_evidence(best.ranked))
    action = _action(best, compare_url, may_plan)
    field, before, after = change
    if field == COMMIT:
        differences = (named.ranked.suspect.difference for named in (best, *own))
        commits = list(dict.fromkeys(_side(field, difference.a) for difference in differences if difference))
        before = ", ".join(commits) if len(commits) < _MANY_COMMITS else f"{len(commits)} commits"
    return SuspectCard(
        field, suspect.axis, before, after, suspect.reason, level, _LABELS[level], evidence, len(own), action
    )


def _level(ranked: RankedSuspect) -> int:
    return 3 if ranked.is_likely else 1 if ranked.support == "unlikely" else 2


def _evidence(ranked: RankedSuspect) -> Iterator[str]:
    if ranked.unaffected:  # decides, whatever other stacks did
        yield unaffected_text(ranked.unaffected)
        return
    if past := ranked.past:
        change = change_text(past.median_pct, past.low_pct, past.high_pct)
        yield f"{plural(past.n, 'A/B')} here: {change.figure}" + (f" ({change.interval})" if past.n > 1 else "")
    if (elsewhere := ranked.elsewhere) and elsewhere.n:
        if elsewhere.undecided == elsewhere.n:
            yield f"{plural(elsewhere.n, 'other stack')} inconclusive"
        else:
            tail = f", {elsewhere.undecided} inconclusive" if elsewhere.undecided else ""
            yield f"{len(elsewhere.moved)} of {plural(elsewhere.n, 'other stack')} moved as well{tail}"
    if ranked.is_likely and ranked.support == "open":
        yield "no other suspect left"
    elif not ranked.past and not ranked.elsewhere:
        yield "no evidence yet"


def _action(named: NamedSuspect, compare_url: str, may_plan: bool) -> tuple[str, str] | None:
    """Return the most useful action: an A/B that reverts a knob, the commits of a code change, else a comparison."""
    difference = named.ranked.suspect.difference
    if difference and difference.role == "config" and difference.is_certain and not named.ranked.past and may_plan:
        query = urlencode({"field": difference.field, "value": shown(difference.a.value) if difference.a else ""})
        return "Plan an A/B to confirm", f"/runs/{named.run_id}/experiments/new?{query}"
    if named.before is None:
        return None
    if named.ranked.suspect.axis == "code" and (address := range_address(compare_url, named.before[1], named.commit)):
        return "List the commits", address
    return "Compare before and after", f"/compare?a={named.before[0]}&b={named.run_id}"
