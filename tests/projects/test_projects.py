"""What holds for all runs of a project: its defaults; and for all runs in a container: which dispatchers work."""

from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.storage.database import transaction
from app.storage.tables import AvailabilityRow
from tests.builders import make_project, make_run
from tests.runs.uploading import LOG, assert_problem, upload
from tests.training_logs import training_log
from workers.tasks import process_run

ADDRESS = "/api/v1/projects/moe/defaults"


def uploaded(client: TestClient, log: bytes = LOG, **meta: Any) -> int:
    run_id: int = upload(client, log, meta={"project": "moe", **meta}).json()["id"]
    process_run(run_id)
    return run_id


def contract(client: TestClient, run_id: int) -> dict[str, Any]:
    fields: dict[str, Any] = client.get(f"/api/v1/runs/{run_id}").json()["contract"]
    return fields


def put(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.put(ADDRESS, json={"author": "Ada", **body})
    assert answer.status_code == 200, answer.text
    defaults: dict[str, Any] = answer.json()
    return defaults


def test_a_default_is_used_where_a_run_says_nothing(client: TestClient) -> None:
    silent, says = uploaded(client), uploaded(client, cluster="east")
    elsewhere: int = upload(client, LOG, meta={"project": "other"}).json()["id"]
    defaults = put(client, fields={"cluster": "west", "gpus": "16"})
    assert {name: entry["value"] for name, entry in defaults["fields"].items()} == {"cluster": "west", "gpus": 16}
    for run_id in (silent, says, elsewhere):
        process_run(run_id)
    cluster = contract(client, silent)["cluster"]
    assert (cluster["value"], cluster["source"], cluster["detail"]) == ("west", "default", "project default")
    assert contract(client, says)["cluster"]["value"] == "east"
    assert "cluster" not in contract(client, elsewhere)
    assert contract(client, uploaded(client, training_log(step_time_ms=99)))["gpus"]["value"] == 16


def test_a_default_that_is_gone_is_gone_from_the_runs(client: TestClient) -> None:
    run_id = uploaded(client)
    put(client, fields={"cluster": "west"})
    process_run(run_id)
    put(client)
    assert client.get(f"/api/v1/runs/{run_id}").json()["updating"] is True
    process_run(run_id)
    assert "cluster" not in contract(client, run_id)
    assert client.get(ADDRESS).json() == {"project": "moe", "fields": {}, "container_image": None}


def test_only_the_runs_that_a_default_concerns_are_read_again(client: TestClient) -> None:
    silent, says = uploaded(client), uploaded(client, cluster="east")
    put(client, fields={"cluster": "west"})
    updating = [client.get(f"/api/v1/runs/{run_id}").json()["updating"] for run_id in (silent, says)]
    assert updating == [True, False]


def test_the_image_of_a_project_makes_a_bare_tag_a_container(client: TestClient) -> None:
    bare, whole = uploaded(client, container="26.06"), uploaded(client, container="registry.example/train:7")
    put(client, container_image="nvcr.io/nvidia/nemo")
    for run_id in (bare, whole):
        process_run(run_id)
    assert contract(client, bare)["container"]["value"] == "nvcr.io/nvidia/nemo:26.06"
    assert contract(client, whole)["container"]["value"] == "registry.example/train:7"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"fields": {"gpus": 0}}, "fields.gpus"),
        ({"fields": {"colour": "green"}}, "fields.colour"),
        ({"container_image": "no image at all"}, "container_image"),
        ({"author": "\t"}, "author"),
    ],
)
def test_defaults_that_mean_nothing_are_refused_by_name(client: TestClient, body: dict[str, Any], field: str) -> None:
    uploaded(client)
    assert_problem(client.put(ADDRESS, json={"author": "Ada", **body}), 422, field=field)


def test_a_project_begins_with_its_first_run(client: TestClient) -> None:
    assert_problem(client.get(ADDRESS), 404, "no project 'moe'")


def test_availability_is_that_of_the_newest_run_with_all_counted(client: TestClient, engine: Engine) -> None:
    nemo = "nvcr.io/nvidia/nemo:26.06"
    with transaction(engine) as session:
        project = make_project(session).id or 0
        for number, (container, available) in enumerate(((nemo, True), (nemo, False), ("", True))):
            run_id = make_run(session, name=str(number))
            evidence = [{"file": 0, "line": 7, "text": "ImportError: DeepEP is not installed"}]
            session.add(
                AvailabilityRow(
                    run_id=run_id,
                    dispatcher="deepep",
                    project_id=project,
                    container=container,
                    available=available,
                    evidence=evidence,
                )
            )
    items = client.get("/api/v1/availability").json()["items"]
    assert [(item["container"], item["available"], item["runs_with"], item["runs_without"]) for item in items] == [
        (nemo, False, 1, 1),
        (None, True, 1, 0),
    ]
    assert items[0]["evidence"][0]["line"] == 7
    assert len(client.get(f"/api/v1/availability?container={nemo}").json()["items"]) == 1
    assert client.get("/api/v1/availability?project=elsewhere").json() == {"items": []}
