"""What explains an alarm: the regression of its own branch, level and metric, and no other one."""

from typing import Any

from sqlalchemy import Engine
from sqlmodel import col, select

from app.regressions.commands import Change, Seen, change_regressions
from app.settings import Settings
from app.storage.database import read_session
from app.storage.tables import RegressionRow
from app.storage.verdicts import regressions_of
from tests.regressions.judging import arrive, judge_all, regressions_in, steady

BRANCH = "feature/x"


def bring(engine: Engine, settings: Settings, times: list[float], at: float = 0, **columns: Any) -> list[int]:
    runs = [arrive(engine, time, at + number, **columns) for number, time in enumerate(times)]
    judge_all(engine, settings)
    return runs


def causes(engine: Engine) -> list[str]:
    with read_session(engine) as session:
        return list(session.exec(select(RegressionRow.cause).order_by(col(RegressionRow.id))))


def explained_by(engine: Engine, run_id: int) -> list[int]:
    with read_session(engine) as session:
        return [one.id for one in regressions_of(session, run_id)]


def call_invalid(engine: Engine, settings: Settings, regression_id: int) -> None:
    change_regressions(engine, [Seen(regression_id)], Change("Ada", state="invalid", note="The request was closed."))
    judge_all(engine, settings)


def test_what_a_branch_made_slow_hides_nothing_of_main(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    branch = bring(engine, settings, [1083.0, 1082.0], 10, branch=BRANCH)
    bring(engine, settings, steady(1000, 5), 12)
    main = bring(engine, settings, steady(1087, 3), 17)
    assert regressions_in(engine) == [("open", "", [branch[0]]), ("open", "", [main[0]])]
    assert causes(engine)[0].endswith(f", on branch {BRANCH}.")
    assert BRANCH not in causes(engine)[1]
    assert [explained_by(engine, run) for run in (*branch, *main)] == [[1], [1], [2], [2], [2]]


def test_what_main_made_slow_explains_the_branches(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    main = bring(engine, settings, [1087.0], 10)
    branch = bring(engine, settings, [1083.0], 11, branch=BRANCH)
    assert regressions_in(engine) == [("open", "", main)]
    assert explained_by(engine, branch[0]) == [1]


def test_a_commit_that_was_merged_is_one_regression(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    bring(engine, settings, [1083.0], 10, branch=BRANCH, commit="merged")
    bring(engine, settings, [1084.0], 11, commit="merged")
    bring(engine, settings, [1083.0], 12)
    assert [one[0] for one in regressions_in(engine)] == ["open"]


def test_main_that_was_slow_before_the_branch_takes_its_regression(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    bring(engine, settings, [1083.0], 11, branch=BRANCH)
    late = bring(engine, settings, [1087.0], 10)
    assert regressions_in(engine) == [("open", "", late)]
    assert BRANCH not in causes(engine)[0]


def test_a_branch_that_was_slow_before_takes_nothing_of_main(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    main = bring(engine, settings, [1087.0], 11)
    branch = bring(engine, settings, [1087.0], 10, branch=BRANCH)
    assert regressions_in(engine) == [("open", "", main), ("open", "", branch)]


def test_runs_of_main_say_nothing_about_a_branch(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    bring(engine, settings, [1083.0], 10, branch=BRANCH)
    bring(engine, settings, steady(1000, 4), 11)
    assert regressions_in(engine)[0][1] == ""
    bring(engine, settings, steady(1000, 3), 15, branch=BRANCH)
    assert regressions_in(engine)[0][1] == "fixed"


def test_with_any_branch_as_baseline_there_is_one_line(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE project SET baseline_branch = '*'")
    slow = bring(engine, settings, [1083.0], 10, branch=BRANCH)
    bring(engine, settings, [1087.0], 11)
    assert regressions_in(engine) == [("open", "", slow)]


def test_what_an_invalid_one_explained_is_placed_again(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    slow = bring(engine, settings, steady(1080, 3), 14)
    assert regressions_in(engine) == [("open", "", [slow[0]])]
    call_invalid(engine, settings, 1)
    assert regressions_in(engine) == [("invalid", "", [slow[0]]), ("open", "", [slow[1]])]
    assert [explained_by(engine, run) for run in slow] == [[1], [2], [2]]
    judge_all(engine, settings)
    assert len(regressions_in(engine)) == 2


def test_an_invalid_one_explains_only_its_own_run(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 14))
    bring(engine, settings, [1080.0], 14, commit="odd")
    call_invalid(engine, settings, 1)
    bring(engine, settings, [1081.0], 15, commit="odd")
    bring(engine, settings, steady(1000, 3), 16)
    assert [one[0] for one in regressions_in(engine)] == ["invalid"]


def test_a_slow_run_belongs_to_no_regression_of_another_metric(engine: Engine, settings: Settings) -> None:
    bring(engine, settings, steady(1000, 10))
    memory = bring(engine, settings, [1000.0], 10, peak_memory_gib=70.0)
    slow = bring(engine, settings, [1090.0], 11)
    assert [explained_by(engine, run) for run in (*memory, *slow)] == [[1], [2]]
