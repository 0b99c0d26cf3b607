"""One worker owns a run at a time; a dead one is replaced, a late one writes nothing, a failing run is parked."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine, update
from sqlmodel import col, select

from app.pipeline.process import claim_run
from app.pipeline.work import RunClaim, run_queue
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import ProjectRow, RunRow, utc_now


@pytest.fixture
def engine(either_engine: Engine) -> Engine:
    return either_engine


def add_run(engine: Engine, key: str = "k") -> int:
    with transaction(engine) as session:
        project = session.exec(select(ProjectRow)).one_or_none() or ProjectRow(slug="p")
        session.add(project)
        session.flush()
        assert project.id is not None
        run = RunRow(project_id=project.id, name="r", purpose="ci", content_key=key, work="waiting")
        session.add(run)
        session.flush()
        assert run.id is not None
        return run.id


def run_of(engine: Engine, run_id: int) -> RunRow:
    with read_session(engine) as session:
        return session.get_one(RunRow, run_id)


def claim(engine: Engine, run_id: int, settings: Settings) -> RunClaim | None:
    with transaction(engine) as session:
        return claim_run(session, run_id, settings)


def finish(engine: Engine, run_claim: RunClaim) -> bool:
    with transaction(engine) as session:
        return run_queue.finish(session, run_claim, status="ready") is not None


def due(engine: Engine, settings: Settings) -> list[int]:
    with read_session(engine) as session:
        return run_queue.due(session, settings, limit=100)


def set_lease(engine: Engine, run_id: int, **from_now: float) -> None:
    with transaction(engine) as session:
        until = utc_now() + timedelta(**from_now)
        session.execute(update(RunRow).where(col(RunRow.id) == run_id).values(lease_until=until))


def test_a_run_is_claimed_once(engine: Engine, settings: Settings) -> None:
    run_id = add_run(engine)
    assert claim(engine, run_id, settings) == RunClaim(run_id, 1, 1)
    assert claim(engine, run_id, settings) is None
    assert run_of(engine, run_id).status == "processing"


def test_a_missing_run_is_not_found(engine: Engine, settings: Settings) -> None:
    assert claim(engine, 12345, settings) is None


def test_an_expired_lease_is_taken_over_and_its_owner_writes_nothing(engine: Engine, settings: Settings) -> None:
    run_id = add_run(engine)
    first = claim(engine, run_id, settings)
    set_lease(engine, run_id, seconds=-1)
    second = claim(engine, run_id, settings)
    assert first is not None
    assert second == RunClaim(run_id, 2, 2)
    assert not finish(engine, first)
    assert run_of(engine, run_id).status == "processing"
    assert finish(engine, second)
    assert not finish(engine, second)
    assert claim(engine, run_id, settings) is None


def test_a_renewed_lease_is_not_taken_over(engine: Engine, settings: Settings) -> None:
    run_id = add_run(engine)
    run_claim = claim(engine, run_id, settings)
    assert run_claim is not None
    set_lease(engine, run_id, seconds=-1)
    with transaction(engine) as session:
        assert run_queue.renew(session, run_claim, utc_now() + timedelta(seconds=60))
    assert claim(engine, run_id, settings) is None


def test_a_lease_is_renewed_while_the_work_goes_on(engine: Engine, settings: Settings) -> None:
    short = settings.model_copy(update={"lease_seconds": 1})
    run_id = add_run(engine)
    run_claim = claim(engine, run_id, short)
    assert run_claim is not None
    before = run_of(engine, run_id).lease_until
    assert before is not None
    with run_queue.renewed(engine, run_claim, lease_seconds=0.06):
        set_lease(engine, run_id, seconds=-1)
        while True:
            now = run_of(engine, run_id).lease_until
            assert now is not None
            if now > utc_now():
                break


def test_a_poisonous_run_is_parked_with_its_reason(engine: Engine, settings: Settings) -> None:
    run_id = add_run(engine)
    for _ in range(settings.max_attempts):
        assert claim(engine, run_id, settings) is not None
        set_lease(engine, run_id, seconds=-1)
    assert claim(engine, run_id, settings) is None
    parked = run_of(engine, run_id)
    assert parked.status == "failed"
    assert "interrupted 3 times" in (parked.error or "")
    assert due(engine, settings) == []


def test_an_attempt_that_fails_for_external_reasons_does_not_count(engine: Engine, settings: Settings) -> None:
    run_id = add_run(engine)
    for _ in range(settings.max_attempts + 2):
        run_claim = claim(engine, run_id, settings)
        assert run_claim is not None
        with transaction(engine) as session:
            run_queue.give_back(session, run_claim, again_at=utc_now(), counts=False)
    assert run_of(engine, run_id).attempts == 0


def test_given_up_deliveries_are_due_first_then_the_longest_due(engine: Engine, settings: Settings) -> None:
    later, waiting, resting, given_up, working, done = (add_run(engine, key) for key in "abcdef")
    for run_id in (given_up, working, done):
        run_claim = claim(engine, run_id, settings)
        assert run_claim is not None
        if run_id == done:
            finish(engine, run_claim)
    set_lease(engine, later, seconds=-10)
    set_lease(engine, waiting, seconds=-20)
    set_lease(engine, resting, seconds=20)
    set_lease(engine, given_up, seconds=-1)
    assert due(engine, settings) == [given_up, waiting, later]


def test_leases_from_before_the_clock_was_set_back_are_over(engine: Engine, settings: Settings) -> None:
    working, waiting = add_run(engine, "a"), add_run(engine, "b")
    claim(engine, working, settings)
    for run_id in (working, waiting):
        set_lease(engine, run_id, days=30)
    assert due(engine, settings) == [working, waiting]
    assert claim(engine, working, settings) == RunClaim(working, 2, 2)


def test_after_a_start_of_the_embedded_mode_all_work_is_due(engine: Engine, settings: Settings) -> None:
    waiting, working = add_run(engine, "a"), add_run(engine, "b")
    claim(engine, working, settings)
    with transaction(engine) as session:
        run_queue.void_leases(session)
    assert due(engine, settings) == [working, waiting]
    assert claim(engine, working, settings) == RunClaim(working, 2, 2)
