"""What a slow-down costs now: of the stack that still runs, of the branch, of both sides of an upgrade."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.domain.run import Value
from app.pipeline.regressions import refresh_costs
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import RegressionRow, utc_now
from tests.regressions.judging import arrive, judge_all, regressions_in, steady

NIGHTLY = 50 * 0.1 * 16 / 3600
"""GPU-hours a day: one run a day of 50 steps on 16 GPUs, a tenth of a second more a step."""
OLD, NEW = "nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.08"


def bring(engine: Engine, settings: Settings, times: list[float], at: float = 0, **columns: Any) -> list[int]:
    runs = [arrive(engine, time, at + number, **columns) for number, time in enumerate(times)]
    judge_all(engine, settings)
    return runs


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
    bring(engine, settings, [*steady(1000, 14), 1100.0])
    bring(engine, settings, [500.0], 40, fields={"gpus": 32})
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]  # nobody judged that stack again
    renew(engine)
    assert costs(engine) == [0.0]


def test_a_project_that_nothing_is_uploaded_to_costs_nothing_two_weeks_later(
    engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, [*steady(1000, 14), 1100.0])
    renew(engine, days=13)
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]
    renew(engine, days=15)
    assert costs(engine) == [0.0]


def test_a_branch_costs_what_its_own_runs_cost(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [1100.0], 14, branch="feature/x")
    assert costs(engine) == [None]  # one run has no rate
    bring(engine, settings, [1100.0], 18, branch="feature/x")
    assert costs(engine) == [pytest.approx(NIGHTLY / 4, rel=0.1)]


def test_an_upgrade_costs_the_same_in_its_report_and_its_regression(
    engine: Engine, settings: Settings, client: TestClient
) -> None:
    known: dict[str, Value] = {"cluster": "west", "pp_layout": "even", "attention": "flash"}
    bring(engine, settings, steady(1000, 14), fields={**known, "container": OLD})
    bring(engine, settings, [1100.0], 14, fields={**known, "container": NEW})
    assert costs(engine) == [pytest.approx(NIGHTLY, rel=0.05)]  # known from the first run on: the job ran before it
    bring(engine, settings, [1099.0, 1101.0], 15, fields={**known, "container": NEW})
    query = {"project": "moe-lab", "field": "container", "from": OLD, "to": NEW}
    report = client.get("/api/v1/upgrade", params=query).json()
    assert report["gpu_hours_per_day"] == pytest.approx(costs(engine)[0], rel=0.02)
    detail = client.get("/api/v1/regressions/1").json()
    assert detail["costs"][0]["gpu_hours_per_day"] == pytest.approx(costs(engine)[0])
