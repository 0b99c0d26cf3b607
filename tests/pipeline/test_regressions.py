"""Regressions as runs arrive: cause, branch, size, cost, contrast, fixed and reopened."""

import math
from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.domain.notifications.events import Subscription
from app.domain.run import Metric, Value
from app.domain.verdict.document import UNCONFIRMED
from app.domain.verdict.regression import Regression
from app.domain.verdict.regression_text import summarize
from app.domain.verdict.triage import FIX_CLAIMED
from app.pipeline import decisions
from app.pipeline.process import read_before, request_judging
from app.pipeline.regressions import costs_of, refresh_costs
from app.pipeline.work import ELSEWHERE
from app.regressions.commands import Answer, RegressionChange, Seen, change_regressions
from app.runs.queries import get_run
from app.runs.verdict_view import verdict_view
from app.settings import Settings
from app.storage.audit import events
from app.storage.database import read_session, transaction
from app.storage.regressions import get_regression
from app.storage.stacks import names_of_stacks
from app.storage.tables import (
    DeliveryRow,
    ProjectRow,
    ReceiverRow,
    RegressionMemberRow,
    RegressionRow,
    RunRow,
    StackWorkRow,
    utc_now,
)
from app.storage.upgrade_changes import upgrade_changes
from app.storage.verdicts import jobs_of_regressions, regressions_of, verdicts_of
from tests.builders import make_run, make_stack
from tests.regressions.judging import arrive, bring, document_of, judge_all, regressions_in, steady
from workers import tasks

NEW_CONTAINER: dict[str, Value] = {"container": "nvcr.io/nvidia/nemo:26.08"}


def close(engine: Engine, state: str, regression_id: int = 1) -> None:
    with transaction(engine) as session:
        row = session.get_one(RegressionRow, regression_id)
        row.state, row.proposal, row.changed_at = state, "", utc_now()


def actions(engine: Engine, regression_id: int = 1) -> list[str]:
    with read_session(engine) as session:
        return [event.action for event in reversed(events(session, "regression", regression_id))]


def test_it_is_proposed_as_fixed_when_two_full_runs_are_back(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    slow = bring(engine, settings, steady(1080, 5), 14)
    back = bring(engine, settings, [1001.0], 19)
    bring(engine, settings, [1000.0], 20, short=True)
    assert regressions_in(engine) == [("open", "", [slow[0]])]
    bring(engine, settings, [1002.0], 21)
    assert regressions_in(engine) == [("open", "fixed", [slow[0]])]
    with read_session(engine) as session:
        assert session.get_one(RegressionRow, 1).proposal_run_id == back[0]
    assert actions(engine) == ["opened", "proposal_made"]


def test_a_single_slow_launch_opens_nothing_until_the_next_one_confirms_it(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    (first,) = bring(engine, settings, [1100.0], 14)
    assert document_of(engine, first).decision == "regression"
    assert document_of(engine, first).requested_reruns == 1
    assert regressions_in(engine) == []
    bring(engine, settings, steady(1000, 3), 15)
    (second,) = bring(engine, settings, [1090.0], 18)
    assert regressions_in(engine) == []  # two slow nights with good ones between them
    bring(engine, settings, [1095.0], 19)
    assert regressions_in(engine) == [("open", "", [second])]


def test_a_slow_rerun_confirms_a_slow_launch_and_a_fast_one_clears_it(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    (slow,) = bring(engine, settings, [1100.0], 14, commit="guilty")
    bring(engine, settings, [1103.0], 15, commit="guilty")
    assert regressions_in(engine) == [("open", "", [slow])]
    bring(engine, settings, [*steady(1000, 3), 1100.0], 16)
    (odd,) = bring(engine, settings, [1100.0], 30, commit="acquitted")
    bring(engine, settings, [1001.0], 31, commit="acquitted")
    assert document_of(engine, odd).decision == "inconclusive"
    assert len(regressions_in(engine)) == 1


def test_a_regression_follows_its_job_to_the_next_container(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10), job="perf")
    slow = bring(engine, settings, steady(1100, 4), 10, job="perf")
    (first,) = bring(engine, settings, [1001.0], 14, job="perf", fields=NEW_CONTAINER)
    assert [regression[:2] for regression in regressions_in(engine)] == [("open", "")]
    bring(engine, settings, [1002.0], 15, job="perf", fields=NEW_CONTAINER)
    assert regressions_in(engine) == [("open", "fixed", [slow[0], first])]
    assert actions(engine) == ["opened", "continued", "proposal_made"]


def test_a_stack_that_runs_again_takes_its_regression_back(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10), job="perf")
    slow = bring(engine, settings, steady(1100, 4), 10, job="perf")
    moved = bring(engine, settings, [1001.0, 1002.0], 14, job="perf", fields=NEW_CONTAINER)
    assert regressions_in(engine) == [("open", "fixed", [slow[0], moved[0]])]
    bring(engine, settings, [1101.0], 16, job="perf")
    assert regressions_in(engine) == [("open", "", [slow[0]])]
    assert actions(engine)[3:] == ["proposal_withdrawn", "taken_back"]
    bring(engine, settings, [1001.0], 17, job="perf", fields=NEW_CONTAINER)
    bring(engine, settings, steady(1000, 2), 18, job="perf")
    assert regressions_in(engine) == [("open", "fixed", [slow[0]])]


def test_a_stack_that_runs_again_long_after_its_job_moved_takes_nothing_back(
    engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, steady(1000, 10), job="perf")
    slow = bring(engine, settings, steady(1100, 4), 10, job="perf")
    moved = bring(engine, settings, steady(1101, 5), 14, job="perf", fields=NEW_CONTAINER)
    bring(engine, settings, [1102.0], 20, job="perf")  # a check
    assert regressions_in(engine) == [("open", "", [slow[0], moved[0]])]
    assert "taken_back" not in actions(engine)
    bring(engine, settings, steady(1000, 2), 21, job="perf", fields=NEW_CONTAINER)
    assert regressions_in(engine) == [("open", "fixed", [slow[0], moved[0]])]


def test_a_regression_that_goes_on_in_the_next_container_stays_open(engine: Engine, settings: Settings) -> None:
    slow = bring(engine, settings, [*steady(1000, 10), *steady(1100, 4)], job="perf")[10]
    (first, *_) = bring(engine, settings, steady(1101, 4), 14, job="perf", fields=NEW_CONTAINER)
    assert regressions_in(engine) == [("open", "", [slow, first])]
    bring(engine, settings, steady(1000, 2), 18, job="perf", fields=NEW_CONTAINER)
    assert regressions_in(engine) == [("open", "fixed", [slow, first])]


def test_a_proposal_is_taken_back_when_the_level_is(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1080, 5), *steady(1000, 4)])
    assert regressions_in(engine)[0][1] == "fixed"
    bring(engine, settings, steady(1080, 3), 23)
    assert [regression[:2] for regression in regressions_in(engine)] == [("open", "")]


def test_a_fixed_regression_returns_after_three_runs_and_not_after_one(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1080, 5), *steady(1000, 6)])
    close(engine, "fixed")
    bring(engine, settings, steady(1080, 2), 25)
    assert [regression[:2] for regression in regressions_in(engine)] == [("fixed", "")]
    bring(engine, settings, steady(1080, 1), 27)
    assert [regression[:2] for regression in regressions_in(engine)] == [("open", "")]
    assert actions(engine)[-1] == "reopened"


def test_noise_reopens_nothing_and_three_runs_disprove_a_fix(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1080, 3)])
    close(engine, "fixed")
    bring(engine, settings, [1081.0, 1079.0], 17)
    assert regressions_in(engine)[0][0] == "fixed"
    bring(engine, settings, [1080.0], 19)
    assert regressions_in(engine)[0][0] == "open"


def test_a_fix_is_a_claim_that_still_costs_until_the_runs_are_back(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1080, 4)])
    close(engine, "fixed")
    bring(engine, settings, steady(1000, 1), 18)
    with read_session(engine) as session:
        claimed = get_regression(session, 1)
        (cost,) = costs_of(session, claimed.id, utc_now()).values()
        assert claimed.shown_state == FIX_CLAIMED
        assert regressions_of(session, claimed.members[0].run_id)[0].shown_state == FIX_CLAIMED
        assert claimed.gpu_hours_per_day == cost.gpu_hours_per_day
        assert cost.gpu_hours_per_day
        assert "Marked as fixed" in summarize(claimed).text
    bring(engine, settings, [1001.0], 20)
    with read_session(engine) as session:
        confirmed = get_regression(session, 1)
        assert (confirmed.shown_state, confirmed.gpu_hours_per_day) == ("fixed", 0)
        assert regressions_of(session, confirmed.members[0].run_id)[0].shown_state == "fixed"
    assert actions(engine) == ["opened", "fix_confirmed"]


@pytest.mark.parametrize("state", ["acknowledged", "expected"])
def test_while_it_lasts_nothing_else_is_opened_for_it(engine: Engine, settings: Settings, state: str) -> None:
    bring(engine, settings, [*steady(1000, 14), 1080.0, 1081.0])
    close(engine, state)
    bring(engine, settings, steady(1080, 4), 16)
    assert [regression[0] for regression in regressions_in(engine)] == [state]


def test_a_further_slowdown_is_a_separate_regression(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1060, 5)])
    further = bring(engine, settings, steady(1150, 2), 19)
    assert [regression[0] for regression in regressions_in(engine)] == ["open", "open"]
    assert regressions_in(engine)[1][2] == [further[0]]


def test_a_slow_run_that_came_in_late_is_where_it_began(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [1082.0, 1081.0], 15)
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
    assert (row.cause_key, row.cause) == ("code:guilty", "Code: commit 9 → guilty.")
    bring(engine, settings, steady(1000, 4), 11, fields={"gpus": 16})
    assert regressions_in(engine)[0][1] == ""  # the other stack is still slow
    bring(engine, settings, steady(1000, 4), 11, fields={"gpus": 32})
    assert regressions_in(engine)[0][1] == "fixed"


def test_a_knob_that_was_turned_makes_an_ab_and_opens_nothing(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    (slow,) = bring(engine, settings, steady(1100, 1), 10, fields={"ep_overlap": True})
    result = document_of(engine, slow)
    assert (result.baseline_kind, result.decision, result.raises_regression) == ("last_config", "regression", False)
    assert regressions_in(engine) == []


def test_two_jobs_with_the_same_flags_are_judged_apart(engine: Engine, settings: Settings) -> None:
    for number, time in enumerate(steady(1000, 10)):
        bring(engine, settings, [time], number, job="muon", commit=f"c{number}")
        bring(engine, settings, [1.2 * time], number, job="adam", commit=f"c{number}")
    slow, _ = bring(engine, settings, [1100.0, 1101.0], 10, job="muon")
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


@pytest.mark.parametrize("confirming", [True, False])
def test_a_drifting_run_after_an_upgrade_waits_for_a_second_stack(
    engine: Engine, settings: Settings, confirming: bool
) -> None:
    """Both then belong to the regression, whether or not the second run drifts as well."""
    slow = []
    for gpus, is_steady in ((16, False), (32, confirming)):
        bring(engine, settings, steady(1000, 10), fields={"gpus": gpus})
        assert regressions_in(engine) == []
        drifting = {"is_steady": is_steady, "fields": {"gpus": gpus, **NEW_CONTAINER}}
        slow += bring(engine, settings, [1300.0], 10, **drifting)
    assert regressions_in(engine) == [("open", "", slow)]


def test_every_run_of_a_slow_segment_names_its_regression(engine: Engine, settings: Settings) -> None:
    """A run that is as fast as its baseline raises no alarm, although that baseline is already slow."""
    before = bring(engine, settings, steady(1000, 10))
    slow = bring(engine, settings, steady(1100, 14), 10, fields=NEW_CONTAINER)
    odd = bring(engine, settings, [1001.0], 24, fields=NEW_CONTAINER)
    more = bring(engine, settings, [1101.0], 25, fields=NEW_CONTAINER)
    assert document_of(engine, slow[-1]).decision == "no_change"
    assert [explained_by(engine, run) for run in (*slow, *more)] == [[1]] * 15
    assert [explained_by(engine, run) for run in (*before, *odd)] == [[]] * 11, "of another level"
    with read_session(engine) as session:
        (own,) = regressions_of(session, slow[-1])
    assert own.continues
    assert (own.kind, own.is_member, own.since_run) == ("upgrade", False, slow[0])
    assert own.usual == pytest.approx(1000, rel=0.01)
    close(engine, "expected")
    assert explained_by(engine, slow[-1]) == []


def test_an_upgrade_that_the_first_run_cannot_show_is_measured_over_the_first_runs(
    engine: Engine, settings: Settings
) -> None:
    """One launch against three cannot show 4.5 %; three can. Then it is a regression of the upgrade."""
    bring(engine, settings, [1000.0, 1004.0, 997.0])
    after = bring(engine, settings, [1045.0, 1047.0, 1043.0, 1046.0], 10, fields=NEW_CONTAINER)
    first = document_of(engine, after[0]).contrast
    assert first is not None
    assert first.measured.decision == "inconclusive"
    measured = document_of(engine, after[-1]).since_upgrade
    assert measured is not None
    assert measured.measured.candidates_used == tuple(map(str, after))
    assert measured.measured.decision == "regression"
    assert regressions_in(engine) == [("open", "", [after[0]])], "it begins at the first run after the upgrade"
    with read_session(engine) as session:
        (change,) = upgrade_changes(session)
        assert session.exec(select(RegressionRow)).one().kind == "upgrade"
    assert (change.field, change.stacks[0].decision, change.stacks[0].run_id) == ("container", "regression", after[0])
    with read_session(engine) as session:
        member = session.exec(select(RegressionMemberRow)).one()
    (job,) = change.stacks
    assert job.delta_pct == pytest.approx(member.delta_pct), "the sentence and the regression state the same"
    assert (job.runs, job.from_runs) == (len(after), 3)
    assert job.ci_low_pct < job.delta_pct < job.ci_high_pct
    later = bring(engine, settings, steady(1045, 4), 20, fields=NEW_CONTAINER)
    assert document_of(engine, later[-1]).since_upgrade is None
    assert regressions_in(engine) == [("open", "", [after[0]])]
    bring(engine, settings, [1001.0], 30)  # a rollback or a check: the old container had ended
    with read_session(engine) as session:
        assert len(upgrade_changes(session)) == 1
    assert [state for state, *_ in regressions_in(engine)] == ["open"]
    bring(engine, settings, [1001.0], 12.5)  # it came late, and shows that the old container was still in use
    with read_session(engine) as session:
        assert upgrade_changes(session) == ()
    assert [state for state, *_ in regressions_in(engine)] == ["invalid"]


def test_a_regression_has_the_size_that_its_upgrade_was_last_measured_with(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    first, second = bring(engine, settings, [1100.0, 1080.0], 10, fields=NEW_CONTAINER)
    measured = document_of(engine, second).since_upgrade
    assert measured is not None
    assert measured.measured.step_time is not None
    with read_session(engine) as session:
        member = session.exec(select(RegressionMemberRow)).one()
        ((job,),) = (change.stacks for change in upgrade_changes(session))
    assert member.run_id == first
    assert member.delta_pct == pytest.approx(measured.measured.step_time.delta_pct)
    assert job.delta_pct == pytest.approx(member.delta_pct)
    assert member.first_delta_pct == pytest.approx(10.0, abs=0.3)
    assert member.delta_pct < 9.5


def test_a_change_in_one_run_is_not_the_size_of_a_regression_that_lasts_in_another_stack(
    engine: Engine, settings: Settings
) -> None:
    for gpus, slow in ((16, [1500.0]), (32, steady(1100, 3))):
        bring(engine, settings, steady(1000, 10), fields={"gpus": gpus})
        bring(engine, settings, slow, 10, fields={"gpus": gpus, **NEW_CONTAINER})
    with read_session(engine) as session:
        regression = session.exec(select(RegressionRow)).one()
        assert regression.worst_delta_pct == pytest.approx(10.0, abs=0.3)
        jobs = jobs_of_regressions(session, [regression.id or 0])[regression.id or 0]
    members = [member for job in jobs for member in job]
    assert len(members) == 2
    assert [round(member.delta_pct or 0) for member in members if member.is_once] == [50]


def test_a_job_that_is_nearly_back_does_not_give_a_regression_its_size(engine: Engine, settings: Settings) -> None:
    for gpus, slow in ((16, [1500.0, 1500.0, 1050.0]), (32, steady(1100, 3))):
        bring(engine, settings, steady(1000, 10), fields={"gpus": gpus})
        bring(engine, settings, slow, 10, fields={"gpus": gpus, **NEW_CONTAINER})
    with read_session(engine) as session:
        regression = session.exec(select(RegressionRow)).one()
        assert regression.worst_delta_pct == pytest.approx(10.0, abs=0.3)


def test_a_stack_has_one_name_on_pages_and_in_messages(engine: Engine, settings: Settings, client: TestClient) -> None:
    """The two stacks have the same title, so that their names need the sequence length."""
    for seq_len in (4096, 8192):
        bring(engine, settings, steady(1000, 10), fields={"seq_len": seq_len})
    with transaction(engine) as session:
        project = session.exec(select(ProjectRow)).one().id or 0
        session.add(
            ReceiverRow(
                project_id=project, kind="webhook", name="pager", target="https://1.1.1.1/hook", created_by="Ada",
                rules=Subscription(("regression.opened",)).as_json(),
            )
        )  # fmt: skip
    bring(engine, settings, steady(1100, 3), 10, fields={"seq_len": 8192})
    with read_session(engine) as session:
        (member,) = get_regression(session, 1).members
        (delivery,) = session.exec(select(DeliveryRow)).all()
        (name,) = names_of_stacks(session, [member.stack_key]).values()
    assert name.endswith("seq 8192")
    assert member.title == name
    assert name in str(delivery.payload)
    (listed,) = client.get("/api/v1/regressions?state=any").json()["items"]
    assert [own["title"] for own in listed["members"]] == [name]


def test_an_upgrade_that_makes_a_stack_faster_is_listed_and_reported(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    with transaction(engine) as session:
        make_stack(session, steady(1000, 10))
        project = session.exec(select(ProjectRow)).one().id or 0
        session.add(
            ReceiverRow(
                project_id=project, kind="webhook", name="pager", target="https://1.1.1.1/hook", created_by="Ada",
                rules=Subscription(("upgrade.improvement",)).as_json(),
            )
        )  # fmt: skip
    (faster,) = bring(engine, settings, [800.0], 11, fields=NEW_CONTAINER)
    bring(engine, settings, [801.0], 12, fields=NEW_CONTAINER)
    (change,) = client.get("/api/v1/upgrades").json()["items"]
    assert (change["field"], change["to_value"]) == ("container", NEW_CONTAINER["container"])
    assert (change["stacks"][0]["decision"], change["stacks"][0]["run_id"]) == ("improvement", faster)
    for page in ("/?days=90", "/regressions"):
        assert 'data-upgrade="container"' in client.get(page).text, page
    with read_session(engine) as session:
        (delivery,) = session.exec(select(DeliveryRow)).all()
    assert delivery.payload["data"]["upgrade"]["run"] == faster
    assert client.get("/api/v1/upgrades?since=2100-01-01T00:00:00").json() == {"items": []}


def test_the_report_of_a_commit_has_all_its_stacks_with_the_chance_of_each(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    for gpus, slow in ((16, 1100.0), (32, 1000.0), (64, 1001.0)):
        for number, time in enumerate(steady(1000, 10)):
            arrive(engine, time, number, fields={"gpus": gpus}, commit=f"{number:08x}")
        reruns = [arrive(engine, slow + rerun, 10, fields={"gpus": gpus}, commit="deadbeef01") for rerun in (0, 1)]
        judge_all(engine, settings)
    report = client.get("/api/v1/commits/deadbeef/report?project=moe-lab").json()
    assert [stack["verdict"] for stack in report["stacks"]] == ["regression", "no_change", "no_change"]
    assert report["commit"] == "deadbeef01"
    assert report["summary"] == "3 stacks: 1 regression; 2 no change."
    for stack in report["stacks"]:
        page_begins = client.get(f"/api/v1/runs/{stack['runs'][-1]}/report").json()["headline"]
        assert stack["headline"] == page_begins
        assert page_begins.startswith(f"{stack['badge']} · ")
    assert report["stacks"][0]["q_value"] == pytest.approx(3 * report["stacks"][0]["p_value"])
    assert reruns in [stack["runs"] for stack in report["stacks"]]
    markdown = client.get("/api/v1/commits/deadbeef/report.md?project=moe-lab")
    assert markdown.text.count("/runs/") == 3
    assert client.get("/api/v1/commits/0123456789/report?project=moe-lab").status_code == 404
    assert client.get("/api/v1/commits/dead/report?project=moe-lab").status_code == 422


def test_the_report_of_a_commit_calls_one_slow_launch_unconfirmed(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number, commit=f"{number:08x}")
    arrive(engine, 1100.0, 10, commit="deadbeef01")
    judge_all(engine, settings)
    report = client.get("/api/v1/commits/deadbeef/report?project=moe-lab").json()
    (stack,) = report["stacks"]
    assert (stack["verdict"], stack["badge"], stack["needs_confirmation"]) == ("regression", UNCONFIRMED, True)
    assert report["summary"] == f"1 stack: 1 {UNCONFIRMED}."


def test_more_memory_is_a_regression_of_the_memory_metric(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    metrics = {"peak_memory_gib": Metric(70.0, 70.0, 70.0, 2)}
    more = bring(engine, settings, [1000.0], 10, peak_memory_gib=metrics["peak_memory_gib"].value)
    with read_session(engine) as session:
        row = session.exec(select(RegressionRow)).one()
    assert (row.metric, row.gpu_hours_per_day) == ("peak_memory_gib", None)
    bring(engine, settings, steady(1000, 3), 11)
    assert regressions_in(engine) == [("open", "fixed", more)]


def test_one_rise_that_each_new_container_shows_again_is_one_regression(engine: Engine, settings: Settings) -> None:
    """Each upgrade is measured against the last stack with enough runs, so the same rise is measured again."""
    bring(engine, settings, steady(1000, 3), job="perf", peak_memory_gib=60.0)
    first = bring(
        engine, settings, [1000.0], 3, job="perf", peak_memory_gib=62.0, is_steady=False, fields=NEW_CONTAINER
    )
    next_one: dict[str, Value] = {"container": "nvcr.io/nvidia/nemo:26.10"}
    second = bring(engine, settings, [1000.0], 4, job="perf", peak_memory_gib=61.9, fields=next_one)
    assert regressions_in(engine) == [("open", "", [*first, *second])]
    assert actions(engine) == ["opened", "continued"]
    with read_session(engine) as session:
        assert [len(job.stacks) for job in get_regression(session, 1).jobs] == [2]
        [opener], [moved] = regressions_of(session, first[0]), regressions_of(session, second[0])
        assert (opener.opened, opener.continues, opener.since_run) == (True, False, first[0])
        assert (moved.opened, moved.continues, moved.since_run) == (False, True, first[0])
        assert session.get_one(RunRow, second[0]).badge != "regression", "it made nothing worse"
    bring(engine, settings, [1000.0, 1001.0], 5, job="perf", peak_memory_gib=60.0, fields=next_one)
    assert regressions_in(engine) == [("open", "fixed", [*first, *second])]


def test_a_further_rise_after_an_upgrade_is_a_separate_regression(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 3), job="perf", peak_memory_gib=60.0)
    bring(engine, settings, [1000.0], 3, job="perf", peak_memory_gib=62.0, fields=NEW_CONTAINER)
    bring(engine, settings, [1000.0], 4, job="perf", peak_memory_gib=66.0, fields={"container": "nemo:26.10"})
    assert len(regressions_in(engine)) == 2


def test_a_rise_that_was_over_before_the_upgrade_is_a_separate_regression(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 3), job="perf", peak_memory_gib=60.0)
    for at, gib in ((3, 62.0), (4, 60.0)):
        bring(engine, settings, [1000.0], at, job="perf", peak_memory_gib=gib, is_steady=False, fields=NEW_CONTAINER)
    bring(engine, settings, [1000.0], 5, job="perf", peak_memory_gib=62.0, fields={"container": "nemo:26.10"})
    assert len(regressions_in(engine)) == 2


def test_a_job_that_moves_continues_the_larger_of_two_rises(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10), job="perf", peak_memory_gib=60.0)
    small = bring(engine, settings, [1000.0], 10, job="perf", peak_memory_gib=62.0)
    bring(engine, settings, [1000.0], 11, job="perf", peak_memory_gib=60.0)
    large = bring(engine, settings, [1000.0], 12, job="perf", peak_memory_gib=66.0)
    moved = bring(engine, settings, steady(1000, 4), 13, job="perf", peak_memory_gib=66.0, fields=NEW_CONTAINER)
    assert [runs for _, _, runs in regressions_in(engine)][:2] == [small, [*large, moved[0]]]
    with read_session(engine) as session:  # the larger one explains the alarm, so the run does not continue the other
        assert [item.id for item in regressions_of(session, large[0])] == [2]


def test_an_experiment_is_measured_and_opens_nothing(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    trial = bring(engine, settings, [1100.0], 10, fields={"ep_overlap": True}, purpose="experiment")[0]
    result = document_of(engine, trial)
    assert (result.decision, result.raises_regression, result.baseline_kind) == ("regression", False, "last_config")
    assert result.comparability is not None
    assert result.comparability.kind == "matched_ab"
    assert regressions_in(engine) == []


def test_without_ci_runs_an_experiment_is_measured_against_the_nearest_one(engine: Engine, settings: Settings) -> None:
    fields: dict[str, Value] = {"ep_overlap": True}
    first = arrive(engine, 1000, 0, purpose="experiment", fields={"tp": 2}, iterations=14)
    nearest = arrive(engine, 1000, 1, purpose="experiment", iterations=14)
    trial = arrive(engine, 800, 2, purpose="experiment", fields=fields, iterations=14)
    judge_all(engine, settings)
    result = document_of(engine, trial)
    assert (result.baseline_kind, result.baseline) == ("nearest", (str(nearest),))
    assert (result.decision, result.rests_on) == ("improvement", 10)
    assert result.verdict.notes[0].startswith("Direction only: ")
    assert document_of(engine, first).decision == "no_baseline"
    with read_session(engine) as session:
        shown = verdict_view(session, get_run(session, trial))
    assert shown is not None
    assert shown.baseline_label == "nearest configuration"


def test_the_cost_of_a_regression_follows_from_how_often_the_stack_runs(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    with read_session(engine) as session:
        row = session.exec(select(RegressionRow)).one()
    # One run per day with 50 steps, 16 GPUs and an extra tenth of a second per step.
    assert row.gpu_hours_per_day == pytest.approx(1 * 50 * 0.1 * 16 / 3600, rel=0.02)


BRANCH = "feature/x"


def causes(engine: Engine) -> list[str]:
    with read_session(engine) as session:
        return list(session.exec(select(RegressionRow.cause).order_by(col(RegressionRow.id))))


def explained_by(engine: Engine, run_id: int) -> list[int]:
    with read_session(engine) as session:
        return [regression.id for regression in regressions_of(session, run_id)]


def call_invalid(engine: Engine, settings: Settings, regression_id: int) -> None:
    change_regressions(
        engine, [Seen(regression_id)], RegressionChange("Ada", state="invalid", note="The request was closed.")
    )
    judge_all(engine, settings)


def test_a_regression_of_a_branch_hides_none_of_main(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    branch = bring(engine, settings, [1083.0, 1082.0], 10, branch=BRANCH)
    bring(engine, settings, steady(1000, 5), 12)
    main = bring(engine, settings, steady(1087, 3), 17)
    assert regressions_in(engine) == [("open", "", [branch[0]]), ("open", "", [main[0]])]
    assert causes(engine)[0].endswith(f", on branch {BRANCH}.")
    assert BRANCH not in causes(engine)[1]
    assert [explained_by(engine, run) for run in (*branch, *main)] == [[1], [1], [2], [2], [2]]


def test_what_main_made_slow_explains_the_branches(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    main = bring(engine, settings, [1087.0], 10)
    branch = bring(engine, settings, [1083.0], 11, branch=BRANCH)
    assert regressions_in(engine) == [("open", "", main)]
    assert explained_by(engine, branch[0]) == [1]


def test_a_commit_that_was_merged_is_one_regression(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    bring(engine, settings, [1083.0], 10, branch=BRANCH, commit="merged")
    bring(engine, settings, [1084.0], 11, commit="merged")
    bring(engine, settings, [1083.0], 12)
    assert [regression[0] for regression in regressions_in(engine)] == ["open"]


def test_main_that_was_slow_before_the_branch_takes_its_regression(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    bring(engine, settings, [1083.0], 11, branch=BRANCH)
    late = bring(engine, settings, [1087.0], 10)
    assert regressions_in(engine) == [("open", "", late)]
    assert BRANCH not in causes(engine)[0]


def test_a_branch_that_was_slow_before_takes_nothing_of_main(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    main = bring(engine, settings, [1087.0, 1086.0], 12)
    branch = bring(engine, settings, [1087.0, 1086.0], 10, branch=BRANCH)
    assert regressions_in(engine) == [("open", "", main[:1]), ("open", "", branch[:1])]


def test_runs_of_main_say_nothing_about_a_branch(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    bring(engine, settings, [1083.0, 1082.0], 10, branch=BRANCH)
    bring(engine, settings, steady(1000, 4), 12)
    assert regressions_in(engine)[0][1] == ""
    bring(engine, settings, steady(1000, 3), 16, branch=BRANCH)
    assert regressions_in(engine)[0][1] == "fixed"


def test_with_any_branch_as_baseline_there_is_one_line(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE project SET baseline_branch = '*'")
    slow = bring(engine, settings, [1083.0], 10, branch=BRANCH)
    bring(engine, settings, [1087.0], 11)
    assert regressions_in(engine) == [("open", "", slow)]


def test_runs_that_an_invalid_regression_explained_are_checked_again(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    slow = bring(engine, settings, steady(1080, 3), 14)
    assert regressions_in(engine) == [("open", "", [slow[0]])]
    call_invalid(engine, settings, 1)
    assert regressions_in(engine) == [("invalid", "", [slow[0]]), ("open", "", [slow[1]])]
    assert [explained_by(engine, run) for run in slow] == [[1], [2], [2]]
    judge_all(engine, settings)
    assert len(regressions_in(engine)) == 2


def test_an_invalid_one_explains_only_its_own_run(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [1080.0, 1081.0], 14, commit="odd")
    call_invalid(engine, settings, 1)
    bring(engine, settings, [1081.0], 16, commit="odd")
    bring(engine, settings, steady(1000, 3), 17)
    assert [regression[0] for regression in regressions_in(engine)] == ["invalid"]


def test_a_slow_run_belongs_to_no_regression_of_another_metric(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    memory = bring(engine, settings, [1000.0], 10, peak_memory_gib=70.0)
    slow = bring(engine, settings, [1090.0, 1091.0], 11)
    assert [explained_by(engine, run) for run in (*memory, *slow)] == [[1], [2], [2]]


NEW: dict[str, Value] = {"container": "nvcr.io/nvidia/nemo:26.08"}


def contrast(engine: Engine, run_id: int) -> tuple[str, ...]:
    result = document_of(engine, run_id).contrast
    return () if result is None else result.runs


def claims(engine: Engine) -> int:
    with read_session(engine) as session:
        return sum(session.exec(select(StackWorkRow.claims)))


def test_runs_from_before_the_upgrade_that_come_late_open_its_regression(engine: Engine, settings: Settings) -> None:
    upgraded = bring(engine, settings, [1100.0, 1101.0], 14, fields=NEW)
    assert regressions_in(engine) == []
    assert contrast(engine, upgraded[0]) == ()
    bring(engine, settings, steady(1000, 10))
    assert len(contrast(engine, upgraded[0])) == 10
    assert regressions_in(engine) == [("open", "", [upgraded[0]])]
    with read_session(engine) as session:
        assert verdicts_of(session, upgraded[0])[0].because == ELSEWHERE


def test_a_run_without_any_byte_is_not_a_nearest_run(engine: Engine, settings: Settings) -> None:
    before = bring(engine, settings, [1000.0, 1001.0])
    empty = arrive(engine, 1000, 2, fields={"container": "nvcr.io/nvidia/nemo:26.07"})
    with transaction(engine) as session:
        session.get_one(RunRow, empty).step_time_ms = None
    upgraded = bring(engine, settings, [1100.0], 14, fields=NEW)
    assert [miss.run for miss in document_of(engine, upgraded[0]).misses] == [str(before[1])]


def test_a_run_from_before_the_upgrade_that_is_quarantined_counts_no_more(engine: Engine, settings: Settings) -> None:
    before = bring(engine, settings, steady(1000, 10))
    upgraded = bring(engine, settings, [1100.0], 14, fields=NEW)
    assert str(before[3]) in contrast(engine, upgraded[0])
    with transaction(engine) as session:
        decisions.quarantine(session, before[3], "Ada", "bad node")
    judge_all(engine, settings)
    assert str(before[3]) not in contrast(engine, upgraded[0])
    with transaction(engine) as session:
        for run in before:
            decisions.quarantine(session, run, "Ada", "bad node")
    judge_all(engine, settings)
    assert contrast(engine, upgraded[0]) == ()
    assert [regression[0] for regression in regressions_in(engine)] == ["invalid"]


@pytest.mark.parametrize("fields", [{"gpus": 64, **NEW}, {}])
def test_only_stacks_that_differ_in_one_field_are_judged_again(
    engine: Engine, settings: Settings, fields: dict[str, Value]
) -> None:
    bring(engine, settings, [1100.0], 14, fields=fields)
    before = claims(engine)
    bring(engine, settings, [1000.0], 20 if not fields else 0, fields={} if fields else NEW)
    assert claims(engine) == before + 1


def test_it_ends(engine: Engine, settings: Settings) -> None:
    """Stacks that all differ in one field, each with runs that have no baseline, later and later."""
    for size in (4, 8, 16, 32):
        bring(engine, settings, [1000.0], size, fields={"pp": size})
    before = claims(engine)
    bring(engine, settings, [1000.0], 1, fields={"pp": 64})
    assert claims(engine) == before + 5  # its own, and each of the four once


def test_a_run_that_left_its_stack_counts_no_more(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 3))
    last = bring(engine, settings, [1000.0], 3)[0]
    upgraded = bring(engine, settings, [1100.0], 14, fields=NEW)[0]
    other = bring(engine, settings, [990.0], 20, fields={"gpus": 512, "seq_len": 512})[0]
    assert str(last) in contrast(engine, upgraded)
    with transaction(engine) as session:
        keys = session.get_one(RunRow, other)
        request_judging(session, read_before(session, last), keys.stack_key)
        row = session.get_one(RunRow, last)
        row.stack_key, row.config_key = keys.stack_key, keys.config_key
        row.result.contract, row.processed_at = keys.result.contract, utc_now()
    judge_all(engine, settings)
    assert str(last) not in contrast(engine, upgraded)


def test_a_release_before_the_upgrade_does_not_hide_the_runs_that_count(engine: Engine, settings: Settings) -> None:
    before = bring(engine, settings, steady(1000, 10))
    bring(engine, settings, [1003.0], 12, purpose="release", branch="release")
    upgraded = bring(engine, settings, [1100.0], 14, fields=NEW)
    assert contrast(engine, upgraded[0]) == tuple(str(run) for run in before)
    assert regressions_in(engine) == [("open", "", [upgraded[0]])]


def test_another_container_in_parallel_use_is_not_an_upgrade(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    beside = bring(engine, settings, [1100.0], 11, fields=NEW)
    assert regressions_in(engine) == [("open", "", beside)]
    bring(engine, settings, [1001.0], 12)  # the old container runs again
    assert regressions_in(engine) == [("invalid", "", beside)]
    with read_session(engine) as session:
        withdrawn = events(session, "regression", 1)[0]
    assert (withdrawn.action, "ran again" in withdrawn.note) == ("withdrawn", True), "a later run may be as slow"
    result = document_of(engine, beside[0]).contrast
    assert result is not None
    assert result.side_by_side
    assert result.measured.step_time is not None  # still shown with its number


def test_a_slowdown_in_both_containers_is_a_regression_and_not_an_upgrade(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10), job="perf")
    beside = bring(engine, settings, [1400.0], 11, job="perf", fields=NEW)
    assert regressions_in(engine) == [("open", "", beside)]
    slow = bring(engine, settings, [1410.0], 12, job="perf")  # the old container, and as slow
    assert regressions_in(engine) == [("invalid", "", beside), ("open", "", slow)]


def test_two_clusters_of_one_commit_are_not_an_upgrade(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [1000.0, 1001.0], fields={"cluster": "west"}, commit="c1", job="perf")
    bring(engine, settings, [1150.0], fields={"cluster": "east"}, commit="c1", job="perf")
    assert regressions_in(engine) == []


def test_an_upgrade_of_one_job_is_measured_though_its_flags_changed(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 5), job="muon")
    bring(engine, settings, steady(700, 5), job="adam")
    (upgraded,) = bring(engine, settings, [1400.0], 14, job="muon", fields={**NEW, "ep_overlap": True})
    assert len(contrast(engine, upgraded)) == 5
    assert regressions_in(engine) == [("open", "", [upgraded])]


def test_two_clusters_in_use_together_are_not_an_upgrade(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [1000.0], fields={"cluster": "west"}, job="perf")
    bring(engine, settings, [500.0], 1, fields={"cluster": "east", "gpus": 64}, job="other")
    bring(engine, settings, [1001.0], 2, fields={"cluster": "west"}, job="perf")
    bring(engine, settings, [1150.0], 3, fields={"cluster": "east"}, job="perf")
    assert regressions_in(engine) == []


NIGHTLY = 50 * 0.1 * 16 / 3600
"""GPU-hours a day: one run a day of 50 steps on 16 GPUs, a tenth of a second more a step."""
FACTORS = ("runs_per_day", "extra_ms_per_step", "steps_per_run", "gpus")
OLD_IMAGE, NEW_IMAGE = "nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.08"


def costs(engine: Engine) -> list[float | None]:
    with read_session(engine) as session:
        return list(session.exec(select(RegressionRow.gpu_hours_per_day).order_by(col(RegressionRow.id))))


def renew(engine: Engine, *, days: float = 0) -> None:
    with transaction(engine) as session:
        refresh_costs(session, utc_now() + timedelta(days=days))


def test_it_costs_nothing_once_it_is_back(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), *steady(1100, 5)])
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]
    bring(engine, settings, steady(1000, 5), 19)
    assert regressions_in(engine)[0][1] == "fixed"
    assert costs(engine) == [0.0]


def test_a_stack_that_ended_costs_nothing_while_its_project_goes_on(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    bring(engine, settings, [500.0], 40, fields={"gpus": 32})
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]  # that stack was not judged again
    renew(engine)
    assert costs(engine) == [0.0]


@pytest.mark.usefixtures("app")
def test_costs_follow_new_runs_as_soon_as_none_waits(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    tasks.sweep()
    bring(engine, settings, [500.0], 40, fields={"gpus": 32})
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]
    tasks.sweep()
    assert costs(engine) == [0.0]


def answer(engine: Engine, answer: Answer) -> None:
    change_regressions(engine, [Seen(1)], RegressionChange("Ada", answer=answer))


def test_a_regression_whose_stack_ended_is_proposed_as_stale_once(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    bring(engine, settings, [500.0], 44, fields={"gpus": 32})
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "")
    bring(engine, settings, [500.0], 47, fields={"gpus": 32})
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "stale")
    with read_session(engine) as session:
        stale = get_regression(session, 1)
        newest = events(session, "regression", 1)[0]
    assert stale.proposal_run_id is None
    # A day stays true, whatever the time of the reader's clock or of the project's newest run.
    assert stale.idle_since
    assert summarize(stale).text.endswith(f", no runs since {stale.idle_since}.")
    assert newest.note == f"None of its jobs has run since {stale.idle_since}."
    answer(engine, "decline")
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "")


def test_a_regression_whose_stack_ended_with_a_usual_run_is_proposed_as_fixed(
    engine: Engine, settings: Settings
) -> None:
    """One usual run is not enough while the stack runs on; but no later one will come."""
    for gpus in (16, 32):
        bring(engine, settings, steady(1000, 14), fields={"gpus": gpus})
    for gpus, ms in ((16, 1400.0), (32, 1300.0)):
        bring(engine, settings, [ms], 14, commit="guilty", fields={"gpus": gpus})
    bring(engine, settings, steady(1000, 2), 15, fields={"gpus": 16})
    (last,) = bring(engine, settings, [990.0], 17, fields={"gpus": 32})
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "")
    bring(engine, settings, [500.0], 50, fields={"gpus": 8})
    renew(engine)
    bring(engine, settings, [1000.0], 17.5, short=True, fields={"gpus": 32})  # the stack is judged again
    assert regressions_in(engine)[0][:2] == ("open", "fixed")
    with read_session(engine) as session:
        over = get_regression(session, 1)
        assert session.get_one(RegressionRow, 1).worst_delta_pct == over.worst_delta_pct
    assert (over.proposal_run_id, over.worst_delta_pct) == (last, pytest.approx(40, abs=1))
    assert over.is_back
    answer(engine, "accept")
    with read_session(engine) as session:
        assert get_regression(session, 1).shown_state == "fixed"  # not a claim


def test_only_stacks_that_are_still_slow_show_whether_a_regression_is_stale(engine: Engine, settings: Settings) -> None:
    """The page, the note and the cause are of the same jobs."""
    for gpus in (16, 32):
        bring(engine, settings, steady(1000, 10), fields={"gpus": gpus})
        bring(engine, settings, steady(1100, 2), 10, fields={"gpus": gpus, **NEW_CONTAINER})
    bring(engine, settings, steady(1000, 40), 12, fields={"gpus": 16, **NEW_CONTAINER})
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "stale")
    with read_session(engine) as session:
        stale = get_regression(session, 1)
        newest = events(session, "regression", 1)[0]
    assert [job.is_back for job in stale.jobs] == [True, False]
    assert summarize(stale).text == "1 job slow since #23; 1 recovered."
    assert newest.note == f"None of its slow jobs has run since {stale.idle_since}."


def read_one(engine: Engine) -> Regression:
    with read_session(engine) as session:
        return get_regression(session, 1)


def test_a_job_that_is_back_in_a_newer_container_is_proposed_as_fixed(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0], job="perf")
    (back,) = bring(engine, settings, [1002.0], 17, fields=NEW_CONTAINER, job="perf")
    bring(engine, settings, [500.0], 50, fields={"gpus": 32})
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "fixed")
    regression = read_one(engine)
    assert (regression.proposal_run_id, regression.is_back, bool(regression.back_in)) == (back, True, True)
    assert regression.back_in in summarize(regression).text
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "fixed")


def test_a_job_that_is_slow_in_a_newer_container_is_idle_only_after_its_last_run(
    engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0], job="perf")
    (newest,) = bring(engine, settings, [1300.0], 40, fields=NEW_CONTAINER, job="perf")
    bring(engine, settings, [500.0], 60, fields={"gpus": 32})
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "")
    bring(engine, settings, [500.0], 80, fields={"gpus": 32})
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "stale")
    regression = read_one(engine)
    assert regression.newest is not None
    assert regression.newest.id == newest
    assert regression.newest.ordered_at == regression.last_ran
    assert regression.newest.change_pct == pytest.approx(30, abs=0.5)


@pytest.mark.parametrize(("ms", "proposal"), [(1101.0, ""), (1300.0, "fixed")])
def test_a_recovered_job_that_is_slow_again_in_a_newer_container_withdraws_the_proposal(
    engine: Engine, settings: Settings, ms: float, proposal: str
) -> None:
    """A larger slowdown is a change of its own."""
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0], job="perf")
    bring(engine, settings, steady(1000, 2), 16, job="perf")
    assert regressions_in(engine)[0][:2] == ("open", "fixed")
    (slow,) = bring(engine, settings, [ms], 45, fields=NEW_CONTAINER, job="perf")
    bring(engine, settings, [500.0], 52, fields={"gpus": 32})
    for _ in range(2):
        renew(engine)
        regression = read_one(engine)
        assert (regression.state, regression.proposal) == ("open", proposal)
        assert (regression.again and regression.again.id) == (None if proposal else slow)


def test_a_job_slow_in_one_recent_run_keeps_no_idle_regression_open(engine: Engine, settings: Settings) -> None:
    """Pages state when the jobs that count last ran, so the same jobs decide whether it is idle."""
    for gpus, slow_runs, at in ((16, 2, 10), (32, 1, 50)):
        bring(engine, settings, steady(1000, 10), fields={"gpus": gpus})
        bring(engine, settings, steady(1100, slow_runs), at, fields={"gpus": gpus, **NEW_CONTAINER})
    renew(engine)
    with read_session(engine) as session:
        idle = get_regression(session, 1)
        newest = events(session, "regression", 1)[0]
    assert [len(idle.jobs), len(idle.counted_jobs)] == [2, 1]
    assert idle.proposal == "stale"
    assert newest.note == f"None of its slow jobs has run since {idle.idle_since}."


def test_a_stale_regression_whose_stack_runs_again_follows_its_runs(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    bring(engine, settings, [500.0], 47, fields={"gpus": 32})
    renew(engine)
    bring(engine, settings, [1100.0], 48)
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "")
    bring(engine, settings, [500.0], 80, fields={"gpus": 32})
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "stale")
    back = bring(engine, settings, steady(1000, 2), 81)
    assert regressions_in(engine)[0][:2] == ("open", "fixed")
    with read_session(engine) as session:
        assert get_regression(session, 1).proposal_run_id == back[0]


def test_slow_runs_reopen_a_regression_that_was_closed_as_stale(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    bring(engine, settings, [500.0], 47, fields={"gpus": 32})
    renew(engine)
    answer(engine, "accept")
    assert regressions_in(engine)[0][:2] == ("stale", "")
    bring(engine, settings, [1100.0, 1101.0], 48)
    assert regressions_in(engine)[0][:2] == ("stale", "")
    bring(engine, settings, [1100.0], 50)
    assert regressions_in(engine)[0][:2] == ("open", "")
    assert len(regressions_in(engine)) == 1


def test_a_proposed_fix_without_runs_that_are_back_becomes_stale(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    bring(engine, settings, [500.0], 47, fields={"gpus": 32})
    with transaction(engine) as session:
        session.get_one(RegressionRow, 1).proposal = "fixed"  # as earlier versions did
    renew(engine)
    assert regressions_in(engine)[0][:2] == ("open", "stale")


def test_a_project_that_nothing_is_uploaded_to_costs_nothing_two_weeks_later(
    engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    renew(engine, days=13)
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]
    renew(engine, days=15)
    assert costs(engine) == [0.0]


def test_the_cost_of_a_branch_counts_its_own_runs(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [1100.0], 14, branch="feature/x")
    assert costs(engine) == []
    bring(engine, settings, [1100.0], 18, branch="feature/x")
    assert costs(engine) == [pytest.approx(NIGHTLY / 4, rel=0.1)]


def test_experiments_are_not_part_of_the_daily_cost(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0, 1101.0])
    for variant in range(5):
        arrive(engine, 1100 + variant, 15, purpose="experiment")
    judge_all(engine, settings)
    renew(engine)
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]


def test_an_upgrade_costs_the_same_in_its_report_and_its_regression(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    fields: dict[str, Value] = {"cluster": "west", "pp_layout": "even", "attention": "flash"}
    bring(engine, settings, steady(1000, 14), fields={**fields, "container": OLD_IMAGE})
    bring(engine, settings, [1100.0], 14, fields={**fields, "container": NEW_IMAGE})
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]  # known from the first run on: the job ran before it
    bring(engine, settings, [1099.0, 1101.0], 15, fields={**fields, "container": NEW_IMAGE})
    query = {"project": "moe-lab", "field": "container", "from": OLD_IMAGE, "to": NEW_IMAGE}
    report = client.get("/api/v1/upgrade", params=query).json()
    assert report["gpu_hours_per_day"] == pytest.approx(costs(engine)[0], rel=0.02)
    detail = client.get("/api/v1/regressions/1").json()
    assert detail["costs"][0]["gpu_hours_per_day"] == pytest.approx(costs(engine)[0])


def test_an_unread_upload_and_later_runs_leave_all_pages_with_one_cost(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    fields: dict[str, Value] = {"cluster": "west", "pp_layout": "even", "attention": "flash"}
    bring(engine, settings, steady(1000, 14), fields={**fields, "container": OLD_IMAGE})
    bring(engine, settings, steady(1100, 3), 14, fields={**fields, "container": NEW_IMAGE})
    query = {"project": "moe-lab", "field": "container", "from": OLD_IMAGE, "to": NEW_IMAGE}

    def shown() -> list[float]:
        detail = client.get("/api/v1/regressions/1").json()
        (of_member,), (factors,) = detail["members"], detail["costs"]
        rate, extra, steps, gpus = (factors[name] for name in FACTORS)
        product = rate * extra * steps * gpus / 3_600_000
        upgrade = client.get("/api/v1/upgrade", params=query).json()["gpu_hours_per_day"]
        return [
            detail["gpu_hours_per_day"], of_member["gpu_hours_per_day"], factors["gpu_hours_per_day"], product, upgrade
        ]  # fmt: skip

    first = costs(engine)[0]
    bring(engine, settings, [500.0], 24, fields={"gpus": 32})  # the stack of the regression is not judged again
    assert shown() == [pytest.approx(first)] * 5
    renew(engine)
    later = costs(engine)[0]
    assert 0 < (later or 0) < (first or 0)
    with transaction(engine) as session:
        make_run(session, project="moe-lab", status="failed", ordered_at=utc_now())
    renew(engine)
    assert shown() == [pytest.approx(later)] * 5


FIRST = 1090.0
"""The first slow run is 9 % slower, the level that follows it 7 %."""


def member(engine: Engine, regression_id: int = 1) -> RegressionMemberRow:
    with read_session(engine) as session:
        chosen = select(RegressionMemberRow).where(col(RegressionMemberRow.regression_id) == regression_id)
        return session.exec(chosen).one()


def test_the_size_follows_the_level_and_what_was_first_seen_is_kept(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [FIRST, 1070.0], 14)
    assert member(engine).delta_pct == pytest.approx(9, abs=0.2)
    bring(engine, settings, steady(1070, 7), 16)
    result = member(engine)
    assert result.delta_pct == pytest.approx(7.2, abs=0.3)
    assert result.first_delta_pct == pytest.approx(9, abs=0.2)
    assert math.exp(result.slow_level or 0) == pytest.approx(1072, rel=0.003)
    with read_session(engine) as session:
        assert session.get_one(RegressionRow, 1).worst_delta_pct == result.delta_pct


def test_the_size_stays_when_the_runs_are_back(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 14), FIRST, *steady(1070, 8)])
    before = member(engine).delta_pct
    bring(engine, settings, steady(1000, 6), 23)
    assert regressions_in(engine)[0][1] == "fixed"
    assert member(engine).delta_pct == pytest.approx(before, abs=0.1)


def test_in_a_young_history_three_slow_runs_are_a_level(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [*steady(1000, 6), FIRST])
    bring(engine, settings, steady(1070, 2), 7)
    assert member(engine).delta_pct == pytest.approx(7.1, abs=0.3)


def test_an_upgrade_is_as_large_as_its_level(engine: Engine, settings: Settings) -> None:
    new: dict[str, Value] = {"container": "nvcr.io/nvidia/nemo:26.08"}
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [FIRST], 14, fields=new)
    assert member(engine).delta_pct == pytest.approx(9, abs=0.2)
    bring(engine, settings, steady(1070, 5), 15, fields=new)
    assert member(engine).delta_pct == pytest.approx(7.3, abs=0.3)
