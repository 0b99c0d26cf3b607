"""Text from users and logs is an attack here: names, branches, links, notes, lines.

It must stay text everywhere. The test requests every GET URL of a service whose names all contain markup, an expression
and a formula, and opens pages in a real browser, where none of it may run. `make soak` uses all parameters and opens
every page.
"""

import csv
import io
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import quote

import pytest
from httpx2 import Response
from playwright.sync_api import ConsoleMessage, Page, expect
from sqlalchemy import update
from sqlmodel import Session
from starlette.testclient import TestClient

from app.access.credentials import NAME as NAME_OF_COOKIE
from app.access.routes import route_table
from app.domain.access.principal import Role, Scope
from app.main import create_app
from app.settings import Settings
from app.storage import tokens, users
from app.storage.database import transaction
from app.storage.tables import RunFileRow, RunRow
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import Teams, make_teams
from tests.browser.conftest import running_chromium, served
from tests.cases import sized
from tests.experiments.planned import make_baseline
from tests.hardening.markup import MARK, Markup, data_faults
from tests.runs.uploading import LOG, upload
from tests.training_logs import training_log
from workers.tasks import process_run

pytestmark = pytest.mark.timeout(1_500)  # the service is filled for the first test

TAGS = f"<img src=x onerror=window.{MARK}=1><svg onload=alert({MARK})>"
SLUG = f"a\"'>{TAGS}<!--{{{{7*7}}}}"
NAME = f"=a\"'></script></textarea></title><script>alert({MARK})</script>{TAGS}\r\nX-{MARK}: 1"
PAGE, CSV = {"Accept": "text/html"}, {"Accept": "text/csv"}
BLOCK = PAGE | {"HX-Request": "true"}
HOSTILE_LOG = (
    f"  wandb_project ................................... {TAGS}</script>\n"
    f"  tokenizer_model ................................. \"'>{TAGS}\n"
    f"[rank0]: RuntimeError: </script>{TAGS} javascript:alert({MARK})\n"
    f"ModuleNotFoundError: No module named '{TAGS}'\n"
).encode() + training_log()


@dataclass(frozen=True)
class Hostile:
    """Return every URL and its objects: `theirs`, a project with such a name, and `read`, a processed run."""

    teams: Teams
    addresses: set[str]
    theirs: Belongings
    read: Belongings


@pytest.fixture(scope="module")
def hostile(module_settings: Settings) -> Iterator[Hostile]:
    app = create_app(module_settings)
    yield fill(make_teams(app))
    app.state.engine.dispose()


def fill(teams: Teams) -> Hostile:
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
    fields = {"run": make_baseline(teams.engine), "knobs": {"ep_overlap": True}, "title": NAME, "note": NAME}
    experiment = client.post("/api/v1/experiments", json=fields)
    assert experiment.status_code == 201, experiment.text
    read = replace(theirs, run=run.json()["id"], experiment=experiment.json()["id"], slug="alpha")
    return Hostile(teams, {*addresses(teams, theirs), *addresses(teams, read)}, theirs, read)


def rename(session: Session, teams: Teams) -> None:
    """Set names that the builders do not choose, as if an upload had contained them."""
    session.execute(update(RunRow).values(name=NAME, ci_url=f"https://ci.example/{NAME}"))
    session.execute(update(RunFileRow).values(name=NAME))
    person = users.create_user(session, "ada", by=TAGS, email=NAME)
    users.get_user(session, person.id).name = f"ada {TAGS}"[:100]  # as an account from before names were letters only
    users.set_role(session, project_id=teams.ours, user_id=person.id, role=Role.VIEWER, by=TAGS)
    tokens.make_token(session, project_id=teams.ours, name=TAGS[:100], scopes=[Scope.READ], by=TAGS)


def addresses(teams: Teams, belongings: Belongings) -> Iterator[str]:
    params = {name: quote(value, safe="") for name, value in belongings.params().items()}
    for route in route_table(teams.app).routes:
        if route.method == "GET" and not route.path.startswith("/assets"):
            yield re.sub(r":\w+}", "}", route.path).format(**params)


def faults(answer: Response) -> tuple[list[str], str]:
    """Return what text became in a page, a chart, a table or a report, and the visible text of a page."""
    result = [f"the header {name}" for name in answer.headers if MARK in name]
    media = answer.headers.get("content-type", "")
    if answer.status_code >= 500:
        result.append(str(answer.status_code))
    text = answer.content.decode(errors="replace")
    if "html" in media or "svg" in media:
        page = Markup(text)
        return [*result, *page.wrong], page.text if "html" in media else ""
    if "csv" in media:
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        result += [f"the formula {cell}" for cell in cells if is_formula(cell)]
    elif "json" in media:
        result += data_faults(text)
    elif "markdown" in media and "<img" in text:
        result.append("markup in Markdown")
    return result, ""


def is_formula(cell: str) -> bool:
    begins = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
    return cell.startswith(begins) and not re.fullmatch(r"[+-]?[0-9.e+-]+", cell)


def test_untrusted_text_never_becomes_markup_script_formula_or_header(hostile: Hostile) -> None:
    client, theirs, read = hostile.teams.client("administrator"), hostile.theirs, hostile.read
    calls, pages = (
        sorted(item for item in hostile.addresses if item.startswith("/api/") is is_call) for is_call in (True, False)
    )
    which = random.Random(2)  # noqa: S311  # which ways the suite asks besides
    requests = [(page, PAGE) for page in pages]
    requests += [(page, BLOCK) for page in which.sample(pages, sized(len(pages) // 3, len(pages)))]
    requests += [(call, headers) for call in calls for headers in which.sample([PAGE, {}, CSV], sized(1, 3))]
    result: list[str] = []
    shown: set[str] = set()
    for address, headers in requests:
        answer = client.get(address, headers=headers)
        wrong, text = faults(answer)
        result += [f"{address}: {fault}" for fault in wrong]
        if TAGS in text:
            shown.add(address)
    assert not result, "\n".join(result)
    # And it is present as plain text.
    lists = {"/", "/runs", "/regressions", "/experiments", "/references", "/leaderboards", "/settings/projects"}
    pages = {f"/runs/{read.run}", f"/runs/{read.run}/log", f"/regressions/{theirs.regression}"}
    assert lists | pages | {f"/experiments/{read.experiment}"} <= shown


NO_PAGES = re.compile(
    r"^/(api|healthz|readyz|metrics|openapi|badges|login/oidc)|\.(csv|parquet|png|pyz|sha256)$|/walls\.svg$"
    r"|/(chart|data|news|series|distributions|gains|leaders)$"
)
WATCH = """
window.violations = []
addEventListener("securitypolicyviolation", (one) => violations.push(`${one.violatedDirective} ${one.blockedURI}`))
"""
RUNS = f"""() => {{
  const found = [...violations]
  if (window.{MARK}) found.push("a script ran")
  for (const one of document.querySelectorAll("*"))
    for (const {{ name, value }} of one.attributes) {{
      if (/^on/i.test(name)) found.push(`<${{one.localName}} ${{name}}>`)
      const leads = /^(href|src|action|formaction|xlink:href|data)$/.test(name)
      if (leads && /^\\s*(javascript|vbscript|data:text)/i.test(value)) found.push(`${{name}}=${{value}}`)
    }}
  const foreign = document.querySelectorAll("img:not([src^='/badges/'], .qr), iframe, object, embed, base")
  return [...found, ...[...foreign].map((one) => one.outerHTML)]
}}"""


def test_untrusted_text_does_not_run_in_a_browser(hostile: Hostile) -> None:
    run, other = hostile.read.run, hostile.theirs.run
    pages = sorted(item for item in hostile.addresses if not NO_PAGES.search(item))
    sampled = set(random.Random(1).sample(pages, sized(len(pages) // 4, len(pages))))  # noqa: S311  # which pages
    sampled |= {
        f"/compare?a={run}&b={other}",
        f"/plan?run={other}",
        f"/runs/{run}?view=table",
        "/upgrade?project=alpha",
    }
    sampled |= {page for page in pages if re.fullmatch(r"/history/[0-9a-f]+|/runs/[0-9]+", page)}  # they have charts
    result: list[str] = []
    for chart in ("distributions", "series"):  # the first one imports for longer than a browser waits
        hostile.teams.client("administrator").get(f"/compare/{chart}?a={run}&b={other}")
    with running_chromium() as chromium, served(hostile.teams.app) as house:
        context = chromium.new_context(base_url=house, reduced_motion="reduce")
        context.add_cookies([{"name": NAME_OF_COOKIE, "value": hostile.teams.session("administrator"), "url": house}])
        context.add_init_script(WATCH)
        page = context.new_page()

        def note(message: str) -> None:
            if message:
                result.append(f"{page.url}: {message}")

        page.on("dialog", lambda item: note(f"the dialog {item.message}"))  # which blocks its page
        page.on("pageerror", lambda item: note(str(item)))
        page.on("console", lambda item: note(complaint(item)))
        page.on("request", lambda item: note("" if item.url.startswith((house, "data:")) else item.url))
        tooltips = 0
        for address in sorted(sampled):
            page.goto(address)
            if "/login" in page.url and address != "/login":
                result.append(f"{address}: nobody is logged in")
            expect(page.locator(".htmx-request")).to_have_count(0, timeout=90_000)
            expect(page.locator("[data-chart]:not([data-ready])")).to_have_count(0, timeout=90_000)
            tooltips += hovered(page)
            result += [f"{address}: {fault}" for fault in page.evaluate(RUNS)]
        context.close()
    assert not result, "\n".join(result)
    assert tooltips > 3


def complaint(message: ConsoleMessage) -> str:
    """A page that shows an error was answered with its status, which Chromium writes to the console."""
    is_status = "the server responded with a status of" in message.text
    return message.text if message.type in ("error", "warning") and not is_status else ""


def hovered(page: Page) -> int:
    """Return the number of charts that showed a tooltip for marks under the pointer."""
    tooltips = 0
    for chart in page.locator("[data-chart][data-ready] canvas").all():
        box = chart.bounding_box()
        if box is None:
            continue
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box() or box
        for step in range(1, 8):
            page.mouse.move(box["x"] + box["width"] * step / 8, box["y"] + box["height"] * (0.3 + 0.05 * (step % 5)))
        tooltips += page.locator("#chart-tooltip").count()
    return tooltips


def test_a_link_with_a_script_is_refused(client: TestClient) -> None:
    for address in ("javascript:alert(1)", "data:text/html,x", " jAvascript:alert(1)", "vbscript:x", "//evil.example"):
        assert upload(client, LOG, meta={"ci_url": address}).status_code == 422
    rules = {"commit_url": "javascript:alert(1)//{commit}", "author": "a"}
    assert client.patch("/api/v1/projects/default/rules", json=rules).status_code in (404, 422)


def test_a_file_name_cannot_break_a_header(client: TestClient) -> None:
    for name in (NAME, 'a"; filename="b.html', "../../etc/passwd", "..\\x.log", "a\u202egnp.log", "ü.log"):
        run = upload(client, LOG + name.encode(), name=name, meta={"name": name[:50]}).json()["id"]
        headers = client.get(f"/api/v1/runs/{run}/files/0").headers
        assert re.fullmatch(r"attachment; filename\*=UTF-8''[A-Za-z0-9%._~-]+", headers["content-disposition"])
        assert "%2F" not in headers["content-disposition"]
        assert headers["content-type"] == "application/octet-stream"


def test_the_search_finds_what_it_looks_for() -> None:
    assert Markup(f'<p title="{SLUG}">').wrong
    assert Markup(f'<script type="application/json">{{"a": "{NAME}"}}</script>').wrong
    assert Markup('<a href="javascript:alert(1)">').wrong
    assert Markup('<a href="java\nscript:alert(1)">').wrong
    assert Markup('<a href="//evil.example">').wrong
    assert Markup("<p style=x>").wrong
    assert data_faults(f'{{"transform": [{{"calculate": "datum.x + {MARK}"}}]}}')
    assert data_faults('{"encoding": {"href": "javascript:x"}}')
    assert is_formula("=1+1")
    assert not is_formula("-1.5")
    assert not Markup('<a href="/runs/1?x=javascript:1">&lt;img onerror=1&gt;</a>').wrong
