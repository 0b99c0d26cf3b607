"""Classes of GPU kernels: communication, copies, and what computes."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_PATH = Path(__file__).with_name("kernel_classes.toml")
_KNOWN_NAMES = 65_536

COPY_HOST = "copy.host"
COPY_DEVICE = "copy.device"
COPY_PEER = "comm.copy"
MEMSET = "memset"
EXPERT_COMMUNICATION = "comm.ep"
POINT_TO_POINT = "comm.p2p"
COLLECTIVE = "comm.collective"
TENSOR_PARALLEL = "comm.tp"
LOCAL_DISPATCH = "dispatch.local"
GRAPH = "graph"
"""A whole CUDA graph as one interval: what runs inside is unknown."""
OTHER = "other"


@dataclass(frozen=True, slots=True)
class ClassRow:
    """Names that match `pattern` have the class. `is_base`: the base name is searched, else the full one."""

    kernel_class: str
    pattern: re.Pattern[str]
    is_base: bool


def _row(row: Mapping[str, Any]) -> ClassRow:
    return ClassRow(row["class"], re.compile("|".join(row["is"]), re.IGNORECASE), row.get("on", "base") == "base")


ROWS = tuple(_row(row) for row in tomllib.loads(_PATH.read_text("utf-8"))["row"])
CLASSES = (
    *dict.fromkeys(row.kernel_class for row in ROWS),
    *(COPY_HOST, COPY_PEER, GRAPH, OTHER),
)
"""Every class once; traces store its index."""
NUMBER = {name: number for number, name in enumerate(CLASSES)}


def class_rows(text: str) -> tuple[ClassRow, ...]:
    """Read a team's rows, in the form of the built-in table. Raises ValueError, which names the row."""
    rows, table = [], tomllib.loads(text).get("row", [])
    if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):
        raise ValueError("rows must be tables [[row]]")
    for number, row in enumerate(table, 1):
        if row.get("class") not in NUMBER:
            raise ValueError(f"row {number}: class must be one of {', '.join(CLASSES)}")
        if row.get("on", "base") not in ("base", "full"):
            raise ValueError(f'row {number}: on must be "base" or "full"')
        if not isinstance(row.get("is"), list) or not all(isinstance(pattern, str) for pattern in row["is"]):
            raise ValueError(f"row {number}: is must be a list of regular expressions")
        try:
            rows.append(_row(row))
        except re.error as error:
            raise ValueError(f"row {number}: {error}") from None
    return tuple(rows)


_LABELS = {
    EXPERT_COMMUNICATION: "expert dispatch and combine",
    POINT_TO_POINT: "point-to-point communication",
    COLLECTIVE: "collectives",
    TENSOR_PARALLEL: "tensor-parallel communication",
    COPY_PEER: "copies between GPUs",
    COPY_HOST: "copies with the host",
    COPY_DEVICE: "copies on the GPU",
    MEMSET: "memory sets",
    LOCAL_DISPATCH: "token permutation",
    "gemm.grouped": "expert GEMM",
    "gemm": "GEMM",
    "attention.linear": "linear attention",
    "moe.router": "router",
    "quantize": "quantization",
    "norm": "normalization",
    "rope": "rotary embedding",
    GRAPH: "whole CUDA graphs",
    OTHER: "kernels without a class",
}


def label_of_class(kernel_class: str) -> str:
    """Return the displayed name of a class: `gemm.grouped` is "expert GEMM"."""
    return _LABELS.get(kernel_class, kernel_class)


def group_of(kernel_class: str) -> str:
    """Return "communication", "copy" or "compute". Permutation and routing compute: they occupy this rank's SMs."""
    if kernel_class.startswith("comm."):
        return "communication"
    return "copy" if kernel_class.startswith("copy.") or kernel_class == MEMSET else "compute"


def base_name(name: str) -> str:
    """Return the name before template and call arguments: `void a::<unnamed>::k<4>(int)` becomes `a::anonymous::k`."""
    name = name.removeprefix("void ").replace("(anonymous namespace)", "anonymous").replace("<unnamed>", "anonymous")
    for mark in "<(":
        name = name.partition(mark)[0]
    return name.strip()


@lru_cache(maxsize=_KNOWN_NAMES)
def kernel_class(name: str, rows: tuple[ClassRow, ...] = ()) -> str:
    """Return the class of a kernel; `rows` of a team count before the table."""
    base = base_name(name)
    for row in (*rows, *ROWS):
        if row.pattern.search(base if row.is_base else name):
            return row.kernel_class
    return copy_class(name) if name.startswith("Memcpy ") else MEMSET if name.startswith("Memset") else OTHER


def copy_class(name: str) -> str:
    """Return the class of a copy as Kineto names it: `Memcpy HtoD (Pinned -> Device)`."""
    direction = name.removeprefix("Memcpy ").partition(" ")[0]
    if direction == "PtoP":
        return COPY_PEER
    return COPY_DEVICE if direction == "DtoD" else COPY_HOST


LOW_PRECISION = re.compile("qqtst|e4m3|fp8|mxf8|mxfp8|nvfp4|e2m1", re.IGNORECASE)
"""What the full name of a matrix multiplication in FP8 or FP4 contains."""

DISPATCHERS = (
    ("hybridep", re.compile(r"\bhybrid_ep::|^ag_nvl_kernel")),
    ("ncclep", re.compile(r"^nccl_ep_jit_")),
    ("mori", re.compile(r"Ep(Dispatch|Combine)[A-Z]|^mori_ep_")),
    ("uccl", re.compile(r"\buccl::")),
    ("mooncake", re.compile(r"^mooncake_ep_")),
    ("trtllm", re.compile(r"moeA2A(Dispatch|Combine)")),
    ("deepep", re.compile(r"\b(intranode|internode|internode_ll)::|\bdeep_ep::")),
)
"""Which library an expert-communication kernel belongs to, by its name."""


def dispatcher_of(name: str) -> str | None:
    """Return the dispatcher library of an expert-communication kernel, None for another kernel."""
    return next((dispatcher for dispatcher, pattern in DISPATCHERS if pattern.search(name)), None)
