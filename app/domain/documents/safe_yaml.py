"""Reads YAML that came from outside: plain values only, no tags that make objects, within limits."""

from typing import Any

import yaml

MAX_BYTES = 1024 * 1024
"""A ConfigContainer has 22 kB."""
MAX_DEPTH = 30
MAX_NODES = 50_000
_TOO_LARGE = "The YAML document is too large or nested too deep."


class _Limited(yaml.SafeLoader):
    """Counts nodes and depth while composing, so that a deep document ends before the stack does."""

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
    """Refuses a document whose aliases unfold to too much (a few lines can make gigabytes) or to themselves."""
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
    """The value. Raises ValueError with a sentence on anything else than one plain document within the limits."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"The YAML document is larger than {MAX_BYTES // 1024} kB.")
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
        raise ValueError("The YAML document is nested too deep, or holds values that cannot be read.") from None
    return document
