"""Runs of an experiment on one knob, for tables: tests state only the differing values."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from app.domain.contract.resolve import config_key
from app.domain.experiments.outcome import Applicant, Enrolment, ExperimentMember, OutcomeRules
from app.domain.experiments.plan import turned
from app.domain.experiments.values import KnobChange, Side
from app.domain.run import Activity
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import Prior
from tests.domain.verdict.matching_runs import make_record

KNOB = KnobChange("dispatcher", "alltoall", "deepep")
SURE = Prior(variance=0.004**2, degrees_of_freedom=20, configurations=9)
BEGAN = datetime(2026, 11, 21, tzinfo=UTC)
BASELINE = make_record("b0", {"dispatcher": "alltoall"}, commit="c0", purpose="experiment")
ENROLMENT = Enrolment(
    baseline=BASELINE,
    tag="exp-dispatcher-1",
    baseline_key=BASELINE.config_key,
    candidate_key=config_key("moe", turned(BASELINE.contract, (KNOB,))),
    knobs=(KNOB,),
    since=BEGAN,
)


def record(run: str, side: Side, slower: float = 0.0, **other: object) -> RunRecord:
    fields = {"dispatcher": "alltoall" if side == "baseline" else "deepep"}
    facts: dict[str, object] = {"commit": "c0", "purpose": "experiment"} | other
    return make_record(run, fields, slower=slower, **facts)


def member(
    run: str,
    side: Side,
    slower: float = 0.0,
    *,
    activity: Mapping[str, Activity] | None = None,
    level: str = "validated",
    **other: object,
) -> ExperimentMember:
    return ExperimentMember(Applicant(record(run, side, slower, **other), BEGAN, (), activity), side, level, {})


def sides(baseline: tuple[float, ...], candidate: tuple[float, ...]) -> list[ExperimentMember]:
    """`b0`, `b1`, ... and `c0`, `c1`, ...: how much slower each is, in ln."""
    return [
        *(member(f"b{place}", "baseline", slower) for place, slower in enumerate(baseline)),
        *(member(f"c{place}", "candidate", slower) for place, slower in enumerate(candidate)),
    ]


def with_figures(member: ExperimentMember, memory_bytes: float, loss: float) -> ExperimentMember:
    estimate = replace(member.run.estimate, peak_memory_bytes=memory_bytes, loss=loss)
    return replace(member, applicant=replace(member.applicant, run=replace(member.run, estimate=estimate)))


def rules(runs_each: int = 2, extensions: int = 0) -> OutcomeRules:
    return OutcomeRules(runs_each, SURE, extensions)
