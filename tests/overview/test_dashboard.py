"""Charts on the overview of a project: added, moved and removed; only pages of the project; visible to its readers."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from sqlalchemy import delete
from starlette.testclient import TestClient

from app.storage.database import transaction
from app.storage.projects import MAX_CHARTS
from app.storage.tables import DashboardChartRow
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, THEIRS, Teams

API = f"/api/v1/projects/{OURS}/dashboard"
HTML = {"Accept": "text/html"}


@pytest.fixture
def ours(teams: Teams) -> Belongings:
    with transaction(teams.engine) as session:
        ours = make_belongings(session, OURS, whole=True)
        session.execute(delete(DashboardChartRow))
    return ours


def shown(client: TestClient) -> list[str]:
    items: list[dict[str, Any]] = client.get(API).json()["items"]
    assert [item["position"] for item in items] == list(range(1, len(items) + 1))
    return [item["page"] for item in items]


def test_charts_are_added_moved_and_removed_and_the_overview_shows_them(teams: Teams, ours: Belongings) -> None:
    member, viewer = teams.client("contributor"), teams.client("viewer")
    history, board = f"/history/{ours.stack}", "/leaderboards/h100/qwen3-30b-a3b"
    comparison = f"/compare?a={ours.run}&b={ours.run - 1}"
    for page in (history, f"http://testserver{board}", comparison, history):
        assert member.post(API, json={"page": page, "title": "a chart"}).status_code == 201, page
    assert shown(viewer) == [history, f"{board}?project={OURS}", comparison]
    items = viewer.get(API).json()["items"]
    for item in items:
        picture = viewer.get(item["picture"])
        assert (picture.status_code, picture.headers["Content-Type"]) == (200, "image/svg+xml")
        ElementTree.fromstring(picture.text)  # noqa: S314  our own
    page = viewer.get("/", params={"project": OURS}, headers=HTML).text
    assert re.findall(r'data-item="(\d+)"', page) == [str(item["id"]) for item in items]
    assert "dashboard/" not in page  # no form for viewers
    assert member.patch(f"{API}/{items[2]['id']}", json={"position": 1}).status_code == 200
    assert shown(viewer) == [comparison, history, f"{board}?project={OURS}"]
    forms = f"/settings/projects/{OURS}/dashboard"
    assert member.post(f"{forms}/{items[2]['id']}", data={"position": "3"}).status_code == 303
    assert member.post(f"{forms}/{items[0]['id']}", data={"do": "remove"}).status_code == 303
    assert member.delete(f"{API}/{items[1]['id']}").status_code == 204
    assert shown(viewer) == [comparison]
    assert member.delete(f"{API}/{items[1]['id']}").status_code == 404
    assert member.post(forms, data={"page": history}).status_code == 303
    assert shown(viewer) == [comparison, history]


def test_a_chart_without_a_title_has_that_of_its_page(teams: Teams, ours: Belongings) -> None:
    member = teams.client("contributor")
    pages = (f"/history/{ours.stack}", "/leaderboards/h100/qwen3-30b-a3b", f"/compare?a={ours.run}&b={ours.run - 1}")
    for page in pages:
        added = member.post(API, json={"page": page}).json()
        shown_page = member.get(added["page"], headers=HTML).text
        assert f'name="title" value="{added["title"]}"' in shown_page, page  # the request of its own button


def test_only_pages_of_the_project_become_charts_and_only_so_many(teams: Teams, ours: Belongings) -> None:
    member = teams.client("contributor")
    with transaction(teams.engine) as session:
        theirs = make_belongings(session, THEIRS)
    refused = (
        "/", "/runs", f"/runs/{ours.run}", "/leaderboards", "/leaderboards/h100/nothing", f"/history/{theirs.stack}",
        f"/compare?a={ours.run}&b={theirs.run}", f"/compare?a={ours.run}", "https://evil.example/x.svg",
    )  # fmt: skip
    for page in refused:
        assert member.post(API, json={"page": page}).status_code == 422, page
    assert teams.client("viewer").post(API, json={"page": f"/history/{ours.stack}"}).status_code == 403
    assert teams.client("outsider").get(API).status_code == 404
    with transaction(teams.engine) as session:
        session.add_all(
            DashboardChartRow(project_id=teams.ours, page=f"/{n}", title="", position=n, added_by="test")
            for n in range(MAX_CHARTS)
        )
    assert member.post(API, json={"page": f"/history/{ours.stack}"}).status_code == 422


def test_the_history_is_a_picture_for_other_sites_by_its_key(teams: Teams, ours: Belongings) -> None:
    viewer, stranger = teams.client("viewer"), teams.client("anonymous")
    page = viewer.get(f"/history/{ours.stack}", headers=HTML).text
    (address,) = set(re.findall(rf"/badges/{ours.stack}/history\.svg\?key=\w+", page))
    picture = stranger.get(address)
    assert (picture.status_code, picture.headers["Cross-Origin-Resource-Policy"]) == (200, "cross-origin")
    circles = ElementTree.fromstring(picture.text).iter("{http://www.w3.org/2000/svg}circle")  # noqa: S314  our own
    assert len(list(circles)) > 3
    assert stranger.get(address.partition("?")[0]).status_code == 404
    assert viewer.get(f"/history/{ours.stack}/picture.png").content.startswith(b"\x89PNG")
