"""The Atom feed of a project's regressions, read with the key that its pages show."""

import re
from html import unescape
from xml.etree import ElementTree

from app.storage.database import transaction
from app.storage.tables import ProjectRow, RegressionRow
from tests.access.belongings import make_belongings
from tests.access.people import OURS, PUBLIC, THEIRS, Teams

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


def test_control_characters_do_not_break_the_feed(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        belongings = make_belongings(session, PUBLIC)
        session.get_one(RegressionRow, belongings.regression).cause = "a\x00\x1b[31m<b>\ud7ff & \uffff"
    answer = teams.client("anonymous").get(f"/regressions.atom?project={PUBLIC}")
    assert ElementTree.fromstring(answer.content) is not None  # noqa: S314  our own document
