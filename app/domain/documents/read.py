"""Reads a document of a known kind, given in pieces as an upload arrives."""

from collections.abc import Callable, Iterable

from app.domain.documents.bridge_config import read_bridge_config
from app.domain.documents.container_image import read_container_image
from app.domain.documents.document import Document, DocumentKind
from app.domain.documents.golden_values import read_golden_values
from app.domain.documents.job_environment import read_job_environment
from app.domain.documents.launch_command import read_launch_command
from app.domain.documents.tensorboard import read_tensorboard

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""Of a document that is read whole. Each reader's own limit is lower; TensorBoard files are read in pieces."""

_READERS: dict[DocumentKind, Callable[[bytes], Document]] = {
    "golden values": read_golden_values,
    "bridge configuration": read_bridge_config,
    "launch command": read_launch_command,
    "job environment": read_job_environment,
    "container image": read_container_image,
}


def read_document(kind: DocumentKind, chunks: Iterable[bytes]) -> Document:
    """The document's fields, series and facts. Raises ValueError with a sentence when it is not of that kind."""
    if kind == "tensorboard":
        return read_tensorboard(chunks)
    whole = bytearray()
    for chunk in chunks:
        whole += chunk
        if len(whole) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"The document is larger than {MAX_DOCUMENT_BYTES // 1024**2} MB.")
    return _READERS[kind](bytes(whole))
