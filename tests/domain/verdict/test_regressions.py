"""Which verdicts open a regression, and which an existing one explains."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from app.domain.performance.cost import (
    clock,
    extra_ms,
    regression_cost,
    runs_per_day,
    steps_of_run,
    stored_cost,
    total_cost,
)
from app.domain.verdict.alarms import Alarm, AlarmCause, alarms_of
from app.domain.verdict.assess import assess
from app.domain.verdict.baseline import BaselineRules
from app.domain.verdict.document import VerdictDocument, verdict_document
from app.domain.verdict.record import RunRecord
from app.domain.verdict.triage import STATES, counted_jobs, next_states, refused_because
from app.domain.verdict.words import baseline_line
from tests.domain.verdict.matching_runs import make_record

MAIN = BaselineRules("main")


@dataclass(frozen=True)
class Member:
    """A member of a regression with the facts that decide whether its job counts."""

    delta_pct: float
    is_once: bool = False
    proposal: str = ""
    newest_pct: float | None = None


@pytest.mark.parametrize(
    ("members", "sizes"),
    [
        ([Member(39.4, is_once=True, newest_pct=-2.4), Member(47.0, is_once=True, proposal="fixed")], [39.4, 47.0]),
        ([Member(39.4, is_once=True), Member(47.0, is_once=True, proposal="fixed")], [39.4]),
        ([Member(5.0, newest_pct=1.0), Member(9.0, proposal="fixed")], [5.0]),
        ([Member(5.0), Member(16.7, is_once=True)], [5.0]),
    ],
    ids=["single runs that did not last", "one may last", "nearly back", "a single run beside a lasting job"],
)
def test_the_jobs_that_give_a_regression_its_size(members: list[Member], sizes: list[float]) -> None:
    assert [job[0].delta_pct for job in counted_jobs([[member] for member in members])] == sizes


CAUSE = AlarmCause("run", "code:c", "Code.")


def document(run: RunRecord, earlier: list[RunRecord]) -> VerdictDocument:
    metrics = {record.run: {} for record in (*earlier, run)}
    return verdict_document(assess([run], earlier, rules=MAIN), (run.run,), metrics, 1)


def alarms(run: RunRecord, earlier: list[RunRecord]) -> tuple[Alarm, ...]:
    return alarms_of(document(run, earlier), stack_key=run.stack_key, run=run.run, purpose=run.purpose)


def usual(**other: object) -> list[RunRecord]:
    return [make_record(f"run {i}", slower=i % 3 * 0.001, **other) for i in range(8)]


CAUSES = [
    (make_record(slower=0.1, commit="guilty"), "code:guilty", "Code: commit o → guilty."),
    (
        make_record(slower=0.1, commit="commit of run 7"),
        "unknown:",
        "No known difference: the nodes, or chance.",
    ),
    (
        make_record(fields={"container": "new"}, slower=0.1),
        "upgrade:container:train:2026.09:new",
        "Upgrade of the container: train:2026.09 → new.",
    ),
]


@pytest.mark.parametrize(("run", "key", "text"), CAUSES)
def test_the_cause_is_the_difference_outside_the_keys(run: RunRecord, key: str, text: str) -> None:
    raised = alarms(run, usual())
    assert [alarm.metric for alarm in raised] == ["step_time_ms"]
    assert raised[0].cause.key.startswith(key)
    assert raised[0].cause.text == text


NO_ALARM = [
    make_record(slower=0.002),
    make_record(slower=-0.1),
    make_record(slower=0.1, purpose="experiment"),
    make_record(slower=0.1, quarantined="bad node"),
    make_record(slower=0.1, outcome="failed"),
    make_record(slower=0.1, fields={"gpus": 64}),
    make_record(slower=0.1, fields={"container": "new"}, purpose="experiment"),
    make_record(slower=0.1, fields={"container": "new", "tp": 4}),
    make_record(slower=0.1, fields={"container": "new", "cluster": "east"}),
    make_record(slower=0.1, fields={"tp": 4}),
    make_record(slower=0.1, fields={"tp": 4, "cp": 2}),
]


@pytest.mark.parametrize("run", NO_ALARM)
def test_verdicts_that_raise_no_alarm(run: RunRecord) -> None:
    assert alarms(run, usual()) == ()


@pytest.mark.parametrize("steady", [True, False])
def test_one_drifting_run_does_not_confirm_the_alarm_of_an_upgrade(steady: bool) -> None:
    (alarm,) = alarms(make_record(slower=0.3, fields={"container": "new"}, steady=steady), usual())
    assert (alarm.cause.kind, alarm.confirmed) == ("upgrade", steady)


def test_runs_of_two_jobs_raise_no_alarm() -> None:
    earlier = usual(job="muon")
    assert [alarm.metric for alarm in alarms(make_record(slower=0.1, job="muon"), earlier)] == ["step_time_ms"]
    assert [alarm.metric for alarm in alarms(make_record(slower=0.1), earlier)] == ["step_time_ms"]  # states no job
    for fields in ({}, {"container": "new"}):
        assert alarms(make_record(slower=0.1, job="adam", fields=fields), earlier) == ()


def test_a_job_changed_in_several_fields_by_an_upgrade_raises_an_alarm() -> None:
    upgraded = make_record(slower=0.1, job="muon", fields={"container": "new", "tp": 4})
    (alarm,) = alarms(upgraded, usual(job="muon"))
    assert alarm.cause.key == "upgrade:container:train:2026.09:new"
    assert [part in alarm.cause.text for part in ("container: train:2026.09 → new", "tp (8 → 4)")] == [True, True]


def test_the_baseline_of_a_report_is_that_of_the_figures() -> None:
    judged = document(make_record(slower=0.1), usual())
    used = replace(judged.verdict, baseline_used=judged.baseline[:2])
    assert baseline_line(replace(judged, verdict=used)).startswith("baseline: 2 runs (run 0 and run 1),")


COVERED = [
    # Levels of the run and of the regression, whether that has ended, whether it explains the run.
    (0.08, 0.08, False, True),
    (0.04, 0.08, False, True),
    (0.085, 0.08, False, True),
    (0.15, 0.08, False, False),
    (0.08, 0.08, True, True),
    (0.04, 0.08, True, False),
    (0.15, 0.08, True, False),
]


@pytest.mark.parametrize(("level", "slow_level", "has_ended", "covered"), COVERED)
def test_a_regression_explains_slow_runs_up_to_its_level(
    level: float, slow_level: float, has_ended: bool, covered: bool
) -> None:
    alarm = Alarm("step_time_ms", 0.0, level, 100 * level, 0.005, CAUSE)
    assert alarm.is_covered_by(slow_level, has_ended=has_ended) is covered


# --- Which state of a regression may follow which.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("open", "acknowledged"),
        ("open", "expected"),
        ("open", "fixed"),
        ("open", "invalid"),
        ("acknowledged", "open"),
        ("acknowledged", "fixed"),
        ("expected", "open"),
        ("expected", "fixed"),
        ("fixed", "open"),
        ("open", "stale"),
        ("stale", "open"),
        ("invalid", "open"),
        ("fixed", "fixed"),
    ],
)
def test_valid_limits_are_accepted(before: str, after: str) -> None:
    assert refused_because(before, after) == ""


@pytest.mark.parametrize(
    ("before", "after", "because"),
    [
        ("fixed", "acknowledged", "it is fixed and can only become open"),
        ("fixed", "expected", "it is fixed and can only become open"),
        ("invalid", "fixed", "it is invalid and can only become open"),
        ("expected", "acknowledged", "it is expected and can only become open, fixed, stale or invalid"),
    ],
)
def test_a_closed_regression_is_reopened_before_another_decision(before: str, after: str, because: str) -> None:
    assert refused_because(before, after) == because


@pytest.mark.parametrize("state", STATES)
def test_every_state_can_be_left_and_reached(state: str) -> None:
    assert next_states(state)
    assert any(state in next_states(other) for other in STATES)


# --- GPU-hours a day of a slowdown, as tables; the expected numbers are worked out by hand.

LAST = datetime(2026, 11, 20, 3, tzinfo=UTC)


def before(*days: float) -> list[datetime]:
    return [LAST - timedelta(days=day) for day in days]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ([], 0.0),
        ([0], None),
        ([14.1, 15, 16], 0.0),  # it has stopped
        ([-1, -2], 0.0),  # no run yet
        ([1, 3], 1 / 3),  # up to now, not to the newest run
        ([13], None),
        ([0, 20], None),  # the other run is older than the window
        ([0, 14], 1 / 14),
        ([0, 0], 2.0),  # two at the same time: a rate covers at least a day
        ([0, 0.1, 0.2], 3.0),
        ([0, 2], 0.5),
        ([0, 1, 2, 3], 1.0),
        (range(15), 1.0),
        (range(60), 1.0),
        ([n / 4 for n in range(100)], 4.0),
        ([3, 0, 2, 1], 1.0),  # in any order
        ([0, 13, 30, 31, 32], 2 / 14),
    ],
)
def test_runs_per_day(days: list[float], expected: float | None) -> None:
    assert runs_per_day(before(*days), LAST) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("days", "extra", "steps", "gpus", "expected"),
    [
        # 1 run a day x 100 ms x 36,000 steps = 1 hour, x 16 GPUs
        (range(15), 100.0, 36_000, 16, 16.0),
        (range(60), 100.0, 36_000, 16, 16.0),
        # 2 runs a day x 36 ms x 100 steps x 1,000 GPUs
        ([n / 2 for n in range(40)], 36.0, 100, 1_000, 2.0),
    ],
)
def test_cost(days: list[float], extra: float, steps: int, gpus: int, expected: float) -> None:
    cost = regression_cost(before(*days), extra, steps, gpus, now=LAST)
    assert cost.gpu_hours_per_day == pytest.approx(expected)
    assert cost.unknown_because == ""


@pytest.mark.parametrize(
    ("days", "extra", "steps", "gpus", "because"),
    [
        ([0], 100.0, 50, 16, "fewer than 2 runs in 14 days"),
        ([0, 1], None, 50, 16, "step time did not change"),
        ([0, 1], math.nan, 50, 16, "step time did not change"),
        ([0, 1], -3.0, 50, 16, "not slower"),
        ([0, 1], 100.0, None, 16, "no step was read"),
        ([0, 1], 100.0, 0, 16, "no step was read"),
        ([0, 1], 100.0, 50, None, "number of GPUs is unknown"),
    ],
)
def test_unknown_stays_unknown_with_the_reason(
    days: list[float], extra: float | None, steps: int | None, gpus: int | None, because: str
) -> None:
    cost = regression_cost(before(*days), extra, steps, gpus, now=LAST)
    assert cost.gpu_hours_per_day is None
    assert because in cost.unknown_because


def test_the_factors_are_next_to_the_number() -> None:
    cost = regression_cost(before(0, 1, 2), 12.5, 50, 16, now=LAST)
    assert (cost.runs_per_day, cost.extra_ms_per_step, cost.steps_per_run, cost.gpus) == (1.0, 12.5, 50, 16)


def test_extra_time_comes_from_two_levels() -> None:
    assert extra_ms(math.log(400.0), math.log(412.0)) == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("spans", "read", "expected"),
    [
        ([], None, None),
        ([], 0, None),
        ([], 50, 50),
        ([(1, 50)], 50, 50),
        ([(10, 500)], 50, 491),  # every tenth iteration is printed
        ([(10_001, 10_050)], 50, 50),  # resumed from a checkpoint
        ([(1, 50), (31, 100)], 100, 120),  # twenty ran twice
        ([(50, 1)], 7, 7),  # a damaged number
    ],
)
def test_steps_of_a_run(spans: list[tuple[int, int]], read: int | None, expected: int | None) -> None:
    slices = [{"first_iteration": first, "last_iteration": last} for first, last in spans]
    assert steps_of_run(slices, {"iterations": read}) == expected


def test_a_stored_cost_has_the_factors_that_make_it() -> None:
    computed = regression_cost(before(0, 1, 2), 12.5, 50, 16, now=LAST)
    assert computed.gpu_hours_per_day is not None
    stored = stored_cost(computed, 2 * computed.gpu_hours_per_day)
    assert (stored.gpu_hours_per_day, stored.runs_per_day) == (2 * computed.gpu_hours_per_day, pytest.approx(2.0))
    assert stored_cost(computed, 0.0).nothing_because == "no run in the last 14 days"
    assert "fewer than 2 runs" in stored_cost(computed, None).unknown_because
    assert stored_cost(stored_cost(computed, 0.0), computed.gpu_hours_per_day) == computed


@pytest.mark.parametrize(("costs", "expected"), [([], None), ([None], None), ([1.5, None], 1.5), ([1.5, 2.5], 4.0)])
def test_the_cost_of_several_stacks_is_the_sum_of_the_known(costs: list[float | None], expected: float | None) -> None:
    assert total_cost(costs) == expected


def test_recovered_and_ended_regressions_cost_nothing_and_say_why() -> None:
    stopped = regression_cost(before(20, 21, 22), 12.5, 50, 16, now=LAST)
    assert (stopped.gpu_hours_per_day, "14 days" in stopped.nothing_because) == (0.0, True)
    back = regression_cost(before(0, 1, 2), 12.5, 50, 16, now=LAST, is_over=True)
    assert (back.gpu_hours_per_day, "usual level" in back.nothing_because) == (0.0, True)
    memory = regression_cost(before(20, 21), None, 50, 16, now=LAST)
    assert (memory.gpu_hours_per_day, memory.nothing_because) == (None, "")


CLOCKS = [
    # days before LAST of the newest place and of the newest upload, whether it is a replay; the time of the history
    (0.5, 0.5, False, 0.5),  # in use
    (60, 0, False, 60),  # an old history that was imported today: the cost at its end
    (60, 15, False, 0),  # no run for two weeks
    (60, 15, True, 60),
    (-30, 0, False, 0),  # a commit time in the future
    (None, None, False, 0),
]


@pytest.mark.parametrize(("place", "upload", "is_replay", "expected"), CLOCKS)
def test_the_time_of_a_history(place: float | None, upload: float | None, is_replay: bool, expected: float) -> None:
    newest = [None if days is None else before(days)[0] for days in (place, upload)]
    assert clock(newest[0], newest[1], LAST, is_replay=is_replay) == before(expected)[0]
