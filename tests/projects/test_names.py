"""One rule of project names holds for uploads, new projects and imports, and all addresses quote such names."""

import html
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.demo.job import PROJECT
from app.demo.studies import PUBLIC_PROJECT
from app.domain.text import MAX_PROJECT_NAME
from app.errors import InvalidChange
from app.pipeline.project_archive import import_project
from app.storage.database import transaction
from app.storage.log_files import LogFiles
from tests.builders import make_run
from tests.cases import every_case
from tests.runs.uploading import upload

VALID = (
    PROJECT, PUBLIC_PROJECT, "moe_2.1-rc+fp8", "(x)", "-a", ".b", "Équipe MoE", 'a & "b" <c> 100% #1? {d}',
    "x" * (MAX_PROJECT_NAME - 9),
)  # fmt: skip
INVALID = ("a/b", ".", "..", "x" * (MAX_PROJECT_NAME + 1))
LOG = b" iteration 1/ 9 | elapsed time per iteration (ms): 100.0 |\n"


def test_the_same_names_are_valid_wherever_a_project_is_made(
    client: TestClient, engine: Engine, log_files: LogFiles, tmp_path: Path
) -> None:
    with transaction(engine) as session:
        make_run(session, project="source")
    archive = tmp_path / "source.tar"
    archive.write_bytes(client.get("/api/v1/export?project=source").content)

    def imports(name: str) -> bool:
        try:
            import_project(engine, log_files, archive, slug=name, who="mia")
        except InvalidChange:
            return False
        return True

    ways = {
        "upload": lambda name: upload(client, LOG + name.encode(), meta={"project": name}).status_code == 202,
        "call": lambda name: client.post("/api/v1/projects", json={"project": name}).status_code == 201,
        "form": lambda name: (
            client.post("/settings/projects", data={"slug": name, "author": "Ada"}, follow_redirects=False).status_code
            == 303
        ),
        "import": imports,
    }
    with every_case() as case:
        for way, makes in ways.items():
            for name in VALID:
                with case(f"{way} {name}"):
                    assert makes(f"{name} {way}")
            for name in INVALID:
                with case(f"{way} {name}"):
                    assert not makes(name)
    for name in (" a", "a ", "a  b", "a\nb", "a\x00b", ""):
        assert client.post("/api/v1/projects", json={"project": name}).status_code == 422, name


@pytest.mark.parametrize("name", [PUBLIC_PROJECT, 'a & "b" <c> 100% #1? {d}', "Équipe + MoE"])
def test_every_link_with_the_name_of_a_project_opens(client: TestClient, engine: Engine, name: str) -> None:
    with transaction(engine) as session:
        run_id = make_run(session, project=name)
    answer = client.post("/settings/projects", data={"slug": f"{name} 2", "author": "Ada"}, follow_redirects=False)
    todo = [
        answer.headers["Location"].removeprefix("http://testserver"),
        f"/settings/projects/{quote(name)}", f"/settings/projects/{quote(name)}/storage",
        f"/settings/projects/{quote(name)}/notifications", f"/runs?project={quote(name)}", f"/?project={quote(name)}",
        f"/runs/{run_id}", f"/runs/{run_id}/summary", f"/api/v1/export?project={quote(name)}",
        f"/runs.csv?project={quote(name)}", f"/regressions?project={quote(name)}",
        f"/experiments?project={quote(name)}", f"/settings/audit?project={quote(name)}",
    ]  # fmt: skip
    seen = set(todo)
    with every_case() as case:
        for address in todo:
            page = client.get(address)
            with case(address):
                assert page.status_code == 200 or (page.status_code == 404 and "/summary" in address)
            for link in map(html.unescape, re.findall(r'href="(/[^"#]*)', page.text)):
                if "project" in link and link not in seen and len(seen) < 90:
                    seen.add(link)
                    todo.append(link)
