"""Results of the rules: three-valued evaluation, order, evidence, and the phases of a run."""

import re
from dataclasses import replace

import pytest

from app.domain.numbers import THIN
from app.domain.rules.derive import derive
from app.domain.rules.engine import Taken, can_apply, evaluate, is_decided_by_contract, was_met
from app.domain.rules.evidence import MEASURED_HERE, OwnResult, Statement, changed_since
from app.domain.rules.expression import FactContext, Unknown, compile_expression, false_part
from app.domain.rules.load import built_in_rules
from app.domain.rules.phases import TuningPhases, tuning_phases
from tests.cases import every_case
from tests.domain.rules.builders import book, rule

# --- Three-valued evaluation, order, deferred suggestions, missing facts, and which evidence counts.


def test_an_unknown_fact_makes_a_rule_ask_only_where_it_matters() -> None:
    rules = book(
        rule("a-fires", "tp > 1 || cp > 1"),
        rule("b-silent", "ep > 1 && tp > 4"),
        rule("c-asks", "tp > 1 && ep > 1"),
        rule("d-unset", "vpp == null"),
    )

    evaluation = evaluate({"tp": 2, "profiled": True}, rules)

    assert [suggestion.rule.id for suggestion in evaluation.suggestions] == ["a-fires"]
    assert [silent.id for silent in evaluation.silent] == ["b-silent"]
    assert {question.rule.id: question.missing for question in evaluation.asks} == {
        "c-asks": ("ep",),
        "d-unset": ("vpp",),
    }
    assert [silent.id for silent in evaluate({"tp": 2, "vpp": 4}, rules).silent] == ["b-silent", "d-unset"]


@pytest.mark.parametrize(
    ("condition", "applies"),
    [
        ("vlm && ep > 1", False),
        ("hopper && ep > 1", True),
        ("nvl72 || pp > 1", False),
        ("cp > 1", True),  # unknown
        ("ep > 1 && exposed_comm_frac > 0.5", True),  # measured
        ("ep > 1 && headroom_frac > 0.9 && steady_steps > 99", True),  # follow from measurements
        ("tp > 4 && sp && !tp_overlap", True),  # before the change, and following from that
        ("tp > 8", False),
        ("tp == 2", False),  # after the change
        ("dp == 1", True),  # follows from it
        ("tp > 4 && ep == 1", False),
    ],
)
def test_a_rule_can_apply_unless_the_contract_before_the_change_forbids_it(condition: str, applies: bool) -> None:
    run = {"model": "Qwen3-235B-A22B", "gpu": "H100", "ep": 8, "tp": 2, "pp": 1, "gpus": 16, "dp": 8, "sp": False}
    facts = {**run, "exposed_comm_frac": 0.1, "mem_alloc_peak_gb": 79.0, "window": 9}
    assert can_apply(book(rule("a", condition)).rules["a"], facts, "tp", "8") is applies


def test_out_of_memory_a_model_with_latent_attention_recomputes_its_up_projection_first_and_offloads_last() -> None:
    out = {"gpu": "H100", "oom": True, "fits": False, "opt_offload": False, "act_offload": False, "fine_offload": []}

    def order(model: str, recomputed: list[str], **facts: object) -> list[str]:
        how = {"recompute_granularity": "selective" if recomputed else "none", "recompute_modules": recomputed}
        suggestions = evaluate({**out, **how, "model": model, **facts}, built_in_rules()).suggestions
        return [item.rule.id for item in suggestions if item.rule.phase == "fit"]

    first = ["fit-rc-mla-up", "fit-rc-moe-act"]
    assert order("DeepSeek-V3", [], pp=4) == [*first, "fit-fine-offload", "fit-more-tp-last"]
    assert order("DeepSeek-V2-Lite", [], pp=1) == [*first, "fit-act-offload", "fit-more-tp-last"]
    assert order("DeepSeek-V3", ["mla_up_proj"], pp=1) == [
        "fit-rc-moe-act", "fit-rc-layernorm", "fit-rc-mlp", "fit-opt-offload", "fit-more-tp-last",
    ]  # fmt: skip
    assert order("Qwen3-30B-A3B", [], pp=1)[0] == "fit-selective-first"  # no latent attention


@pytest.mark.parametrize(
    ("model", "modules"), [("DeepSeek-V3", ("mla_up_proj",)), ("Qwen3-30B-A3B", ("moe_act",)), ("mine", ("moe_act",))]
)
def test_modules_of_the_model_replace_full_recomputation(model: str, modules: tuple[str, ...]) -> None:
    whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_layers": 1, "ep": 8}
    selective = evaluate({**whole, "model": model, "oom": False}, built_in_rules()).find("fit-selective-first")
    assert selective is not None
    assert selective.set["recompute_modules"] == modules


def test_a_record_comes_after_single_knobs_at_the_measured_wall() -> None:
    facts = (
        {"gpu": "H100", "gpus": 16, "model": "Qwen3-30B-A3B", "ep": 16, "tp": 1, "dispatcher": "alltoall"}
        | {"exposed_comm_frac": 0.35, "ep_overlap": False, "installed_flex_backends": ["deepep"], "oom": False}
        | {
            "record_pct": 33.0,
            "record_model": "GPT",
            "record_title": "NVIDIA",
            "record_changes": "ep 16 to 8",
            "record_take": "Set ep to 8.",
        }
        | {"record_doubt": "", "steps_done": 60, "window": 40, "fits": True}
    )
    record = Statement(level=4, text="49 % faster", setting="", source="D-sum", date="2026-08", gain=(0.0, 49.0))
    taken = {"published-faster": Taken({"ep": 8}, record)}
    offered = [item.rule.id for item in evaluate(facts, built_in_rules(), taken=taken).suggestions]
    knobs = ["disp-ab-hopper", "eo-enable"]
    assert [rule for rule in offered if rule in (*knobs, "published-faster")] == [*knobs, "published-faster"]


@pytest.mark.parametrize(("gpus", "cp"), [(16, 16), (64, 32)])
def test_a_long_sequence_that_ran_out_of_memory_is_split_first(gpus: int, cp: int) -> None:
    job = {"gpu": "H100", "gpus": gpus, "tp": 1, "pp": 1, "cp": 1, "seq_len": 131_072, "oom": True, "fits": False}
    first = evaluate({**job, "model": "Qwen3-30B-A3B", "ep": 8}, built_in_rules()).suggestions[0]
    assert (first.rule.id, first.set["cp"], first.place.tier) == ("scale-cp-enable", cp, "health")


def test_missing_facts_are_listed_with_ways_to_supply_them() -> None:
    rules = book(
        rule("a-shape", "dp == 1"), rule("b-comm", "exposed_comm_frac > 0.1"), rule("c-env", 'env.USE_MNNVL == "1"')
    )

    evaluation = evaluate({"gpus": 16, "tp": 2, "pp": 1}, rules)

    missing = {gap.fact.name: gap for gap in evaluation.missing}
    assert set(missing) == {"cp", "exposed_comm_frac", "env.USE_MNNVL"}
    assert missing["cp"].alone == ("a-shape",)
    assert "metadata" in missing["cp"].fact.supply
    assert "profile" in missing["exposed_comm_frac"].fact.supply


def test_a_fact_that_unlocks_more_by_itself_comes_first() -> None:
    rules = book(rule("a-one", "tp > 1 && cp > 1"), rule("b-two", "ep > 1"), rule("c-three", "ep > 2"))

    evaluation = evaluate({}, rules)

    assert [(gap.fact.name, gap.alone, gap.together) for gap in evaluation.missing] == [
        ("ep", ("b-two", "c-three"), ()),
        ("cp", (), ("a-one",)),
        ("tp", (), ("a-one",)),
    ]


def test_blockers_hold_retuning_back_and_so_does_a_missing_profile() -> None:
    rules = book(
        rule("a-tune", "tp > 1"),
        rule("b-bring-up", "tp > 1", "change: {text: do it}\n  bring_up: true"),
        rule("c-blocked", "cp > 1", kind="blocker", phase="scale"),
        rule("d-layout", "cp > 1", "change: {text: do it, set: {pp: 2}}", phase="scale"),
    )

    no_profile = evaluate({"tp": 2, "cp": 1}, rules)
    blocked = evaluate({"tp": 2, "cp": 2, "gpu_idle_frac": 0.2}, rules)
    free = evaluate({"tp": 2, "cp": 1, "gpu_idle_frac": 0.2}, rules)

    assert [(suggestion.rule.id, suggestion.withheld[:13]) for suggestion in no_profile.withheld] == [
        ("a-tune", "Profile first")
    ]
    assert [suggestion.rule.id for suggestion in no_profile.suggestions] == ["b-bring-up"]
    assert [blocker.rule.id for blocker in blocked.blockers] == ["c-blocked"]
    assert {suggestion.rule.id: suggestion.withheld for suggestion in blocked.withheld} == dict.fromkeys(
        ("a-tune", "d-layout"), "Resolve the blockers first."
    )
    assert [suggestion.rule.id for suggestion in free.suggestions] == ["b-bring-up", "a-tune"]


def test_a_change_that_would_bring_a_blocker_is_deferred_and_names_it() -> None:
    rules = book(
        rule("a-overlap", "true", "change: {text: do it, set: {ep_overlap: true}}"),
        rule("b-register", "true", 'change: {text: do it, env: {NCCL_GRAPH_REGISTER: "1"}}'),
        rule("c-recompute", 'ep_overlap && "moe" in recompute_modules', kind="blocker", phase="scale"),
        rule("d-variable", 'env.NCCL_GRAPH_REGISTER == "1"', kind="blocker", phase="scale"),
    )
    facts = {"profiled": True, "ep_overlap": False, "env": {"NCCL_GRAPH_REGISTER": "0"}}

    def withheld(modules: list[str]) -> dict[str, str]:
        evaluation = evaluate({**facts, "recompute_modules": modules}, rules)
        return {suggestion.rule.id: suggestion.withheld.rpartition(": ")[2] for suggestion in evaluation.withheld}

    assert withheld(["moe"]) == {"a-overlap": "c-recompute.", "b-register": "d-variable."}
    assert withheld(["moe_act"]) == {"b-register": "d-variable."}


def test_a_strong_gain_that_a_blocker_prevents_is_named_among_the_deferred() -> None:
    ran = {"ep_overlap": False, "fits": True, "loss_finite": True, "steps_done": 50, "window": 20}
    job = {
        "model": "Qwen3-30B-A3B",
        "gpu": "H100",
        "gpus": 16,
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 16,
        "precision": "bf16",
    }
    facts = job | ran | {"dispatcher": "alltoall"}
    offered = evaluate({**facts, "recompute_modules": ["moe_act"]}, built_in_rules())
    prevented = evaluate({**facts, "recompute_modules": ["moe"]}, built_in_rules())
    assert "eo-enable" in {suggestion.rule.id for suggestion in offered.suggestions}
    brings = {suggestion.rule.id: suggestion.brings for suggestion in prevented.withheld}
    assert brings["eo-enable"] == "eo-no-moe-recompute"


def test_a_blocker_in_a_run_that_ran_is_in_doubt() -> None:
    rules = book(rule("c-blocked", "cp > 1", kind="blocker", phase="scale"))

    assert evaluate({"cp": 2, "steps_done": 0}, rules).blockers[0].doubt == ""
    assert evaluate({"cp": 2, "steps_done": 9}, rules).blockers[0].doubt.startswith("The run completed 9 iterations")


def test_a_blocker_that_a_run_completed_despite_is_a_warning_and_defers_nothing() -> None:
    rules = book(
        rule("a-tune", "tp > 1"),
        rule("c-blocked", "cp > 1", kind="blocker", phase="scale"),
        rule("d-lost", "import_error != null", kind="blocker", phase="scale"),
    )
    ran = {"tp": 2, "cp": 2, "gpu_idle_frac": 0.2, "fits": True, "oom": False, "steps_done": 50, "window": 40}

    evaluation = evaluate({**ran, "import_error": None}, rules)
    (warning,) = evaluation.warnings
    assert (evaluation.blockers, warning.kind, warning.rule.kind) == ((), "warning", "blocker")
    assert [part in warning.doubt for part in ("50 iterations", "40 of them")] == [True, True]
    assert [suggestion.rule.id for suggestion in evaluation.suggestions] == ["a-tune"]
    late = evaluate({**ran, "import_error": None, "oom": True, "fits": False}, rules)
    assert [warning.rule.id for warning in late.warnings] == ["c-blocked"]  # the launch was accepted all the same
    failing: tuple[dict[str, object], ...] = ({"steps_done": 2, "oom": True, "fits": False}, {"loss_finite": False})
    for wrong in failing:
        assert [blocker.rule.id for blocker in evaluate({**ran, "import_error": None, **wrong}, rules).blockers] == [
            "c-blocked"
        ]
    lost = evaluate({**ran, "import_error": "deep_ep"}, rules)
    assert [blocker.rule.id for blocker in lost.blockers] == ["d-lost"]


def test_after_a_crash_neither_sizes_nor_a_profile_are_suggested() -> None:
    layout = {"gpus": 8, "tp": 1, "pp": 2, "cp": 1, "ep": 4, "etp": 1, "steps_done": 0, "unknown_fields": 2}
    tuning = {"fit-estimate", "scale-min-gpus", "profile-required"}
    crash = {"failure": "process_failed", "failure_text": "A process failed."}
    for failure, suggested in (({"failure": ""}, tuning), (crash, set())):
        evaluation = evaluate({**layout, **failure}, built_in_rules())
        assert {item.rule.id for item in evaluation.suggestions} & tuning == suggested
    assert evaluation.suggestions[0].rule.id == "fit-crash"


@pytest.mark.parametrize(
    ("facts", "named"),
    [({"model": "Qwen3-VL-235B-A22B"}, [True, False]), ({"model": "Qwen3-30B-A3B", "seq_len": 65_536}, [False, True])],
)
def test_full_sharding_is_reasoned_with_the_kind_of_the_model_at_hand(
    facts: dict[str, object], named: list[bool]
) -> None:
    evaluation = evaluate({**facts, "fsdp": "none", "oom": True}, built_in_rules())
    (why,) = (item.why for item in evaluation.suggestions if item.rule.id == "fit-fsdp")
    assert [words in why for words in ("vision-language", "65,536 tokens")] == named


def test_a_profile_waits_for_a_blocker_a_rerun_and_a_faster_run_and_is_then_not_offered() -> None:
    ran = {"steps_done": 50, "window": 40, "fits": True, "gpu": "H100"}
    faster = {
        "faster_pct": 9.0, "faster_run": 7, "faster_changes": "ep 8 in place of 4", "faster_take": "Set ep to 8.",
        "faster_doubt": "", "faster_also": "", "faster_in_container": "", "faster_same_code": False,
    }  # fmt: skip
    asking = {"profile-required", "profile-platform-prior"}
    missing = {"dispatcher_type": "flex", "flex_backend": "deepep", "import_error": "deep_ep", "ep": 16}
    for stronger in ({}, {"rerun_why": "1 more run would decide."}, faster, missing):
        evaluation = evaluate({**ran, **stronger}, built_in_rules())
        offered, fired = ({item.rule.id for item in items} for items in (evaluation.offered, evaluation.fired))
        assert asking <= fired
        assert offered & asking == (set() if stronger else asking)


def test_only_actionable_facts_are_worth_requesting() -> None:
    rules = book(
        rule("a-tune", 'graph_impl == "none"'),
        rule("b-tune", "exposed_comm_frac > 0.2"),
        rule("c-blocked", "cp > 1", kind="blocker", phase="scale"),
        rule("d-gate", "nan == 0", kind="gate", phase="validate"),
    )

    def decides(**facts: object) -> dict[str, tuple[str, ...]]:
        return {gap.fact.name: gap.decides for gap in evaluate(facts, rules).missing}

    ran: dict[str, object] = {"fits": True, "oom": False, "steps_done": 50}
    assert decides() == {"exposed_comm_frac": ("b-tune",), "cp": ("c-blocked",), "nan": ("d-gate",), "graph_impl": ()}
    assert decides(**ran)["cp"] == ()
    assert decides(gpu_idle_frac=0.02)["graph_impl"] == ("a-tune",)


def test_candidates_for_the_measured_wall_come_before_gates_before_sizing_before_others() -> None:
    rules = book(
        rule("a-other", "true", wall="communication"),
        rule("b-host", "true", wall="host"),
        rule("c-size", "true", kind="sizing", phase="fit"),
        rule("d-gate", "true", kind="gate", phase="fit"),
        rule("e-first", "true", kind="gate", phase="contract"),
        rule("f-scale", "true", phase="scale", wall="memory"),
        rule("g-claim", "true", phase="validate", kind="gate"),
    )

    evaluation = evaluate({"gpu_idle_frac": 0.3, "exposed_comm_frac": 0.05}, rules)

    assert [suggestion.rule.id for suggestion in evaluation.suggestions] == [
        *("b-host", "e-first", "d-gate", "c-size", "g-claim", "f-scale", "a-other")
    ]
    assert (evaluation.wall.wall, evaluation.wall.certainty) == ("host", "measured")


def test_an_order_may_depend_on_facts() -> None:
    rules = book(
        rule("a-overlap", "true", "change: {text: do it}\n  order: 30"),
        rule("b-dispatcher", "true", 'change: {text: do it}\n  order: "= size(installed_flex_backends) > 0 ? 20 : 40"'),
    )

    def first(backends: list[str]) -> str:
        facts = {"exposed_comm_frac": 0.3, "installed_flex_backends": backends}
        return evaluate(facts, rules).suggestions[0].rule.id

    assert first(["deepep"]) == "b-dispatcher"
    assert first([]) == "a-overlap"


@pytest.mark.parametrize(("stated", "changed"), [((False, False), "permute_fusion"), ((True, False), "router_fusion")])
def test_without_a_profile_one_fusion_is_offered_at_a_time(stated: tuple[bool, bool], changed: str) -> None:
    facts = {"ep": 16, "moe": True, "ran": True, "permute_fusion": stated[0], "router_fusion": stated[1]}
    offered = {item.rule.id: item for item in evaluate(facts, built_in_rules()).conditional}
    fused = {name: value for name, value in offered["comp-fusions"].set.items() if facts[name] != value}
    assert fused == {changed: True}


def test_a_change_is_computed_and_names_unknown_values() -> None:
    change = 'change: {text: do it, set: {cp: "= cp0", ep: "= gpus", te_rng: true}, megatron_lm: ["--x {tp}"]}'
    requirements = "needs: [{text: n, when: tp == 2}]\n  conflicts: [{text: c, when: pp > 1}, {text: look}]"
    evaluation = evaluate(
        {"seq_len": 32768, "tp": 2, "profiled": True}, book(rule("a-cp", "true", f"{change}\n  {requirements}"))
    )

    suggestion = evaluation.suggestions[0]
    assert (dict(suggestion.set), suggestion.open, suggestion.megatron_lm) == (
        {"cp": 8, "te_rng": True},
        ("ep",),
        ("--x 2",),
    )
    assert [(two.text, two.state, two.missing) for two in (*suggestion.needs, *suggestion.conflicts)] == [
        ("n", "met", ()),
        ("c", "unknown", ("pp",)),
        ("look", "unknown", ()),
    ]


def test_a_rule_with_unsuitable_facts_is_reported_and_stops_nothing() -> None:
    evaluation = evaluate(
        {"vpp": None, "tp": 2, "profiled": True}, book(rule("a-broken", "vpp > 1"), rule("b-good", "tp > 1"))
    )

    assert [(broken.id, "cannot be evaluated" in why) for broken, why in evaluation.broken] == [("a-broken", True)]
    assert [suggestion.rule.id for suggestion in evaluation.suggestions] == ["b-good"]


def test_a_rule_that_joins_another_is_a_further_reason_of_it() -> None:
    rules = book(
        rule("a-joins", "true", "change: {text: look}\n  order: 1\n  joins: [b-main]"), rule("b-main", "tp > 1")
    )
    for tp, expected in ((2, {"b-main": ["a-joins"]}), (1, {"a-joins": []})):
        evaluation = evaluate({"tp": tp, "profiled": True}, rules)
        assert {item.rule.id: [other.rule.id for other in item.also] for item in evaluation.suggestions} == expected


def test_a_change_that_contains_another_is_one_suggestion_with_two_reasons() -> None:
    rules = book(
        *(
            rule(name, "true", f"change: {{text: do it, set: {{{change}}}}}\n  order: {order}")
            for order, (name, change) in enumerate(
                (
                    ("a-graphs", "graph_impl: local, graph_modules: [moe_router, attn]"),
                    ("b-graphs", "graph_impl: local, graph_modules: [attn, moe_router], te_rng: true"),
                    ("c-rng", "te_rng: true"),
                    ("d-inside", "ep: 8"),
                    ("e-stages", "ep: 8, pp: 2"),
                )
            )
        )
    )
    evaluation = evaluate({"profiled": True, "ep": 16, "pp": 1, "te_rng": False, "graph_impl": "none"}, rules)
    assert {item.rule.id: [other.rule.id for other in item.also] for item in evaluation.suggestions} == {
        "a-graphs": ["b-graphs"],
        "c-rng": [],  # no part of the change that is suggested
        "d-inside": [],
        "e-stages": [],  # another layout
    }
    assert evaluation.find("b-graphs") is not None


PUBLISHED = (
    "change: {text: do it}\n  effect: {text: faster, evidence: [{text: 41 to 31 s, setting: 16 H100, "
    "level: matched_ab, source: M-arg, gain: 32, at: {sku: H100}}]}"
)


def own(name: str, gain: float, **more: object) -> OwnResult:
    return OwnResult(name, 4, gain, gain - 0.5, gain + 0.5, ("stack",), "2026-11-01", **more)


def test_results_measured_here_outrank_published_results_and_hide_none() -> None:
    rules = book(rule("a-published", "true", PUBLISHED), rule("b-plain", "true"), rule("c-gain", "true"))
    facts = {"gpu": "H100", "profiled": True}

    evaluation = evaluate(facts, rules, own=[own("a-published", -2.0), own("c-gain", 5.0)])

    assert [suggestion.rule.id for suggestion in evaluation.suggestions] == ["c-gain", "b-plain", "a-published"]
    lost = evaluation.suggestions[-1].evidence
    assert [statement.level for statement in lost.statements] == [2, 3]
    assert [part in lost.overridden for part in ("2.0\u202f% slower", "n = 4", "41 to 31 s")] == [True] * 3


def test_a_change_that_lost_in_an_own_ab_is_not_ranked_as_measured_gain() -> None:
    rules = book(
        rule("a-faster", "true", "change: {text: do it}\n  urgency: measured"),
        rule("b-plain", "true", "change: {text: look}\n  general: true"),
    )
    facts = {"gpu": "H100", "profiled": True}

    assert evaluate(facts, rules).suggestions[0].place.tier == "measured"
    unclear = replace(own("a-faster", 5.6), low_pct=-4.2, high_pct=16.4)
    for result in (own("a-faster", -4.0), unclear):
        ranked = evaluate(facts, rules, own=[result]).suggestions
        assert [(item.rule.id, item.place.tier) for item in ranked] == [("b-plain", "other"), ("a-faster", "slower")]


def test_a_range_that_includes_zero_has_low_confidence() -> None:
    results = {
        "a-sure": OwnResult("a-sure", 3, 4.8, 2.4, 7.1, ("stack",), "2026-11-01"),
        "b-open": OwnResult("b-open", 3, 4.8, -10.4, 14.8, ("stack",), "2026-11-01"),
    }
    evaluation = evaluate({"profiled": True}, book(*(rule(name, "true") for name in results)), own=[*results.values()])
    confidence = {item.rule.id: item.place.confidence for item in evaluation.suggestions}
    assert confidence == {"a-sure": "high", "b-open": "low"}


def restored(pct: float) -> Taken:
    """What undoing a slowdown restores, by the verdict on the run."""
    return Taken(
        {}, Statement(4, "undo", "run #1", MEASURED_HERE, "", gain=(pct - 1, pct + 1), pct=pct, name="undoes it")
    )


REGRESSION = rule("a-back", "true", "change: {text: undo}\n  urgency: regression")


def test_the_comparison_of_a_run_with_its_baseline_outranks_other_stacks() -> None:
    elsewhere = own("a-back", -3.2, same_contract=False)
    (first,) = evaluate(
        {"gpu": "H100"}, book(REGRESSION), own=[elsewhere], taken={"a-back": restored(12.6)}
    ).suggestions

    assert first.place.expected is not None
    assert (first.place.expected.pct, first.place.tier) == (12.6, "regression")
    assert [statement.is_of_run for statement in first.evidence.statements] == [True, False]


def test_a_regression_whose_undoing_is_expected_to_be_slower_does_not_come_first() -> None:
    lost = own("a-back", -3.2, same_contract=False)
    rules = book(REGRESSION, rule("b-plain", "true", "change: {text: look}\n  general: true"))

    first, last = evaluate({"gpu": "H100", "profiled": True}, rules, own=[lost]).suggestions

    assert [(item.rule.id, item.place.tier) for item in (first, last)] == [("b-plain", "other"), ("a-back", "slower")]


def test_results_of_another_kind_of_gpu_promise_nothing() -> None:
    rules = book(
        rule("a-own", "exposed_comm_frac > 0.1", "phase: retune\n  change: {text: do it, set: {ep_overlap: true}}"),
        rule("b-published", "true", PUBLISHED),
    )
    results = {gpu: own("a-own", 15.0, same_contract=False, on_gpu=gpu) for gpu in ("", "H100")}
    facts = {"gpu": "GB200", "ran": True}

    by_gpu = {gpu: evaluate(facts, rules, own=[result]) for gpu, result in results.items()}

    assert [by_gpu[gpu].find("a-own") is not None for gpu in results] == [True, False], "H100 replaces no profile"
    (conditional,) = by_gpu["H100"].conditional
    assert (conditional.place.expected, conditional.evidence.statements[0].own) == (None, results["H100"])
    published = by_gpu[""].find("b-published")
    assert published is not None
    assert published.place.expected is None


@pytest.mark.parametrize(
    ("low", "high", "decided", "settled", "count"),
    [
        (1.0, 7.0, 2, True, "2 A/Bs"),
        (-17.0, 25.0, 1, False, "1 of 2 A/Bs decided"),
        (-7.0, 7.0, 2, False, "2 A/Bs that disagree"),
    ],
)
def test_the_expected_gain_spans_the_intervals_of_all_abs(
    low: float, high: float, decided: int, settled: bool, count: str
) -> None:
    result = OwnResult("x", 2, 2.2, low, high, decided=decided)

    (suggestion,) = evaluate({"profiled": True}, book(rule("x", "true")), own=[result]).suggestions

    expected = suggestion.place.expected
    assert expected is not None
    assert (expected.pct, expected.low, expected.high, expected.is_settled) == (2.2, low, high, settled)
    assert result.count == count


def test_an_ab_counts_only_where_its_contract_met_a_condition_that_a_contract_can_meet() -> None:
    nvl72, overlap = (built_in_rules().rules[name] for name in ("disp-ab-nvl72", "eo-enable"))
    at = {"gpu": "GB200", "dispatcher": "hybridep"}

    assert [is_decided_by_contract(item) for item in (nvl72, overlap)] == [True, False]
    assert [was_met(nvl72, at | {"ep": ep}, "dispatcher", "alltoall") for ep in (4, 32)] == [False, True]
    by_memory = [was_met(nvl72, at | {"ep": 4}, "dispatcher", "alltoall", headroom) for headroom in (0.02, 0.5)]
    assert by_memory == [True, False], "tight memory meets the condition, too"


def test_a_published_result_of_another_shape_is_a_record_only() -> None:
    rules = book(rule("a-published", "true", PUBLISHED))

    here = evaluate({"gpu": "H100", "profiled": True}, rules).suggestions[0].evidence
    there = evaluate({"gpu": "GB200", "profiled": True}, rules).suggestions[0].evidence

    assert (here.level, there.level) == (3, 4)
    (expired,) = there.statements[0].expired
    assert re.findall(r"sku|[GH]B?\d+", expired) == ["sku", "GB200", "H100"]


def test_evidence_of_an_older_container_drops_a_level_and_no_longer_decides() -> None:
    rules = book(rule("a-plain", "true"), rule("b-older", "true"))
    older = own("b-older", 9.0, contract={"container": "nemo:25.11", "tp": 1})

    evaluation = evaluate({"container": "nemo:26.06", "tp": 1, "profiled": True}, rules, own=[older])

    assert [suggestion.rule.id for suggestion in evaluation.suggestions] == [
        "b-older",
        "a-plain",
    ]  # its level still orders
    evidence = evaluation.suggestions[0].evidence
    assert (evidence.level, evidence.own_order) == (3, 0.0)
    (expired,) = evidence.statements[0].expired
    assert re.findall(r"container|nemo:[\d.]+", expired) == ["container", "nemo:25.11", "nemo:26.06"]
    assert changed_since({"container": "nemo:26.04"}, {"container": "nemo:26.06"}) == ()


def test_thresholds_are_facts_that_a_team_may_set() -> None:
    rules = book(rule("a-comm", "exposed_comm_frac >= T_comm"))

    assert evaluate({"exposed_comm_frac": 0.15}, rules).suggestions
    assert not evaluate({"exposed_comm_frac": 0.15}, rules, settings={"T_comm": 0.2}).suggestions


def test_the_wall_is_measured_inferred_expected_or_unknown() -> None:
    def wall(**facts: object) -> tuple[str, str]:
        reading = evaluate(facts, book()).wall
        return reading.wall, reading.certainty

    assert wall(oom=True, gpu_idle_frac=0.5) == ("memory", "measured")
    assert wall(exposed_comm_frac=0.3, gpu_idle_frac=0.12) == ("communication", "measured")
    assert wall(exposed_comm_frac=0.05, gpu_idle_frac=0.05, headroom_frac=0.3) == ("compute", "measured")
    assert wall(headroom_frac=0.02) == ("memory", "measured")
    assert wall(gpu="H100") == ("communication", "expected"), "usual on this GPU, but nothing of the run shows it"
    assert wall(gpu="GB200") == ("host", "expected")
    assert wall(gpu="H100", comm_timer_frac=0.4) == ("communication", "inferred")
    assert wall(gpu="B200") == ("none", "unknown")


KNOWN_WITHOUT_BEING_STATED = {
    *("exposed_comm_frac", "gpu_idle_frac", "launch_starved_frac", "sm_util"),  # without them a run is not profiled
    "ep",  # without experts it is 1
    "profiler_on",  # otherwise it is unknown whether a profile was written
    *("headroom_frac", "mem_alloc_peak_gb", "gpu"),  # without them, it is unknown whether memory is sufficient
    *("failure", "regression_pct", "fitted_differs", "differs_beside"),  # the service states them if there is one
    *("worked_changes", "works_with", "failure_text", "faster_pct", "record_pct", "earlier_wall"),
    "window",  # without one no iteration is steady
    "exposed_ep_frac",  # where no profile tells it apart, it may be all exposed communication
}


def test_leaving_a_fact_out_makes_a_rule_ask_or_changes_nothing() -> None:
    with every_case() as case:
        for name in list(built_in_rules().rules):
            with case(name):
                built_in = built_in_rules().rules[name]
                for examples, answer in ((built_in.examples.fires, True), (built_in.examples.silent, False)):
                    for example in examples:
                        for left_out in example.keys() - KNOWN_WITHOUT_BEING_STATED:
                            less = {fact: value for fact, value in example.items() if fact != left_out}
                            without = FactContext(derive(less)).ask(built_in.when)
                            assert isinstance(without, Unknown) or without is answer, left_out


def test_rules_of_a_part_of_the_communication_ask_for_it_if_only_the_total_is_known() -> None:
    parts = {"ov-dp": "exposed_collective_frac", "ov-tp": "exposed_collective_frac", "ov-pp": "exposed_p2p_frac"}
    facts = {**FITS, "tp": 2, "sp": True, "tp_overlap": False, "dp": 4, "dp_overlap": [], "pp": 2, "vpp": None}
    evaluation = evaluate({**facts, "exposed_comm_frac": 0.3}, built_in_rules())
    assert not [name for name in parts if evaluation.find(name)]
    assert {asking.rule.id: asking.missing for asking in evaluation.asks if asking.rule.id in parts} == {
        name: (part,) for name, part in parts.items()
    }


def test_names_in_texts_and_bound_names_are_not_facts() -> None:
    expression = compile_expression('recompute_modules.exists(m, m == "env.moe") && env.USE_MNNVL != "tp"')

    assert expression.names == ("recompute_modules", "env.USE_MNNVL")
    assert FactContext({"recompute_modules": ["env.moe"], "env.USE_MNNVL": None}).ask(expression) is True


# --- The six phases of a run: done, open or blocked, each with its reason.

FITS = {"unknown_fields": 0, "oom": False, "fits": True, "steps_done": 20, "window": 12}
RULES = (
    rule("scale-bad-mesh", "tp == 3", kind="blocker", phase="scale"),
    rule(
        "scale-wide", "cp > 8", 'change: {text: do it}\n  run_title: "CP {cp} is wide"', kind="warning", phase="scale"
    ),
    rule("eo-tune", "ep > 1", wall="communication"),
)


def of(**facts: object) -> TuningPhases:
    return tuning_phases(evaluate(facts, book(*RULES)))


def states(progress: TuningPhases) -> list[str]:
    return [step.state for step in progress.steps]


def test_a_run_that_was_not_started_opens_at_its_contract() -> None:
    progress = of()

    assert states(progress) == ["open", "open", "blocked", "blocked", "blocked", "blocked"]
    assert progress.current == "contract"


def test_a_run_that_fits_is_to_be_profiled() -> None:
    progress = of(**FITS, ep=8, gpu="H100")

    assert states(progress) == ["done", "done", "done", "open", "blocked", "open"]
    assert progress.current == "profile"
    assert (progress.wall.wall, progress.wall.certainty) == ("communication", "expected")


def test_a_profiled_run_is_to_be_retuned() -> None:
    progress = of(**FITS, ep=8, exposed_comm_frac=0.3)

    assert progress.step("profile").because.startswith(f"30{THIN}% of the step")
    assert progress.step("retune").state == "open"
    assert progress.step("retune").rules == ("eo-tune",)


def test_an_accepted_change_does_not_count_as_candidate() -> None:
    facts = {**FITS, "ep": 8, "exposed_comm_frac": 0.3}
    rules = (*RULES, rule("disp-tune", "ep > 1", wall="communication"))
    evaluation = evaluate(facts, book(*rules))
    assert tuning_phases(evaluation).step("retune").because.startswith("2 candidates; first: ")
    step = tuning_phases(evaluation, ["eo-tune"]).step("retune")
    assert (step.because, step.rules) == ("1 candidate; first: disp-tune.", ("disp-tune",))


def test_a_blocker_blocks_its_phase_and_retuning() -> None:
    progress = of(**FITS | {"fits": False}, ep=8, exposed_comm_frac=0.3, tp=3)

    assert (progress.step("scale").state, progress.step("scale").because) == ("blocked", "scale-bad-mesh.")
    assert (progress.step("retune").state, progress.step("retune").because) == (
        "blocked",
        "Resolve the blockers first.",
    )


def test_a_blocker_that_a_run_completed_despite_blocks_nothing() -> None:
    progress = of(**FITS, ep=8, exposed_comm_frac=0.3, tp=3)

    assert (progress.step("scale").state, progress.step("retune").state) == ("done", "open")


def test_a_warning_about_the_layout_opens_its_phase_with_its_title_for_the_run() -> None:
    scale = of(**FITS, cp=16).step("scale")

    assert (scale.state, scale.because, scale.rules) == ("open", "CP 16 is wide.", ("scale-wide",))


def test_an_unknown_layout_is_not_called_even() -> None:
    assert (of(**FITS).step("scale").state, of(**FITS, tp=1).step("scale").state) == ("open", "done")


def test_a_blocker_is_the_reason_of_every_step_that_waits_for_a_first_run() -> None:
    progress = of(unknown_fields=0, steps_done=0, tp=3)
    waits = [step.because for step in progress.steps if step.state == "blocked" and step.phase in ("scale", "validate")]

    assert waits == ["scale-bad-mesh."] * 2, "memory was not tested"


def test_memory_comes_before_everything_that_follows() -> None:
    progress = of(unknown_fields=2, oom=True, oom_phase="warmup", steps_done=1)

    assert states(progress)[:3] == ["open", "open", "blocked"]
    assert "memory during warm-up" in progress.step("fit").because


def test_a_run_that_fits_but_drifts_is_not_called_steady() -> None:
    steady, drifting = (
        of(**FITS, unsteady_because=because).step("fit")
        for because in ("", "step times drift: the end is 22.5 % slower")
    )
    assert (steady.state, drifting.state) == ("done", "done")
    assert "steady window" in steady.because
    assert "steady window" not in drifting.because
    assert "22.5 %" in drifting.because


def test_after_running_out_of_memory_only_remedies_are_suggested() -> None:
    facts: dict[str, object] = {"gpu": "H100", "gpus": 16, "tp": 1, "pp": 1, "ep": 16, "etp": 1, "steps_done": 14}
    facts |= {"recompute_granularity": "none", "mbs": 2, "routing_mode": "forced-balance", "window": 8}
    rules = built_in_rules()
    out, fine = (evaluate({**facts, "oom": oom, "fits": not oom}, rules) for oom in (True, False))
    assert "val-natural-routing" in {item.rule.id for item in fine.offered}
    assert {item.rule.wall for item in out.offered} == {"memory"}
    dismissed = evaluate({**facts, "oom": True, "fits": False, "health_dismissed": True}, rules)
    assert "val-natural-routing" in {item.rule.id for item in dismissed.offered}


def test_a_long_healthy_run_like_real_training_is_through() -> None:
    progress = of(**{**FITS, "steps_done": 60}, tp=1, exposed_comm_frac=0.02, gpu_idle_frac=0.01, headroom_frac=0.4,
               evidence_level="validated", semantic_class="training_equivalent")  # fmt: skip

    assert states(progress) == ["done"] * 6
    assert progress.current is None
    assert progress.wall.wall == "compute"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a && !b && c", "!b"),
        ('a && t == "x && y" && b', 't == "x && y"'),
        ("(c || b) && !(a && b)", "!(a && b)"),
        ("c && b || !a", "c && b || !a"),
        ("u && c", "c"),
    ],
)
def test_the_part_of_a_condition_that_decides_is_known(source: str, expected: str) -> None:
    facts = {"a": True, "b": True, "c": False, "t": "z"}
    assert false_part(compile_expression(source), facts).source == expected
