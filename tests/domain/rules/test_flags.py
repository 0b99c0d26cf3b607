"""Every value that is written as flags or overrides is read back as the same contract value."""

from app.domain.contract.values import read_value, same_value
from app.domain.documents.launch_command import read_launch_command
from app.domain.logs.launch_args import stated_by_launch_args
from app.domain.rules.flags import written
from tests.cases import every_case

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
    *(("precision", one) for one in ("bf16", "fp16", "fp8_ds", "fp8_cs", "fp8_sc", "fp8_mx", "nvfp4")),
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
    flags = written(name, value).megatron_lm.flags  # type: ignore[arg-type]
    return " ".join(f"{flag} {' '.join(values)}" for flag, values in flags.items())


def test_flags_are_read_back() -> None:
    with every_case() as case:
        for name, value in VALUES:
            with case((name, value)):
                found, warnings = stated_by_launch_args(command(name, value))

                assert warnings == []
                assert same_value(name, read_value(name, found[name].value), read_value(name, value))


def test_overrides_are_read_back() -> None:
    with every_case() as case:
        for name, value in VALUES:
            with case((name, value)):
                overrides = written(name, value).bridge  # type: ignore[arg-type]
                text = " ".join(f"{path}={item}" for path, item in overrides.items() if path != "mixed_precision")
                if "mixed_precision" in overrides:
                    assert read_value("precision", overrides["mixed_precision"]) == value
                    continue

                found = read_launch_command(f"torchrun pretrain.py {text}").stated

                assert same_value(name, read_value(name, found[name].value), read_value(name, value))


def test_modules_are_read_back_beside_their_switch() -> None:
    graphs = f"{command('graph_impl', 'transformer_engine')} {command('graph_modules', ('attn', 'moe_router'))}"
    recompute = f"{command('recompute_granularity', 'selective')} {command('recompute_modules', ('moe_act', 'mlp'))}"

    found, _ = stated_by_launch_args(f"{graphs} {recompute}")

    assert read_value("graph_modules", found["graph_modules"].value) == ("attn", "moe_router")
    assert read_value("recompute_modules", found["recompute_modules"].value) == ("mlp", "moe_act")


def test_unset_means_that_the_flag_is_not_there() -> None:
    assert "--num-virtual-stages-per-pipeline-rank" in written("vpp", None).megatron_lm.without
    assert written("sp", False).megatron_lm.without == ("--sequence-parallel",)
    assert written("dispatcher", "alltoall").megatron_lm.without == (
        "--moe-flex-dispatcher-backend",
        "--moe-enable-deepep",
    )
    assert written("gpus", 64).megatron_lm.flags == {}
