"""Nothing of another team's is read by whatever address: the whole application, with two teams that own the same.

Names of theirs all hold the project's, so that one word finds every leak.
"""

import re
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from app.experiments.plan import plan_experiment
from app.experiments.proposal import Wish
from app.settings import Settings
from app.storage.database import transaction
from app.web.access.route_table import route_table
from app.web.access.rules import Open
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, THEIRS, Teams

Owned = tuple[Belongings, Belongings]
PAGE = {"Accept": "text/html"}
RUN_LINK = re.compile(r"/runs/(\d+)")


@pytest.fixture
def owned(teams: Teams, settings: Settings) -> Owned:
    with transaction(teams.engine) as session:
        made = [make_belongings(session, slug, whole=True) for slug in (OURS, THEIRS)]
    ours, theirs = (
        replace(one, experiment=plan_experiment(teams.engine, settings, _wish(one), f"{one.slug}-lead")) for one in made
    )
    return ours, theirs


def _wish(belongings: Belongings) -> Wish:
    return Wish(belongings.run, knobs={"ep_overlap": True}, title=f"{belongings.slug} tries overlap")


def readable(teams: Teams, belongings: Belongings) -> list[str]:
    """Every address that answers to GET, about what is ours."""
    params = belongings.params() | {"name": "vega.js"}
    return [
        route.path.format(**params)
        for route in route_table(teams.app).routes
        if route.method == "GET" and not isinstance(route.rule.needs, Open)
    ]


def probes(ours: Belongings, theirs: Belongings) -> list[str]:
    """Addresses that ask for what is theirs: by its number, key, name or project."""
    params = theirs.params()
    filters = (
        "/runs",
        "/api/v1/runs",
        "/regressions",
        "/api/v1/regressions",
        "/history",
        "/experiments",
        "/references",
    )
    return [
        *(f"{path}?project={THEIRS}" for path in filters),
        *(f"{path}?q={THEIRS}-nightly" for path in filters),
        f"/api/v1/experiments?project={THEIRS}",
        f"/leaderboards/h100/qwen3-30b-a3b?project={THEIRS}",
        f"/api/v1/leaderboards?project={THEIRS}",
        f"/api/v1/availability?project={THEIRS}",
        f"/upgrade?project={THEIRS}",
        f"/api/v1/upgrade?project={THEIRS}",
        f"/scaling?project={THEIRS}",
        f"/compare?a={ours.run}&b={theirs.run}",
        f"/api/v1/compare?a={ours.run}&b={theirs.run}",
        f"/references/nearest?run={theirs.run}",
        f"/api/v1/references/nearest?run={theirs.run}",
        f"/plan?run={theirs.run}",
        f"/regressions/{ours.regression}/chart?run={theirs.run}",
        "/history/{stack}".format(**params),
        "/api/v1/history/{stack}".format(**params),
        "/references/{reference_id}".format(**params),
    ]


def runs_of(teams: Teams, who: str) -> set[int]:
    """All that the API lists."""
    client, found, number = teams.client(who), set(), 1
    while page := client.get(f"/api/v1/runs?page_size=100&page={number}").json()["items"]:
        found |= {run["id"] for run in page}
        number += 1
    return found


def leaks(client: TestClient, address: str, word: str, strangers: set[int]) -> list[str]:
    """What an answer tells of theirs, as a page and as a document."""
    told = []
    for headers in (PAGE, {}, {"Accept": "text/csv"}):
        answer = client.get(address, headers=headers)
        text = answer.text
        assert answer.status_code < 500, f"{address}: {text[:300]}"  # a defect hides what the page would tell
        if word in text:
            told.append(f"{address}: …{text[max(0, text.index(word) - 80) : text.index(word) + 80]}…")
        told += [f"{address}: run {number}" for number in RUN_LINK.findall(text) if int(number) in strangers]
    return told


def test_nothing_of_another_team_is_read_by_any_address(teams: Teams, owned: Owned) -> None:
    ours, theirs = owned
    strangers = runs_of(teams, "administrator") - runs_of(teams, "viewer")
    assert len(strangers) > 10
    client = teams.client("viewer")
    found = [leak for address in readable(teams, ours) for leak in leaks(client, address, THEIRS, strangers)]
    # What was asked for stands in the answer, so only what belongs to it tells something.
    asked = strangers - {theirs.run}
    found += [leak for probe in probes(ours, theirs) for leak in leaks(client, probe, f"{THEIRS}-image", asked)]
    found += [leak for probe in probes(ours, theirs) for leak in leaks(client, probe, f"{THEIRS}-lead", asked)]
    assert not found, "\n".join(found)


def test_the_search_for_leaks_would_find_them(teams: Teams, owned: Owned) -> None:
    ours, _ = owned
    client = teams.client("administrator")
    addresses = readable(teams, ours)
    telling = {one for one in addresses for how in (PAGE, {}) if THEIRS in client.get(one, headers=how).text}
    assert {"/", "/runs", "/regressions", "/history", "/leaderboards", "/experiments", "/references"} <= telling
    assert {"/api/v1/runs", "/api/v1/regressions", "/api/v1/leaderboards", "/api/v1/experiments"} <= telling
