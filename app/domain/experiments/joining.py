"""Which side of an experiment a run is on, and why it does not count where it does not.

By its tag a run belongs to the experiment whatever it turned out to be; without one by its config key. It counts when
it is the configuration of its side, as it ran and not only as it was asked for, and its figures can be compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.values import same_value, shown
from app.domain.experiments.change import turned
from app.domain.experiments.values import SIDES, JoinedBy, KnobChange, Side
from app.domain.matching import Difference, RunRecord
from app.domain.matching.differences import differing
from app.domain.run import Activity, Stated, Value

_MOST_LISTED = 4


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What decides who belongs to an experiment. `baseline`: the run that it was planned from."""

    baseline: RunRecord
    tag: str
    baseline_key: str
    candidate_key: str
    knobs: tuple[KnobChange, ...]
    since: datetime

    def expected(self, side: Side) -> Mapping[str, Stated]:
        """The contract that the runs of a side should have."""
        return self.baseline.contract if side == "baseline" else turned(self.baseline.contract, self.knobs)


@dataclass(frozen=True, slots=True)
class Applicant:
    """A run that may belong to an experiment. `activity`: what it was asked for beside what ran."""

    run: RunRecord
    created_at: datetime
    tags: tuple[str, ...] = ()
    activity: Mapping[str, Activity] | None = None

    @property
    def name(self) -> str:
        return self.run.run

    def requested(self, field: str) -> Value:
        """What was asked for where a log tells it apart from what ran, else as in the contract."""
        known = (self.activity or {}).get(field)
        if known is not None and known.requested is not None:
            return known.requested.value
        stated = self.run.contract.get(field)
        return None if stated is None else stated.value


def side_of(one: Applicant, enrolment: Enrolment) -> tuple[Side, JoinedBy] | None:
    """None where the run is not of this experiment. The answer depends on nothing but the two."""
    run = one.run
    if run.project != enrolment.baseline.project:
        return None
    if run.run == enrolment.baseline.run:
        return "baseline", "plan"
    if enrolment.tag in one.tags:
        return _tagged_side(one, enrolment), "tag"
    if one.created_at < enrolment.since or not _is_meant(run, enrolment.baseline):
        return None
    if run.config_key == enrolment.baseline_key:
        return "baseline", "config"
    return ("candidate", "config") if run.config_key == enrolment.candidate_key != "" else None


def _is_meant(run: RunRecord, baseline: RunRecord) -> bool:
    """Nightly runs of other commits have the configuration of the baseline, too: they are no part of an experiment."""
    return run.purpose == "experiment" or (run.commit != "" and run.commit == baseline.commit)


def _tagged_side(one: Applicant, enrolment: Enrolment) -> Side:
    """As its upload says, else by what it was asked to run."""
    said = [side for side in SIDES if side in one.tags]
    if len(said) == 1:
        return said[0]
    asked = [same_value(knob.field, one.requested(knob.field), knob.before) for knob in enrolment.knobs]
    return "baseline" if all(asked) and asked else "candidate"


def why_not(one: Applicant, side: Side, enrolment: Enrolment) -> str:
    """Why a run does not count on its side by itself; empty when it does."""
    run = one.run
    not_finite = run.estimate.not_finite_iterations
    return (
        run.unfit_because
        or run.estimate.unusable_because
        or (f"the loss was not finite in {not_finite} iterations" if not_finite else "")
        or _measured_otherwise(run, enrolment.baseline)
        or _not_active(one, side, enrolment.knobs)
        or _other_configuration(run, enrolment.expected(side))
    )


def _measured_otherwise(run: RunRecord, baseline: RunRecord) -> str:
    if run.definition_version != baseline.definition_version:
        return "its figures are of another version of the definitions than those of the baseline run"
    if run.semantic_class != baseline.semantic_class:
        classes = [one.semantic_class.replace("_", " ") for one in (run, baseline)]
        return f"its class is {classes[0]}, that of the baseline run is {classes[1]}"
    if run.fair_for_timing != baseline.fair_for_timing:
        return "only one of it and the baseline run was slowed down by its own timers"
    return "" if run.has_shape_of(baseline) else "its model has another shape"


def _not_active(one: Applicant, side: Side, knobs: Sequence[KnobChange]) -> str:
    """A knob that was asked for, and another value ran."""
    for knob in knobs:
        wanted = knob.after if side == "candidate" else knob.before
        known = (one.activity or {}).get(knob.field)
        if known is None or known.requested is None or known.active is None or known.agrees is not False:
            continue
        if same_value(knob.field, known.requested.value, wanted):
            why = f" ({known.active.detail})" if known.active.detail else ""
            return f"`{knob.field}` = {shown(wanted)} was asked for, but {shown(known.active.value)} ran{why}"
    return ""


def _other_configuration(run: RunRecord, expected: Mapping[str, Stated]) -> str:
    """Members of the keys that are known to be other than those of its side."""
    found = [one for one in differences(run, expected) if one.is_certain]
    if not found:
        return ""
    texts = [f"`{one.field}` is {_value(one.b)}, not {_value(one.a)}" for one in found[:_MOST_LISTED]]
    more = f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
    return f"it is another configuration than its side: {'; '.join(texts)}{more}"


def differences(run: RunRecord, expected: Mapping[str, Stated]) -> list[Difference]:
    """`a` is what the side should have, `b` what the run has; uncertain where one is unknown."""
    return list(differing((*STACK_FIELDS, *CONFIG_FIELDS), expected, run.contract))


def _value(stated: Stated | None) -> str:
    return "unknown" if stated is None else shown(stated.value)
