"""A change as a diff against the run's own command, and every value that it writes read back."""

import re
from collections.abc import Mapping

from app.domain.contract.values import read_value, same_value
from app.domain.documents.launch_command import read_launch_command
from app.domain.logs.arguments import stated_by_launch_args
from app.domain.rules.change import ChangeDiff, DiffLine, change_of
from app.domain.rules.engine import evaluate
from app.domain.rules.flags import written
from app.domain.rules.launch import read_command
from app.domain.rules.load import built_in_rules
from app.domain.run import Value
from tests.cases import every_case
from tests.domain.rules.builders import book, rule

# --- A change as a diff against the run's own command, or against its contract if the command is unknown.


def diff(change: str, facts: Mapping[str, object], launch: object = None) -> ChangeDiff:
    evaluation = evaluate(
        {**facts, "gpu_idle_frac": 0.5}, book(rule("a-rule", "true", f"change: {{text: do it, {change}}}"))
    )
    return change_of(evaluation.suggestions[0], evaluation.facts, launch)


def signed(lines: tuple[DiffLine, ...], *signs: str) -> list[str]:
    return [f"{line.sign}{line.text}" for line in lines if not signs or line.sign in signs]


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 "
    "--moe-token-dispatcher-type alltoall --bf16"
)


def test_a_flag_is_replaced_in_place_and_a_new_one_added() -> None:
    changed = diff("set: {dispatcher: hybridep}", {"dispatcher": "alltoall"}, MEGATRON)

    assert signed(changed.megatron_lm.lines) == [
        " torchrun",
        " --nproc_per_node 8 pretrain_gpt.py",
        " --tensor-model-parallel-size 2",
        "---moe-token-dispatcher-type alltoall",
        "+--moe-token-dispatcher-type flex",
        " --bf16",
        "+--moe-flex-dispatcher-backend hybridep",
    ]
    stated, _, _ = stated_by_launch_args(changed.megatron_lm.command)
    assert (stated["dispatcher"].value, stated["tp"].value, stated["precision"].value) == ("hybridep", 2, "bf16")


def test_flags_are_those_of_the_runs_release() -> None:
    facts = {"dispatcher": "alltoall", "graph_impl": "none", "mcore_version": "0.15.3"}

    changed = diff("set: {dispatcher: deepep, graph_impl: transformer_engine, graph_modules: [attn]}", facts)
    assert changed.megatron_lm.paste == (
        "--moe-token-dispatcher-type flex --cuda-graph-impl transformer_engine --moe-enable-deepep "
        "--cuda-graph-scope attn"
    )

    change = book(rule("a-rule", "true", "change: {text: do it, set: {ep_overlap: true}}"))
    (lacking,) = evaluate({"mcore_version": "0.13.1", "gpu_idle_frac": 0.5}, change).withheld
    assert "--overlap-moe-expert-parallel-comm (since 0.14)" in lacking.withheld
    assert evaluate({"mcore_version": "0.14.0", "gpu_idle_frac": 0.5}, change).withheld == ()


def test_a_flag_is_taken_out() -> None:
    launch = f"{MEGATRON} --sequence-parallel --moe-flex-dispatcher-backend=deepep"

    changed = diff("set: {sp: false, dispatcher: alltoall}", {"sp": True, "dispatcher": "deepep"}, launch)

    assert signed(changed.megatron_lm.lines, "-", "+") == [
        "---sequence-parallel",
        "---moe-flex-dispatcher-backend=deepep",
    ]
    assert "--sequence-parallel" not in changed.megatron_lm.command
    assert changed.megatron_lm.remove == ("--sequence-parallel", "--moe-flex-dispatcher-backend=deepep")


def test_the_same_change_for_bridge_is_made_of_overrides() -> None:
    launch = (
        "python run_recipe.py --recipe qwen3 model.tensor_model_parallel_size=2 comm_overlap.delay_wgrad_compute=true"
    )

    changed = diff("set: {ep_overlap: true, delay_wgrad: false}", {"ep_overlap": False, "delay_wgrad": True}, launch)

    assert signed(changed.bridge.lines, "-", "+") == [
        "-comm_overlap.delay_wgrad_compute=true",
        "+comm_overlap.delay_wgrad_compute=false",
        "+comm_overlap.overlap_moe_expert_parallel_comm=true",
    ]
    assert changed.megatron_lm.command == ""
    assert signed(changed.megatron_lm.lines) == ["---delay-wgrad-compute", "+--overlap-moe-expert-parallel-comm"]


def test_the_harness_flag_that_turns_two_knobs_is_taken_out() -> None:
    launch = "python setup_experiment.py -g h100 --moe_a2a_overlap true -pp 4"

    changed = diff("set: {delay_wgrad: false, pp: 8}", {"delay_wgrad": True, "pp": 4}, launch)

    assert "---moe_a2a_overlap true" in signed(changed.bridge.lines)
    assert signed(changed.bridge.lines)[3:5] == ["--pp 4", "+-pp 8"]


def test_without_a_command_the_contract_is_changed() -> None:
    changed = diff("set: {graph_modules: [moe_router, moe_preprocess]}", {"graph_modules": ["attn"]})

    assert signed(changed.megatron_lm.lines) == [
        "---cuda-graph-modules attn",
        "+--cuda-graph-modules moe_router moe_preprocess",
    ]
    assert signed(changed.bridge.lines) == [
        "-'model.cuda_graph_modules=[attn]'",
        "+'model.cuda_graph_modules=[moe_router,moe_preprocess]'",
    ]
    assert changed.megatron_lm.command == ""


def test_settings_that_the_run_already_has_are_listed_and_not_pasted() -> None:
    changed = diff("set: {te_rng: true, cp: 4}", {"te_rng": True})

    assert changed.already == ("te_rng",)
    assert [(field.name, field.before, field.after) for field in changed.fields] == [("cp", None, "4")]
    assert changed.megatron_lm.paste == "--context-parallel-size 4"


def test_a_mapping_of_flags_is_a_command_too() -> None:
    changed = diff("set: {cp: 4}", {"cp": 2}, {"context-parallel-size": 2, "bf16": True})

    assert signed(changed.megatron_lm.lines) == ["---context-parallel-size 2", "+--context-parallel-size 4", " --bf16"]


def test_variables_of_the_environment_are_exported() -> None:
    change = "env: {NVLINK_DOMAIN_SIZE: '= nvlink_domain', USE_MNNVL: null, NCCL_NVLS_ENABLE: 0}"
    changed = diff(change, {"gpu": "GB200", "env": {"USE_MNNVL": "1", "NCCL_NVLS_ENABLE": "0"}})

    assert signed(changed.environment) == ["+NVLINK_DOMAIN_SIZE=72", "-USE_MNNVL=1"]
    assert changed.export == "export NVLINK_DOMAIN_SIZE=72"


def test_a_command_that_is_hostile_or_cut_is_still_a_list_of_words() -> None:
    changed = diff("set: {cp: 4}", {"cp": 2}, "pretrain.py --x '; rm -rf / --context-parallel-size 2")

    assert "+--context-parallel-size 4" in signed(changed.megatron_lm.lines)


def test_the_arguments_of_the_log_stand_in_for_a_command() -> None:
    change = "set: {recompute_modules: [], cp: 4}, megatron_lm: [--calculate-per-token-loss, --ckpt-format x]"
    facts = {"recompute_modules": ["moe_act"], "recompute_granularity": "selective", "cp": 2}
    evaluation = evaluate(
        {**facts, "gpu_idle_frac": 0.5}, book(rule("a-rule", "true", f"change: {{text: do it, {change}}}"))
    )
    arguments: dict[str, Value] = {
        "recompute_modules": ("moe_act", "core_attn"),
        "context_parallel_size": 2,
        "calculate_per_token_loss": True,
        "ckpt_format": None,
    }

    fragment = change_of(evaluation.suggestions[0], evaluation.facts, None, arguments).megatron_lm

    assert fragment.against == "arguments"
    assert sorted(signed(fragment.lines)) == [
        "+--ckpt-format x",
        "+--context-parallel-size 4",
        "---context-parallel-size 2",
        "---recompute-modules moe_act core_attn",
    ]
    assert fragment.paste == "--context-parallel-size 4 --ckpt-format x"


def test_a_flag_that_a_person_fills_in_is_in_no_text_to_paste() -> None:
    changed = diff(
        """set: {cp: 4}, megatron_lm: ['--pipeline-model-parallel-layout "<layout>"']""", {"cp": 2}, MEGATRON
    )

    assert changed.megatron_lm.fill == ("--pipeline-model-parallel-layout '<layout>'",)
    assert (changed.megatron_lm.paste, changed.megatron_lm.command) == ("--context-parallel-size 4", "")


def test_an_empty_list_is_a_flag_that_is_not_there() -> None:
    changed = diff("set: {graph_modules: []}", {"graph_modules": ["attn"]}, f"{MEGATRON} --cuda-graph-modules attn")

    assert signed(changed.megatron_lm.lines, "-", "+") == ["---cuda-graph-modules attn"]
    assert signed(diff("set: {graph_modules: [attn]}", {"graph_modules": []}).megatron_lm.lines) == [
        "+--cuda-graph-modules attn"
    ]


def test_what_every_rule_has_to_paste_is_a_fragment_of_a_command() -> None:
    with every_case() as case:
        for built_in in built_in_rules().rules.values():
            with case(built_in.id):
                for example in built_in.examples.fires:
                    evaluation = evaluate(example, built_in_rules())
                    suggestion = evaluation.find(built_in.id)
                    assert suggestion is not None
                    change = change_of(suggestion, evaluation.facts)
                    for item in read_command(change.megatron_lm.paste):
                        assert re.fullmatch(r"--[a-z][a-z0-9_-]*", item.words[0]), item.text
                        assert not {"", "None", "none", "null", "unknown", "[]"} & set(item.words[1:]) or item.words[
                            1:
                        ] == ["none"]
                    for item in read_command(change.bridge.paste):
                        assert re.fullmatch(r"[a-z][\w.]*=[^\s{}<>]+", item.words[0]), item.text
                        assert item.words[1:] == []
                        assert "unknown" not in item.text
                    for line in change.export.splitlines():
                        assert re.fullmatch(r"export [A-Z][A-Z0-9_]*=\S+", line), line


# --- Every value that is written as flags or overrides is read back as the same contract value.

VALUES = [
    ("tp", 2),
    ("pp", 4),
    ("vpp", 3),
    ("pp_layout", "Et*3|(tt|)*29m|L"),
    ("pp_account", ("embedding",)),
    ("mtp", 1),
    ("cp", 8),
    ("cp_comm", "a2a+p2p"),
    ("hcp_sizes", (2, 2)),
    ("ep", 32),
    ("etp", 1),
    ("sp", True),
    ("mbs", 2),
    ("gbs", 512),
    ("seq_len", 8192),
    ("dist_opt", True),
    ("fsdp", "megatron_fsdp"),
    ("fsdp", "torch_fsdp2"),
    ("dispatcher", "alltoall"),
    ("dispatcher", "deepep"),
    ("dispatcher", "hybridep"),
    ("lb_type", ("aux_loss",)),
    ("capacity", 1.5),
    ("rank_capacity", 1.1),
    ("router_dtype", "fp32"),
    ("expert_bias", True),
    ("grouped_gemm", True),
    ("permute_fusion", True),
    ("router_fusion", True),
    ("force_balance", True),
    ("ep_overlap", True),
    ("delay_wgrad", True),
    ("shared_overlap", True),
    ("dp_overlap", ("grad_reduce", "param_gather")),
    ("tp_overlap", True),
    ("pp_overlap", False),
    ("attention", "flash"),
    *(("precision", precision) for precision in ("bf16", "fp16", "fp8_ds", "fp8_cs", "fp8_sc", "fp8_mx", "nvfp4")),
    ("param_gather_lp", True),
    ("recompute_granularity", "selective"),
    ("recompute_granularity", "full"),
    ("recompute_method", "uniform"),
    ("recompute_layers", 1),
    ("opt_offload", True),
    ("opt_offload_fraction", 0.25),
    ("act_offload", True),
    ("act_offload_layers", 12),
    ("fine_offload", ("expert_fc1", "moe_act")),
    ("graph_impl", "transformer_engine"),
    ("te_rng", True),
    ("manual_gc", True),
    ("manual_gc_interval", 10),
    ("nan_checks", False),
]


def command(name: str, value: object) -> str:
    flags = written(name, value).megatron_lm.flags
    return " ".join(f"{flag} {' '.join(values)}" for flag, values in flags.items())


def test_flags_are_read_back() -> None:
    with every_case() as case:
        for name, value in VALUES:
            with case((name, value)):
                stated, warnings, _ = stated_by_launch_args(command(name, value))

                assert warnings == []
                assert same_value(name, read_value(name, stated[name].value), read_value(name, value))


def test_overrides_are_read_back() -> None:
    with every_case() as case:
        for name, value in VALUES:
            with case((name, value)):
                overrides = written(name, value).bridge
                text = " ".join(f"{path}={item}" for path, item in overrides.items() if path != "mixed_precision")
                if "mixed_precision" in overrides:
                    assert read_value("precision", overrides["mixed_precision"]) == value
                    continue

                stated = read_launch_command(f"torchrun pretrain.py {text}").stated

                assert same_value(name, read_value(name, stated[name].value), read_value(name, value))


def test_modules_are_read_back_together_with_their_switch() -> None:
    graphs = f"{command('graph_impl', 'transformer_engine')} {command('graph_modules', ('attn', 'moe_router'))}"
    recompute = f"{command('recompute_granularity', 'selective')} {command('recompute_modules', ('moe_act', 'mlp'))}"

    stated, _, _ = stated_by_launch_args(f"{graphs} {recompute}")

    assert read_value("graph_modules", stated["graph_modules"].value) == ("attn", "moe_router")
    assert read_value("recompute_modules", stated["recompute_modules"].value) == ("mlp", "moe_act")


def test_unset_means_an_absent_flag() -> None:
    assert "--num-virtual-stages-per-pipeline-rank" in written("vpp", None).megatron_lm.without
    assert written("sp", False).megatron_lm.without == ("--sequence-parallel",)
    assert written("dispatcher", "alltoall").megatron_lm.without == (
        "--moe-flex-dispatcher-backend",
        "--moe-enable-deepep",
    )
    assert written("gpus", 64).megatron_lm.flags == {}
