"""The playbook through the public interface: the list, a complete rule, counts of its results, a team's files."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.testclient import TestClient

from app.domain.rules.load import built_in_rules
from app.pipeline.suggest import evaluate_next_runs
from app.settings import Settings
from app.storage.database import transaction
from app.storage.rules import RuleResults, in_one_direction
from app.storage.suspect_evidence import MeasuredGain
from app.storage.tables import ExperimentRow, ExperimentRunRow, RunRow
from tests.builders import stated_activity
from tests.domain.rules.builders import GOOD, SOURCES
from tests.runs.uploading import assert_problem
from tests.statements import statements
from tests.suggestions.advised import PROFILED, PROJECT, make_advised

RULES = built_in_rules().rules


def listed(client: TestClient, **query: str) -> dict[str, Any]:
    answer = client.get("/api/v1/rules", params={"page_size": "500", **query})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def ids(client: TestClient, **query: str) -> list[str]:
    return [rule["rule"] for rule in listed(client, **query)["rules"]]


@pytest.fixture
def tried(engine: Engine, settings: Settings) -> dict[str, int]:
    """Two runs with exposed communication, and an A/B of the overlap: 31.31 s against 25 s."""
    with transaction(engine) as session:
        runs = [make_advised(session, metadata_stated=PROFILED, ms=ms) for ms in (31_300.0, 31_310.0)]
        faster = make_advised(session, fields={"ep_overlap": True}, ms=25_000.0, purpose="experiment")
    evaluate_next_runs(engine, settings)
    return {"run": runs[1], "faster": faster}


def plan(
    session: Session,
    baseline: int,
    rule: str,
    state: str,
    candidate: int | None = None,
    *,
    result: dict[str, Any] | None = None,
) -> None:
    run = session.get_one(RunRow, baseline)
    row = ExperimentRow(
        project_id=run.project_id, baseline_run_id=baseline, rule_id=rule, title="x", stack_key=run.stack_key,
        baseline_key=run.config_key, candidate_key=session.get_one(RunRow, candidate).config_key if candidate else "",
        tag=f"{rule}-{state}", state=state, created_by="Ada", result=result,
    )  # fmt: skip
    session.add(row)
    session.flush()
    if candidate is not None:
        number = row.id or 0
        session.add(ExperimentRunRow(experiment_id=number, run_id=candidate, side="candidate", joined_by="tag"))


def test_a_rule_is_planned_for_the_newest_run_whose_configuration_is_the_one_to_tune(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    """A nightly run of a replaced configuration belongs to no experiment; an experiment that ended does not count."""
    with transaction(engine) as session:
        runs = {
            state: [
                make_advised(session, fields={"gbs": 64 * k}, metadata_stated=PROFILED, ms=31_300.0 + night)
                for night in range(2)
            ]
            for k, state in enumerate(("untouched", "rejected", "withdrawn", "accepted", "waiting", "done"), 1)
        }
    evaluate_next_runs(engine, settings)
    offered, counts = {}, []
    for state, (first, newest) in reversed(runs.items()):
        with statements(engine) as executed:
            page = client.get("/playbook/eo-enable").text
        counts.append(sum("experiment" in statement for statement in executed))
        offered[newest] = int(re.findall(r'class="button primary" href="/runs/(\d+)/next/eo-enable', page)[0])
        with transaction(engine) as session:
            plan(session, first, f"own-{state}", state)
    with transaction(engine) as session:
        plan(session, runs["untouched"][0], "own-try", "rejected", candidate=runs["withdrawn"][0])
    last = re.findall(
        r'class="button primary" href="/runs/(\d+)/next/eo-enable', client.get("/playbook/eo-enable").text
    )
    newest = {state: of_state[1] for state, of_state in runs.items()}
    assert [offered[newest[state]] for state in ("done", "waiting", "accepted", "withdrawn")] == [
        newest[state] for state in ("done", "waiting", "accepted", "withdrawn")
    ]
    assert offered[newest["rejected"]] == offered[newest["untouched"]] == newest["withdrawn"]
    assert last == [str(newest["rejected"])], "a rejected candidate is not the one to tune"
    assert len(set(counts)) == 1


def test_the_page_of_a_rule_reads_only_what_decides_its_own_results(
    client: TestClient, engine: Engine, tried: dict[str, int]
) -> None:
    in_list = {row["rule"]: (row["tried"], row["paid_off"]) for row in listed(client)["rules"]}
    read = {}
    for name in ("eo-enable", "disp-alltoall-first", "disp-flex-flag-only"):
        with statements(engine) as executed:
            body = client.get(f"/api/v1/rules/{name}").json()
        assert (body["tried"], body["paid_off"]) == in_list[name]
        read[name] = sum("FROM verdict" in statement for statement in executed)
    assert read["eo-enable"] > read["disp-flex-flag-only"] == 0, "a rule without a knob has no A/Bs"
    assert in_list["eo-enable"] == (1, 1), tried


def test_every_rule_is_listed_and_has_its_page(client: TestClient) -> None:
    listing = listed(client)
    assert {rule["rule"] for rule in listing["rules"]} == set(RULES)
    assert listing["total"] == len(RULES)
    for name in list(RULES)[::7]:
        page = client.get(f"/playbook/{name}")
        assert page.status_code == 200, name
        assert 'id="source"' in page.text
        assert "/experiments/new?rule" not in page.text, "it fires in no run, so an A/B would fit none"
        assert re.search(r'<details class="fold">\s*<summary>\s*When it fires', page.text)
        answer = client.get(f"/api/v1/rules/{name}")
        assert answer.json()["when"] == RULES[name].when.source
        assert "founding doc" not in (page.text + answer.text).lower()
        assert not re.search(r">[^<]*, (S[0-4]|[UC]-co|Z-zoo)\b", page.text), "readers do not know keys of sources"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"q": "eo-enable"}, "eo-enable"),
        ({"q": "OVERLAP expert communication"}, "eo-enable"),
        ({"q": "--overlap-moe-expert-parallel-comm"}, "eo-enable"),
        ({"q": "comm_overlap.overlap_moe_expert_parallel_comm=true"}, "eo-enable"),
        ({"q": "T_comm"}, "eo-enable"),
        ({"q": "Z-zoo overlap"}, "eo-enable"),
        ({"q": "--fake-init-process-group"}, "fit-fake-pg-flag"),
        ({"phase": "retune", "wall": "communication", "kind": "candidate", "confidence": "high"}, "eo-enable"),
        ({"origin": "built-in", "only": "disputed"}, "eo-enable"),
    ],
)
def test_a_rule_is_found_by_its_words_flags_sources_and_filters(
    client: TestClient, query: dict[str, str], expected: str
) -> None:
    assert expected in ids(client, **query)
    assert len(ids(client, **query)) < len(RULES)


def test_wrong_filters_are_named_and_unknown_rules_are_not_found(client: TestClient) -> None:
    assert_problem(client.get("/api/v1/rules?phase=later"), 422)
    assert client.get("/playbook?sort=none").status_code == 422
    assert client.get("/playbook?page=x").status_code == 422
    assert_problem(client.get("/api/v1/rules/no-such-rule"), 404)
    assert client.get("/playbook/no-such-rule").status_code == 404
    assert "No rule matches" in client.get("/playbook?q=nothing-has-these-words").text
    assert "No such page" in client.get("/playbook?page=99").text


def test_fired_tried_and_paid_off_are_counted(client: TestClient, tried: dict[str, int]) -> None:
    (rule,) = (row for row in listed(client)["rules"] if row["rule"] == "eo-enable")
    assert (rule["fired"], rule["tried"], rule["paid_off"]) == (2, 1, 1)
    assert ids(client, only="paid_off") == ["eo-enable"]
    assert ids(client, sort="paid_off")[0] == "eo-enable"
    assert "eo-enable" in ids(client, only="fired", project=PROJECT)
    assert ids(client, only="fired", project="another") == []
    whole = client.get("/api/v1/rules/eo-enable").json()
    (measured,) = whole["measured_here"]
    assert (measured["n"], measured["runs"]) == (1, [tried["faster"]])
    assert measured["median_gain_pct"] == pytest.approx(25.2, abs=0.1)
    assert whole["last_fired"][0]["run_id"] == tried["run"]
    assert measured["before"] == "false"
    page = client.get("/playbook/eo-enable").text
    assert f'href="/runs/{tried["run"]}/next/eo-enable"' in page
    assert "20.1\u202f% faster" in page
    assert "1 of 1 try paid off" in page
    (lead,) = re.findall(r'class="answer"[^>]*>(.*?)</p>', client.get("/playbook").text, re.S)
    rules = listed(client)["rules"]
    counts = [sum(row[name] > 0 for row in rules) for name in ("paid_off", "tried", "fired")]
    assert re.findall(r"\d+", lead) == [str(count) for count in (counts[0], len(rules), *counts[1:])], (
        "rules, not tries"
    )
    swapped = client.get("/playbook?only=paid_off", headers={"HX-Request": "true"}).text
    assert re.search(r'class="answer"[^>]*hx-swap-oob[^>]*>1 of 1 matching rule', swapped), (
        "the lead follows the filter"
    )


def test_a_rule_that_a_run_shows_is_counted_or_says_what_else_it_reads(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with transaction(engine) as session:
        slow = make_advised(session, metadata_stated=PROFILED, ms=31_300.0)
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0)
        unprofiled = make_advised(session, ms=31_310.0)
    evaluate_next_runs(engine, settings)
    rules = {row["rule"]: row for row in listed(client)["rules"]}
    other: set[str] = set()
    for run in (slow, unprofiled):
        body = client.get(f"/api/v1/runs/{run}/suggestions").json()
        of_pair = body["pair"]["found"] if body["pair"] else []
        parts = (body["suggestions"], body["withheld"], body["warnings"], of_pair)
        shown = {row["rule"] for part in parts for row in part}
        other |= {rules[rule]["other_data"] for rule in shown if run not in last_runs(client, rule)}
    assert "faster" in other
    assert "" not in other


def last_runs(client: TestClient, rule: str) -> set[int]:
    return {row["run_id"] for row in client.get(f"/api/v1/rules/{rule}").json()["last_fired"]}


def test_an_ab_counts_for_every_rule_that_proposes_its_change(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with transaction(engine) as session:
        baseline = make_advised(session, metadata_stated=PROFILED | {"exposed_comm_frac": 0.02})
        faster = make_advised(session, fields={"ep_overlap": True}, ms=25_000.0, purpose="experiment")
    evaluate_next_runs(engine, settings)
    body = client.get("/api/v1/rules/eo-enable").json()
    assert (body["fired"], body["tried"], body["paid_off"]) == (0, 1, 1), "communication is not exposed"
    with transaction(engine) as session:
        plan(session, baseline, "eo-enable", "accepted", candidate=faster)
    (measured,) = client.get("/api/v1/rules/eo-enable").json()["measured_here"]
    assert measured["runs"] == [faster], "planned from the rule"


@pytest.mark.parametrize(("model", "tried"), [("Qwen3-VL-235B-A22B", 1), ("Qwen3-235B-A22B", 0)])
def test_an_ab_counts_only_for_rules_that_can_apply_to_its_runs(
    client: TestClient, engine: Engine, settings: Settings, model: str, tried: int
) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"model": model, "dispatcher": "allgather"}, ms=31_300.0)
        make_advised(session, fields={"model": model, "dispatcher": "alltoall"}, ms=25_000.0, purpose="experiment")
    evaluate_next_runs(engine, settings)
    rows = {row["rule"]: row["tried"] for row in listed(client)["rules"]}
    assert rows["disp-alltoall-first"] == 1
    assert (rows["vlm-simple-first"], client.get("/api/v1/rules/vlm-simple-first").json()["tried"]) == (tried, tried)


@pytest.mark.parametrize(("at", "tried"), [((32, 90.0), 1), ((16, 90.0), 0), ((16, 180.0), 1)])
def test_an_ab_counts_where_the_degree_or_the_free_memory_met_the_condition(
    client: TestClient, engine: Engine, settings: Settings, at: tuple[int, float], tried: int
) -> None:
    ep, peak_gib = at
    work: dict[str, Any] = {"gpu": "GB200", "ep": ep}
    with transaction(engine) as session:
        for dispatcher, ms, purpose in (("alltoall", 31_300.0, "ci"), ("hybridep", 25_000.0, "experiment")):
            fields = work | {"dispatcher": dispatcher}
            make_advised(session, fields=fields, ms=ms, purpose=purpose, peak_memory_gib=peak_gib)
    evaluate_next_runs(engine, settings)
    assert client.get("/api/v1/rules/disp-ab-nvl72").json()["tried"] == tried


@pytest.mark.parametrize(("fields", "tried"), [({"ep_overlap": True}, 1), ({"ep_overlap": False}, 0)])
def test_an_experiment_on_an_own_idea_counts_for_the_rule_of_its_change(
    client: TestClient, engine: Engine, settings: Settings, fields: dict[str, Any], tried: int
) -> None:
    result = {
        "finished": True, "evidence_level": "matched_ab", "attributed_to": "delay_wgrad", "from_value": "false",
        "to_value": "true", "verdict": {"step_time": {"delta_pct": -4.0, "ci_low_pct": -5.0, "ci_high_pct": -3.0}},
    }  # fmt: skip
    with transaction(engine) as session:
        baseline = make_advised(session, fields=fields | {"delay_wgrad": False}, ms=31_300.0)
        faster = make_advised(session, fields=fields | {"delay_wgrad": True}, ms=30_000.0, purpose="experiment")
    evaluate_next_runs(engine, settings)
    with transaction(engine) as session:
        plan(session, baseline, "", "accepted", candidate=faster, result=result | {"candidate": [str(faster)]})
    body = client.get("/api/v1/rules/eo-delay-wgrad").json()
    assert (body["fired"], body["tried"], body["paid_off"]) == (0, tried, tried)


@pytest.mark.parametrize(
    ("rule", "fields", "change"),
    [
        ("comp-fusions", {"router_fusion": True}, {"permute_fusion": (False, True)}),
        ("disp-ab-hopper", {}, {"dispatcher": ("alltoall", "deepep")}),
        ("disp-ab-hopper", {}, {"dispatcher": ("deepep", "hybridep")}),
    ],
)
def test_an_experiment_on_any_knob_of_a_rule_counts_as_a_try(
    client: TestClient, engine: Engine, rule: str, fields: dict[str, Any], change: dict[str, tuple[Any, Any]]
) -> None:
    ((name, (before, after)),) = change.items()
    values = {"from_value": str(before).lower(), "to_value": str(after).lower()}
    step_time = {"delta_pct": -4.0, "ci_low_pct": -5.0, "ci_high_pct": -3.0}
    result = {"finished": True, "evidence_level": "matched_ab", "attributed_to": name, **values}
    with transaction(engine) as session:
        baseline = make_advised(session, fields=fields | {name: before}, ms=31_300.0)
        candidate = make_advised(session, fields=fields | {name: after}, ms=30_000.0, purpose="experiment")
        result |= {"candidate": [str(candidate)], "verdict": {"step_time": step_time}}
        plan(session, baseline, "", "accepted", candidate=candidate, result=result)
    body = client.get(f"/api/v1/rules/{rule}").json()
    assert (body["tried"], body["paid_off"]) == (1, 1)
    (measured,) = body["measured_here"]
    assert measured["runs"] == [candidate]
    listed = client.get("/playbook?only=tried").text
    assert f"/playbook/{rule}#measured" in listed
    if not body["fired"]:
        assert "needs a profile" in listed[listed.index(f'href="/playbook/{rule}"') :]
        lead = re.sub(r"\s+", " ", client.get(f"/playbook/{rule}").text)
        assert "Needs a profile to fire; offered without one: 1 of 1 try paid off." in lead


def test_the_page_of_a_rule_lists_the_values_among_which_it_chooses_with_their_flags(client: TestClient) -> None:
    page = client.get("/playbook/disp-ab-hopper").text
    row = page[page.index('<tr class="choices">') :].partition("</tr>")[0]
    shown = re.findall(r"<code[^>]*>(.*?)</code>", row.partition("<details>")[0])
    assert shown == ["dispatcher", "hybridep", "deepep"]
    assert "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep" in row
    listed = client.get("/playbook/cg-scope-exclusive").text
    assert 'class="choices"' not in listed, "a text within the expression of a list is no choice"


@pytest.mark.parametrize("rule", ["eo-enable", "comp-fusions", "ov-tp"])
def test_the_reason_of_a_rule_without_a_run_names_no_facts(client: TestClient, rule: str) -> None:
    (reason,) = re.findall(r'<p class="measured">(.*?)</p>', client.get(f"/playbook/{rule}").text, re.DOTALL)
    assert "<code>" not in reason
    assert "{" not in reason


def test_an_ab_that_undoes_a_change_counts_for_the_rule_that_proposes_it(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"ep_overlap": True}, ms=25_000.0)
        slower = make_advised(session, metadata_stated=PROFILED, ms=31_300.0, purpose="experiment")
    evaluate_next_runs(engine, settings)
    body = client.get("/api/v1/rules/eo-enable").json()
    assert (body["tried"], body["paid_off"]) == (1, 1)
    assert body["measured_here"][0]["runs"] == [slower]


def test_an_ab_counts_for_one_of_two_opposite_rules_as_what_it_is_at_its_degree(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"permute_fusion": False}, ms=31_300.0)
        make_advised(session, fields={"permute_fusion": True}, ms=25_000.0, purpose="experiment")
    evaluate_next_runs(engine, settings)
    opposite = ("comp-fusions", "comp-permute-fallback")
    assert [client.get(f"/api/v1/rules/{rule}").json()["tried"] for rule in opposite] == [1, 0]
    row = client.get("/playbook?only=tried").text.partition('href="/playbook/comp-fusions')[2].partition("</tr>")[0]
    assert "H100, EP16" in row
    assert 'title="1 matched A/B"' in row


def test_an_ab_has_the_gain_over_all_runs_that_the_board_states(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for dispatcher, purpose, *times in (
            ("alltoall", "ci", 31_300.0, 32_100.0),
            ("hybridep", "experiment", 25_000.0, 25_700.0),
        ):
            fields: dict[str, Any] = {"gpu": "GB200", "ep": 32, "dispatcher": dispatcher}
            for ms in times:
                ran = {"activity": stated_activity(dispatcher), "evidence_level": "validated"}
                make_advised(session, fields=fields, ms=ms, purpose=purpose, **ran)
    (own,) = client.get("/api/v1/rules/disp-ab-nvl72").json()["measured_here"]
    (stack,) = client.get("/api/v1/leaderboards").json()["items"]
    (pair,) = stack["boards"][0]["comparisons"]
    assert own["n"] == 1, "reruns are one A/B"
    assert (pair["first"], pair["outcome"]) == ("hybridep", "first")
    figures = [own[name] for name in ("median_gain_pct", "low_pct", "high_pct")]
    assert figures == pytest.approx([pair[name] for name in ("gain_pct", "low_pct", "high_pct")])


def test_a_sweep_has_an_ab_at_each_degree_and_a_run_shows_that_at_its_own(client: TestClient, engine: Engine) -> None:
    sweep = {
        ("alltoall", 32): 31_300.0,
        ("alltoall", 64): 33_100.0,
        ("hybridep", 32): 30_900.0,
        ("hybridep", 64): 25_000.0,
    }
    runs: dict[tuple[str, int], list[int]] = {}
    with transaction(engine) as session:
        for (dispatcher, ep), ms in sweep.items():  # so the verdict on hybridep at EP64 compares it with EP32
            fields: dict[str, Any] = {"gpu": "GB200", "ep": ep, "dispatcher": dispatcher}
            ran = {"activity": stated_activity(dispatcher), "evidence_level": "validated", "purpose": "experiment"}
            runs[dispatcher, ep] = [make_advised(session, fields=fields, ms=ms * noise, **ran) for noise in (1, 1.004)]
    body = client.get("/api/v1/rules/disp-ab-nvl72").json()
    assert (body["tried"], body["paid_off"]) == (2, 1)
    assert body["measured_here"][0]["runs"] == [runs["hybridep", 64][-1], runs["hybridep", 32][-1]]
    advice = client.get(f"/api/v1/runs/{runs['alltoall', 64][0]}/suggestions").json()
    (hybridep,) = (item for item in advice["suggestions"] if item["rule"] == "disp-ab-nvl72")
    assert hybridep["evidence"][0]["measured_here"]["runs"] == [runs["hybridep", 64][-1]]


def test_a_step_of_the_bring_up_does_not_pay_off_by_speed(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    with transaction(engine) as session:
        make_advised(session, fields={"dispatcher": "allgather"}, ms=31_300.0)
        make_advised(session, fields={"dispatcher": "alltoall"}, ms=25_000.0, purpose="experiment")
    evaluate_next_runs(engine, settings)
    body = client.get("/api/v1/rules/disp-alltoall-first").json()
    assert (body["tried"], body["paid_off"]) == (1, 0)
    page = client.get("/playbook/disp-alltoall-first").text
    assert "Fires in no run; it makes a run work, not faster." in re.sub(r"\s+", " ", re.sub("<[^>]+>", "", page))


def test_a_rule_that_saves_memory_is_judged_by_peak_memory(client: TestClient, engine: Engine) -> None:
    result = {
        "finished": True, "evidence_level": "matched_ab", "attributed_to": "dispatcher", "from_value": "alltoall",
        "to_value": "hybridep", "metrics": {"peak_memory_gib": {"delta_pct": -4.0}},
        "verdict": {"step_time": {"delta_pct": -4.0, "ci_low_pct": -5.0, "ci_high_pct": -3.0}},
    }  # fmt: skip
    with transaction(engine) as session:
        baseline = make_advised(session, fields={"dispatcher": "alltoall"}, ms=31_300.0)
        candidate = make_advised(session, fields={"dispatcher": "hybridep"}, ms=30_000.0, purpose="experiment")
        plan(session, baseline, "", "done", candidate=candidate, result=result | {"candidate": [str(candidate)]})
    body = client.get("/api/v1/rules/disp-headroom").json()
    assert (body["tried"], body["paid_off"]) == (1, 0)
    page = client.get("/playbook/disp-headroom").text
    lead = page.partition('class="answer"')[2].partition("</p>")[0]
    assert re.search(r"peak memory changed by \u22124\.0.* in 1 A/B\.", lead)
    by_stack = page.partition('id="effect"')[2].partition("</table>")[0]
    assert re.search(r"\(3\.0 to 5\.0\)</span>,\s+peak memory \u22124\.0", by_stack), "the effect with its interval"
    assert re.search(r"than alltoall at EP\d+", by_stack), "a board may compare other degrees"
    listed = client.get("/playbook?q=disp-headroom").text
    assert "1 of 1 saved memory" in listed
    assert listed.count("saved memory") == 1


def test_gains_over_different_values_are_not_combined() -> None:
    now = datetime(2026, 9, 9, tzinfo=UTC)
    gains = tuple(
        MeasuredGain(pct, pct - 1, pct + 1, run, "stack", now, before, after, forwards=True)
        for run, (before, after, pct) in enumerate(
            [
                ("allgather", "hybridep", 23.0),
                ("deepep", "hybridep", -2.0),
                ("allgather", "hybridep", 25.0),
                ("allgather", "deepep", 5.0),
            ]
        )
    )
    results = RuleResults(gains=gains)
    assert [(row.before, row.after, row.result.n, row.result.median_gain_pct) for row in results.by_stack("rule")] == [
        (("allgather",), ("hybridep",), 2, 24.0),
        (("allgather",), ("deepep",), 1, 5.0),
        (("deepep",), ("hybridep",), 1, -2.0),
    ]
    assert {values: len(gains) for values, gains in results.contrasts.items()} == {
        ("allgather", "hybridep"): 2,
        ("deepep", "hybridep"): 1,
        ("allgather", "deepep"): 1,
    }


def test_abs_of_two_values_have_one_direction_whichever_was_the_candidate() -> None:
    now = datetime(2026, 9, 9, tzinfo=UTC)
    gains = [
        MeasuredGain(pct, pct - 1, pct + 1, run, "stack", now, before, after, forwards=True)
        for run, (before, after, pct) in enumerate(
            [("hybridep", "deepep", 25.0), ("deepep", "hybridep", -20.0), ("deepep", "hybridep", 0.5)]
        )
    ]
    results = RuleResults(gains=in_one_direction(gains))
    ((values, same),) = results.contrasts.items()
    assert values == ("deepep", "hybridep")
    assert [(round(gain.pct, 1), gain.forwards, gain.is_decided) for gain in same] == [
        (-20.0, False, True), (-20.0, True, True), (0.5, True, False),
    ]  # fmt: skip
    assert (round(same[0].low, 2), round(same[0].high, 2)) == (-20.63, -19.35)


def test_results_measured_here_override_published_ones(client: TestClient, engine: Engine, settings: Settings) -> None:
    with transaction(engine) as session:
        make_advised(session, metadata_stated=PROFILED)
        make_advised(session, fields={"ep_overlap": True}, ms=40_000.0, purpose="experiment")
    evaluate_next_runs(engine, settings)
    body = client.get("/api/v1/rules/eo-enable").json()
    assert (body["tried"], body["paid_off"]) == (1, 0)
    assert "27.8\u202f% slower (n = 1)" in body["overridden"]
    assert "27.8\u202f% slower (n = 1)" in client.get("/playbook/eo-enable").text


def test_an_experiment_and_its_own_ab_count_once(client: TestClient, engine: Engine, tried: dict[str, int]) -> None:
    with transaction(engine) as session:
        plan(session, tried["run"], "eo-enable", "accepted", candidate=tried["faster"])
        for state in ("accepted", "rejected", "planned"):
            plan(session, tried["run"], "host-gc", state)
    counts = {item["rule"]: (item["tried"], item["paid_off"]) for item in listed(client)["rules"]}
    assert counts["eo-enable"] == (1, 1)
    assert counts["host-gc"] == (2, 1)
    page = client.get("/playbook/host-gc").text
    assert '<a href="/experiments?rule=host-gc">3 experiments</a>' in page


def test_a_dispute_names_the_statement_that_counts_and_why(client: TestClient) -> None:
    (dispute,) = client.get("/api/v1/rules/prec-hopper").json()["disputes"]
    assert dispute["counts"] == "newer"
    assert dispute["because"]
    assert dispute["because"] in client.get("/playbook/prec-hopper").text


def test_thresholds_are_our_own_defaults_or_set_here(client: TestClient, app: FastAPI, settings: Settings) -> None:
    assert "set here by" not in client.get("/playbook/eo-enable").text
    app.state.settings = settings.model_copy(update={"t_comm": 0.2})
    page = client.get("/playbook/eo-enable").text
    assert "THREEWALLS_T_COMM" in page
    thresholds = client.get("/api/v1/rules").json()["thresholds"]
    assert {item["name"]: item["value"] for item in thresholds}["T_comm"] == 0.2


def test_a_teams_rules_are_shown_as_its_own_and_a_wrong_file_with_where_and_why(
    client: TestClient, app: FastAPI, settings: Settings, tmp_path: Path
) -> None:
    text = GOOD.replace("M-arg", "wiki")
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "sources.yaml").write_text(SOURCES.replace("M-arg", "wiki"))
    (folder / "ours.yaml").write_text(
        text.replace("scale-vpp-small", "ours-vpp-small").replace("title: A virtual", "title: <b>A</b> virtual")
        + text.replace("scale-vpp-small", "scale-sp-needs-tp")
        + "  overrides: Our trainer <i>pads</i>.\n"
    )
    (folder / "broken.yaml").write_text(text.replace("phase: scale", "phase: <script>"))
    app.state.settings = settings.model_copy(update={"rules_dir": str(folder)})
    page = client.get("/playbook").text
    assert "broken.yaml:2" in page
    assert listed(client)["total"] == len(built_in_rules().rules) + 1
    assert ids(client, origin="team") == ["ours-vpp-small", "scale-sp-needs-tp"]
    assert [item["line"] for item in listed(client)["left_out"]] == [2]
    assert "Our trainer &lt;i&gt;pads&lt;/i&gt;." in client.get("/playbook/scale-sp-needs-tp").text
    assert "<b>A</b>" not in client.get("/playbook?origin=team").text + client.get("/playbook/ours-vpp-small").text


def test_a_rule_page_fills_in_its_example_instead_of_names_of_facts(client: TestClient) -> None:
    page = client.get("/playbook/published-faster").text
    assert "record_" not in re.sub(r"<(details|table).*?</\1>|<[^>]*>", "", page, flags=re.DOTALL)
    assert "For example: Qwen3-30B-A3B on as many of these GPUs: 22" in page
