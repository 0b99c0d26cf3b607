"""`GET /api/v1/leaderboards` and the history of leaders beside it."""

import csv

from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.storage.database import transaction
from tests.builders import make_leaderboard
from tests.runs.uploading import assert_problem

HERE = "/api/v1/leaderboards?hardware=h100&family=qwen3-30b-a3b"


def made_in(engine: Engine) -> dict[str, str]:
    with transaction(engine) as session:
        return make_leaderboard(session)


def test_stacks_with_their_boards_and_counts_across_them(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    found = client.get(HERE).json()
    assert (found["total"], found["pages"], found["evidence"]) == (4, 1, "screen")
    assert [(one["hardware_slug"], one["stacks"]) for one in found["leaderboards"]] == [("gb200", 1), ("h100", 4)]
    assert found["leaderboards"][1]["url"].endswith("/leaderboards/h100/qwen3-30b-a3b")
    stacks = {one["stack_key"]: one for one in found["items"]}
    (board,) = stacks[made["leader"]]["boards"]
    assert (board["leaders"], board["reading"], board["entries"][0]["dispatcher"]) == (
        ["hybridep"],
        "leader",
        "hybridep",
    )
    assert "needs 12.1\u202f% more memory" in board["entries"][0]["gain"]["sentence"]
    assert [one["why"] for one in stacks[made["leader"]]["refused"]] == ["not_active"]
    assert [one["dispatcher"] for one in stacks[made["only"]]["missing"]] == ["deepep", "hybridep"]
    assert {one["semantic_class"] for one in found["summaries"]} == {"training_equivalent", "benchmark_only"}

    for query, count in (
        ("&routing=forced", 1),
        ("&ep_size=large", 1),
        (f"&stack={made['tie'][:10]}", 1),
        ("&page=9", 0),
    ):
        assert len(client.get(HERE + query).json()["items"]) == count
    everywhere = client.get("/api/v1/leaderboards?page_size=2").json()
    assert (everywhere["total"], everywhere["pages"], len(everywhere["items"])) == (5, 3, 2)
    assert client.get("/api/v1/leaderboards?project=nobody").json()["items"] == []


def test_as_csv_with_one_row_a_result(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    answer = client.get(HERE, headers={"Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = [row for row in csv.DictReader(answer.text.splitlines()) if row["stack_key"] == made["tie"]]
    assert {row["dispatcher"] for row in rows if row["first_place"]} == {"alltoall", "deepep", "hybridep"}
    assert "4 steady iterations" in next(row["not_ranked_because"] for row in rows if row["dispatcher"] == "allgather")
    assert client.get(HERE, headers={"Accept": "image/png"}).status_code == 406


def test_who_led_when(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    found = client.get(f"/api/v1/leaderboards/changes?stack={made['tie']}").json()["items"]
    assert [(one["before"], one["sentence"]) for one in found] == [(None, "deepep and hybridep (tie)")]
    assert found[0]["after"]["dispatchers"] == ["deepep", "hybridep"]
    assert len(client.get("/api/v1/leaderboards/changes?newest=2").json()["items"]) == 2


def test_what_cannot_be_asked_for(client: TestClient) -> None:
    assert_problem(client.get("/api/v1/leaderboards?evidence=best"), 422, field="evidence")
    assert_problem(client.get("/api/v1/leaderboards?page=0"), 422, field="page")
    assert_problem(client.get("/api/v1/leaderboards/changes?newest=0"), 422, field="newest")
    assert client.get("/api/v1/leaderboards").json()["items"] == []
    assert "LeaderboardOut" in client.get("/openapi.json").text
