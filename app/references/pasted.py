"""Recognise the values of a published figure in pasted text: a log line, a line of a paper, a table with its header."""

import re
from collections.abc import Iterator

from app.domain.contract.values import KNOWN_MODELS, gpu_sku

# A number is matched as a whole from its first digit; otherwise a long one would be tried from every digit to every
# other.
_COUNT = r"(?<![\d.,])(\d++(?:,\d{3})*+)"
_NUMBER = r"(?<![\d.,])(\d++(?:,\d{3})*+(?:\.\d++)?+)"
_FIGURES = {
    "tokens_per_s_per_gpu": r"tok(?:en)?s?\s*/\s*s(?:ec)?\s*/\s*gpu",
    "tflops_per_gpu": r"(?:model\s+)?tflops?(?:\s*/\s*s)?(?:\s*/\s*gpu)?",
}
_STEP_S = (rf"{_NUMBER}\s*s(?:econds)?\s*(?:/|per|a)\s*(?:step|iteration)", rf"step time \(?s\)?\s*[:=]\s*{_NUMBER}")
_STEP_MS = (
    rf"elapsed time per iteration \(ms\):\s*{_NUMBER}", rf"{_NUMBER}\s*ms\s*(?:/|per|a)\s*(?:step|iteration)",
    rf"step time (?:in |\()ms\)?\s*[:=]\s*{_NUMBER}",
)  # fmt: skip
_COUNTS = {
    "tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "etp": "etp", "gbs": "gbs|global batch(?: size)?",
    "mbs": "mbs|micro batch(?: size)?", "seq_len": "seq(?:uence)?(?:[_ ]?len(?:gth)?)?",
}  # fmt: skip
_PRECISIONS = {
    "nvfp4": r"nvfp4", "fp8_mx": r"mxfp8|fp8[-_ ]mx", "fp8_ds": r"fp8[-_ ]ds", "fp8_cs": r"fp8[-_ ]cs",
    "fp8_sc": r"fp8[-_ ]sc", "fp8": r"fp8", "bf16": r"bf16|bfloat16",
}  # fmt: skip
_DISPATCHERS = "hybridep|deepep|alltoall|allgather"


def recognise(text: str) -> dict[str, str]:
    """Return the recognised values as text, by the name of their field. What is not recognised is missing."""
    return dict(_values(_labelled(text)))


def _values(text: str) -> Iterator[tuple[str, str]]:
    for name, unit in _FIGURES.items():
        yield from _first(name, text, rf"{_NUMBER}[ \t]*{unit}", rf"{unit}\)?\s*[:=]\s*{_NUMBER}")
    for name, milliseconds in _first("step_time_ms", text, *_STEP_MS):
        yield name, milliseconds
    for name, seconds in _first("step_time_ms", text, *_STEP_S):
        yield name, f"{float(seconds) * 1000:.15g}"
    for name, label in _COUNTS.items():
        yield from _first(name, text, rf"\b(?:{label})\s*[:=]?\s*{_COUNT}\b")
    for name, pattern in _PRECISIONS.items():
        if re.search(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield "precision", name
            break
    yield from _first("dispatcher", text.lower(), rf"\b({_DISPATCHERS})\b")
    yield from _first("url", text, r"(https?://[^\s|)>\"]+)")
    yield from _first("date", text, r"\b(20\d\d-[01]\d(?:-[0-3]\d)?)\b")
    yield from _hardware(text)
    named = [model.name for model in KNOWN_MODELS if model.name.lower() in text.lower()]
    if named:
        yield "model", max(named, key=len)


def _hardware(text: str) -> Iterator[tuple[str, str]]:
    for word in re.findall(r"(?<![A-Z])[A-Z]{1,2}\d+[A-Z]?\b", text):
        gpu = gpu_sku(word)
        if gpu is not None:
            yield "gpu", gpu
            yield from _first("gpus", text, rf"{_COUNT}\s*[x×*]?\s*{word}", rf"\bgpus?\s*[:=]\s*{_COUNT}")
            return
    yield from _first("gpus", text, rf"{_COUNT}\s*gpus\b", rf"\bgpus\s*[:=]\s*{_COUNT}")


def _first(name: str, text: str, *patterns: str) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            value = match.group(1)
            yield name, value if "://" in value else value.replace(",", "")
            return


def _labelled(text: str) -> str:
    """Write the first row of a table with a header as `label: value` pairs, other text as it is."""
    lines = [line for line in text.splitlines() if line.strip() and not re.fullmatch(r"[\s|:-]+", line)]
    cells = [re.split(r"\s*[|\t]\s*", line.strip(" |")) for line in lines[:2]]
    if len(cells) == 2 and len(cells[0]) == len(cells[1]) > 1:
        return "\n".join(f"{label}: {value}" for label, value in zip(*cells, strict=True))
    return text
