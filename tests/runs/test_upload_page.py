"""The upload page with log-ins: the project is one of those where one may upload."""

import re

from tests.access.conftest import teams
from tests.access.people import OURS, PUBLIC, SAME_ORIGIN, THEIRS, Teams

__all__ = ["teams"]


def offered(teams: Teams, who: str) -> list[str]:
    page = teams.client(who).get("/upload").text
    chosen = re.search(r'<select id="f-project".*?</select>', page, re.DOTALL)
    assert chosen is not None
    return re.findall(r"<option[^>]*>([^<]+)", chosen[0])


def test_the_project_is_chosen_of_those_where_one_may_upload(teams: Teams) -> None:
    assert offered(teams, "contributor") == [OURS]
    assert offered(teams, "administrator") == ["choose one", OURS, THEIRS, PUBLIC]
    admin = teams.client("administrator")
    page = admin.post("/upload", data={"project": ""}, files={"log": ("a.log", b"line")}, headers=SAME_ORIGIN)
    assert (page.status_code, "choose or name a project" in page.text) == (422, True)
    assert "default" not in admin.get("/settings/projects").text
    page = admin.post("/upload", data={"project": THEIRS}, files={"log": ("a.log", b"line")}, headers=SAME_ORIGIN)
    assert page.status_code == 303
