"""What one uploaded document says: contract fields, series, other facts, and what could not be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.domain.run import FloatArray, Stated

DocumentKind = Literal[
    "tensorboard", "golden values", "bridge configuration", "launch command", "job environment", "container image"
]


@dataclass(frozen=True, slots=True)
class Document:
    """One document, read.

    `stated`: contract fields by canonical name. `columns`: series of equal length by canonical name, NaN where nothing
    was recorded; with any series there are `iteration`, `step_time_ms` and `step_time_true_ms` (see ParsedLog).
    `facts`: what identifies the run but is no contract field (Slurm job, recipe name). `problems`: plain sentences.
    """

    kind: DocumentKind
    stated: Mapping[str, Stated] = field(default_factory=dict)
    columns: Mapping[str, FloatArray] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
