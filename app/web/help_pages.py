"""`/help`: the documents of `docs/`, rendered and searchable. `/llms.txt`: a list of them for agents."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from fastapi import APIRouter, Query, Request
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from starlette.responses import RedirectResponse, Response

from app.errors import NotFound
from app.settings import RESOURCES
from app.web.access_rule import Open, requires
from app.web.templating import let_tables_scroll, marked, render

router = APIRouter(include_in_schema=False)


@router.get("/api")
@router.get("/settings")
@router.get("/tuning")
@requires(Open.ANYONE)
def open_section(request: Request) -> RedirectResponse:
    """Open the first page of a section for those who guess its address."""
    first = {"/api": "/docs", "/settings": "/settings/projects", "/tuning": "/experiments"}
    return RedirectResponse(first[request.url.path], status_code=307)


_DOCS = RESOURCES / "docs"
_LONGEST_QUERY = 100
_MOST_HITS = 50
_EXCERPT = 240
_OF_TITLE, _OF_LEAD = 3, 3
"""Numbers of tokens of the title and the paragraph below it. The index has no such paragraph."""


@dataclass(frozen=True, slots=True)
class HelpSection:
    """A heading of a document with the text below it, for the search. `level`: 1 for the title of the document."""

    anchor: str
    title: str
    text: str
    level: int


@dataclass(frozen=True, slots=True)
class HelpDocument:
    """A document. `lead`: its first paragraph; empty for the index. `html`: without title and lead."""

    name: str
    title: str
    anchor: str
    lead: Markup
    html: Markup
    sections: tuple[HelpSection, ...]


@dataclass(frozen=True, slots=True)
class HelpHit:
    url: str
    document: str
    title: str
    excerpt: Markup


@router.get("/help")
@requires(Open.ANYONE)
def show_help(request: Request, q: str = Query("", max_length=_LONGEST_QUERY)) -> Response:
    """Show the index of all documents, or the results of a search."""
    return render(
        request, "web/help.html", document=documents()["README"], query=q, hits=search(q), others=(),
        number=len(documents()) - 1,
    )  # fmt: skip


@router.get("/help/{name}")
@requires(Open.ANYONE)
def show_document(request: Request, name: str) -> Response:
    document = documents().get(name)
    if document is None or name == "README":
        raise NotFound(f"There is no document {name!r}. /help lists all documents.")
    listed = re.findall(r'href="/help/([a-z-]+)"', documents()["README"].html)
    others = [documents()[other] for other in dict.fromkeys(listed)]
    return render(request, "web/help.html", document=document, query="", hits=(), others=others)


@router.get("/help/files/{name}")
@requires(Open.ANYONE)
def show_file(name: str) -> Response:
    """Return a file that documents link to, such as alert rules or a proxy configuration, as text."""
    if name not in files():
        raise NotFound(f"There is no file {name!r}. /help lists all documents.")
    return Response(files()[name].read_bytes(), media_type="text/plain; charset=utf-8")


@router.get("/llms.txt")
@requires(Open.ANYONE)
def list_for_agents() -> Response:
    """List documents and interfaces in the format of llmstxt.org."""
    pages = [f"- [{item.title}](/help/{item.name})" for item in documents().values() if item.name != "README"]
    text = (
        "# Threewalls\n\n> Tracks the performance of Mixture-of-Experts training and judges each run against "
        "comparable earlier runs.\n\nRead-only tools by the Model Context Protocol: `threewalls mcp` "
        "(/help/agents). HTTP API: /openapi.json, explained at /help/api. A client in one file: "
        "/client/threewalls.pyz.\n\n## Documents\n\n" + "\n".join(pages) + "\n"
    )
    return Response(text, media_type="text/plain; charset=utf-8")


def search(query: str) -> tuple[HelpHit, ...]:
    """Return the sections that contain all words. Sections with a word in their title come first."""
    words = query.lower().split()
    if not words:
        return ()
    ranked: list[tuple[int, int, HelpHit]] = []
    for document in documents().values():
        for section in document.sections:
            title, text = f"{document.title} {section.title}".lower(), section.text.lower()
            if all(word in title or word in text for word in words):
                url = "/help" if document.name == "README" else f"/help/{document.name}"
                excerpt = _excerpt(section.text, words)
                hit = HelpHit(f"{url}#{section.anchor}", document.title, section.title, excerpt)
                ranked.append((-sum(word in title for word in words), len(ranked), hit))
    return tuple(hit for *_, hit in sorted(ranked, key=lambda item: item[:2])[:_MOST_HITS])


def _excerpt(text: str, words: list[str]) -> Markup:
    """Return the text around the first match, cut at whole words, with all matches marked."""
    at = text.rfind(" ", 0, max(0, text.lower().find(words[0]) - _EXCERPT // 3)) + 1
    piece = text[at : at + _EXCERPT]
    if at + _EXCERPT < len(text):
        piece = f"{piece.rpartition(' ')[0]} …"
    return marked(f"… {piece}" if at else piece, words)


@lru_cache
def files() -> dict[str, Path]:
    """Return the other files that documents link to, by name."""
    folders = (_DOCS, _DOCS / "ci", _DOCS / "ops", RESOURCES / "deploy" / "proxy")
    paths = [path for folder in folders for path in folder.glob("*") if path.is_file()]
    return {path.name: path for path in paths if path.suffix not in {".md", ".py", ".png"}}


@lru_cache
def documents() -> dict[str, HelpDocument]:
    """Return all documents by name, rendered once per process. HTML in them is escaped."""
    return {path.stem: _document(path) for path in sorted(_DOCS.glob("*.md"))}


def _document(path: Path) -> HelpDocument:
    parser = let_tables_scroll(MarkdownIt("commonmark", {"html": False}).enable("table"))
    tokens = parser.parse(path.read_text(encoding="utf-8"))
    sections: list[HelpSection] = []
    anchors: set[str] = set()
    title, anchor, texts, heading, level = path.stem, "", list[str](), None, 1
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            if anchor:
                sections.append(HelpSection(anchor, title, " ".join(texts), level))
            level = int(token.tag[1:])
            heading, title, texts = following, _plain(following), []
            anchor = _unique(_anchor(following.content), anchors)
            token.attrSet("id", anchor)
        elif token.type in ("fence", "code_block"):
            texts.append(token.content)
        elif token.type in ("th_close", "td_close"):
            texts.append("·")
        elif token.type == "inline":
            _point_inside(token)
            if token is not heading:
                texts.append(_plain(token))
    parser.add_render_rule("fence", _fence)
    sections.append(HelpSection(anchor, title, " ".join(texts), level))
    has_lead = path.stem != "README"
    lead = parser.renderer.render(tokens[_OF_TITLE + 1 : _OF_TITLE + 2] if has_lead else [], parser.options, {})
    html = parser.renderer.render(tokens[_OF_TITLE + _OF_LEAD * has_lead :], parser.options, {})
    html = html.replace("<th></th>", "<td></td>")  # an empty corner cell is not a heading
    shown = Markup(lead), Markup(html)  # noqa: S704  our own documents, without HTML
    return HelpDocument(path.stem, sections[0].title, sections[0].anchor, *shown, tuple(sections))


_SHELL = ("sh", "bash", "console")


def _fence(_renderer: object, tokens: Sequence[Token], at: int, *_: object) -> str:
    """Return a code block. A block of commands has a button that copies them."""
    code = escape(tokens[at].content)
    if tokens[at].info.strip() not in _SHELL:
        return Markup("<pre><code>{}</code></pre>\n").format(code)
    button = Markup('<button class="button copy" type="button" data-copy hidden>Copy</button>')
    return Markup('<div class="command"><pre><code>{}</code></pre>{}</div>\n').format(code, button)


def _plain(token: Token) -> str:
    return "".join(" " if child.type.endswith("break") else child.content for child in token.children or ()).strip()


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading, so that links between documents work there and here."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def _unique(anchor: str, anchors: set[str]) -> str:
    name, number = anchor, 1
    while name in anchors:
        name, number = f"{anchor}-{number}", number + 1
    anchors.add(name)
    return name


def _point_inside(token: Token) -> None:
    """Turn links to other documents into addresses of this service, with titles instead of file names.

    Links to files that the service has lead to their text. All other relative links become text.
    """
    children = token.children or []
    for place, (link, label) in enumerate(pairwise(children)):
        if link.type != "link_open":
            continue
        target = str(link.attrGet("href") or "")
        inside = re.fullmatch(r"([a-z-]+)\.md(#.*)?", target)
        if inside:
            link.attrSet("href", f"/help/{inside[1]}{inside[2] or ''}")
            if label.content == f"{inside[1]}.md":
                with (_DOCS / label.content).open(encoding="utf-8") as file:
                    label.content = file.readline().removeprefix("# ").strip().replace("`", "")
        elif not target.startswith(("https://", "http://", "#")):
            name = target.rpartition("/")[2]
            if name in files():
                link.attrSet("href", f"/help/files/{name}")
            else:
                link.attrs.pop("href")
                link.tag = next(child for child in children[place:] if child.type == "link_close").tag = "span"
    token.children = [part for child in children for part in _linked(child)]


PAGES = {
    "/availability": "Availability",
    "/check": "Launch check",
    "/compare": "Compare",
    "/experiments": "Experiments",
    "/glossary": "Glossary",
    "/history": "Trends",
    "/leaderboards": "Leaderboards",
    "/plan": "Planner",
    "/playbook": "Playbook",
    "/references": "Published figures",
    "/regressions": "Regressions",
    "/runs": "Runs",
    "/scaling": "Scaling",
    "/settings/projects": "Projects",
    "/upgrade": "Upgrade",
    "/upload": "Upload",
}
"""Pages that documents name by their address, as code: here a link with the name of the page."""


def _linked(token: Token) -> list[Token]:
    if token.type != "code_inline" or token.content not in PAGES:
        return [token]
    name = Token("text", "", 0, content=PAGES[token.content])
    return [Token("link_open", "a", 1, attrs={"href": token.content}), name, Token("link_close", "a", -1)]
