"""What the options state about a run becomes its metadata, as an upload's `meta` would."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from app.analysis.usage_error import UsageError
from app.domain.metadata import read_metadata
from app.domain.run import Metadata

_WINDOW = re.compile(r"(\d+)-(\d+)")


def read_statements(documents: Iterable[str], settings: Iterable[str], *, lenient: bool = False) -> Metadata:
    """Metadata of the `--meta` documents (later ones win) and, over them, of `--set KEY=VALUE`.

    Raises UsageError on what cannot be read, InvalidMetadata on a wrong value and, unless `lenient`, on an unknown KEY.
    """
    stated: dict[str, object] = {}
    for document in documents:
        stated |= _document(document) if document else {}
    named = [_setting(setting) for setting in settings]
    return read_metadata(stated | dict(named), () if lenient else [name for name, _ in named])


def _document(text: str) -> dict[str, object]:
    where = "--meta"
    if not text.lstrip().startswith("{"):
        where = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The metadata file {where} cannot be read: {error}.") from None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}.") from None
    if not isinstance(found, Mapping):
        raise UsageError(f'{where} must be a JSON object, for instance {{"gpu": "H100", "gpus": 64}}.')
    return dict(cast(Mapping[str, object], found))


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: write KEY=VALUE, for instance --set gpu=H100.")
    if name == "window" and (window := _WINDOW.fullmatch(value)):
        return name, {"first": int(window[1]), "last": int(window[2])}
    if value.startswith(("{", "[")):
        try:
            return name, json.loads(value)
        except ValueError as error:
            raise UsageError(f"--set {name}: {error}.") from None
    return name, value
