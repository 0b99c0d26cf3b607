"""Contract fields of Megatron-LM's command-line flags, each with the document that holds them in its detail."""

import re
from collections.abc import Mapping
from dataclasses import replace

from app.domain.logs.launch_args import stated_by_launch_args
from app.domain.run import Stated

MAX_FLAGS = 3000
MAX_VALUE = 2000
_PREFIX = "launch_args: "
_WORDS_IN_BRACKETS = re.compile(r"\[([\w.+-]+(?: +[\w.+-]+)*)\]")


def stated_by_flags(flags: Mapping[str, object], where: str) -> tuple[dict[str, Stated], list[str]]:
    """Fields and warnings. `flags` maps `--micro-batch-size` to its value, True for a flag without one."""
    usable = {name: _plain(value) for name, value in list(flags.items())[:MAX_FLAGS] if len(str(value)) <= MAX_VALUE}
    stated, warnings = stated_by_launch_args(usable)
    return {
        name: replace(field, source="metadata", detail=f"{where}: {field.detail.removeprefix(_PREFIX)}")
        for name, field in stated.items()
    }, [f"{where}: {warning.removeprefix(_PREFIX)}" for warning in warnings]


def _plain(value: object) -> object:
    """`[mlp moe_act]` as a list: the test configurations of Megatron-LM write flags with several values so."""
    words = _WORDS_IN_BRACKETS.fullmatch(value.strip()) if isinstance(value, str) else None
    return words[1].split() if words else value
