"""Stored standings equal a rebuild after any sequence of uploads, decisions and corrections."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Engine, text
from sqlmodel import col, select
from starlette.testclient import TestClient

from app.cli import main
from app.errors import ThreewallsError
from app.pipeline.rank import Rebuilt, all_stacks, behind, compare_all, rebuild_all, rebuild_standings
from app.settings import Settings
from app.storage.database import make_engine, read_session, transaction
from app.storage.tables import RankingPriorRow, RunRow, StackWorkRow, StandingRow
from tests.builders import make_leaderboard
from tests.embedded.processes import wait_for
from tests.leaderboards.arrivals import NIGHTS, PROJECT, Job, amend, decide, standings
from tests.services.scaled import BEAT, WORKER, House, scaled_house
from workers.tasks import judge_stack, process_run, sweep


def differing(engine: Engine) -> list[Rebuilt]:
    return [item for item in compare_all(engine) if item.differs or item.waits]


def busy(engine: Engine) -> bool:
    with read_session(engine) as session:
        runs = session.exec(select(RunRow.id).where((col(RunRow.work) != "") | (col(RunRow.status) == "received")))
        stacks = session.exec(select(StackWorkRow.id).where(StackWorkRow.work != ""))
        return bool(runs.all() or stacks.all() or behind(session))


def settle(engine: Engine) -> None:
    """Do the work of the workers in this process until nothing waits."""
    while busy(engine):
        with read_session(engine) as session:
            waiting = session.exec(select(RunRow.id).where(col(RunRow.work) != "")).all()
        for run_id in waiting:
            process_run(run_id or 0)
        with transaction(engine) as session:  # as if the time between two sweeps had passed
            session.execute(text("UPDATE stack_work SET lease_until = NULL"))
        sweep()
        _ring(engine)


def _ring(engine: Engine) -> None:
    with read_session(engine) as session:
        waiting = session.exec(select(StackWorkRow.id).where(StackWorkRow.work != "")).all()
    for work_id in waiting:
        judge_stack(work_id or 0)


def test_each_change_of_a_run_is_in_the_standings_immediately(client: TestClient, engine: Engine) -> None:
    night = [job for job in NIGHTS if job.container == "nemo:26.06" and job.mbs == 1]
    runs = {}
    for job in night:
        runs[job] = job.upload(client)
        settle(engine)
        assert differing(engine) == []
    board = standings(client)["items"][0]["boards"][0]
    assert (board["reading"], sorted(board["leaders"])) == ("tie", ["deepep", "hybridep"])

    fastest = [run for job, run in runs.items() if job.dispatcher == "hybridep"]
    for run_id in fastest:
        decide(client, run_id, "quarantine", note="its node had no fabric")
        settle(engine)
        assert differing(engine) == []
    answer = standings(client)
    stack = answer["items"][0]
    assert (stack["boards"][0]["leaders"], stack["boards"][0]["reading"]) == (["deepep"], "leader")
    assert {item["why"] for item in stack["refused"]} == {"quarantined"}

    decide(client, fastest[0], "release", note="it had")
    late = Job("alltoall", 300.0, 2).upload(client)
    settle(engine)
    assert differing(engine) == []

    amend(client, late, container="nemo:26.05")
    settle(engine)
    assert differing(engine) == []
    assert sorted(item["runs"] for item in standings(client)["items"]) == [1, 9]
    amend(client, late, container={"unset": True})
    settle(engine)
    assert differing(engine) == []
    assert [item["runs"] for item in standings(client)["items"]] == [10]  # the other stack has no runs left, and no row

    changes = client.get("/api/v1/leaderboards/changes?project=arrivals").json()["items"]
    assert [change["sentence"] for change in reversed(changes)][-1].endswith("deepep and hybridep (tie)")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str, redis_server: str) -> Iterator[House]:
    with scaled_house(
        tmp_path, monkeypatch, database_url=postgres_url, broker_url=redis_server, project=PROJECT
    ) as house:
        yield house


def test_two_workers_keep_what_a_rebuild_makes(
    house: House, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        house.start(WORKER, name)
    house.start(BEAT)
    scaled = Settings(data_dir=house.data, database_url=postgres_url)
    engine = make_engine(scaled)
    house.stack.callback(engine.dispose)
    with (
        httpx2.Client(base_url=house.web.address, headers=house.headers, timeout=300) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        runs = dict(zip(NIGHTS, pool.map(lambda job: job.upload(client), NIGHTS), strict=True))
        changed: list[Future[Any]] = [
            pool.submit(decide, client, runs[NIGHTS[0]], "quarantine", note="bad node"),
            pool.submit(amend, client, runs[NIGHTS[4]], container="nemo:26.05"),
            pool.submit(Job("deepep", 250.0, 1).upload, client),
            pool.submit(Job("alltoall", 410.0, 9).upload, client),
        ]
        for item in changed:
            item.result()
        decide(client, runs[NIGHTS[0]], "release", note="it was the switch")
        decide(client, runs[NIGHTS[9]], "quarantine", note="bad node")
        wait_for(lambda: not busy(engine), "all runs to be read, judged and ranked")
        before = standings(client)
    assert differing(engine) == []
    assert sum(item["runs"] for item in before["items"]) == len(NIGHTS) + 2
    with read_session(engine) as session:
        prior = session.exec(select(RankingPriorRow)).one()
        assert prior.priors["training_equivalent"]["configurations"] >= 5  # it was learned, and moved, on the way
        assert prior.version > 1
        assert {row.prior_version for row in session.exec(select(StandingRow)).all()} == {prior.version}
    assert rebuild_standings(scaled, check=True) == 0
    assert capsys.readouterr().out.startswith("5 stacks ")
    engine.dispose()


def test_a_rebuild_corrects_wrong_standings(
    settings: Settings, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    with transaction(engine) as session:
        leaderboard = make_leaderboard(session)
    assert main(["rebuild-standings", "--check"]) == 0
    with transaction(engine) as session:
        session.execute(text("DELETE FROM standing WHERE stack_key = :key"), {"key": leaderboard["only"]})
        session.execute(
            text("UPDATE standing_board SET document = '{}' WHERE stack_key = :key"), {"key": leaderboard["tie"]}
        )
        session.execute(text("UPDATE standing SET family = 'x' WHERE stack_key = :key"), {"key": leaderboard["other"]})
    capsys.readouterr()
    assert main(["rebuild-standings", "--check"]) == 3
    output = capsys.readouterr().out
    for part in (
        leaderboard["only"][:12],
        leaderboard["tie"][:12],
        leaderboard["other"][:12],
        "the stack itself",
        "family",
        "3 differed",
    ):
        assert part in output
    assert sorted(len(item.differs) > 0 for item in rebuild_all(engine)) == [False, False, True, True, True]
    assert differing(engine) == []
    assert main(["rebuild-standings", "--check"]) == 0


def test_an_error_on_an_empty_database_names_the_migration_command(tmp_path: Path) -> None:
    with pytest.raises(ThreewallsError, match="threewalls migrate"):
        rebuild_standings(Settings(data_dir=tmp_path / "nothing"), check=True)


def test_stacks_are_those_with_runs_or_standings(engine: Engine) -> None:
    with transaction(engine) as session:
        leaderboard = make_leaderboard(session)
        assert {key for _, key in all_stacks(session)} == set(leaderboard.values())
