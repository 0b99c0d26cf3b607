"""A project's baseline branch and commit links: validated, recorded, and applied by judging again."""

import html
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlmodel import col
from starlette.testclient import TestClient

from app.storage.database import read_session, transaction
from app.storage.tables import RunRow, StackWorkRow
from tests.builders import make_run

ADDRESS = "/api/v1/projects/moe/rules"
HTML = {"Accept": "text/html"}
COMMIT, RANGE = "https://git/{commit}", "https://git/{from}...{to}"


@pytest.fixture(autouse=True)
def project(engine: Engine) -> None:
    with transaction(engine) as session:
        row = session.get_one(RunRow, make_run(session, project="moe"))
        session.add(StackWorkRow(project_id=row.project_id, stack_key=row.stack_key))


def patch(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.patch(ADDRESS, json={"author": "Ada", **body})
    assert answer.status_code == 200, answer.text
    rules: dict[str, Any] = answer.json()
    return rules


def works(engine: Engine) -> list[str]:
    with read_session(engine) as session:
        return list(session.execute(select(col(StackWorkRow.work))).scalars())


def test_omitted_fields_stay_and_each_change_is_recorded(client: TestClient) -> None:
    assert client.get(ADDRESS).json() == {
        "project": "moe", "baseline_branch": "main", "commit_url": "", "compare_url": "", "changes": [],
    }  # fmt: skip
    patch(client, commit_url=COMMIT, compare_url=RANGE)
    rules = patch(client, commit_url="", author="Bea")
    assert (rules["commit_url"], rules["compare_url"]) == ("", RANGE)
    changes = [(change["who"], change["before"], change["after"]) for change in rules["changes"]]
    assert changes == [
        ("Bea", {"commit_url": COMMIT}, {"commit_url": ""}),
        ("Ada", {"commit_url": "", "compare_url": ""}, {"commit_url": COMMIT, "compare_url": RANGE}),
    ]


def test_another_baseline_branch_has_every_stack_judged_again(client: TestClient, engine: Engine) -> None:
    patch(client, commit_url=COMMIT)
    assert works(engine) == [""]
    patch(client, baseline_branch="*")
    assert works(engine) == ["waiting"]
    assert client.get(ADDRESS).json()["baseline_branch"] == "*"
    assert 'data-baseline-branch="*"' in client.get("/settings/projects/moe").text


def test_links_are_checked(client: TestClient) -> None:
    body = {"author": "Ada", "commit_url": "javascript:alert({commit})", "compare_url": "https://git/{from}"}
    answer = client.patch(ADDRESS, json=body)
    assert answer.status_code == 422
    assert {error["field"] for error in answer.json()["errors"]} == {"commit_url", "compare_url"}
    assert client.get(ADDRESS).json()["changes"] == []
    assert client.get("/api/v1/projects/nobody/rules").status_code == 404


def test_the_form_sets_them_and_shows_who_did(client: TestClient) -> None:
    address = "/settings/projects/moe"
    fields = {"baseline_branch": "release/<b>", "commit_url": COMMIT, "compare_url": "nonsense", "author": "Ada <b>"}
    refused = client.post(f"{address}/rules", data=fields, headers=HTML)
    assert refused.status_code == 422
    assert "{from} and {to}" in html.unescape(refused.text)
    assert 'value="release/&lt;b&gt;"' in refused.text

    saved = client.post(f"{address}/rules", data=fields | {"compare_url": RANGE}, headers=HTML)
    assert saved.status_code == 200
    assert "Saved." in saved.text
    assert "Ada <b>" not in saved.text
    shown = html.unescape(saved.text)
    assert "Ada <b>" in shown
    assert "ci</code> runs on release/<b>" in shown
    assert f'value="{RANGE}"' in shown
