"""Data that triggers derive from runs equals the result of a query over all runs, on both databases."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from alembic import command
from sqlalchemy import Engine, text
from sqlmodel import Session, col, select

from app.runs.queries import RunQuery, find_runs
from app.settings import Settings
from app.storage import derived, stacks
from app.storage.database import alembic_config, migrate, read_session, transaction
from app.storage.search import search_conditions
from app.storage.tables import RunRow, RunValueRow, StackRow
from tests.builders import make_run
from tests.cases import sized

DAY = datetime(2026, 11, 1, tzinfo=UTC)
CHOICES = {
    "stack_key": ("", "aa", "bb"),
    "status": ("received", "processing", "ready", "failed", "unread"),
    "verdict": ("", "no_change", "regression"),
    "purpose": ("ci", "experiment"),
    "dispatcher": (None, "alltoall", "deepep"),
    "model": (None, "Qwen3", "Mixtral"),
    "gpu": (None, "H100"),
    "branch": ("main", "feature/a"),
    "name": ("nightly", "Ablation 7", 'quo"ted', "größer"),
    "commit": ("0123abcd" * 5, "feedface" * 5),
}
WORDS = (
    "nightly",
    "feed",
    "3abc",
    "QWEN",
    "h100",
    'o"te',
    "größ",
    "7",
    "#3",
    "3",
    "aa",
    "nothing-has-this",
    "feature/a",
)


@pytest.fixture
def engine(migrated_engine: Engine) -> Engine:
    return migrated_engine


def change_runs(engine: Engine, seed: int, changes: int) -> None:
    """Insert runs and change them at random."""
    draw = random.Random(seed)  # noqa: S311
    with transaction(engine) as session:
        runs = [
            session.get_one(RunRow, make_run(session, project=project, name=f"run {seed}.{number}", status="received"))
            for number, project in enumerate(("moe-lab", "kernels") * 8)
        ]
    for _ in range(changes):
        with transaction(engine) as session:
            row = session.get_one(RunRow, draw.choice(runs).id)
            for name in draw.sample(sorted(CHOICES), draw.randint(1, 5)):
                setattr(row, name, draw.choice(CHOICES[name]))
            if draw.random() < 0.3:
                row.ordered_at = DAY + timedelta(days=draw.randint(0, 5))


def runs_of(session: Session) -> list[RunRow]:
    return list(session.execute(select(RunRow).order_by(col(RunRow.id))).scalars())


def stacks_with_runs(session: Session) -> list[StackRow]:
    return list(session.execute(select(StackRow).where(StackRow.runs > 0)).scalars())


def expected_stacks(runs: list[RunRow]) -> dict[tuple[int, str], tuple[object, ...]]:
    expected = {}
    read = [run for run in runs if run.status in ("ready", "failed") and run.stack_key]
    for key in {(run.project_id, run.stack_key) for run in read}:
        own = sorted(
            (run for run in runs if (run.project_id, run.stack_key) == key), key=lambda run: (run.ordered_at, run.id)
        )
        counted = [run for run in own if run.status in ("ready", "failed")]
        judged = [run.verdict for run in counted if run.verdict and run.purpose != "experiment"]
        newest = counted[-1]
        expected[key] = (len(counted), newest.ordered_at, judged[-1] if judged else "", newest.model, newest.gpu)
    return expected


@pytest.mark.parametrize("seed", range(sized(1, 3)))
def test_derived_rows_follow_every_change_of_a_run(engine: Engine, seed: int) -> None:
    change_runs(engine, seed, changes=150)
    with read_session(engine) as session:
        runs = runs_of(session)
        rows = session.execute(select(StackRow)).scalars().all()
        values = {(row.field, row.project_id, row.value) for row in session.execute(select(RunValueRow)).scalars()}
    derived_stacks = {
        (row.project_id, row.stack_key): (row.runs, row.last_at, row.verdict, row.model, row.gpu)
        for row in rows
        if row.runs
    }
    assert derived_stacks == expected_stacks(runs)
    for row in (row for row in rows if row.runs):
        own = [run for run in runs if (run.project_id, run.stack_key) == (row.project_id, row.stack_key)]
        names = {run.dispatcher or "?" for run in own if run.status in ("ready", "failed")}
        assert names <= set(row.dispatchers.split(",")), row.dispatchers
    present = {
        (name, run.project_id, value) for run in runs for name in derived.FIELDS if (value := getattr(run, name))
    }
    assert present <= values


@pytest.mark.parametrize("seed", range(sized(1, 2)))
@pytest.mark.parametrize("few", [0, 500])
def test_the_index_of_the_search_answers_as_reading_every_run_does(
    engine: Engine, seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.storage.search._FEW", few)  # with more matches, a statement reads the index again
    change_runs(engine, seed, changes=80)
    with read_session(engine) as session:
        assert derived.has_search_index(session.connection())
        runs = runs_of(session)
        for word in (*WORDS, "nightly main", "run qwen", "3 nightly"):
            expected = {run.id for run in runs if all(mentions(run, part) for part in word.split())}
            run_ids = {item.id for item in find_runs(session, RunQuery(q=word)).items}
            assert run_ids == expected, word


def mentions(run: RunRow, word: str) -> bool:
    texts = (run.name, run.branch, run.commit, run.model, run.gpu, run.dispatcher)
    project = {1: "moe-lab", 2: "kernels"}[run.project_id]
    in_text = any(word.lower() in (part or "").lower() for part in (*texts, project))
    return in_text or word.removeprefix("#") == str(run.id) or (bool(run.stack_key) and run.stack_key.startswith(word))


def test_a_copied_table_of_runs_gets_its_triggers_and_rows_again(migrated_database: Settings, engine: Engine) -> None:
    change_runs(engine, seed=9, changes=40)
    with engine.execution_options(writes=True).begin() as connection:
        derived.remove(connection)
        connection.execute(text("UPDATE run SET model = 'Kimi-K2', stack_key = 'cc', status = 'ready' WHERE id <= 5"))
    migrate(migrated_database)
    with read_session(engine) as session:
        runs = runs_of(session)
        assert {(row.project_id, row.stack_key): row.runs for row in stacks_with_runs(session)} == {
            key: values[0] for key, values in expected_stacks(runs).items()
        }
        run_ids = {item.id for item in find_runs(session, RunQuery(q="kimi")).items}
        assert run_ids == {run.id for run in runs if run.model == "Kimi-K2"}
    change_runs(engine, seed=10, changes=10)


def test_earlier_databases_get_what_is_derived(migrated_database: Settings, engine: Engine) -> None:
    change_runs(engine, seed=4, changes=60)
    with read_session(engine) as session:
        before = {(row.project_id, row.stack_key): row.runs for row in stacks_with_runs(session)}
    command.downgrade(alembic_config(engine), "0026")
    migrate(migrated_database)
    with read_session(engine) as session:
        after = {(row.project_id, row.stack_key): row.runs for row in stacks_with_runs(session)}
        assert search_conditions(session, "nightly").conditions
    assert after == before != {}


def test_the_revision_of_a_stack_grows_with_every_shown_change(engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session, stack_key="aa")
    columns = sorted({column.name for column in stacks._NEWEST_FIRST.selected_columns if column.table is not None})
    for name in (name for name in columns if name not in UNCHANGED):
        with transaction(engine) as session:
            before = session.execute(select(StackRow)).scalars().one().revision
            row = session.get_one(RunRow, run)
            value = getattr(row, name)
            setattr(row, name, other_value(value, name))
        with read_session(engine) as session:
            assert session.execute(select(StackRow)).scalars().one().revision > before, name


def test_processing_a_run_again_grows_the_revision_also_after_an_upgrade(
    migrated_database: Settings, engine: Engine
) -> None:
    with transaction(engine) as session:
        run = make_run(session, stack_key="aa")
    earlier = {
        "sqlite": "DROP TRIGGER run_derived_stack; CREATE TRIGGER run_derived_stack AFTER UPDATE OF verdict ON run "
        "BEGIN SELECT 1; END",
        "postgresql": "DROP TRIGGER run_derived_update ON run; CREATE CONSTRAINT TRIGGER run_derived_update AFTER "
        "UPDATE OF verdict ON run DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION run_derived()",
    }[engine.dialect.name]
    with engine.execution_options(writes=True).begin() as connection:
        for statement in earlier.split("; ", 1):
            connection.exec_driver_sql(statement)
    migrate(migrated_database)
    revisions = []
    for minutes in (1, 2):
        with transaction(engine) as session:
            session.get_one(RunRow, run).processed_at = DAY + timedelta(minutes=minutes)
        with read_session(engine) as session:
            revisions.append(session.execute(select(StackRow)).scalars().one().revision)
    assert revisions[1] > revisions[0]


UNCHANGED = {"id", "project_id", "stack_key", "created_at", "merge_base", "merge_base_time"}
"""What a run keeps, and the key, by which a history is found."""


def other_value(value: object, name: str) -> object:
    if name == "status":
        return "failed"
    if isinstance(value, bool) or (value is None and name in ("is_steady", "short")):
        return not value
    if isinstance(value, datetime):
        return value + timedelta(days=1)
    return f"{value}x"[-20:] if isinstance(value, str) else 7 if value is None else type(value)(value + 1)
