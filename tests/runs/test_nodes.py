"""The nodes of a run: from an uploaded list, and slow nodes, in the API and on the page."""

from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.settings import Settings
from app.storage.database import transaction
from app.storage.tables import RunResultRow
from tests.regressions.judging import arrive, judge_all, steady
from tests.runs.uploading import LOG
from workers.tasks import process_run


def test_an_uploaded_list_states_the_nodes(client: TestClient) -> None:
    parts = [("log", ("train.log", LOG)), ("config", ("hostfile", b"gb-nvl-002 slots=4\ngb-nvl-001 slots=4\n"))]
    run = client.post("/api/v1/runs", files=parts).json()["id"]
    process_run(run)
    assert client.get(f"/api/v1/runs/{run}").json()["contract"]["nodes"]["value"] == "gb-nvl-[001-002]"
    answer = client.get(f"/api/v1/runs/{run}/nodes").json()
    assert answer == {"run": run, "nodes": ["gb-nvl-001", "gb-nvl-002"], "suspects": []}
    assert client.get("/api/v1/runs/999/nodes").status_code == 404


def test_a_slow_node_is_named(engine: Engine, settings: Settings, client: TestClient) -> None:
    runs = [
        arrive(engine, time * (1.08 if number % 4 == 0 else 1.0), number, "abc1234")
        for number, time in enumerate(steady(1000, 24))
    ]
    with transaction(engine) as session:
        for number, run in enumerate(runs):
            row = session.get_one(RunResultRow, run)
            nodes = f"n[{number % 3 + 1}],n9" if number % 4 == 0 else f"n[{number % 3 + 1}]"
            stated = {"value": nodes, "source": "metadata", "detail": "node list"}
            row.contract = {**row.contract, "nodes": stated}
            session.add(row)
    judge_all(engine, settings)
    answer = client.get(f"/api/v1/runs/{runs[20]}/nodes").json()
    assert answer["nodes"] == ["n3", "n9"]
    (slow,) = answer["suspects"]
    assert (slow["node"], slow["runs"]) == ("n9", runs[::4])
    assert 6 < slow["delta_pct"] < 10
    assert "<code>n9</code>" in client.get(f"/runs/{runs[20]}?tab=why").text
    assert client.get(f"/api/v1/runs/{runs[21]}/nodes").json()["suspects"] == []
