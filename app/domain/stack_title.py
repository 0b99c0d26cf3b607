"""A stack in one line for people: `Qwen3-30B-A3B · 16 × H100 · hybridep · forced balance · nemo:26.06`."""

from collections.abc import Mapping

from app.domain.contract.values import shown
from app.domain.run import Stated

_SEPARATOR = " · "


def stack_title(contract: Mapping[str, Stated], *, dispatcher: bool = True) -> str:
    """What a person knows a stack by. The dispatcher is a knob: leave it out where a stack has several."""
    parts = [
        _text(contract, "model") or "unknown model",
        _hardware(contract),
        _text(contract, "dispatcher") if dispatcher else "",
        _text(contract, "routing_mode").replace("-", " ").replace("_", " "),
        _text(contract, "container").partition("@")[0].rpartition("/")[2],
    ]
    return _SEPARATOR.join(part for part in parts if part)


def _hardware(contract: Mapping[str, Stated]) -> str:
    gpu, gpus = _text(contract, "gpu"), _text(contract, "gpus")
    return f"{gpus} × {gpu or 'unknown GPU'}" if gpus else gpu or "unknown GPU"


def _text(contract: Mapping[str, Stated], name: str) -> str:
    stated = contract.get(name)
    return "" if stated is None or stated.value is None else shown(stated.value)
