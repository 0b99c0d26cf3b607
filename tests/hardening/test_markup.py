"""Text that people and logs bring is an attack here: names, branches, links, notes, lines. Nowhere does it become more.

Every address that answers to GET is asked, in a service whose every name holds markup, an expression, a formula.
"""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest
from httpx2 import Response
from sqlalchemy import update
from sqlmodel import Session
from starlette.testclient import TestClient

from app.domain.access.roles import Role, Scope
from app.storage import tokens, users
from app.storage.database import transaction
from app.storage.tables import RunFileRow, RunRow
from app.web.access.route_table import route_table
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import Teams
from tests.experiments.planned import make_baseline
from tests.hardening.markup import MARK, Page, data_faults
from tests.runs.uploading import LOG, upload
from tests.training_logs import training_log
from workers.tasks import process_run

TAGS = f"<img src=x onerror=alert({MARK})><svg onload=alert({MARK})>"
SLUG = f"a\"'>{TAGS}<!--{{{{7*7}}}}"
NAME = f"=a\"'></script></textarea></title><script>alert({MARK})</script>{TAGS}\r\nX-{MARK}: 1"
PAGE = {"Accept": "text/html"}
HOSTILE_LOG = (
    f"  wandb_project ................................... {TAGS}</script>\n"
    f"  tokenizer_model ................................. \"'>{TAGS}\n"
    f"[rank0]: RuntimeError: </script>{TAGS} javascript:alert({MARK})\n"
    f"ModuleNotFoundError: No module named '{TAGS}'\n"
).encode() + training_log()


@pytest.fixture
def hostile(teams: Teams) -> tuple[TestClient, set[str], list[Belongings]]:
    """An administrator, every address, and what they name: a project, a run whose log was read, an experiment."""
    with transaction(teams.engine) as session:
        theirs = make_belongings(session, SLUG, whole=True)
        rename(session, teams)
    client = teams.client("administrator")
    meta = {
        "project": "alpha",
        "name": NAME,
        "branch": NAME,
        "container": NAME[:200],
        "model": TAGS,
        "tags": [NAME[:90]],
    }
    meta |= {"commit": f"{MARK}{TAGS}", "ci_url": f"https://ci.example/{NAME}"}
    run = upload(client, HOSTILE_LOG, name=f"{NAME}.log", meta=meta)
    assert run.status_code == 202, run.text
    process_run(run.json()["id"])
    wish = {"run": make_baseline(teams.engine), "knobs": {"ep_overlap": True}, "title": NAME, "note": NAME}
    experiment = client.post("/api/v1/experiments", json=wish)
    assert experiment.status_code == 201, experiment.text
    read = replace(theirs, run=run.json()["id"], experiment=experiment.json()["id"], slug="alpha")
    return client, {*addresses(teams, theirs), *addresses(teams, read)}, [theirs, read]


def rename(session: Session, teams: Teams) -> None:
    """Names that the builders do not choose, as if an upload had brought them."""
    session.execute(update(RunRow).values(name=NAME, ci_url=f"https://ci.example/{NAME}"))
    session.execute(update(RunFileRow).values(name=NAME))
    person = users.create_user(session, f"ada {TAGS}"[:100], by=TAGS, email=NAME)
    users.set_role(session, project_id=teams.ours, user_id=person.id, role=Role.VIEWER, by=TAGS)
    tokens.make_token(session, project_id=teams.ours, name=TAGS[:100], scopes=[Scope.READ], by=TAGS)


def addresses(teams: Teams, belongings: Belongings) -> Iterator[str]:
    params = {name: quote(value, safe="") for name, value in belongings.params().items()} | {"name": "vega.js"}
    for route in route_table(teams.app).routes:
        if route.method == "GET" and not route.path.startswith("/assets"):
            yield re.sub(r":\w+}", "}", route.path).format(**params)


def faults(answer: Response) -> list[str]:
    """What came out of text on its way to a page, a chart, a table, a report."""
    found = [f"the header {name}" for name in answer.headers if MARK in name]
    media = answer.headers.get("content-type", "")
    if answer.status_code >= 500:
        found.append(str(answer.status_code))
    if "html" in media or "svg" in media:
        found += Page(answer.text).wrong
    elif "csv" in media:
        cells = [cell for row in csv.reader(io.StringIO(answer.text)) for cell in row]
        found += [f"the formula {cell}" for cell in cells if is_formula(cell)]
    elif "json" in media:
        found += data_faults(answer.text)
    elif "markdown" in media and "<img" in answer.text:
        found.append("markup in Markdown")
    return found


def is_formula(cell: str) -> bool:
    return cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not re.fullmatch(r"[+-]?[0-9.e+-]+", cell)


def test_text_becomes_no_markup_script_formula_or_header_anywhere(
    hostile: tuple[TestClient, set[str], list[Belongings]],
) -> None:
    client, asked, (theirs, read) = hostile
    found: list[str] = []
    shown: set[str] = set()
    for address in sorted(asked):
        others = ({}, {"Accept": "text/csv"}) if address.startswith("/api/") else (PAGE | {"HX-Request": "true"},)
        for headers in (PAGE, *others):
            answer = client.get(address, headers=headers)
            found += [f"{address}: {fault}" for fault in faults(answer)]
            if "html" in answer.headers.get("content-type", "") and TAGS in Page(answer.text).text:
                shown.add(address)
    assert not found, "\n".join(found)
    # And it is there, as the text that it is.
    lists = {"/", "/runs", "/regressions", "/experiments", "/references", "/leaderboards", "/settings/projects"}
    pages = {f"/runs/{read.run}", f"/runs/{read.run}/log", f"/regressions/{theirs.regression}"}
    assert lists | pages | {f"/experiments/{read.experiment}"} <= shown


def test_a_link_that_runs_is_refused(client: TestClient) -> None:
    for address in ("javascript:alert(1)", "data:text/html,x", " jAvascript:alert(1)", "vbscript:x", "//evil.example"):
        assert upload(client, LOG, meta={"ci_url": address}).status_code == 422
    rules = {"commit_url": "javascript:alert(1)//{commit}", "author": "a"}
    assert client.patch("/api/v1/projects/default/rules", json=rules).status_code in (404, 422)


def test_the_name_of_a_file_breaks_no_header(client: TestClient) -> None:
    for name in (NAME, 'a"; filename="b.html', "../../etc/passwd", "..\\x.log", "a\u202egnp.log", "ü.log"):
        run = upload(client, LOG + name.encode(), name=name, meta={"name": name[:50]}).json()["id"]
        headers = client.get(f"/api/v1/runs/{run}/files/0").headers
        assert re.fullmatch(r"attachment; filename\*=UTF-8''[A-Za-z0-9%._~-]+", headers["content-disposition"])
        assert "%2F" not in headers["content-disposition"]
        assert headers["content-type"] == "application/octet-stream"


def test_the_search_finds_what_it_looks_for() -> None:
    assert Page(f'<p title="{SLUG}">').wrong
    assert Page(f'<script type="application/json">{{"a": "{NAME}"}}</script>').wrong
    assert Page('<a href="javascript:alert(1)">').wrong
    assert Page('<a href="java\nscript:alert(1)">').wrong
    assert Page('<a href="//evil.example">').wrong
    assert Page("<p style=x>").wrong
    assert data_faults(f'{{"transform": [{{"calculate": "datum.x + {MARK}"}}]}}')
    assert data_faults('{"encoding": {"href": "javascript:x"}}')
    assert is_formula("=1+1")
    assert not is_formula("-1.5")
    assert not Page('<a href="/runs/1?x=javascript:1">&lt;img onerror=1&gt;</a>').wrong
