"""The `meta` of an upload: what the CI job says, the metadata file over it, and what is stated over both."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from app.client.ci import CiJob
from app.client.errors import UsageError

_WINDOW = re.compile(r"(\d+)-(\d+)")


def upload_metadata(
    *,
    job: CiJob | None,
    documents: Iterable[str],
    settings: Iterable[str],
    stated: Mapping[str, str],
    tags: Sequence[str] = (),
) -> dict[str, object]:
    """`documents`: files or JSON texts, later ones win; `settings`: KEY=VALUE, over those; `stated`: over all of it.

    Tags of all of them are kept. Raises UsageError on what cannot be read; what the fields mean, the service checks.
    """
    said: list[Mapping[str, object]] = [_document(document) for document in documents if document]
    said += [dict([_setting(setting)]) for setting in settings]
    said.append({name: value for name, value in stated.items() if value})
    by_job = {} if job is None else job.metadata()
    merged = by_job | {name: value for layer in said for name, value in layer.items()}
    if merged.get("commit") != by_job.get("commit") and merged.get("commit_time") == by_job.get("commit_time"):
        merged.pop("commit_time", None)  # it is that of another commit
    all_tags = [tag for layer in (by_job, *said) for tag in _tags(layer.get("tags"))] + list(tags)
    if all_tags:
        merged["tags"] = [tag for at, tag in enumerate(all_tags) if tag not in all_tags[:at]]
    return merged


def _tags(value: object) -> list[object]:
    if value is None:
        return []
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    return list(value) if isinstance(value, list) else [value]


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
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise UsageError(f'{where} must be a JSON object, for instance {{"gpu": "H100", "gpus": 64}}.')
    return found


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--set {text}: write KEY=VALUE, for instance --set gpu=H100.")
    if name == "window" and (window := _WINDOW.fullmatch(value)):
        return name, {"first": int(window[1]), "last": int(window[2])}
    if value.startswith(("{", "[")):
        try:
            return name, json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--set {name}: {error}.") from None
    return name, value
