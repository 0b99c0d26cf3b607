"""A project's policy for verdicts: the page, the API, and the effect on its runs."""

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, update
from starlette.testclient import TestClient

from app.domain.run import Value
from app.pipeline.notify import notify_silent_stacks
from app.settings import Settings
from app.storage.database import transaction
from app.storage.tables import RunRow, StackWorkRow, utc_now
from tests.builders import make_run
from tests.notifications.sent import deliveries, listen
from tests.regressions.judging import bring, document_of, judge_all, regressions_in, steady, works

POLICY = "/api/v1/projects/moe-lab/verdicts"
NOWHERE = "http://127.0.0.1:9/"


def put(client: TestClient, **policy: Any) -> dict[str, Any]:
    answer = client.put(POLICY, json={"author": "Ada", **policy})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_a_project_without_decisions_has_the_defaults(client: TestClient, engine: Engine, settings: Settings) -> None:
    bring(engine, settings, [1000.0])
    policy = client.get(POLICY).json()
    assert policy["thresholds"] == {"relevance_pct": 1.0, "memory_pct": 1.0, "loss_pct": 1.0}
    assert (policy["fixed"], policy["stacks"], policy["reference_job"], policy["changes"]) == ([], {}, "", [])
    assert policy["budget"] == {"reruns_a_day": None, "gpu_hours_a_day": None}


def test_another_threshold_judges_every_stack_again_and_is_recorded(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    slow = bring(engine, settings, [*steady(1000, 12), 1030.0])[-1]
    assert document_of(engine, slow).decision == "regression"
    put(client, thresholds={"relevance_pct": 5.0})
    judge_all(engine, settings)
    assert document_of(engine, slow).decision != "regression"
    policy = put(client)
    judge_all(engine, settings)
    assert document_of(engine, slow).decision == "regression"
    assert [change["who"] for change in policy["changes"]] == ["Ada", "Ada"]
    assert policy["changes"][1]["after"] == {"every": {"thresholds": {"relevance_pct": 5.0}}}


def test_a_stack_may_differ_and_is_named_by_the_first_digits_of_its_key(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    slow = bring(engine, settings, [*steady(1000, 12), 1030.0])[-1]
    key = client.get(f"/api/v1/runs/{slow}").json()["stack_key"]
    policy = put(client, stacks={key[:10]: {"thresholds": {"relevance_pct": 5.0}}})
    assert policy["stacks"] == {key: {"thresholds": {"relevance_pct": 5.0}}}
    judge_all(engine, settings)
    assert document_of(engine, slow).decision != "regression"


def test_what_means_nothing_is_refused_and_nothing_is_changed(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, [1000.0])
    wrong = {
        "thresholds": {"relevance_pct": 0},
        "fixed": [{"metric": "speed", "bound": "at_least", "value": 1}],
        "stacks": {"0000000000": {}},
        "author": "Ada",
    }
    answer = client.put(POLICY, json=wrong)
    assert answer.status_code == 422
    fields = {error["field"] for error in answer.json()["errors"]}
    assert fields == {"thresholds.relevance_pct", "fixed.0.metric", "stacks.0000000000"}
    assert client.get(POLICY).json()["changes"] == []


def test_a_figure_that_breaks_a_limit_is_stated_and_reported_without_a_baseline(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, [900.0], created_at=utc_now())
    listen(engine, NOWHERE, "limit.broken")
    put(client, fixed=[{"metric": "step_time_ms", "bound": "at_most", "value": 950}])
    (run,) = bring(engine, settings, [1000.0], 1, created_at=utc_now(), fields={"gpus": 64})
    verdict = client.get(f"/api/v1/runs/{run}/verdict").json()
    (broken,) = verdict["limits_broken"]
    assert re.findall(r"[\d.]+ ms", broken) == ["999.2 ms", "950.0 ms"]
    assert verdict["limits_broken"][0] in client.get(f"/runs/{run}").text
    assert verdict["limits_broken"][0] in client.get(f"/api/v1/runs/{run}/report.md").text
    assert [delivery.event for delivery in deliveries(engine)] == ["limit.broken"]


def test_a_stack_that_has_not_run_for_too_long_is_reported_once(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    (run,) = bring(engine, settings, [1000.0], created_at=utc_now())
    listen(engine, NOWHERE, "limit.broken")
    put(client, fixed=[{"metric": "hours_without_run", "bound": "at_most", "value": 26}])
    for hours, silent in ((25, 0), (27, 1), (28, 1), (400, 0)):
        with transaction(engine) as session:
            session.execute(
                update(RunRow).where(RunRow.id == run).values(created_at=utc_now() - timedelta(hours=hours))
            )
            assert notify_silent_stacks(session, utc_now()) == silent
    assert [delivery.event for delivery in deliveries(engine)] == ["limit.broken"]


def test_while_the_reference_job_is_slow_slow_downs_of_its_cluster_are_marked_and_not_alarmed(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    west: dict[str, Value] = {"cluster": "west"}
    for job, gpus in (("sentinel", 8), ("perf", 16)):
        bring(engine, settings, steady(1000, 12), job=job, fields={**west, "gpus": gpus})
    put(client, reference_job="sentinel")
    judge_all(engine, settings)
    bad = bring(engine, settings, [1100.0, 1101.0], 12, job="perf", fields={**west, "gpus": 16})
    assert len(regressions_in(engine)) == 1
    (moved,) = bring(engine, settings, [1090.0], 12.2, job="sentinel", fields={**west, "gpus": 8})
    assert [document_of(engine, run).reference is not None for run in bad] == [True, True]
    assert [state for state, *_ in regressions_in(engine)] == ["invalid"]
    verdict = client.get(f"/api/v1/runs/{bad[0]}/verdict").json()
    assert (verdict["verdict"], verdict["exit_code"], verdict["rerun"]) == ("regression", 0, None)
    assert verdict["reference_job"]["run"] == str(moved)
    elsewhere = bring(engine, settings, steady(1000, 12), job="perf", fields={"cluster": "east", "gpus": 32})
    assert document_of(engine, elsewhere[-1]).reference is None


def test_when_the_rerun_budget_is_used_up_no_verdict_requests_more(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, steady(1000, 12), created_at=utc_now())
    (slow,) = bring(engine, settings, [1100.0], 12, created_at=utc_now())
    address = f"/api/v1/runs/{slow}/verdict"
    assert client.get(address).json()["rerun"]["runs"] == 1
    put(client, budget={"reruns_a_day": 1})
    assert client.get(address).json()["rerun"]["runs"] == 1
    bring(engine, settings, [1000.0, 1001.0], 13, commit="again", created_at=utc_now())
    assert client.get(address).json()["rerun"] is None
    value = client.get(POLICY).json()["reruns"]
    assert value["reruns_today"] == 1
    assert [power["change_pct"] for power in value["powers"]] == [0, 1, 2, 3, 5]
    assert value["powers"][0]["alone"] < 0.02, "false alarms"
    assert all(power["with_reruns"] >= 0.0 for power in value["powers"])


def test_a_declared_upgrade_counts_while_the_old_side_still_runs(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    bring(engine, settings, steady(1000, 10))
    beside = bring(engine, settings, [1100.0], 11, fields={"container": "nvcr.io/nvidia/nemo:26.08"})
    bring(engine, settings, [1001.0], 12)
    assert regressions_in(engine) == [("invalid", "", beside)]
    assert put(client, upgrades=["nvcr.io/nvidia/nemo:26.08", " "])["upgrades"] == ["nvcr.io/nvidia/nemo:26.08"]
    judge_all(engine, settings)
    assert [state for state, _, runs in regressions_in(engine) if runs == beside][-1] == "open"


def test_the_page_shows_what_reruns_buy_and_saves_the_form(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    run = bring(engine, settings, steady(1000, 12))[-1]
    key = client.get(f"/api/v1/runs/{run}").json()["stack_key"][:12]
    page = client.get("/settings/projects/moe-lab").text
    assert "With reruns" in page
    form = {
        "relevance_pct": "2", "reruns_a_day": "6", "reference_job": "sentinel", "author": "Ada",
        "upgrades": "nemo:next; eos-2", "limits": f"mfu_pct at least 30; {key} memory_pct 4",
    }  # fmt: skip
    assert client.post("/settings/projects/moe-lab/verdicts", data=form, follow_redirects=False).status_code == 303
    policy = client.get(POLICY).json()
    assert policy["thresholds"]["relevance_pct"] == 2
    assert policy["budget"]["reruns_a_day"] == 6
    assert (policy["reference_job"], policy["upgrades"]) == ("sentinel", ["eos-2", "nemo:next"])
    assert policy["fixed"] == [{"metric": "mfu_pct", "bound": "at_least", "value": 30}]
    assert [own["thresholds"] for own in policy["stacks"].values()] == [{"memory_pct": 4}]
    assert f"mfu_pct at least 30; {key} memory_pct 4" in client.get("/settings/projects/moe-lab").text
    wrong = client.post("/settings/projects/moe-lab/verdicts", data=form | {"limits": "fast enough"})
    assert wrong.status_code == 422
    assert "cannot be read" in wrong.text


# --- A project's baseline branch and commit links: validated, recorded, and applied by judging again.

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
