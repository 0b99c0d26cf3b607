"""Suggestions through the public interface: API, pages, results measured here, stated facts, and setbacks."""

import json
import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.testclient import TestClient

from app.cli import main
from app.domain.numbers import THIN, gain_change
from app.domain.rules.engine import CheckedRequirement
from app.domain.rules.evidence import OwnResult
from app.domain.rules.launch import without_secrets
from app.domain.rules.load import built_in_rules
from app.domain.run import Stated
from app.storage.database import transaction
from app.storage.suspect_evidence import MeasuredHere
from app.storage.tables import AvailabilityRow, RunRow
from app.suggestions.views import linked, measured_text, met_count
from tests.builders import FIRST_PLACE, make_run
from tests.domain.rules.test_launch_check import SCRIPT
from tests.runs.uploading import assert_problem, upload
from tests.suggestions.advised import LAUNCH, PROFILED, make_advised
from tests.suggestions.test_decision_examples import OUT_OF_MEMORY
from tests.training_logs import training_log
from workers.tasks import process_run

# --- Suggestions through the public interface: API, pages, results measured here, and missing facts.


def suggestions(client: TestClient, run: int) -> dict[str, Any]:
    answer = client.get(f"/api/v1/runs/{run}/suggestions")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def named(advice: dict[str, Any], rule: str) -> dict[str, Any]:
    (suggestion,) = (suggestion for suggestion in advice["suggestions"] if suggestion["rule"] == rule)
    assert isinstance(suggestion, dict)
    return suggestion


@pytest.fixture
def plain(engine: Engine) -> int:
    with transaction(engine) as session:
        return make_advised(session)


@pytest.fixture
def profiled(engine: Engine) -> int:
    """In addition, an A/B of the overlap, 31.31 s against 25 s."""
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED)
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0, purpose="experiment")
    return run


def test_without_a_profile_only_what_a_matched_ab_found_faster_is_offered(client: TestClient, plain: int) -> None:
    advice = suggestions(client, plain)
    assert (advice["wall"]["wall"], advice["wall"]["certainty"]) == ("communication", "expected")
    states = {step["phase"]: step["state"] for step in advice["phases"]}
    assert (states["profile"], states["retune"]) == ("open", "open")
    offered = [suggestion["rule"] for suggestion in advice["suggestions"] if suggestion["phase"] == "retune"]
    assert (offered[0], set(offered) <= {"eo-enable", "published-faster"}) == ("eo-enable", True)
    assert (advice["suggestions"][0]["rule"], advice["suggestions"][0]["withheld"]) == ("eo-enable", "")
    lacking = {gap["fact"]: gap for gap in advice["missing"]}["exposed_comm_frac"]
    assert "eo-enable" in (*lacking["unlocks"], *lacking["together"])
    assert "`exposed_comm_frac`" in lacking["supply"]


def test_a_profile_in_the_metadata_names_the_wall_and_opens_retuning(client: TestClient, profiled: int) -> None:
    advice = suggestions(client, profiled)
    assert (advice["wall"]["wall"], advice["wall"]["certainty"]) == ("communication", "measured")
    overlap = named(advice, "eo-enable")
    assert overlap["why"].startswith(f"30{THIN}%")
    assert {fact["name"] for fact in overlap["facts"]} >= {"exposed_comm_frac"}
    assert overlap["changes"]["megatron_lm"]["diff"] == ["+ --overlap-moe-expert-parallel-comm"]
    command = overlap["changes"]["megatron_lm"]["command"]
    assert "--moe-token-dispatcher-type alltoall" in command
    assert "0123456789abcdef" not in command
    assert {prerequisite["state"] for prerequisite in overlap["prerequisites"]} == {"met", "unknown"}
    assert all(suggestion["source"] for suggestion in advice["suggestions"])


def test_results_measured_here_come_first(client: TestClient, profiled: int) -> None:
    best = named(suggestions(client, profiled), "eo-enable")["evidence"][0]
    assert (best["level"], best["strength"]) == (2, "measured here, same contract")
    measured = best["measured_here"]
    assert (measured["n"], measured["same_stack"]) == (1, True)
    assert measured["median_gain_pct"] == pytest.approx(25.2, abs=0.1)
    assert measured["low_pct"] < measured["median_gain_pct"] < measured["high_pct"]
    page = client.get(f"/runs/{profiled}/next/eo-enable").text
    assert "20.2\u202f% faster" in page
    assert f'href="/runs/{measured["runs"][0]}"' in page


def test_changes_measured_slower_here_come_last_and_are_folded(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED)
        make_advised(session, fields={"ep_overlap": True}, ms=38_000.0, purpose="experiment")
    ranked = suggestions(client, run)["suggestions"]
    assert ranked[-1]["rule"] == "eo-enable"
    assert ranked[-1]["place"]["group"] == "slower"
    shown, folded = client.get(f"/runs/{run}/next").text.split('<div id="others">')
    assert 'id="s-eo-enable"' not in shown
    assert 'id="s-eo-enable"' in folded


def test_the_step_of_the_current_phase_is_not_folded_away(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED, fields={"pp_overlap": ...})
    advice = suggestions(client, run)
    assert advice["phases"][0]["state"] == "open", "a field of the contract is unknown"
    others = client.get(f"/runs/{run}/next").text.split('<div id="others">')[1]
    first = re.findall(r'id="s-([^"]+)"', others)[0]
    assert first in advice["phases"][0]["rules"]


def test_a_change_measured_slower_on_this_stack_leads_with_that_and_is_not_planned_first(
    client: TestClient, engine: Engine
) -> None:
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED)
        slower = make_advised(session, fields={"ep_overlap": True}, ms=38_000.0, purpose="experiment")
    page = client.get(f"/runs/{run}/next/eo-enable").text
    answer = page.split('<p class="answer">')[1].split("</p>")[0]
    assert f'href="/runs/{slower}"' in answer
    assert "slower" in answer
    before, plan = page.split('id="plan-ab"')
    assert "plan-form" not in before
    assert "plan-form" in plan


def test_an_ab_of_the_workload_at_another_gpu_count_is_offered_below_one_at_its_own(
    client: TestClient, engine: Engine
) -> None:
    overlaps: dict[str, Any] = {"ep_overlap": True, "delay_wgrad": False}
    with transaction(engine) as session:
        for where, ms in (({"gpus": 128, "gbs": 8192}, 25_000.0), ({"precision": "fp8"}, 40_000.0)):
            make_advised(session, fields=overlaps | where)
            make_advised(session, fields=overlaps | where | {"delay_wgrad": True}, ms=ms, purpose="experiment")
        run = make_advised(session, fields=overlaps)
    delayed = named(suggestions(client, run), "eo-delay-wgrad")
    own = [result["measured_here"] for result in delayed["evidence"] if result["measured_here"]]
    assert [(result["same_stack"], result["at_gpus"]) for result in own] == [(False, [128]), (False, [])]
    assert delayed["place"]["group"] == "evidence"
    assert delayed["place"]["expected_gain"]["pct"] == own[0]["median_gain_pct"] == pytest.approx(25.2, abs=0.1)
    assert "at 128 GPUs" in client.get(f"/runs/{run}/next").text
    with transaction(engine) as session:
        make_advised(session, fields=overlaps | {"delay_wgrad": True}, ms=26_000.0, purpose="experiment")
    place = named(suggestions(client, run), "eo-delay-wgrad")["place"]
    assert place["group"] == "measured"
    assert place["expected_gain"]["pct"] == pytest.approx(20.4, abs=0.1)


def test_an_ab_counts_backwards_and_on_other_stacks_for_less(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        # Another batch: a faster run of the same work would be suggested itself.
        elsewhere: dict[str, Any] = {"container": "nvcr.io/nvidia/nemo:26.02", "gbs": 512}
        make_advised(session, fields={"ep_overlap": True, **elsewhere}, ms=25_000.0)
        make_advised(session, fields=elsewhere, ms=31_310.0, purpose="experiment")
        run = make_advised(session, metadata_stated=PROFILED)
    (measured,) = (
        result
        for result in named(suggestions(client, run), "eo-enable")["evidence"]
        if result["measured_here"] is not None
    )
    assert measured["level"] == 3
    assert not measured["measured_here"]["same_stack"]
    assert measured["measured_here"]["median_gain_pct"] == pytest.approx(25.2, abs=0.1)


@pytest.mark.parametrize(
    ("low_pct", "text"),
    [(0.4, "measured here: 1.2 % faster (1 A/B"), (-0.4, "measured here: 1.2 % faster, undecided (1 A/B")],
)
def test_a_result_whose_interval_includes_zero_is_called_undecided(low_pct: float, text: str) -> None:
    own = OwnResult("eo-enable", 1, 1.2, low_pct, 2.8)
    assert measured_text(MeasuredHere(own, (1,))).replace("\u202f", " ").startswith(text)


def test_an_ab_of_another_stack_with_a_wide_interval_is_not_evidence(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        elsewhere: dict[str, Any] = {"container": "nvcr.io/nvidia/nemo:26.02", "gbs": 512}
        make_advised(session, fields={"ep_overlap": True, **elsewhere})
        make_advised(session, fields=elsewhere, purpose="experiment")  # one run each, so the interval is wide
        run = make_advised(session, metadata_stated=PROFILED)
    evidence = named(suggestions(client, run), "eo-enable")["evidence"]
    assert not [result for result in evidence if result["measured_here"]]
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True}, purpose="experiment")
    own = [result["measured_here"] for result in named(suggestions(client, run), "eo-enable")["evidence"]]
    assert [result["same_stack"] for result in own if result] == [True], "on its own stack, it was tried"


def test_a_quarantined_ab_is_evidence_of_nothing(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED)
        fields: dict[str, Any] = {"ep_overlap": True}
        make_advised(session, fields=fields, ms=25_000.0, purpose="experiment", quarantine="a bad node")
    evidence = named(suggestions(client, run), "eo-enable")["evidence"]
    assert not [result for result in evidence if result["measured_here"] is not None]


def test_blockers_stand_first_and_hold_candidates_back(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        stopped: dict[str, Any] = {"health": {"iterations": 2, "loss_finite": False}}
        run = make_advised(session, fields={"ep": 3}, metadata_stated=PROFILED, **stopped)
    advice = suggestions(client, run)
    assert advice["suggestions"][0]["kind"] == "blocker"
    assert "2 iterations" in advice["suggestions"][0]["doubt"]
    assert advice["withheld"]
    assert all(suggestion["withheld"] for suggestion in advice["withheld"])
    page = client.get(f"/runs/{run}/next").text
    listed = [page.index(f'id="s-{row["rule"]}"') for row in (advice["suggestions"][0], *advice["withheld"])]
    assert listed[0] == min(listed)


def test_a_blocker_that_a_run_completed_despite_warns_and_defers_nothing(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, fields={"ep": 3}, metadata_stated=PROFILED)
    advice = suggestions(client, run)
    assert "blocker" not in {suggestion["kind"] for suggestion in advice["suggestions"]}
    (doubted,) = (warning for warning in advice["warnings"] if warning["doubt"])
    assert (doubted["rule"], doubted["kind"]) == ("scale-expert-divisible", "warning")
    assert "50 iterations" in doubted["doubt"]
    assert not [row for row in advice["withheld"] if "blocker" in row["withheld"]]
    assert "data-doubt" in client.get(f"/runs/{run}/next/{doubted['rule']}").text


def test_a_failed_run_has_next_steps_and_one_that_waits_has_none(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        failed = make_run(session, project="other", status="failed")
        waiting = make_run(session, project="other", status="processing")
    assert suggestions(client, failed)["status"] == "failed"
    assert client.get(f"/runs/{failed}/next").status_code == 200
    assert_problem(client.get(f"/api/v1/runs/{waiting}/suggestions"), 409)
    assert client.get(f"/runs/{waiting}/next").status_code == 409
    assert_problem(client.get("/api/v1/runs/999/suggestions"), 404)


def test_no_badge_says_validated_while_the_validate_step_is_open(client: TestClient, engine: Engine) -> None:
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


def test_a_rule_that_does_not_apply_leads_to_the_step_that_does(client: TestClient, profiled: int) -> None:
    page = client.get(f"/runs/{profiled}/next/profile-required").text
    lead = re.sub(r"\s+", " ", re.findall(r'<p class="answer">(.*?)</p>', page, re.S)[0]).strip()
    assert lead == f"Does not apply to run #{profiled}: <code>profiled</code> is true."
    assert "stage_ranks" not in page, "no settings of a rule that does not apply"
    assert 'id="change"' not in page
    assert re.search(r'<details class="fold" open>\s*<summary>\s*Condition', page)
    offered = client.get(f"/api/v1/runs/{profiled}/suggestions").json()["suggestions"]
    first = next(item["rule"] for item in offered if item["phase"] == "profile")
    assert re.search(f'class="button primary"\\s+href="/runs/{profiled}/next/{first}"', page)


def test_a_deferred_step_leads_with_why(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session)
    deferred = suggestions(client, run)["withheld"]
    assert deferred
    for row in deferred:
        page = client.get(f"/runs/{run}/next/{row['rule']}").text
        (lead,) = re.findall(r'<p class="answer">\s*(.*?)\s*</p>', page, re.S)
        assert lead.startswith("Deferred."), row
        assert row["withheld"].split(":")[0] in page, row


def test_a_step_says_where_its_facts_come_from(client: TestClient, profiled: int) -> None:
    page = client.get(f"/runs/{profiled}/next/eo-enable").text
    assert f'href="/runs/{profiled}#contract-ep"' in page
    assert "stated in the metadata" in page
    assert 'href="/playbook#thresholds"' in page  # our default
    assert 'id="measured-here"' in page


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
    next_step = client.get(f"/api/v1/runs/{plain}/report").json()["next_step"]
    assert {name: next_step[name] for name in ("rule", "title", "url", "why")} == {
        name: first[name] for name in ("rule", "title", "url", "why")
    }
    assert next_step["place"].startswith(first["place"]["because"])
    body = client.get(f"/api/v1/runs/{plain}/report.md").text
    last = body.splitlines()[-1]
    assert last.startswith(f"Next step: [{first['title']}]({first['url']}). ")
    assert f'href="/runs/{plain}/next">Next step</a>' in client.get(f"/runs/{plain}").text


def test_gain_range_confidence_cost_and_place_are_on_the_page_in_the_api_and_in_the_report(
    client: TestClient, profiled: int
) -> None:
    first = suggestions(client, profiled)["suggestions"][0]
    place = first["place"]
    assert (first["rule"], place["confidence"], place["group"]) == ("eo-enable", "high", "measured")
    assert place["cost_gpu_hours"] == pytest.approx(2 * place["runs_per_side"] * 50 * 31.31 / 3600 * 16, rel=0.01)
    gain = place["expected_gain"]
    change = gain_change(gain["pct"], gain["low_pct"], gain["high_pct"])
    wanted = (
        place["because"],
        change.figure,
        change.interval,
        "high confidence",
        "GPU-hours",
    )
    page = client.get(f"/runs/{profiled}/next").text
    place_of_page = page[page.index('id="s-eo-enable"') :].partition("</li>")[0]
    report = client.get(f"/api/v1/runs/{profiled}/report").json()["next_step"]["place"]
    step = client.get(f"/runs/{profiled}/next/eo-enable").text
    for text in wanted:
        assert text in place_of_page
        assert text in report
        assert text in step


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
    advice = suggestions(client, run)
    assert advice["pair"]["runs"] == [first]
    (slower,) = (rule for rule in advice["pair"]["found"] if rule["rule"] == "val-regression")
    assert slower["why"].startswith("The run is 15.0 % slower")
    assert "val-regression" not in {suggestion["rule"] for suggestion in advice["suggestions"]}
    page = client.get(f"/runs/{run}/next").text
    assert f'href="/compare?a={first}&amp;b={run}"' in page
    step = client.get(f"/runs/{run}/next/val-regression").text
    assert f'href="/compare?a={first}&amp;b={run}"' in step
    assert "data-pair" in step
    assert suggestions(client, first)["pair"] is None


@pytest.mark.parametrize(("model", "compares"), [("Qwen3-30B-A3B", True), ("Llama3-8B", False)])
def test_the_closest_run_is_compared_only_if_it_trains_the_same_model(
    client: TestClient, engine: Engine, model: str, compares: bool
) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"model": model, "seq_len": 8192, "gbs": 64, "precision": "fp8_cs"})
        run = make_advised(session, started=FIRST_PLACE + timedelta(days=1))
    assert client.get(f"/api/v1/runs/{run}/verdict").json()["verdict"] == "no_baseline"
    assert (suggestions(client, run)["pair"] is not None) is compares


def test_a_suggestion_names_the_settings_that_differ_from_those_of_the_run(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, fields={"delay_wgrad": False, "shared_overlap": False})
    page = client.get(f"/runs/{run}/next").text
    overlap = page[page.index('id="s-eo-enable"') :].partition("</li>")[0]
    assert re.findall(r"<code>([^<]*)</code>", overlap)[0] == "ep_overlap on"


def test_fields_of_the_contract_that_are_unknown_are_named_where_to_fill_them_in(
    client: TestClient, plain: int
) -> None:
    unknown = client.get(f"/api/v1/runs/{plain}").json()["unknown"]
    contract_rule = named(suggestions(client, plain), "contract-fields")
    assert contract_rule["why"].startswith(f"Unknown: {unknown[0]}")
    page = client.get(f"/runs/{plain}/next/contract-fields").text
    for name in unknown:
        assert f'href="/runs/{plain}#a-field.{name}"' in page


def test_a_step_without_a_knob_is_a_profiling_step_and_defers_nothing(client: TestClient, profiled: int) -> None:
    page = client.get(f"/runs/{profiled}/next").text
    wall = page[page.index('id="wall"') : page.index('id="missing"')]
    assert 'id="s-profile-comm"' in wall
    assert page.count('id="s-profile-comm"') == 1
    for rule in ("profile-comm", "val-50-steps"):
        step = client.get(f"/runs/{profiled}/next/{rule}").text
        assert "Hold fixed" not in step
        assert "Not measured here yet" not in step
        assert "cannot be planned" not in step
    assert "Hold fixed" in client.get(f"/runs/{profiled}/next/eo-enable").text


# --- Facts that users state about an existing run: by form and API, recorded, used, withdrawn.

PROFILE = {"exposed_comm_frac": 0.3, "gpu_idle_frac": 0.05}


@pytest.fixture
def run(engine: Engine) -> int:
    with transaction(engine) as session:
        return make_advised(session)


def state(client: TestClient, run: int, facts: dict[str, Any], author: str = "Ada", note: str = "nsys") -> Any:
    return client.patch(f"/api/v1/runs/{run}/facts", json={"facts": facts, "author": author, "note": note})


def test_a_stated_profile_names_the_wall_and_shows_its_author(client: TestClient, engine: Engine, run: int) -> None:
    with transaction(engine) as session:
        before = session.get_one(RunRow, run).stack_key, session.get_one(RunRow, run).config_key
    body = state(client, run, PROFILE).json()
    assert (body["wall"]["wall"], body["wall"]["certainty"]) == ("communication", "measured")
    assert {(fact["name"], fact["author"], fact["note"]) for fact in body["stated"]} == {
        ("exposed_comm_frac", "Ada", "nsys"),
        ("gpu_idle_frac", "Ada", "nsys"),
    }
    overlap = next(suggestion for suggestion in body["suggestions"] if suggestion["rule"] == "eo-enable")
    assert {fact["stated_by"] for fact in overlap["facts"] if fact["name"] == "exposed_comm_frac"} == {"Ada"}
    assert "stated by Ada on " in client.get(f"/runs/{run}/next/eo-enable").text
    assert "stated by Ada on " in client.get(f"/runs/{run}/next").text
    with transaction(engine) as session:
        row = session.get_one(RunRow, run)
        assert (row.stack_key, row.config_key, row.rules_asked) == (*before, "")


def test_the_newest_statement_counts_and_can_be_taken_back(client: TestClient, run: int) -> None:
    state(client, run, PROFILE)
    body = state(client, run, {"exposed_comm_frac": 0.01, "gpu_idle_frac": 0.4}, author="Grace").json()
    assert body["wall"]["wall"] == "host"
    body = state(client, run, {name: {"unset": True} for name in PROFILE}).json()
    assert (body["wall"]["certainty"], body["stated"]) == ("expected", [])
    page = client.get(f"/runs/{run}/next").text
    assert "withdrawn" in page
    assert "Grace" in page
    refused = state(client, run, {"gpu_idle_frac": {"unset": True}})
    assert_problem(refused, 422)
    assert refused.json()["errors"][0]["field"] == "facts.gpu_idle_frac"


def test_nothing_is_kept_of_a_statement_with_a_mistake(client: TestClient, run: int) -> None:
    refused = state(client, run, {**PROFILE, "gpu_idle_frac": 40})
    assert_problem(refused, 422)
    assert [error["field"] for error in refused.json()["errors"]] == ["facts.gpu_idle_frac"]
    assert_problem(state(client, run, {}), 422)
    assert_problem(state(client, run, PROFILE, author=""), 422)
    assert_problem(state(client, 999, PROFILE), 404)
    assert client.get(f"/api/v1/runs/{run}/suggestions").json()["stated"] == []


def test_measurements_in_the_log_override_stated_values(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, health={"iterations": 50, "loss_finite": True})
    body = state(client, run, {"loss_finite": False}).json()
    assert body["stated"][0]["name"] == "loss_finite"
    assert (body["stated"][0]["value"], body["stated"][0]["in_use"]) == (False, True)
    assert 'data-overridden="loss_finite"' in client.get(f"/runs/{run}/next").text


def test_the_form_does_the_same_and_keeps_its_input(client: TestClient, run: int) -> None:
    page = client.get(f"/runs/{run}/next?fact=sharp").text
    assert 'name="fact.exposed_comm_frac"' in page
    assert 'name="fact.sharp"' in page
    sent = {"fact.exposed_comm_frac": "30 %", "fact.gpu_idle_frac": "lots", "author": "Ada", "note": "<b>nsys</b>"}
    refused = client.post(f"/runs/{run}/facts", data=sent)
    assert refused.status_code == 422
    assert 'value="30 %"' in refused.text
    assert "must be a number" in refused.text
    answer = client.post(f"/runs/{run}/facts", data=sent | {"fact.gpu_idle_frac": "5%"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run}/next#stated")
    page = client.get(f"/runs/{run}/next").text
    assert "Limited by: communication" in page
    (current,) = re.findall(r'aria-current="step">.*?aria-describedby="phase-(\w+)"', page, re.DOTALL)
    answer = client.get(f"/api/v1/runs/{run}/suggestions").json()
    assert current == answer["current"]
    assert "<b>nsys" not in page


def test_few_facts_stand_open_and_each_would_decide_something(client: TestClient, run: int) -> None:
    body = client.get(f"/api/v1/runs/{run}/suggestions").json()
    opened = client.get(f"/runs/{run}/next").text.partition('id="more-missing"')[0].count('name="fact.')
    assert 0 < opened <= 8
    useful = [bool(gap["decides"]) for gap in body["missing"]]
    assert useful == sorted(useful, reverse=True)
    assert "loss_finite" not in {gap["fact"] for gap in body["missing"]}


def test_a_log_that_shows_nothing_overrules_no_stated_proof(client: TestClient, engine: Engine) -> None:
    flex: dict[str, Any] = {"dispatcher": "deepep", "dispatcher_type": "flex", "flex_backend": "deepep"}
    activity = {"dispatcher": {"requested": {"value": "deepep", "source": "arguments"}, "active": None, "agrees": None}}
    with transaction(engine) as session:
        run = make_advised(session, fields=flex, activity=activity)
    assert state(client, run, {"backend_proof": True}).json()["stated"][0]["in_use"] is True


# --- Setbacks come first: a regression with the change that undoes it, or the last run that fit.

JOB = {
    "project": "fit",
    "model": "Qwen3-30B-A3B",
    "gpu": "H100",
    "gpus": 16,
    "tp": 1,
    "pp": 1,
    "ep": 16,
    "ep_overlap": False,
}


DUMP = """------------------------ arguments ------------------------
  save ............................................ /scratch/turbo-{turbo}/output
  use_turbo_attention ............................. {turbo}
-------------------- end of arguments ---------------------
"""
CRASH = (
    b"[rank0]: RuntimeError: the kernel failed\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
)


def rows_of(client: TestClient, run: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get(f"/api/v1/runs/{run}/suggestions").json()["suggestions"]
    return rows


def test_a_regression_comes_before_tuning_and_names_what_undoes_it(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0)
        run = make_advised(session, purpose="experiment", metadata_stated=PROFILED)
    first = rows_of(client, run)[0]
    assert (first["rule"], first["place"]["group"]) == ("val-regression-cause", "regression")
    assert first["title"].endswith(": ep_overlap off → on")
    assert "ep_overlap false" not in first["changes"]["text"]
    assert first["changes"]["fields"] == [{"name": "ep_overlap", "before": "false", "after": "true"}]
    assert first["changes"]["megatron_lm"]["add"] == "--overlap-moe-expert-parallel-comm"
    assert "--overlap-moe-expert-parallel-comm" in client.get(f"/runs/{run}/next/val-regression-cause").text
    verdict = client.get(f"/api/v1/runs/{run}/verdict").json()
    assert first["place"]["expected_gain"]["pct"] == pytest.approx(verdict["metrics"]["step_time_ms"]["delta_pct"])
    assert [row for row in first["evidence"] if row["measured_here"]] == [], "its own verdict is no A/B"


def test_causes_are_named_and_undone_as_far_as_evidence_supports_them(client: TestClient, engine: Engine) -> None:
    old, new = "nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.08"
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True, "container": old}, ms=25_000.0, commit="a" * 40)
        knob = make_advised(session, fields={"container": old}, metadata_stated=PROFILED, commit="b" * 40)
        upgraded = make_advised(
            session, fields={"container": new}, ms=40_000.0, metadata_stated=PROFILED, commit="c" * 40
        )
        only_code = make_advised(
            session, fields={"container": new}, ms=50_000.0, metadata_stated=PROFILED, commit="d" * 40
        )
    # A knob is tested with one run.
    first = rows_of(client, knob)[0]
    assert first["title"].endswith(": ep_overlap off → on")
    assert f"Possible causes, none proven: ep_overlap on to off; commit {'a' * 12} to {'b' * 12}." in first["why"]
    # A container is not, and may be innocent.
    first = rows_of(client, upgraded)[0]
    assert (first["rule"], first["place"]["expected_gain"]) == ("val-regression-cause", None)
    assert first["title"] == "Test the old container with the new code", "which is what the recipe does"
    assert first["changes"]["text"].startswith("Set container back to")
    assert first["changes"]["fields"] == []
    (recipe,) = first["recipes"]
    assert f"git checkout {'c' * 40}" in recipe["run"]
    assert f"--set container={old} --set commit={'c' * 40}" in recipe["run"]
    (lead,) = re.findall(r'class="answer">(.*?)</p>', client.get(f"/runs/{upgraded}/next").text, re.S)
    assert "The step takes" not in lead, "the row below states the test; the lead is no result of it"
    assert re.search(r"why the step takes [\d.]+\s% longer", lead)
    page = client.get(f"/runs/{upgraded}/next/val-regression-cause").text
    assert re.search(r'<button class="button primary"[^>]*data-copy', page)
    # The only possible cause is the cause once a rerun confirms the regression. A bisection gains nothing itself.
    first = rows_of(client, only_code)[0]
    assert (first["title"], first["place"]["expected_gain"]) == ("Rerun, then bisect cccccccc..dddddddd", None)
    assert [recipe["run"] for recipe in first["recipes"]] == [f"threewalls bisect {only_code}"]
    for address in (f"/runs/{only_code}/next", f"/runs/{only_code}/next/val-regression-cause"):
        page = client.get(address).text
        primary = re.findall(r'class="button primary"[^>]*href="([^"]*)"', page)[-1]
        assert primary == f"/runs/{only_code}?tab=why#rerun"
    assert f"Possible cause, not proven: commit {'c' * 12} to {'d' * 12}." in first["why"]


def test_figures_of_a_sentence_are_links_but_digits_of_a_hash_are_not() -> None:
    values = {"regression_text": "The step takes 24.7\u202f% longer.", "regression_cause": "commit 64bee49c9689 to e7"}
    text = linked("{regression_text} {regression_cause}", values, lambda name: f"/{name}")
    assert re.findall(r'href="([^"]*)">([^<]*)<', text) == [("/regression_text", "24.7\u202f%")]
    text = linked("{regression_cause}", {"regression_cause": "container moe/train:2026.09"}, lambda name: f"/{name}")
    assert "href" not in text, "a tag is no figure"
    text = linked("{slow_text}", {"slow_text": "Iterations 21, 27 and 36 took 2.4 times"}, lambda name: f"/{name}")
    assert re.findall(r">([^<]*)<", text) == ["21"]


def test_a_regression_is_undone_in_the_next_run_and_an_ab_comes_second(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0)
        run = make_advised(session, purpose="ci", metadata_stated=PROFILED)
    advice = "Set <code>--overlap-moe-expert-parallel-comm</code> in the next CI run; its verdict confirms it: 1 run"
    for address in (f"/runs/{run}/next", f"/runs/{run}/next/val-regression-cause"):
        page = client.get(address).text
        primary, second = page.index("Copy flag</button>"), page.index("Plan A/B (")
        assert primary < second
        assert advice in page
        assert re.search(r"1 run, about [\d.]+ GPU-hours\.", page)
        assert re.search(r"Plan A/B \(\d+ runs, [\d.]+ GPU-hours\)", page)
    evidence = page[page.index('id="effect"') : page.index('id="verify"')]
    assert evidence.index("Measured here") < evidence.index("if the whole difference disappears")
    assert "Published" not in evidence
    assert page.count("confidence") == 1, "that of the expected gain"


def test_a_run_with_the_change_shows_that_unknown_prerequisites_are_met_but_no_unmet_one() -> None:
    needs = [CheckedRequirement("a", "met"), CheckedRequirement("b", "unknown"), CheckedRequirement("c", "unmet")]
    assert (met_count(needs, None), met_count(needs, 138)) == ("1 of 3", "2 of 3")


def test_a_slower_run_is_compared_with_its_baseline_and_expects_what_it_lost(
    client: TestClient, engine: Engine
) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True, "seq_len": 8192}, ms=26_000.0)
        make_advised(session, fields={"seq_len": 8192}, purpose="experiment")
        baseline = make_advised(session, fields={"ep_overlap": True}, ms=25_000.0)
        run = make_advised(session, purpose="ci", metadata_stated=PROFILED)
    page = client.get(f"/runs/{run}/next/val-regression-cause").text
    assert f'href="/compare?a={baseline}&amp;b={run}"' in page
    text = re.sub(r"\s+", " ", page)
    assert re.search(r">undoes the slowdown of this run; [^<;]* on 1 other stack<", text)
    place = client.get(f"/api/v1/runs/{run}/report").json()["next_step"]["place"]
    assert "; undoes the slowdown of this run." in place, "named as on the page"
    assert "measured here on 1 other stack" not in place
    (gain,) = {
        row["place"]["expected_gain"]["pct"] for row in rows_of(client, run) if row["rule"] == "val-regression-cause"
    }
    assert gain == pytest.approx(100 * (31.31 / 25.0 - 1), abs=1.0), "25.0 s against 31.31 s"
    lead = re.search(r'<p class="answer">(.*?)</p>', client.get(f"/runs/{run}/next").text, re.S)
    assert lead is not None
    assert "slower" not in lead[1]


def test_a_flag_that_made_a_run_slower_is_removed_in_the_next_run(client: TestClient, engine: Engine) -> None:
    flag = "--overlap-moe-expert-parallel-comm"
    with transaction(engine) as session:
        make_advised(session, ms=25_000.0)
        run = make_advised(
            session,
            fields={"ep_overlap": True},
            purpose="ci",
            metadata_stated=PROFILED | {"launch_args": f"{LAUNCH} {flag}"},
        )
    for address in (f"/runs/{run}/next", f"/runs/{run}/next/val-regression-cause"):
        page = client.get(address).text
        assert f"Remove <code>{flag}</code> in the next CI run" in page
        assert re.search(rf"Copy flag</button>\s*<code hidden>{flag}</code>", page)
        assert page.index("Copy flag</button>") < page.index("Plan A/B (")


def test_the_plan_of_an_experiment_has_the_text_of_its_suggestion(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_advised(session, ms=25_000.0)
        run = make_advised(session, fields={"ep_overlap": True}, purpose="ci", metadata_stated=PROFILED)
    sent = {"run": run, "author": "mara", "rule": "val-regression-cause"}
    planned = client.post("/api/v1/experiments", json=sent).json()
    assert planned["plan"]["text"].startswith("Set ep_overlap back to off. Change nothing else.")


def test_settings_of_a_step_are_on_or_off_and_its_lead_is_short(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0)
        run = make_advised(session, purpose="ci", metadata_stated=PROFILED)
    for rule in ("val-regression-cause", "profile-required"):
        page = client.get(f"/runs/{run}/next/{rule}").text
        (lead,) = re.findall(r'<p class="answer">(.*?)</p>', page, re.DOTALL)
        words = re.findall(r"\w\S*", re.sub(r"<[^>]*>", "", lead))
        assert 0 < len(words) <= 16
    fields = client.get(f"/runs/{run}/next/val-regression-cause").text
    fields = fields[fields.index('id="fields"') : fields.index('id="effect"')]
    assert re.search(r">off</a>.*>on</td>", fields, re.DOTALL)


def test_a_run_without_a_regression_has_no_such_step(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_advised(session, metadata_stated=PROFILED)
    assert "val-regression-cause" not in [row["rule"] for row in rows_of(client, run)]


def test_after_running_out_of_memory_the_way_back_comes_first_and_nothing_is_tuned(client: TestClient) -> None:
    older, newer = "a" * 40, "b" * 40
    fitted = int(upload(client, training_log(20), meta={**JOB, "mbs": 1, "commit": older}).json()["id"])
    process_run(fitted)
    log = training_log(8) + OUT_OF_MEMORY.encode()
    run = int(upload(client, log, meta={**JOB, "mbs": 2, "exposed_comm_frac": 0.3, "commit": newer}).json()["id"])
    process_run(run)
    side = int(upload(client, training_log(20), meta={**JOB, "mbs": 1, "purpose": "experiment"}).json()["id"])
    process_run(side)
    rows = rows_of(client, run)
    assert (rows[0]["rule"], rows[0]["title"]) == ("fit-go-back", f"Go back to run #{fitted}: mbs 2 → 1")
    assert rows[0]["changes"]["fields"] == [{"name": "mbs", "before": "2", "after": "1"}]
    assert "mbs and commit changed, likely cause: mbs" in rows[0]["why"]
    assert f"git bisect start {newer[:12]} {older[:12]}" in rows[0]["changes"]["text"]
    assert [other["rule"] for other in rows[0]["also"]] == ["fit-lower-mbs"]  # it sets the same
    warnings = suggestions(client, run)["warnings"]
    page = client.get(f"/runs/{run}/next").text.partition('id="missing"')[0]
    listed = set(re.findall(rf'"/runs/{run}/next/([a-z0-9-]+)"', page))
    assert listed == {row["rule"] for item in (*rows, *warnings) for row in (item, *item["also"])}
    assert "eo-enable" not in [row["rule"] for row in rows]
    also = client.get(f"/runs/{run}/next").text.partition('id="others"')[2]
    names = [*(row["rule"] for row in rows), *re.findall(r'id="s-([\w-]+)"', also)]
    phases = [built_in_rules().rules[name].phase for name in names]
    assert {*phases} == {"fit"}, "nothing else helps a run that did not fit"
    client.patch(f"/api/v1/runs/{run}/facts", json={"facts": {"health_dismissed": True}, "author": "Ada"})
    assert "eo-enable" in [row["rule"] for row in rows_of(client, run)]


def test_a_shorter_sequence_is_not_a_way_back_but_context_parallelism_is_a_way_on(client: TestClient) -> None:
    process_run(int(upload(client, training_log(20), meta={**JOB, "seq_len": 4096}).json()["id"]))
    log = training_log(1) + OUT_OF_MEMORY.encode()
    longer = {**JOB, "seq_len": 65_536, "cp": 1, "tp": 1, "pp": 1, "gpus": 16}
    run = int(upload(client, log, meta=longer).json()["id"])
    process_run(run)
    rows = rows_of(client, run)
    assert "fit-go-back" not in [row["rule"] for row in rows]
    assert (rows[0]["rule"], rows[0]["changes"]["fields"]) == (
        "scale-cp-enable", [{"name": "cp", "before": "1", "after": "16"}],
    )  # fmt: skip


def test_after_a_crash_everything_that_changed_since_the_job_worked_comes_first(client: TestClient) -> None:
    def attempt(turbo: str, rest: bytes) -> int:
        run = int(upload(client, DUMP.format(turbo=turbo).encode() + rest, meta=JOB).json()["id"])
        process_run(run)
        return run

    worked = attempt("False", training_log(20))
    run = attempt("True", CRASH)
    first = rows_of(client, run)[0]
    assert (first["rule"], first["place"]["group"]) == ("fit-since-it-worked", "health")
    assert first["title"] == f"Go back to run #{worked}: use_turbo_attention true → false"
    assert f"#{worked}" in first["why"]
    assert "use_turbo_attention" in first["why"]
    assert "output" not in first["why"]  # a path names the run
    assert "use_turbo_attention" in first["changes"]["text"]


def test_without_the_package_the_dispatcher_of_the_newest_run_of_the_stack_that_worked_is_advised(
    client: TestClient, engine: Engine
) -> None:
    failure = {"kind": "deepep_missing", "title": "t", "explanation": "e", "advice": "a", "rank": 0, "evidence": []}
    failed: dict[str, Any] = {"outcome": "failed", "failures": [failure], "health": {"outcome": "failed"}}
    failed["health"]["iterations"] = 0

    def fail(session: Session, gpus: int) -> int:
        return make_advised(session, fields={"dispatcher": "deepep", "gpus": gpus}, **failed)

    with transaction(engine) as session:
        for dispatcher in ("alltoall", "hybridep", "deepep"):  # the newest has what the failed run lacks
            last = make_advised(session, fields={"dispatcher": dispatcher}, outcome="completed")
        with_others, alone = fail(session, 16), fail(session, 32)
    first, *rest = rows_of(client, with_others)
    assert first["rule"] == "disp-package-missing"
    assert first["changes"]["fields"] == [{"name": "dispatcher", "before": "deepep", "after": "hybridep"}]
    assert first["title"] == f"Set dispatcher to hybridep, as in run #{last - 1}"
    assert first["title"] in client.get(f"/runs/{with_others}").text
    assert not {"disp-alltoall-first", "fit-estimate", "scale-min-gpus"} & {row["rule"] for row in rest}
    assert suggestions(client, with_others)["wall"]["certainty"] == "unknown"
    with transaction(engine) as session:
        elsewhere = make_advised(session, fields={"container": "train-ep:2", "dispatcher": "deepep"})
        row = session.get_one(RunRow, elsewhere)
        proof = {"run_id": elsewhere, "project_id": row.project_id, "container": "train-ep:2"}
        session.add(AvailabilityRow(**proof, dispatcher="deepep", available=True))
    title = f"Use container train-ep:2 (#{elsewhere}) or dispatcher hybridep (#{last - 1})"
    assert rows_of(client, with_others)[0]["title"] == title, "the requested dispatcher comes first"
    with transaction(engine) as session:
        on_other = {"container": "train-ep:3", "dispatcher": "deepep", "model": "other"}
        other_model = make_advised(session, fields=on_other)
        session.add(AvailabilityRow(**proof | {"run_id": other_model}, dispatcher="deepep", available=True))
    assert rows_of(client, with_others)[0]["title"] == title, "a run of the same model"
    with transaction(engine) as session:
        session.get_one(RunRow, elsewhere).quarantine = "bad"
    assert f" (#{other_model}, other) or " in rows_of(client, with_others)[0]["title"]
    with transaction(engine) as session:
        session.get_one(RunRow, elsewhere).quarantine = ""
    copied = re.findall(r"(Copy \w+)</button>\s*<code hidden>([^<]*)", client.get(f"/runs/{with_others}/next").text)
    assert copied[0] == ("Copy container", "train-ep:2"), "the first alternative of the title"
    assert copied[1][1].endswith("hybridep"), "then the second"
    commands = re.findall(r'class="command">.*?<code>(.*?)</code>', client.get(f"/runs/{with_others}").text, re.DOTALL)
    assert commands[0] == "train-ep:2"
    assert commands[1].endswith("hybridep"), "each remedy has its command"
    first, *rest = rows_of(client, alone)
    assert first["changes"]["fields"] == [{"name": "dispatcher", "before": "deepep", "after": "alltoall"}]
    assert {"fit-estimate"} <= {row["rule"] for row in rest}


def test_a_failed_run_names_completed_runs_of_its_work_else_what_differs(client: TestClient, engine: Engine) -> None:
    failed: dict[str, Any] = {"outcome": "failed", "health": {"outcome": "failed", "iterations": 3}}
    failed["failures"] = [{"kind": "nccl", "title": "t", "explanation": "e", "advice": "a", "rank": 0, "evidence": []}]

    def named(run: int) -> str:
        text = client.get(f"/runs/{run}").text
        return " ".join(re.sub(r"<[^>]*>", " ", text[text.index('class="working"') + 16 :].split("</p>")[0]).split())

    with transaction(engine) as session:
        here = make_advised(session, fields={"mbs": 2}, outcome="completed")
        longer = make_advised(session, fields={"seq_len": 8192}, outcome="completed")
        run = make_advised(session, **failed)
        longest = make_advised(session, fields={"seq_len": 65_536}, **failed)
    assert named(run).startswith(f"Runs that completed here: #{here}")
    assert f"#{longer}" not in named(run)
    assert named(longest).startswith("Same model and GPU: #")
    assert re.search(rf"#{longer} \S+ seq_len 8192 [\d.]+ s", named(longest))


# --- Faster runs of the same work; runs that cannot be judged yet.


def test_a_faster_run_of_the_same_work_comes_first_with_its_settings(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        layout: dict[str, Any] = {"ep": 8, "dispatcher": "hybridep"}
        faster = make_advised(session, fields=layout, ms=24_000.0, purpose="experiment")
        make_advised(session, fields={**layout, "seq_len": 2048}, ms=12_000.0, purpose="experiment")  # other work
        run = make_advised(session)
    first = rows_of(client, run)[0]
    assert (first["rule"], first["place"]["group"]) == ("own-faster-run", "measured")
    assert all(part in first["why"] for part in (f"#{faster}", "23 % faster"))
    after = {field["name"]: field["after"] for field in first["changes"]["fields"]}
    assert after == {"ep": "8", "dispatcher": "hybridep"}
    gain = first["place"]["expected_gain"]
    assert gain["low_pct"] < gain["pct"] < gain["high_pct"]
    assert gain["pct"] == pytest.approx(100 * (31.31 / 24 - 1), abs=0.01)  # the figure of the reason, not the middle
    assert "ep" in gain["differs"]
    assert f'href="/runs/{faster}"' in client.get(f"/runs/{run}/next/own-faster-run").text
    assert "own-faster-run" not in [row["rule"] for row in rows_of(client, faster)]


def test_the_title_says_that_an_earlier_run_was_faster(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        earlier = make_advised(session, fields={"ep": 8}, ms=24_000.0, purpose="experiment")
        run = make_advised(session, started=FIRST_PLACE + timedelta(days=2))
    row = named(suggestions(client, run), "own-faster-run")
    assert row["title"] == f"Go back to run #{earlier}: ep 16 → 8"
    assert f">{row['title']}</h1>" in client.get(f"/runs/{run}/next/own-faster-run").text
    planned = client.post("/api/v1/experiments", json={"run": run, "rule": "own-faster-run", "author": "mara"}).json()
    assert planned["title"] == row["title"]


def test_a_faster_run_names_the_dispatcher_although_it_is_derived_from_two_flags(
    client: TestClient, engine: Engine
) -> None:
    before, after = (Stated(name, "derived", "type and backend") for name in ("alltoall", "hybridep"))
    with transaction(engine) as session:
        fields: dict[str, Any] = {"dispatcher": after, "ep_overlap": True}
        make_advised(session, fields=fields, ms=24_000.0, purpose="experiment")
        run = make_advised(session, fields={"dispatcher": before})
    first = rows_of(client, run)[0]
    assert first["rule"] == "own-faster-run"
    assert {field["name"] for field in first["changes"]["fields"]} == {"dispatcher", "ep_overlap"}
    assert "dispatcher hybridep in place of alltoall" in first["why"]


def test_a_matched_ab_comes_before_a_faster_run_with_more_changes(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        overlap: dict[str, Any] = {"ep_overlap": True}
        code: dict[str, Any] = {"commits": ["a" * 40]}
        matched = make_advised(session, fields=overlap, ms=27_000.0, purpose="experiment", **code)
        fields = {**overlap, "ep": 8, "dispatcher": "hybridep"}
        fastest = make_advised(session, fields=fields, ms=20_000.0, purpose="experiment", **code)
        run = make_advised(session, **code)
    first = rows_of(client, run)[0]
    assert "own-faster-run" in {row["rule"] for row in (first, *first["also"])}
    assert [field["name"] for field in first["changes"]["fields"]] == ["ep_overlap"]
    step = client.get(f"/runs/{run}/next/own-faster-run").text
    assert f'href="/runs/{matched}"' in step
    assert re.search(rf"Run #{fastest} is .* faster .* ep 8 in place of 16", step)


def test_a_run_of_a_container_that_was_left_does_not_bring_it_back(client: TestClient, engine: Engine) -> None:
    """A faster run of the same container comes first; from a former container only the settings are suggested."""
    former: dict[str, Any] = {"container": "nemo:26.01"}
    later = FIRST_PLACE + timedelta(days=30)
    with transaction(engine) as session:
        make_advised(session, fields=former, ms=25_000.0, purpose="experiment")
        run = make_advised(session, started=later)
    assert "own-faster-run" not in [row["rule"] for row in rows_of(client, run)]  # the upgrade is all that differs
    with transaction(engine) as session:
        old = make_advised(session, fields={**former, "ep": 8}, ms=20_000.0, purpose="experiment")
    first = named(suggestions(client, run), "own-faster-run")
    assert f"Run #{old} does" in first["why"]
    assert [field["name"] for field in first["changes"]["fields"]] == ["ep"]
    assert "nemo:26.01" in first["why"]
    with transaction(engine) as session:
        own = make_advised(session, fields={"ep": 8}, ms=24_000.0, started=later, purpose="experiment")
    first = named(suggestions(client, run), "own-faster-run")
    assert f"Run #{own} does" in first["why"]
    assert f"Run #{old} is" in first["why"]


@pytest.mark.parametrize(("ms", "is_offered"), [(30_000.0, False), (24_000.0, True)])
def test_what_other_code_may_explain_is_not_a_gain_of_a_setting(
    client: TestClient, engine: Engine, ms: float, *, is_offered: bool
) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep": 8}, ms=ms, purpose="experiment", commits=["a" * 40])
        other, same = (make_advised(session, commits=[commit * 40]) for commit in "ba")
    assert ("own-faster-run" in [row["rule"] for row in rows_of(client, other)]) is is_offered
    assert "own-faster-run" in [row["rule"] for row in rows_of(client, same)]


@pytest.mark.parametrize(("tflops", "is_low"), [(90.0, True), (300.0, False)])
def test_a_low_mfu_leads_the_page(client: TestClient, tflops: float, *, is_low: bool) -> None:
    meta = {**JOB, "gpu": "H100", "precision": "bf16"}
    log = re.sub(rb"(TFLOP/s/GPU\): )[\d.]+", rb"\g<1>%.1f" % tflops, training_log(20))
    run = int(upload(client, log, meta=meta).json()["id"])
    process_run(run)
    assert ("MFU is only 9\u202f%" in client.get(f"/runs/{run}/next").text) is is_low


def test_what_most_runs_need_leads_only_where_nothing_is_specific(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        tuned = make_advised(session, fields={"ep_overlap": True, "ep": 8}, project="tuned")
        slow = make_advised(session)
    lead = "No A/B of this stack applies yet."
    for run, is_tuned in ((tuned, True), (slow, False)):
        page = client.get(f"/runs/{run}/next").text
        first, _, folded = page.partition('id="others"')
        assert (lead in first) is is_tuned
        assert ('id="s-profile-required"' in first) is is_tuned
        assert ('id="s-profile-required"' in folded) is not is_tuned


def test_a_run_of_another_job_does_other_work(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True}, ms=12_000.0, purpose="experiment", job="tp2_ep2")
        other, same, unnamed = (make_advised(session, job=job) for job in ("tp2_cp2_ep2", "tp2_ep2", ""))
    rules = [[row["rule"] for row in rows_of(client, run)] for run in (other, same, unnamed)]
    assert ["own-faster-run" in names for names in rules] == [False, True, True]


@pytest.mark.parametrize("states_cp", [True, False])
def test_a_faster_run_of_an_unknown_layout_is_deferred(client: TestClient, engine: Engine, *, states_cp: bool) -> None:
    overlap: dict[str, Any] = {"ep_overlap": True}
    with transaction(engine) as session:
        fields = overlap if states_cp else {**overlap, "cp": ...}
        make_advised(session, fields=fields, ms=24_000.0, purpose="experiment", commits=["a" * 40])
        run = make_advised(session, commits=["a" * 40])
    group = "suggestions" if states_cp else "withheld"
    rows = {row["rule"]: row for row in suggestions(client, run)[group]}
    assert rows["own-faster-run"]["place"]["confidence"] == ("high" if states_cp else "medium")


def test_noise_is_not_a_faster_run(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep": 8}, ms=30_900.0, purpose="experiment")
        run = make_advised(session)
    assert "own-faster-run" not in [row["rule"] for row in rows_of(client, run)]


@pytest.mark.parametrize(
    ("meta", "steps", "rule"),
    [
        ({"seq_len": 128, "mbs": 1, "cp": 1, "sp": False}, 20, "val-little-work"),
        ({}, 3, "val-few-steps"),
    ],
)
def test_what_cannot_be_judged_is_not_tuned(client: TestClient, meta: dict[str, Any], steps: int, rule: str) -> None:
    run = int(upload(client, training_log(steps), meta={**JOB, **meta}).json()["id"])
    process_run(run)
    advice = suggestions(client, run)
    assert (advice["suggestions"][0]["rule"], advice["suggestions"][0]["place"]["group"]) == (rule, "unjudged")
    offered = {row["rule"] for row in advice["suggestions"]}
    assert not offered & {"profile-required", "val-50-steps", "eo-enable"}


# --- `threewalls check`, its page and its API give the same answer.

GOOD = SCRIPT.replace("FLAGS", "--moe-token-dispatcher-type alltoall")
BAD = GOOD.replace("--bf16", "--bf16 --overlap-moe-expert-parallel-comm")


def blockers(document: dict[str, Any]) -> list[str]:
    return [row["rule"] for row in document["blockers"]]


def test_the_command_exits_with_one_for_a_blocker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.sh", tmp_path / "bad.sh"
    good.write_text(GOOD)
    bad.write_text(BAD)
    assert main(["check", str(good), "--set", "gpu=H100"]) == 0
    assert main(["check", str(good), "--set", "gpuz=H100"]) == 2
    capsys.readouterr()
    assert main(["check", str(bad), "--set", "gpu=H100", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], blockers(document)) == ("threewalls.check/1", ["eo-needs-vpp"])
    assert main(["check", str(tmp_path / "none.sh")]) == 3


def test_the_api_answers_the_same_and_stores_nothing(client: TestClient) -> None:
    answer = client.post("/api/v1/check", json={"launch": BAD, "facts": {"gpu": "H100"}})
    assert (answer.status_code, blockers(answer.json())) == (200, ["eo-needs-vpp"])
    assert client.get("/api/v1/runs").json()["items"] == []
    good = client.post("/api/v1/check", json={"launch": GOOD, "facts": {"gpu": "H100"}}).json()
    count = len(good["warnings"])
    assert good["answer"].startswith(f"No blockers, {count} warning{'s' * (count > 1)}.")
    assert_problem(client.post("/api/v1/check", json={"launch": "hello"}), 422, field="launch")
    assert_problem(
        client.post("/api/v1/check", json={"launch": GOOD, "facts": {"gpus": "many"}}), 422, field="facts.gpus"
    )


def test_the_page_shows_what_fires_and_keeps_the_text(client: TestClient) -> None:
    assert client.get("/check").status_code == 200
    page = client.post("/check", data={"launch": BAD + "<b>", "gpu": "H100"})
    assert page.status_code == 200
    assert 'data-rule="eo-needs-vpp"' in page.text
    assert "&lt;b&gt;" in page.text
    assert re.search(r'<mark class="blocker"[^>]*>--overlap-moe-expert-parallel-comm<', page.text)
    refused = client.post("/check", data={"launch": "hello"})
    assert refused.status_code == 422
    assert 'role="alert"' in refused.text


def test_the_example_in_the_empty_form_passes_and_the_other_has_a_marked_mistake(client: TestClient) -> None:
    empty = unescape(re.findall(r'placeholder="(export [^"]*)"', client.get("/check").text)[0])
    assert blockers(client.post("/api/v1/check", json={"launch": empty, "facts": {"gpu": "H100"}}).json()) == []
    form = client.get("/check").text.split('aria-label="Example"')[1]
    sent = {name: unescape(value) for name, value in re.findall(r'name="(\w+)"\s+value="([^"]*)"', form)}
    assert sent["gpu"] == "H100"
    page = client.post("/check", data=sent).text
    assert re.findall(r'<li class="suggestion blocker" data-rule="([\w-]+)"', page) == ["scale-moe-tp-needs-sp"]
    assert ">--tensor-model-parallel-size 2</mark>" in page
    assert "--sequence-parallel" in page


LARGE = (
    "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 "
    "--pipeline-model-parallel-size {pp} --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall "
    "--num-experts 256 --micro-batch-size 1 --global-batch-size 1024 --seq-length 4096 --bf16 "
    "--use-distributed-optimizer --expert-tensor-parallel-size 1"
)


def test_the_page_says_what_was_read_and_whether_it_fits_the_memory(client: TestClient) -> None:
    stated = {"gpu": "H100", "model": "DeepSeek-V3"}
    page = client.post("/check", data={"launch": LARGE.format(pp=4), **stated}).text
    assert "DeepSeek-V3 · 64 × H100 · TP2 PP4 CP1 EP8 · seq 4,096 · GBS 1,024 · bf16" in page
    (peak,) = re.findall(r"Probably out of memory: about (\d+) GiB needed, 69 usable\.", page)
    assert int(peak) > 80
    assert "m-too-much" in page
    (address,) = re.findall(r'class="button primary"\s+href="(/plan[^"]+)">Open in the planner', page)
    assert "No layout fits" not in page
    answer = client.get("/api/v1" + unescape(address)).json()
    given = answer["given"]
    assert given["violations"] == []
    blocker = client.post("/api/v1/check", json={"launch": LARGE.format(pp=4), "facts": stated}).json()["blockers"][0]
    assert blocker["rule"] == "plan-fits"
    assert blocker["change"].startswith(
        f"TP{given['tp']} PP{given['pp']} VPP{given['vpp']} CP1 EP{given['ep']} ETP1 fits"
    )
    small = client.post("/check", data={"launch": LARGE.format(pp=4), "gpu": "B300", "model": "Qwen3-30B-A3B"}).text
    assert "Probably out of memory" not in small
    assert "it fits." in small
    assert "Predicted peak" not in client.post("/check", data={"launch": LARGE.format(pp=4)}).text, "no GPU is known"


def test_command_page_and_api_name_the_same_job_and_memory(
    client: TestClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = tmp_path / "launch.sh"
    launch.write_text(LARGE.format(pp=4))
    for facts in ({"gpu": "H100", "model": "DeepSeek-V3"}, {"gpu": "B300", "model": "Qwen3-30B-A3B"}):
        command = ["check", str(launch), *(word for item in facts.items() for word in ("--set", "=".join(item)))]
        assert main(command) == 1
        answer, job, memory, *_ = capsys.readouterr().out.splitlines()
        assert main([*command, "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        page = client.post("/check", data={"launch": launch.read_text(), **facts}).text
        page = " ".join(unescape(re.sub(r"<[^>]+>", "", page)).split())
        assert job == f"Read: {document['job']}"
        assert document["job"] in page
        assert memory.removeprefix("Memory: ") in page
        assert answer.partition(": ")[2] == document["answer"]
        assert document["answer"] in page
        assert document["memory"]["fits"] is (document["memory"]["peak_gib"] <= document["memory"]["usable_gib"])
        api = client.post("/api/v1/check", json={"launch": launch.read_text(), "facts": facts}).json()
        assert api == {name: value for name, value in document.items() if name != "file"}
        assert (blockers(api)[:1] == ["plan-fits"]) is not document["memory"]["fits"]
    assert main(["check", str(launch)]) == 1
    assert capsys.readouterr().out.splitlines()[2] == "Memory: not predicted without model and gpu."


def test_a_launch_that_does_not_fit_in_memory_is_blocked_by_that_alone(client: TestClient, tmp_path: Path) -> None:
    launch = tmp_path / "launch.sh"
    launch.write_text(LARGE.format(pp=1) + " --sequence-parallel")
    facts = {"gpu": "H100", "model": "DeepSeek-V3"}
    document = client.post("/api/v1/check", json={"launch": launch.read_text(), "facts": facts}).json()
    assert blockers(document) == ["plan-fits"]
    assert main(["check", str(launch), "--set", "gpu=H100", "--set", "model=DeepSeek-V3"]) == 1


def test_a_batch_that_the_micro_batch_does_not_divide_is_blocked_at_any_number_of_gpus(client: TestClient) -> None:
    launch = GOOD.replace("--micro-batch-size 1", "--micro-batch-size 3")
    assert launch != GOOD
    document = client.post("/api/v1/check", json={"launch": launch, "facts": {"gpus": 12}}).json()
    assert "scale-gbs-divisible" in blockers(document)


def test_an_unknown_fact_is_added_beside_the_result_and_checked_again(client: TestClient) -> None:
    page = client.post("/check", data={"launch": GOOD}).text
    asked = re.findall(r'<input id="f-([\w.]+)"[^>]*\sform="launch-form"', page)
    assert asked[0] == "gpu"
    assert len(asked) == len(set(asked)) <= 3
    again = client.post("/check", data={"launch": GOOD, "gpu": "H100", "pytorch_version": "2.9"}).text
    assert not re.search(r'name="(gpu|pytorch_version)"[^>]*\sform="launch-form"', again)
    assert re.search(r'name="pytorch_version"[^>]*\svalue="2.9"', again), "it stays for the next check"
