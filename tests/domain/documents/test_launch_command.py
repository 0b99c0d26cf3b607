import json

import pytest

from app.domain.documents.launch_command import read_launch_command
from tests.shared_papers import shared_folder

HARNESS = (
    "python scripts/performance/setup_experiment.py -m qwen -mr qwen3_30b_a3b --task pretrain -ng 16 -gn 8 -g h100 "
    "-c bf16 --account team --partition batch -i nvcr.io/nvidia/nemo:26.06 -hf hf_abcdefghijklmnop "
)


def values(text: str) -> dict[str, object]:
    return {name: stated.value for name, stated in read_launch_command(text).stated.items()}


MEGATRON = r"""
# Qwen3-30B-A3B on two nodes
cd /opt/megatron-lm && CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_NVLS_ENABLE=0 torchrun --nproc_per_node 8 --nnodes 2 \
    --node_rank $RANK pretrain_gpt.py \
    --tensor-model-parallel-size 2 --sequence-parallel \
    --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout "Et|(tt|)*30mL" \
    --expert-model-parallel-size=8 --num-experts 128 --moe-router-topk 8 \
    --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep \
    --recompute-granularity selective --recompute-modules moe_act layernorm \
    --micro-batch-size 1 --global-batch-size 512 --seq-length 4096 --bf16 --mock-data \
    --save "$CHECKPOINTS" 2>&1 | tee train.log
"""


def test_a_megatron_lm_command():
    fields = values(MEGATRON)
    expected = {
        "gpus": 16,
        "gpus_per_node": 8,
        "tp": 2,
        "sp": True,
        "pp": 4,
        "pp_layout": "Et|(tt|)*30mL",
        "ep": 8,
        "num_experts": 128,
        "topk": 8,
        "dispatcher": "hybridep",
        "recompute_modules": ("layernorm", "moe_act"),
        "mbs": 1,
        "gbs": 512,
        "seq_len": 4096,
        "precision": "bf16",
        "data_mode": "mock",
        "env.CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "env.NCCL_NVLS_ENABLE": "0",
    }
    assert {name: fields.get(name, "not stated") for name in expected} == expected


def test_shell_variables_are_omitted_with_a_warning():
    assert any("the shell computes" in problem for problem in read_launch_command(MEGATRON).problems)


@pytest.mark.parametrize(
    "launcher",
    [
        "srun -N 4 --gpus-per-node 4 --container-image nvcr.io#nvidia/nemo:26.06 python pretrain_gpt.py",
        "srun --nodes=4 --ntasks-per-node=4 --container-image=a.io/nvidia/nemo:26.06 ./bind.sh python pretrain_gpt.py",
        "srun -N 4 --ntasks-per-node 4 --container-image nvidia+nemo+26.06.sqsh bash -c 'python -u pretrain_gpt.py",
        "CONTAINER_IMAGE=nvidia/nemo:26.06 python -m torch.distributed.run --nnodes 4 --nproc-per-node 4 -m train",
    ],
)
def test_launchers(launcher):
    fields = values(f"{launcher} --tensor-model-parallel-size 2" + ("'" if "bash -c" in launcher else ""))
    assert fields["gpus"] == 16
    assert fields["gpus_per_node"] == 4
    assert str(fields["container"]).endswith("nvidia/nemo:26.06")
    assert fields["tp"] == 2


def test_a_harness_command():
    fields = values(HARNESS + "-tp 2 -pp 1 -vp None -ep 8 -et 1 -gb 512 -mb 1 -sl 4096 -ms 50")
    expected = {
        "gpus": 16,
        "gpus_per_node": 8,
        "gpu": "H100",
        "precision": "bf16",
        "task": "pretrain",
        "container": "nvcr.io/nvidia/nemo:26.06",
        "tp": 2,
        "sp": True,
        "pp": 1,
        "vpp": None,
        "ep": 8,
        "etp": 1,
        "gbs": 512,
        "mbs": 1,
        "seq_len": 4096,
        "data_mode": "mock",
    }
    assert {name: fields.get(name, "not stated") for name in expected} == expected
    assert "hf_abc" not in str(read_launch_command(HARNESS))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--moe_a2a_overlap true", {"ep_overlap": True, "delay_wgrad": True, "shared_overlap": False}),
        ("--moe_a2a_overlap=True", {"ep_overlap": True, "delay_wgrad": True, "shared_overlap": False}),
        ("--moe_a2a_overlap false", {"ep_overlap": "not stated", "delay_wgrad": "not stated"}),
        ("--moe_flex_dispatcher_backend None", {"dispatcher": "alltoall", "dispatcher_type": "alltoall"}),
        ("--moe_flex_dispatcher_backend hybridep", {"dispatcher": "hybridep", "dispatcher_type": "flex"}),
        ("--cuda_graph_scope attn,moe_router", {"graph_modules": ("attn", "moe_router")}),
        ("--cuda_graph_impl transformer_engine", {"graph_impl": "transformer_engine", "te_rng": True}),
        ("--cuda_graph_impl none", {"graph_impl": "none", "te_rng": False}),
        (
            "--recompute_modules core_attn,moe_act",
            {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "moe_act")},
        ),
        ("-rl 4", {"recompute_granularity": "full", "recompute_method": "block", "recompute_layers": 4}),
        ("-ol 2", {"act_offload": True, "act_offload_layers": 2}),
        ("--use_tokendrop true", {"routing_mode": "drop-and-pad", "capacity": 1}),
        ("--use_tokendrop false", {"routing_mode": "forced-balance"}),
        ("--use_megatron_fsdp true", {"fsdp": "megatron_fsdp"}),
        ("--data c4", {"data_mode": "real"}),
        ("-E NCCL_NVLS_ENABLE=1", {"env.NCCL_NVLS_ENABLE": "1"}),
        ("-ce NCCL_NVLS_ENABLE=1,USE_MNNVL=1", {"env.NCCL_NVLS_ENABLE": "1", "env.USE_MNNVL": "1"}),
        (
            "model.moe_token_dispatcher_type=alltoall train.global_batch_size=256",
            {"dispatcher": "alltoall", "gbs": 256},
        ),
        (
            "--offline model.recompute_granularity=selective 'model.recompute_modules=[moe_act]'",
            {"recompute_modules": ("moe_act",)},
        ),
        ("mixed_precision=bf16_with_mxfp8_mixed", {"precision": "fp8_mx"}),
        ("-gb 512 train.global_batch_size=256", {"gbs": 512}),  # run_script.py applies its flags after the overrides
    ],
)
def test_harness_traps(flags, expected):
    fields = values(HARNESS + flags)
    assert {name: fields.get(name, "not stated") for name in expected} == expected


def test_a_flag_that_sets_two_knobs_says_so():
    document = read_launch_command(HARNESS + "--moe_a2a_overlap true")
    assert document.stated["delay_wgrad"].detail == "launch command: --moe_a2a_overlap true"
    assert any("sets two knobs" in problem for problem in document.problems)


@pytest.mark.parametrize(
    ("overrides", "name", "value"),
    [
        ("model.tensor_model_parallel_size=4", "tp", 4),
        ("++model.pipeline_model_parallel_layout='Et|(tt|)*30mL'", "pp_layout", "Et|(tt|)*30mL"),
        ("~model.tensor_model_parallel_size=4", "tp", "not stated"),
        ("comm_overlap.overlap_moe_expert_parallel_comm=true", "ep_overlap", True),
        ("model.moe_router_force_load_balancing=true", "routing_mode", "forced-balance"),
        ("model.moe_router_force_load_balancing=false", "routing_mode", "not stated"),
        ("model.moe_token_dispatcher_type=flex", "dispatcher", "not stated"),
        ("model.moe_token_dispatcher_type=flex model.moe_flex_dispatcher_backend=deepep", "dispatcher", "deepep"),
        ("model.recompute_modules=null", "recompute_modules", "not stated"),
        ("model.recompute_granularity=selective", "recompute_modules", "not stated"),
        ("mixed_precision=bf16_with_mxfp8_mixed", "precision", "fp8_mx"),
        ("ddp.overlap_grad_reduce=true", "dp_overlap", "not stated"),
    ],
)
def test_overrides_say_no_more_than_they_set(overrides, name, value):
    assert values(f"./scripts/training/train.sh --recipe some_config {overrides}").get(name, "not stated") == value


def test_every_command_of_the_cards():
    """GPUs and steps from the commands of the cards; precision where the recipe's name states it."""
    count = 0
    for card in sorted((shared_folder("corpus") / "cards").glob("*.json")):
        for item in json.loads(card.read_bytes())["items"]:
            document = read_launch_command(item["command"])
            parsed = item["parsed"]
            fields = {name: stated.value for name, stated in document.stated.items()}
            assert fields["gpus"] == parsed["gpus"]
            assert document.facts["train_iters"] == str(parsed["steps"])
            assert document.facts["recipe"] == parsed["recipe"]
            assert fields.get("precision", item["precision"]) == item["precision"]
            for name in ("seq_len", "tp", "cp", "pp"):
                if name in fields and parsed[name] is not None:
                    assert fields[name] == parsed[name], (name, item["command"])
            assert document.problems == ()
            count += 1
    assert count == 50


def test_of_several_commands_the_fullest_is_read():
    text = f"export NCCL_NVLS_ENABLE=0\npython tools/preprocess_data.py --seq-length 1\n{HARNESS}-tp 2\n"
    document = read_launch_command(text)
    assert document.stated["tp"].value == 2
    assert document.stated["env.NCCL_NVLS_ENABLE"].value == "0"


def test_flags_alone_are_read():
    assert values("--tensor-model-parallel-size 2 --bf16")["tp"] == 2


def test_an_unclosed_quote_gets_a_warning():
    problems = read_launch_command("python pretrain_gpt.py --bf16 --tensor-model-parallel-size 2 --save 'x").problems
    assert any("quote" in problem for problem in problems)


@pytest.mark.parametrize("text", ["", "ls -l", "hello", "# --bf16", "x" * 300_000, "'" * 1000])
def test_an_invalid_launch_command_is_refused(text):
    with pytest.raises(ValueError, match=r"\w+ .*\."):
        read_launch_command(text)
