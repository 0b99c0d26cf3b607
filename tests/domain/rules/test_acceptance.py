"""The decision examples of the founding papers: firing blockers and warnings, derived values, the first suggestion.

Each case takes the path of an upload: metadata, contract, facts, rules. The environment in a case is complete.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest

from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, STACK_FIELDS, VARIABLES
from app.domain.contract.resolve import resolve
from app.domain.documents.metadata import read_metadata
from app.domain.logs import parse_text
from app.domain.rules.engine import Evaluation, evaluate
from app.domain.rules.evidence import OwnResult
from app.domain.rules.facts import FACTS
from app.domain.rules.load import built_in_rules
from app.domain.rules.run_facts import RunReading, facts_of, facts_of_pair
from app.domain.run import Stated
from app.domain.verdict.comparability import differing
from tests.shared_papers import SHARED, shared_folder

RENAMED = {"sku": "gpu", "data": "data_mode", "rank": "profile_rank"}
"""Names of the papers that the contract spells otherwise."""
OFF = {"recompute_granularity": "none", "opt_offload": False, "act_offload": False, "fine_offload": []}
"""What saves memory is off in a run that does not list it."""
CORRECTED = {"F05-dsv3-128k-h100": {"scale-dp-floor"}}
"""Warnings that the papers expect and that are wrong: gradients are reduced over DP x CP, which is 32 there."""
CASES = [
    *("F01-first-bringup", "F02-import-failure", "F03-isolate-ep-overlap", "F04-overlap-misconfigured"),
    *("F05-dsv3-128k-h100", "F06-235b-128k-gb200", "F07-host-bound-nvl72", "F08-graph-recompute-conflict"),
    *("F09-min-gpus", "F10-fragmentation-oom", "F11-offload-choice", "F12-moonlight-recompute"),
    *("F13-unfair-compare", "F14-hcp", "F15-nsys-claim"),
]


@lru_cache(maxsize=1)
def cases() -> dict[str, Any]:
    shared_folder("corpus")
    paper = (SHARED / "KNOWLEDGE.md").read_text()
    section = paper[paper.index("# F. Decision examples") :]
    match = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert match is not None
    return {case["id"]: case for case in json.loads(match[1])}


def contract_of(run: Mapping[str, Any]) -> tuple[Mapping[str, Stated], tuple[str, ...], dict[str, object]]:
    """Return the contract of a case, its unknown fields, and stated facts that are not contract fields."""
    stated = {RENAMED.get(name, name): value for name, value in run.items()}
    stated = OFF | stated
    stated |= {"env": dict.fromkeys(VARIABLES) | run["env"]} if "env" in run else {}
    if stated.get("dispatcher") == "unset":
        stated |= {"dispatcher": None, "framework": "megatron_lm"}
    meta = {name: value for name, value in stated.items() if name in FIELDS or name == "env"}
    contract = resolve(parse_text(""), read_metadata(meta))
    beside = {name: value for name, value in stated.items() if name in FACTS and name not in FIELDS}
    return contract.fields, contract.unknown, beside


def facts_of_case(case: Mapping[str, Any]) -> dict[str, object]:
    measured = dict(case.get("facts", {}))
    if "headroom_frac" in measured:
        measured.setdefault("oom", False)
    window = measured.get("window")
    if isinstance(window, str):
        first, last = map(int, window.split("-"))
        measured |= {"window": last - first + 1, "window_first": first, "window_last": last}
    if "runs" in case:
        return facts_of_runs(case["runs"]) | measured
    fields, unknown, beside = contract_of(case.get("run", {}))
    facts = facts_of(RunReading(fields, unknown=unknown)) | beside
    if "compare_with" in case:
        own = {name: value for name, value in case["run"].items() if name not in ("dispatcher_type", "flex_backend")}
        facts |= facts_of_pair(differing_fields(fields, contract_of({**own, **case["compare_with"]})[0]))
    renamed: dict[str, object] = {RENAMED.get(str(name), str(name)): value for name, value in measured.items()}
    return facts | renamed


def differing_fields(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> list[str]:
    """Fields of the keys that both runs state, differently."""
    return [
        difference.field for difference in differing((*STACK_FIELDS, *CONFIG_FIELDS), a, b) if difference.is_certain
    ]


def facts_of_runs(runs: list[dict[str, Any]]) -> dict[str, object]:
    (a, _, _), (b, unknown, _) = (contract_of({k: v for k, v in run.items() if k != "id"}) for run in runs)
    return facts_of(RunReading(b, unknown=unknown)) | facts_of_pair(differing_fields(a, b))


def evaluate_case(name: str) -> tuple[Evaluation, Mapping[str, Any]]:
    case = cases()[name]
    return evaluate(facts_of_case(case), built_in_rules()), case["expect"]


@pytest.mark.parametrize("name", CASES)
def test_blockers_and_warnings_fire(name: str) -> None:
    evaluation, expected = evaluate_case(name)

    assert set(expected["blockers"]) <= {rule.rule.id for rule in evaluation.blockers}
    warnings, wrong = {warning.rule.id for warning in evaluation.warnings}, CORRECTED.get(name, set())
    assert set(expected.get("warnings", [])) - wrong <= warnings
    assert not wrong & warnings
    if not expected["blockers"]:
        assert [rule.rule.id for rule in evaluation.blockers] == []


@pytest.mark.parametrize("name", CASES)
def test_suggestions_stand_in_order(name: str) -> None:
    evaluation, expected = evaluate_case(name)
    ranked = expected.get("ranked", [])

    order = [suggestion.rule.id for suggestion in evaluation.suggestions]
    assert [rule for rule in order if rule in ranked] == ranked


@pytest.mark.parametrize("name", CASES)
def test_the_first_thing_to_try_is_one_of_the_expected(name: str) -> None:
    evaluation, expected = evaluate_case(name)
    tried = [
        suggestion.rule
        for suggestion in evaluation.suggestions
        if suggestion.rule.kind == "candidate" and suggestion.rule.phase != "profile"
    ]
    wanted = [rule for rule in expected.get("ranked", []) if built_in_rules().rules[rule] in tried]

    assert [rule.id for rule in tried][:1] == wanted[:1]


EVEN_SPLIT = dict.fromkeys(("pp_layout", "first_stage_layers", "last_stage_layers", "hybrid_layer_pattern"))


@pytest.mark.parametrize(
    ("name", "changed", "blocker"),
    [
        ("F09-min-gpus", {"gpus": 24}, "scale-world-identity"),
        ("F09-min-gpus", {"gpus": 8}, "scale-gpus-below-min"),
        ("F05-dsv3-128k-h100", {"ep_overlap": True}, "eo-no-moe-recompute"),
        ("F06-235b-128k-gb200", {"pp_account": {}, **EVEN_SPLIT}, "scale-layers-pp"),
        ("F10-fragmentation-oom", {"act_offload": True}, "fit-act-offload-pp"),
    ],
)
def test_what_the_notes_of_the_cases_say_would_block(name: str, changed: dict[str, object], blocker: str) -> None:
    case = cases()[name]

    evaluation = evaluate(facts_of_case({**case, "run": {**case["run"], **changed}}), built_in_rules())

    assert blocker in {rule.rule.id for rule in evaluation.blockers}


def test_offloading_the_optimizer_is_warned_of_once_it_is_on() -> None:
    case = cases()["F11-offload-choice"]

    evaluation = evaluate(facts_of_case({**case, "run": {**case["run"], "opt_offload": True}}), built_in_rules())

    assert "ov-opt-offload-cost" in {warning.rule.id for warning in evaluation.warnings}


@pytest.mark.parametrize("name", CASES)
def test_what_must_not_appear_does_not(name: str) -> None:
    evaluation, expected = evaluate_case(name)

    shown = {suggestion.rule.id for suggestion in (*evaluation.blockers, *evaluation.warnings, *evaluation.suggestions)}
    assert shown & set(expected.get("absent", [])) == set()


@pytest.mark.parametrize("name", CASES)
def test_derived_facts(name: str) -> None:
    evaluation, expected = evaluate_case(name)

    for fact, value in expected.get("derived", {}).items():
        assert evaluation.facts[{"mfu_fp8": "mfu"}.get(fact, fact)] == pytest.approx(value, rel=0.005)


def test_the_cases_are_all_here() -> None:
    assert sorted(cases()) == sorted(CASES)


def test_a_measured_gain_precedes_every_prior_if_all_facts_of_a_run_are_known() -> None:
    ran = {"nodes": 2, "gpus_per_node": 8, "tp": 1, "cp": 1, "etp": 1, "seq_len": 4096, "mbs": 1, "gpus": 16}
    measured = {"exposed_comm_frac": 0.3, "fits": True, "steps_done": 50, "window": 10, "step_s": 36.0}
    facts = facts_of_case(cases()["F03-isolate-ep-overlap"]) | ran | measured
    gain = OwnResult("eo-enable", 1, 18.7, 17.9, 19.5, ("stack",), "2026-11-01", {"ep": 16, "pp": 1})

    def candidates(*own: OwnResult) -> list[str]:
        suggestions = evaluate(facts, built_in_rules(), own=own).suggestions
        return [
            suggestion.rule.id
            for suggestion in suggestions
            if suggestion.rule.kind == "candidate" and not suggestion.rule.hints.bring_up
        ]

    assert candidates(gain)[0] == "eo-enable"
    assert {"scale-hot-local", "scale-pp-multinode", "profile-comm"} <= set(candidates(gain)[1:])
    assert candidates()[0] == "eo-enable"  # by the published matched A/B on this very model and GPU
