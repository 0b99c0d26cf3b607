"""Suggestions at the public door: the API, the pages, what was measured here, and what is missing."""

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.rules.launch import without_secrets
from app.domain.rules.load import built_in_rules
from app.storage.database import transaction
from tests.builders import FIRST_PLACE, make_run
from tests.runs.uploading import assert_problem
from tests.suggestions.advised import PROFILED, make_advised


def suggestions(client: TestClient, run: int) -> dict[str, Any]:
    answer = client.get(f"/api/v1/runs/{run}/suggestions")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def named(told: dict[str, Any], rule: str) -> dict[str, Any]:
    (found,) = (one for one in told["suggestions"] if one["rule"] == rule)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def plain(engine: Engine) -> int:
    with transaction(engine) as session:
        return make_advised(session)


@pytest.fixture
def profiled(engine: Engine) -> int:
    """Beside it an A/B of the overlap, 31.31 s against 25 s."""
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED)
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0, purpose="experiment")
    return run


def test_without_a_profile_only_what_a_matched_ab_found_faster_is_offered(client: TestClient, plain: int) -> None:
    told = suggestions(client, plain)
    assert (told["wall"]["wall"], told["wall"]["certainty"]) == ("communication", "inferred")
    states = {step["phase"]: step["state"] for step in told["phases"]}
    assert (states["profile"], states["retune"]) == ("open", "open")
    assert [one["rule"] for one in told["suggestions"] if one["phase"] == "retune"] == ["eo-enable"]
    assert told["suggestions"][0]["why"].startswith("The wall of this run was not measured. A matched A/B found")
    lacking = {one["fact"]: one for one in told["missing"]}["exposed_comm_frac"]
    assert "eo-enable" in (*lacking["unlocks"], *lacking["together"])
    assert "state `exposed_comm_frac` in the metadata" in lacking["supply"]


def test_a_profile_in_the_metadata_names_the_wall_and_opens_retuning(client: TestClient, profiled: int) -> None:
    told = suggestions(client, profiled)
    assert (told["wall"]["wall"], told["wall"]["certainty"]) == ("communication", "measured")
    overlap = named(told, "eo-enable")
    assert overlap["why"].startswith("30% of the step is exposed communication")
    assert overlap["changes"]["megatron_lm"]["diff"] == ["+ --overlap-moe-expert-parallel-comm"]
    command = overlap["changes"]["megatron_lm"]["command"]
    assert "--moe-token-dispatcher-type alltoall" in command
    assert "0123456789abcdef" not in command
    assert {one["state"] for one in overlap["prerequisites"]} == {"met", "unknown"}
    assert all(one["source"] for one in told["suggestions"])


def test_what_was_measured_here_comes_first(client: TestClient, profiled: int) -> None:
    best = named(suggestions(client, profiled), "eo-enable")["evidence"][0]
    assert (best["level"], best["standing"]) == (2, "measured here, same contract")
    measured = best["measured_here"]
    assert (measured["n"], measured["same_stack"]) == (1, True)
    assert measured["median_gain_pct"] == pytest.approx(25.2, abs=0.1)
    assert measured["low_pct"] < measured["median_gain_pct"] < measured["high_pct"]
    page = client.get(f"/runs/{profiled}/next/eo-enable").text
    assert "+25.2 % throughput" in page
    assert f'href="/runs/{measured["runs"][0]}"' in page


def test_an_ab_counts_backwards_and_on_other_stacks_for_less(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        elsewhere: dict[str, Any] = {"container": "nvcr.io/nvidia/nemo:26.02"}
        make_advised(session, fields={"ep_overlap": True, **elsewhere}, ms=25_000.0)
        make_advised(session, fields=elsewhere, ms=31_310.0, purpose="experiment")
        run = make_advised(session, metadata_stated=PROFILED)
    (measured,) = (
        one for one in named(suggestions(client, run), "eo-enable")["evidence"] if one["measured_here"] is not None
    )
    assert measured["level"] == 3
    assert not measured["measured_here"]["same_stack"]
    assert measured["measured_here"]["median_gain_pct"] == pytest.approx(25.2, abs=0.1)


def test_a_quarantined_ab_is_evidence_of_nothing(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED)
        fields: dict[str, Any] = {"ep_overlap": True}
        make_advised(session, fields=fields, ms=25_000.0, purpose="experiment", quarantine="a bad node")
    evidence = named(suggestions(client, run), "eo-enable")["evidence"]
    assert not [one for one in evidence if one["measured_here"] is not None]


def test_blockers_stand_first_and_hold_candidates_back(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        stopped: dict[str, Any] = {"health": {"iterations": 2, "loss_finite": False}}
        run = make_advised(session, fields={"ep": 3}, metadata_stated=PROFILED, **stopped)
    told = suggestions(client, run)
    assert told["suggestions"][0]["kind"] == "blocker"
    assert told["suggestions"][0]["doubt"].startswith("The run completed 2 iterations despite this")
    assert {one["withheld"] for one in told["withheld"]} == {
        "Resolve the blockers first.",
        "Make the run healthy first: The loss or some steps are not healthy.",
    }
    page = client.get(f"/runs/{run}/next").text
    assert "Resolve this blocker first" in page
    assert "Deferred" in page


def test_a_blocker_that_the_run_ran_in_spite_of_warns_and_holds_nothing_back(
    client: TestClient, engine: Engine
) -> None:
    with transaction(engine) as session:
        run = make_advised(session, fields={"ep": 3}, metadata_stated=PROFILED)
    told = suggestions(client, run)
    assert "blocker" not in {one["kind"] for one in told["suggestions"]}
    (doubted,) = (one for one in told["warnings"] if one["doubt"])
    assert (doubted["rule"], doubted["kind"]) == ("scale-expert-divisible", "warning")
    assert doubted["doubt"].startswith("The run completed 50 iterations")
    assert "Resolve the blockers first." not in {one["withheld"] for one in told["withheld"]}
    assert "despite this blocker" in client.get(f"/runs/{run}/next/{doubted['rule']}").text


def test_a_failed_run_has_next_steps_and_one_that_waits_has_none(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        failed = make_run(session, project="other", status="failed")
        waiting = make_run(session, project="other", status="processing")
    assert suggestions(client, failed)["status"] == "failed"
    assert client.get(f"/runs/{failed}/next").status_code == 200
    assert_problem(client.get(f"/api/v1/runs/{waiting}/suggestions"), 409)
    assert client.get(f"/runs/{waiting}/next").status_code == 409
    assert_problem(client.get("/api/v1/runs/999/suggestions"), 404)


def test_no_badge_of_a_run_says_validated_beside_a_step_that_is_open(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session, evidence_level="validated", semantic_class="benchmark_only")
    steps = {step["phase"]: step["state"] for step in suggestions(client, run)["phases"]}
    assert steps["validate"] != "done"
    assert client.get(f"/api/v1/runs/{run}").json()["evidence_level"] == "validated"
    wrong = []
    for path in (f"/runs/{run}", "/runs", "/leaderboards", "/experiments"):
        texts = re.findall(r">([^<>]+)<", client.get(path).text)
        wrong += [(path, text) for text in texts if text.strip() == "validated"]
    assert wrong == []


def test_every_rule_has_its_page_whether_it_fires_asks_or_is_silent(client: TestClient, profiled: int) -> None:
    for rule in list(built_in_rules().rules)[::9]:
        page = client.get(f"/runs/{profiled}/next/{rule}")
        assert page.status_code == 200, rule
        assert 'id="source"' in page.text
    assert client.get(f"/runs/{profiled}/next/no-such-rule").status_code == 404


def test_a_step_says_where_its_facts_come_from(client: TestClient, profiled: int) -> None:
    page = client.get(f"/runs/{profiled}/next/eo-enable").text
    assert f'href="/runs/{profiled}#contract-ep"' in page
    assert "stated in the metadata" in page
    assert "our default; no source gives a value" in page
    assert "no matched A/B of this project" not in page


def test_names_and_commands_are_escaped(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        launch = {"launch_args": "python train.py --save '<script>alert(1)</script>'"}
        run = make_advised(session, name="<script>x</script>", metadata_stated=PROFILED | launch)
    for address in (f"/runs/{run}/next", f"/runs/{run}/next/eo-enable"):
        page = client.get(address).text
        assert "<script>x" not in page
        assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("launch", "shown"),
    [
        ("a --hf-token abc --bf16", "a --hf-token *** --bf16"),
        ("WANDB_API_KEY='abc' a --seq-length 4096", "WANDB_API_KEY=*** a --seq-length 4096"),
        ("a --moe-token-dispatcher-type flex", "a --moe-token-dispatcher-type flex"),
        ({"--api-key": "abc", "tp": 2}, {"--api-key": "***", "tp": 2}),
        (None, None),
    ],
)
def test_credentials_are_struck_out_of_a_command(launch: object, shown: object) -> None:
    assert without_secrets(launch) == shown


def test_the_report_and_the_page_of_a_run_lead_to_its_first_suggestion(client: TestClient, plain: int) -> None:
    first = suggestions(client, plain)["suggestions"][0]
    told = client.get(f"/api/v1/runs/{plain}/report").json()["next_step"]
    assert told == {name: first[name] for name in ("rule", "title", "url")}
    body = client.get(f"/api/v1/runs/{plain}/report.md").text
    assert body.endswith(f"\nNext step: [{first['title']}]({first['url']})\n")
    assert f'href="/runs/{plain}/next">Next step</a>' in client.get(f"/runs/{plain}").text


def test_the_report_of_a_run_that_waits_names_no_step(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        waiting = make_run(session, project="other", status="processing")
    assert client.get(f"/api/v1/runs/{waiting}/report").json()["next_step"] is None
    assert "Next step" not in client.get(f"/api/v1/runs/{waiting}/report.md").text


def test_rules_about_two_runs_speak_of_the_run_and_what_it_was_judged_against(
    client: TestClient, engine: Engine
) -> None:
    with transaction(engine) as session:
        first = make_advised(session)
        run = make_advised(session, ms=36_000.0, started=FIRST_PLACE + timedelta(days=1))
    told = suggestions(client, run)
    assert told["pair"]["runs"] == [first]
    (slower,) = (one for one in told["pair"]["found"] if one["rule"] == "val-regression")
    assert slower["why"].startswith("Throughput changed by -13.0%")
    assert "val-regression" not in {one["rule"] for one in told["suggestions"]}
    page = client.get(f"/runs/{run}/next").text
    assert f'href="/compare?a={first}&amp;b={run}"' in page
    step = client.get(f"/runs/{run}/next/val-regression").text
    assert "Beside" in step
    assert "comparison with the baseline runs" in step
    assert suggestions(client, first)["pair"] is None


def test_fields_of_the_contract_that_are_unknown_are_named_where_to_fill_them_in(
    client: TestClient, plain: int
) -> None:
    unknown = client.get(f"/api/v1/runs/{plain}").json()["unknown"]
    asked = next(one for one in suggestions(client, plain)["suggestions"] if one["rule"] == "contract-complete")
    assert f"{len(unknown)} contract fields are unknown: {unknown[0]}" in asked["why"]
    page = client.get(f"/runs/{plain}/next/contract-complete").text
    for name in unknown:
        assert f'href="/runs/{plain}#a-field.{name}"' in page


def test_a_step_without_a_knob_is_a_step_of_the_profile_and_holds_nothing(client: TestClient, profiled: int) -> None:
    page = client.get(f"/runs/{profiled}/next").text
    wall = page[page.index('id="wall"') : page.index('id="suggestions"')]
    assert 'id="s-profile-comm"' in wall
    assert page.count('id="s-profile-comm"') == 1
    for rule in ("profile-comm", "val-50-steps"):
        step = client.get(f"/runs/{profiled}/next/{rule}").text
        assert "Hold fixed" not in step
        assert "Not measured here yet" not in step
        assert "cannot be planned" not in step
    assert "Hold fixed" in client.get(f"/runs/{profiled}/next/eo-enable").text
