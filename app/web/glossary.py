"""`/glossary`: the words of the service. Terms are those of `docs/glossary.md`, fields those of the registry."""

import re
from functools import lru_cache

from fastapi import APIRouter, Request
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from app.domain.contract.fields import FIELDS, METRICS, ContractField
from app.settings import RESOURCES
from app.web.contract_inputs import ROLES
from app.web.templating import render

router = APIRouter(include_in_schema=False)

_TERMS = re.compile(r"^## Terms\n(.*?)^## ", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"\*\*(?P<strong>[^*]+)\*\*|\*(?P<em>[^*]+)\*|`(?P<code>[^`]+)`")


@router.get("/glossary")
def show_glossary(request: Request) -> HTMLResponse:
    groups: dict[str, list[ContractField]] = {}
    for field in FIELDS.values():
        groups.setdefault(field.group, []).append(field)
    return render(request, "glossary.html", terms=terms(), metrics=METRICS.values(), groups=groups, roles=ROLES)


@lru_cache
def terms() -> tuple[Markup, ...]:
    """Each definition as HTML; what it defines is strong, and an anchor: `/glossary#stack-key`."""
    found = _TERMS.search((RESOURCES / "docs" / "glossary.md").read_text(encoding="utf-8"))
    text = found[1] if found else ""
    items = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    return tuple(_html(" ".join(item.split())) for item in items)


def anchor(term: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def _html(text: str) -> Markup:
    """The little Markdown of the glossary: strong, emphasis, code."""
    parts, at = [], 0
    for found in _INLINE.finditer(text):
        parts.append(escape(text[at : found.start()]))
        kind = found.lastgroup or ""
        word = found[kind]
        mark = Markup('<{0} id="{1}">{2}</{0}>') if kind == "strong" else Markup("<{0}>{2}</{0}>")
        parts.append(mark.format(kind, anchor(word), word))
        at = found.end()
    return Markup("").join([*parts, escape(text[at:])])
