"""A new version of the definitions meets a database of older figures: real servers, workers killed in the middle."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Engine, create_engine, text

from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS
from tests.cases import sized
from tests.embedded.processes import PLAIN_HTTP, wait_for
from tests.services.scaled import BEAT, WORKER, House, kill, scaled_house
from tests.training_logs import training_log

RUNS, KILLS = sized((12, 1), (60, 2))
OLDER = DEFINITION_VERSION - 1


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str, redis_server: str) -> Iterator[House]:
    with scaled_house(
        tmp_path, monkeypatch, database_url=postgres_url, broker_url=redis_server, project="old", kills=True
    ) as house:
        yield house


@pytest.fixture
def database(postgres_url: str) -> Iterator[Engine]:
    engine = create_engine(postgres_url)
    yield engine
    engine.dispose()


def upload(house: House, number: int) -> int:
    place = f"2026-10-{1 + number // 24:02}T{number % 24:02}:00:00Z"
    meta = {"project": "old", "gpu": "H100", "branch": "main", "commit": f"{number:040x}", "commit_time": place}
    parts: list[Any] = [
        ("log", ("train.log", training_log(step_time_ms=400.0 + number % 7))),
        ("meta", (None, json.dumps(meta))),
    ]
    answer = httpx2.post(
        f"{house.web.address}/api/v1/runs", files=parts, headers=house.headers, timeout=300, verify=PLAIN_HTTP
    )
    assert answer.status_code == 202, answer.text
    return int(answer.json()["id"])


def definitions(house: House) -> dict[str, Any]:
    body: dict[str, Any] = httpx2.get(
        f"{house.web.address}/api/v1/definitions", headers=house.headers, timeout=300, verify=PLAIN_HTTP
    ).json()
    return body


def is_judged(house: House, runs: int) -> bool:
    result = definitions(house)
    return bool(
        result["verdicts"]["total"] == runs and not result["verdicts"]["waiting"] and not result["runs"]["waiting"]
    )


def make_old(database: Engine) -> None:
    """As an earlier Threewalls left it: other figures, and verdicts that rest on them."""
    older = {"version": OLDER, "rules": str(DEFINITIONS | {"flops": DEFINITIONS["flops"] - 1}).replace("'", '"')}
    with database.begin() as connection:
        connection.execute(
            text("UPDATE run SET definition_version = :version, step_time_ms = 1"), {"version": older["version"]}
        )
        connection.execute(text("UPDATE run_result SET definitions = :rules"), {"rules": older["rules"]})
        connection.execute(
            text(
                "UPDATE verdict SET definition_version = :version,"
                " document = jsonb_set(document::jsonb, '{definition_version}', to_jsonb(CAST(:version AS int)))"
            ),
            {"version": OLDER},
        )


def mixed(database: Engine) -> list[Any]:
    """Return current verdicts that are based on runs of other versions than they state, or of two versions."""
    statement = (
        "SELECT verdict.id FROM verdict, jsonb_array_elements_text(document::jsonb -> 'baseline') AS based"
        " JOIN run ON run.id = based::int"
        " WHERE verdict.current AND verdict.definition_version = :new AND run.definition_version <> :new"
    )
    with database.connect() as connection:
        return list(connection.execute(text(statement), {"new": DEFINITION_VERSION}).all())


def test_recomputation_completes_although_processes_are_killed(house: House, database: Engine) -> None:
    first = house.start(WORKER, "first")
    house.start(BEAT)
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda number: upload(house, number), range(RUNS)))
    wait_for(lambda: is_judged(house, RUNS), "all runs to be judged")
    kill(first)
    make_old(database)
    runs = definitions(house)["runs"]
    assert (runs["total"], runs["done"], runs["waiting"]) == (RUNS, 0, RUNS)

    seen: list[int] = []
    late = 0
    for number in range(KILLS + 1):  # killed in the middle, then left to recover, with an additional upload
        if number == KILLS:
            late = upload(house, RUNS)
        worker = house.start(WORKER, f"worker-{number}")
        goal = RUNS + 1 if number == KILLS else (number + 1) * RUNS // (KILLS + 1)
        wait_for(partial(_reached, goal, house, database, seen), f"{goal} runs to be computed again")
        if number < KILLS:
            kill(worker)
    assert seen == sorted(seen)
    wait_for(lambda: not mixed(database) and is_judged(house, RUNS + 1), "all verdicts to be made again")

    state = definitions(house)
    assert (state["runs"]["done"], state["runs"]["failed"], state["verdicts"]["waiting"]) == (RUNS + 1, 0, 0)
    assert mixed(database) == []
    with database.connect() as connection:
        times = connection.execute(text("SELECT count(*) FROM run WHERE step_time_ms < 100")).scalar_one()
        because = connection.execute(
            text("SELECT because FROM verdict WHERE current AND run_id <> :late"), {"late": late}
        )
        doubled = connection.execute(text("SELECT run_id FROM verdict WHERE current GROUP BY 1 HAVING count(*) > 1"))
        assert (times, doubled.all()) == (0, [])
        changed = f"The definitions changed (flops {DEFINITIONS['flops'] - 1} → {DEFINITIONS['flops']})."
        assert set(because.scalars()) == {changed}
    assert len(ids) == RUNS


def _reached(goal: int, house: House, database: Engine, seen: list[int]) -> bool:
    """So many runs are done; and at no time does a verdict rest on figures of two versions."""
    assert mixed(database) == []
    seen.append(int(definitions(house)["runs"]["done"]))
    return seen[-1] >= goal
