"""A contrast after an upgrade is measured again when runs of the other stack come in late or change."""

from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import select

from app.domain.run import Value
from app.pipeline import decisions
from app.pipeline.process import request_before
from app.pipeline.work import ELSEWHERE
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import RunRow, StackWorkRow
from app.storage.verdicts import verdicts_of
from tests.regressions.judging import arrive, document_of, judge_all, regressions_in, steady

NEW: dict[str, Value] = {"container": "nvcr.io/nvidia/nemo:26.08"}


def bring(engine: Engine, settings: Settings, times: list[float], at: float = 0, **columns: Any) -> list[int]:
    runs = [arrive(engine, time, at + number, **columns) for number, time in enumerate(times)]
    judge_all(engine, settings)
    return runs


def contrast(engine: Engine, run_id: int) -> tuple[str, ...]:
    found = document_of(engine, run_id).contrast
    return () if found is None else found.runs


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


def test_a_run_of_which_never_a_byte_came_is_near_to_nothing(engine: Engine, settings: Settings) -> None:
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
    assert [one[0] for one in regressions_in(engine)] == ["invalid"]


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
    for gpus in (8, 16, 32, 64):
        bring(engine, settings, [1000.0], gpus, fields={"gpus": gpus})
    before = claims(engine)
    bring(engine, settings, [1000.0], 1, fields={"gpus": 128})
    assert claims(engine) == before + 5  # its own, and each of the four once


def test_a_run_that_left_its_stack_counts_no_more(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 3))
    last = bring(engine, settings, [1000.0], 3)[0]
    upgraded = bring(engine, settings, [1100.0], 14, fields=NEW)[0]
    other = bring(engine, settings, [990.0], 20, fields={"gpus": 512, "seq_len": 512})[0]
    assert str(last) in contrast(engine, upgraded)
    with transaction(engine) as session:
        keys = session.get_one(RunRow, other)
        request_before(session, last, keys.stack_key)
        row = session.get_one(RunRow, last)
        row.stack_key, row.config_key = keys.stack_key, keys.config_key
        row.result.contract = keys.result.contract
    judge_all(engine, settings)
    assert str(last) not in contrast(engine, upgraded)


def test_a_release_before_the_upgrade_does_not_hide_the_runs_that_count(engine: Engine, settings: Settings) -> None:
    before = bring(engine, settings, steady(1000, 10))
    bring(engine, settings, [1003.0], 12, purpose="release", branch="release")
    upgraded = bring(engine, settings, [1100.0], 14, fields=NEW)
    assert contrast(engine, upgraded[0]) == tuple(str(run) for run in before)
    assert regressions_in(engine) == [("open", "", [upgraded[0]])]


def test_another_container_beside_the_old_one_is_no_upgrade(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    beside = bring(engine, settings, [1100.0], 11, fields=NEW)
    assert regressions_in(engine) == [("open", "", beside)]
    bring(engine, settings, [1001.0], 12)  # the old container runs again
    assert regressions_in(engine) == [("invalid", "", beside)]
    found = document_of(engine, beside[0]).contrast
    assert found is not None
    assert found.side_by_side
    assert found.measured.step_time is not None  # still shown with its number


def test_two_clusters_of_one_commit_are_no_upgrade(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [1000.0, 1001.0], fields={"cluster": "west"}, commit="c1", job="perf")
    bring(engine, settings, [1150.0], fields={"cluster": "east"}, commit="c1", job="perf")
    assert regressions_in(engine) == []


def test_an_upgrade_of_one_job_is_measured_though_its_flags_changed(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 5), job="muon")
    bring(engine, settings, steady(700, 5), job="adam")
    (upgraded,) = bring(engine, settings, [1400.0], 14, job="muon", fields={**NEW, "ep_overlap": True})
    assert len(contrast(engine, upgraded)) == 5
    assert regressions_in(engine) == [("open", "", [upgraded])]


def test_two_clusters_that_were_in_use_together_are_no_upgrade(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [1000.0], fields={"cluster": "west"}, job="perf")
    bring(engine, settings, [500.0], 1, fields={"cluster": "east", "gpus": 64}, job="other")
    bring(engine, settings, [1001.0], 2, fields={"cluster": "west"}, job="perf")
    bring(engine, settings, [1150.0], 3, fields={"cluster": "east"}, job="perf")
    assert regressions_in(engine) == []
