"""Reads a pipeline layout such as `Et*3|(tt|)*29m|L`: which layers stand on which stage.

Grammar: Megatron-LM `megatron/core/transformer/pipeline_parallel_layer_layout.py`. E embedding, t decoder layer, m
multi-token-prediction layer, L loss, `|` ends a stage, `(...)*n` and `x*n` repeat, commas and blanks mean nothing.
"""

import re

_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,4})")
_ITEM = re.compile(r"([EtmL|])\*(\d{1,4})")
_PLAIN = re.compile(r"[EtmL|]+")
MAX_ITEMS = 10_000


def stages(layout: str) -> tuple[str, ...] | None:
    """The layers of each stage, in order, one letter a layer; None when the layout cannot be read."""
    text = re.sub(r"[,\s]", "", layout)
    for repeated in (_GROUP, _ITEM):
        if sum(len(m[1]) * int(m[2]) for m in repeated.finditer(text)) > MAX_ITEMS:
            return None
        text = repeated.sub(lambda m: m[1] * int(m[2]), text)
    return tuple(text.split("|")) if _PLAIN.fullmatch(text) else None


def layout_problem(layout: str, pp: int | None, num_layers: int | None, mtp: int | None) -> str | None:
    """Why a layout cannot be right, as the end of a sentence; None when nothing speaks against it."""
    found = stages(layout)
    if found is None:
        return "cannot be read"
    text = "".join(found)
    if not (text.startswith("E") and text.endswith("L") and text.count("E") == text.count("L") == 1):
        return "must begin with E and end with L, with one of each"
    if pp and len(found) % pp:
        return f"has {len(found)} stages, which pp = {pp} does not divide"
    if num_layers and text.count("t") != num_layers:
        return f"holds {text.count('t')} layers, the model has {num_layers}"
    if mtp is not None and text.count("m") != mtp:
        return f"holds {text.count('m')} multi-token-prediction layers, the model has {mtp}"
    return _mtp_problem(found, pp) if "m" in text else None


def _mtp_problem(found: tuple[str, ...], pp: int | None) -> str | None:
    """Where multi-token-prediction layers may not stand."""
    text, places = "".join(found), [number for number, stage in enumerate(found) if "m" in stage]
    if "t" in text[text.index("m") :]:
        return "has a layer after a multi-token-prediction layer"
    if len(places) > 1:
        return "spreads the multi-token-prediction layers over several stages"
    if pp and places[0] // pp != len(found) // pp - 1:
        return "puts multi-token-prediction layers on a chunk that is not the last of its rank"
    return None
