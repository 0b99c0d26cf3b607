"""Small readings: contract values, GPU names, peaks, throughput, pipeline layouts, the registry itself."""

import pytest

from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, METRICS, STACK_FIELDS
from app.domain.contract.values import comparable, gpu_sku, layout_problem, read_value, shown, stages
from app.domain.documents.bridge_config import settings_at
from app.domain.flags import FLAGS
from app.domain.logs.arguments import contract_fields
from app.domain.logs.settings import Setting
from app.domain.performance.figures import mfu_pct, tflops_per_gpu, tokens_per_s_per_gpu
from app.domain.performance.flops import AMD_SOURCE, SOURCE, peak_flops
from app.domain.run import Value
from tests.cases import every_case


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("gpus", 8.0, 8),
        ("gpus", "8", 8),
        ("mtp", 0, 0),
        ("vpp", None, None),
        ("vpp", "None", None),
        ("capacity", 1.0, 1),
        ("capacity", "1.25", 1.25),
        ("capacity", -1, None),
        ("sp", "True", True),
        ("sp", 0, False),
        ("precision", "bf16_with_mxfp8_mixed", "fp8_mx"),
        ("attention", "AttnBackend.flash", "flash"),
        ("attention", "<AttnBackend.auto: 5>", "auto"),
        ("graph_impl", None, "none"),
        ("graph_impl", "None", "none"),
        ("router_dtype", None, None),
        ("graph_modules", "moe_router,attn", ("attn", "moe_router")),
        ("graph_modules", ["attn", "attn"], ("attn",)),
        ("graph_modules", "[<CudaGraphModule.attn: 1>, <CudaGraphModule.moe: 2>]", ("attn", "moe")),
        ("graph_modules", [], ()),
        ("graph_modules", None, ()),
        ("recompute_modules", None, None),
        ("recompute_modules", [], ()),
        ("recompute_modules", ["up_proj", "norm", "act"], ("layernorm", "mla_up_proj", "moe_act")),
        ("pp_account", {"embedding": True, "loss": False}, ("embedding",)),
        ("hcp_sizes", [4, 2], (4, 2)),
        ("moe_layer_freq", 1, 1),
        ("moe_layer_freq", "[0, 1, 1]", (0, 1, 1)),
        ("pp_layout", "Et*3 | (tt|)*29 m|L", "Et*3|(tt|)*29m|L"),
        ("pp_layout", "Et*3\\|\\(tt\\|\\)*6L", "Et*3|(tt|)*6L"),
        ("cp_comm", ["p2p", "a2a"], "p2p,a2a"),
        ("gpu", "NVIDIA H100 80GB HBM3", "H100"),
        ("gpu", "Some Card", "Some Card"),
        ("model", "qwen3_30b_a3b", "Qwen3-30B-A3B"),
        ("env.NCCL_NVLS_ENABLE", 0, "0"),
    ],
)  # fmt: skip
def test_canonical_values(name: str, raw: object, value: Value) -> None:
    result = read_value(name, raw)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("gpus", 0),
        ("gpus", "eight"),
        ("gpus", float("inf")),
        ("mtp", -1),
        ("capacity", "a lot"),
        ("sp", 2),
        ("precision", "bf17"),
        ("graph_modules", [1]),
        ("graph_modules", ["x"] * 2000),
        ("moe_layer_freq", [0, 2]),
        ("moe_layer_freq", []),
        ("container", True),
    ],
)
def test_values_that_a_field_does_not_take(name: str, raw: object) -> None:
    with pytest.raises(ValueError, match=r"^must"):
        read_value(name, raw)


def test_canonical_values_stay_as_they_are() -> None:
    for name, raw in (("graph_modules", ["moe", "attn"]), ("precision", "mxfp8"), ("model", "dsv3"), ("gpu", "h100")):
        once = read_value(name, raw)
        assert read_value(name, once) == once


def test_comparison_ignores_the_case_of_names_only() -> None:
    assert comparable("cluster", "EOS") == comparable("cluster", "eos")
    assert comparable("container", "A") != comparable("container", "a")
    assert comparable("vpp", None) == "(unset)"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "unset"), (True, "true"), ((), "empty"), (("a", "b"), "a, b"), (1.5, "1.5")]
)
def test_values_are_shown_as_users_write_them(value: Value, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("name", "sku"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GB200", "GB200"),
        ("dgx_gb200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("h100", "H100"),
        ("AMD Instinct MI300X", "MI300X"),
        ("RTX 6000", None),
    ],
)
def test_gpu_names(name: str, sku: str | None) -> None:
    assert gpu_sku(name) == sku


@pytest.mark.parametrize(
    ("gpu", "precision", "tflops"),
    [
        ("H100", "bf16", 989),
        ("H100", "fp16", 989),
        ("H100", "fp8_sc", 1979),
        ("H100", "nvfp4", None),
        ("B200", "fp8_mx", 4500),
        ("B300", "nvfp4", 13500),
        ("GB200", "bf16", 2450),
        ("GB300", "fp8_mx", 4900),
        ("GB300", "nvfp4", 14700),
        ("MI300X", "bf16", 1307.4),
        ("MI355X", "fp8_mx", 5033.2),
        ("H200", "bf16", None),
        ("A100", "bf16", None),
        ("H100", "int8", None),
    ],
)
def test_peaks(gpu: str, precision: str, tflops: float | None) -> None:
    peak = peak_flops(gpu, precision)
    assert (peak.tflops if peak else None) == tflops
    assert peak is None or peak.source == (AMD_SOURCE if gpu.startswith("MI") else SOURCE)


def test_throughput_by_hand() -> None:
    # 8 sequences of 1000 tokens in half a second on 4 GPUs: 4000 tokens/s/GPU; 2e15 FLOPs: 1000 TFLOP/s/GPU
    assert tokens_per_s_per_gpu(500.0, 8000, 4) == 4000
    assert tflops_per_gpu(500.0, 2e15, 4) == 1000
    assert mfu_pct(494.5, 989.0) == 50


@pytest.mark.parametrize(("time", "gpus"), [(0.0, 8), (-1.0, 8), (100.0, 0)])
def test_throughput_needs_time_and_gpus(time: float, gpus: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        tflops_per_gpu(time, 1e12, gpus)
    with pytest.raises(ValueError, match="positive"):
        tokens_per_s_per_gpu(time, 1, gpus)


def test_mfu_needs_a_peak() -> None:
    with pytest.raises(ValueError, match="positive"):
        mfu_pct(100, 0)


@pytest.mark.parametrize(
    ("layout", "count", "layers", "mtp"),
    [
        ("Et*3|(tt|)*29m|L", 32, 61, 1),
        ("Et|(tt|)*30mL", 32, 61, 1),
        ("Et*4|(tttt|)*14tmL", 16, 61, 1),
        ("Et|(tt|)*30L", 32, 61, 0),
        ("Et*4|(t*7|)*5t*8|tmL", 8, 48, 1),
        ("E||tL", 3, 1, 0),
    ],
)
def test_layouts(layout: str, count: int, layers: int, mtp: int) -> None:
    result = stages(layout)
    assert result is not None
    text = "".join(result)
    assert (len(result), text.count("t"), text.count("m")) == (count, layers, mtp)
    assert layout_problem(layout, count, layers, mtp) is None


@pytest.mark.parametrize(
    ("layout", "pp", "message"),
    [
        ("Etm|tL", 2, "has a layer after"),
        ("Et|tm|mL", 3, "over several stages"),
        ("Et|tm||L", 2, "not the last of its rank"),
        ("Et|t|m|L", 2, None),
        ("Et|tm||L", None, None),
    ],
)
def test_multi_token_prediction_layers_of_a_layout_come_last(layout: str, pp: int | None, message: str | None) -> None:
    problem = layout_problem(layout, pp, None, None)

    assert problem is None if message is None else message in (problem or "")


@pytest.mark.parametrize("layout", ["", "Et(t|", "Ex", "E(t(t)*2)*2L", "Et*99999L", "E(" + "t" * 99 + ")*9999L"])
def test_layouts_that_cannot_be_read(layout: str) -> None:
    assert stages(layout) is None
    assert layout_problem(layout, None, None, None) == "cannot be read"


def test_the_registry_contains_each_field_once_and_each_role() -> None:
    assert set(STACK_FIELDS) | set(CONFIG_FIELDS) <= set(FIELDS)
    assert not set(STACK_FIELDS) & set(CONFIG_FIELDS)
    assert {"model", "task", "data_mode", "seq_len", "gbs", "mbs", "precision", "gpu", "gpus", "cluster", "container",
            "routing_mode", "pp", "vpp", "pp_layout", "graph_impl", "graph_modules"} <= set(STACK_FIELDS)  # fmt: skip
    assert {"dispatcher", "dispatch_sms", "tp", "cp", "ep", "etp", "ep_overlap"} <= set(CONFIG_FIELDS)
    assert [metric.less_is_better for metric in METRICS.values()] == [True, False, False, False, True]


# --- The table of names: every row is a contract field, and every name is read.


def test_every_row_is_a_contract_field_or_one_of_its_words() -> None:
    with every_case() as case:
        for name, row in FLAGS.items():
            with case(name):
                assert set(row.words) <= set(FIELDS[name].choices)


def test_a_field_has_one_flag_unless_code_writes_it() -> None:
    several = {name for name, row in FLAGS.items() if len(row.flags) > 1 and not row.together}
    assert several == set()


def test_every_argument_states_its_field() -> None:
    with every_case() as case:
        for name, row in FLAGS.items():
            for argument in () if row.together else row.arguments:
                with case((name, argument)):
                    stated, refused = contract_fields({argument: Setting(argument, None, "arguments")})
                    assert name in stated or refused


def test_every_path_is_read() -> None:
    with every_case() as case:
        for name, row in FLAGS.items():
            for path in row.all_paths:
                with case((name, path)):
                    assert settings_at({path: True}, "arguments") or path == "mixed_precision"
