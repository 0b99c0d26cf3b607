"""One's own account: what one may do, where one is logged in, and ending that."""

from app.storage import audit
from app.storage.database import read_session
from tests.access.people import OURS, Teams

SESSIONS = "/api/v1/account/sessions"
PAGE = "/settings/account"


def test_the_page_says_who_one_is_and_where(teams: Teams) -> None:
    client = teams.client("viewer")
    client.headers["User-Agent"] = "<Browser> 1.0"
    page = client.get(PAGE).text
    assert "You are a member of 1 project." in page
    assert OURS in page
    assert "current" in page
    assert "full access to every project" in teams.client("administrator").get(PAGE).text
    assert teams.client("anonymous").get(PAGE, headers={"Accept": "text/html"}).status_code == 303
    assert teams.client("token:all").get(PAGE).status_code == 401


def test_a_browser_that_was_forgotten_somewhere_is_ended_from_elsewhere(teams: Teams) -> None:
    here, there, third = (teams.client("viewer") for _ in range(3))
    there.get("/")
    listed = here.get(SESSIONS).json()["items"]
    assert [one["current"] for one in listed].count(True) == 1
    assert len(listed) == 3
    other = next(one["key"] for one in there.get(SESSIONS).json()["items"] if one["current"])
    assert here.post(f"{PAGE}/sessions/{other}/end").headers["Location"] == PAGE
    assert there.get(SESSIONS).status_code == 401
    assert here.post(f"{PAGE}/sessions/others/end").status_code == 303
    assert third.get(SESSIONS).status_code == 401
    own = here.get(SESSIONS).json()["items"]
    assert len(own) == 1
    with read_session(teams.engine) as session:
        done = [one.after for one in audit.events(session, "account", teams.users["viewer"])[:2]]
    assert done == [{"session": "all others"}, {"session": other}]
    assert here.post(f"{PAGE}/sessions/{own[0]['key']}/end").headers["Location"] == "/login"
    assert here.get(SESSIONS).status_code == 401


def test_nobody_ends_the_session_of_another(teams: Teams) -> None:
    viewer, maintainer = teams.client("viewer"), teams.client("maintainer")
    key = viewer.get(SESSIONS).json()["items"][0]["key"]
    assert maintainer.delete(f"{SESSIONS}/{key}").status_code == 404
    assert maintainer.delete(f"{SESSIONS}/{'x' * 16}").status_code == 422
    assert viewer.delete(f"{SESSIONS}/{key}").status_code == 204
    assert viewer.get(SESSIONS).status_code == 401
