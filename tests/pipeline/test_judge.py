"""Runs arrive, are judged against earlier ones, and judged again when those change."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, update
from sqlmodel import col, select

from app.domain.verdict.baseline import AFTER_BRANCH_POINT
from app.pipeline import decisions as people
from app.pipeline import judge
from app.pipeline.assess import LOOK_BACK
from app.pipeline.judge import judge_run, judge_stack
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import EVERYTHING, AuditEventRow, ProjectRow, RunRow, StackWorkRow, VerdictRow, utc_now
from app.storage.verdicts import current_verdict, verdicts_of
from tests.builders import make_project, make_run
from tests.regressions.judging import arrive, day, decisions, document_of, judge_all, regressions_in, steady


@pytest.fixture
def engine(either_engine: Engine) -> Engine:
    return either_engine


def verdict_rows(engine: Engine) -> int:
    with read_session(engine) as session:
        return len(session.exec(select(VerdictRow.id)).all())


def test_runs_are_judged_as_they_come_and_a_slow_one_opens_one_regression(engine: Engine, settings: Settings) -> None:
    times = [*steady(1000, 14), *steady(1080, 4)]
    runs = []
    for number, time in enumerate(times):
        runs.append(arrive(engine, time, number))
        judge_run(engine, settings, runs[-1])
    result = decisions(engine)
    assert result[0] == "no_baseline"
    assert set(result[1:14]) <= {"no_change", "inconclusive"}
    assert result[14:17] == ["regression"] * 3  # until three runs form a new level
    assert result[17] != "regression"
    assert regressions_in(engine) == [("open", "", [runs[14]])]
    with read_session(engine) as session:
        event = session.exec(select(AuditEventRow).where(AuditEventRow.subject == "regression")).one()
    assert (event.who, event.action, event.after) == ("Threewalls", "opened", {"state": "open", "run": runs[14]})


def test_the_order_of_uploads_and_notifications_changes_nothing(engine: Engine, settings: Settings) -> None:
    times = [*steady(1000, 9), 1100.0, *steady(1000, 5), *steady(1070, 3)]
    order = [5, 0, 1, 9, 2, 3, 16, 4, 6, 7, 8, 10, 12, 11, 13, 15, 14]
    by_place = {}
    for place in order:
        run_id = arrive(engine, times[place], place)
        by_place[place] = run_id
        judge_run(engine, settings, run_id)
        judge_run(engine, settings, run_id)
    one_by_one = {place: _said(engine, run_id) for place, run_id in by_place.items()}
    before = verdict_rows(engine)
    with transaction(engine) as session:
        row = session.exec(select(StackWorkRow)).one()
        stack_queue.request(session, row.project_id, row.stack_key, judge_from=EVERYTHING)
    judge_all(engine, settings)
    assert {place: _said(engine, run_id) for place, run_id in by_place.items()} == one_by_one
    assert verdict_rows(engine) == before
    assert len([regression for regression in regressions_in(engine) if regression[0] == "open"]) == 1


def _said(engine: Engine, run_id: int) -> object:
    return document_of(engine, run_id)


@pytest.mark.parametrize(
    "stated", [{"merge_base": "branched"}, {"merge_base": "unseen", "merge_base_time": day(9.5)}], ids=["run", "time"]
)
def test_a_change_is_judged_against_runs_at_or_before_its_branch_point(
    engine: Engine, settings: Settings, stated: dict[str, Any]
) -> None:
    """`main` became faster after the change left it, so the change only looks slower."""
    old = [arrive(engine, time, number) for number, time in enumerate(steady(1000, 9))]
    old.append(arrive(engine, 1000.0, 9, commit="branched"))
    new = [arrive(engine, time, 10 + number) for number, time in enumerate(steady(900, 4))]
    change = arrive(engine, 1001.0, 15, branch="change", **stated)
    plain = arrive(engine, 1001.0, 16, branch="other")
    judge_all(engine, settings)
    assert document_of(engine, plain).decision == "regression"
    document = document_of(engine, change)
    assert document.decision == "no_change"
    assert document.baseline == tuple(map(str, old))
    assert document.branch_point == stated["merge_base"]
    reasons = {left_out.run: left_out.why for left_out in document.left_out}
    assert {reasons[str(run)] for run in new} == {AFTER_BRANCH_POINT}


def test_a_branch_point_may_be_older_than_the_runs_that_judging_reads(engine: Engine, settings: Settings) -> None:
    for number, time in enumerate(steady(1000, 8)):
        old = arrive(engine, time, number)
    for number, time in enumerate(steady(900, LOOK_BACK + 1)):
        arrive(engine, time, 8 + number)
    last = 9 + LOOK_BACK
    change = arrive(engine, 1001.0, last, branch="change", merge_base="unseen", merge_base_time=day(7.5))
    plain = arrive(engine, 1001.0, last + 1, branch="other")
    judge_all(engine, settings)
    document = document_of(engine, change)
    assert (document.decision, len(document.baseline), document.baseline[-1]) == ("no_change", 8, str(old))
    assert document_of(engine, plain).decision == "regression"


def test_reruns_are_one_candidate_and_the_older_verdict_stays_in_the_record(engine: Engine, settings: Settings) -> None:
    for number, time in enumerate(steady(1000, 8)):
        arrive(engine, time, number)
    first = arrive(engine, 1025, 8, commit="c0ffee")
    judge_all(engine, settings)
    # It arrives days later without a commit time, and is judged at the position of the first one.
    arrive(engine, 1001, 9)
    second = arrive(engine, 1027, 20, commit="c0ffee")
    judge_all(engine, settings)
    with read_session(engine) as session:
        record = verdicts_of(session, first)
        places = {session.get_one(RunRow, run).ordered_at for run in (first, second)}
        newest = current_verdict(session, second)
    assert len(places) == 1
    assert [item.document.verdict.looks for item in record] == [2, 1]
    assert record[0].document.candidates == (str(first), str(second))
    assert record[0].because == f"Run {second}, a rerun of its commit, arrived."
    assert newest is not None
    assert newest.document == record[0].document


def test_a_quarantine_removes_a_run_from_every_baseline_immediately_and_a_release_restores_it(
    engine: Engine, settings: Settings
) -> None:
    runs = [arrive(engine, time, number) for number, time in enumerate(steady(1000, 12))]
    judge_all(engine, settings)
    before = document_of(engine, runs[-1])
    with transaction(engine) as session:
        requested = people.quarantine(session, runs[5], "ada", "a bad node")
    assert judge_stack(engine, settings, requested[0])
    after = document_of(engine, runs[-1])
    assert str(runs[5]) in before.verdict.baseline_used
    assert str(runs[5]) not in after.baseline
    assert (str(runs[5]), "quarantined: a bad node") in [(item.run, item.why) for item in after.left_out]
    assert not document_of(engine, runs[5]).raises_regression
    with read_session(engine) as session:
        newest = current_verdict(session, runs[-1])
        assert newest is not None
        assert newest.because == f"Run {runs[5]} was quarantined: a bad node"
    with transaction(engine) as session:
        people.release(session, runs[5], "ada", "the node was fine")
    judge_all(engine, settings)
    assert document_of(engine, runs[-1]) == before
    with read_session(engine) as session:
        events = session.exec(select(AuditEventRow.action).order_by(col(AuditEventRow.id))).all()
    assert list(events) == ["quarantine", "release"]


def test_quarantining_a_slow_run_removes_its_regression_and_release_restores_it(
    engine: Engine, settings: Settings
) -> None:
    for number, time in enumerate(steady(1000, 10)):
        arrive(engine, time, number)
    slow = [arrive(engine, 1090, 10), arrive(engine, 1091, 11)]
    judge_all(engine, settings)
    for run, expected in ((slow[0], "open"), (slow[1], "invalid")):
        with transaction(engine) as session:
            people.quarantine(session, run, "ada", "a bad node")
        judge_all(engine, settings)
        assert regressions_in(engine) == [(expected, "", slow[1:])]
    with transaction(engine) as session:
        people.release(session, slow[1], "ada")
    judge_all(engine, settings)
    assert regressions_in(engine) == [("open", "", slow[1:])]


def test_a_pinned_run_is_the_baseline_of_what_comes_after_it(engine: Engine, settings: Settings) -> None:
    runs = [arrive(engine, time, number) for number, time in enumerate(steady(1000, 6))]
    judge_all(engine, settings)
    with transaction(engine) as session:
        people.pin(session, runs[2], "ada", "the release")
    judge_all(engine, settings)
    assert document_of(engine, runs[1]).baseline_kind == "same_config"
    assert document_of(engine, runs[5]).baseline_kind == "golden"
    assert document_of(engine, runs[5]).baseline == (str(runs[2]),)
    with transaction(engine) as session:
        people.pin(session, runs[4], "ada")
        result = session.exec(select(RunRow)).first()
        assert result is not None
        pins = people.pins(session, result.project_id, [result.stack_key])[result.stack_key]
        assert [(pin.run_id, pin.in_force) for pin in pins] == [(runs[4], True), (runs[2], False)]
        people.unpin(session, pins[0].id, "ada", "")
    judge_all(engine, settings)
    assert document_of(engine, runs[5]).baseline_kind == "same_config"


def test_another_baseline_branch_has_every_stack_judged_again(engine: Engine, settings: Settings) -> None:
    for number, time in enumerate(steady(1000, 3)):
        arrive(engine, time, number, branch="trunk")
    run = arrive(engine, 1000, 4)
    judge_all(engine, settings)
    assert document_of(engine, run).decision == "no_baseline"
    with transaction(engine) as session:
        people.set_baseline_rules(session, session.exec(select(ProjectRow)).one(), "ada", baseline_branch="trunk")
    judge_all(engine, settings)
    assert len(document_of(engine, run).baseline) == 3


def test_two_workers_never_judge_one_stack_at_the_same_time(engine: Engine, settings: Settings) -> None:
    for number, time in enumerate(steady(1000, 6)):
        arrive(engine, time, number)
    with read_session(engine) as session:
        work_id = session.exec(select(StackWorkRow.id)).one()
    assert work_id is not None
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: judge_stack(engine, settings, work_id), range(8)))
    assert sorted(item for item in outcomes if item is not None) == [6]
    assert verdict_rows(engine) == 6


def test_what_comes_in_while_a_stack_is_judged_is_judged_after_it(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(engine, 1000, 0)
    with read_session(engine) as session:
        work_id = session.exec(select(StackWorkRow.id)).one()
    assert work_id is not None
    really_judge, late = judge._judge, []

    def judge_late(*args: object) -> object:
        result = really_judge(*args)
        if not late:
            late.append(arrive(engine, 1001, 1))
        return result

    monkeypatch.setattr(judge, "_judge", judge_late)
    assert judge_stack(engine, settings, work_id) == 1
    assert decisions(engine) == ["no_baseline", ""]
    assert judge_stack(engine, settings, work_id) == 1
    assert decisions(engine)[1] == "inconclusive"
    assert judge_stack(engine, settings, work_id) is None


def test_a_worker_that_died_is_replaced_and_writes_nothing_when_it_wakes(engine: Engine, settings: Settings) -> None:
    run = arrive(engine, 1000, 0)
    with transaction(engine) as session:
        work_id = session.exec(select(StackWorkRow.id)).one()
        assert work_id is not None
        dead = stack_queue.claim(session, work_id, settings)
    assert dead is not None
    assert judge_stack(engine, settings, work_id) is None
    with transaction(engine) as session:
        past = utc_now() - timedelta(seconds=1)
        session.execute(update(StackWorkRow).values(lease_until=past))
        assert list(stack_queue.due(session, settings, limit=9)) == [work_id]
    assert judge_stack(engine, settings, work_id) == 1
    with transaction(engine) as session:
        assert not stack_queue.finish(session, dead)
    assert document_of(engine, run).decision == "no_baseline"


def test_a_long_history_is_judged_in_passes_that_go_on_where_they_ended(engine: Engine, settings: Settings) -> None:
    hurried = settings.model_copy(update={"lease_seconds": 0})
    for number, time in enumerate(steady(1000, 4)):
        arrive(engine, time, number)
    with read_session(engine) as session:
        work_id = session.exec(select(StackWorkRow.id)).one()
    assert work_id is not None
    assert [judge_stack(engine, hurried, work_id) for _ in range(5)] == [1, 1, 1, 1, None]


def test_a_stack_that_cannot_be_judged_is_tried_again_and_then_left(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(engine, 1000, 0)
    with read_session(engine) as session:
        work_id = session.exec(select(StackWorkRow.id)).one()
    assert work_id is not None

    def fail(*_: object) -> None:
        raise KeyError("inside")

    with monkeypatch.context() as broken:
        broken.setattr(judge, "_judge", fail)
        for _ in range(settings.max_attempts + 1):
            assert judge_stack(engine, settings, work_id) is None
    with read_session(engine) as session:
        assert session.get_one(StackWorkRow, work_id).work == ""
    arrive(engine, 1001, 1)
    judge_all(engine, settings)
    assert decisions(engine) == ["no_baseline", "inconclusive"]


def test_a_stack_waits_until_all_runs_are_of_one_version(engine: Engine, settings: Settings) -> None:
    arrive(engine, 1000, 0)
    with transaction(engine) as session:
        old = make_run(session, step_time_ms=999.0, definition_version=1)
        work_id = session.exec(select(StackWorkRow.id)).one()
    assert work_id is not None
    assert judge_stack(engine, settings, work_id) is None
    assert decisions(engine) == ["", ""]
    with transaction(engine) as session:
        version = session.exec(select(RunRow.definition_version).where(RunRow.id != old)).one()
        session.get_one(RunRow, old).definition_version = version
        session.execute(update(StackWorkRow).values(lease_until=None))
    judge_all(engine, settings)
    assert decisions(engine) == ["no_baseline", ""]


def test_concurrently_judged_stacks_share_one_regression_of_their_cause(engine: Engine, settings: Settings) -> None:
    sizes = (8, 16, 32, 64)
    for gpus in sizes:
        for number, time in enumerate(steady(1000, 8)):
            arrive(engine, time, number, fields={"gpus": gpus})
    judge_all(engine, settings)
    slow = [arrive(engine, 1100, 8, commit="guilty", fields={"gpus": gpus}) for gpus in sizes]
    with ThreadPoolExecutor(len(slow)) as pool:
        list(pool.map(lambda run: judge_run(engine, settings, run), slow))
    judge_all(engine, settings)
    assert regressions_in(engine) == [("open", "", slow)]


def test_concurrent_runs_end_in_the_same_verdicts_as_sequential_ones(engine: Engine, settings: Settings) -> None:
    times = dict(enumerate([*steady(1000, 10), 1080.0, 1081.0]))
    with transaction(engine) as session:
        make_project(session)

    def come(place: int) -> tuple[int, int]:
        # This includes reruns of one commit, which change each other's position while both are read.
        run_id = arrive(engine, times[place], place, commit=f"c{place // 2}")
        judge_run(engine, settings, run_id)
        return place, run_id

    with ThreadPoolExecutor(4) as pool:
        runs = dict(pool.map(come, [3, 8, 0, 11, 5, 1, 9, 2, 10, 4, 7, 6]))
    judge_all(engine, settings)
    at_once = {place: _said(engine, run_id) for place, run_id in runs.items()}
    with transaction(engine) as session:
        row = session.exec(select(StackWorkRow)).one()
        stack_queue.request(session, row.project_id, row.stack_key, judge_from=EVERYTHING)
        places = session.exec(select(RunRow.ordered_at).distinct()).all()
    judge_all(engine, settings)
    assert {place: _said(engine, run_id) for place, run_id in runs.items()} == at_once
    assert len(places) == 6
    assert [regression[0] for regression in regressions_in(engine)] == ["open"]
