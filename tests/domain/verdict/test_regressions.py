"""Which verdicts open a regression, and which an existing one explains."""

import pytest

from app.domain.verdict.alarms import Alarm, AlarmCause, alarms_of
from app.domain.verdict.assess import assess
from app.domain.verdict.baseline import BaselineRules
from app.domain.verdict.document import VerdictDocument, verdict_document
from app.domain.verdict.record import RunRecord
from app.domain.verdict.triage import STATES, next_states, refused_because
from app.domain.verdict.words import headline
from tests.domain.verdict.matching_runs import make_record

MAIN = BaselineRules("main")
CAUSE = AlarmCause("run", "code:c", "Code.")


def document(run: RunRecord, earlier: list[RunRecord]) -> VerdictDocument:
    metrics = {record.run: {} for record in (*earlier, run)}
    return verdict_document(assess([run], earlier, rules=MAIN), (run.run,), metrics, 1)


def alarms(run: RunRecord, earlier: list[RunRecord]) -> tuple[Alarm, ...]:
    return alarms_of(document(run, earlier), stack_key=run.stack_key, run=run.run, purpose=run.purpose)


def usual(**other: object) -> list[RunRecord]:
    return [make_record(f"run {i}", slower=i % 3 * 0.001, **other) for i in range(8)]


CAUSES = [
    (make_record(slower=0.1, commit="guilty"), "code:guilty", "Code: commit o -> guilty."),
    (
        make_record(slower=0.1, commit="commit of run 7"),
        "unknown:",
        "No known difference: the nodes, or chance.",
    ),
    (
        make_record(fields={"container": "new"}, slower=0.1),
        "upgrade:container:train:2026.09:new",
        "Upgrade of the container: train:2026.09 -> new.",
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


def test_runs_of_two_jobs_raise_no_alarm() -> None:
    earlier = usual(job="muon")
    assert [alarm.metric for alarm in alarms(make_record(slower=0.1, job="muon"), earlier)] == ["step_time_ms"]
    assert [alarm.metric for alarm in alarms(make_record(slower=0.1), earlier)] == ["step_time_ms"]  # states no job
    for fields in ({}, {"container": "new"}):
        assert alarms(make_record(slower=0.1, job="adam", fields=fields), earlier) == ()


def test_a_job_that_an_upgrade_changed_in_several_fields_gives_an_alarm() -> None:
    upgraded = make_record(slower=0.1, job="muon", fields={"container": "new", "tp": 4})
    (alarm,) = alarms(upgraded, usual(job="muon"))
    assert alarm.cause.key == "upgrade:container:train:2026.09:new"
    assert [part in alarm.cause.text for part in ("container: train:2026.09 -> new", "tp (8 -> 4)")] == [True, True]
    assert "certain enough" not in headline(document(upgraded, usual(job="muon")))


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
