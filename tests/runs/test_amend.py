"""A person completes or corrects the contract of a run: checked, recorded, applied; and can take it back."""

from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from tests.runs.uploading import LOG, assert_problem, upload
from workers.tasks import process_run


@pytest.fixture
def run_id(client: TestClient) -> int:
    run: int = upload(client, LOG, meta={"gpus": 8, "project": "moe"}).json()["id"]
    process_run(run)
    return run


def amend(client: TestClient, run_id: int, author: str = "Ada", note: str = "", **fields: Any) -> Response:
    body = {"fields": fields, "author": author, "note": note}
    answer = client.patch(f"/api/v1/runs/{run_id}/contract", json=body)
    if answer.status_code == 200:
        assert answer.json()["updating"] is True
        process_run(run_id)
    return answer


def run_of(client: TestClient, run_id: int) -> dict[str, Any]:
    run: dict[str, Any] = client.get(f"/api/v1/runs/{run_id}").json()
    return run


def test_what_is_unknown_is_listed_with_how_to_supply_it(client: TestClient, run_id: int) -> None:
    run = run_of(client, run_id)
    listed = {field["name"]: field for field in run["unknown_fields"]}
    assert set(listed) == set(run["unknown"])
    assert (listed["gpu"]["role"], listed["gpu"]["meta"]) == ("stack", "gpu")
    assert "--expert-model-parallel-size" in listed["ep"]["megatron_lm"]
    roles = [field["role"] for field in run["unknown_fields"]]
    assert roles == sorted(roles, key=lambda role: role != "stack")


def test_a_stated_field_counts_and_is_recorded(client: TestClient, run_id: int) -> None:
    before = run_of(client, run_id)
    amend(client, run_id, gpu="h100", gpus="16", note="from the job script")
    run = run_of(client, run_id)
    assert run["contract"]["gpu"]["value"] == "H100"
    assert run["contract"]["gpus"]["value"] == 16
    assert run["contract"]["gpus"]["detail"].startswith("stated by Ada on 20")
    assert "gpu" not in run["unknown"]
    assert run["stack_key"] != before["stack_key"]
    assert [(a["field"], a["value"], a["old_value"], a["old_source"], a["note"]) for a in run["amendments"]] == [
        ("gpu", "H100", None, "", "from the job script"),
        ("gpus", 16, 8, "metadata", "from the job script"),
    ]


def test_taking_it_back_restores_what_the_run_said(client: TestClient, run_id: int) -> None:
    before = run_of(client, run_id)
    amend(client, run_id, gpu="H100", gpus=16)
    assert amend(client, run_id, author="Grace", gpu={"unset": True}, gpus={"unset": True}).status_code == 200
    run = run_of(client, run_id)
    assert (run["contract"], run["stack_key"]) == (before["contract"], before["stack_key"])
    assert [(a["author"], a["removed"]) for a in run["amendments"]] == [("Ada", False)] * 2 + [("Grace", True)] * 2


@pytest.mark.parametrize(
    ("fields", "author", "field"),
    [
        ({"gpus": -8}, "Ada", "fields.gpus"),
        ({"gpus": 8, "colour": "green"}, "Ada", "fields.colour"),
        ({"container": None}, "Ada", "fields.container"),
        ({"gpu": {"unset": True}}, "Ada", "fields.gpu"),
        ({}, "Ada", "fields"),
        ({"gpus": 8}, "  ", "author"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_changed(
    client: TestClient, run_id: int, fields: dict[str, Any], author: str, field: str
) -> None:
    assert_problem(amend(client, run_id, author=author, **fields), 422, "Nothing was changed", field=field)
    assert run_of(client, run_id)["amendments"] == []


def test_a_run_that_is_not_there_cannot_be_amended(client: TestClient) -> None:
    assert_problem(amend(client, 99, gpus=8), 404, "Run 99 does not exist")


def test_an_upload_that_waits_is_told_what_is_unknown(client: TestClient, run_id: int) -> None:
    again = upload(client, LOG, meta={"gpus": 8, "project": "moe"}, wait=1).json()
    assert "container" in {field["name"] for field in again["unknown_fields"]}
    assert again["warnings"] == run_of(client, run_id)["warnings"]
