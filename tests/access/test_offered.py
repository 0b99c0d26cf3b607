"""Pages offer only permitted actions: every form, call and link of every page is compared with the access check.

Commands to copy must name the right token. The pages come from the application's own table of routes and are read as a
browser reads them; the check is the real one, in front of a stub. The reverse is tested as well, so that a page that
hides everything fails: users with permission are offered every form.
"""

import random
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import pytest
from sqlalchemy import select
from sqlmodel import Session, col
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from app.access.check import AccessMiddleware
from app.access.routes import RouteTable, route_table
from app.domain.access.principal import Action
from app.domain.definitions import DEFINITION_VERSION
from app.experiments.commands import SweepRequest, plan_experiment, plan_sweep
from app.main import create_app
from app.pipeline.propose import ExperimentRequest
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.projects import add_chart
from app.storage.tables import ReceiverRow, RegressionRow, RunRow
from app.web.access_rule import Open
from tests.access.belongings import Belongings, make_belongings, measure_sweep
from tests.access.people import OURS, PUBLIC, Teams, make_teams
from tests.cases import sized

TABS = ("?tab=config", "?tab=record")
"""Parts of the page of a run that offer changes."""

PAGE = {"Accept": "text/html"}
CALLERS = ("anonymous", "viewer", "contributor", "maintainer", "administrator")
"""On pages of a project that everybody reads, contributors and maintainers of ours are such of another project."""

OFFERED_TO = {
    "contributor": {Action.UPLOAD, Action.CONTRIBUTE},
    "maintainer": {Action.UPLOAD, Action.CONTRIBUTE, Action.MANAGE},
    "administrator": {Action.UPLOAD, Action.CONTRIBUTE, Action.MANAGE, Action.ADMINISTER},
}
_SAME_PAGE = ("/chart", "/log", "/timers", "/news", "/data", "/history/{stack}/runs", "/gains", "/leaders", ".csv")
"""Parts of a page: to whoever is not htmx they are the page again. And what is no page."""

_CALLS = {"hx-get": "GET", "hx-post": "POST", "hx-put": "PUT", "hx-patch": "PATCH", "hx-delete": "DELETE"}


class Offer(NamedTuple):
    method: str
    path: str


class Reader(HTMLParser):
    """The actions that a page offers, its selectable regressions, and the commands that would be refused."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self.offers: set[Offer] = set()
        self.selectable: set[int] = set()
        self.refused: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._add(has.get("method", "get").upper(), has.get("action", ""))
        if tag == "a" and "href" in has:
            self._add("GET", has["href"])
        if has.get("type") == "checkbox" and has.get("name") == "seen":
            self.selectable.add(int(has["value"].partition("@")[0]))
        for name, method in _CALLS.items():
            if name in has:
                self._add(method, has[name])

    def handle_data(self, data: str) -> None:
        if data.lstrip().startswith("curl ") and "Authorization: Bearer $THREEWALLS_TOKEN" not in data:
            self.refused.append(data)

    def _add(self, method: str, address: str) -> None:
        there = urlsplit(urljoin(f"http://here{self._address}", address))
        if there.netloc == "here":
            self.offers.add(Offer(method, there.path))


async def passed(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("")(scope, receive, send)


class Town:
    """The application with all its pages, and the check alone."""

    def __init__(self, settings: Settings) -> None:
        unlimited = settings.model_copy(update={"requests_per_minute": 0})
        self.teams = make_teams(create_app(unlimited))
        self.table: RouteTable = route_table(self.teams.app)
        self._gate = AccessMiddleware(
            passed, engine=self.teams.engine, settings=unlimited, table=self.table, open_to=None
        )
        with transaction(self.teams.engine) as session:
            self.owned = [make_belongings(session, slug, whole=True) for slug in (OURS, PUBLIC)]
            states = [(item, *_states(session, item)) for item in self.owned]
        self.addresses: dict[str, list[str]] = {}
        for item, runs, receiver in states:
            requested = ExperimentRequest(item.run, knobs={"ep_overlap": True}, title=f"{item.slug} tries overlap")
            planned = plan_experiment(self.teams.engine, unlimited, requested, f"{item.slug}-lead")
            params = item.params() | {"experiment_id": str(planned)}
            sweep = plan_sweep(self.teams.engine, unlimited, SweepRequest(item.run, "mbs", ["2", "4", "8"], 2), "lead")
            measure_sweep(self.teams.engine, sweep, item.run, item.slug)
            self.addresses[item.slug] = [
                *(self._address(path, params) for path in self._pages()),
                *(f"/runs/{run}{tab}" for run in {item.run, *runs} for tab in ("", *TABS)),
                f"/runs/{item.run}/experiments/new?field=ep_overlap&value=true",
                f"/runs/{item.run}/sweeps/new?field=mbs&values=2,4,8",
                f"/experiments/{sweep}/sweep",
                f"/runs?project={item.slug}&status=ready",
                f"/?project={item.slug}",
                f"/settings/projects/{item.slug}/notifications/{receiver}",
            ]

    def _pages(self) -> list[str]:
        return [
            route.path
            for route in self.table.routes
            if route.method == "GET"
            and not route.path.startswith(("/api/", "/badges/"))
            and not route.path.endswith(_SAME_PAGE)
            and route.rule.needs is not Open.ALWAYS
        ]

    def _address(self, path: str, params: dict[str, str]) -> str:
        return path.format(**params)

    def read(self, who: str) -> dict[str, Reader]:
        """Return every page that the caller may read, by its URL.

        Maintainers of ours are offered the most, so they read all pages of the other project; viewers, contributors
        and administrators a third of them, in `make soak` all.
        """
        client, read = self.teams.client(who), {}
        public = self.addresses[PUBLIC]
        if who not in ("anonymous", "maintainer"):
            public = random.Random(who).sample(public, sized(len(public) // 3, len(public)))  # noqa: S311  # which pages
        for address in dict.fromkeys([*self.addresses[OURS], *public]):
            answer = client.get(address, headers=PAGE)
            assert answer.status_code < 500, f"{address}: {answer.text[:300]}"
            if answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/html"):
                read[address] = Reader(address)
                read[address].feed(answer.content.decode())
        return read

    def regressions(self, project: int | None) -> set[int]:
        """Return the regressions of a project, or all, that the list offers for triage."""
        of_it = select(col(RegressionRow.id)).where(col(RegressionRow.state).in_(("open", "acknowledged")))
        with read_session(self.teams.engine) as session:
            wanted = of_it if project is None else of_it.where(col(RegressionRow.project_id) == project)
            return set(session.execute(wanted).scalars())

    def knock(self, who: str) -> TestClient:
        teams = self.teams
        gate = Teams(self._gate, teams.ours, teams.theirs, teams.public, teams.users, teams.tokens, teams.engine)
        return gate.client(who)


def _states(session: Session, owned: Belongings) -> tuple[list[int], int]:
    """Create runs and a receiver in states that pages offer to undo or decide: release, unpin, approve, retry."""
    project = session.get_one(RunRow, owned.run).project_id
    of_stack = select(RunRow).where(col(RunRow.project_id) == project, col(RunRow.stack_key) == owned.stack)
    runs = session.execute(of_stack.order_by(col(RunRow.id))).scalars().all()
    runs[3].definition_version, runs[3].result.definitions = 1, {}
    runs[3].recompute_failed, runs[3].recompute_error = DEFINITION_VERSION, "its log is gone"
    receiver = ReceiverRow(
        project_id=project, kind="slack", name=f"{owned.slug}-paused", enabled=False, secret="",
        target=f"https://{owned.slug}.example/slack", created_by=f"{owned.slug}-lead",
    )  # fmt: skip
    session.add(receiver)
    session.flush()
    add_chart(session, project, page=f"/history/{owned.stack}", title="a chart", by=f"{owned.slug}-lead")
    return [run.id or 0 for run in runs[:3]], receiver.id or 0


@pytest.fixture
def town(settings: Settings) -> Iterator[Town]:
    town = Town(settings)
    yield town
    town.teams.app.state.engine.dispose()


IN_ANSWERS = {
    "POST /regressions/undo",
    "POST /settings/projects/{slug}/undo",
    "POST /settings/projects/{slug}/unarchive",
    "POST /upload/preview",
}
"""Forms of toasts, which come with the answer to a change, of projects with a deletion or in the archive, and the call
of the script of the upload page."""


def test_pages_offer_exactly_the_permitted_actions(town: Town) -> None:
    wrong: list[str] = []
    for who in CALLERS:
        pages, gate = town.read(who), town.knock(who)
        answers: dict[Offer, int] = {}
        offered: set[str] = set()
        for address, page in pages.items():
            wrong += [f"{address} has {who} copy a line without a token: {line}" for line in page.refused]
            for offer in page.offers:
                result = town.table.find(*offer)
                if result is None or result.route.rule.needs in (Open.ALWAYS, Open.ANYONE):
                    continue
                offered.add(result.route.key)
                if result.route.rule.needs is Action.READ:
                    continue
                if offer not in answers:
                    answers[offer] = gate.request(offer.method, offer.path).status_code
                if answers[offer] != 200:
                    wrong.append(f"{address} offers {who} {offer.method} {offer.path}: {answers[offer]}")
        assert len(pages) > 20, who
        may = OFFERED_TO.get(who, set())
        missing = {
            route.key
            for route in town.table.routes
            if route.method == "POST" and not route.path.startswith("/api/") and route.rule.needs in may
        }
        wrong += [f"No page offers {who} {key}" for key in sorted(missing - offered - IN_ANSWERS)]
        selectable = set().union(*(page.selectable for page in pages.values()))
        visible_regressions = town.regressions(
            None if who == "administrator" else town.teams.ours if who in OFFERED_TO else 0
        )
        if selectable != visible_regressions:
            wrong.append(f"{who} may select the regressions {selectable}, not {visible_regressions}")
    assert not wrong, "\n".join(wrong)
