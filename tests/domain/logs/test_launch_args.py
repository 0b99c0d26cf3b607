"""Command-line flags as contract fields."""

import json
from pathlib import Path

import pytest

from app.domain.logs.launch_args import stated_by_launch_args
from app.domain.run import Value

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "golden"


def found(args: object) -> dict[str, Value]:
    fields, warnings = stated_by_launch_args(args)  # type: ignore[arg-type]
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
    assert found(args) == fields


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
    assert found(args)["dispatcher"] == dispatcher


def test_where_a_value_comes_from_is_told() -> None:
    fields, _ = stated_by_launch_args("--tensor-model-parallel-size 4")
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
    """The golden runs' own arguments: what every one of them states must come out, and nothing may be refused."""
    paths = sorted(GOLDEN.glob("*/*.json"))
    refused = set()
    for path in paths:
        args = json.loads(path.read_text(encoding="utf-8"))["launch_args"]
        fields, warnings = stated_by_launch_args(args)
        refused.update(warnings)
        for flag, name in (
            ("--num-layers", "num_layers"),
            ("--tensor-model-parallel-size", "tp"),
            ("--seq-length", "seq_len"),
        ):
            assert (flag in args) == (name in fields)
            assert flag not in args or fields[name].value == args[flag]
    assert refused == set()
