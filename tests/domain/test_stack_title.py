"""A stack in one line."""

from app.domain.naming import stack_title
from app.domain.run import Stated


def contract(**values: str | int) -> dict[str, Stated]:
    return {name: Stated(value, "metadata") for name, value in values.items()}


def test_a_stack_is_known_by_model_hardware_dispatcher_routing_and_container() -> None:
    whole = contract(
        model="Qwen3-30B-A3B", gpu="H100", gpus=16, dispatcher="hybridep", routing_mode="forced-balance",
        container="nvcr.io/nvidia/nemo:26.06@sha256:0f3c",
    )  # fmt: skip
    assert stack_title(whole) == "Qwen3-30B-A3B · 16 × H100 · hybridep · forced balance · nemo:26.06"
    assert stack_title(whole, dispatcher=False) == "Qwen3-30B-A3B · 16 × H100 · forced balance · nemo:26.06"


def test_what_nobody_states_is_unknown_or_left_out() -> None:
    assert stack_title({}) == "unknown model · unknown GPU"
    assert stack_title(contract(model="DSV3", gpus=64)) == "DSV3 · 64 × unknown GPU"
