"""Takes the series of documents (TensorBoard, golden values) into a run: beside a log's, or in place of a log."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.domain.documents import Document
from app.domain.logs.series import log_interval
from app.domain.run import FloatArray, ParsedLog, Problem

_TRAINERS = {"golden values": "Megatron-LM", "bridge configuration": "Megatron-Bridge"}
"""Whose documents they are."""


def with_documents(log: ParsedLog, documents: Sequence[Document]) -> ParsedLog:
    """`log` with the series that it lacks, by iteration. A log without iterations takes those of the first document.

    What a log printed stays as printed: documents add columns, they replace none.
    """
    for document in documents:
        if "iteration" in document.columns and len(document.columns["iteration"]):
            log = _beside(log, document) if log.n else _instead(log, document)
    problems = [Problem("document", f"{document.kind}: {text}") for document in documents for text in document.problems]
    return replace(log, problems=(*log.problems, *problems)) if problems else log


def _instead(log: ParsedLog, document: Document) -> ParsedLog:
    """The document's series as the run's. It has no lines, so their numbers are 0."""
    iterations = document.columns["iteration"]
    total = document.facts.get("train_iters", "")
    return replace(
        log,
        trainer=log.trainer or _TRAINERS.get(document.kind, ""),
        columns=dict(document.columns),
        line_numbers=np.zeros(len(iterations), np.int64),
        segment_starts=(0, *(int(row) + 1 for row in np.flatnonzero(np.diff(iterations) <= 0))),
        total_iterations=log.total_iterations or (int(total) if total.isdigit() else None),
        log_interval=log.log_interval or log_interval(iterations),
    )


def _beside(log: ParsedLog, document: Document) -> ParsedLog:
    new = [name for name in document.columns if name not in log.columns]
    if not new:
        return log
    rows = _places(log.columns["iteration"], document.columns["iteration"])
    columns = dict(log.columns)
    for name in new:
        columns[name] = np.where(rows >= 0, document.columns[name][rows], np.nan)
    return replace(log, columns=columns)


def _places(wanted: FloatArray, iterations: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The row of the document that each iteration of the log has, -1 where it has none."""
    order = np.argsort(iterations, kind="stable")
    at = np.minimum(np.searchsorted(iterations[order], wanted), len(order) - 1)
    return np.where(iterations[order][at] == wanted, order[at], -1)
