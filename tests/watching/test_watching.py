"""Watching: users see only the changes of what they watch; the feed follows their rights."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

from starlette.testclient import TestClient

from app.domain.access.principal import Role
from app.storage import users
from app.storage.database import transaction
from app.storage.tables import WatchRow, utc_now
from app.storage.watches import MAX_WATCHES
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, THEIRS, Teams
from tests.builders import make_stack

API = "/api/v1/watching"
ATOM = "{http://www.w3.org/2005/Atom}"


def read(client: TestClient) -> dict[str, Any]:
    answer = client.get(API)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def note(teams: Teams, regression: int, text: str) -> None:
    answer = teams.client("contributor").patch(f"/api/v1/regressions/{regression}", json={"note": text})
    assert answer.status_code == 200, answer.text


def test_a_user_sees_the_changes_of_a_watched_regression_and_stack(teams: Teams, ours: Belongings) -> None:
    viewer = teams.client("viewer")
    assert viewer.post(f"/watching/regressions/{ours.regression}", data={"watch": "yes"}).status_code == 303
    note(teams, ours.regression, "a bad node")
    body = read(viewer)
    assert [(item["kind"], item["target"], item["project"]) for item in body["watches"]] == [
        ("regression", str(ours.regression), OURS)
    ]
    newest = body["changes"][0]
    assert (newest["kind"], newest["who"], newest["detail"]) == ("regression", "contributor", "a bad node")
    assert newest["path"] == f"/regressions/{ours.regression}"
    assert read(teams.client("contributor")) == {"watches": [], "changes": []}
    # Watching a stack includes its regressions, golden runs and bad runs.
    lead = teams.client("maintainer")
    assert lead.put(f"{API}/stacks/{ours.stack}").status_code == 204
    assert lead.put(f"{API}/stacks/{ours.stack}").status_code == 204
    assert lead.post(f"/api/v1/runs/{ours.run}/pin", json={"note": "good"}).status_code == 200
    changes = read(lead)["changes"]
    assert ("stack", f"/history/{ours.stack}") in {(change["kind"], change["path"]) for change in changes}
    assert "a bad node" in {change["detail"] for change in changes}
    assert 'value="no"' in lead.get(f"/history/{ours.stack}", headers={"Accept": "text/html"}).text
    assert lead.delete(f"{API}/stacks/{ours.stack}").status_code == 204
    assert read(lead) == {"watches": [], "changes": []}


def test_the_page_of_a_user_without_watches_offers_what_they_may_read(teams: Teams, ours: Belongings) -> None:
    viewer = teams.client("viewer")
    with transaction(teams.engine) as session:
        make_stack(session, [400.0], project=OURS, fields={"seq_len": 2048})  # one run shows no change to watch
    offered = set(re.findall(r'action="(/watching/[^"]+)"', viewer.get("/watching").text)) - {"/watching/feed"}
    assert {f"/watching/stacks/{ours.stack}", f"/watching/regressions/{ours.regression}"} == offered
    for address in offered:
        assert viewer.post(address, data={"watch": "yes"}).status_code == 303
    assert {item["target"] for item in read(viewer)["watches"]} == {ours.stack, str(ours.regression)}


def test_only_users_watch_and_only_what_they_may_read(teams: Teams, ours: Belongings) -> None:
    for who, status in {"token:read": 403, "anonymous": 401, "outsider": 404}.items():
        assert teams.client(who).put(f"{API}/stacks/{ours.stack}").status_code == status, who
    assert teams.client("viewer").put(f"{API}/regressions/999").status_code == 404
    with transaction(teams.engine) as session:
        session.add_all(
            WatchRow(user_id=teams.users["viewer"], project_id=teams.ours, kind="regression", target=str(number))
            for number in range(1_000, 1_000 + MAX_WATCHES)
        )
    assert teams.client("viewer").put(f"{API}/stacks/{ours.stack}").status_code == 422


def test_a_feed_without_changes_has_the_date_of_the_newest_watch(teams: Teams) -> None:
    viewer, reader = teams.client("viewer"), teams.client("anonymous")
    page = viewer.post("/watching/feed", headers={"Accept": "text/html"}).text
    (feed,) = set(re.findall(r"/watching\.atom\?key=[A-Za-z0-9_-]{43}", page))
    dates = []
    for _ in range(2):
        answer = reader.get(feed)
        assert reader.get(feed, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
        dates.append(ElementTree.fromstring(answer.text).findtext(f"{ATOM}updated", ""))  # noqa: S314  our own
        with transaction(teams.engine) as session:
            watch = WatchRow(user_id=teams.users["viewer"], project_id=teams.ours, kind="regression", target="1")
            watch.watched_at = datetime(2026, 5, 4, 3, 2, tzinfo=UTC)
            session.merge(watch)
    assert datetime.fromisoformat(dates[0]).date() >= utc_now().date() - timedelta(days=1)
    assert dates[1] == "2026-05-04T03:02:00+00:00"


def test_the_feed_needs_its_key_and_follows_the_rights_of_its_user(teams: Teams, ours: Belongings) -> None:
    outsider = teams.client("outsider")
    with transaction(teams.engine) as session:
        users.set_role(session, project_id=teams.ours, user_id=teams.users["outsider"], role=Role.VIEWER, by="test")
        theirs = make_belongings(session, THEIRS)
    for belongings in (ours, theirs):
        assert outsider.put(f"{API}/regressions/{belongings.regression}").status_code == 204
        assert outsider.put(f"{API}/stacks/{belongings.stack}").status_code == 204
    note(teams, ours.regression, "of ours")
    page = outsider.post("/watching/feed", headers={"Accept": "text/html"}).text
    (feed,) = set(re.findall(r"/watching\.atom\?key=[A-Za-z0-9_-]{43}", page))
    reader = teams.client("anonymous")
    entries = ElementTree.fromstring(reader.get(feed).text).findall(f"{ATOM}entry")  # noqa: S314  our own
    assert "contributor of ours" in {entry.findtext(f"{ATOM}summary") for entry in entries}
    assert len({entry.findtext(f"{ATOM}id") for entry in entries}) == len(entries)
    tag = reader.get(feed).headers["ETag"]
    assert reader.get(feed, headers={"If-None-Match": tag}).status_code == 304
    teams.client("maintainer").delete(f"/api/v1/projects/{OURS}/members/{teams.users['outsider']}")
    assert "of ours" not in reader.get(feed).text
    assert {item["project"] for item in read(outsider)["watches"]} == {THEIRS}
    outsider.post("/watching/feed")
    assert reader.get(feed).status_code == 404
    assert reader.get("/watching.atom").status_code == 404
