"""Who may not hears what, where, what one is there, and who gives what is missing; and gets away from there."""

import html
import re

from app.domain.access.principal import Role
from app.storage import users
from app.storage.database import transaction
from tests.access.people import OURS, PUBLIC, Teams
from tests.builders import make_run

PAGE = {"Accept": "text/html"}


def words(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"\s+", " ", text)))


def test_a_refusal_says_the_project_the_roles_and_whom_to_ask(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        run, shown = make_run(session, project=OURS), make_run(session, project=PUBLIC)
        second = users.create_user(session, "ada o'neil", by="test").id
        gone = users.create_user(session, "gone", by="test")
        for user in (second, gone.id):
            users.set_role(session, project_id=teams.ours, user_id=user, role=Role.MAINTAINER, by="test")
        users.disable(session, users.get_user(session, gone.id), by="test")
    viewer = teams.client("viewer")
    page = viewer.post(f"/runs/{run}/quarantine", data={"reason": "x"}, headers=PAGE)
    assert page.status_code == 403
    assert (
        "You may not work in alpha. This needs the role contributor; you are viewer. "
        "A maintainer can grant it: ask ada o'neil or maintainer. Nothing was saved." in words(page.text)
    )
    assert f'<a class="button" href="/runs/{run}">Back to the run</a>' in page.text
    assert ('href="/runs?project=alpha"' in page.text, 'href="/upload"' in page.text) == (True, False)
    told = teams.client("contributor").get(f"/api/v1/projects/{OURS}/tokens").json()["detail"]
    assert "You may not manage alpha. This needs the role maintainer; you are contributor." in told

    told = viewer.post(f"/api/v1/runs/{shown}/quarantine", json={"reason": "x"}).json()["detail"]
    assert "work in window. This needs the role contributor; you are not a member." in told
    assert ("An administrator can grant it: ask administrator." in told, "maintainer" in told) == (True, False)
    assert "Only an administrator may do this: administrator." in words(
        viewer.get("/settings/users", headers=PAGE).text
    )
    told = words(viewer.get("/upload", headers=PAGE).text)
    assert (
        "This needs the role contributor in a project, and you are viewer in alpha. A maintainer can grant it" in told
    )


def test_strangers_and_jobs_hear_no_names(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        run, shown = make_run(session, project=OURS), make_run(session, project=PUBLIC)
    for who in ("outsider", "anonymous", "token:read"):
        for number in (run, shown):
            answer = teams.client(who).post(f"/api/v1/runs/{number}/quarantine", json={"reason": "x"})
            asked = "administrator" in answer.text
            assert (answer.status_code in (401, 403, 404), "maintainer:" in answer.text) == (True, False)
            assert asked == (who == "outsider" and number == shown), (who, answer.text)
