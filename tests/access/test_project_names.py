"""A project is found without the case of its name: by every address, filter and figure that names it."""

import re

import pytest

from app.access.routes import route_table
from app.storage.database import transaction
from tests.access.belongings import make_belongings
from tests.access.people import OURS, THEIRS, Teams
from tests.references.test_references import OWN

PAGE = {"Accept": "text/html"}
FILTERED = (
    "/",
    "/runs",
    "/runs.csv",
    "/history",
    "/regressions",
    "/leaderboards/h100/qwen3-30b-a3b",
    "/experiments",
    "/references",
    "/playbook",
    "/scaling",
    "/upgrade",
    "/settings/audit",
    "/api/v1/runs",
    "/api/v1/history",
    "/api/v1/regressions",
    "/api/v1/leaderboards",
    "/api/v1/experiments",
    "/api/v1/references",
    "/api/v1/rules",
    "/api/v1/availability",
    "/api/v1/scaling",
    "/api/v1/upgrade",
    "/api/v1/audit",
)


def masked(text: str) -> str:
    text = re.sub(r"[0-9a-f]{32}(?![0-9a-f])", "", text)
    text = re.sub(r"\d\d:\d\d:\d\d(\.\d+)?", "TIME", text)
    return re.sub(r"\b(just now|\d+\s(s|min|h) ago)", "AGO", text)


def test_every_address_that_names_a_project_finds_it_in_any_case(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        params = make_belongings(session, OURS, whole=True).params()
    routes = [
        route.path for route in route_table(teams.app).routes if route.method == "GET" and route.rule.owner == "project"
    ]
    addresses = [
        *((path.format(**params), path.format(**params | {"slug": OURS.upper()})) for path in routes),
        *((f"{path}?project={OURS}", f"{path}?project={OURS.upper()}") for path in FILTERED),
    ]
    client = teams.client("maintainer")
    wrong = []
    for usual, shouted in addresses:
        headers = {} if usual.startswith("/api/") else PAGE
        expected, answer = client.get(usual, headers=headers), client.get(shouted, headers=headers)
        if answer.status_code != expected.status_code or masked(answer.text) != masked(expected.text):
            wrong.append(f"{shouted}: {answer.status_code} instead of {expected.status_code}")
    assert not wrong, "\n".join(wrong)
    assert len(routes) > 5


def test_a_project_is_changed_by_its_name_in_any_case(teams: Teams) -> None:
    client = teams.client("maintainer")
    changed = client.patch(f"/api/v1/projects/{OURS.title()}/rules", json={"baseline_branch": "trunk"})
    assert (changed.status_code, changed.json()["project"]) == (200, OURS)
    assert client.get(f"/api/v1/projects/{OURS}/rules").json()["baseline_branch"] == "trunk"


@pytest.mark.parametrize("who", ["anonymous", "viewer", "token:read"])
def test_a_project_that_the_caller_may_not_see_keeps_the_spelling_of_the_address(teams: Teams, who: str) -> None:
    """Else the answer would tell that there is one, and how its name is written."""
    client = teams.client(who)
    for path in FILTERED:
        answer = client.get(f"{path}?project={THEIRS.upper()}", headers=PAGE)
        assert THEIRS not in f"{answer.text} {answer.headers}", path
    assert client.get(f"/api/v1/projects/{THEIRS.upper()}/rules").status_code in (401, 404)


def test_a_figure_is_offered_to_a_project_in_any_case(teams: Teams) -> None:
    added = teams.client("contributor").post("/api/v1/references", json=OWN | {"author": "", "project": OURS.upper()})
    assert (added.status_code, added.json()["entered"]["project"]) == (201, OURS), added.text


def test_a_name_with_signs_of_addresses_in_it_comes_through(teams: Teams) -> None:
    answer = teams.client("viewer").get("/api/v1/runs", params={"project": OURS.upper(), "q": "a&b=c d%2"})
    assert answer.status_code == 200
    refused = teams.client("viewer").get("/api/v1/runs", params={"project": OURS.upper(), "sort": "a&b"})
    assert refused.status_code == 422
