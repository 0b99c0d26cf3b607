"""How large a regression is: as its first run shows it, until its history has the two levels."""

import math
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select

from app.domain.run import Value
from app.settings import Settings
from app.storage.database import read_session
from app.storage.tables import RegressionMemberRow, RegressionRow
from tests.regressions.judging import arrive, judge_all, regressions_in, steady

FIRST = 1090.0
"""The first slow run is 9 % slower, the level that follows it 7 %."""


def bring(engine: Engine, settings: Settings, times: list[float], at: float = 0, **columns: Any) -> list[int]:
    runs = [arrive(engine, time, at + number, **columns) for number, time in enumerate(times)]
    judge_all(engine, settings)
    return runs


def member(engine: Engine, regression_id: int = 1) -> RegressionMemberRow:
    with read_session(engine) as session:
        chosen = select(RegressionMemberRow).where(col(RegressionMemberRow.regression_id) == regression_id)
        return session.exec(chosen).one()


def test_the_size_follows_the_level_and_what_was_first_seen_is_kept(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [FIRST], 14)
    assert member(engine).delta_pct == pytest.approx(9, abs=0.2)
    bring(engine, settings, steady(1070, 8), 15)
    found = member(engine)
    assert found.delta_pct == pytest.approx(7.2, abs=0.3)
    assert found.first_delta_pct == pytest.approx(9, abs=0.2)
    assert math.exp(found.slow_level or 0) == pytest.approx(1072, rel=0.003)
    with read_session(engine) as session:
        assert session.get_one(RegressionRow, 1).worst_delta_pct == found.delta_pct


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
