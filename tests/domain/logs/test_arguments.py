"""Arguments that logs print, and launch commands in logs."""

import json
from pathlib import Path

import pytest

from app.domain.logs import parse_text
from app.domain.logs.arguments import contract_fields, stated_by_launch_args
from app.domain.logs.settings import Setting, read_literal
from app.domain.run import Stated, Value


def fields(**settings: Value) -> dict[str, Stated]:
    stated, refused = contract_fields({name: Setting(name, value, "arguments", 1) for name, value in settings.items()})
    assert refused == {}
    return stated


def block(**settings: object) -> str:
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in settings.items()]
    return "\n".join(
        [
            "------------------------ arguments ------------------------",
            *lines,
            "-------------------- end of arguments ---------------------\n",
        ]
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("None", None), ("True", True), ("False", False), ("8", 8), ("-1", -1), ("1e-05", 1e-05), ("0.00015", 0.00015),
        ("torch.bfloat16", "torch.bfloat16"), ("949,50,1", "949,50,1"), ("/a path/with spaces", "/a path/with spaces"),
        ("['attn', 'moe_router']", ("attn", "moe_router")), ("[]", ()), ("[0, 1, 1]", (0, 1, 1)),
        ("(127, 0)", (127, 0)),
        ("'flex'", "flex"), ("<AttnBackend.flash: 1>", "flash"), ("1e999", "1e999"), ("nan", "nan"), ("", ""),
        ("[<CudaGraphModule.attn: 1>, <CudaGraphModule.moe: 2>]", ("attn", "moe")), ("[" * 500, "[" * 500),
        ("[attn moe_router]", ("attn", "moe_router")), ("[attn]", ("attn",)), ("[CudaGraphModule.attn]", ("attn",)),
        ("(a text)", "(a text)"), ("{'a': 1}", "{'a': 1}"), ("[None]", "[None]"), ("12abc", "12abc"),
        ("9" * 25, "9" * 25), ("__import__('os')", "__import__('os')"),
    ],
)  # fmt: skip
def test_python_values_are_read(text: str, value: Value) -> None:
    assert read_literal(text) == value


def test_the_block_states_its_values_with_their_lines() -> None:
    log = parse_text("x\n" + block(num_experts=64, tensor_model_parallel_size=4, data_path="['/a b/c']"))
    assert log.stated["tp"] == Stated(4, "arguments", "line 4: tensor_model_parallel_size = 4", line=4)
    assert log.arguments == {"num_experts": 64, "tensor_model_parallel_size": 4, "data_path": ("/a b/c",)}
    assert log.problems == ()


@pytest.mark.parametrize("length", [46, 47, 48, 60])
def test_long_names_have_few_dots_or_none(length: int) -> None:
    name = "n" * length
    assert parse_text(block(**{name: "a value"})).arguments == {name: "a value"}


def test_lines_of_other_processes_in_between_are_passed_over() -> None:
    text = block(num_experts=64, world_size=8).replace(
        "\n  world", "\n[default3]:  return x.y(z)\nNCCL INFO ...\n  world"
    )
    assert parse_text(text).arguments == {"num_experts": 64, "world_size": 8}


def test_a_block_without_end_is_read_as_far_as_it_goes() -> None:
    log = parse_text(block(num_experts=64, world_size=8).rpartition("-----")[0].rpartition("\n")[0])
    assert log.arguments == {"num_experts": 64, "world_size": 8}
    assert [problem.kind for problem in log.problems] == ["unfinished dump"]


def test_the_block_of_a_restart_wins_and_its_changes_are_reported() -> None:
    log = parse_text(block(num_experts=64, iteration=0) + block(num_experts=32, iteration=50))
    assert log.stated["num_experts"].value == 32
    (problem,) = log.problems
    assert (problem.kind, problem.line) == ("changed settings", 5)
    assert problem.message.endswith("1 settings: num_experts.")


def test_the_line_before_the_block_also_states_the_sizes() -> None:
    log = parse_text(
        "3: using world size: 64, data-parallel size: 4, context-parallel size: 1, "
        "hierarchical context-parallel sizes: None, tensor-model-parallel size: 2, pipeline-model-parallel size: 8\n"
    )
    values = {name: stated.value for name, stated in log.stated.items()}
    assert values == {"gpus": 64, "dp": 4, "cp": 1, "tp": 2, "pp": 8}
    assert {stated.source for stated in log.stated.values()} == {"log line"}


def test_a_batch_size_that_only_iteration_lines_tell_is_stated() -> None:
    line = " iteration 1/ 9 | elapsed time per iteration (ms): 5.0 | global batch size:   128 |\n"
    assert parse_text(line).stated["gbs"] == Stated(128, "log line", "line 1: global batch size: 128", line=1)
    ramped = line + line.replace(" 1/", " 2/").replace("128", "256")
    assert "gbs" not in parse_text(ramped).stated


FLEX = {"moe_token_dispatcher_type": "flex", "num_experts": 8}


@pytest.mark.parametrize(
    ("settings", "dispatcher"),
    [
        ({"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": "deepep"}, "alltoall"),
        ({"moe_token_dispatcher_type": "allgather"}, "allgather"),
        ({**FLEX, "moe_flex_dispatcher_backend": "hybridep"}, "hybridep"),
        ({**FLEX, "moe_flex_dispatcher_backend": "ncclep", "moe_enable_deepep": True}, "ncclep"),
        ({**FLEX, "moe_enable_deepep": True}, "deepep"),
        (FLEX, "deepep"),
        ({**FLEX, "num_experts": None}, None),
    ],
)
def test_dispatcher(settings: dict[str, Value], dispatcher: str | None) -> None:
    assert fields(**settings)["dispatcher"].value == dispatcher


@pytest.mark.parametrize(
    ("settings", "sms"),
    [
        ({**FLEX, "moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 16}, 20),
        ({**FLEX, "moe_flex_dispatcher_backend": "hybridep", "moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 16}, 16),
        ({**FLEX, "moe_deepep_num_sms": 20, "moe_flex_dispatcher_num_sms": 24}, 24),
        ({"moe_token_dispatcher_type": "alltoall", "moe_deepep_num_sms": 20}, None),
    ],
)
def test_only_the_settings_of_the_dispatcher_in_use_count(settings: dict[str, Value], sms: int | None) -> None:
    assert fields(**settings)["dispatch_sms"].value == sms


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "dropless"),
        ({"moe_expert_capacity_factor": -1.0}, "dropless"),
        ({"moe_expert_capacity_factor": 1.25}, "capacity-drop"),
        ({"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}, "drop-and-pad"),
        ({"moe_router_force_biased": 0.5, "moe_expert_capacity_factor": 1.0}, "forced-biased"),
        ({"moe_router_force_load_balancing": True, "moe_router_force_biased": 0.5}, "forced-balance"),
        ({"moe_expert_rank_capacity_factor": 1.5}, "dropless"),
        ({**FLEX, "moe_expert_rank_capacity_factor": 1.5, "moe_flex_dispatcher_backend": "hybridep"}, "capacity-drop"),
    ],
)
def test_the_routing_mode_is_the_first_that_applies(settings: dict[str, Value], mode: str) -> None:
    base: dict[str, Value] = {"moe_router_force_load_balancing": False, "moe_expert_capacity_factor": None}
    assert fields(**(base | settings))["routing_mode"].value == mode


@pytest.mark.parametrize(
    ("settings", "precision"),
    [
        ({"bf16": True, "fp8": None}, "bf16"),
        ({"fp16": True, "bf16": False}, "fp16"),
        ({"bf16": True, "fp8": "e4m3", "fp8_recipe": "blockwise"}, "fp8_sc"),
        ({"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise"}, "fp8_cs"),
        ({"bf16": True, "fp8": "hybrid", "fp8_recipe": "Fp8Recipe.mxfp8"}, "fp8_mx"),
        ({"bf16": True, "fp8": "hybrid"}, "fp8_ds"),
        ({"bf16": True, "fp8": "hybrid", "fp8_recipe": "delayed", "fp4": "e2m1"}, "nvfp4"),
        ({"mixed_precision": "bf16_with_mxfp8_mixed"}, "fp8_mx"),
    ],
)
def test_precision(settings: dict[str, Value], precision: str) -> None:
    assert fields(**settings)["precision"].value == precision


@pytest.mark.parametrize(
    ("settings", "impl", "modules"),
    [
        ({"cuda_graph_impl": "none", "cuda_graph_scope": ()}, "none", ()),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": ("attn", "moe_router")}, "local", ("attn", "moe_router")),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",), "cuda_graph_scope": ()},
            "transformer_engine",
            ("attn",),
        ),
        ({"enable_cuda_graph": True, "external_cuda_graph": False, "cuda_graph_scope": "full"}, "local", ()),
        (
            {"external_cuda_graph": True, "enable_cuda_graph": False, "cuda_graph_scope": "attn"},
            "transformer_engine",
            ("attn",),
        ),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": ("full_iteration",)}, "full_iteration", ()),
        ({"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ()}, "full_iteration", ()),
        ({"cuda_graph_impl": "none", "cuda_graph_modules": ("attn",)}, "none", ()),
        ({"enable_cuda_graph": False}, "none", ()),
    ],
)
def test_graphs_under_all_their_names(settings: dict[str, Value], impl: str, modules: tuple[str, ...]) -> None:
    stated = fields(**settings)
    assert (stated["graph_impl"].value, stated["graph_modules"].value) == (impl, modules)


@pytest.mark.parametrize(
    ("settings", "granularity", "modules"),
    [
        ({"recompute_granularity": None, "recompute_modules": ("core_attn",)}, "none", None),
        (
            {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "mlp")},
            "selective",
            ("mlp", "moe_act"),
        ),
        ({"recompute_granularity": "selective", "recompute_modules": None}, "selective", ("core_attn",)),
        ({"recompute_granularity": "selective", "recompute_modules": ()}, "selective", ()),
        ({"recompute_granularity": "full", "recompute_modules": ("core_attn",)}, "full", None),
        ({"recompute_activations": True}, "selective", ("core_attn",)),
    ],
)
def test_recompute_modules_count_for_selective_recomputation_only(
    settings: dict[str, Value], granularity: str, modules: tuple[str, ...] | None
) -> None:
    stated = fields(**settings)
    assert (stated["recompute_granularity"].value, stated["recompute_modules"].value) == (granularity, modules)


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"tensor_model_parallel_size": 4, "expert_tensor_parallel_size": None}, "etp", 4),
        ({"tensor_model_parallel_size": 4, "expert_tensor_parallel_size": 1}, "etp", 1),
        ({"virtual_pipeline_model_parallel_size": 1}, "vpp", None),
        ({"account_for_embedding_in_pipeline_split": True}, "pp_account", ("embedding",)),
        ({"overlap_grad_reduce": True, "overlap_param_gather": False}, "dp_overlap", ("grad_reduce",)),
        ({"use_megatron_fsdp": False, "use_torch_fsdp2": True}, "fsdp", "torch_fsdp2"),
        ({"use_custom_fsdp": True}, "fsdp", "megatron_fsdp"),
        ({"use_megatron_fsdp": False}, "fsdp", "none"),
        ({"attention_backend": "AttnBackend.flash"}, "attention", "flash"),
        ({"check_for_nan_in_loss_and_grad": False}, "nan_checks", False),
        ({"mock_data": True, "data_path": ("/d",)}, "data_mode", "mock"),
        ({"mock_data": False, "data_path": ("/d",)}, "data_mode", "real"),
        ({"group_query_attention": False, "num_query_groups": 1}, "num_query_groups", None),
        ({"group_query_attention": True, "num_query_groups": 4}, "num_query_groups", 4),
        ({"padded_vocab_size": None, "vocab_size": 32000}, "vocab_size", 32000),
        ({"fine_grained_activation_offloading": False, "offload_modules": ("moe_act",)}, "fine_offload", ()),
        ({"fine_grained_activation_offloading": True, "offload_modules": ("moe_act",)}, "fine_offload", ("moe_act",)),
        ({"fp8_param_gather": True, "fp4_param_gather": False}, "param_gather_lp", True),
    ],
)
def test_settings_that_need_a_second_look(settings: dict[str, Value], field: str, value: Value) -> None:
    assert fields(**settings)[field].value == value


def test_a_dense_model_has_no_dispatcher_and_says_why() -> None:
    stated = fields(num_experts=None, moe_token_dispatcher_type="allgather", moe_router_force_load_balancing=False)
    for field in ("dispatcher", "routing_mode"):
        assert (stated[field].value, stated[field].source) == (None, "derived")


def test_an_invalid_value_gets_a_warning() -> None:
    log = parse_text(block(tensor_model_parallel_size=-3, world_size=8))
    assert "tp" not in log.stated
    assert log.arguments["tensor_model_parallel_size"] == -3
    (problem,) = log.problems
    assert "tensor_model_parallel_size = -3" in problem.message


GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "golden"


def values_of(args: object) -> dict[str, Value]:
    fields, warnings, _ = stated_by_launch_args(args)
    assert warnings == []
    assert {stated.source for stated in fields.values()} <= {"metadata"}
    return {name: stated.value for name, stated in fields.items()}


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        ("", {}),
        ({}, {}),
        ("--tensor-model-parallel-size 4 --pipeline-model-parallel-size=2", {"tp": 4, "pp": 2}),
        ({"--tensor-model-parallel-size": 4, "sequence_parallel": True}, {"tp": 4, "sp": True}),
        ("--sequence-parallel \\\n  --micro-batch-size 1", {"sp": True, "mbs": 1}),
        ("--bf16 --fp8-format hybrid --fp8-recipe blockwise", {"precision": "fp8_sc"}),
        ("--no-check-for-nan-in-loss-and-grad", {"nan_checks": False}),
        ("--no-overlap-p2p-communication", {"pp_overlap": False}),
        ("--cuda-graph-impl local --cuda-graph-scope attn moe_router", {
            "graph_impl": "local", "graph_modules": ("attn", "moe_router"),
        }),
        ({"--cuda-graph-modules": "attn mlp", "--cuda-graph-impl": "transformer_engine"}, {
            "graph_impl": "transformer_engine", "graph_modules": ("attn", "mlp"),
        }),
        ("--moe-layer-freq ([0]*3+[1]*2) --mock-data", {"moe_layer_freq": (0, 0, 0, 1, 1), "data_mode": "mock"}),
        ("torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --seq-length 4096", {
            "gpus": 32, "gpus_per_node": 8, "seq_len": 4096,
        }),
        ("--num-layers 48 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3", {
            "num_layers": 48, "pp": 4, "vpp": 4,
        }),
        ("--num-virtual-stages-per-pipeline-rank 1", {"vpp": None}),
        ("python train.py model.expert_model_parallel_size=8 +train.global_batch_size=512", {"ep": 8, "gbs": 512}),
        ("--pipeline-model-parallel-layout 'Et*3|(tt|)*29m|L'", {"pp_layout": "Et*3|(tt|)*29m|L"}),
        ("-ng 64 -gn 8 --moe_a2a_overlap true", {
            "gpus": 64, "gpus_per_node": 8, "ep_overlap": True, "delay_wgrad": True,
        }),
        ("--lr 1e-5 --weight-decay -0.1 --seed -1", {}),
        ("--tensor-model-parallel-size 2 --data-path 'unbalanced", {"tp": 2, "data_mode": "real"}),
    ],
)  # fmt: skip
def test_flags_state_fields(args: object, fields: dict[str, Value]) -> None:
    assert values_of(args) == fields


@pytest.mark.parametrize(
    ("args", "dispatcher"),
    [
        ("--moe-token-dispatcher-type alltoall", "alltoall"),
        ("--moe-token-dispatcher-type flex", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
        ("--moe_flex_dispatcher_backend hybridep", "hybridep"),
        ("--moe_flex_dispatcher_backend None", "alltoall"),
    ],
)
def test_the_dispatcher_of_flags(args: str, dispatcher: str) -> None:
    assert values_of(args)["dispatcher"] == dispatcher


def test_the_source_of_a_value_is_stated() -> None:
    fields, _, _ = stated_by_launch_args("--tensor-model-parallel-size 4")
    assert fields["tp"].detail == "launch_args: tensor_model_parallel_size = 4"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("just words", "contains no flags"),
        (
            "--tensor-model-parallel-size 2 --tensor-model-parallel-size 4",
            "tensor_model_parallel_size twice; 4 is used",
        ),
        ("--tensor-model-parallel-size zero", "tp must be a whole number"),
        ("--tensor-model-parallel-size", "tp must be a whole number"),
    ],
)
def test_what_cannot_be_used_is_a_warning(args: str, words: str) -> None:
    (warning,) = stated_by_launch_args(args)[1]
    assert words in warning


def test_the_flags_of_real_runs_are_read() -> None:
    """The arguments of the golden runs: every stated value must be read, and none may be refused."""
    paths = sorted(GOLDEN.glob("*/*.json"))
    refused = set()
    for path in paths:
        args = json.loads(path.read_text(encoding="utf-8"))["launch_args"]
        fields, warnings, _ = stated_by_launch_args(args)
        refused.update(warnings)
        for flag, name in (
            ("--num-layers", "num_layers"),
            ("--tensor-model-parallel-size", "tp"),
            ("--seq-length", "seq_len"),
        ):
            assert (flag in args) == (name in fields)
            assert flag not in args or fields[name].value == args[flag]
    assert refused == set()
