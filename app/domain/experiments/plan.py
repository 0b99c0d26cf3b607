"""Plan an experiment: the change, the number and order of runs, the commands and the warnings."""

import json
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from app.domain.contract.derive import derive
from app.domain.contract.fields import FIELDS, FLEX_BACKENDS
from app.domain.contract.values import is_stated, read_value, same_value
from app.domain.experiments.values import (
    SIDES,
    Commands,
    KnobChange,
    PlannedChange,
    Side,
    SizePoint,
    Sizing,
    SpreadSource,
)
from app.domain.numbers import THIN, gpu_hours, plural, time_saved
from app.domain.performance.figures import too_much_memory
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.rules.change import Changing, change_of, without_context
from app.domain.rules.engine import Suggestion
from app.domain.rules.launch import read_command
from app.domain.run import Stated, Value
from app.domain.text import coded_names
from app.domain.verdict.comparability import axis_of, compare_contracts
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import (
    DEFAULT_PRIOR,
    EQUIVALENCE_LIMIT,
    Comparison,
    Prior,
    RunEstimate,
    moderated_variance,
    select_baseline,
)
from app.errors import FieldError, InvalidChange

# --- How many runs per side detect an effect, by the power of the verdict's test (`docs/experiments.md`).
#
# Run-to-run variation comes from the job's own earlier runs, from other configurations of its family, or from the
# default. They are combined as for a verdict and become the prior of the experiment.

DEFAULT_EFFECT_PCT = 100 * EQUIVALENCE_LIMIT
"""Step times within 2 % count as equal, so 2 % is the smallest effect that an experiment must distinguish."""
POWER = 0.8
FEWEST_EACH = 2
"""Default runs per side: the fewest that have a spread. Runs are added if the result is inconclusive."""
MOST_EACH = 10
"""Most runs per side by default; more improve the test only slightly."""
MOST_GPU_HOURS = 500.0
"""A plan of more than two runs per side costs at most this by default. Our choice."""
MOST_ASKED_EACH = 20
"""A verdict takes the newest 20 runs of a baseline."""
RUNS_EACH = f"must be a whole number from 1 to {MOST_ASKED_EACH}"
"""Other numbers of runs that the plan describes."""
_OWN_FROM = 5
"""Own launches from which their spread weighs as much as the default prior with its four degrees of freedom."""
_CURVE = (*range(1, 9), 10, 15, 20)


STEPS = 50
"""Steps of a run whose figure is a result (the rule val-50-steps)."""


@dataclass(frozen=True, slots=True)
class Aim:
    """The change of step time to detect, in percent: `least_pct`, the lower end of what is expected, and its middle.

    `most_gpu_hours`: the cost to stay within, from the fewest runs on; None where a user asked for the effect.
    """

    least_pct: float = DEFAULT_EFFECT_PCT
    middle_pct: float = DEFAULT_EFFECT_PCT
    most_gpu_hours: float | None = MOST_GPU_HOURS


DEFAULT_AIM = Aim()


def effect_of(suggestion: Suggestion | None) -> Aim:
    """Return what an experiment on a suggestion has to detect: the range that its best evidence found.

    Without a figure, or where the evidence only suggests a direction, the default.
    """
    place = None if suggestion is None else suggestion.place
    if place is None or place.expected is None or place.confidence == "low":
        return DEFAULT_AIM
    low, middle = (
        max(DEFAULT_EFFECT_PCT, round(time_saved(max(gain, 0.0)), 1))
        for gain in (place.expected.low, place.expected.pct)
    )
    return Aim(low, middle)


def size(
    history: Sequence[RunEstimate],
    family: Prior = DEFAULT_PRIOR,
    *,
    noise: float = 0.0,
    aim: Aim = DEFAULT_AIM,
    runs_each: int | None = None,
    step_s: float | None = None,
    gpus: int | None = None,
) -> Sizing:
    """Return how many runs the experiment needs.

    `history`: earlier launches of the baseline's configuration in its current level, without those of the experiment;
    `noise`: standard error within the baseline run (ln), of which all launches have the median. `runs_each`: chosen by
    the user, else as many as detect the middle of the aim; more, up to its lower end, only if they are inconclusive.
    """
    noise = statistics.median([noise, *(run.se for run in history)])
    values = select_baseline(history, family.variance).log_step_times
    prior = family
    if len(values):
        df = family.degrees_of_freedom + len(values) - 1
        prior = Prior(moderated_variance(family, values), df, family.configurations)
    comparison = Comparison.planned(prior, noise)
    run_hours = None if step_s is None else STEPS * step_s / 3600
    chosen = runs_each or _first_runs(comparison, aim, None if run_hours is None or gpus is None else run_hours * gpus)
    return Sizing(
        effect_pct=aim.least_pct,
        power=POWER,
        runs_each=chosen,
        needed=_runs_that_see(comparison, aim.least_pct),
        most=MOST_ASKED_EACH,
        smallest_pct=_seen_pct(comparison, chosen),
        spread_pct=100 * max(math.sqrt(prior.variance), noise),
        spread_from=_source(len(values), family),
        spread_runs=len(values),
        noise=noise,
        prior=prior,
        curve=tuple(SizePoint(n, _seen_pct(comparison, n)) for n in _CURVE),
        run_hours=run_hours,
        gpus=gpus,
    )


def smallest_pct(sizing: Sizing, runs_each: int) -> float:
    """Return the smallest effect that another number of runs per side would detect."""
    return _seen_pct(Comparison.planned(sizing.prior, sizing.noise), runs_each)


def runs_that_decide(prior: Prior, noise: float, shift: float) -> int | None:
    """Return the runs per side that decide with the plan's power if the true change is `shift` (ln); None if too many.

    A change that is too small to be called is decided by showing that both sides are equal.
    """
    comparison = Comparison.planned(prior, noise)
    if abs(shift) >= comparison.thresholds.relevant_shift:
        return _runs_that_see(comparison, -100 * math.expm1(-abs(shift)))
    return next((n for n in range(1, MOST_ASKED_EACH + 1) if comparison.shows_equality(abs(shift), POWER, n, n)), None)


def _runs_that_see(comparison: Comparison, effect_pct: float) -> int | None:
    """Return the fewest runs per side that detect an effect, both in the decimals that pages show."""
    each = range(1, MOST_ASKED_EACH + 1)
    return next((n for n in each if round(_seen_pct(comparison, n), 1) <= round(effect_pct, 1)), None)


def _first_runs(comparison: Comparison, aim: Aim, run_gpu_hours: float | None) -> int:
    """Return the runs per side to begin with."""
    most = MOST_EACH
    if aim.most_gpu_hours is not None and run_gpu_hours:
        most = min(most, int(aim.most_gpu_hours / (2 * run_gpu_hours)))
    return max(FEWEST_EACH, min(_runs_that_see(comparison, aim.middle_pct) or MOST_EACH, most))


def _source(own: int, family: Prior) -> SpreadSource:
    if own >= _OWN_FROM:
        return "series"
    return "family" if family.configurations else "default"


def _seen_pct(comparison: Comparison, runs_each: int) -> float:
    """Return the detectable effect in percent of step time, for a faster step."""
    return -100 * math.expm1(-comparison.smallest_seen_shift(POWER, runs_each, runs_each))


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
    """Return the warnings of a plan.

    `ran_before`: runs that already have the candidate's configuration, newest first; empty for those of an experiment
    from this baseline, which were interleaved with it.
    """
    return (
        *_of_suggestion(suggestion),
        *_of_knobs(baseline, candidate, knobs),
        *_of_keys(candidate_key, ran_before),
        *_of_sizing(sizing),
        *_of_run(baseline, change),
    )


def _of_suggestion(suggestion: Suggestion | None) -> Iterator[str]:
    if suggestion is None:
        return
    if suggestion.withheld:
        yield f"The workflow defers this for now: {suggestion.withheld}"
    if suggestion.open:
        yield f"Choose these values by hand because facts are missing: {coded_names(suggestion.open)}."
    for need in suggestion.needs:
        if need.state == "unmet":
            yield f"Unmet prerequisite: {need.text}"
    for conflict in suggestion.conflicts:
        if conflict.state == "met":
            yield f"Conflict with the run's configuration: {conflict.text}"


def _of_knobs(baseline: RunRecord, candidate: Mapping[str, Stated], knobs: Sequence[KnobChange]) -> Iterator[str]:
    if not knobs:
        yield "No contract field changes, so only the tag and the side distinguish the runs."
        return
    planned = RunRecord.of(baseline, baseline.project, candidate)
    compared = compare_contracts(baseline, planned)
    differing = [difference.field for difference in (*compared.stack, *compared.knobs)]
    if len(differing) > 1:
        yield f"Several knobs change ({coded_names(differing)}): the result cannot be attributed to any of them."
    if any(FIELDS[difference.field].role == "stack" for difference in compared.stack if difference.field in FIELDS):
        yield (
            f"The stack key changes ({coded_names(d.field for d in compared.stack)}): the result is a contrast "
            "between two stacks, which leaderboards do not rank together."
        )
    unknown = [knob.field for knob in knobs if not knob.known]
    if unknown:
        yield f"{coded_names(unknown)} of the baseline run is unknown: state it, or the difference remains uncertain."


def _of_keys(candidate_key: str, ran_before: Sequence[int]) -> Iterator[str]:
    if not candidate_key:
        yield "The candidate's configuration cannot be predicted, so its runs join by tag only."
    if ran_before:
        runs = ", ".join(f"#{run_id}" for run_id in ran_before[:3])
        yield (
            f"This configuration ran before ({plural(len(ran_before), 'run')}, the newest: {runs}). Those runs do not "
            "count here because they were not interleaved with the baseline."
        )


def _of_sizing(sizing: Sizing) -> Iterator[str]:
    effect, smallest = f"{sizing.effect_pct:g}{THIN}%", f"{sizing.smallest_pct:.1f}{THIN}%"
    if sizing.needed is None:
        yield (
            f"Run-to-run variation is too large to detect {effect}, even with {sizing.most} runs per side. "
            f"{plural(sizing.runs_each, 'run')} per side can detect {smallest}."
        )
    elif sizing.needed > sizing.runs_each:
        few, more = sizing.runs_each, sizing.gpu_hours_of(2 * sizing.needed)
        cost = "" if more is None else f", about {gpu_hours(more)} GPU-hours"
        yield (
            f"{few} can detect {smallest}; {effect} takes {sizing.needed} runs per side{cost}. Add runs only if the "
            "result is inconclusive."
        )


def _of_run(baseline: RunRecord, change: PlannedChange) -> Iterator[str]:
    memory = baseline.estimate.peak_memory_bytes
    if contradiction := too_much_memory(baseline.contract, None if memory is None else memory / BYTES_PER_GIB):
        yield f"The contract of the baseline run contradicts itself: {contradiction}."
    if not baseline.commit:
        yield "The commit of the baseline run is unknown: use the same code on both sides."
    if change.commands and not any(command.candidate for command in change.commands):
        yield "The command of the run is unknown: state `launch_args` to get the complete command in the plan."
    if baseline.estimate.short:
        yield "The baseline run is short: on its own it supports only a directional result."


# --- The interleaved order of runs: ABBA, so that drift of the cluster affects both sides equally.

_ABBA: tuple[Side, ...] = ("baseline", "candidate", "candidate", "baseline")


def interleaved(runs_each: int) -> tuple[Side, ...]:
    """Return the order of `runs_each` runs per side. No side is ever more than one run ahead.

    It starts with the baseline, because the run that the plan is made from already exists.
    """
    return tuple(islice(cycle(_ABBA), 2 * runs_each))


# --- Change knobs in a contract: the candidate's expected contract and config key.
#
# Derived values are computed again; values that only a log shows stay as they are. Values that cannot be predicted stay
# unknown, and so does the candidate's key.

Contract = Mapping[str, Stated]
_INPUTS = {
    "dispatcher": ("dispatcher_type", "flex_backend"),
    "routing_mode": ("force_balance", "capacity", "pad_to_capacity", "rank_capacity"),
    "dp": ("gpus", "tp", "pp", "cp"),
    "edp": ("gpus", "pp", "ep", "etp"),
    "ga": ("gbs", "mbs", "dp", "tp", "pp", "cp"),
}
"""Derived fields, also when a log or a user stated them."""
_OF_THE_TASK = ("gpu", "gpus", "gpus_per_node")
MOST_KNOBS = 20


def read_knobs(stated: Mapping[str, object], contract: Contract) -> tuple[KnobChange, ...]:
    """Return the knobs to change, by field, without those that already have the value.

    Raises InvalidChange naming each field that is unknown, that refuses the value, or that would change the task.
    """
    errors, knobs = [], []
    if len(stated) > MOST_KNOBS:
        errors.append(FieldError("knobs", f"must be at most {MOST_KNOBS}"))
    for name, raw in list(stated.items())[:MOST_KNOBS]:
        path = f"knobs.{name[:100]}"
        if name not in FIELDS:
            errors.append(FieldError(path, "is not a contract field"))
            continue
        if axis_of(name) == "workload" or name in _OF_THE_TASK:
            errors.append(FieldError(path, "defines the task; runs of different tasks cannot be compared"))
            continue
        try:
            value = read_value(name, raw)
        except ValueError as problem:
            errors.append(FieldError(path, str(problem)))
            continue
        if not is_stated(name, value):
            errors.append(FieldError(path, "must have a value"))
        else:
            knobs.append(knob_change(name, value, contract))
    changed = tuple(knob for knob in knobs if not knob.known or not same_value(knob.field, knob.before, knob.after))
    if not errors and not changed:
        errors.append(FieldError("knobs", "must change at least one value; the run already has these"))
    if errors:
        raise InvalidChange.of(*errors, outcome="Nothing was planned")
    return changed


def knob_change(name: str, value: Value, contract: Contract) -> KnobChange:
    now = contract.get(name)
    return KnobChange(name, None if now is None else now.value, value, known=now is not None)


def turned(contract: Contract, knobs: Sequence[KnobChange]) -> dict[str, Stated]:
    """Return the contract of a similar run with the knobs changed, and everything derived from them."""
    wanted = _with_dispatcher({knob.field: Stated(knob.after, "metadata", "the plan") for knob in knobs})
    base = _base(contract, wanted)
    before, after = derive(_base(contract, {})), derive(base | wanted)
    result: dict[str, Stated] = {}
    for name in FIELDS:
        is_left_alone = name not in wanted and _is_same(name, before.get(name), after.get(name))
        value = contract.get(name) if is_left_alone else after.get(name)
        if value is not None:
            result[name] = value
    return result


def _is_same(name: str, a: Stated | None, b: Stated | None) -> bool:
    return a is b if a is None or b is None else same_value(name, a.value, b.value)


def _base(contract: Contract, wanted: Contract) -> dict[str, Stated]:
    """Return the fields that are not derived from others; for inactive knobs their stated values."""
    base: dict[str, Stated] = {}
    for name, stated in contract.items():
        if name in wanted or any(other in wanted for other in _INPUTS.get(name, ())):
            continue
        if stated.source != "derived":
            base[name] = stated
        elif wanted and stated.stated_value is not None:
            base[name] = Stated(stated.stated_value, "arguments", stated.detail)
    return _not_worked_out_again(contract, wanted) | base


def _not_worked_out_again(contract: Contract, wanted: Contract) -> dict[str, Stated]:
    """Return fields that only the log can derive (the precision from `bf16 = True`)."""
    again = derive({name: stated for name, stated in contract.items() if stated.source != "derived"})
    return {
        name: stated
        for name, stated in contract.items()
        if stated.source == "derived" and stated.value is not None and name not in again and name not in wanted
        and not any(other in wanted for other in _INPUTS.get(name, ()))
    }  # fmt: skip


def _with_dispatcher(wanted: dict[str, Stated]) -> dict[str, Stated]:
    """Keep the name of a dispatcher and its two flags consistent."""
    named = wanted.get("dispatcher")
    if named is None:
        return wanted
    is_flex = named.value in FLEX_BACKENDS
    flags = {
        "dispatcher_type": Stated("flex" if is_flex else named.value, "metadata", named.detail),
        "flex_backend": Stated(named.value if is_flex else None, "metadata", named.detail),
    }
    return flags | wanted


# --- Commands to paste for both sides: the run's own command with and without the change, and its upload.

LONGEST_META = 4000
"""Most characters of metadata on a command line; longer ones go into a file."""
_NOT_STATED = ("dp", "edp", "ga")


def planned_change(
    changing: Changing,
    facts: Mapping[str, object],
    launch: object,
    arguments: Mapping[str, Value] | None,
    *,
    text: str = "",
    open_fields: tuple[str, ...] = (),
) -> PlannedChange:
    """Return the change for both trainers.

    `facts`: typed, as rules use them; `launch`: the run's own arguments, without credentials. `arguments`: the
    trainer's dump of its arguments, which also shows changed flags that are not contract fields.
    """
    diff = change_of(changing, facts, launch, arguments)
    own = " \\\n  ".join(item.text for item in read_command(launch))
    frameworks = (("Megatron-LM", diff.megatron_lm), ("Megatron-Bridge", diff.bridge))
    return PlannedChange(
        text=text,
        commands=tuple(
            Commands(
                trainer=name,
                add=change.paste,
                remove=change.remove,
                diff=tuple(f"{line.sign} {line.text}" for line in without_context(change).lines),
                baseline=own if change.command else "",
                candidate=change.command,
            )
            for name, change in frameworks
            if bool(without_context(change).lines)
        ),
        environment=tuple(f"{line.sign} {line.text}" for line in diff.environment),
        export=diff.export,
        open=open_fields,
    )


def upload_meta(
    identity: Mapping[str, Any],
    contract: Mapping[str, Stated],
    candidate: Mapping[str, Stated],
    knobs: Sequence[KnobChange],
) -> dict[Side, dict[str, Any]]:
    """Return the upload metadata of both sides: what the baseline run stated, and for the candidate the changes.

    Only stated values: the log of each run shows the rest. A knob that no log showed is stated too.
    """
    meta: dict[Side, dict[str, Any]] = {}
    for side in SIDES:
        of_side = contract if side == "baseline" else candidate
        unseen = {knob.field for knob in knobs if not knob.known} if side == "candidate" else set()
        stated = {name for name, stated in contract.items() if stated.source == "metadata"} | unseen
        meta[side] = dict(identity) | {
            name: _plain(of_side[name].value)
            for name in FIELDS
            if name in stated and name in of_side and name not in _NOT_STATED
        }
    return meta


def with_launch(meta: Mapping[Side, Mapping[str, Any]], change: PlannedChange) -> dict[Side, dict[str, Any]]:
    """Add the complete command of each side, for runs whose logs do not show their arguments."""
    whole = next((command for command in change.commands if command.candidate), None)
    if whole is None:
        return {side: dict(stated) for side, stated in meta.items()}
    commands = {"baseline": whole.baseline, "candidate": whole.candidate}
    return {side: {**stated, "launch_args": commands[side].replace(" \\\n ", "")} for side, stated in meta.items()}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def tagged(meta: Mapping[str, Any], tag: str, side: Side) -> dict[str, Any]:
    """Add the tag of the experiment and the side. The tag decides which experiment an upload joins, not its log."""
    return {**meta, "tags": [tag, side]}


def upload_command(meta: Mapping[str, Any], base_url: str) -> str:
    """Return the command that uploads one run of a side. Long metadata go into `meta.json`."""
    text = json.dumps(meta)
    part = f"meta={text}" if len(text) <= LONGEST_META else "meta=@meta.json"
    return f"curl --fail-with-body -F log=@train.log -F {shlex.quote(part)} {base_url}/api/v1/runs"
