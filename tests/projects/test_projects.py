"""Projects: defaults, quota, containers and definitions of figures."""

import re
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from fastapi import FastAPI
from markupsafe import escape
from sqlalchemy import Engine, update
from starlette.testclient import TestClient

from app.domain.definitions import DECIDES, DEFINITION_VERSION, DEFINITIONS, VERDICT_RULES
from app.main import create_app
from app.settings import Settings
from app.storage import suspect_evidence
from app.storage.audit import events
from app.storage.database import read_session, transaction
from app.storage.remembered import WhileSlow
from app.storage.tables import AvailabilityRow, ProjectRow, RunRow, utc_now
from tests.access.people import SAME_ORIGIN, make_teams
from tests.builders import make_project, make_run, make_stack
from tests.conftest import OPEN_TO
from tests.runs.uploading import LOG, assert_problem, traces, upload
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
    assert_problem(client.get(ADDRESS), 404, "Project 'moe' does not exist")


def test_availability_is_that_of_the_newest_run_with_all_counted(
    client: TestClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    nemo, numbers = "nvcr.io/nvidia/nemo:26.06", count()

    def add(container: str, *, available: bool) -> None:
        evidence = [{"file": 0, "line": 7, "text": "ImportError: DeepEP is not installed"}]
        with transaction(engine) as session:
            project = make_project(session).id or 0
            run_id = make_run(session, name=str(next(numbers)))
            session.add(
                AvailabilityRow(
                    run_id=run_id, dispatcher="deepep", project_id=project, container=container, available=available,
                    evidence=evidence,
                )
            )  # fmt: skip

    add(nemo, available=True)
    add(nemo, available=False)
    add("", available=True)
    items = client.get("/api/v1/availability").json()["items"]
    assert [(item["container"], item["available"], item["runs_with"], item["runs_without"]) for item in items] == [
        (nemo, False, 1, 1),
        (None, True, 1, 0),
    ]
    assert items[0]["evidence"][0]["line"] == 7
    assert len(client.get(f"/api/v1/availability?container={nemo}").json()["items"]) == 1
    assert client.get("/api/v1/availability?project=elsewhere").json()["total"] == 0
    second = client.get("/api/v1/availability?page=2&page_size=1").json()
    assert ([item["container"] for item in second["items"]], second["total"], second["pages"]) == ([nemo], 2, 2)
    assert nemo not in client.get("/availability?page=2").text

    # In a large database, a count is reused, plus the runs since then.
    monkeypatch.setattr(suspect_evidence, "_UNSETTLED", 0)
    for name, value in {"SHORT_SECONDS": -1.0, "TIMES": 10**9}.items():
        monkeypatch.setattr(WhileSlow, name, value)
    for runs in (1, 2):
        items = client.get("/api/v1/availability?container=").json()["items"]
        assert [(item["container"], item["runs_with"]) for item in items if item["container"] is None] == [(None, runs)]
        add("", available=True)


def test_a_container_without_proof_shows_what_its_newest_run_requested(client: TestClient, engine: Engine) -> None:
    """Rows of generated runs are marked beside those of real ones."""
    with transaction(engine) as session:
        (generated,) = make_stack(session, [400.0], project="demo", fields={"container": "made:1"})
        session.execute(update(ProjectRow).values(generated=True))
        (run,) = make_stack(session, [400.0], project="real", fields={"container": "real:1", "dispatcher": "deepep"})
    page = client.get("/availability").text.partition('id="requested"')[2]
    assert "2 containers whose logs do not show the dispatcher" in page, "collapsed below those with evidence"
    rows = re.findall(r'<th scope="row">(.*?)</tr>', page, re.DOTALL)
    by_container = {name: row for row in rows for name in ("made:1", "real:1") if name in row}
    assert f'href="/runs/{run}"' in by_container["real:1"]
    assert f'href="/runs/{generated}"' in by_container["made:1"]
    assert {name: 'class="generated"' in row for name, row in by_container.items()} == {"made:1": True, "real:1": False}


QUOTA = "/api/v1/projects/small/quota"
SMALL = {"project": "small"}
SIZE = len(LOG)


def allow(client: TestClient, **quota: int) -> None:
    assert client.put(QUOTA, json=quota | {"author": "ada"}).status_code == 200


@pytest.fixture
def small(engine: Engine, client: TestClient) -> TestClient:
    with transaction(engine) as session:
        make_project(session, "small")
    return client


def test_an_upload_over_the_byte_quota_stores_nothing(small: TestClient, engine: Engine, settings: Settings) -> None:
    allow(small, quota_bytes=SIZE + 10)
    first = upload(small, LOG, meta=SMALL)
    assert first.status_code == 202
    before = traces(engine, settings)
    refused = upload(small, LOG + b"more of it\n", meta=SMALL)
    assert_problem(
        refused, 413, f"uses {SIZE:,} bytes of its quota of {SIZE + 10:,}", "An administrator raises the quota"
    )
    assert traces(engine, settings) == before
    assert upload(small, LOG, meta=SMALL).json()["id"] == first.json()["id"]  # the same again needs no room
    assert upload(small, LOG + b"\n", meta={"project": "other"}).status_code == 202


def test_a_growing_log_is_unchanged_when_the_quota_is_used_up(small: TestClient) -> None:
    allow(small, quota_bytes=SIZE + 5)
    run = upload(small, LOG, meta=SMALL | {"complete": False}, key="grows").json()["id"]
    address = f"/api/v1/runs/{run}/logs"
    assert small.post(f"{address}?offset={SIZE}", content=b"five\n").status_code == 200
    assert_problem(small.post(f"{address}?offset={SIZE + 5}", content=b"x\n"), 413, "Nothing was saved")
    answer = small.post(f"{address}?offset={SIZE + 5}&complete=true", content=b"")
    assert (answer.status_code, answer.json()["offset"]) == (200, SIZE + 5)


def test_runs_a_day_say_when_the_next_may_begin(small: TestClient, engine: Engine) -> None:
    allow(small, quota_runs_a_day=2)
    ids = [upload(small, LOG + b"\n" * n, meta=SMALL).json()["id"] for n in range(2)]
    refused = upload(small, LOG + b"third\n", meta=SMALL)
    assert_problem(refused, 429, "reached its quota of 2 runs within 24 hours")
    assert 86_000 < int(refused.headers["Retry-After"]) <= 86_400
    with transaction(engine) as session:
        session.get_one(RunRow, ids[0]).created_at = utc_now() - timedelta(hours=25)
    assert upload(small, LOG + b"third\n", meta=SMALL).status_code == 202
    assert small.get(QUOTA).json() == {
        "project": "small", "quota_bytes": 0, "quota_runs_a_day": 2, "used_bytes": 3 * SIZE + 7, "runs_today": 2,
    }  # fmt: skip


def test_the_service_has_a_quota_for_projects_without_their_own(settings: Settings) -> None:
    app = create_app(settings.model_copy(update={"quota_bytes": SIZE, "quota_runs_a_day": 5}), open_to=OPEN_TO)
    client = TestClient(app)
    assert upload(client, LOG + b"more of it\n", meta=SMALL).status_code == 413
    assert upload(client, LOG, meta=SMALL).status_code == 202
    assert client.get(QUOTA).json()["quota_runs_a_day"] == 5
    allow(client, quota_bytes=0)
    assert upload(client, LOG + b"more of it\n", meta=SMALL).status_code == 202
    app.state.engine.dispose()


def test_only_an_administrator_sets_it_and_it_is_on_record(app: FastAPI, settings: Settings) -> None:
    asking = create_app(settings)
    teams = make_teams(asking)
    for who, status in (("viewer", 403), ("maintainer", 403), ("token:all", 403), ("administrator", 200)):
        answer = teams.client(who).put("/api/v1/projects/alpha/quota", json={"quota_bytes": 7})
        assert (who, answer.status_code) == (who, status)
    with read_session(teams.engine) as session:
        event = events(session, "project", teams.ours)[0]
    assert (event.action, event.who, event.before["bytes"], event.after["bytes"]) == ("quota", "administrator", None, 7)
    assert 'name="quota_bytes"' not in teams.client("maintainer").get("/settings/projects/alpha/quota").text
    asking.state.engine.dispose()


def test_the_form_does_the_same(small: TestClient) -> None:
    address = "/settings/projects/small/quota"
    form = {"quota_bytes": "1,000,000", "quota_runs_a_day": "", "author": "ada"}
    saved = small.post(address, data=form, headers=SAME_ORIGIN)
    assert saved.status_code == 200
    assert small.get(QUOTA).json()["quota_bytes"] == 1_000_000
    assert 'value="1 MB"' in small.get(address).text
    for typed, size in (("1.5 gb", 1_500_000_000), ("2TB", 2 * 10**12), ("", 0), ("1234567", 1_234_567)):
        small.post(address, data=form | {"quota_bytes": typed}, headers=SAME_ORIGIN)
        assert small.get(QUOTA).json()["quota_bytes"] == size, typed
    assert small.post(address, data=form | {"quota_bytes": "1,5 GB"}, headers=SAME_ORIGIN).status_code == 422
    small.post(address, data=form, headers=SAME_ORIGIN)
    refused = small.post(address, data=form | {"quota_bytes": "plenty", "quota_runs_a_day": "-1"}, headers=SAME_ORIGIN)
    assert refused.status_code == 422
    assert refused.text.count("must be empty or a whole number") == 2
    assert small.get(QUOTA).json()["quota_bytes"] == 1_000_000


CURRENT: dict[str, Any] = {"definition_version": DEFINITION_VERSION, "definitions": DEFINITIONS}
OLD: dict[str, Any] = {
    "definition_version": DEFINITION_VERSION - 1,
    "definitions": DEFINITIONS | {"flops": DEFINITIONS["flops"] - 1},
}


def runs(engine: Engine, *columns: dict[str, Any]) -> list[int]:
    with transaction(engine) as session:
        return [make_run(session, name=f"run {number}", **column) for number, column in enumerate(columns)]


def progress(page: str) -> tuple[int, ...]:
    """The runs, and those of them that wait and failed; the outdated verdicts."""
    names = ("runs", "waiting", "failed", "outdated-verdicts")
    return tuple(int(page.partition(f'data-{name}="')[2].partition('"')[0]) for name in names)


def test_an_empty_service_says_so(client: TestClient) -> None:
    assert progress(client.get("/settings/definitions").text) == (0, 0, 0, 0)


def test_the_api_counts_runs_by_their_figures(client: TestClient, engine: Engine) -> None:
    ids = runs(engine, CURRENT, OLD, OLD | {"recompute_failed": DEFINITION_VERSION, "recompute_error": "It broke."})
    body = client.get("/api/v1/definitions").json()
    assert {name: body["runs"][name] for name in ("total", "done", "waiting", "failed")} == {
        "total": 3,
        "done": 1,
        "waiting": 1,
        "failed": 1,
    }
    assert (body["definitions"], body["verdict_rules"]) == (DEFINITIONS, VERDICT_RULES)
    assert [(run["run_id"], run["reason"]) for run in body["failed_runs"]] == [(ids[2], "It broke.")]
    assert 'threewalls_definitions_runs{state="waiting"} 1.0' in client.get("/metrics").text


def test_the_page_shows_progress_while_it_runs_and_asks_again(client: TestClient, engine: Engine) -> None:
    runs(engine, CURRENT, OLD)
    page = client.get("/settings/definitions").text
    assert progress(page) == (2, 1, 0, 0)
    assert 'hx-trigger="every 3s"' in page
    part = client.get("/settings/definitions", headers={"HX-Request": "true"}).text
    assert part.lstrip().startswith('<div id="progress"')


def test_the_page_lists_what_stays_behind_and_tries_it_again(client: TestClient, engine: Engine) -> None:
    runs(engine, CURRENT, OLD | {"recompute_failed": DEFINITION_VERSION, "recompute_error": "<b>It broke.</b>"})
    page = client.get("/settings/definitions").text
    assert progress(page) == (2, 0, 1, 0)
    assert "&lt;b&gt;It broke.&lt;/b&gt;" in page
    assert f"flops {DEFINITIONS['flops'] - 1} → {DEFINITIONS['flops']}" in page
    assert 'hx-trigger="every' not in page
    client.post("/settings/definitions/retry")
    assert client.get("/api/v1/definitions").json()["runs"]["waiting"] == 1


def test_the_page_of_a_service_that_is_up_to_date_says_so(client: TestClient, engine: Engine) -> None:
    runs(engine, CURRENT, CURRENT)
    page = client.get("/settings/definitions").text
    assert progress(page) == (2, 0, 0, 0)
    assert set(DECIDES) == {*DEFINITIONS, *VERDICT_RULES}
    assert [text for text in DECIDES.values() if escape(text) not in page] == []


def test_a_preview_of_a_deletion_needs_no_author_and_the_deletion_does(client: TestClient) -> None:
    body = {"what": "runs", "runs": [uploaded(client)]}
    preview = client.post("/api/v1/projects/moe/deletions/preview", json=body)
    assert (preview.status_code, preview.json()["runs"]) == (200, 1)
    assert client.post("/api/v1/projects/moe/deletions/preview", json={**body, "author": "Ada"}).status_code == 200
    assert_problem(client.post("/api/v1/projects/moe/deletions", json=body), 422, field="author")
