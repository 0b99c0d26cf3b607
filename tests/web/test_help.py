"""`/help`: the documents as pages, their links and search; `/llms.txt`."""

import re
from pathlib import Path

from starlette.testclient import TestClient

from tests.cases import every_case

DOCS = Path(__file__).resolve().parents[2] / "docs"
PEOPLE = {"Accept": "text/html"}


def test_every_document_is_a_page_and_its_links_lead_somewhere(client: TestClient) -> None:
    names = [path.stem for path in DOCS.glob("*.md")]
    pages = {name: client.get("/help" if name == "README" else f"/help/{name}", headers=PEOPLE) for name in names}
    assert {name: page.status_code for name, page in pages.items()} == dict.fromkeys(names, 200)
    ids = {name: set(re.findall(r'<h[1-6] id="([^"]+)"', page.text)) for name, page in pages.items()}
    with every_case() as case:
        for name, page in pages.items():
            for target, anchor in re.findall(r'href="/help/([a-z-]+)(?:#([^"]+))?"', page.text):
                with case(f"{name} -> {target}#{anchor}"):
                    assert target in ids
                    assert not anchor or anchor in ids[target]
    assert "<table>" in pages["settings"].text
    assert "THREEWALLS_PUBLIC_URL" in pages["settings"].text


def test_files_that_documents_link_to_are_shown_as_text(client: TestClient) -> None:
    pages = [client.get(f"/help/{name}").text for name in ("operations", "documents", "deploy")]
    targets = {target for page in pages for target in re.findall(r'href="(/help/files/[^"]+)"', page)}
    names = ("ops/alerts.yml", "ops/grafana.json", "iterations.schema.json", "../deploy/proxy/nginx.conf")
    for name in names:
        target = f"/help/files/{Path(name).name}"
        assert target in targets
        answer = client.get(target)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.content == (DOCS / name).read_bytes()
    assert {client.get(target).status_code for target in targets} == {200}
    for name in ("ops", "take_screenshot.py", "..%2Fpyproject.toml", "nothing.yml"):
        assert client.get(f"/help/files/{name}", headers=PEOPLE).status_code == 404


def test_the_search_finds_sections_and_an_unknown_document_is_not_found(client: TestClient) -> None:
    hits = re.findall(r'data-hit="([^"]+)"', client.get("/help?q=exit+codes", headers=PEOPLE).text)
    assert "/help/cli#exit-codes" in hits[:3]
    page = client.get("/help?q=retention", headers=PEOPLE).text
    excerpts = [
        re.sub("</?mark>", "", excerpt) for excerpt in re.findall("<p>([^<]*(?:<mark>[^<]*</mark>[^<]*)*)</p>", page)
        if "<mark>retention</mark>" in excerpt
    ]  # fmt: skip
    words = {word for path in DOCS.glob("*.md") for word in re.findall(r"\w+", path.read_text())}
    assert len(excerpts) > 2
    assert all(re.findall(r"\w+", text)[0] in words for text in excerpts), "no excerpt begins inside a word"
    none = client.get("/help?q=%3Cscript%3Exyzzy", headers=PEOPLE)
    assert none.status_code == 200
    assert "<script>xyzzy" not in none.text
    assert "data-hit" not in none.text
    assert client.get("/help/nothing", headers=PEOPLE).status_code == 404
    assert client.get("/help/..%2Fapp", headers=PEOPLE).status_code == 404


def test_agents_find_documents_and_interfaces(client: TestClient) -> None:
    text = client.get("/llms.txt").text
    assert text.startswith("# Threewalls\n")
    targets = re.findall(r"\]\((/help/[a-z-]+)\)", text)
    assert len(targets) > 15
    assert {client.get(target).status_code for target in targets} == {200}
