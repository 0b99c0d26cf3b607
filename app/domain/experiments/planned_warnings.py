"""What to know of a plan before anybody pays for its runs."""

from collections.abc import Iterator, Mapping, Sequence

from app.domain.contract.fields import FIELDS
from app.domain.experiments.sizing import MOST_EACH
from app.domain.experiments.values import KnobChange, PlannedChange, Sizing
from app.domain.matching import RunRecord, compare_contracts
from app.domain.numbers import THIN, counted
from app.domain.rules.engine import Suggestion
from app.domain.run import Stated


def planned_warnings(
    baseline: RunRecord,
    candidate: Mapping[str, Stated],
    knobs: Sequence[KnobChange],
    *,
    candidate_key: str,
    sizing: Sizing,
    suggestion: Suggestion | None,
    change: PlannedChange,
    ran_before: Sequence[int],
) -> tuple[str, ...]:
    """`ran_before`: runs that have the candidate's configuration already, newest first."""
    return (
        *_of_suggestion(suggestion),
        *_of_knobs(baseline, candidate, knobs),
        *_of_keys(candidate_key, ran_before),
        *_of_sizing(sizing),
        *_of_run(baseline, change),
    )


def _of_suggestion(found: Suggestion | None) -> Iterator[str]:
    if found is None:
        return
    if found.withheld:
        yield f"The workflow keeps this back for now: {found.withheld}"
    if found.open:
        yield f"Choose by hand, because facts are missing: {_names(found.open)}."
    for need in found.needs:
        if need.state == "unmet":
            yield f"A prerequisite is not met: {need.text}"
    for conflict in found.conflicts:
        if conflict.state == "met":
            yield f"It conflicts with what the run has: {conflict.text}"


def _of_knobs(baseline: RunRecord, candidate: Mapping[str, Stated], knobs: Sequence[KnobChange]) -> Iterator[str]:
    if not knobs:
        yield "No field of the contract changes, so only the tag and its side tell the runs apart."
        return
    planned = RunRecord.of(baseline, baseline.project, candidate)
    found = compare_contracts(baseline, planned)
    differing = [one.field for one in (*found.stack, *found.knobs)]
    if len(differing) > 1:
        yield f"Several knobs change ({_names(differing)}): the result will be attributed to none of them."
    if any(FIELDS[one.field].role == "stack" for one in found.stack if one.field in FIELDS):
        yield (
            f"The stack key changes ({_names([one.field for one in found.stack])}): the result is a contrast between "
            "two stacks, which leaderboards do not rank together."
        )
    unknown = [one.field for one in knobs if not one.known]
    if unknown:
        yield f"Nobody states {_names(unknown)} of the baseline run: state it, or the difference is not certain."


def _of_keys(candidate_key: str, ran_before: Sequence[int]) -> Iterator[str]:
    if not candidate_key:
        yield "The candidate's configuration cannot be told beforehand: its runs join by the tag only."
    if ran_before:
        runs = ", ".join(f"#{one}" for one in ran_before[:3])
        yield (
            f"This configuration ran before ({counted(len(ran_before), 'run')}, the newest: {runs}). Those runs do not "
            "count here: they did not take turns with the baseline."
        )


def _of_sizing(sizing: Sizing) -> Iterator[str]:
    effect, smallest = f"{sizing.effect_pct:g}{THIN}%", f"{sizing.smallest_pct:.1f}{THIN}%"
    if sizing.needed is None:
        yield (
            f"Launches of this job vary too much to see {effect}: not even {sizing.most} runs a side would. "
            f"{counted(sizing.runs_each, 'run')} a side {_see(sizing.runs_each)} {smallest}."
        )
    elif sizing.needed > sizing.runs_each:
        asked = "" if sizing.runs_each != MOST_EACH else ", the most that is planned without being asked for"
        few = sizing.runs_each
        yield f"To see {effect} it would take {sizing.needed} runs a side; {few}{asked} {_see(few)} {smallest}."


def _see(runs: int) -> str:
    return "sees" if runs == 1 else "see"


def _of_run(baseline: RunRecord, change: PlannedChange) -> Iterator[str]:
    if not baseline.commit:
        yield "Nobody states the commit of the baseline run: keep the code the same on both sides."
    if change.commands and not any(one.candidate for one in change.commands):
        yield "The run's own command is not known: state `launch_args` and the plan can give the whole command."
    if baseline.estimate.short:
        yield "The baseline run is short: against it alone the result is a direction only."


def _names(fields: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in fields)
