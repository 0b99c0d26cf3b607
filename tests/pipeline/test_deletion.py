"""Deleted runs disappear everywhere, and undoing a deletion restores everything, on both databases."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, text, update
from sqlmodel import Session, SQLModel, col, select

from app.domain.retention import UNDO_DAYS, Retention
from app.errors import Conflict, DamagedObject, InvalidChange
from app.pipeline.decisions import pin
from app.pipeline.deletion import (
    DeletionSelection,
    apply_retention,
    continue_deletion,
    continue_deletions,
    finish_deletions,
    preview,
    request_deletion,
    selections,
    undo_deletion,
)
from app.runs.queries import RunQuery, find_runs
from app.settings import Settings
from app.storage import objects, usage
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.projects import list_projects
from app.storage.runs import files_of, lines_of
from app.storage.tables import (
    AuditEventRow,
    DeletionPartRow,
    DeletionRow,
    ProjectRow,
    RegressionRow,
    RunRow,
    SegmentRow,
    StackRow,
    StoredObjectRow,
    VerdictRow,
    utc_now,
)
from tests.builders import make_run, make_stack
from tests.regressions.judging import judge_all

STEP_TIMES = [100.0, 101.0, 99.5, 100.4, 100.2, 99.8, 100.1, 99.9, 100.3, 112.0, 112.4, 112.2]
NOT_COMPARED = {
    "deletion", "deletion_part", "deletion_object", "audit_event", "stack_work", "stack", "standing", "standing_board",
    "leader_change", "ranking_prior", "alembic_version", "heartbeat", "usage", "run_value",
}  # fmt: skip


@pytest.fixture
def service(either_settings: Settings, either_engine: Engine) -> tuple[Settings, Engine]:
    return either_settings, either_engine


def project_of(session: Session) -> ProjectRow:
    return session.execute(select(ProjectRow)).scalars().one()


def delete(engine: Engine, selection: DeletionSelection) -> int:
    with transaction(engine) as session:
        row, _ = request_deletion(session, project_of(session), selection, who="mia")
        number = row.id or 0
    assert continue_deletion(engine, number, seconds=60)
    return number


def undo(engine: Engine, number: int) -> None:
    with transaction(engine) as session:
        undo_deletion(session, project_of(session).id or 0, number, who="mia")
    assert continue_deletion(engine, number, seconds=60)


def contents(engine: Engine) -> dict[str, Any]:
    """Return all rows of the tables that a deletion touches; times of verdicts differ when they are computed again."""
    with read_session(engine) as session:
        rows = {
            table.name: sorted(repr(tuple(row)) for row in session.execute(table.select()))
            for table in SQLModel.metadata.sorted_tables
            if table.name not in NOT_COMPARED | {"verdict", "run_alarm", "regression", "regression_member"}
        }
        verdicts = select(VerdictRow.run_id, VerdictRow.decision, VerdictRow.delta_pct).where(col(VerdictRow.current))
        rows["verdict"] = sorted(map(repr, session.execute(verdicts)))
        states = select(RegressionRow.cause_key, RegressionRow.state)
        rows["regression"] = sorted(map(repr, session.execute(states)))
        return rows


def chosen(*runs: int) -> DeletionSelection:
    return DeletionSelection(kind="runs", runs=runs, before=utc_now())


def test_deleted_runs_leave_verdicts_regressions_and_histories_and_come_back(service: tuple[Settings, Engine]) -> None:
    settings, engine = service
    with transaction(engine) as session:
        runs = make_stack(session, STEP_TIMES)
    judge_all(engine, settings)
    before = contents(engine)
    assert len(before["regression"]) == 1
    with read_session(engine) as session:
        revision = session.execute(select(StackRow)).scalars().one().revision

    number = delete(engine, chosen(*runs[9:]))
    judge_all(engine, settings)
    with read_session(engine) as session:
        stack = session.execute(select(StackRow)).scalars().one()
        assert (stack.runs, stack.verdict == "regression") == (9, False)
        assert [(project.runs, project.deleted_runs) for project in list_projects(session)] == [(9, len(runs) - 9)]
        assert stack.revision > revision
        assert session.execute(select(func.count()).select_from(RegressionRow)).scalar_one() == 0
        assert {item.id for item in find_runs(session, RunQuery(q="nightly")).items} == set(runs[:9])
        orphaned = "SELECT count(*) FROM verdict WHERE run_id NOT IN (SELECT id FROM run)"
        assert session.execute(text(orphaned)).scalar_one() == 0
        actions = session.execute(select(AuditEventRow.action).where(AuditEventRow.who == "mia")).scalars().all()
    assert actions == ["delete"]

    undo(engine, number)
    judge_all(engine, settings)
    assert contents(engine) == before
    with pytest.raises(Conflict):
        undo(engine, number)


def test_verdicts_are_made_again_without_a_deleted_baseline(service: tuple[Settings, Engine]) -> None:
    settings, engine = service
    with transaction(engine) as session:
        runs = make_stack(session, STEP_TIMES[:6])
        before = session.get_one(RunRow, runs[5]).verdict
    number = delete(engine, chosen(*runs[:5]))
    judge_all(engine, settings)
    with read_session(engine) as session:
        assert session.get_one(RunRow, runs[5]).verdict == "no_baseline"
    undo(engine, number)
    judge_all(engine, settings)
    with read_session(engine) as session:
        assert session.get_one(RunRow, runs[5]).verdict == before != "no_baseline"


def test_numbers_of_deleted_runs_are_not_reused(service: tuple[Settings, Engine]) -> None:
    _, engine = service
    with transaction(engine) as session:
        run = make_run(session)
    number = delete(engine, chosen(run))
    with transaction(engine) as session:
        other = make_run(session, name="another")
        again = make_run(session)  # the same content
    assert min(other, again) > run
    undo(engine, number)
    with read_session(engine) as session:
        assert set(session.execute(select(RunRow.id)).scalars()) == {other, again}


def test_files_stay_while_a_deletion_can_be_undone(service: tuple[Settings, Engine]) -> None:
    settings, engine = service
    log_files = LogFiles.from_settings(settings)
    with transaction(engine) as session:
        run = make_run(session, log_files=log_files)
        (key,) = session.execute(select(SegmentRow.object_key)).scalars()
        session.add(StoredObjectRow(key=key, touched_at=utc_now() - timedelta(days=1)))
    number = delete(engine, chosen(run))
    assert objects.forget_unused(engine, log_files) == 0
    assert finish_deletions(engine) == 0
    with transaction(engine) as session:
        session.get_one(DeletionRow, number).ends_at = utc_now() - timedelta(seconds=1)
    assert finish_deletions(engine) == 1
    assert objects.forget_unused(engine, log_files) == 1
    with read_session(engine) as session:
        assert session.execute(select(func.count()).select_from(DeletionPartRow)).scalar_one() == 0


def test_retention_deletes_by_age_and_spares_golden_runs(service: tuple[Settings, Engine]) -> None:
    settings, engine = service
    log_files = LogFiles.from_settings(settings)
    old = utc_now() - timedelta(days=100)
    with transaction(engine) as session:
        golden = make_run(session, name="golden", created_at=old, log_files=log_files, stack_key="a" * 64, purpose="ci")
        plain = make_run(session, name="plain", created_at=old, log_files=log_files, step_time_ms=900.0)
        failed = make_run(session, name="failed", created_at=old, status="failed")
        new = make_run(session, name="new", status="failed")
        pin(session, golden, "mia")
        project_of(session).retention = Retention(logs_days=30, failed_days=60).to_json()
    with read_session(engine) as session:
        project = project_of(session)
        rules = selections(Retention.read(project.retention), utc_now())
        expected = {rule.kind: preview(session, project.id or 0, rule).runs for rule in rules}
    assert expected == {"failed": 1, "logs": 1}
    requested = apply_retention(engine)
    continue_deletions(engine, 60)
    assert apply_retention(engine) == []
    with read_session(engine) as session:
        assert set(session.execute(select(RunRow.id)).scalars()) == {golden, plain, new}
        lines_of(log_files, files_of(session, golden), 1, 5)
        with pytest.raises(DamagedObject):
            lines_of(log_files, files_of(session, plain), 1, 5)
    for number in requested:
        undo(engine, number)
    with read_session(engine) as session:
        assert failed in set(session.execute(select(RunRow.id)).scalars())
        assert lines_of(log_files, files_of(session, plain), 1, 5)[0]


def test_objects_of_deleted_logs_go_after_a_week(settings: Settings, engine: Engine, log_files: LogFiles) -> None:
    with transaction(engine) as session:
        make_run(session, log_files=log_files, created_at=utc_now() - timedelta(days=100))
        (key,) = session.execute(select(SegmentRow.object_key)).scalars()
        session.add(StoredObjectRow(key=key, touched_at=utc_now() - timedelta(days=1)))
    delete(engine, DeletionSelection(kind="logs", before=utc_now()))
    assert objects.forget_unused(engine, log_files) == 0
    with transaction(engine) as session:
        session.execute(update(SegmentRow).values(removed_at=utc_now() - timedelta(days=UNDO_DAYS, seconds=1)))
    assert objects.forget_unused(engine, log_files) == 1


def test_a_deleted_project_is_archived_then_gone(service: tuple[Settings, Engine]) -> None:
    _, engine = service
    with transaction(engine) as session:
        make_stack(session, STEP_TIMES)
        make_run(session, project="other")
        project = session.execute(select(ProjectRow).where(col(ProjectRow.slug) == "moe-lab")).scalars().one()
        row, expected = request_deletion(
            session, project, DeletionSelection(kind="project", before=utc_now()), who="mia"
        )
        number = row.id or 0
    assert expected.runs == len(STEP_TIMES)
    assert continue_deletion(engine, number, seconds=60)
    with transaction(engine) as session:
        session.get_one(DeletionRow, number).ends_at = utc_now() - timedelta(seconds=1)
    finish_deletions(engine)
    with read_session(engine) as session:
        assert session.execute(select(ProjectRow.slug)).scalars().all() == ["other"]
        assert "deleted" in session.execute(select(AuditEventRow.action)).scalars().all()


def test_a_deletion_of_nothing_is_refused(settings: Settings, engine: Engine) -> None:
    with transaction(engine) as session:
        make_run(session)
        with pytest.raises(InvalidChange):
            request_deletion(session, project_of(session), chosen(999), who="mia")


def test_usage_is_counted_by_project_and_day(service: tuple[Settings, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    settings, engine = service
    with transaction(engine) as session:
        make_run(session, log_files=LogFiles.from_settings(settings), created_at=utc_now() - timedelta(days=9))
        make_run(session, name="of today")
    with read_session(engine) as session:
        (now,) = usage.usage_of_projects(session)
        size = session.execute(select(func.sum(SegmentRow.size_bytes))).scalar_one()
        assert usage.counted_at(session) is None
        assert usage.database_bytes(session) > 0
    assert (now.runs, now.bytes, now.a_day) == (2, size, size / 10)
    monkeypatch.setattr(usage, "MOST_COUNTED_NOW", 1)
    usage.count_usage(engine)
    with transaction(engine) as session:
        make_run(session, name="after the count")
    with read_session(engine) as session:
        assert usage.usage_of_projects(session) == [now]
        assert usage.counted_at(session) is not None


def test_uploads_of_fewer_than_seven_days_have_no_forecast(service: tuple[Settings, Engine]) -> None:
    settings, engine = service
    with transaction(engine) as session:
        make_run(session, log_files=LogFiles.from_settings(settings), created_at=utc_now() - timedelta(days=5))
    with read_session(engine) as session:
        (young,) = usage.usage_of_projects(session)
    assert young.bytes > 0
    assert (young.a_day, young.in_days(90)) == (None, None)
