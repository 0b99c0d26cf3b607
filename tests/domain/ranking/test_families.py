"""One family for all spellings of a model, one address for each."""

import pytest

from app.domain.ranking.runs import UNKNOWN_FAMILY, UNKNOWN_HARDWARE, family_of, hardware_of, routing_class, slug
from app.domain.run import Value

QWEN: dict[str, Value] = {
    "num_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_experts": 128,
    "topk": 8,
}


@pytest.mark.parametrize(
    ("model", "shape", "name", "address"),
    [
        ("Qwen/Qwen3_30B-a3b", {}, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen3_30B_a3B", QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        (None, QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("", QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("DSV3", {}, "DeepSeek-V3", "deepseek-v3"),
        ("DeepSeekV3", {}, "DeepSeek-V3", "deepseek-v3"),
        ("DeepSeek-V3", {"num_layers": 16}, "DeepSeek-V3 (other shape)", "deepseek-v3-other-shape"),
        ("our model", {}, "our model", "our-model"),
        ("24L-h1024-8e-top2", {}, "24L-h1024-8e-top2", "24l-h1024-8e-top2"),
        (None, {}, "unknown model", "unknown-model"),
        ("  ", {}, "unknown model", "unknown-model"),
    ],
)
def test_families(model: str | None, shape: dict[str, Value], name: str, address: str) -> None:
    assert (family_of(model, shape).name, family_of(model, shape).slug) == (name, address)


@pytest.mark.parametrize(
    ("gpu", "address"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("GB200", "gb200"), ("our ASIC", "our-asic"), (None, "unknown-gpu")],
)
def test_hardware(gpu: str | None, address: str) -> None:
    assert hardware_of(gpu).slug == address


def test_an_address_is_safe_and_loses_no_difference() -> None:
    names = ["模型-7B", "模型-8B", "a" * 200, "a" * 201, "../../etc", "<script>"]
    slugs = [slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(0 < len(one) <= 60 and set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for one in slugs)
    assert slug("...") != ""
    assert (UNKNOWN_FAMILY.slug, UNKNOWN_HARDWARE.slug) == ("unknown-model", "unknown-gpu")


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("forced-balance", "forced"),
        ("forced-biased", "forced"),
        ("dropless", "natural"),
        ("capacity-drop", "natural"),
        ("drop-and-pad", "natural"),
        ("", "unknown"),
    ],
)
def test_classes_of_routing(mode: str, found: str) -> None:
    assert routing_class(mode) == found
