"""What becomes of regressions as runs come in: fixed by proposal, back by themselves, one for each cause."""

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select

from app.domain.run import Metric, Value
from app.domain.verdict.triage import FIX_CLAIMED
from app.pipeline.regressions import costs_of
from app.regressions import words
from app.regressions.queries import get_regression
from app.settings import Settings
from app.storage.audit import events
from app.storage.database import read_session, transaction
from app.storage.tables import RegressionMemberRow, RegressionRow, utc_now
from app.storage.verdicts import regressions_of
from tests.regressions.judging import arrive, document_of, judge_all, regressions_in, steady

NEW_CONTAINER: dict[str, Value] = {"container": "nvcr.io/nvidia/nemo:26.08"}


def bring(engine: Engine, settings: Settings, times: list[float], at: float = 0, **columns: object) -> list[int]:
    runs = [arrive(engine, time, at + number, **columns) for number, time in enumerate(times)]
    judge_all(engine, settings)
    return runs


def close(engine: Engine, state: str, regression_id: int = 1) -> None:
    """As a person does."""
    with transaction(engine) as session:
        row = session.get_one(RegressionRow, regression_id)
        row.state, row.proposal, row.changed_at = state, "", utc_now()


def actions(engine: Engine, regression_id: int = 1) -> list[str]:
    with read_session(engine) as session:
        return [event.action for event in reversed(events(session, "regression", regression_id))]


def test_it_is_proposed_as_fixed_when_three_runs_are_back(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    slow = bring(engine, settings, steady(1080, 5), 14)
    bring(engine, settings, steady(1000, 2), 19)
    assert regressions_in(engine) == [("open", "", [slow[0]])]
    back = bring(engine, settings, [1001.0], 21)
    assert regressions_in(engine) == [("open", "fixed", [slow[0]])]
    with read_session(engine) as session:
        assert session.get_one(RegressionRow, 1).proposal_run_id == back[0] - 2
    assert actions(engine) == ["opened", "proposal_made"]


def test_a_proposal_is_taken_back_when_the_level_is(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1080, 5), *steady(1000, 4)])
    assert regressions_in(engine)[0][1] == "fixed"
    bring(engine, settings, steady(1080, 3), 23)
    assert [one[:2] for one in regressions_in(engine)] == [("open", "")]


def test_what_was_fixed_comes_back_with_three_runs_and_not_with_one(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1080, 5), *steady(1000, 6)])
    close(engine, "fixed")
    bring(engine, settings, steady(1080, 2), 25)
    assert [one[:2] for one in regressions_in(engine)] == [("fixed", "")]
    bring(engine, settings, steady(1080, 1), 27)
    assert [one[:2] for one in regressions_in(engine)] == [("open", "")]
    assert actions(engine)[-1] == "reopened"


def test_noise_reopens_nothing_and_a_fix_that_was_none_is_told_by_three_runs(
    engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1080, 3)])
    close(engine, "fixed")
    bring(engine, settings, [1081.0, 1079.0], 17)
    assert regressions_in(engine)[0][0] == "fixed"
    bring(engine, settings, [1080.0], 19)
    assert regressions_in(engine)[0][0] == "open"


def test_a_fix_is_a_claim_that_still_costs_until_the_runs_are_back(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1080, 4)])
    close(engine, "fixed")
    bring(engine, settings, steady(1000, 2), 18)
    with read_session(engine) as session:
        claimed = get_regression(session, 1)
        (cost,) = costs_of(session, claimed, utc_now()).values()
        assert claimed.standing == FIX_CLAIMED
        assert regressions_of(session, claimed.members[0].run_id)[0].standing == FIX_CLAIMED
        assert claimed.gpu_hours_per_day == cost.gpu_hours_per_day
        assert cost.gpu_hours_per_day
        assert words.answer(claimed).endswith("waiting for a run to confirm it. It costs under 0.1 GPU-hours a day.")
    bring(engine, settings, [1001.0], 20)
    with read_session(engine) as session:
        confirmed = get_regression(session, 1)
        assert (confirmed.standing, confirmed.gpu_hours_per_day) == ("fixed", 0)
        assert regressions_of(session, confirmed.members[0].run_id)[0].standing == "fixed"
    assert actions(engine) == ["opened", "fix_confirmed"]


@pytest.mark.parametrize("state", ["acknowledged", "expected"])
def test_while_it_lasts_nothing_else_is_opened_for_it(engine: Engine, settings: Settings, state: str) -> None:
    bring(engine, settings, [*steady(1000, 14), 1080.0])
    close(engine, state)
    bring(engine, settings, steady(1080, 5), 15)
    assert [one[0] for one in regressions_in(engine)] == [state]


def test_a_further_slow_down_is_a_regression_of_its_own(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1060, 5)])
    further = bring(engine, settings, steady(1150, 2), 19)
    assert [one[0] for one in regressions_in(engine)] == ["open", "open"]
    assert regressions_in(engine)[1][2] == [further[0]]


def test_a_slow_run_that_came_in_late_is_where_it_began(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [1082.0], 15)
    earlier = bring(engine, settings, [1080.0], 14)
    assert regressions_in(engine) == [("open", "", earlier)]
    assert actions(engine) == ["opened", "moved"]


def test_stacks_that_one_commit_slows_down_are_members_of_one_regression(engine: Engine, settings: Settings) -> None:
    for gpus in (16, 32):
        for number, time in enumerate(steady(1000, 10)):
            arrive(engine, time, number, commit=f"commit {number}", fields={"gpus": gpus})
    slow = [arrive(engine, 1100, 10, commit="guilty", fields={"gpus": gpus}) for gpus in (16, 32)]
    judge_all(engine, settings)
    assert regressions_in(engine) == [("open", "", slow)]
    with read_session(engine) as session:
        row = session.exec(select(RegressionRow)).one()
    assert (row.cause_key, row.cause) == ("code:guilty", "Code: commit 9 -> guilty.")
    bring(engine, settings, steady(1000, 4), 11, fields={"gpus": 16})
    assert regressions_in(engine)[0][1] == ""  # the other stack is still slow
    bring(engine, settings, steady(1000, 4), 11, fields={"gpus": 32})
    assert regressions_in(engine)[0][1] == "fixed"


def test_a_knob_that_was_turned_makes_an_ab_and_opens_nothing(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    (slow,) = bring(engine, settings, steady(1100, 1), 10, fields={"ep_overlap": True})
    found = document_of(engine, slow)
    assert (found.baseline_kind, found.decision, found.raises_regression) == ("last_config", "regression", False)
    assert regressions_in(engine) == []


def test_two_jobs_with_the_same_flags_are_judged_apart(engine: Engine, settings: Settings) -> None:
    for number, time in enumerate(steady(1000, 10)):
        bring(engine, settings, [time], number, job="muon", commit=f"c{number}")
        bring(engine, settings, [1.2 * time], number, job="adam", commit=f"c{number}")
    (slow,) = bring(engine, settings, [1100.0], 10, job="muon")
    assert len(document_of(engine, slow).baseline) == 10
    assert regressions_in(engine) == [("open", "", [slow])]


def test_an_upgrade_that_costs_opens_one_regression_with_its_stacks(engine: Engine, settings: Settings) -> None:
    for gpus in (16, 32):
        bring(engine, settings, steady(1000, 10), fields={"gpus": gpus})
        bring(engine, settings, steady(1100, 2), 10, fields={"gpus": gpus, **NEW_CONTAINER})
    with read_session(engine) as session:
        row = session.exec(select(RegressionRow)).one()
        members = session.exec(select(RegressionMemberRow).order_by(col(RegressionMemberRow.run_id))).all()
    assert row.kind == "upgrade"
    assert row.cause_key == "upgrade:container:nvcr.io/nvidia/nemo:26.06:nvcr.io/nvidia/nemo:26.08"
    assert len({member.stack_key for member in members}) == 2
    assert document_of(engine, members[0].run_id).decision == "no_baseline"


def test_more_memory_is_a_regression_of_its_own_metric(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    metrics = {"peak_memory_gib": Metric(70.0, 70.0, 70.0, 2)}
    more = bring(engine, settings, [1000.0], 10, peak_memory_gib=metrics["peak_memory_gib"].value)
    with read_session(engine) as session:
        row = session.exec(select(RegressionRow)).one()
    assert (row.metric, row.gpu_hours_per_day) == ("peak_memory_gib", None)
    bring(engine, settings, steady(1000, 3), 11)
    assert regressions_in(engine) == [("open", "fixed", more)]


def test_an_experiment_is_measured_and_opens_nothing(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    trial = bring(engine, settings, [1100.0], 10, fields={"ep_overlap": True}, purpose="experiment")[0]
    found = document_of(engine, trial)
    assert (found.decision, found.raises_regression, found.baseline_kind) == ("regression", False, "last_config")
    assert found.comparability is not None
    assert found.comparability.kind == "matched_ab"
    assert regressions_in(engine) == []


def test_without_ci_runs_an_experiment_is_measured_against_the_nearest_one(engine: Engine, settings: Settings) -> None:
    fields: dict[str, Value] = {"ep_overlap": True}
    first = arrive(engine, 1000, 0, purpose="experiment", fields={"tp": 2}, iterations=14)
    nearest = arrive(engine, 1000, 1, purpose="experiment", iterations=14)
    trial = arrive(engine, 800, 2, purpose="experiment", fields=fields, iterations=14)
    judge_all(engine, settings)
    found = document_of(engine, trial)
    assert (found.baseline_kind, found.baseline) == ("nearest", (str(nearest),))
    assert (found.decision, found.rests_on) == ("improvement", 10)
    assert found.verdict.notes[0].startswith("Direction only: the shorter side has 10 iterations.")
    assert document_of(engine, first).decision == "no_baseline"


def test_what_a_regression_costs_follows_from_how_often_the_stack_runs(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0])
    with read_session(engine) as session:
        row = session.exec(select(RegressionRow)).one()
    # One run a day of 50 steps, 16 GPUs and a tenth of a second more a step.
    assert row.gpu_hours_per_day == pytest.approx(1 * 50 * 0.1 * 16 / 3600, rel=0.02)
