"""`GET /api/v1/leaderboards` and the history of leaders beside it."""

import csv

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.leaderboards.queries import BoardQuery
from app.storage.database import transaction
from tests.builders import make_leaderboard
from tests.runs.uploading import assert_problem

CSV = {"Accept": "text/csv"}
HERE = "/api/v1/leaderboards?hardware=h100&family=qwen3-30b-a3b"


def made_in(engine: Engine) -> dict[str, str]:
    with transaction(engine) as session:
        return make_leaderboard(session)


def test_stacks_with_their_boards_and_counts_across_them(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    found = client.get(HERE).json()
    assert (found["total"], found["pages"], found["evidence"]) == (4, 1, "screen")
    assert [(one["hardware_slug"], one["stacks"]) for one in found["leaderboards"]] == [("h100", 4)]
    assert found["leaderboards"][0]["url"].endswith("/leaderboards/h100/qwen3-30b-a3b")
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
    assert [one["hardware_slug"] for one in everywhere["leaderboards"]] == ["gb200", "h100"]


def test_as_csv_with_one_row_a_result(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    answer = client.get(HERE, headers={"Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = [row for row in csv.DictReader(answer.text.splitlines()) if row["stack_key"] == made["tie"]]
    assert {row["dispatcher"] for row in rows if row["first_place"]} == {"alltoall", "deepep", "hybridep"}
    assert "4 steady iterations" in next(row["not_ranked_because"] for row in rows if row["dispatcher"] == "allgather")
    assert client.get(HERE, headers={"Accept": "image/png"}).status_code == 406


def test_hardware_and_family_are_known_by_any_of_their_names(client: TestClient, engine: Engine) -> None:
    made_in(engine)
    by_slug = client.get(HERE).json()
    assert client.get("/api/v1/leaderboards?hardware=H100&family=Qwen3-30B-A3B").json() == by_slug
    changes = "/api/v1/leaderboards/changes?family="
    assert client.get(changes + "Qwen3-30B-A3B").json() == client.get(changes + "qwen3-30b-a3b").json() != {"items": []}


@pytest.mark.parametrize("path", ["", "/gains", "/changes"])
def test_what_there_is_not_is_no_empty_ranking(client: TestClient, engine: Engine, path: str) -> None:
    made_in(engine)
    here = f"/api/v1/leaderboards{path}"
    for query, told in (
        ("hardware=B200", "Available: gb200, h100."),
        ("hardware=h100&family=deepseek-v3", "on H100 has been ranked. Available: qwen3-30b-a3b."),
        ("project=nobody", "Project 'nobody' does not exist"),
        ("stack=ffffffffffffffff", "No stack with the key"),
    ):
        assert_problem(client.get(f"{here}?{query}"), 404, told)
    misspelt = client.get(f"{here}?hardwear=h100")
    assert_problem(misspelt, 422, field="hardwear")
    assert "hardware, family" in misspelt.json()["errors"][0]["message"]


def test_a_board_is_in_the_order_that_is_asked_for(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    here = f"/api/v1/leaderboards?stack={made['leader']}"

    def order(rank: str) -> list[tuple[str, int]]:
        answer = client.get(f"{here}&rank={rank}").json()
        assert answer["rank"] == rank
        (board,) = answer["items"][0]["boards"]
        return [(one["dispatcher"], one["place"]["first"]) for one in board["entries"]]

    assert order("step_time") == order("tokens_per_s_per_gpu") == [("hybridep", 1), ("alltoall", 2)]
    assert order("memory_headroom") == [("alltoall", 1), ("hybridep", 2)]
    rows = list(csv.DictReader(client.get(f"{here}&rank=memory_headroom", headers=CSV).text.splitlines()))
    assert [row["dispatcher"] for row in rows if row["first_place"]] == ["alltoall", "hybridep"]


def test_the_api_knows_the_filters_of_the_page(client: TestClient) -> None:
    (call,) = client.get("/openapi.json").json()["paths"]["/api/v1/leaderboards"].values()
    assert set(BoardQuery.names()) <= {parameter["name"] for parameter in call["parameters"]}


def test_pages_of_a_table_are_complete_and_lead_to_each_other(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    stacks: list[str] = []
    address, pages = "/api/v1/leaderboards?page_size=2", 0
    while address:
        answer = client.get(address, headers=CSV)
        assert answer.headers["x-total-count"] == "5"
        stacks += dict.fromkeys(row["stack_key"] for row in csv.DictReader(answer.text.splitlines()))
        address, pages = answer.links.get("next", {}).get("url", ""), pages + 1
    assert (pages, len(stacks), set(stacks)) == (3, 5, set(made.values()))
    assert answer.links["prev"]["url"].endswith("?page_size=2&page=2")


def test_gains_as_the_chart_draws_them(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    found = client.get(f"/api/v1/leaderboards/gains?stack={made['leader']}").json()
    (gain,) = found["items"]
    assert (gain["dispatcher"], gain["over"], gain["outcome"], found["total"]) == ("hybridep", "alltoall", "first", 1)
    assert gain["gain_pct_low"] < gain["gain_pct"] < gain["gain_pct_high"]
    assert gain["gain_pct"] == pytest.approx(20, abs=0.2)
    (row,) = csv.DictReader(
        client.get(f"/api/v1/leaderboards/gains?stack={made['leader']}", headers=CSV).text.splitlines()
    )
    assert float(row["gain_pct"]) == gain["gain_pct"]


def test_who_led_when(client: TestClient, engine: Engine) -> None:
    made = made_in(engine)
    found = client.get(f"/api/v1/leaderboards/changes?stack={made['tie']}").json()["items"]
    assert [(one["before"], one["sentence"]) for one in found] == [(None, "deepep and hybridep (tie)")]
    assert found[0]["after"]["dispatchers"] == ["deepep", "hybridep"]
    assert len(client.get("/api/v1/leaderboards/changes?newest=2").json()["items"]) == 2


def test_what_cannot_be_asked_for(client: TestClient) -> None:
    for field, value in (
        ("rank", "zz"), ("evidence", "best"), ("routing", "bogus"), ("semantic_class", "x"), ("ep_size", "huge"),
        ("precision", "bf17"),
    ):  # fmt: skip
        refused = client.get(f"/api/v1/leaderboards?{field}={value}")
        assert_problem(refused, 422, field=field)
        assert f"not '{value}'" in refused.json()["errors"][0]["message"]
    assert "step_time, tokens_per_s_per_gpu," in client.get("/api/v1/leaderboards?rank=zz").text
    assert_problem(client.get("/api/v1/leaderboards?stack=zzzz"), 422, field="stack")
    assert_problem(client.get("/api/v1/leaderboards?page=0"), 422, field="page")
    assert_problem(client.get("/api/v1/leaderboards/changes?newest=0"), 422, field="newest")
    assert client.get("/api/v1/leaderboards").json()["items"] == []
    assert "LeaderboardOut" in client.get("/openapi.json").text
