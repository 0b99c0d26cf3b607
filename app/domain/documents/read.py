"""Recognises the kind of a document and reads it."""

import re
import struct
from collections.abc import Callable, Iterable

from app.domain.documents.bridge_config import read_bridge_config
from app.domain.documents.document import Document, DocumentKind
from app.domain.documents.environment import read_container_image, read_image, read_job_environment
from app.domain.documents.iteration_table import (
    read_bencher_metrics,
    read_iteration_table,
    recognise_iterations,
)
from app.domain.documents.launch_command import OVERRIDE, read_commands, read_launch_command
from app.domain.documents.scalars import read_golden_values
from app.domain.documents.slurm import expand_nodes, read_node_list, read_slurm_accounting
from app.domain.documents.tensorboard import HEADER_BYTES, masked_crc32c, read_tensorboard

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""Limit for documents that are read whole. Each reader has a lower limit; TensorBoard files are read in pieces."""

_READERS: dict[DocumentKind, Callable[[bytes], Document]] = {
    "golden values": read_golden_values,
    "iterations": read_iteration_table,
    "bencher metrics": read_bencher_metrics,
    "bridge configuration": read_bridge_config,
    "launch command": read_launch_command,
    "job environment": read_job_environment,
    "slurm accounting": read_slurm_accounting,
    "node list": read_node_list,
    "container image": read_container_image,
}


def read_document(kind: DocumentKind, chunks: Iterable[bytes]) -> Document:
    """Read the document's fields, series and facts. Raises ValueError with a sentence when it is not of that kind."""
    if kind == "tensorboard":
        return read_tensorboard(chunks)
    whole = bytearray()
    for chunk in chunks:
        whole += chunk
        if len(whole) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"The document is larger than {MAX_DOCUMENT_BYTES // 1024**2} MB.")
    return _READERS[kind](bytes(whole))


# --- Recognises the kind of a document from its first bytes.

HEAD_BYTES = 64 * 1024
"""Enough for every kind: a ConfigContainer's first sections, an environment, a launch script."""

_GOLDEN = re.compile(rb'"(?:start_step|step_interval)"\s*:|"schema"\s*:\s*"golden-run/')
_CONTAINER = re.compile(rb"^_target_: *\S*ConfigContainer\s*$", re.MULTILINE)
_SECTION = re.compile(
    rb"^(checkpoint|comm_overlap|dataset|ddp|dist|ft|logger|mixed_precision|model|optimizer|rng|train|tokenizer):",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"(?:export |declare -[a-zA-Z]+ )?[A-Za-z_][A-Za-z0-9_]*=\S?")
_JSON_VARIABLE = re.compile(
    rb'"(?:SLURM_JOB_ID|PATH|PWD|HOME|(?:SLURM|NCCL|NVTE|CUDA|TORCH|NVSHMEM)_\w+)"\s*:\s*["0-9]'
)
_LAUNCHERS = re.compile(
    r"(?:^|[\s/;&(])(?:torchrun|srun|mpirun|accelerate|deepspeed|python3?|train\.sh|run_\w+\.(?:py|sh)|setup_experiment\.py)\s"
)
_IMAGE_NAMES = (".sqsh", ".squashfs")
_ACCOUNTING = re.compile(rb'"jobs"\s*:\s*\[')
_OF_ACCOUNTING = re.compile(rb'"(?:allocation_nodes|derived_exit_code)"\s*:')
_NODE_LIST_NAMES = re.compile(r"node_?-?s?(list|file)|nodes|hosts?_?(list|file)|hostnames", re.IGNORECASE)


def recognise(name: str, head: bytes) -> DocumentKind | None:
    """Return the kind of a document whose first bytes are `head`; None for a log, an archive and anything else.

    `name` is the file name. It never decides alone; it only lets a single word count as an image name.
    """
    if kind := recognise_long(head):
        return kind
    head = head[:HEAD_BYTES]
    if b"\0" in head and not _is_environ(head):
        return None
    if head.lstrip()[:1] == b"{":
        return "job environment" if _JSON_VARIABLE.search(head) else None
    return _recognise_text(name, head.decode("utf-8", "replace"))


def recognise_long(head: bytes) -> DocumentKind | None:
    """Return the kind of a document that may be longer than its head; None for everything else.

    Much cheaper than `recognise`, which looks for commands and variables in every line.
    """
    head = head[:HEAD_BYTES]
    if _is_event_file(head):
        return "tensorboard"
    if b"\0" in head and not _is_environ(head):
        return None
    is_json = head.lstrip()[:1] == b"{"
    if is_json and _GOLDEN.search(head):
        return "golden values"
    is_accounting = is_json and _ACCOUNTING.search(head) and _OF_ACCOUNTING.search(head)
    kind: DocumentKind | None = "slurm accounting" if is_accounting else recognise_iterations(head)
    if kind is not None or is_json:
        return kind
    if _CONTAINER.search(head) or len({match[1] for match in _SECTION.finditer(head)}) >= 3:
        return "bridge configuration"
    return None


def _is_event_file(head: bytes) -> bool:
    """Return True when the first frame has a valid header and holds the file's version."""
    if len(head) < HEADER_BYTES:
        return False
    _, checksum = struct.unpack("<QI", head[:HEADER_BYTES])
    return b"brain.Event:" in head[:100] and masked_crc32c(head[:8]) == checksum


def _is_environ(head: bytes) -> bool:
    """Return True for /proc/PID/environ: variables separated by NUL."""
    parts = head.split(b"\0")[:-1][:50]
    return len(parts) > 1 and all(_VARIABLE.match(part.decode("utf-8", "replace")) for part in parts if part)


def _recognise_text(name: str, text: str) -> DocumentKind | None:
    lines = [
        line for line in text.replace("\0", "\n").splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        return None
    if _is_command(text, lines):
        return "launch command"
    variables = sum(bool(_VARIABLE.match(line.strip())) for line in lines)
    if variables >= 2 and variables * 2 > len(lines):
        return "job environment"
    if _NODE_LIST_NAMES.search(name) and all(expand_nodes(line.split()[0]) for line in lines):
        return "node list"
    if len(lines) == 1 and _is_image(name, lines[0].strip()):
        return "container image"
    return None


def _is_command(text: str, lines: list[str]) -> bool:
    """Return True for a launcher or script with flags. A log that quotes its command has other lines first."""
    first = next((line for line in lines if not _VARIABLE.match(line.strip())), lines[0])
    if not (_LAUNCHERS.search(first + " ") or first.lstrip().startswith("--")):
        return False
    commands, _ = read_commands(text[:16_384])
    return any(any(word.startswith("--") or OVERRIDE.fullmatch(word) for word in command.words) for command in commands)


def _is_image(name: str, word: str) -> bool:
    """Return True for an image name: registry and tag, a digest, a file ending, or a tag and a fitting file name."""
    try:
        image = read_image(word)
    except ValueError:
        return False
    named_as_image = "image" in name.lower() or "container" in name.lower()
    return bool(
        (image.registry and image.tag)
        or image.digest
        or word.lower().endswith(_IMAGE_NAMES)
        or (named_as_image and image.tag)
    )
