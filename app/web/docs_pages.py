"""`/docs`: the API reference, rendered from the OpenAPI document without scripts or a CDN; and `/glossary`."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Query, Request
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse, Response

from app.domain.contract.fields import FIELDS, METRICS, ContractField
from app.errors import NotFound
from app.settings import RESOURCES
from app.web.access_rule import Open, requires
from app.web.forms import ROLES
from app.web.templating import render

router = APIRouter(include_in_schema=False)

_API = "/api/v1/"
_REF = "#/components/schemas/"
_SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")
_FIRST = ("runs", "uploads", "regressions", "compare", "history", "leaderboards")
"""Parts that come first because most callers need them. The others follow by name."""
_METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    """A parameter, a form field or a field of an object. `schema`: the schema to which `type` links, if any."""

    name: str
    place: str
    type: str
    schema: str
    required: bool
    text: str


@dataclass(frozen=True, slots=True)
class DocumentedAnswer:
    status: str
    text: str
    media: tuple[str, ...]
    type: str
    schema: str


@dataclass(frozen=True, slots=True)
class Operation:
    anchor: str
    method: str
    path: str
    text: str
    example: str
    response: str
    entries: tuple[ReferenceEntry, ...]
    answers: tuple[DocumentedAnswer, ...]

    @property
    def summary(self) -> str:
        """Return the first sentence of the description."""
        return self._sentences[0]

    @property
    def rest(self) -> str:
        """Return the description without its first sentence."""
        return " ".join(self._sentences[1:])

    @property
    def _sentences(self) -> list[str]:
        return _SENTENCE.split(" ".join(self.text.split()), maxsplit=1)


@dataclass(frozen=True, slots=True)
class Schema:
    name: str
    text: str
    entries: tuple[ReferenceEntry, ...]


@dataclass(frozen=True, slots=True)
class ReferencePart:
    """The calls of one kind of object, with the schemas that they accept or return."""

    name: str
    operations: tuple[Operation, ...]
    schemas: tuple[Schema, ...]

    @property
    def number(self) -> int:
        return len(self.operations)


@router.get("/docs")
@requires(Open.ANYONE)
def show_reference(request: Request) -> Response:
    return _render_reference(request, None)


@router.get("/docs/{part}")
@requires(Open.ANYONE)
def show_part(request: Request, part: str) -> Response:
    shown = next((item for item in parts(request.app.openapi()) if item.name == part), None)
    if shown is None:
        raise NotFound("The API reference has no such part. /docs lists all.")
    return _render_reference(request, shown)


def _render_reference(request: Request, part: ReferencePart | None) -> Response:
    document = request.app.openapi()
    version = document["info"]["version"]
    return render(request, "web/reference.html", api_version=version, part=part, parts=parts(document))


def parts(document: Mapping[str, Any]) -> tuple[ReferencePart, ...]:
    """Return the reference in parts, by the first segment of paths. Within a part, calls of whole lists come first."""
    by_name = {schema.name: schema for schema in schemas(document)}
    calls: dict[str, list[Operation]] = {}
    for call in operations(document):
        name = call.path.removeprefix(_API).partition("/")[0] if call.path.startswith(_API) else "service"
        calls.setdefault(name, []).append(call)
    for own in calls.values():
        own.sort(key=lambda call: (call.path.count("/"), call.path, _METHODS.index(call.method)))
    names = [*(name for name in _FIRST if name in calls), *sorted({*calls} - {*_FIRST, "service"}), "service"]
    return tuple(ReferencePart(name, tuple(calls[name]), _named_by(calls[name], by_name)) for name in names)


def _named_by(calls: Sequence[Operation], by_name: Mapping[str, Schema]) -> tuple[Schema, ...]:
    """Return the schemas that the calls refer to, directly or through other schemas."""
    names: dict[str, None] = {}
    new = [entry.schema for call in calls for entry in call.entries]
    new += [answer.schema for call in calls for answer in call.answers]
    while new:
        schema = by_name.get(new.pop(0))
        if schema and schema.name not in names:
            names[schema.name] = None
            new += [entry.schema for entry in schema.entries]
    return tuple(by_name[name] for name in names)


def operations(document: Mapping[str, Any]) -> tuple[Operation, ...]:
    """Return all calls in the order of the document."""
    named = document.get("components", {}).get("schemas", {})
    return tuple(
        Operation(
            anchor=call["operationId"],
            method=method.upper(),
            path=path,
            text=call.get("description") or call.get("summary", ""),
            example=_example(method.upper(), path, call, named),
            response=_response(call),
            entries=(*_parameters(call), *_form_fields(call)),
            answers=tuple(_answers(call)),
        )
        for path, calls in document["paths"].items()
        for method, call in calls.items()
    )


def schemas(document: Mapping[str, Any]) -> tuple[Schema, ...]:
    """Return all objects that calls accept or return."""
    return tuple(
        Schema(name, schema.get("description", ""), tuple(_properties(schema, "")))
        for name, schema in document.get("components", {}).get("schemas", {}).items()
        if schema.get("properties")
    )


def _parameters(call: Mapping[str, Any]) -> Iterator[ReferenceEntry]:
    for parameter in call.get("parameters", []):
        kind, schema = _type(parameter["schema"])
        text = parameter.get("description") or parameter["schema"].get("description", "")
        yield ReferenceEntry(parameter["name"], parameter["in"], kind, schema, parameter.get("required", False), text)


def _form_fields(call: Mapping[str, Any]) -> Iterator[ReferenceEntry]:
    for content in call.get("requestBody", {}).get("content", {}).values():
        yield from _properties(content["schema"], "form")


def _properties(schema: Mapping[str, Any], place: str) -> Iterator[ReferenceEntry]:
    for name, value in schema.get("properties", {}).items():
        kind, target = _type(value)
        yield ReferenceEntry(
            name, place, kind, target, name in schema.get("required", ()), value.get("description", "")
        )


def _answers(call: Mapping[str, Any]) -> Iterator[DocumentedAnswer]:
    for status, answer in sorted(call["responses"].items()):
        content = answer.get("content", {})
        kinds = [_type(body["schema"]) for body in content.values() if body.get("schema")]
        kind, schema = next((pair for pair in kinds if pair[1]), kinds[0] if kinds else ("", ""))
        yield DocumentedAnswer(status, answer.get("description", ""), tuple(content), kind, schema)


def _example(method: str, path: str, call: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    """Return a curl command: values of a path as their names, the query of the stored answer, required body fields.

    `BASE`: the address of the service.
    """
    query = stored_examples()["queries"].get(path, "") if method == "GET" else ""
    needed = [item["name"] for item in call.get("parameters", []) if item["in"] == "query" and item.get("required")]
    query = query or "&".join(f"{name}={name.upper()}" for name in needed)
    address = re.sub(r"{(\w+)}", lambda match: match[1].upper(), path) + (f"?{query}" if query else "")
    parts = ["curl --fail-with-body"] + ([f"-X {method}"] if method not in ("GET", "POST") else [])
    content = call.get("requestBody", {}).get("content", {})
    kind = next(iter(content), "")
    body: Mapping[str, Any] = content.get(kind, {})
    if kind == "application/json":
        parts.append(
            f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(_sample(body['schema'], named)))}"
        )
    elif kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        flag = "-F" if kind == "multipart/form-data" else "-d"
        fields = _resolved(body["schema"], named)
        required = fields.get("required") or [*fields.get("properties", {})][:1]
        parts += [f"{flag} {name}=" + ("@train.log" if flag == "-F" else name.upper()) for name in required]
    elif kind:
        parts.append("--data-binary @train.log")
    elif method == "POST":
        parts.append("-X POST")
    return " ".join((*parts, shlex.quote(f"BASE{address}")))


@lru_cache
def stored_examples() -> Mapping[str, Any]:
    """Return `queries` of the demo by path and `answers` by the name of their schema; see `docs/take_answers.py`."""
    stored: Mapping[str, Any] = json.loads(Path(__file__).with_name("answers.json").read_text(encoding="utf-8"))
    return stored


def _response(call: Mapping[str, Any]) -> str:
    """Return a successful answer of the demo as JSON; empty if none is stored."""
    for status, answer in sorted(call["responses"].items()):
        schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
        stored = stored_examples()["answers"].get(schema.get("$ref", "").removeprefix(_REF))
        if status.startswith("2") and stored is not None:
            return json.dumps(stored, indent=2, ensure_ascii=False)
    return ""


def _resolved(schema: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    return named.get(schema["$ref"].removeprefix(_REF), {}) if "$ref" in schema else schema


def _sample(schema: Mapping[str, Any], named: Mapping[str, Any], word: str = "...") -> Any:
    """Return a value of the schema. An object has its required properties, or its first property if none is required.

    A string is the name of its field, `word`, in capitals. A time is a valid time.
    """
    schema = _resolved(schema, named)
    match schema:
        case {"const": value} | {"enum": [value, *_]} | {"default": value} if value is not None:
            return value
        case {"anyOf": [first, *_]}:
            return _sample(first, named, word)
        case {"properties": properties}:
            names = schema.get("required") or [*properties][:1]
            return {name: _sample(properties[name], named, name) for name in names}
        case {"items": inner}:
            return [_sample(inner, named, word)]
        case {"format": "date-time"}:
            return "2026-09-30T08:00:00Z"
    return {"integer": 1, "number": 1.0, "boolean": True, "object": {}}.get(schema.get("type", ""), word.upper())


def _type(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return the type as text, and the name of its schema, if any."""
    match schema:
        case {"$ref": str(reference)}:
            name = reference.removeprefix(_REF)
            kind = name
        case {"anyOf": options}:
            parts = [_type(option) for option in options]
            kind, name = " or ".join(part for part, _ in parts), next((name for _, name in parts if name), "")
        case {"enum": values}:
            kind, name = " or ".join(map(str, values)), ""
        case {"const": value}:
            kind, name = str(value), ""
        case {"items": inner}:
            kind, name = _type(inner)
            kind = f"list of {kind}"
        case {"additionalProperties": dict(inner)}:
            kind, name = _type(inner)
            kind = f"object of {kind}"
        case _:
            kind, name = schema.get("format") or schema.get("type", "any"), ""
    return kind, name


# --- `/glossary`: the terms of `docs/glossary.md` and the contract fields.

_TERMS = re.compile(r"^## Terms\n(.*?)^## ", re.MULTILINE | re.DOTALL)
_LONGEST_QUERY = 100
_INLINE = re.compile(
    r"\*\*(?P<strong>[^*]+)\*\*|\*(?P<em>[^*]+)\*|`(?P<code>[^`]+)`"
    r"|\[(?P<link>[^]]+)\]\((?P<document>[a-z-]+)\.md(?P<place>#[^)]*)?\)"
)


@router.get("/glossary")
@requires(Open.ANYONE)
def show_glossary(request: Request, q: str = Query("", max_length=_LONGEST_QUERY)) -> HTMLResponse:
    groups: dict[str, list[ContractField]] = {}
    for field in FIELDS.values():
        groups.setdefault(field.group, []).append(field)
    return render(
        request, "web/glossary.html", terms=terms(), metrics=METRICS.values(), groups=groups, fields=len(FIELDS),
        roles=ROLES, query=q,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Term:
    """An entry of the glossary. `name`: the term with any restriction. `text`: the definition. Both are HTML."""

    name: Markup
    text: Markup

    @property
    def anchor(self) -> str:
        """Return the anchor: that of the strong part of the name."""
        return self.name.partition('id="')[2].partition('"')[0]

    @property
    def letter(self) -> str:
        return self.name.striptags()[:1].upper()


@lru_cache
def terms() -> tuple[Term, ...]:
    """Return the entries. Each term is strong and has an anchor, for example `/glossary#stack-key`."""
    section = _TERMS.search((RESOURCES / "docs" / "glossary.md").read_text(encoding="utf-8"))
    text = section[1] if section else ""
    items = [" ".join(item.split()) for item in re.split(r"^- ", text, flags=re.MULTILINE)[1:]]
    parts = (item.partition(": ") for item in items)
    return tuple(Term(_html(name), _html(text[:1].upper() + text[1:])) for name, _, text in parts)


def anchor(term: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def _html(text: str) -> Markup:
    """Render the Markdown of the glossary: strong, emphasis, code, and links to documents as links to the help."""
    parts, at = [], 0
    for inline in _INLINE.finditer(text):
        parts.append(escape(text[at : inline.start()]))
        if document := inline["document"]:
            label = inline["link"].removesuffix(".md").replace("-", " ")
            parts.append(Markup('<a href="/help/{}{}">{}</a>').format(document, inline["place"] or "", label))
        else:
            kind = next(name for name in ("strong", "em", "code") if inline[name])
            mark = Markup('<{0} id="{1}">{2}</{0}>') if kind == "strong" else Markup("<{0}>{2}</{0}>")
            parts.append(mark.format(kind, anchor(inline[kind]), inline[kind]))
        at = inline.end()
    return Markup("").join([*parts, escape(text[at:])])
