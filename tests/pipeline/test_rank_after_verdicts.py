"""Verdicts are committed before the stack is ranked: clients see them immediately, and no standings are lost."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, update
from sqlalchemy.exc import OperationalError
from sqlmodel import select

from app.pipeline import judge, rank
from app.pipeline.judge import give_verdicts, judge_stack, rank_again
from app.pipeline.rank import compare_all
from app.pipeline.work import StackClaim, stack_queue
from app.runs.queries import get_state
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.runs import Judged
from app.storage.tables import StackWorkRow, StandingRow, utc_now
from tests.embedded.processes import wait_for
from tests.regressions.judging import arrive, decisions, judge_all


@pytest.fixture
def engine(either_engine: Engine) -> Engine:
    return either_engine


def only_stack(engine: Engine) -> StackWorkRow:
    with read_session(engine) as session:
        return session.exec(select(StackWorkRow)).one()


def judged(engine: Engine, run_id: int) -> Judged:
    with read_session(engine) as session:
        return get_state(session, run_id).judged


def ranked_runs(engine: Engine) -> list[int]:
    with read_session(engine) as session:
        return list(session.exec(select(StandingRow.runs)).all())


def give(engine: Engine, settings: Settings) -> StackClaim:
    """The first half of a pass, as a worker leaves it that dies before the second."""
    with transaction(engine) as session:
        claimed = stack_queue.claim(session, only_stack(engine).id or 0, settings)
    assert claimed is not None
    assert give_verdicts(engine, settings, claimed) is not None
    return claimed


def lose_lease(engine: Engine) -> None:
    with transaction(engine) as session:
        session.execute(update(StackWorkRow).values(lease_until=utc_now() - timedelta(seconds=1)))


def test_the_verdict_is_stored_before_the_standings_and_a_dead_worker_loses_neither(
    engine: Engine, settings: Settings
) -> None:
    run = arrive(engine, 1000, 0)
    assert judged(engine, run).waiting
    dead = give(engine, settings)
    assert judged(engine, run).verdict_id
    assert not judged(engine, run).waiting
    assert ranked_runs(engine) == []
    assert [item.waits for item in compare_all(engine)] == [True]  # it is not taken for the result of a rebuild
    assert judge_stack(engine, settings, dead.row_id) is None  # it has its lease still
    lose_lease(engine)
    with transaction(engine) as session:
        assert list(stack_queue.due(session, settings, limit=9)) == [dead.row_id]
    assert judge_stack(engine, settings, dead.row_id) == 0
    assert ranked_runs(engine) == [1]
    assert rank_again(engine, settings, dead) is None  # it wakes up and must write nothing
    assert only_stack(engine).work == ""
    assert [item.differs for item in compare_all(engine)] == [()]


def test_a_run_that_comes_while_its_stack_is_ranked_waits_for_its_verdict(engine: Engine, settings: Settings) -> None:
    arrive(engine, 1000, 0)
    claimed = give(engine, settings)
    late = arrive(engine, 1001, 1)
    assert judged(engine, late) == Judged(0, waiting=True)
    assert rank_again(engine, settings, claimed) == "waiting"
    judge_all(engine, settings)
    assert decisions(engine) == ["no_baseline", "inconclusive"]
    assert ranked_runs(engine) == [2]


def test_a_stack_that_cannot_be_ranked_keeps_its_verdicts_and_is_ranked_with_the_next_run(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = arrive(engine, 1000, 0)
    work_id = only_stack(engine).id or 0

    def fail(*_: object) -> None:
        raise KeyError("inside")

    with monkeypatch.context() as broken:
        broken.setattr(judge.rank, "rank", fail)
        assert [judge_stack(engine, settings, work_id) for _ in range(settings.max_attempts)][:2] == [1, 0]
        assert judge_stack(engine, settings, work_id) is None
    assert only_stack(engine).work == ""  # it rests
    with read_session(engine) as session:
        assert stack_queue.parked(session) == 1
    assert judged(engine, run).verdict_id
    with transaction(engine) as session:
        assert rank.request_next_rankings(session) == []
    arrive(engine, 1001, 1)
    judge_all(engine, settings)
    assert ranked_runs(engine) == [2]
    assert [item.differs for item in compare_all(engine)] == [()]
    with read_session(engine) as session:
        assert stack_queue.parked(session) == 0


def test_a_slow_worker_keeps_its_stack(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging and ranking take longer than the lease: it is renewed, so no other worker takes the stack over."""
    short = settings.model_copy(update={"lease_seconds": 3})
    arrive(engine, 1000, 0)
    waited: list[str] = []

    def slowly(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_work(*given: Any) -> Any:
            first = only_stack(engine).lease_until
            wait_for(lambda: only_stack(engine).lease_until != first, f"the lease to be renewed while {name}")
            waited.append(name)
            return work(*given)

        return wait_and_work

    monkeypatch.setattr(judge, "_judge", slowly("judging", judge._judge))
    monkeypatch.setattr(judge.rank, "rank", slowly("ranking", judge.rank.rank))
    assert judge_stack(engine, short, only_stack(engine).id or 0) == 1
    assert waited == ["judging", "ranking"]
    assert (only_stack(engine).work, only_stack(engine).attempts) == ("", 0)


def test_an_unreachable_database_parks_no_stack(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = arrive(engine, 1000, 0)

    def fail(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, psycopg.OperationalError("the server closed the connection"))

    with monkeypatch.context() as broken:
        broken.setattr(judge, "_judge", fail)
        for _ in range(settings.max_attempts + 1):
            judge_stack(engine, settings, only_stack(engine).id or 0)
    assert (only_stack(engine).work, only_stack(engine).attempts) == ("waiting", 0)
    judge_all(engine, settings)
    assert judged(engine, run).verdict_id
