"""A run is read, judged and ranked in one transaction, with the same result as in separate steps."""

import shutil
from io import BytesIO
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import col, select
from structlog.testing import capture_logs

from app.pipeline import judge, process, suggest
from app.pipeline.process import process_run, read_run
from app.pipeline.receive import UploadedFile, accept_upload
from app.pipeline.work import stack_queue
from app.settings import Settings
from app.storage.database import make_engine, read_session, transaction
from app.storage.json_text import sorted_json
from app.storage.log_files import LogFiles
from app.storage.tables import (
    RuleFiringRow,
    RunAlarmRow,
    RunRow,
    StackWorkRow,
    StandingBoardRow,
    StandingRow,
    VerdictRow,
)
from tests.training_logs import training_log

STEPS = [412.0, 412.5, 411.8, 412.2, 412.4, 411.9, 412.1, 412.3, 455.0, 456.0, 412.0]
"""Two slow runs open a regression; the last one is back."""
META = b'{"project": "moe", "branch": "main", "purpose": "ci", "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, '
META += b'"commit": "%040d"}'


@pytest.fixture(params=["sqlite", "postgresql"])
def settings_of(
    request: pytest.FixtureRequest, settings: Settings, tmp_path: Path, migrated_file: Path
) -> list[Settings]:
    """Two services, each with its own database and store."""
    both = [settings, settings.model_copy(update={"data_dir": tmp_path / "second"})]
    if request.param == "postgresql":
        address = request.getfixturevalue("postgres_url")
        both = [both[0].model_copy(update={"database_url": address}), both[1]]
    (tmp_path / "second").mkdir()
    shutil.copy(migrated_file, tmp_path / "second")
    return both


def upload(engine: Engine, settings: Settings, number: int) -> int:
    log = training_log(60, STEPS[number]) + b"run %d\n" % number
    file = UploadedFile("log", "train.log", BytesIO(log))
    log_files = LogFiles.from_settings(settings)
    return accept_upload(engine, log_files, settings, files=[file], meta=META % number).run_id


def stored(engine: Engine) -> bytes:
    """Return the stored results of reading, judging and ranking, without times and counters."""
    with read_session(engine) as session:
        results = {
            "runs": [
                (run.id, run.status, run.work, run.stack_key, run.verdict, run.verdict_delta_pct, run.rules_asked)
                for run in session.exec(select(RunRow).order_by(col(RunRow.id)))
            ],
            "verdicts": [
                (row.run_id, row.current, row.because, row.document)
                for row in session.exec(select(VerdictRow).order_by(col(VerdictRow.run_id), col(VerdictRow.id)))
            ],
            "standings": [(row.runs, row.newest_run_id, row.document) for row in session.exec(select(StandingRow))],
            "boards": sorted(
                (row.floor, row.routing_mode, row.reading, row.document)
                for row in session.exec(select(StandingBoardRow))
            ),
            "alarms": sorted((row.run_id, row.metric) for row in session.exec(select(RunAlarmRow))),
            "firings": sorted((row.run_id, row.rule_id) for row in session.exec(select(RuleFiringRow))),
            "work": [(row.work, row.attempts, row.judge_from) for row in session.exec(select(StackWorkRow))],
        }
    return sorted_json(results)


def test_one_transaction_stores_what_the_steps_store(settings_of: list[Settings]) -> None:
    results = []
    for settings in settings_of:
        engine, log_files = make_engine(settings), LogFiles.from_settings(settings)
        for number in range(len(STEPS)):
            run_id = upload(engine, settings, number)
            if settings is settings_of[0]:
                assert process_run(engine, log_files, settings, run_id) == "ready"
            else:
                assert read_run(engine, log_files, settings, run_id) == ("ready", False)
                judge.judge_run(engine, settings, run_id)
                suggest.evaluate_rules(engine, settings, run_id)
        results.append(stored(engine))
        engine.dispose()
    assert results[0] == results[1]
    assert b'"regression"' in results[0]


def test_a_run_is_kept_and_judged_later_when_judging_it_at_once_fails(
    settings_of: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of[0]
    engine, log_files = make_engine(settings), LogFiles.from_settings(settings)
    for number in range(4):
        process_run(engine, log_files, settings, upload(engine, settings, number))
    run_id = upload(engine, settings, 4)

    def fail(*_: object) -> None:
        raise ArithmeticError

    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr(process.judge, "judge_at_once", fail)
        broken.setattr(process.judge, "judge_run", lambda *_: None)
        assert process_run(engine, log_files, settings, run_id) == "ready"
    assert "not_judged_at_once" in [line["event"] for line in logs]
    with read_session(engine) as session:
        assert session.get_one(RunRow, run_id).verdict == ""
        assert session.exec(select(StackWorkRow.work)).one() == "waiting"
    judge.judge_run(engine, settings, run_id)
    with read_session(engine) as session:
        assert session.get_one(RunRow, run_id).verdict != ""
    engine.dispose()


def test_a_stack_locked_by_another_worker_is_judged_by_its_queue(settings_of: list[Settings]) -> None:
    settings = settings_of[0]
    engine, log_files = make_engine(settings), LogFiles.from_settings(settings)
    for number in range(2):
        process_run(engine, log_files, settings, upload(engine, settings, number))
    with transaction(engine) as session:
        row = session.exec(select(StackWorkRow)).one()
        work_id = stack_queue.request(session, row.project_id, row.stack_key)
        claim = stack_queue.claim(session, work_id, settings)
    assert claim is not None
    run_id = upload(engine, settings, 2)
    assert process_run(engine, log_files, settings, run_id) == "ready"
    with read_session(engine) as session:
        assert session.get_one(RunRow, run_id).verdict == ""
    judge.give_verdicts(engine, settings, claim)
    judge.rank_again(engine, settings, claim)
    judge.judge_stack(engine, settings, work_id)
    with read_session(engine) as session:
        assert session.get_one(RunRow, run_id).verdict != ""
        assert session.exec(select(StandingRow.runs)).one() == 3
    engine.dispose()
