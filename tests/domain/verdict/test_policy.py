"""A project's policy: thresholds, fixed limits, its budget of reruns; and what reruns gain."""

import pytest

from app.domain.run import Metric
from app.domain.verdict.decide import judge
from app.domain.verdict.policy import Policy, RerunBudget, Thresholds, read_fixed, read_thresholds
from app.domain.verdict.power import launches_needed, power
from app.domain.verdict.step_time import Prior
from tests.domain.verdict.runs import make_run, make_runs

FAMILY = Prior(0.003**2, 12, 8)
GIB = 2.0**30
BASELINE = make_runs([0.0] * 10, peak_memory_bytes=60 * GIB, loss=2.0)


@pytest.mark.parametrize(
    ("candidate", "thresholds", "decision"),
    [
        ({"slower": 0.02}, {}, "regression"),
        ({"slower": 0.028}, {"relevance_pct": 3.0}, "inconclusive"),
        ({"slower": 0.012}, {"relevance_pct": 3.0}, "no_change"),
        ({"slower": 0.04}, {"relevance_pct": 3.0}, "regression"),
        ({"peak_memory_bytes": 63 * GIB}, {}, "regression"),
        ({"peak_memory_bytes": 63 * GIB}, {"memory_pct": 10.0}, "no_change"),
        ({"loss": 2.1}, {}, "inconclusive"),
        ({"loss": 2.1}, {"loss_pct": 10.0}, "no_change"),
    ],
)
def test_a_project_sets_what_matters(candidate: dict[str, float], thresholds: dict[str, float], decision: str) -> None:
    run = make_run(**({"peak_memory_bytes": 60 * GIB, "loss": 2.0} | candidate))
    assert judge([run], BASELINE, FAMILY, thresholds=Thresholds(**thresholds)).decision == decision


def test_a_stack_can_have_its_own_thresholds_and_limits() -> None:
    policy = Policy.read(
        {
            "every": {
                "thresholds": {"relevance_pct": 2.0, "memory_pct": 5.0},
                "fixed": [{"metric": "mfu_pct", "bound": "at_least", "value": 30}],
            },
            "stacks": {
                "ab": {
                    "thresholds": {"relevance_pct": 4.0},
                    "fixed": [{"metric": "mfu_pct", "bound": "at_least", "value": 20}],
                }
            },
        }
    )
    assert policy.of_stack("other").thresholds == Thresholds(2.0, 5.0, 1.0)
    assert policy.of_stack("ab").thresholds == Thresholds(4.0, 5.0, 1.0)
    figures = {"mfu_pct": Metric(25.0, 25.0, 25.0, 40)}
    (breach,) = policy.of_stack("other").breaches(figures)
    assert [part in breach.text() for part in ("MFU is 25.0 %", "at least 30.0 %")] == [True, True]
    assert policy.of_stack("ab").breaches(figures) == ()
    assert policy.of_stack("other").breaches({"mfu_pct": None}) == ()
    assert Policy.read(None) == Policy()


def test_what_means_nothing_is_refused_with_its_field() -> None:
    read, problems = read_thresholds({"relevance_pct": 0.1, "memory_pct": 3, "speed": 1, "loss_pct": "much"})
    assert read == {"memory_pct": 3.0}
    assert [name for name, _ in problems] == ["thresholds.relevance_pct", "thresholds.speed", "thresholds.loss_pct"]
    limits = [
        {"metric": "mfu_pct", "bound": "at_least", "value": 30},
        {"metric": "speed", "bound": "at_least", "value": 30},
        {"metric": "hours_without_run", "bound": "at_least", "value": 26},
        {"metric": "mfu_pct", "bound": "at_most", "value": -1},
    ]
    fixed, problems = read_fixed(limits)
    assert fixed == limits[:1]
    assert [name for name, _ in problems] == ["fixed.1.metric", "fixed.2.bound", "fixed.3.value"]


@pytest.mark.parametrize(
    ("budget", "runs", "hours", "allowed"),
    [
        (RerunBudget(), 1000, 1e6, True),
        (RerunBudget(reruns_a_day=3), 2, None, True),
        (RerunBudget(reruns_a_day=3), 3, None, False),
        (RerunBudget(gpu_hours_a_day=8.0), 30, 7.9, True),
        (RerunBudget(gpu_hours_a_day=8.0), 1, 8.0, False),
        (RerunBudget(reruns_a_day=0), 0, None, False),
    ],
)
def test_a_budget_ends_the_requests(budget: RerunBudget, runs: int, hours: float | None, allowed: bool) -> None:
    assert budget.allows(runs, hours) is allowed


def test_reruns_buy_power_and_cost_no_false_alarms() -> None:
    three = power(3.0, 0.01, 20)
    assert three.with_reruns > three.alone + 0.2
    assert 0.5 < three.reruns < 2
    nothing = power(0.0, 0.01, 20)
    assert nothing.with_reruns <= nothing.alone <= 0.01
    assert power(5.0, 0.003, 20).with_reruns > 0.99


def test_launches_needed_for_twice_the_smallest_reported_change() -> None:
    few, many = launches_needed(2.0, 0.006), launches_needed(2.0, 0.012)
    assert few is not None
    assert many is not None
    assert few < many
    assert launches_needed(2.0, 0.04) is None


def test_a_change_that_the_thresholds_leave_out_is_never_detected() -> None:
    assert launches_needed(1.0, 0.001) is None
    assert launches_needed(1.0, 0.001, thresholds=Thresholds(relevance_pct=0.5)) is not None
