"""Reads the `meta` document of an upload: reports every mistake by field and keeps unknown fields.

Its statements win over the log. An unknown field is stored unchanged, with a warning that names the nearest known one.
"""

import difflib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Literal, TypeVar, cast

from app.domain.contract.fields import FIELDS, PREFIX, VARIABLES
from app.domain.contract.values import is_stated, read_value, refuse_placeholders, same_value, shown
from app.domain.documents.environment import is_whole_environment
from app.domain.documents.harness_flags import SCRIPTS
from app.domain.documents.launch_command import read_launch_command
from app.domain.logs.arguments import stated_by_launch_args
from app.domain.logs.line_template import read_template
from app.domain.rules.facts import FACTS, typed
from app.domain.run import Metadata, Stated, Value, Window
from app.domain.text import MAX_PROJECT_NAME, clean, one_line, project_name_problem
from app.errors import FieldError, InvalidMetadata

T = TypeVar("T")

PURPOSES = ("ci", "experiment", "release")
FORMATS = ("log", "iterations", "bencher")
DEFAULT_PROJECT = "default"
"""Project of runs whose metadata name none."""

LIMITS = {
    "name": 300,
    "project": MAX_PROJECT_NAME,
    "branch": 300,
    "commit": 100,
    "ci_url": 2000,
    "job": 300,
    "merge_base": 100,
}
"""Maximum lengths in characters: the widths of the database columns."""
MAX_TAGS, MAX_TAG = 50, 100
MAX_ITERATION = 10**12
MAX_DEPTH = 20
"""Maximum nesting of unknown fields."""
MAX_UNKNOWN = 500
_FIRST_YEAR, _LAST_YEAR = 1990, 2200
"""Valid years of commits; a time outside has the wrong unit."""

_TIMES = ("commit_time", "merge_base_time")
_KNOWN = (*LIMITS, *_TIMES, "purpose", "tags", "window", "read_as", "format", "launch_args", "env")
_OTHER_NAMES = {other: row.name for row in FIELDS.values() for other in row.also} | {
    "sha": "commit",
    "git_commit": "commit",
    "git_branch": "branch",
    "commit_date": "commit_time",
    "committed_at": "commit_time",
    "url": "ci_url",
    "title": "name",
    "run_name": "name",
    "steady_window": "window",
    "args": "launch_args",
    "flags": "launch_args",
    "environment": "env",
    "env_vars": "env",
}


@dataclass
class _MetadataReading:
    """Collects errors and warnings, so that one answer names all of them."""

    errors: list[FieldError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, name: str, message: str) -> None:
        self.errors.append(FieldError(f"meta.{name}", message))

    def attempt(self, name: str, read: Callable[[], T], default: T) -> T:
        """Return the result of `read`; on ValueError record an error for `name` and return `default`."""
        try:
            return read()
        except ValueError as problem:
            self.refuse(name, f"{name} {problem}.")
            return default


def read_metadata(document: object, strict: Collection[str] = ()) -> Metadata:
    """Return the validated metadata of a JSON document (text, bytes or a parsed value; None is empty).

    `strict`: names that must be fields; other unknown names are stored with a warning.

    Raises InvalidMetadata with a FieldError per invalid field, or without any when the document is not a JSON object.
    """
    stated = _as_object(document)
    reading = _MetadataReading()
    texts = {name: _text(reading, name, stated.get(name), limit) for name, limit in LIMITS.items()}
    metadata = Metadata(
        name=texts["name"],
        project=texts["project"] or DEFAULT_PROJECT,
        purpose=_purpose(reading, stated.get("purpose")),
        branch=texts["branch"],
        commit=texts["commit"],
        ci_url=_url(reading, texts["ci_url"]),
        job=texts["job"],
        merge_base=texts["merge_base"],
        **{name: reading.attempt(name, partial(_time, stated.get(name)), None) for name in _TIMES},
        tags=_tags(reading, stated.get("tags")),
        window=reading.attempt("window", partial(_window, stated.get("window")), None),
        read_as=reading.attempt("read_as", partial(_read_as, stated.get("read_as")), ""),
        format=_format(reading, stated.get("format")),
        fields=_contract_fields(reading, stated),
        extra=_extra(reading, stated),
        warnings=tuple(reading.warnings),
    )
    for name in sorted({*strict} & {*metadata.extra} - {*_READ_OTHERWISE}):
        if _extra_warning(name, metadata.extra[name]):  # none for a fact of the rules: not a field, but read
            reading.refuse(name, f"`{name[:100]}` is not a metadata field.{_did_you_mean(name)}")
    if reading.errors:
        names = ", ".join(dict.fromkeys(error.field for error in reading.errors))
        raise InvalidMetadata(f"Correct {names} and upload again. Nothing was saved.", tuple(reading.errors))
    return metadata


def extra_of(accepted: Mapping[str, object]) -> dict[str, object]:
    """Return `Metadata.extra` of metadata that were accepted, without validating the rest again."""
    return _extra(_MetadataReading(), accepted)


_READ_OTHERWISE = ("launch_args", "env")
"""Stored in addition to the fields read from them, so they are not unknown."""


def _as_object(document: object) -> Mapping[str, object]:
    if isinstance(document, str | bytes):
        try:
            document = json.loads(document) if document.strip() else None
        except (ValueError, RecursionError) as problem:
            raise InvalidMetadata(f"`meta` is not JSON: {one_line(str(problem))}. Send a JSON object.") from None
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise InvalidMetadata('`meta` must be a JSON object, for example {"project": "moe", "gpus": 64}.')
    return cast(Mapping[str, object], document)


def _text(reading: _MetadataReading, name: str, raw: object, limit: int) -> str:
    """Return one line of text without control characters, with a warning when some were removed."""
    if raw is None:
        return ""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        reading.refuse(name, f"{name} must be text.")
        return ""
    text = one_line(str(raw))
    if clean(str(raw)) != str(raw):
        reading.warnings.append(f"Control characters were removed from `{name}`.")
    if len(text) > limit:
        reading.refuse(name, f"{name} must have at most {limit} characters; it has {len(text)}.")
    elif name == "project" and text and (problem := project_name_problem(text)):
        reading.refuse(name, f"project {problem}.")
    return text


def _purpose(reading: _MetadataReading, raw: object) -> Literal["ci", "experiment", "release"]:
    word = raw.strip().lower() if isinstance(raw, str) else raw
    if word in (None, ""):
        return "ci"
    if word not in PURPOSES:
        reading.refuse("purpose", "purpose must be one of ci, experiment, release.")
        return "ci"
    return cast(Literal["ci", "experiment", "release"], word)


def _url(reading: _MetadataReading, url: str) -> str:
    if url and not url.lower().startswith(("https://", "http://")):
        reading.refuse("ci_url", "ci_url must begin with https:// or http://.")
    return url


def _time(raw: object) -> datetime | None:
    """Return a time in UTC, which is also assumed without a time zone."""
    if raw in (None, ""):
        return None
    try:
        time = datetime.fromisoformat(str(raw).strip()) if isinstance(raw, str) else None
    except ValueError:
        time = None
    if time is None or not _FIRST_YEAR <= time.year <= _LAST_YEAR:
        raise ValueError("must be a time as `git show -s --format=%cI` prints it, for example 2026-11-18T04:12:00Z")
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _tags(reading: _MetadataReading, raw: object) -> tuple[str, ...]:
    if raw is None:
        return ()
    items = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not all(isinstance(item, str | int | float) for item in items):
        reading.refuse("tags", "tags must be a list of strings.")
        return ()
    tags = tuple(dict.fromkeys(tag for tag in (one_line(str(item)) for item in items) if tag))
    if len(tags) > MAX_TAGS or any(len(tag) > MAX_TAG for tag in tags):
        reading.refuse("tags", f"tags must be at most {MAX_TAGS}, each of at most {MAX_TAG} characters.")
    return tags


def _window(raw: object) -> Window | None:
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise ValueError('must be an object with first and last, for example {"first": 41, "last": 50}')
    if unknown := set(raw) - {"first", "last"}:
        raise ValueError(f"must contain only first and last, not {', '.join(sorted(map(str, unknown)))}")
    first, last = raw.get("first"), raw.get("last")
    for value in (first, last):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_ITERATION:
            raise ValueError("must have first and last as whole numbers")
    if cast(int, first) > cast(int, last):
        raise ValueError(f"must not end ({last}) before it starts ({first})")
    return Window(cast(int, first), cast(int, last))


def _format(reading: _MetadataReading, raw: object) -> Literal["", "log", "iterations", "bencher"]:
    if raw in (None, "", "auto"):
        return ""
    if raw not in FORMATS:
        reading.refuse("format", f"format must be one of auto, {', '.join(FORMATS)}.")
        return ""
    return cast(Literal["log", "iterations", "bencher"], raw)


def _read_as(raw: object) -> str:
    """Return the template of the log's step lines; empty without one."""
    if raw in (None, ""):
        return ""
    if not isinstance(raw, str):
        raise ValueError("must be text such as `step {iteration}: {step_time_s} s`")
    read_template(raw)
    return one_line(raw)


def _contract_fields(reading: _MetadataReading, stated: Mapping[str, object]) -> dict[str, Stated]:
    """Return fields stated by name, in `env` and in `launch_args`. The first of these wins."""
    fields = {
        name: Stated(value, "metadata", f"meta.{name}")
        for name in FIELDS
        if name in stated
        for value in [reading.attempt(name, partial(_read_fact, name, stated[name]), None)]
        if is_stated(name, value)
    }
    for name, fact in _environment(reading, stated.get("env")).items():
        fields.setdefault(name, fact)
    for name, fact in _launch_args(reading, stated.get("launch_args")).items():
        if name in fields and not same_value(name, fields[name].value, fact.value):
            reading.warnings.append(
                f"`{name}` is {shown(fields[name].value)} in `meta.{name}` but {shown(fact.value)} in "
                f"`meta.launch_args`; the former is used."
            )
        fields.setdefault(name, fact)
    return fields


def _read_fact(name: str, raw: object) -> Value:
    """Return the canonical value. Raises ValueError for values that the field rejects and for placeholders."""
    refuse_placeholders(raw)
    return read_value(name, raw)


def _environment(reading: _MetadataReading, raw: object) -> dict[str, Stated]:
    """Return the contract variables. A missing one is unknown, or unset in a complete environment."""
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        reading.refuse("env", "env must be an object of environment variables.")
        return {}
    fields: dict[str, Stated] = {}
    whole = is_whole_environment(raw)
    for name in (name for name in VARIABLES if whole or name in raw):
        value = reading.attempt(f"env.{name}", partial(_read_fact, PREFIX + name, raw.get(name)), None)
        detail = f"meta.env.{name}" if name in raw else "left out of meta.env"
        fields[PREFIX + name] = Stated(value, "metadata", detail)
    return fields


def _launch_args(reading: _MetadataReading, raw: object) -> dict[str, Stated]:
    """Return the contract fields that command-line flags state."""
    if raw is None:
        return {}
    if not isinstance(raw, str | Mapping):
        reading.refuse("launch_args", "launch_args must be an object, or a command line.")
        return {}
    flags, warnings = _read_launch_args(raw)
    reading.warnings.extend(warnings)
    fields = {}
    for name, stated in flags.items():
        try:
            value = _read_fact(name, stated.value)
        except ValueError as problem:
            reading.warnings.append(f"A flag of `launch_args` was ignored: {name} {problem}.")
            continue
        fields[name] = Stated(value, "metadata", stated.detail or "meta.launch_args")
    return fields


def _read_launch_args(raw: str | Mapping[str, object]) -> tuple[Mapping[str, Stated], Sequence[str]]:
    """Read flags from an object or a text.

    A text may be a whole command. Then its launcher counts too, and flags of a harness have the harness's meaning.
    Flags of Megatron-LM have the same meaning with or without a command around them.
    """
    if not isinstance(raw, str):
        return stated_by_launch_args(raw)[:2]
    try:
        command = read_launch_command(raw)
    except ValueError:
        return stated_by_launch_args(raw)[:2]
    if any(script in raw for script in SCRIPTS):
        return command.stated, command.problems
    flags, warnings, _ = stated_by_launch_args(raw)
    return {**command.stated, **flags}, [*warnings, *command.problems]


def _extra(reading: _MetadataReading, stated: Mapping[str, object]) -> dict[str, object]:
    """Return unknown fields, without characters that a database rejects."""
    unknown = {str(name): value for name, value in stated.items() if name not in FIELDS and name not in _KNOWN}
    if len(unknown) > MAX_UNKNOWN:
        reading.refuse(next(iter(unknown)), f"meta has {len(unknown)} unknown fields; the maximum is {MAX_UNKNOWN}.")
        return {}
    extra: dict[str, object] = {}
    for name, value in unknown.items():
        if warning := _extra_warning(one_line(name), value):
            reading.warnings.append(warning)
        extra[one_line(name)] = reading.attempt(name, partial(storable, value), None)
    env = stated.get("env")
    if isinstance(env, Mapping) and (others := {k: v for k, v in env.items() if k not in VARIABLES}):
        extra["env"] = reading.attempt("env", partial(storable, others), None)
    if stated.get("launch_args") is not None:
        extra["launch_args"] = reading.attempt("launch_args", partial(storable, stated["launch_args"]), None)
    return extra


def _extra_warning(name: str, value: object) -> str:
    """Return a warning about an unused field; empty for a fact of the rules, such as a measurement of a profile."""
    fact = FACTS.get(name)
    if fact is None or fact.section not in ("log", "profile", "stated", "asked"):
        return f"The metadata field `{name[:100]}` is unknown. It is stored but not used.{_did_you_mean(name)}"
    try:
        typed(fact, value)
    except ValueError as problem:
        return f"The metadata field `{name}` is not used: {one_line(str(problem))}."
    return ""


def _did_you_mean(name: str) -> str:
    """Return a question that names the nearest field; empty when none is near."""
    nearest = _OTHER_NAMES.get(name.lower().lstrip("-").replace("-", "_"))
    if nearest is None:
        nearest = next(iter(difflib.get_close_matches(name.lower(), (*FIELDS, *_KNOWN), n=1, cutoff=0.7)), None)
    return f" Did you mean `{nearest}`?" if nearest else ""


def storable(value: object, depth: int = 0) -> object:
    """Return a JSON value that every database accepts: no control characters, no NaN, limited nesting."""
    if depth > MAX_DEPTH:
        raise ValueError(f"must not be nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        return {clean(str(key)): storable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item, depth + 1) for item in value]
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    return value
