"""The same selects and changes on PostgreSQL, whose JSON, ordering and locks are its own."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.errors import EditConflict
from app.regressions.commands import Change, Seen, change_regressions
from app.regressions.queries import (
    SORTS,
    RegressionQuery,
    cost_of,
    count_by_state,
    find_regressions,
    get_regression,
    options_of,
)
from app.settings import Settings
from app.storage import audit
from app.storage.database import make_engine, read_session, transaction
from app.storage.verdicts import open_regressions
from tests.regressions.triaged import make_regression, make_slow_stack


@pytest.fixture
def engine(postgres_url: str, tmp_path: Path) -> Iterator[Engine]:
    engine = make_engine(Settings(data_dir=tmp_path, database_url=postgres_url, broker_url="redis://127.0.0.1:1"))
    yield engine
    engine.dispose()


def test_lists_filters_and_sums(engine: Engine) -> None:
    with transaction(engine) as session:
        stack = make_slow_stack(session)
        make_regression(session, stack, cause="one")
        make_regression(session, stack, cause="two", gpu_hours_per_day=None, worst_delta_pct=None, state="fixed")
    with read_session(engine) as session:
        for sort in (f"{sign}{name}" for name in SORTS for sign in ("", "-")):
            found = find_regressions(session, RegressionQuery(sort=sort))
            assert len(found.items) == 2, sort
            if sort.lstrip("-") != "age":
                assert found.items[-1].cause == "two", sort
        everything = RegressionQuery(
            q=f"one #{stack.since} H100", project="triage", assignee="nobody", metric="step_time_ms", kind="run",
            axis="code", gpu="H100", model="Qwen3-30B-A3B",
        )  # fmt: skip
        assert [item.cause for item in find_regressions(session, everything).items] == ["one"]
        assert count_by_state(session, RegressionQuery())["fixed"] == 1
        assert cost_of(session, RegressionQuery()) == (12.5, 1)
        assert open_regressions(session).count == 1
        assert options_of(session).gpus == ("H100",)
        title = get_regression(session, found.items[0].id).members[0].title
        assert title == "Qwen3-30B-A3B · 16 × H100 · alltoall · forced balance · nemo:26.06"


def test_of_two_who_change_it_at_once_one_is_told(engine: Engine) -> None:
    with transaction(engine) as session:
        number = make_regression(session, make_slow_stack(session))
    with read_session(engine) as session:
        seen = Seen(number, get_regression(session, number).changed_at)
    told: list[str] = []
    ready = threading.Barrier(2)

    def change(who: str) -> None:
        ready.wait()
        try:
            change_regressions(engine, [seen], Change(who, state="acknowledged", note=who))
        except EditConflict as error:
            told.append(error.errors[0].message)

    threads = [threading.Thread(target=change, args=(who,)) for who in ("Ada", "Grace")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 1
    with read_session(engine) as session:
        newest, opened = audit.events(session, "regression", number)
    assert f"was changed by {newest.who} at" in told[0]
    assert opened.by_service
