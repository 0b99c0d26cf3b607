"""The baseline of a run with what differs, and why the other runs of its stack are none of it (`docs/verdicts.md`).

A pinned golden run comes first; then runs of the same config key in the current level of their history; then those of
the config key that the stack used last, whose knobs are then the first suspects. An experiment without any of these is
measured against the earlier run of its stack that comes nearest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.matching.comparability import Comparability, compare_contracts
from app.domain.matching.record import RunFacts, RunRecord
from app.domain.matching.selection import (
    BEYOND_NEWEST,
    OLDER_LEVEL,
    BaselineKind,
    BaselineRules,
    Selection,
    offered_to_experiment,
    select,
    with_reruns,
)

__all__ = ["BaselineChoice", "BaselineKind", "BaselineRules", "LeftOut", "choose_baseline", "listed"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An earlier run of the same stack that is not part of the baseline."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class BaselineChoice:
    """`runs`: oldest first, of one config key; none when `kind` is `none`. `comparability`: with the newest of them.

    `kind` is `nearest` for the one run, with its reruns, that an experiment is measured against for lack of a baseline.
    """

    kind: BaselineKind
    runs: tuple[RunFacts, ...]
    left_out: tuple[LeftOut, ...]
    comparability: Comparability | None


def choose_baseline(
    run: RunRecord, earlier: Sequence[RunRecord], rules: BaselineRules | None = None, prior: Prior = DEFAULT_PRIOR
) -> BaselineChoice:
    """The baseline of `run` among `earlier` runs, which are oldest first in the order of their commits.

    `prior`: what is known about run-to-run variation; it decides where the history's levels end.
    """
    selection = select(run, earlier, rules, prior)
    by_name = {one.run: one for one in earlier}
    if not selection.runs and run.purpose == "experiment":
        selection = _nearest(run, selection, offered_to_experiment(run, earlier))
    knobs = {one.config_key: one for one in earlier}
    comparability = compare_contracts(by_name[selection.runs[-1].run], run) if selection.runs else None
    return BaselineChoice(
        selection.kind, selection.runs, left_out(selection, [one.run for one in earlier], knobs), comparability
    )


def nearest_run(run: RunRecord, offered: Sequence[RunRecord]) -> RunRecord | None:
    """The one that differs in the fewest knobs, the newest among equals; `offered` is oldest first."""
    newest = {one.config_key: one for one in offered}
    apart = [(len(compare_contracts(one, run).knobs), -offered.index(one), one) for one in newest.values()]
    return min(apart, key=lambda found: found[:2])[2] if apart else None


def left_out(
    selection: Selection[RunFacts], names: Iterable[str], newest: Mapping[str, RunRecord]
) -> tuple[LeftOut, ...]:
    """Of the runs `names`, those of the stack that are no baseline, each with the reason.

    `newest`: a run of each config key, whose contract tells what is other about it.
    """
    passed = {one.run: one for one in selection.passed_over}
    found = ((name, selection.refused.get(name) or _passed_over(passed.get(name), selection, newest)) for name in names)
    return tuple(LeftOut(name, why) for name, why in found if why)


def _nearest(run: RunRecord, selection: Selection[RunRecord], offered: Sequence[RunRecord]) -> Selection[RunRecord]:
    nearest = nearest_run(run, offered)
    if nearest is None:
        return selection
    runs = tuple(with_reruns(nearest, offered))
    used = {one.run for one in runs}
    refused = {name: why for name, why in selection.refused.items() if name not in used}
    return Selection("nearest", runs, refused, selection.passed_over)


def _passed_over(run: RunFacts | None, selection: Selection[RunFacts], newest: Mapping[str, RunRecord]) -> str:
    """Why a usable run was not taken."""
    if run is None or not selection.runs:
        return ""
    if selection.golden:
        return f"run {selection.golden} is pinned as the golden baseline"
    if run.run in selection.beyond:
        return BEYOND_NEWEST
    chosen = selection.runs[-1].config_key
    if run.config_key == chosen:
        return OLDER_LEVEL
    if run.config_key in newest and chosen in newest:
        knobs = compare_contracts(newest[run.config_key], newest[chosen]).knobs
        return f"another configuration: {listed(one.field for one in knobs)}"
    return "another configuration"


def listed(fields: Iterable[str]) -> str:
    return ", ".join(f"`{field}`" for field in fields)
