"""What may have caused a difference between a run and its baseline, the likeliest first, each with its reason.

Knobs come first, because somebody turned them; then what the container holds; then the code; then the place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.domain.matching.comparability import Comparability
from app.domain.matching.differences import Axis, Difference
from app.domain.matching.record import RunFacts


@dataclass(frozen=True, slots=True)
class Suspect:
    """`field` is a contract field, `commit`, or empty for what no field tells; `difference` then is None."""

    axis: Axis
    field: str
    reason: str
    difference: Difference | None = None


def suspects(run: RunFacts, baseline: Sequence[RunFacts], comparability: Comparability) -> tuple[Suspect, ...]:
    """Suspects for `run` against `baseline` (oldest first, at least one run); `comparability` with the newest of it."""
    found = [
        *_members(comparability.stack),
        *_members(comparability.knobs),
        *(_beside(one) for one in comparability.beside if one.axis == "container"),
        *(_beside(one) for one in comparability.beside if one.axis == "code"),
        *_unstated_commits(run, baseline[-1]),
        *(_beside(one) for one in comparability.beside if one.axis == "place"),
    ]
    return tuple(found) or (Suspect("place", "", _NOTHING_DIFFERS),)


_NOTHING_DIFFERS = "Nothing that is known differs, the commit included: suspect the nodes, or chance, and run it again."


def _members(differences: Sequence[Difference]) -> Iterator[Suspect]:
    certain = sum(one.is_certain for one in differences)
    for one in sorted(differences, key=lambda one: not one.is_certain):
        if not one.is_certain:
            side = "baseline" if one.a is None else "run"
            reason = f"Nobody states it for the {side}, so it may have changed."
        elif certain == 1:
            reason = "The only field of the contract that is known to differ."
        else:
            reason = f"One of {certain} fields of the contract that differ."
        yield Suspect(one.axis, one.field, reason, one)


def _beside(one: Difference) -> Suspect:
    reasons = {
        "container_digest": "The container has the same name and another content.",
        "commit": "All code between the two commits.",
        "driver": "Another driver on the nodes.",
    }
    fallback = "All code between the two commits." if one.axis == "code" else "Another version in the container."
    return Suspect(one.axis, one.field, reasons.get(one.field, fallback), one)


def _unstated_commits(run: RunFacts, newest: RunFacts) -> Iterator[Suspect]:
    if not (run.commit and newest.commit):
        side = "either run" if not run.commit and not newest.commit else "the baseline" if run.commit else "this run"
        yield Suspect("code", "commit", f"Nobody states the commit of {side}, so the code may have changed.")
