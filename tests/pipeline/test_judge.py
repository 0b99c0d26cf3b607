"""Runs come in, are judged against what came before them, and judged again when that changes."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, update
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.domain.verdict.baseline import AFTER_BRANCH_POINT
from app.pipeline import decisions as people
from app.pipeline import judge
from app.pipeline.assess import LOOK_BACK
from app.pipeline.judge import judge_run, judge_stack
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage import audit
from app.storage.database import make_engine, read_session, transaction
from app.storage.tables import EVERYTHING, AuditEventRow, ProjectRow, RunRow, StackWorkRow, VerdictRow, utc_now
from app.storage.verdicts import current_verdict, verdicts_of
from tests.builders import make_project, make_run
from tests.embedded.processes import Running
from tests.regressions.judging import arrive, day, decisions, document_of, judge_all, regressions_in, steady
from tests.runs.uploading import assert_problem, upload
from tests.training_logs import training_log
from workers import tasks


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Engine]:
    if request.param == "postgresql":
        settings = settings.model_copy(update={"database_url": request.getfixturevalue("postgres_url")})
    engine = make_engine(settings)
    yield engine
    engine.dispose()


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
    assert result[14:17] == ["regression"] * 3  # until three runs make a level of their own
    assert result[17] != "regression"
    assert regressions_in(engine) == [("open", "", [runs[14]])]
    with read_session(engine) as session:
        event = session.exec(select(AuditEventRow).where(AuditEventRow.subject == "regression")).one()
    assert (event.who, event.action, event.after) == ("Threewalls", "opened", {"state": "open", "run": runs[14]})


def test_the_order_in_which_runs_come_in_and_the_bells_change_nothing(engine: Engine, settings: Settings) -> None:
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
    # It comes days later and without a time of its own, and is judged where the first one stands.
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
    assert f"Run {second}, a rerun" in record[0].because
    assert newest is not None
    assert newest.document == record[0].document


def test_a_quarantine_takes_a_run_out_of_every_baseline_at_once_and_back(engine: Engine, settings: Settings) -> None:
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


def test_a_quarantined_slow_run_takes_its_regression_along_and_brings_it_back(
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
        pins = people.pins(session, result.project_id, result.stack_key)
        assert [(pin.run_id, pin.in_force) for pin in pins] == [(runs[4], True), (runs[2], False)]
        people.unpin(session, pins[0].id, "ada")
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
    really_assess, late = judge._assess, []

    def assess(*args: object) -> object:
        result = really_assess(*args)
        if not late:
            late.append(arrive(engine, 1001, 1))
        return result

    monkeypatch.setattr(judge, "_assess", assess)
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
        broken.setattr(judge, "_assess", fail)
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


def test_stacks_that_are_judged_at_once_share_one_regression_of_their_cause(engine: Engine, settings: Settings) -> None:
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


def test_runs_that_come_in_at_once_end_in_the_verdicts_of_one_after_another(engine: Engine, settings: Settings) -> None:
    times = dict(enumerate([*steady(1000, 10), 1080.0, 1081.0]))
    with transaction(engine) as session:
        make_project(session)

    def come(place: int) -> tuple[int, int]:
        # Reruns of one commit, too, which move each other's places while both are read.
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


# --- Verdicts of runs that arrive through the API.

META = {"project": "moe", "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "branch": "main"}


def meta(number: int, **other: Any) -> dict[str, Any]:
    return META | {"commit": f"c{number}", "commit_time": f"2026-09-{number:02d}T04:00:00+02:00"} | other


def processed(client: TestClient, number: int, step_time_ms: float = 400.0, **other: Any) -> int:
    log = training_log(step_time_ms=step_time_ms)
    run_id: int = upload(client, log, meta=meta(number, **other)).json()["id"]
    tasks.process_run(run_id)
    return run_id


def verdict(client: TestClient, run_id: int) -> dict[str, Any]:
    answer = client.get(f"/api/v1/runs/{run_id}/verdict")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_a_verdict_has_its_metrics_baseline_and_suspects(client: TestClient) -> None:
    runs = [processed(client, number, 400 + number % 3) for number in range(1, 11)]
    slow = processed(client, 11, 440)
    result = verdict(client, slow)
    assert (result["status"], result["verdict"], result["exit_code"]) == ("judged", "regression", 1)
    time = result["metrics"]["step_time_ms"]
    assert time["decision"] == "regression"
    assert time["ci_low_pct"] < time["delta_pct"] < time["ci_high_pct"]
    assert (
        result["metrics"]["tokens_per_s_per_gpu"] is None or result["metrics"]["tokens_per_s_per_gpu"]["delta_pct"] < 0
    )
    assert result["baseline"]["kind"] == "same_config"
    assert result["baseline"]["runs"] == [str(run) for run in runs]
    assert result["suspects"][0]["field"] == "commit"
    assert result["because"] == "It was read."
    assert client.get(f"/api/v1/runs/{slow}").json()["verdict"] == "regression"


def test_runs_with_a_declared_window_are_full_runs(client: TestClient) -> None:
    """Iterations 41 to 50 of 50, as docs/ci.md advises: five of them are a baseline, and 10 % is seen."""
    window = {"steady_window": [41, 50], "purpose": "ci"}
    for number in range(1, 6):
        processed(client, number, 400 + number % 3, **window)
    result = verdict(client, processed(client, 6, 440, **window))
    assert (result["verdict"], result["baseline"]["kind"], len(result["baseline"]["runs"])) == (
        "regression", "same_config", 5,
    )  # fmt: skip


def test_before_it_was_judged_the_answer_says_what_it_waits_for(client: TestClient) -> None:
    run_id = upload(client, training_log(), meta=meta(1)).json()["id"]
    result = verdict(client, run_id)
    assert (result["status"], result["verdict"], result["reason"]) == ("pending", None, "Waiting to be read.")
    assert_problem(client.get("/api/v1/runs/12345/verdict"), 404, "Run 12345 does not exist")


def test_a_log_without_iterations_gets_the_verdict_failed(client: TestClient) -> None:
    run_id = upload(client, b"torch.OutOfMemoryError: CUDA out of memory.\n", meta=meta(1)).json()["id"]
    tasks.process_run(run_id)
    result = verdict(client, run_id)
    assert result["verdict"] == "failed"
    assert "memory" in result["reason"]


def test_of_verdicts_that_were_made_again_those_stay_that_somebody_knows(client: TestClient, engine: Engine) -> None:
    last = processed(client, 28)
    for number in range(1, 12):
        processed(client, number, 400 + number % 3)
    result = verdict(client, last)
    verdicts = [result["verdict"], *(earlier["verdict"] for earlier in result["earlier"])]
    assert result["earlier"][-1]["because"] == "It was read."
    assert all(item != other for item, other in pairwise(verdicts[:-1])), verdicts
    with transaction(engine) as session:
        audit.record(session, who="ada", subject="run", subject_id=last, action="noted")
    for number in range(12, 16):
        processed(client, number, 400 + number % 3)
    again = verdict(client, last)
    assert again["verdict"] == result["verdict"]
    assert len(again["earlier"]) == len(result["earlier"]) + 1
    assert again["earlier"][0]["made_at"] == result["made_at"]


def test_a_late_upload_with_an_earlier_commit_has_the_later_runs_judged_again(client: TestClient) -> None:
    for number in (1, 2, 4):
        last = processed(client, number)
    late = processed(client, 3)
    result = verdict(client, last)
    assert str(late) in result["baseline"]["runs"]
    assert result["because"].startswith(f"Run {late} was added")
    assert [item["because"] for item in result["earlier"]] == ["It was read."]


def test_an_amendment_moves_a_run_and_both_stacks_are_judged_again(client: TestClient, engine: Engine) -> None:
    first, second = processed(client, 1), processed(client, 2)
    body = {"fields": {"container": "train:26.09"}, "author": "ada"}
    assert client.patch(f"/api/v1/runs/{first}/contract", json=body).status_code == 200
    tasks.process_run(first)
    with read_session(engine) as session:
        waiting = session.exec(select(StackWorkRow.id).where(StackWorkRow.work != "")).all()
    for work_id in waiting:
        assert work_id is not None
        tasks.judge_stack(work_id)
    result = verdict(client, second)
    assert result["verdict"] == "no_baseline"
    assert (f"Run {first} " in result["because"], "another stack" in result["because"]) == (True, True)


def test_a_log_that_still_grows_is_not_judged(client: TestClient) -> None:
    log = training_log()
    run_id = client.post("/api/v1/runs?complete=false", files={"log": log[:3000]}).json()["id"]
    tasks.process_run(run_id)
    assert verdict(client, run_id)["status"] == "pending"
    client.post(f"/api/v1/runs/{run_id}/logs?offset=3000&complete=true", content=log[3000:])
    tasks.process_run(run_id)
    assert verdict(client, run_id)["verdict"] == "no_baseline"


def test_an_upload_that_waits_answers_with_its_verdict(server: Running) -> None:
    answers = [
        httpx2.post(
            f"{server.address}/api/v1/runs?wait=60",
            files={"log": training_log(step_time_ms=300.0 + number), "meta": (None, _json(number))},
            timeout=300,
        ).json()
        for number in (1, 2)
    ]
    assert [(answer["status"], answer["verdict"]) for answer in answers] == [
        ("ready", "no_baseline"),
        ("ready", "inconclusive"),
    ]


def test_uploads_at_once_end_in_the_same_verdicts_as_one_after_another(server: Running) -> None:
    def send(number: int) -> tuple[int, int]:
        answer = httpx2.post(
            f"{server.address}/api/v1/runs?wait=60",
            files={"log": training_log(step_time_ms=300.0 + number % 3), "meta": (None, _json(number, "at-once"))},
            timeout=300,
        )
        return number, answer.json()["id"]

    with ThreadPoolExecutor(4) as pool:
        ids = dict(pool.map(send, [7, 3, 1, 8, 2, 6, 5, 4]))
    last = httpx2.get(f"{server.address}/api/v1/runs/{ids[8]}/verdict", timeout=300).json()
    # Whoever waited got an answer on what was there; in the end all seven stand before it.
    for _ in range(100):
        if len(last["baseline"]["runs"]) == 7:
            break
        last = httpx2.get(f"{server.address}/api/v1/runs/{ids[8]}/verdict", timeout=300).json()
    assert last["baseline"]["runs"] == [str(ids[number]) for number in range(1, 8)]


def _json(number: int, project: str = "waits") -> str:
    return json.dumps(meta(number, project=project))


def test_what_was_judged_when_the_process_died_is_found_by_the_sweep(
    app: FastAPI, engine: Engine, settings: Settings
) -> None:
    run_id = arrive(engine, steady(1000, 1)[0], 0)
    tasks.sweep()
    messages = list((settings.data_dir / "queue" / "messages").iterdir())
    assert len(messages) == 1
    judge_all(engine, settings)
    with transaction(engine) as session:
        assert session.get_one(RunRow, run_id).verdict == "no_baseline"
    for message in messages:
        message.unlink()
    tasks.sweep()
    assert list((settings.data_dir / "queue" / "messages").iterdir()) == []


@pytest.mark.parametrize("time", ["yesterday", "1758427200", "0001-01-01"])
def test_a_commit_time_that_is_none_is_refused(client: TestClient, time: str) -> None:
    assert_problem(upload(client, training_log(), meta={"commit_time": time}), 422, field="meta.commit_time")
