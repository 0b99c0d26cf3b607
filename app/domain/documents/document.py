"""The result of reading a document, and safe readers for JSON and YAML from outside."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from app.domain.run import FloatArray, Stated

DocumentKind = Literal[
    "tensorboard",
    "golden values",
    "iterations",
    "bencher metrics",
    "bridge configuration",
    "launch command",
    "job environment",
    "slurm accounting",
    "node list",
    "container image",
]


@dataclass(frozen=True, slots=True)
class Document:
    """The content of one document.

    `stated`: contract fields by canonical name. `columns`: series of equal length by canonical name, NaN where nothing
    was recorded; with any series there are `iteration`, `step_time_ms` and `step_time_true_ms` (see ParsedLog).
    `facts`: what identifies the run but is not a contract field (Slurm job, recipe name). `problems`: sentences for
    users. `refused`: those of them that are about the value of a contract field, by its name.
    """

    kind: DocumentKind
    stated: Mapping[str, Stated] = field(default_factory=dict)
    columns: Mapping[str, FloatArray] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


# --- Reads untrusted JSON within limits.

MAX_JSON_BYTES = 32 * 1024 * 1024
"""The largest golden-values file has 0.6 MB."""


def read_json(text: str | bytes) -> object:
    """Return the value. Raises ValueError with a sentence for text that is not JSON, too large or too deeply nested."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"The JSON document is larger than {MAX_JSON_BYTES // 1024**2} MB.")
    try:
        document: object = json.loads(text)
    except RecursionError:
        raise ValueError("The JSON document is too deeply nested.") from None
    except (ValueError, UnicodeDecodeError) as error:  # JSONDecodeError, and integers of thousands of digits
        raise ValueError(f"This is not JSON: {str(error)[:200]}.") from None
    return document


# --- Reads untrusted YAML within limits: plain values only, no tags that create objects.

MAX_YAML_BYTES = 1024 * 1024
"""A ConfigContainer has 22 kB."""
MAX_DEPTH = 30
MAX_NODES = 50_000
_TOO_LARGE = "The YAML document is too large or too deeply nested."


class _Limited(yaml.SafeLoader):
    """Limits nodes and depth while composing, before a deep document exhausts the stack."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes += 1
        self._depth += 1
        if self._nodes > MAX_NODES or self._depth > MAX_DEPTH:
            raise ValueError(_TOO_LARGE)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _check_unfolded(root: yaml.Node | None) -> None:
    """Raise ValueError when aliases expand beyond the limits (a few lines can expand to gigabytes) or to themselves."""
    seen = 0
    waiting = [(root, 0)] if root is not None else []
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if seen > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError(_TOO_LARGE)
        if isinstance(node, yaml.SequenceNode):
            waiting += [(child, depth + 1) for child in node.value]
        elif isinstance(node, yaml.MappingNode):
            waiting += [(child, depth + 1) for pair in node.value for child in pair]


def read_yaml(text: str | bytes) -> object:
    """Return the value. Raises ValueError with a sentence unless the text is one plain document within the limits."""
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"The YAML document is larger than {MAX_YAML_BYTES // 1024} kB.")
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    try:
        loader = _Limited(decoded)
        try:
            node = loader.get_single_node()
            _check_unfolded(node)
            document: object = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise ValueError(f"This is not plain YAML{line}: {getattr(error, 'problem', None) or 'unreadable'}") from None
    except (RecursionError, OverflowError, TypeError):  # nested flow collections, dates out of range, keys like [1]
        raise ValueError("The YAML document is too deeply nested or contains values that cannot be read.") from None
    return document


# --- Recognises secrets, which must never be stored: names that carry credentials, and values that look like one.

_NAME = re.compile(
    r"TOKEN(?!S|IZER|_DISPATCHER)|SECRET|PASSW|CREDENTIAL|AUTHORIZATION|COOKIE|(^|_)(KEY|PWD|PAT|AUTH)(_|$)|APIKEY|ACCESS_?KEY"
    r"|PRIVATE_?KEY|WANDB_KEY",
    re.IGNORECASE,
)
"""`TOKEN` but not `NUM_OF_TOKENS...`, `TOKENIZERS_PARALLELISM` or `moe_token_dispatcher_type`, which are settings."""
_VALUE = re.compile(r"^(hf_|ghp_|gho_|github_pat_|glpat-|nvapi-|sk-|xox[abp]-|AKIA|eyJ)[\w.-]{8,}|-----BEGIN ")
_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def is_secret(name: str, value: str) -> bool:
    """Return True when a variable or flag must not be stored."""
    return bool(_NAME.search(name.replace("-", "_")) or _VALUE.search(value.strip()) or _IN_URL.search(value))
