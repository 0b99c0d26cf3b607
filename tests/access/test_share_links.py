"""Share links: one page without a log-in and nothing else, until the link expires or is revoked."""

import re
from datetime import datetime, timedelta
from html import unescape
from urllib.parse import urlsplit
from xml.etree import ElementTree

from sqlalchemy import select
from sqlmodel import col
from starlette.testclient import TestClient

from app.access.credentials import SHARE_NAME
from app.storage.database import transaction
from app.storage.tables import ProjectRow, RegressionRow, RunRow, ShareLinkRow, utc_now
from tests.access.belongings import Belongings, make_belongings
from tests.access.people import OURS, PUBLIC, THEIRS, Teams

PAGE = f"/settings/projects/{OURS}/share-links"
HTML = {"Accept": "text/html"}


def share(teams: Teams, page: str) -> str:
    """Share a page as a contributor and return the path of the link."""
    answer = teams.client("contributor").post(PAGE, data={"page": page, "days": "7"}, headers=HTML)
    assert answer.status_code == 200, answer.text
    (secret,) = set(re.findall(r"/s/([A-Za-z0-9_-]{43})", answer.text))
    return f"/s/{secret}"


def visitor(teams: Teams, link: str) -> tuple[TestClient, str]:
    """Open a link without a log-in; return the browser with its cookie, and where it was sent."""
    client = teams.client("anonymous")
    answer = client.get(link, headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["Cache-Control"] == "no-store"
    return client, answer.headers["Location"]


def test_a_link_opens_its_page_and_nothing_else(teams: Teams, ours: Belongings) -> None:
    client, page = visitor(teams, share(teams, f"http://testserver/runs/{ours.run}?table=1"))
    assert page == f"/runs/{ours.run}"
    assert client.get(page, headers=HTML).status_code == 200
    assert client.get(f"{page}/chart", headers=HTML).status_code == 200
    # Browsers send the cookie with this path only; a program may send it with any.
    stolen = {"Cookie": f"{SHARE_NAME}={client.cookies[SHARE_NAME]}", **HTML}
    thief = teams.client("anonymous")
    for path in ("/runs/1", f"/runs/{ours.run + 1}", f"/runs/{ours.run}0", f"/regressions/{ours.regression}"):
        if path != page:
            assert thief.get(path, headers=stolen).status_code in (303, 401), path
    assert OURS not in thief.get("/runs", headers=stolen).text
    assert thief.get(f"/api/v1/runs/{ours.run}", headers=stolen).status_code == 401
    posted = thief.post(
        f"{page}/contract", data={"field.gpu": "B200"}, headers=stolen | {"Sec-Fetch-Site": "same-origin"}
    )
    assert posted.status_code in (303, 401)


def test_a_comparison_is_shared_with_its_runs_only(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        make_belongings(session, OURS, whole=True)
        a, b, other = session.execute(select(RunRow.id).order_by(col(RunRow.id)).limit(3)).scalars()
    client, page = visitor(teams, share(teams, f"/compare?a={a}&b={b}"))
    assert client.get(page, headers=HTML).status_code == 200
    assert client.get(f"/compare?a={a}&b={other}", headers=HTML).status_code in (303, 401, 404)


def test_the_api_creates_lists_and_revokes_links(teams: Teams, ours: Belongings) -> None:
    member, api = teams.client("contributor"), f"/api/v1/projects/{OURS}/share-links"
    page = f"/api/v1/runs/{ours.run}/report"
    created = member.post(api, json={"page": f"http://testserver{page}", "days": 2})
    assert (created.status_code, created.headers["Cache-Control"]) == (201, "no-store")
    link = created.json()
    assert (link["page"], link["state"], link["created_by"]) == (page, "active", "contributor")
    reader, opened = visitor(teams, urlsplit(link["link"]).path)
    assert (opened, reader.get(page).status_code) == (page, 200)
    (listed,) = member.get(api).json()["items"]
    assert listed == {name: value for name, value in link.items() if name != "link"} | {
        "opened": 1, "opened_at": listed["opened_at"],
    }  # fmt: skip
    assert member.delete(f"{api}/{link['id']}").json()["state"] == "revoked"
    assert reader.get(page).status_code == 401
    assert teams.client("anonymous").get(urlsplit(link["link"]).path).status_code == 404
    for body in ({"page": "/runs"}, {"page": page, "days": 366}, {"page": page, "days": 0}, {}):
        assert member.post(api, json=body).status_code == 422, body
    assert member.delete(f"{api}/999").status_code == 404
    assert [teams.client(who).get(api).status_code for who in ("viewer", "outsider", "anonymous")] == [403, 404, 401]


def test_links_end(teams: Teams, ours: Belongings) -> None:
    link = share(teams, f"/runs/{ours.run}")
    client, page = visitor(teams, link)
    assert client.get(page, headers=HTML).status_code == 200
    assert teams.client("contributor").post(f"{PAGE}/1/revoke").status_code == 303
    assert client.get(page, headers=HTML).status_code in (303, 401)
    assert teams.client("anonymous").get(link, headers=HTML).status_code == 404

    link = share(teams, f"/regressions/{ours.regression}")
    client, page = visitor(teams, link)
    assert client.get(page, headers=HTML).status_code == 200
    with transaction(teams.engine) as session:
        row = session.get_one(ShareLinkRow, 2)
        assert (row.opened, row.created_by) == (1, "contributor")
        row.expires_at = utc_now() - timedelta(seconds=1)
    assert client.get(page, headers=HTML).status_code in (303, 401)
    assert teams.client("anonymous").get(link, headers=HTML).status_code == 404


def test_only_pages_of_the_project_are_shared(teams: Teams, ours: Belongings) -> None:
    with transaction(teams.engine) as session:
        theirs = make_belongings(session, THEIRS)
    run = ours.run
    pages = ("", "/", "/runs", "/runs/999", "/settings/users", "https://evil.example", f"/runs/{theirs.run}")
    for page in (*pages, f"/compare?a={run}", f"/compare?a={run}&b={theirs.run}", f"/runs/{run}/next"):
        answer = teams.client("contributor").post(PAGE, data={"page": page}, headers=HTML)
        assert answer.status_code == 422, page
        assert "/s/" not in answer.text


# --- The Atom feed of a project, which opens by its key.

ATOM = "{http://www.w3.org/2005/Atom}"


def test_the_feed_has_a_project_s_regressions_and_opens_by_its_key(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        ours, theirs, shown = (make_belongings(session, slug) for slug in (OURS, THEIRS, PUBLIC))
    page = teams.client("viewer").get(f"/regressions?project={OURS}", headers={"Accept": "text/html"}).text
    (address,) = {unescape(link) for link in re.findall(r'href="(/regressions\.atom[^"]+)"', page)}
    assert "key=" in address
    reader = teams.client("anonymous")
    answer = reader.get(address)
    assert answer.headers["Content-Type"].startswith("application/atom+xml")
    entries = ElementTree.fromstring(answer.content).findall(f"{ATOM}entry")  # noqa: S314  our own document
    assert [entry.findtext(f"{ATOM}id", "").rpartition("/")[2] for entry in entries] == [str(ours.regression)]
    assert "Container: alpha-image:2." in entries[0].findtext(f"{ATOM}summary", "")
    assert reader.get(address, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304

    # The key opens no other project, and only public projects open without one.
    for other in (f"/regressions.atom?project={OURS}", address.replace(OURS, THEIRS), address[:-1], address + "é"):
        assert reader.get(other).status_code == 404, other
    assert theirs.regression != shown.regression
    assert reader.get(f"/regressions.atom?project={PUBLIC}").status_code == 200
    with transaction(teams.engine) as session:
        session.get_one(ProjectRow, teams.ours).badge_secret = "renewed"
    assert reader.get(address).status_code == 404


def test_a_project_without_regressions_offers_its_feed_and_an_unknown_one_none(teams: Teams) -> None:
    for project, offered in ((OURS, True), (THEIRS, False), ("unknown", False)):
        page = teams.client("viewer").get(f"/regressions?project={project}", headers={"Accept": "text/html"}).text
        assert ("/regressions.atom" in page) == offered, project


def test_a_feed_without_entries_has_the_date_of_its_project(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        project = session.execute(select(ProjectRow).where(col(ProjectRow.slug) == PUBLIC)).scalar_one()
        created_at = project.created_at
    reader = teams.client("anonymous")
    answers = [reader.get(f"/regressions.atom?project={PUBLIC}") for _ in range(2)]
    feed = ElementTree.fromstring(answers[0].content)  # noqa: S314  our own document
    assert feed.find(f"{ATOM}entry") is None
    assert datetime.fromisoformat(feed.findtext(f"{ATOM}updated", "")) == created_at
    assert answers[0].headers["ETag"] == answers[1].headers["ETag"]


def test_control_characters_do_not_break_the_feed(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        belongings = make_belongings(session, PUBLIC)
        session.get_one(RegressionRow, belongings.regression).cause = "a\x00\x1b[31m<b>\ud7ff & \uffff"
    answer = teams.client("anonymous").get(f"/regressions.atom?project={PUBLIC}")
    assert ElementTree.fromstring(answer.content) is not None  # noqa: S314  our own document
