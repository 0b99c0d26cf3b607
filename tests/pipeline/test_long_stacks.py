"""Judging and ranking read the newest part of a long stack, with the same result as for a short one."""

from sqlalchemy import Engine, select
from starlette.testclient import TestClient

from app.pipeline.assess import LOOK_BACK
from app.pipeline.judge import judge_stack
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import RunRow, StandingRow
from tests.builders import make_stack, stated_activity
from tests.regressions.judging import steady
from tests.statements import statements


def judge(engine: Engine, settings: Settings, run_id: int) -> list[str]:
    """Judge and rank the stack of a run. Return the statements."""
    with transaction(engine) as session:
        run = session.get_one(RunRow, run_id)
        work_id = stack_queue.request(session, run.project_id, run.stack_key)
    with statements(engine) as executed:
        assert judge_stack(engine, settings, work_id)
    return executed


def test_a_long_stack_takes_as_many_statements_as_a_short_one(engine: Engine, settings: Settings) -> None:
    counts = {}
    for runs in (40, 2 * LOOK_BACK):
        with transaction(engine) as session:
            stack = make_stack(session, steady(1000, runs), project=f"of-{runs}", judged=False)
            for run in session.scalars(select(RunRow).where(RunRow.id.in_(stack[:-1]))):
                run.verdict = "no_change"
        counts[runs] = len(judge(engine, settings, stack[-1]))
    assert counts[2 * LOOK_BACK] <= counts[40] + 2


def test_a_dispatcher_that_paused_for_long_is_still_ranked(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    shared = {"evidence_level": "validated", "semantic_class": "training_equivalent"}
    with transaction(engine) as session:
        for dispatcher, count, time in (("deepep", 3, 900.0), ("alltoall", LOOK_BACK + 20, 1000.0)):
            fields = {"dispatcher": dispatcher, "routing_mode": "dropless", "force_balance": False}
            stack = make_stack(
                session,
                steady(time, count),
                fields=fields,
                judged=False,
                activity=stated_activity(dispatcher),
                **shared,
            )
        key = session.get_one(RunRow, stack[-1]).stack_key
    judge(engine, settings, stack[-1])
    with read_session(engine) as session:
        assert session.scalars(select(StandingRow.runs)).one() == LOOK_BACK + 23
    boards = client.get(f"/api/v1/leaderboards?stack={key[:12]}").text
    assert "deepep" in boards
